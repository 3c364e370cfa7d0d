use refit_kinds::refit::PackageArgs;

use super::*;

const NEW: &str = "https://pkgs.k8s.io/core:/stable:/v1.35/rpm/";
const OLD: &str = "[kubernetes]\nname=Kubernetes\n\
    baseurl=https://pkgs.k8s.io/core:/stable:/v1.34/rpm/\nenabled=1\ngpgcheck=1\n\
    gpgkey=https://pkgs.k8s.io/core:/stable:/v1.34/rpm/repodata/repomd.xml.key\n";

fn site() -> (tempfile::TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path().join("root"), directory.path().join("state"));
    fs::create_dir_all(site.path(REPOSITORIES)).unwrap();
    (directory, site)
}

fn section(text: &str) -> Section {
    parse("/etc/yum.repos.d/x.repo", text).pop().unwrap()
}

#[test]
fn the_repository_of_the_next_minor_takes_the_place_of_the_old_one() {
    let (_directory, site) = site();
    let file = format!("{REPOSITORIES}/kubernetes.repo");
    fs::write(site.path(&file), OLD).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(site.path(&file), closed).unwrap();
    use_repository(&site, "p", NEW).unwrap();
    let kept = Access::like(&site.path(&file), 0o644);
    assert_eq!(kept.mode, 0o600, "it may hold credentials");
    let text = site.read(&file);
    assert_eq!(text.matches("/v1.35/rpm/").count(), 2, "{text}");
    assert!(text.contains("\nexclude=kubeadm kubectl kubelet\n"), "{text}");
    keep::put_back(&site, "p", keep::PACKAGES).unwrap();
    assert_eq!(site.read(&file), OLD);
    fs::remove_file(site.path(&file)).unwrap();
    use_repository(&site, "q", NEW).unwrap();
    assert!(site.read(REFIT_REPOSITORY).contains("exclude=kubelet kubeadm kubectl"));
}

#[test]
fn only_a_valid_url_becomes_a_repository() {
    let (_directory, site) = site();
    let repository = "https://x/\n[evil]".to_owned();
    let from = PackageArgs { repository, ..PackageArgs::default() };
    let order = Order { plan: "p", from: &from, wants: Vec::new() };
    assert!(prepare(&site, &order).is_err());
}

#[test]
fn only_the_repository_of_kubernetes_gets_excludes() {
    let at =
        |excludes: &str| format!("[tools]\nbaseurl=https://x/\n\n[k8s]\nbaseurl={NEW}\n{excludes}");
    let cases = [
        ("", "[k8s]\nexclude=kubeadm kubectl kubelet\n"),
        ("excludepkgs=vim\n", "\nexcludepkgs=vim kubeadm kubectl kubelet\n"),
        ("exclude=kubelet\n", "\nexclude=kubelet kubeadm kubectl kubelet\n"),
        ("exclude=kube*\n", "\nexclude=kube*\n"),
        ("exclude=kubelet,\n  kubeadm kubectl\n", "\nexclude=kubelet,\n  kubeadm kubectl\n"),
    ];
    for (before, after) in cases {
        let text = excluding("x.repo", &at(before), NEW);
        assert!(text.contains(after), "{before}: {text}");
        assert!(text.starts_with("[tools]\nbaseurl=https://x/\n\n[k8s]\n"), "{text}");
    }
}

#[test]
fn a_section_names_the_option_that_hides_a_package() {
    let cases = [
        ("exclude=kubelet kubeadm", Some("exclude=kubelet kubeadm")),
        ("excludepkgs = vim, kube*", Some("excludepkgs=vim, kube*")),
        ("exclude=kubeadm-1.36*", Some("exclude=kubeadm-1.36*")),
        ("exclude=kubeadm.x86_64", Some("exclude=kubeadm.x86_64")),
        ("exclude=*", Some("exclude=*")),
        ("includepkgs=vim", Some("includepkgs=vim")),
        ("includepkgs=kube*", None),
        ("exclude=kubeadm-tools vim", None),
        ("#exclude=kubeadm", None),
        ("exclude=", None),
    ];
    for (line, hidden) in cases {
        let found = section(&format!("[k8s]\n{line}\n")).hides("kubeadm");
        assert_eq!(found.as_deref(), hidden, "{line}");
    }
}

#[test]
fn the_sections_of_all_files_are_read() {
    let (_directory, site) = site();
    fs::create_dir_all(site.path("/etc/dnf")).unwrap();
    fs::write(site.path(CONFIGURATION), "[main]\ngpgcheck=True\nexclude=kube*\n").unwrap();
    let text = "[satellite-k8s]\nexclude=vim\n kubeadm\n[base]\ngpgcheck=0\n";
    fs::write(site.path("/etc/yum.repos.d/redhat.repo"), text).unwrap();
    let sections = sections(&site);
    let version = "v1.35.0".parse().unwrap();
    let hiding = hiding(&sections, &[Want::kubernetes("kubeadm", &version)]);
    let ids: Vec<&str> = hiding.iter().map(|section| section.id.as_str()).collect();
    assert_eq!(ids, ["satellite-k8s", "main"]);
    assert_eq!(hiding[0].file, "/etc/yum.repos.d/redhat.repo");
    let checks: Vec<bool> = sections.iter().map(Section::checks_signatures).collect();
    assert_eq!(checks, [false, false, true]);
}
