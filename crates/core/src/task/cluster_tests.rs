use refit_kinds::refit::{GroupOwner, OnAbort, UpgradeTaskSpec, UpgradeTaskStatus};

use super::*;

fn version(text: &str) -> KubernetesVersion {
    text.parse().unwrap()
}

fn owner(kind: &str, name: &str) -> GroupOwner {
    GroupOwner { kind: kind.into(), name: name.into(), ..GroupOwner::default() }
}

fn plane(at: &str) -> GroupNow {
    group(owner("KubeadmControlPlane", "cp"), at, 3)
}

fn workers(at: &str) -> GroupNow {
    group(owner("MachineDeployment", "md"), at, 5)
}

fn group(owner: GroupOwner, at: &str, machines: usize) -> GroupNow {
    GroupNow { at: GroupVersion::of(owner, [version(at)]).unwrap(), machines, is_paused: false }
}

fn task(name: &str, owner_ref: Option<GroupOwner>, to: &str, phase: TaskPhase) -> UpgradeTask {
    let mut task = UpgradeTask::new(
        name,
        UpgradeTaskSpec {
            owner_ref,
            version: Some(version(to)),
            ..UpgradeTaskSpec::of("edge-1", Via::Machines)
        },
    );
    task.status = Some(UpgradeTaskStatus { phase, ..UpgradeTaskStatus::default() });
    task
}

fn whole(to: &str) -> UpgradeTask {
    task("up", None, to, TaskPhase::Pending)
}

fn child(group: &GroupNow, to: &str, phase: TaskPhase) -> UpgradeTask {
    let hop = HopTo { owner: group.at.owner.clone(), version: version(to) };
    task(&child_name("up", &hop), Some(hop.owner), to, phase)
}

fn seen<'a>(
    task: &'a UpgradeTask,
    groups: (GroupNow, GroupNow),
    children: &'a [UpgradeTask],
) -> ClusterSeen<'a> {
    ClusterSeen {
        task,
        obstacle: None,
        topology: None,
        control_plane: Some(groups.0),
        workers: vec![groups.1],
        children: children.iter().collect(),
        now: Timestamp::UNIX_EPOCH,
    }
}

/// The actions, in short.
fn short(seen: &ClusterSeen<'_>) -> Vec<String> {
    let actions = cluster_actions(seen).into_iter().map(|action| match action {
        ClusterAction::Create { name, hop } => {
            assert_eq!(name, child_name("up", &hop));
            format!("create {} {}", hop.owner.name, hop.version)
        }
        ClusterAction::SetTopology(version) => format!("topology {version}"),
        ClusterAction::Abort(name) => format!("abort {name}"),
    });
    actions.collect()
}

fn phase(seen: &ClusterSeen<'_>) -> (TaskPhase, String) {
    let status = cluster_status(seen, &BTreeMap::new());
    let ready = conditions::get(&status.conditions, READY).unwrap();
    (status.phase, ready.reason.clone())
}

#[test]
fn a_task_for_a_cluster_makes_one_task_at_a_time_the_control_plane_first() {
    let task = whole("v1.35.0");
    let (cp, md) = (plane("v1.34.2"), workers("v1.34.2"));
    assert_eq!(short(&seen(&task, (cp.clone(), md.clone()), &[])), ["create cp v1.35.0"]);
    let working = [child(&cp, "v1.35.0", TaskPhase::Ongoing)];
    let now = seen(&task, (cp.clone(), md.clone()), &working);
    assert_eq!(short(&now), [""; 0]);
    assert_eq!(phase(&now), (TaskPhase::Ongoing, "Upgrading".into()));
    let done = [child(&cp, "v1.35.0", TaskPhase::Complete)];
    assert_eq!(short(&seen(&task, (plane("v1.35.0"), md.clone()), &done)), ["create md v1.35.0"]);
    let all =
        [child(&cp, "v1.35.0", TaskPhase::Complete), child(&md, "v1.35.0", TaskPhase::Complete)];
    let end = seen(&task, (plane("v1.35.0"), workers("v1.35.0")), &all);
    assert_eq!((short(&end), phase(&end)), (vec![], (TaskPhase::Complete, "Complete".into())));
    let status = cluster_status(&end, &BTreeMap::new());
    let shown: Vec<&str> = status.children.iter().map(|child| &*child.name).collect();
    assert_eq!(shown, ["up-kubeadmcontrolplane-cp-v1.35.0", "up-machinedeployment-md-v1.35.0"]);
}

