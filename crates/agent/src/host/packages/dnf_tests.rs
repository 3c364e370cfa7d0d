use super::*;

const NEW: &str = "https://pkgs.k8s.io/core:/stable:/v1.35/rpm/";
const OLD: &str = "[kubernetes]\nname=Kubernetes\n\
    baseurl=https://pkgs.k8s.io/core:/stable:/v1.34/rpm/\nenabled=1\ngpgcheck=1\n\
    gpgkey=https://pkgs.k8s.io/core:/stable:/v1.34/rpm/repodata/repomd.xml.key\n";

fn version() -> KubernetesVersion {
    "v1.35.0".parse::<KubernetesVersion>().unwrap()
}

fn call(flavour: Flavour, verb: &str, offline: Option<&str>, download: bool) -> String {
    let site = Site::new("/state");
    let dnf = Dnf { site: &site, flavour, version_lock: false };
    let wants = [Want::kubernetes("kubeadm", &version())];
    dnf.transaction(verb, offline.map(Path::new), &wants, download).to_string()
}

#[test]
fn each_dnf_variant_overrides_the_package_excludes() {
    assert_eq!(
        call(Flavour::Dnf4, "install", None, false),
        "/usr/bin/dnf install --assumeyes --disableexcludes=kubernetes \
         --setopt=install_weak_deps=False kubeadm-1.35.0-*"
    );
    assert_eq!(
        call(Flavour::Dnf5, "install", None, true),
        "/usr/bin/dnf5 install --assumeyes --downloadonly --refresh --setopt=disable_excludes=kubernetes \
         --setopt=install_weak_deps=False kubeadm-1.35.0-*"
    );
    assert_eq!(
        call(Flavour::Tdnf, "install", None, false),
        "/usr/bin/tdnf install --assumeyes --disableexcludes kubeadm-1.35.0-*"
    );
}

#[test]
fn a_directory_of_packages_is_the_only_repository() {
    let call = call(Flavour::Dnf4, "install", Some("/srv/rpms"), false);
    let wanted = "--repofrompath=refit-offline,file:///srv/rpms --repo=refit-offline kubeadm";
    assert!(call.contains(wanted), "{call}");
}

#[test]
fn a_rollback_is_a_downgrade() {
    assert!(is_older(&Wanted::Text("1.34.2-150500.1.1".to_owned()), "1.35.0-150500.1.1"));
    assert!(!is_older(&Wanted::Kubernetes(version()), "1.34.9-150500.1.1"));
    assert!(is_older(&Wanted::Kubernetes(version()), "1.100.0-1"));
}

#[test]
fn the_repository_of_the_next_minor_takes_the_place_of_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path().join("root"), directory.path().join("state"));
    let file = format!("{REPOSITORIES}/kubernetes.repo");
    fs::create_dir_all(site.path(REPOSITORIES)).unwrap();
    fs::write(site.path(&file), OLD).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(site.path(&file), closed).unwrap();
    use_repository(&site, "p", NEW).unwrap();
    let kept = Access::like(&site.path(&file), 0o644);
    assert_eq!(kept.mode, 0o600, "it may hold credentials");
    let text = site.read(&file);
    assert_eq!(text.matches("/v1.35/rpm/").count(), 2, "{text}");
    keep::put_back(&site, "p", keep::PACKAGES).unwrap();
    assert_eq!(site.read(&file), OLD);
    fs::remove_file(site.path(&file)).unwrap();
    use_repository(&site, "q", NEW).unwrap();
    assert!(site.read(REFIT_REPOSITORY).contains("exclude=kubelet kubeadm kubectl"));
}

#[test]
fn the_newer_of_two_entries_of_a_package_counts() {
    let packages = parse_installed("kubeadm 1.34.2-1\nkubeadm 1.35.0-1\nrpm 4.18.0-1\n");
    assert_eq!(packages["kubeadm"], "1.35.0-1");
}

#[test]
fn only_older_entries_of_the_same_architecture_are_removed() {
    let both = "x86_64 glibc-2.39-1.x86_64\ni686 glibc-2.39-1.i686\n";
    assert!(outdated_entries(both).is_empty());
    let cut = format!("x86_64 glibc-2.38-1.x86_64\n{both}");
    assert_eq!(outdated_entries(&cut), ["glibc-2.38-1.x86_64"]);
    assert!(outdated_entries("").is_empty());
}

