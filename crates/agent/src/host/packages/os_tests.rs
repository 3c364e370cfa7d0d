use refit_kinds::refit::{FailureKind, OsPackage};

use super::*;
use crate::host::scripted::ScriptedHost;

fn args(packages: &[(&str, &str)]) -> OsPackageArgs {
    let package = |(name, version): &(&str, &str)| OsPackage {
        name: (*name).to_owned(),
        version: (*version).to_owned(),
    };
    OsPackageArgs { install: packages.iter().map(package).collect(), ..Default::default() }
}

/// A host whose apt offers `openssl 2`, and simulates these lines.
fn host(update: &str, simulated: &str) -> ScriptedHost {
    let mut host = ScriptedHost::with_directories(&["/var/lib/dpkg", "/etc/apt"]);
    host.write("/var/lib/dpkg/status", "");
    let apt_get =
        format!("case \"$*\" in *' update '*) {update};; *--simulate*) echo '{simulated}';; esac");
    for (program, script) in [
        (Program::AptGet, &*apt_get),
        (
            Program::AptCache,
            "case $1 in policy) echo '  Candidate: 2';; *) echo 'x | 2 | http://m Packages';; esac",
        ),
        (Program::AptMark, "case $1 in showauto) echo openssl;; esac"),
        (Program::DpkgQuery, "echo openssl 1 installed"),
    ] {
        host.script(program, script);
    }
    host
}

#[tokio::test]
async fn a_package_that_keeps_its_version_is_neither_named_nor_changed() {
    let named = host("true", "");
    for name in ["kubelet", "containerd.io"] {
        let error = stage(&named.site, "p", &args(&[(name, "1")])).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Final, "{error}");
        assert!(
            error.message.contains(name) && error.message.contains("containerRuntime"),
            "{error}"
        );
    }
    let lines = "Inst openssl [1] (2 Debian:12/stable [amd64])\nInst containerd [1] (2 Debian:12/stable [amd64])";
    let error =
        stage(&host("true", lines).site, "p", &args(&[("openssl", "2")])).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(
        error
            .message
            .starts_with("package containerd, which keeps its version (1), would become 2"),
        "{error}"
    );
}

#[tokio::test]
async fn only_names_and_versions_reach_a_command_line() {
    let host = host("true", "");
    for (name, version) in
        [("-o", "*"), ("a", "1 --force"), ("a", ""), ("../x.deb", "1"), ("a", "**")]
    {
        let error = stage(&host.site, "p", &args(&[(name, version)])).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Final, "{name} {version}: {error}");
    }
}

#[tokio::test]
async fn security_updates_are_unknown_without_their_package_lists() {
    let security = OsPackageArgs { security: true, ..OsPackageArgs::default() };
    let failed = |path: &str| {
        format!("echo 'W: Failed to fetch http://m/{path}/InRelease  Could not resolve'")
    };
    for (update, is_known) in [
        ("true".to_owned(), true),
        (failed("debian/dists/bookworm"), true),
        (failed("debian-security/dists/bookworm-security"), false),
        ("exit 100".to_owned(), false),
    ] {
        let host = host(&update, "");
        let staged = stage(&host.site, "p", &security).await;
        assert_eq!(staged.is_ok(), is_known, "{update}: {staged:?}");
        assert!(
            staged.is_ok()
                || staged.unwrap_err().message.contains("its security updates are not known")
        );
    }
}

#[tokio::test]
async fn the_stage_records_packages_that_change_with_their_previous_versions() {
    let lines = "Inst openssl [1] (2 Debian-Security:12/stable-security [amd64])\n\
                 Inst libnew (1 Debian:12/stable [amd64])";
    let host = host("true", lines);
    assert_eq!(installed(&host.site, "p").await.unwrap(), {
        Evidence::Missing { what: "the packages were not staged".to_owned() }
    });
    for wanted in [
        args(&[("openssl", "*")]),
        args(&[("openssl", "2")]),
        OsPackageArgs { security: true, ..args(&[]) },
    ] {
        let Packages::Apt(apt) = manager(&host.site).unwrap() else { panic!("the host has apt") };
        let found = apt.os_transaction(&wanted).await.unwrap();
        let one = |version: &str| BTreeMap::from([("openssl".to_owned(), version.to_owned())]);
        let automatic = BTreeSet::from(["openssl".to_owned()]);
        assert_eq!(
            found,
            Transaction { install: one("2"), before: one("1"), automatic },
            "{wanted:?}"
        );
        found.save(&host.site, "p").unwrap();
        assert_eq!(Transaction::load(&host.site, "p").unwrap(), Some(found));
        let Evidence::Missing { what } = installed(&host.site, "p").await.unwrap() else {
            panic!("nothing was installed")
        };
        assert_eq!(what, "package openssl is 1, expected 2");
        assert_eq!(is_restored(&host.site, "p").await.unwrap(), Evidence::Done);
    }
}

#[tokio::test]
async fn a_goal_that_is_reached_installs_nothing_and_is_verified() {
    let host = host("true", "");
    let wanted = args(&[("openssl", "1")]);
    let mut host = host;
    host.script(Program::AptCache, "echo 'openssl | 1 | http://m Packages'");
    stage(&host.site, "p", &wanted).await.unwrap();
    install(&host.site, "p", &wanted).await.unwrap();
    assert_eq!(installed(&host.site, "p").await.unwrap(), Evidence::Done);
    assert!(!host.log().contains(" install "), "{}", host.log());
}

#[tokio::test]
async fn an_update_that_is_still_offered_after_its_installation_is_a_failure() {
    let lines = "Inst openssl [1] (2 Debian-Security:12/stable-security [amd64])";
    let host = host("true", lines);
    let security = OsPackageArgs { security: true, ..args(&[]) };
    let version = |version: &str| BTreeMap::from([("openssl".to_owned(), version.to_owned())]);
    let manager = manager(&host.site).unwrap();
    for (staged, is_done) in [("2", false), ("1", true)] {
        let transaction = Transaction { install: version(staged), ..Transaction::default() };
        let rest = report_rest(&host.site, &manager, &security, &transaction).await;
        assert_eq!(rest.is_ok(), is_done, "{staged}: {rest:?}");
    }
    assert!(host.log().contains("not there when the plan was staged: openssl 2"), "{}", host.log());
}
