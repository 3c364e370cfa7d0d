//! Packages of the operating system with the real package managers, in a root directory of their own.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use refit_agent::host::{
    Command as HostCommand, JobFile, NoSecrets, Program, Site, Undo, WorkError, carry_out,
};
use refit_kinds::refit::{FailureKind, HostStep, OsPackage, OsPackageArgs, RebootChoice};

use crate::{
    apt::{self, stub},
    dnf,
};

fn args(packages: &[(&str, &str)]) -> OsPackageArgs {
    let package = |(name, version): &(&str, &str)| OsPackage {
        name: (*name).to_owned(),
        version: (*version).to_owned(),
    };
    OsPackageArgs { install: packages.iter().map(package).collect(), ..Default::default() }
}

fn security() -> OsPackageArgs {
    OsPackageArgs { security: true, reboot: RebootChoice::Never, ..OsPackageArgs::default() }
}

async fn run(site: &Site, plan: &str, command: impl Into<HostCommand>) -> Result<(), WorkError> {
    fs::create_dir_all(site.units()).unwrap();
    let job = JobFile {
        plan: plan.into(),
        unit: "unit".to_owned(),
        step: "step".to_owned(),
        command: command.into(),
        state: site.state().to_owned(),
        kubeconfig: PathBuf::new(),
        namespace: String::new(),
        own: refit_agent::OwnPaths::default(),
        proxies: BTreeMap::new(),
    };
    carry_out(site, &job, &NoSecrets).await
}

async fn stage(site: &Site, args: &OsPackageArgs) -> Result<(), WorkError> {
    run(site, "p", HostStep::OsPackagesStage(args.clone())).await
}

async fn install(site: &Site, args: &OsPackageArgs) -> Result<(), WorkError> {
    run(site, "p", HostStep::OsPackagesInstall(args.clone())).await
}

/// A Debian with `libssl 1`, `vim 1` and `containerd 1`, and an archive of security updates with version 2 of the first and the last.
async fn debian() -> Option<apt::World> {
    let world = apt::World::new()?;
    let stubs = ["libssl", "vim", "containerd"].map(|name| stub(name, "1"));
    world.repository("repo", &stubs);
    world.source("main", "repo");
    let all = stubs.map(|stub| (stub.name(), "1"));
    let first = args(&all[..2]);
    stage(&world.site, &first).await.unwrap();
    install(&world.site, &OsPackageArgs { reboot: RebootChoice::Never, ..first }).await.unwrap();
    let containerd = world.site.call(Program::AptGet, ["--yes", "install", "containerd=1"]);
    containerd.output().await.unwrap();
    world.repository("repo", &[stub("vim", "2")]);
    world.repository("security", &[stub("libssl", "2"), stub("containerd", "2")]);
    world.release("security", "stable-security", "Debian-Security");
    // Packages of a `file:` source stay where they are, so that nothing would be fetched.
    let list = world.site.path("/etc/apt/sources.list.d/security.list");
    let line = format!("deb [trusted=yes] copy:{} ./\n", world.path("security").display());
    fs::write(list, line).unwrap();
    let auto = world.site.call(Program::AptMark, ["auto", "libssl"]);
    auto.output().await.unwrap();
    Some(world)
}

#[tokio::test]
async fn apt_installs_all_security_updates_and_nothing_else() {
    let Some(world) = debian().await else { return };
    let before = world.installed().await;
    assert_eq!(before, "containerd 1, libssl 1, vim 1");
    stage(&world.site, &security()).await.unwrap();
    assert_eq!(world.installed().await, before, "staging installs nothing");
    // The mirror is not needed any more.
    fs::rename(world.path("security"), world.path("gone")).unwrap();
    install(&world.site, &security()).await.unwrap();
    assert_eq!(world.installed().await, "containerd 1, libssl 2, vim 1", "{}", world.log());
    let auto = world.site.call(Program::AptMark, ["showauto"]).output().await.unwrap();
    assert_eq!(auto.trim(), "libssl", "it is still there for others only");
    run(&world.site, "p", Undo::OsPackages).await.unwrap();
    assert_eq!(world.installed().await, before, "{}", world.log());
}

#[tokio::test]
async fn apt_installs_named_packages_at_their_versions_or_the_newest() {
    let Some(world) = debian().await else { return };
    world.repository("repo", &[stub("vim", "2.1"), stub("vim", "3"), stub("new", "1")]);
    for (wanted, expected) in [
        (("vim", "2"), "vim 2"),
        (("vim", "2*"), "vim 2.1"),
        (("vim", "*"), "vim 3"),
        (("new", "*"), "new 1"),
    ] {
        let wanted = OsPackageArgs { reboot: RebootChoice::Never, ..args(&[wanted]) };
        stage(&world.site, &wanted).await.unwrap();
        install(&world.site, &wanted).await.unwrap();
        let now = world.installed().await;
        assert!(now.split(", ").any(|one| one == expected), "{now}: {}", world.log());
    }
    let error = stage(&world.site, &args(&[("vim", "7")])).await.unwrap_err();
    assert!(
        error.message.contains("no package vim at 7; available versions: 3, 2.1, 2"),
        "{error}"
    );
}

