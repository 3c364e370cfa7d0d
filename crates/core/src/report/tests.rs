use super::*;
use crate::gates::ClosedGate;

fn all() -> Vec<Refusal> {
    let s = String::from;
    vec![
        Refusal::SlotBusy { machine: s("m") },
        Refusal::ApprovalRequired {
            owner: s("machinedeployment/md"),
            number: 2,
            target: s("v1.35.0"),
            begun: 1,
        },
        Refusal::RolloutStopped {
            owner: s("machinedeployment/md"),
            target: s("v1.35.0"),
            machines: vec![s("m"), s("n")],
            cause: Some(s("HostStepFailed at kubeadm-upgrade")),
        },
        Refusal::Held { machine: s("m"), reason: s("its disk is replaced") },
        Refusal::Skipped { machine: s("m"), reason: s("its disk is replaced") },
        Refusal::Soaking { until: Timestamp::UNIX_EPOCH },
        Refusal::WindowClosed {
            opens: Timestamp::UNIX_EPOCH,
            closes: Some(Timestamp::UNIX_EPOCH),
            needs: Expected::Estimated(jiff::SignedDuration::from_mins(15)),
        },
        Refusal::NoWindow { owner: s("machinedeployment/md"), why: s("no window is that long") },
        Refusal::GateClosed {
            owner: s("machinedeployment/md"),
            closed: vec![ClosedGate { name: s("alerts"), why: s("NodeDown fires") }],
        },
        Refusal::OutOfTurn { machine: s("m") },
        Refusal::GroupUnavailable { available: 3, needed: 4, lacks_machines: false },
        Refusal::ControlPlaneUnhealthy { member: s("cp-1"), why: s("etcd is not Ready") },
        Refusal::EtcdQuorum { members: 2 },
        Refusal::ControlPlaneBehind {
            version: StatedVersion::Version(KubernetesVersion::new(1, 34, 2)),
            goal: KubernetesVersion::new(1, 35, 0),
        },
        Refusal::UpdaterUnusable { updater: s("memory"), why: s("it does not exist") },
        Refusal::UpdaterFails { updater: s("memory"), message: s("no answer.") },
        Refusal::UpdaterNotVerified { updater: s("memory"), why: s("ready is false") },
        Refusal::OsImageConflict { sources: s("Updater image and a HostSettings") },
        Refusal::OsPackagesConflict { sources: s("Updater patches and a HostSettings") },
        Refusal::ConfigurationChanged {
            object: s("KubeadmConfig m"),
            why: s("it has no file /etc/motd"),
        },
        Refusal::ConfigurationConflict { what: s("file /etc/motd") },
        Refusal::NoFreshReport { node: "n".into() },
        Refusal::HostUnreadable { node: "n".into(), why: s("packages: the database is locked") },
        Refusal::AgentTooOld { node: "n".into(), step: StepType::Reboot },
        Refusal::HostSettingsAnnotation { object: s("Machine m") },
        Refusal::HostSettingsUnreadable { name: s("edge"), why: s("unknown field") },
        Refusal::HostSettingsConflict {
            names: [s("edge"), s("fleet")],
            owner: s("MachineDeployment md"),
            by: Specificity::Cluster,
        },
        Refusal::DisruptionPolicyUnreadable { name: s("edge"), why: s("unknown field") },
        Refusal::DisruptionPolicyConflict {
            names: [s("edge"), s("fleet")],
            owner: s("MachineDeployment md"),
            by: Specificity::Cluster,
        },
        Refusal::PodDisruptionBudget { budget: s("default/web"), pod: s("default/web-1") },
        Refusal::EvictionRefused { pod: s("default/web-1"), message: s("no") },
        Refusal::ApiUnreachable { cluster: s("edge-1") },
        Refusal::ClusterTooLarge { cluster: s("edge-1"), what: s("it has 501 Pods") },
        Refusal::NodeNotReady { node: "n".into() },
        Refusal::NodePressure { node: "n".into(), what: s("DiskPressure: the disk is full") },
        Refusal::NodeCordoned { node: "n".into() },
        Refusal::CertificateExpires {
            node: "n".into(),
            certificate: s("/etc/kubernetes/pki/ca.crt"),
            until: Timestamp::UNIX_EPOCH,
        },
        Refusal::VersionsNotComparable {
            node: "n".into(),
            kubelet: "v1.34.2-eks-0a1b2c3".into(),
            component: s("kube-apiserver"),
            tag: s("v1.34.2-eks-1-34-5"),
        },
        Refusal::NodeNotVerified { node: "n".into(), why: s("it runs v1.34.2") },
        Refusal::NoNode { machine: s("m") },
        Refusal::OlderUpdateUnfinished { node_update: s("m-1") },
        Refusal::OlderPlanRunning { node: "n".into(), node_update: s("m-1") },
        Refusal::MachineDeleting { machine: s("m") },
        Refusal::RoomForOthers { machine: s("m") },
        Refusal::Paused { object: s("Cluster edge-1") },
        Refusal::WouldBeReplaced { machine: s("m"), owner: s("KubeadmControlPlane edge-1") },
        Refusal::UntilReached { node_update: s("m-1"), hold: Hold::AfterStage },
        Refusal::NoGroup { machine: s("m") },
        Refusal::GroupNotReady,
        Refusal::ApiRefused { what: s("a write to the Node"), message: s("it is forbidden.") },
        Refusal::ApiErrors { what: s("an eviction"), message: s("too many requests.") },
    ]
    .into_iter()
    .chain(drains().map(Refusal::Drain))
    .collect()
}

