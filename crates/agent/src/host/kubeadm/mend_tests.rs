use std::{fs, path::PathBuf};

use proptest::prelude::*;
use refit_kinds::refit::FailureKind;

use super::*;
use crate::host::{scripted::ScriptedHost, snapshot};

fn pod(image: &str) -> Vec<u8> {
    format!("kind: Pod\nspec:\n  containers:\n  - image: {image}\n").into_bytes()
}

fn saved(content: impl Into<Vec<u8>>) -> Saved {
    Saved { content: content.into(), access: Access::of_mode(0o600) }
}

/// A pod whose last byte is lost: it can still be parsed.
fn truncated() -> Vec<u8> {
    let mut text = pod("new");
    text.pop();
    text
}

/// What was read of a manifest, whether it is optional, and the verdict.
type Case<'a> = (Option<&'a [u8]>, &'a Before, &'a [Saved], bool, Verdict<'a>);

#[test]
fn a_damaged_manifest_is_restored_from_the_snapshot_or_else_from_kubeadms_newest_backup() {
    use Verdict::{Leave, Lost, Restore};
    let (old, newest, older) = (saved(pod("old")), saved(pod("newest")), saved(pod("older")));
    let kept = Before::File(old.clone());
    let broken = Before::File(saved(""));
    let cut_before = Before::File(saved(truncated()));
    let (unknown, absent) = (Before::Unknown, Before::Absent);
    let backups = [saved(""), newest.clone(), older];
    let none: &[Saved] = &[];
    let zeros = vec![0; 4096];
    let (new, cut) = (pod("new"), truncated());
    assert!(is_pod(&cut), "the case is only of use if it can be parsed");
    let cases: [Case<'_>; 18] = [
        (Some(&new), &kept, &backups, false, Leave),
        (Some(&new), &unknown, none, false, Leave),
        (None, &kept, &backups, false, Restore(&old)),
        (Some(b""), &kept, &backups, false, Restore(&old)),
        (Some(&zeros), &kept, none, false, Restore(&old)),
        (Some(&cut), &kept, none, false, Restore(&old)),
        (Some(&cut), &cut_before, none, false, Leave),
        (Some(b"kind: Pod\n"), &kept, none, false, Restore(&old)),
        (None, &broken, &backups, false, Restore(&newest)),
        (Some(b""), &broken, none, false, Lost),
        (None, &unknown, &backups, false, Restore(&newest)),
        (None, &unknown, none, false, Lost),
        (None, &unknown, &backups, true, Leave),
        (Some(b""), &unknown, &backups, true, Restore(&newest)),
        (None, &absent, &backups, true, Leave),
        (None, &absent, &backups, false, Restore(&newest)),
        (None, &absent, none, false, Lost),
        (Some(b""), &absent, &backups, true, Lost),
    ];
    for (now, before, backups, optional, verdict) in cases {
        let found = decide(now, before, backups, optional);
        assert_eq!(found, verdict, "{now:?} {before:?} {} {optional}", backups.len());
    }
}

fn texts() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        Just(vec![0; 512]),
        Just(pod("a")),
        (0..40_usize).prop_map(|length| pod("b")[..length].to_vec()),
        proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

proptest! {
    #[test]
    fn every_manifest_is_whole_after_mending_or_named_by_the_error(
        now in proptest::option::of(texts()),
        kept in prop_oneof![
            Just(Before::Unknown),
            Just(Before::Absent),
            texts().prop_map(|text| Before::File(saved(text))),
        ],
        backups in proptest::collection::vec(texts().prop_map(saved), 0..3),
        optional: bool,
    ) {
        let after = match decide(now.as_deref(), &kept, &backups, optional) {
            Verdict::Leave => now,
            Verdict::Restore(copy) => Some(copy.content.clone()),
            Verdict::Lost => return Ok(()),
        };
        match after {
            Some(after) => prop_assert!(is_pod(&after)),
            None => prop_assert!(optional && !matches!(kept, Before::File(_))),
        }
    }
}

struct World {
    host: ScriptedHost,
}

impl World {
    /// A control plane with whole manifests, without `crictl`.
    fn new() -> Self {
        let mut host = ScriptedHost::with_directories(&[MANIFESTS]);
        host.without(Program::Crictl);
        for name in COMPONENTS {
            host.write(&format!("{MANIFESTS}/{name}.yaml"), pod("old"));
        }
        Self { host }
    }

    /// A host on which `crictl` is this script.
    fn with_script(mut self, script: &str) -> Self {
        self.host.script(Program::Crictl, script);
        self
    }

    fn site(&self) -> &Site {
        &self.host.site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site().path(MANIFESTS).join(format!("{name}.yaml"))
    }
}

#[tokio::test]
async fn manifests_that_a_power_cut_left_incomplete_are_restored() {
    let world = World::new();
    snapshot::keep_configuration(world.site(), "p").unwrap();
    fs::remove_file(world.path("etcd")).unwrap();
    fs::write(world.path("kube-apiserver"), "").unwrap();
    fs::write(world.path("kube-scheduler"), [0; 4096]).unwrap();
    fs::write(world.path("kube-controller-manager"), pod("new")).unwrap();
    static_pods(world.site(), "p").await.unwrap();
    for name in ["etcd", "kube-apiserver", "kube-scheduler"] {
        assert_eq!(fs::read(world.path(name)).unwrap(), pod("old"), "{name}");
    }
    let kept = fs::read(world.path("kube-controller-manager")).unwrap();
    assert_eq!(kept, pod("new"), "kubeadm's own result stays");
}

