use std::fs;

use super::*;
use crate::host::scripted::ScriptedHost;

fn version() -> KubernetesVersion {
    "v1.35.0".parse::<KubernetesVersion>().unwrap()
}

/// A call on a host whose repository `satellite-k8s` excludes kubeadm.
fn call(flavour: Flavour, source: Source<'_>, work: Work<'_>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path().join("root"), directory.path().join("state"));
    let repositories = site.path("/etc/yum.repos.d");
    fs::create_dir_all(&repositories).unwrap();
    let text = "[base]\ngpgcheck=1\nexclude=vim\n[satellite-k8s]\nexclude=kubeadm\n";
    fs::write(repositories.join("redhat.repo"), text).unwrap();
    let dnf = Dnf { site: &site, flavour, version_lock: false, excluded: Vec::new() };
    let wants = [Want::kubernetes("kubeadm", &version())];
    dnf.transaction("install", source, &wants, work).to_string()
}

#[test]
fn each_dnf_variant_overrides_the_excludes_of_the_repository_that_has_them() {
    assert_eq!(
        call(Flavour::Dnf4, Source::Host, Work::Install),
        "/usr/bin/dnf install --assumeyes --disableexcludes=satellite-k8s \
         --setopt=install_weak_deps=False kubeadm-1.35.0-*"
    );
    assert_eq!(
        call(Flavour::Dnf5, Source::Host, Work::Resolve),
        "/usr/bin/dnf5 install --assumeyes --downloadonly --refresh \
         --setopt=disable_excludes=satellite-k8s --setopt=install_weak_deps=False kubeadm-1.35.0-*"
    );
    assert_eq!(
        call(Flavour::Tdnf, Source::Host, Work::Install),
        "/usr/bin/tdnf install --assumeyes --disableexcludes kubeadm-1.35.0-*"
    );
}

#[test]
fn each_dnf_variant_fetches_into_a_directory() {
    let fetch = |flavour| call(flavour, Source::Host, Work::Fetch(Path::new("/cache/p")));
    let keep = "--downloadonly --setopt=keepcache=1";
    let fourth = fetch(Flavour::Dnf4);
    assert!(fourth.contains(&format!("{keep} --downloaddir=/cache/p --refresh")), "{fourth}");
    let fifth = fetch(Flavour::Dnf5);
    assert!(fifth.contains(&format!("{keep} --setopt=destdir=/cache/p --refresh")), "{fifth}");
    let small = fetch(Flavour::Tdnf);
    assert!(small.contains("--downloadonly --downloaddir=/cache/p --refresh"), "{small}");
}

#[test]
fn a_directory_of_packages_is_the_only_repository() {
    let rpms = Path::new("/srv/rpms");
    let only = "--repofrompath=refit-offline,file:///srv/rpms --repo=refit-offline kubeadm";
    let call = |flavour, source| call(flavour, source, Work::Install);
    for flavour in [Flavour::Dnf4, Flavour::Dnf5] {
        let call = call(flavour, Source::Directory(rpms));
        assert!(call.contains(&format!("--nogpgcheck {only}")), "{call}");
    }
    // dnf 4 and tdnf have verified the signatures of what they fetched, dnf 5 has not.
    let fetched = call(Flavour::Dnf5, Source::Fetched(rpms));
    assert!(fetched.contains(&format!("--setopt=refit-offline.gpgcheck=1 {only}")), "{fetched}");
    let fetched = call(Flavour::Dnf4, Source::Fetched(rpms));
    assert!(fetched.contains(&format!("--nogpgcheck {only}")), "{fetched}");
}

/// tdnf may not have verified the signatures of what it only downloaded.
#[tokio::test]
async fn tdnf_installs_a_fetched_package_only_if_rpm_finds_its_signature_valid() {
    let (directory, site) = with_locks("", "true");
    let fetched = fetched::prepare(&site, "p").unwrap();
    fs::write(fetched.join("kubeadm.rpm"), "").unwrap();
    let repositories = site.path("/etc/yum.repos.d");
    fs::create_dir_all(&repositories).unwrap();
    let repository = repositories.join("kubernetes.repo");
    let dnf =
        Dnf { site: &site, flavour: Flavour::Tdnf, version_lock: false, excluded: Vec::new() };
    let wants = [Want::kubernetes("kubeadm", &version())];
    for (answer, gpgcheck, used) in [
        ("digests signatures OK", 1, true),
        ("rsa sha1 (md5) pgp md5 OK", 1, true),
        ("digests OK", 1, false),
        ("digests OK", 0, true),
        ("digests SIGNATURES NOT OK'; exit 1; '", 1, false),
    ] {
        fs::write(&repository, format!("[kubernetes]\ngpgcheck={gpgcheck}\n")).unwrap();
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n--checksig*) echo \"$2: \"'{answer}';;\n\
             *) printf '@\\tkubeadm\\t0\\t1.35.0\\t1.1\\tx86_64\\n';;\nesac\n"
        );
        fs::write(directory.path().join("Rpm"), script).unwrap();
        let found = dnf.fetched("p", &wants).await;
        assert_eq!(found.is_some(), used, "{answer} {gpgcheck}");
    }
}