fn drains() -> impl Iterator<Item = DrainRefusal> {
    let pod = || String::from("default/web-1");
    [
        DrainRefusal::EvictionUnavailable { pod: pod() },
        DrainRefusal::PodUnreplicated { pod: pod() },
        DrainRefusal::PodLocalStorage { pod: pod() },
        DrainRefusal::PodWaitCompleted { pod: pod(), rule: String::from("its label") },
        DrainRefusal::DrainRuleNotUnderstood { pod: pod(), rule: String::from("its label") },
        DrainRefusal::PodTerminating { pod: pod() },
        DrainRefusal::PodCameBack { pod: pod() },
        DrainRefusal::VolumeAttached {
            attachment: String::from("csi-1"),
            volume: String::from("pv-1"),
            node: "n".into(),
        },
    ]
    .into_iter()
}

#[test]
fn every_refusal_has_its_reason_and_a_sentence() {
    let reasons: Vec<_> = all().iter().map(Refusal::reason).collect();
    assert_eq!(reasons, Reason::all().collect::<Vec<_>>());
    for refusal in all() {
        assert_eq!(Reason::of(refusal.reason()), Some(refusal.typed_reason()));
    }
    assert_eq!(Reason::of("Drain"), None);
    for refusal in all() {
        assert!(refusal.sentence().contains(' '), "{refusal:?}");
        assert!(!refusal.sentence().ends_with('.'), "{refusal:?}");
    }
}

#[test]
fn a_blocker_keeps_since_while_reason_and_object_stay() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let refusal = Refusal::SlotBusy { machine: "m".into() };
    let first = refusal.blocker(&[], at(1));
    let second = refusal.blocker(std::slice::from_ref(&first), at(9));
    assert_eq!(first, second);
    let other = Refusal::SlotBusy { machine: "k".into() };
    assert_eq!(other.blocker(&[first], at(9)).since, Time(at(9)));
}

#[test]
fn an_unnamed_budget_still_names_the_pod() {
    let refusal =
        Refusal::PodDisruptionBudget { budget: String::new(), pod: "default/web-1".into() };
    assert_eq!(refusal.object(), "default/web-1");
    assert!(refusal.sentence().contains("default/web-1"));
}
