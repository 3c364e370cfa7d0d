use std::os::unix::fs::PermissionsExt as _;

use refit_kinds::refit::FailureKind;

use super::*;
use crate::host::site::Tool;

/// Where kubeadm has etcd's data by default.
const DATA: &str = "/var/lib/etcd";

/// A host without any program. Each test adds its stubs.
fn site() -> (tempfile::TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::at(directory.path().join("root"), directory.path().join("state"));
    for path in [MANIFESTS, "/var/lib/kubelet", "/var/lib/etcd/member"] {
        fs::create_dir_all(site.path(path)).unwrap();
    }
    fs::create_dir_all(site.state()).unwrap();
    fs::write(site.path(KUBELET_CONFIG), "old").unwrap();
    for program in [Program::Etcdctl, Program::Crictl, Program::Ctr] {
        site = with(site, program, "/no/such/program");
    }
    (directory, site)
}

fn with(site: Site, program: Program, path: &str) -> Site {
    let path = path.to_owned();
    site.with_tool(program, Tool { path, ..Tool::default() })
}

fn control_plane(site: &Site) {
    for name in MANIFEST_NAMES {
        fs::write(site.path(MANIFESTS).join(name), format!("image: {name}")).unwrap();
    }
    etcd(site, "{name: etcd}");
}

/// The manifest of etcd, with this container.
fn etcd(site: &Site, container: &str) {
    let text = format!(
        "spec: {{containers: [{container}], volumes: [{{name: d, hostPath: {{path: /mnt/etcd}}}}]}}\n"
    );
    fs::write(site.path(MANIFESTS).join("etcd.yaml"), text).unwrap();
}

/// A script of etcdctl that saves what is in `from`.
fn copying(from: &str) -> String {
    healthy(&format!("for last; do :; done\ncp {from} \"$last\""))
}

async fn check_host(site: &Site) -> Result<(), WorkError> {
    check(site, LocalEtcd::of(site)?.as_ref()).await
}

/// A script of etcdctl: it is healthy, and otherwise runs `save`.
fn healthy(save: &str) -> String {
    format!("case \"$*\" in *' endpoint health') exit 0;; esac\n{save}")
}

fn stub(site: Site, program: Program, script: &str) -> Site {
    let path = site.state().join(format!("{program:?}"));
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let path = path.display().to_string();
    with(site, program, &path)
}

/// The content of a valid etcd snapshot.
fn database() -> Vec<u8> {
    let mut bytes = vec![7; 4096];
    bytes[BOLT_MAGIC_AT..BOLT_MAGIC_AT + 4].copy_from_slice(&BOLT_MAGIC);
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

/// A file that stubs copy from.
fn source(site: &Site, bytes: &[u8]) -> String {
    let path = site.state().join("source.db");
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

fn packages() -> BTreeMap<String, String> {
    BTreeMap::from([("kubelet".to_owned(), "1.34.2-1.1".to_owned())])
}

#[tokio::test]
async fn a_worker_keeps_its_packages_and_its_kubelets_configuration() {
    let (_directory, site) = site();
    check_host(&site).await.unwrap();
    save(&site, "p", &packages()).await.unwrap();
    assert!(site.snapshot("p").join("packages.json").exists());
    let mode = fs::metadata(site.snapshot("p")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    fs::write(site.path(KUBELET_CONFIG), "new").unwrap();
    let added = site.path("/var/lib/kubelet/instance-config.yaml");
    fs::write(&added, "new").unwrap();
    // A retry keeps the snapshot of the first attempt.
    save(&site, "p", &packages()).await.unwrap();
    assert!(keep::is_back(&site, "p", CONFIGURATION).unwrap().is_some());
    put_back(&site, "p").unwrap();
    assert_eq!(site.read(KUBELET_CONFIG), "old");
    assert!(!added.exists());
    assert_eq!(keep::is_back(&site, "p", CONFIGURATION).unwrap(), None);
}

#[tokio::test]
async fn control_plane_manifests_are_restored() {
    let (_directory, site) = site();
    control_plane(&site);
    keep_configuration(&site, "p").unwrap();
    let manifest = site.path(MANIFESTS).join("kube-apiserver.yaml");
    fs::write(&manifest, "image: new").unwrap();
    put_back(&site, "p").unwrap();
    assert_eq!(fs::read_to_string(manifest).unwrap(), "image: kube-apiserver.yaml");
}

#[tokio::test]
async fn the_check_fails_on_a_host_that_cannot_save_etcd() {
    let (_directory, site) = site();
    control_plane(&site);
    let error = check_host(&site).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("neither etcdctl nor crictl nor ctr"), "{error}");
    // etcd's container does not run.
    let site = stub(site, Program::Crictl, "");
    let error = check_host(&site).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable);
    assert!(error.message.contains("container is not running; check that its"), "{error}");
    // etcd does not answer.
    let site = stub(site, Program::Etcdctl, "echo 'context deadline exceeded' >&2; exit 1");
    let error = check_host(&site).await.unwrap_err();
    assert!(error.message.contains("context deadline exceeded"), "{error}");
    // The check writes nothing.
    let site = stub(site, Program::Etcdctl, &healthy("exit 1"));
    check_host(&site).await.unwrap();
    assert!(!site.snapshot("p").exists());
    assert_eq!(fs::read_dir(site.path(DATA)).unwrap().count(), 1);
}

#[tokio::test]
async fn the_check_fails_where_the_manifest_names_other_data() {
    let (_directory, site) = site();
    let site = stub(site, Program::Etcdctl, &healthy(""));
    etcd(&site, "{name: etcd, command: [etcd, --data-dir=/var/lib/etcddisk/etcd]}");
    let error = check_host(&site).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("not in /var/lib/etcddisk/etcd"), "{error}");
}