#[test]
fn a_group_whose_task_is_complete_keeps_no_other_group_waiting() {
    let task = whole("v1.35.0");
    let cp = plane("v1.34.2");
    // One of its Machines is skipped: it keeps the older version.
    let done = [child(&cp, "v1.35.0", TaskPhase::Complete)];
    assert_eq!(short(&seen(&task, (cp, workers("v1.34.2")), &done)), ["create md v1.35.0"]);
}

#[test]
fn a_topology_gets_its_version_only_when_tasks_pause_all_of_its_groups() {
    let task = whole("v1.35.0");
    let (cp, md) = (plane("v1.34.2"), workers("v1.34.2"));
    let topology = Some(StatedVersion::Version(version("v1.34.2")));
    let begun =
        ClusterSeen { topology: topology.clone(), ..seen(&task, (cp.clone(), md.clone()), &[]) };
    assert_eq!(short(&begun), ["create cp v1.35.0", "create md v1.35.0"]);
    let children =
        [child(&cp, "v1.35.0", TaskPhase::Pending), child(&md, "v1.35.0", TaskPhase::Pending)];
    let paused = |group: &GroupNow| GroupNow { is_paused: true, ..group.clone() };
    let half = ClusterSeen {
        topology: topology.clone(),
        ..seen(&task, (paused(&cp), md.clone()), &children)
    };
    assert_eq!(short(&half), [""; 0]);
    let both = ClusterSeen { topology, ..seen(&task, (paused(&cp), paused(&md)), &children) };
    assert_eq!(short(&both), ["topology v1.35.0"]);
    let set = ClusterSeen { topology: Some(StatedVersion::Version(version("v1.35.0"))), ..both };
    assert_eq!(short(&set), [""; 0]);
}

#[test]
fn a_topology_is_not_paused_where_cluster_api_does_the_work() {
    let mut task = whole("v1.35.0");
    task.spec.via = Via::Spec;
    let (cp, md) = (plane("v1.34.2"), workers("v1.34.2"));
    let children =
        [child(&cp, "v1.35.0", TaskPhase::Pending), child(&md, "v1.35.0", TaskPhase::Pending)];
    let topology = Some(StatedVersion::Version(version("v1.34.2")));
    let both = ClusterSeen { topology, ..seen(&task, (cp, md), &children) };
    assert_eq!(short(&both), ["topology v1.35.0"]);
}

#[test]
fn an_aborted_task_for_a_cluster_aborts_its_children_in_the_same_way_and_ends_with_them() {
    let mut task = whole("v1.35.0");
    task.spec.stage = Stage::Abort;
    let (cp, md) = (plane("v1.34.2"), workers("v1.34.2"));
    let mut working = [child(&cp, "v1.35.0", TaskPhase::Failed)];
    let now = seen(&task, (cp.clone(), md.clone()), &working);
    assert_eq!(short(&now), ["abort up-kubeadmcontrolplane-cp-v1.35.0"]);
    assert_eq!(phase(&now), (TaskPhase::Ongoing, "Aborting".into()));
    working[0].spec.stage = Stage::Abort;
    assert_eq!(short(&seen(&task, (cp.clone(), md.clone()), &working)), [""; 0]);
    task.spec.on_abort = OnAbort::Finish;
    let now = seen(&task, (cp.clone(), md.clone()), &working);
    assert_eq!(short(&now), ["abort up-kubeadmcontrolplane-cp-v1.35.0"], "it changed midway");
    working[0].spec.on_abort = OnAbort::Finish;
    assert_eq!(short(&seen(&task, (cp.clone(), md.clone()), &working)), [""; 0]);
    working[0].status = Some(UpgradeTaskStatus { phase: TaskPhase::Aborted, ..Default::default() });
    assert_eq!(phase(&seen(&task, (cp, md), &working)), (TaskPhase::Aborted, "Aborted".into()));
}