#[test]
fn a_rollback_is_a_downgrade() {
    assert!(is_older(&Wanted::Text("1.34.2-150500.1.1".to_owned()), "1.35.0-150500.1.1"));
    assert!(!is_older(&Wanted::Kubernetes(version()), "1.34.9-150500.1.1"));
    assert!(is_older(&Wanted::Kubernetes(version()), "1.100.0-1"));
}

#[test]
fn the_newer_of_two_entries_of_a_package_counts() {
    let packages = parse_installed("kubeadm 1.34.2-1\nkubeadm 1.35.0-1\nrpm 4.18.0-1\n");
    assert_eq!(packages["kubeadm"], "1.35.0-1");
}

/// A host whose dnf is a script that stores locks in a file, and whose repositories are away. `work`
/// is its installation command.
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
                "case \"$*\" in\n\
                 'versionlock '*' --disablerepo=*') ;;\n\
                 'versionlock '*) echo 'Could not resolve host: mirror'; exit 1;;\nesac\n\
                 case \"$*\" in\n'versionlock list '*) cat {locks};;\n\
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
        let dnf =
            Dnf { site: &site, flavour: Flavour::Dnf4, version_lock: true, excluded: Vec::new() };
        let fetched = dnf.fetch(&order).await;
        assert_eq!(fetched.is_ok(), work == "true");
        assert_eq!(locks(&directory), ["containerd.io", "kubeadm"], "{work}");
        let installed = dnf.install(&order).await;
        assert_eq!(installed.is_ok(), work == "true");
        assert_eq!(locks(&directory), ["containerd.io", "kubeadm"], "{work}");
    }
}

#[tokio::test]
async fn a_list_of_locks_that_cannot_be_read_stops_dnf_before_the_transaction() {
    let (directory, site) = with_locks("kubeadm-0:1.34.2-1.*\n", "touch $0.changed");
    fs::remove_file(directory.path().join("locks")).unwrap();
    let dnf = Dnf { site: &site, flavour: Flavour::Dnf4, version_lock: true, excluded: Vec::new() };
    let from = PackageArgs::default();
    let order =
        Order { plan: "p", from: &from, wants: vec![Want::kubernetes("kubeadm", &version())] };
    let error = dnf.install(&order).await.unwrap_err();
    assert!(error.message.contains("versionlock list"), "{error}");
    assert!(!directory.path().join("Dnf.changed").exists());
}

#[tokio::test]
async fn a_rollback_leaves_no_new_lock() {
    let (directory, site) = with_locks("", "true");
    let dnf = Dnf { site: &site, flavour: Flavour::Dnf4, version_lock: true, excluded: Vec::new() };
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

/// dnf 5 verifies signatures only at the installation, and tdnf may do so.
#[tokio::test]
async fn a_program_of_a_fetched_package_runs_only_if_the_signature_is_verified() {
    for (flavour, gpgcheck, checked, expected) in [
        (Flavour::Dnf4, 1, "exit 1", true),
        (Flavour::Tdnf, 1, "exit 1", false),
        (Flavour::Tdnf, 1, "echo $2: digests signatures OK", true),
        (Flavour::Dnf5, 0, "exit 1", true),
        (Flavour::Dnf5, 1, "echo $2: digests signatures OK", true),
        (Flavour::Dnf5, 1, "echo $2: digests OK", false),
        (Flavour::Dnf5, 1, "echo $2: digests SIGNATURES NOT OK; exit 1", false),
    ] {
        let mut host = ScriptedHost::with_directories(&["/etc/yum.repos.d"]);
        host.write("/etc/yum.repos.d/k.repo", format!("[kubernetes]\ngpgcheck={gpgcheck}\n"));
        host.script(Program::Rpm, checked);
        let dnf = Dnf { site: &host.site, flavour, version_lock: false, excluded: Vec::new() };
        let found = dnf.check_before_run(Path::new("/k.rpm")).await;
        assert_eq!(found.is_ok(), expected, "{flavour:?} {gpgcheck} {checked}");
    }
}