#[tokio::test]
async fn etcdctl_in_the_container_stands_in_for_one_that_does_not_reach_etcd() {
    let (_directory, site) = site();
    control_plane(&site);
    let site = stub(site, Program::Etcdctl, "exit 1");
    let site = stub(site, Program::Crictl, "case $1 in ps) echo abc123;; esac");
    assert!(connect(&site, &LocalEtcd::of(&site).unwrap().unwrap()).await.unwrap().inside);
}

#[tokio::test]
async fn etcd_on_a_disk_of_its_own_is_saved_by_its_container() {
    let (_directory, site) = site();
    control_plane(&site);
    etcd(
        &site,
        "{name: etcd, command: [etcd, --data-dir=/data/v3], volumeMounts: [{name: d, mountPath: /data}]}",
    );
    let data = site.path("/mnt/etcd/v3");
    fs::create_dir_all(data.join(MEMBER)).unwrap();
    let from = source(&site, &database());
    let written = data.join(IN_CONTAINER).display().to_string();
    let script = format!(
        "case \"$*\" in 'ps '*) echo abc123;; *'endpoint health') ;;\n\
         *'snapshot save /data/v3/{IN_CONTAINER}') cp {from} {written};; *) exit 3;; esac"
    );
    let site = stub(site, Program::Crictl, &script);
    check_host(&site).await.unwrap();
    save(&site, "p", &packages()).await.unwrap();
    assert_eq!(fs::read(site.snapshot("p").join("etcd.db")).unwrap(), database());
    assert!(!Path::new(&written).exists());
}

#[tokio::test]
async fn etcd_is_saved_by_the_hosts_own_etcdctl() {
    let (_directory, site) = site();
    control_plane(&site);
    let from = source(&site, &database());
    let site = stub(site, Program::Etcdctl, &copying(&from));
    save(&site, "p", &packages()).await.unwrap();
    let saved = site.snapshot("p").join("etcd.db");
    assert_eq!(fs::read(&saved).unwrap(), database());
    assert_eq!(fs::metadata(&saved).unwrap().permissions().mode() & 0o777, 0o600);
    // The snapshot is taken once: a later state is not the previous one.
    let site = stub(site, Program::Etcdctl, "exit 1");
    save(&site, "p", &packages()).await.unwrap();
}

#[tokio::test]
async fn etcd_is_saved_by_its_container_where_the_host_has_no_etcdctl() {
    for program in [Program::Crictl, Program::Ctr] {
        let (_directory, site) = site();
        control_plane(&site);
        let from = source(&site, &database());
        let written = site.path(DATA).join(IN_CONTAINER).display().to_string();
        let script = format!(
            "case \"$*\" in\n\
             *'tasks list'*) echo 'TASK PID STATUS'; echo 'abc123 42 RUNNING';;\n\
             *exec*abc123*etcdctl*'endpoint health') ;;\n\
             *exec*abc123*etcdctl*'snapshot save {DATA}/{IN_CONTAINER}') cp {from} {written};;\n\
             'ps '*|*'containers list'*) echo gone9; echo abc123;;\n\
             *) exit 3;;\nesac"
        );
        let script =
            if program == Program::Crictl { script.replace("echo gone9; ", "") } else { script };
        let site = stub(site, program, &script);
        save(&site, "p", &packages()).await.unwrap();
        let saved = site.snapshot("p").join("etcd.db");
        assert_eq!(fs::read(&saved).unwrap(), database(), "{program:?}");
        assert!(!Path::new(&written).exists(), "nothing stays in etcd's directory");
    }
}

#[tokio::test]
async fn a_truncated_snapshot_is_rejected() {
    let (_directory, site) = site();
    control_plane(&site);
    let mut bytes = database();
    bytes.truncate(2000);
    let from = source(&site, &bytes);
    let site = stub(site, Program::Etcdctl, &copying(&from));
    let error = save(&site, "p", &packages()).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable);
    assert!(!site.snapshot("p").join("etcd.db").exists());
}

#[test]
fn a_stopped_etcd_container_is_retriable() {
    let error = first_id("\n").unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable);
    assert_eq!(first_id("abc\ndef\n").unwrap(), "abc");
    assert!(first_id("$(reboot)").is_err());
}

#[tokio::test]
async fn a_failed_save_leaves_nothing_in_the_etcd_directory() {
    for script in [
        "touch {written}.part; exit 1",
        "cp {from} {written}; exit 1",
        "mkdir {new}; cp {from} {written}",
    ] {
        let (_directory, site) = site();
        control_plane(&site);
        let from = source(&site, &database());
        let written = site.path(DATA).join(IN_CONTAINER);
        let new = site.snapshot("p").join("etcd.db.new");
        let script = script
            .replace("{from}", &from)
            .replace("{written}", &written.display().to_string())
            .replace("{new}", &new.display().to_string());
        let script = healthy(&format!("case \"$1\" in ps) echo abc123;; *) {script};; esac"));
        let site = stub(site, Program::Crictl, &script);
        save(&site, "p", &packages()).await.unwrap_err();
        let left = fs::read_dir(site.path(DATA)).unwrap().count();
        assert_eq!(left, 1, "{script}: only the data");
    }
}