#[tokio::test]
async fn an_external_etcd_gets_no_manifest_from_an_old_backup() {
    let world = World::new();
    fs::remove_file(world.path("etcd")).unwrap();
    let backup = world.site().path(backups::DIRECTORY).join(format!("{}2026", backups::MANIFESTS));
    fs::create_dir_all(&backup).unwrap();
    fs::write(backup.join("etcd.yaml"), pod("ancient")).unwrap();
    snapshot::keep_configuration(world.site(), "p").unwrap();
    static_pods(world.site(), "p").await.unwrap();
    assert!(!world.path("etcd").exists());
}

#[tokio::test]
async fn manifests_that_an_earlier_plan_lost_come_from_kubeadms_backup() {
    let world = World::new();
    let to_etcd = |url: &str| {
        let pod = String::from_utf8(pod("old")).unwrap();
        format!("{pod}    command: [kube-apiserver, \"--etcd-servers={url}\"]\n")
    };
    let backup = world.site().path(backups::DIRECTORY).join(format!("{}2026", backups::MANIFESTS));
    fs::create_dir_all(&backup).unwrap();
    for name in ["etcd", "kube-scheduler"] {
        fs::remove_file(world.path(name)).unwrap();
        fs::write(backup.join(format!("{name}.yaml")), pod("old")).unwrap();
    }
    fs::write(world.path("kube-apiserver"), to_etcd("https://10.0.0.9:2379")).unwrap();
    snapshot::keep_configuration(world.site(), "p").unwrap();
    static_pods(world.site(), "p").await.unwrap();
    assert!(world.path("kube-scheduler").exists(), "each control plane has a scheduler");
    assert!(!world.path("etcd").exists(), "etcd is external");
    assert_eq!(manifest::LocalEtcd::of(world.site()).unwrap(), None);
    fs::write(world.path("kube-apiserver"), to_etcd("https://[::1]:2379")).unwrap();
    let error = manifest::LocalEtcd::of(world.site()).unwrap_err();
    assert!(error.message.contains("etcd.yaml is missing, although kube-apiserver"), "{error}");
    static_pods(world.site(), "p").await.unwrap();
    assert_eq!(fs::read(world.path("etcd")).unwrap(), pod("old"));
}

#[tokio::test]
async fn a_kubelet_configuration_that_a_power_cut_left_empty_is_restored() {
    let world = World::new();
    let [config, flags, instance] =
        snapshot::CONFIGURATION_FILES.map(|path| world.site().path(path));
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, "clusterDNS: []\n").unwrap();
    fs::write(&flags, "A=1\n").unwrap();
    snapshot::keep_configuration(world.site(), "p").unwrap();
    fs::write(&config, "").unwrap();
    fs::write(&flags, "A=2\n").unwrap();
    damages(world.site(), "p", Role::Worker).await.unwrap();
    assert_eq!(fs::read_to_string(&config).unwrap(), "clusterDNS: []\n");
    assert_eq!(fs::read_to_string(&flags).unwrap(), "A=2\n", "kubeadm's own result stays");
    assert!(!instance.exists(), "it did not exist before");
    // kubeadm was moving a flag there, and does not create the file again.
    fs::write(&instance, "").unwrap();
    damages(world.site(), "p", Role::Worker).await.unwrap();
    assert!(!instance.exists());
    assert_eq!(fs::read_to_string(&flags).unwrap(), "A=1\n");
    fs::write(&instance, "containerRuntimeEndpoint: x\n").unwrap();
    fs::write(&flags, "A=2\n").unwrap();
    damages(world.site(), "p", Role::Worker).await.unwrap();
    assert!(instance.exists(), "kubeadm's own result stays");
    assert_eq!(fs::read_to_string(&flags).unwrap(), "A=2\n");
}

#[tokio::test]
async fn a_manifest_that_was_lost_before_the_plan_comes_from_kubeadms_backup() {
    let world = World::new();
    fs::write(world.path("kube-apiserver"), "").unwrap();
    snapshot::keep_configuration(world.site(), "p").unwrap();
    let error = static_pods(world.site(), "p").await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("manifests/kube-apiserver.yaml is missing"), "{error}");
    let backup = world.site().path(backups::DIRECTORY).join(format!("{}2026", backups::MANIFESTS));
    fs::create_dir_all(&backup).unwrap();
    fs::write(backup.join("kube-apiserver.yaml"), pod("old")).unwrap();
    static_pods(world.site(), "p").await.unwrap();
    assert_eq!(fs::read(world.path("kube-apiserver")).unwrap(), pod("old"));
}

#[tokio::test]
async fn kubeadm_waits_for_the_pod_of_a_restored_manifest() {
    let wait = async |world: &World, restored: &[&str], milliseconds| {
        wait_for_pods(world.site(), restored, Duration::from_millis(milliseconds)).await
    };
    let silent = World::new().with_script("exit 0");
    let error = wait(&silent, &["kube-scheduler"], 100).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable);
    assert!(error.message.contains("kube-scheduler"), "{error}");
    assert!(error.message.contains("`journalctl -u kubelet`"), "{error}");
    // Nothing was restored: kubeadm itself reports what is wrong.
    wait(&silent, &[], 100).await.unwrap();
    let late = World::new();
    let mark = late.host.directory.path().join("mark").display().to_string();
    let late = late.with_script(&format!("[ -e {mark} ] && echo abc; touch {mark}"));
    wait(&late, &["kube-scheduler"], 60_000).await.unwrap();
    let broken = World::new().with_script("exit 1");
    wait(&broken, &[], 60_000).await.unwrap();
}