#[tokio::test]
async fn apt_does_not_change_the_container_runtime_for_another_package() {
    let Some(world) = debian().await else { return };
    let mut needs = stub("vim", "4");
    needs.fields = "Depends: containerd (>= 2)\n";
    world.repository("repo", &[needs]);
    let error = stage(&world.site, &args(&[("vim", "4")])).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(
        error.message.contains("package containerd, which keeps its version (1), would become 2"),
        "{error}"
    );
    assert_eq!(world.installed().await, "containerd 1, libssl 1, vim 1");
}

/// A Fedora with `openssl`, `vim` and `containerd` at 1-1, and a repository with 2-1 of all of them. An advisory on security names
/// the first and the last.
async fn fedora() -> Option<dnf::World> {
    let world = dnf::World::new()?;
    for name in ["openssl", "vim", "containerd"] {
        world.package("repo", name, "1-1", &[], None);
    }
    world.index("repo");
    let url = world.path("repo").display().to_string();
    let repo = format!("[repo]\nname=Repo\nbaseurl=file://{url}/\nenabled=1\n");
    fs::write(world.site.path("/etc/yum.repos.d/repo.repo"), repo).unwrap();
    let all = ["install", "--assumeyes", "openssl", "vim", "containerd"];
    world.site.call(Program::Dnf, all).output().await.unwrap();
    for name in ["openssl", "vim", "containerd"] {
        world.package("repo", name, "2-1", &[], None);
    }
    world.index("repo");
    let package = |name: &str| {
        let arch = std::env::consts::ARCH;
        format!(
            "<package name=\"{name}\" version=\"2\" release=\"1\" epoch=\"0\" arch=\"{arch}\"><filename>{name}-2-1.{arch}.rpm</filename></package>"
        )
    };
    let advisory = format!(
        "<updates><update from=\"x\" status=\"final\" type=\"security\" version=\"1\"><id>SEC-1</id><title>t</title>\
         <issued date=\"2026-01-01 00:00:00\"/><pkglist><collection><name>c</name>{}{}</collection></pkglist></update></updates>",
        package("openssl"),
        package("containerd")
    );
    fs::write(world.path("updateinfo.xml"), advisory).unwrap();
    let added = Command::new("modifyrepo_c")
        .arg(world.path("updateinfo.xml"))
        .arg(world.path("repo/repodata"))
        .output();
    assert!(added.unwrap().status.success());
    Some(world)
}

async fn versions(world: &dnf::World) -> String {
    let all = world.dnf().installed().await.unwrap();
    let mut all: Vec<_> = all.iter().map(|(name, version)| format!("{name} {version}")).collect();
    all.retain(|one| !one.starts_with("shell "));
    all.join(", ")
}

#[tokio::test]
async fn dnf_installs_all_security_updates_and_nothing_else() {
    let Some(world) = fedora().await else { return };
    let before = "containerd 1-1, openssl 1-1, vim 1-1";
    stage(&world.site, &security()).await.unwrap();
    assert_eq!(versions(&world).await, before, "staging installs nothing");
    // The mirror is not needed any more.
    fs::rename(world.path("repo"), world.path("gone")).unwrap();
    install(&world.site, &security()).await.unwrap();
    fs::rename(world.path("gone"), world.path("repo")).unwrap();
    assert_eq!(versions(&world).await, "containerd 1-1, openssl 2-1, vim 1-1", "{}", world.log());
    run(&world.site, "p", Undo::OsPackages).await.unwrap();
    assert_eq!(versions(&world).await, before, "{}", world.log());
}

#[tokio::test]
async fn dnf_installs_named_packages_at_their_versions_or_the_newest() {
    let Some(world) = fedora().await else { return };
    world.package("repo", "vim", "2.1-1", &[], None);
    world.package("repo", "vim", "3-1", &[], None);
    world.index("repo");
    for (wanted, expected) in
        [(("vim", "2-1"), "vim 2-1"), (("vim", "2.*"), "vim 2.1-1"), (("vim", "*"), "vim 3-1")]
    {
        let wanted = OsPackageArgs { reboot: RebootChoice::Never, ..args(&[wanted]) };
        stage(&world.site, &wanted).await.unwrap();
        install(&world.site, &wanted).await.unwrap();
        let now = versions(&world).await;
        assert!(now.split(", ").any(|one| one == expected), "{now}: {}", world.log());
    }
    stage(&world.site, &args(&[("vim", "7-1")])).await.unwrap_err();
}

#[tokio::test]
async fn dnf_does_not_change_the_container_runtime_for_another_package() {
    let Some(world) = fedora().await else { return };
    let needs = [rpm::Dependency::greater_eq("containerd", "2")];
    world.package("repo", "vim", "4-1", &needs, None);
    world.index("repo");
    stage(&world.site, &args(&[("vim", "4-1")])).await.unwrap_err();
    assert_eq!(versions(&world).await, "containerd 1-1, openssl 1-1, vim 1-1", "{}", world.log());
}