#[test]
fn a_task_for_a_cluster_waits_while_cluster_api_replaces_a_group_and_goes_on_when_it_has_its_version()
 {
    let task = whole("v1.35.0");
    let (cp, md) = (plane("v1.34.2"), workers("v1.34.2"));
    let mut replaced = child(&cp, "v1.35.0", TaskPhase::Aborted);
    let shown = replaced.status.as_mut().unwrap();
    let what = (READY, "False", REPLACED, "m");
    conditions::set(&mut shown.conditions, Timestamp::UNIX_EPOCH, None, what);
    let replaced = [replaced];
    let now = seen(&task, (cp.clone(), md.clone()), &replaced);
    assert_eq!((short(&now), phase(&now)), (vec![], (TaskPhase::Ongoing, "Upgrading".into())));
    // Also if a person, or another task, has brought it there.
    for stopped in [replaced, [child(&cp, "v1.35.0", TaskPhase::Aborted)]] {
        let now = seen(&task, (plane("v1.35.0"), md.clone()), &stopped);
        assert_eq!(short(&now), ["create md v1.35.0"]);
        assert_eq!(phase(&now), (TaskPhase::Ongoing, "Upgrading".into()));
    }
}

#[test]
fn a_task_for_a_cluster_shows_what_keeps_its_children_from_going_on() {
    let task = whole("v1.35.0");
    let (cp, md) = (plane("v1.34.2"), workers("v1.34.2"));
    for (of_child, shown) in [
        (TaskPhase::Failed, (TaskPhase::Failed, "ChildFailed".to_owned())),
        (TaskPhase::Aborted, (TaskPhase::Failed, "ChildAborted".to_owned())),
    ] {
        let children = [child(&cp, "v1.35.0", of_child)];
        let now = seen(&task, (cp.clone(), md.clone()), &children);
        assert_eq!((short(&now), phase(&now)), (vec![], shown));
    }
    let unknown = ClusterSeen { control_plane: None, ..seen(&task, (cp.clone(), md.clone()), &[]) };
    assert_eq!(phase(&unknown), (TaskPhase::Pending, "OwnerUnknown".into()));
    let back = whole("v1.33.0");
    let now = seen(&back, (cp, md), &[]);
    assert_eq!(
        (short(&now), phase(&now)),
        (vec![], (TaskPhase::Failed, "VersionNotReachable".into()))
    );
}

#[test]
fn machines_without_a_task_wait_in_the_counts_of_a_cluster() {
    let task = whole("v1.35.0");
    let counts =
        cluster_status(&seen(&task, (plane("v1.35.0"), workers("v1.34.2")), &[]), &BTreeMap::new());
    let counts = counts.counts.unwrap();
    assert_eq!((counts.total, counts.updated, counts.waiting), (8, 3, 5));
}

#[test]
fn names_of_children_are_valid_however_long_the_names_of_their_groups_are() {
    let hop = |owner: &str| HopTo {
        owner: GroupOwner {
            kind: "MachineDeployment".into(),
            name: owner.into(),
            ..GroupOwner::default()
        },
        version: version("v1.35.0+Build.1"),
    };
    assert_eq!(child_name("up", &hop("a")), "up-machinedeployment-a-v1.35.0-build.1");
    let (a, b) = ("a".repeat(252), format!("{}b", "a".repeat(251)));
    let (a, b) = (child_name("up", &hop(&a)), child_name("up", &hop(&b)));
    assert!(a.len() <= MAX_NAME && b.len() <= MAX_NAME && a != b);
}
