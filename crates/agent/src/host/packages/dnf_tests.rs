use super::*;

const NEW: &str = "https://pkgs.k8s.io/core:/stable:/v1.35/rpm/";
const OLD: &str = "[kubernetes]\nname=Kubernetes\n\
    baseurl=https://pkgs.k8s.io/core:/stable:/v1.34/rpm/\nenabled=1\ngpgcheck=1\n\
    gpgkey=https://pkgs.k8s.io/core:/stable:/v1.34/rpm/repodata/repomd.xml.key\n";

fn version() -> KubernetesVersion {
    KubernetesVersion::parse("v1.35.0").unwrap()
}

fn call(flavour: Flavour, verb: &str, offline: Option<&str>, download: bool) -> String {
    let site = Site::new("/state");
    let dnf = Dnf {
        site: &site,
        flavour,
        version_lock: false,
    };
    let wants = [Want::kubernetes("kubeadm", &version())];
    dnf.transaction(verb, offline.map(Path::new), &wants, download)
        .to_string()
}

#[test]
fn each_dnf_is_told_in_its_own_words_that_excluded_packages_are_meant() {
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
fn a_folder_of_packages_is_the_only_repository() {
    let call = call(Flavour::Dnf4, "install", Some("/srv/rpms"), false);
    let wanted = "--repofrompath=refit-offline,file:///srv/rpms --repo=refit-offline kubeadm";
    assert!(call.contains(wanted), "{call}");
}

#[test]
fn a_way_back_is_a_downgrade() {
    assert!(is_older(
        &Wanted::Text("1.34.2-150500.1.1".to_owned()),
        "1.35.0-150500.1.1"
    ));
    assert!(!is_older(
        &Wanted::Kubernetes(version()),
        "1.34.9-150500.1.1"
    ));
    assert!(is_older(&Wanted::Kubernetes(version()), "1.100.0-1"));
}

#[test]
fn the_repository_of_the_next_minor_takes_the_place_of_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::at(folder.path().join("root"), folder.path().join("state"));
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
    assert!(site.read(OWN).contains("exclude=kubelet kubeadm kubectl"));
}

#[test]
fn of_a_package_that_is_there_twice_the_newer_counts() {
    let packages = parse_installed("kubeadm 1.34.2-1\nkubeadm 1.35.0-1\nrpm 4.18.0-1\n");
    assert_eq!(packages["kubeadm"], "1.35.0-1");
}

#[test]
fn only_an_older_entry_of_the_same_architecture_was_cut_off() {
    let both = "x86_64 glibc-2.39-1.x86_64\ni686 glibc-2.39-1.i686\n";
    assert!(cut_off(both).is_empty());
    let cut = format!("x86_64 glibc-2.38-1.x86_64\n{both}");
    assert_eq!(cut_off(&cut), ["glibc-2.38-1.x86_64"]);
    assert!(cut_off("").is_empty());
}