/// A host whose dnf is a script that stores locks in a file. `work` is its installation command.
fn with_locks(locked: &str, work: &str) -> (tempfile::TempDir, Site) {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::at(directory.path().join("root"), directory.path().join("state"));
    fs::create_dir_all(site.state()).unwrap();
    let locks = directory.path().join("locks");
    fs::write(&locks, locked).unwrap();
    let locks = locks.display();
    for (program, script) in [
        (
            Program::Dnf,
            format!(
                "case \"$*\" in\n'versionlock list') cat {locks};;\n\
                 'versionlock delete '*) sed -i \"/^$3-0:/d\" {locks};;\n\
                 'versionlock add '*) echo \"$3-0:1.35.0-1.*\" >> {locks};;\n\
                 *) {work};;\nesac"
            ),
        ),
        (Program::Rpm, "echo kubeadm 1.34.2-1; echo containerd.io 1.7.0-1".to_owned()),
    ] {
        let path = directory.path().join(format!("{program:?}"));
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let path = path.display().to_string();
        let tool = crate::host::site::Tool { path, ..Default::default() };
        site = site.with_tool(program, tool);
    }
    (directory, site)
}

fn locks(directory: &tempfile::TempDir) -> Vec<String> {
    let text = fs::read_to_string(directory.path().join("locks")).unwrap();
    let mut names: Vec<String> =
        text.lines().filter_map(|line| Some(line.split_once("-0:")?.0.to_owned())).collect();
    names.sort();
    names
}

#[tokio::test]
async fn locks_are_back_whatever_becomes_of_the_installation() {
    let locked = "kubeadm-0:1.34.2-1.*\ncontainerd.io-0:1.7.0-1.*\n";
    let from = PackageArgs::default();
    let text = |name: &str, version: &str| Want {
        name: name.to_owned(),
        version: Wanted::Text(version.to_owned()),
    };
    let order = Order {
        plan: "p",
        from: &from,
        wants: vec![text("kubeadm", "1.35.0-1"), text("containerd.io", "2.1.4-1")],
    };
    for work in ["true", "exit 1"] {
        let (directory, site) = with_locks(locked, work);
        let dnf = Dnf { site: &site, flavour: Flavour::Dnf4, version_lock: true };
        let fetched = dnf.fetch(&order).await;
        assert_eq!(fetched.is_ok(), work == "true");
        assert_eq!(locks(&directory), ["containerd.io", "kubeadm"], "{work}");
        let installed = dnf.install(&order).await;
        assert_eq!(installed.is_ok(), work == "true");
        assert_eq!(locks(&directory), ["containerd.io", "kubeadm"], "{work}");
    }
}

#[tokio::test]
async fn a_rollback_leaves_no_new_lock() {
    let (directory, site) = with_locks("", "true");
    let dnf = Dnf { site: &site, flavour: Flavour::Dnf4, version_lock: true };
    let from = PackageArgs::default();
    let order =
        Order { plan: "p", from: &from, wants: vec![Want::kubernetes("kubeadm", &version())] };
    dnf.install(&order).await.unwrap();
    assert_eq!(locks(&directory), ["kubeadm"]);
    let before = BTreeMap::from([("kubeadm".to_owned(), "1.34.1-1".to_owned())]);
    dnf.restore("p", &before).await.unwrap();
    assert_eq!(locks(&directory), Vec::<String>::new());
}

#[test]
fn locks_are_read_as_each_dnf_lists_them() {
    let fourth = "Last metadata expiration check: 0:01\nkubeadm-0:1.34.2-1.*\n";
    let fifth = "# Added by 'versionlock add' command\nPackage name: kubeadm\nevr = 1.34.2-1\n";
    for list in [fourth, fifth] {
        assert!(is_locked(list, "kubeadm") && !is_locked(list, "kube"));
    }
    assert!(!is_locked("containerd.io-0:1.7.0-1.*\n", "containerd"));
    assert!(!is_locked("kubernetes-cni-0:1.4.0-1.*\n", "kubernetes"));
}
