use refit_kinds::refit::FailureKind;

use super::*;

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

#[test]
fn dependency_problems_need_an_operator() {
    let failed = |tail: &str| ProgramError::Failed {
        command: "apt-get install".to_owned(),
        code: Some(100),
        tail: tail.to_owned(),
    };
    for text in [
        "E: Held packages were changed and -y was used without --allow-change-held-packages.",
        "E: Packages need to be removed but remove is disabled.",
        "The following packages have unmet dependencies:",
    ] {
        assert_eq!(explain(failed(text)).kind, FailureKind::NeedsPerson, "{text}");
    }
    assert_eq!(explain(failed("Temporary failure resolving")).kind, FailureKind::Retriable);
}
