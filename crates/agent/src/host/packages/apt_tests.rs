use refit_kinds::refit::PackageArgs;

use super::*;
use crate::host::{scripted::ScriptedHost, work::deciding};

#[test]
fn only_installed_packages_count() {
    let packages = parse_installed(
        "kubeadm 1.35.0-1.1 installed\nkubelet:amd64 1.34.2-1.1 installed\n\
         kubectl 1.34.2-1.1 config-files\nvim 9 half-configured\n",
    );
    let packages: Vec<_> = packages.iter().map(|(n, v)| format!("{n} {v}")).collect();
    assert_eq!(packages, ["kubeadm 1.35.0-1.1", "kubelet 1.34.2-1.1"]);
}

#[test]
fn versions_come_once_and_without_sources() {
    let text = "\
   kubeadm | 1.35.0-1.1 | https://pkgs.k8s.io/core:/stable:/v1.35/deb  Packages
   kubeadm | 1.35.0-1.1 | file:/x ./ Packages
   kubeadm | 1.34.2-1.1 | /var/lib/dpkg/status
   kubeadm | 1.34.1-1.1 | https://x Sources
";
    assert_eq!(parse_madison(text), ["1.35.0-1.1", "1.34.2-1.1"]);
    assert!(parse_madison("").is_empty());
}

/// apt-get warns of a source of other packages at each update.
#[tokio::test]
async fn warnings_of_an_update_decide_only_if_a_package_is_missing() {
    let warning = "W: An error occurred during the signature verification: NO_PUBKEY 1234";
    let found = "echo 'kubeadm | 1.35.0-1.1 | http://m Packages'";
    for (cache, warned) in [(found, false), ("exit 0", true)] {
        let mut host = ScriptedHost::with_directories(&["/etc/apt", "/var/lib/dpkg"]);
        let apt_get = format!(
            "case \"$*\" in *update*) echo '{warning}';; *) echo 'E: broken'; exit 100;; esac"
        );
        for (program, script) in [
            (Program::AptGet, apt_get.as_str()),
            (Program::AptCache, cache),
            (Program::AptMark, "exit 0"),
            (Program::DpkgQuery, "echo kubeadm 1.34.2-1.1 installed"),
        ] {
            host.script(program, script);
        }
        let from = PackageArgs::default();
        let wants = vec![Want::kubernetes("kubeadm", &"v1.35.0".parse().unwrap())];
        let order = Order { plan: "p", from: &from, wants };
        let apt = Apt::new(&host.site);
        let error = apt.fetch(&order).await.unwrap_err();
        host.site.log(&format!("error: {error}"));
        let log = host.log();
        assert!(log.contains(warning), "{log}");
        assert_eq!(deciding(&log).contains("NO_PUBKEY"), warned, "{log}");
        assert!(error.message.contains("E: broken") || warned, "{error}");
    }
}
