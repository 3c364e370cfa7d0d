use refit_kinds::refit::{ClusterUpgradeSpec, GroupOwner, TaskPhase, UpgradeTask, UpgradeTaskSpec};
use serde_json::json;

use super::*;
use crate::managed::{health::Problem, silences::SilenceOutcome};

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(minute * 60).unwrap()
}

fn group(kind: &str, name: &str, version: &str) -> GroupVersion {
    let owner = GroupOwner { kind: kind.into(), name: name.into(), ..GroupOwner::default() };
    GroupVersion::of(owner, [version.parse().unwrap()]).unwrap()
}

fn known() -> Known {
    let mut upgrade =
        ClusterUpgrade::new("edge-1", ClusterUpgradeSpec::to("v1.36.0".parse().unwrap()));
    upgrade.metadata.uid = Some("uid-upgrade".into());
    upgrade.metadata.generation = Some(1);
    Known {
        upgrade: Arc::new(upgrade),
        obstacle: None,
        control_plane: Some(group("KubeadmControlPlane", "edge-1", "v1.35.0")),
        workers: vec![group("MachineDeployment", "md", "v1.35.0")],
        returning: Vec::new(),
        machines: MachineVersions::default(),
        graph: GraphRead::NotConfigured,
        tasks: Vec::new(),
        health: Health::Known(Vec::new()),
        capacity: CapacitySeen::default(),
        hindrance: None,
        silenced: Vec::new(),
        receivers: Receivers::new(),
        now: at(10),
    }
}

/// A task of an object, in a phase.
pub(super) fn task(
    name: &str,
    of: &str,
    owner: Option<GroupOwner>,
    phase: TaskPhase,
) -> UpgradeTask {
    let spec = UpgradeTaskSpec {
        owner_ref: owner,
        version: Some("v1.36.0".parse().unwrap()),
        ..UpgradeTaskSpec::of("edge-1", Via::Machines)
    };
    let mut task = UpgradeTask::new(name, spec);
    task.metadata = serde_json::from_value(json!({
        "name": name, "uid": format!("uid-{name}"), "creationTimestamp": at(10).to_string(),
        "ownerReferences": [{
            "apiVersion": "v1", "kind": "K", "name": of, "uid": format!("uid-{of}"),
            "controller": true,
        }],
    }))
    .unwrap();
    task.status = Some(UpgradeTaskStatus { phase, ..UpgradeTaskStatus::default() });
    task
}

/// Shows what a decision shows, and looks again a minute later.
pub(super) fn next(mut known: Known, change: impl FnOnce(&mut Known)) -> (Known, Decision) {
    change(&mut known);
    let decision = decide(&known);
    let mut upgrade = (*known.upgrade).clone();
    upgrade.status = Some(decision.status.clone());
    let now = known.now + SignedDuration::from_mins(1);
    (Known { upgrade: Arc::new(upgrade), now, ..known }, decision)
}

pub(super) fn begun() -> Known {
    let (known, decision) = next(known(), |_| {});
    let Write::Commence { task: name, version, via, .. } = &decision.writes[0] else {
        panic!("{:?}", decision.writes);
    };
    assert_eq!((&**name, version.to_string(), *via), ("edge-1-v1.36.0-1", "v1.36.0".into(), None));
    let begun = next(known, |known| {
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Ongoing))];
    });
    assert!(begun.1.writes.is_empty(), "one task for one request");
    begun.0
}

fn step<'a>(decision: &'a Decision, name: &str) -> (&'a str, &'a str) {
    let steps = &decision.status.history[0].conditions;
    let found = steps.iter().find(|step| step.type_ == name);
    found.map_or(("-", "-"), |step| (&*step.reason, &*step.message))
}

pub(super) fn ready(decision: &Decision) -> &str {
    &conditions::get(&decision.status.conditions, READY).unwrap().reason
}

#[test]
fn a_cluster_upgrade_follows_its_task_step_by_step() {
    let (known, decision) = next(begun(), |_| {});
    assert_eq!(step(&decision, "ControlPlaneUpgraded").0, "StepInProgress");
    assert_eq!(decision.status.history[0].task.as_deref(), Some("edge-1-v1.36.0-1"));
    let owner = GroupOwner { kind: "MachineDeployment".into(), ..GroupOwner::default() };
    let (known, decision) = next(known, |known| {
        known.control_plane = Some(group("KubeadmControlPlane", "edge-1", "v1.36.0"));
        let mut worker = task("w", "edge-1-v1.36.0-1", Some(owner), TaskPhase::Complete);
        let status = worker.status.as_mut().unwrap();
        status.started_at = Some(Time(at(12)));
        status.finished_at = Some(Time(at(14)));
        known.tasks.push(Arc::new(worker));
    });
    assert_eq!(step(&decision, "ControlPlaneUpgraded").0, "StepDone");
    assert_eq!(step(&decision, "WorkerNodesUpgraded").0, "StepInProgress");
    let (_, decision) = next(known, |known| {
        let name = "edge-1-v1.36.0-1";
        known.tasks[0] = Arc::new(task(name, "upgrade", None, TaskPhase::Complete));
    });
    let record = &decision.status.history[0];
    assert_eq!((record.phase, ready(&decision)), (UpgradePhase::Completed, "Completed"));
    let times = (&record.worker_start_time, &record.worker_complete_time);
    assert_eq!(times, (&Some(Time(at(12))), &Some(Time(at(14)))));
}

#[test]
fn a_cluster_upgrade_waits_for_health_before_and_after_but_not_between() {
    let sick = |known: &mut Known| {
        let message = "Machine w: its Node is not Ready".to_owned();
        let check = refit_kinds::refit::ClusterCheck::Nodes;
        known.health = Health::Known(vec![Problem::Check(check, message)]);
    };
    let (_, before) = next(known(), sick);
    assert_eq!(step(&before, "ClusterHealthyBeforeUpgrade").0, "StepInProgress");
    assert!(before.writes.is_empty());
    let healthy = conditions::get(&before.status.conditions, HEALTHY).unwrap();
    assert_eq!((&*healthy.status, &*healthy.reason), ("False", "Nodes"));
    let (known, between) = next(begun(), sick);
    assert_eq!(step(&between, "ClusterHealthyBeforeUpgrade").0, "StepDone");
    let healthy = conditions::get(&between.status.conditions, HEALTHY).unwrap();
    assert_eq!(healthy.status, "True", "machines that restart say nothing about the Cluster");
    let (_, after) = next(known, |known| {
        known.control_plane = Some(group("KubeadmControlPlane", "edge-1", "v1.36.0"));
        let name = "edge-1-v1.36.0-1";
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Complete))];
    });
    assert_eq!(step(&after, "ClusterHealthyAfterUpgrade").0, "StepInProgress");
}

#[test]
fn a_cluster_upgrade_waits_for_the_tasks_of_others() {
    let (_, decision) = next(known(), |known| {
        known.tasks = vec![Arc::new(task("other", "someone", None, TaskPhase::Ongoing))];
    });
    assert_eq!(ready(&decision), "OlderTask");
    assert!(decision.writes.is_empty());
    let (_, decision) = next(known(), |known| {
        known.tasks = vec![Arc::new(task("other", "someone", None, TaskPhase::Complete))];
    });
    assert_eq!(decision.writes.len(), 1);
}

#[test]
fn a_task_that_fails_does_not_end_a_cluster_upgrade_and_one_that_was_stopped_does() {
    let with = |phase| {
        let tasks = vec![Arc::new(task("edge-1-v1.36.0-1", "upgrade", None, phase))];
        next(begun(), |known| known.tasks = tasks).1
    };
    let failed = with(TaskPhase::Failed);
    assert_eq!(failed.status.phase, UpgradePhase::Upgrading);
    assert_eq!(step(&failed, "ControlPlaneUpgraded").0, "StepError");
    let aborted = with(TaskPhase::Aborted);
    assert_eq!((aborted.status.phase, ready(&aborted)), (UpgradePhase::Failed, "TaskAborted"));
}

#[test]
fn a_cluster_upgrade_whose_task_was_deleted_makes_it_again() {
    let (_, decision) = next(begun(), |known| {
        known.tasks.clear();
        known.now = at(10_000);
    });
    assert_eq!(decision.writes.len(), 1);
    assert_eq!(decision.status.phase, UpgradePhase::Upgrading, "it has begun in time");
}

#[test]
fn a_cluster_upgrade_whose_task_was_deleted_keeps_its_name_after_an_edit() {
    let (known, _) = next(begun(), |_| {});
    let (_, decision) = next(known, |known| {
        known.tasks.clear();
        Arc::make_mut(&mut known.upgrade).metadata.generation = Some(9);
    });
    let Write::Commence { task, .. } = &decision.writes[0] else { panic!("no task") };
    assert_eq!(task, "edge-1-v1.36.0-1");
}

#[test]
fn the_record_names_the_task_before_it_is_created() {
    let (_, decision) = next(known(), |_| {});
    assert!(matches!(&decision.writes[..], [Write::Commence { .. }]));
    assert_eq!(decision.status.history[0].task.as_deref(), Some("edge-1-v1.36.0-1"));
    assert_eq!(decision.status.phase, UpgradePhase::Upgrading);
}

#[test]
fn another_version_replaces_an_upgrade_that_waits_and_comes_after_one_that_was_commenced() {
    let newer = |known: &mut Known| {
        let upgrade = Arc::make_mut(&mut known.upgrade);
        upgrade.spec.version = "v1.36.1".parse().unwrap();
        upgrade.metadata.generation = Some(2);
    };
    let sick = Health::Unknown("no answer".into());
    let (waits, _) = next(known(), |known| known.health = sick);
    let (_, replaced) = next(waits, newer);
    let versions: Vec<String> =
        replaced.status.history.iter().map(|record| record.version.to_string()).collect();
    assert_eq!(versions, ["v1.36.1"]);
    let (known, after) = next(begun(), newer);
    assert_eq!(after.status.history[0].version.to_string(), "v1.36.0");
    assert_eq!(after.status.history[0].generation, 1, "it is that of its own request");
    let (_, superseded) = next(known, |known| known.tasks.clear());
    assert_eq!(superseded.status.history[0].reason, "Superseded");
}

#[test]
fn a_cluster_that_stays_unhealthy_after_its_upgrade_is_an_error() {
    let sick = |known: &mut Known| {
        known.control_plane = Some(group("KubeadmControlPlane", "edge-1", "v1.36.0"));
        let name = "edge-1-v1.36.0-1";
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Complete))];
        known.health = Health::Unknown("no answer".into());
    };
    let (known, waits) = next(begun(), sick);
    assert_eq!(step(&waits, "ClusterHealthyAfterUpgrade").0, "StepInProgress");
    let (_, late) = next(known, |known| known.now = at(10_000));
    assert_eq!(step(&late, "ClusterHealthyAfterUpgrade").0, "StepError");
}

#[test]
fn a_cluster_upgrade_that_is_stopped_aborts_its_task_once() {
    let stop = |known: &mut Known| {
        Arc::make_mut(&mut known.upgrade).spec.stage = Stage::Abort;
    };
    let (known, decision) = next(begun(), stop);
    assert_eq!(decision.writes, [Write::Abort("edge-1-v1.36.0-1".into())]);
    assert_eq!(ready(&decision), "Cancelling");
    let (known, decision) = next(known, |known| {
        Arc::make_mut(&mut known.tasks[0]).spec.stage = Stage::Abort;
    });
    assert!(decision.writes.is_empty());
    let (_, decision) = next(known, |known| {
        let status = Arc::make_mut(&mut known.tasks[0]).status.as_mut().unwrap();
        status.phase = TaskPhase::Aborted;
    });
    assert_eq!((decision.status.phase, ready(&decision)), (UpgradePhase::Failed, "Cancelled"));
}

#[test]
fn a_write_that_was_refused_is_shown_by_its_step() {
    let (_, decision) =
        next(known(), |known| known.hindrance = Some(Hindrance::Refused("forbidden".into())));
    assert_eq!(step(&decision, "UpgradeCommenced"), ("StepError", "forbidden"));
    let passing = Hindrance::Passing("no answer".into());
    let (_, decision) = next(self::known(), |known| known.hindrance = Some(passing));
    assert_eq!(step(&decision, "UpgradeCommenced"), ("StepInProgress", "no answer"));
}

#[test]
fn a_write_that_is_refused_again_changes_nothing() {
    for hindrance in [Hindrance::Refused("forbidden".into()), Hindrance::Passing("late".into())] {
        let (known, _) = next(known(), |_| {});
        let failed = hindrance.clone();
        let (known, shown) = next(known, |known| known.hindrance = Some(failed));
        let (known, again) = next(known, |known| known.hindrance = None);
        assert_eq!(again.writes.len(), 1, "it is tried again");
        assert_eq!(again.status, shown.status);
        let (_, still) = next(known, |known| known.hindrance = Some(hindrance));
        assert_eq!(still.status, shown.status);
    }
}

#[test]
fn a_scheduled_cluster_is_checked_when_it_is_requested_and_ahead_of_its_time() {
    let shown = |decision: &Decision| {
        conditions::get(&decision.status.conditions, HEALTHY).unwrap().status.clone()
    };
    let (waiting, first) = next(known(), |known| {
        let spec = &mut Arc::make_mut(&mut known.upgrade).spec;
        spec.start_at = Some(Time(at(1000)));
        known.health = Health::Unknown("no answer".into());
    });
    assert_eq!((shown(&first), first.again), ("Unknown".into(), Some(at(880))));
    let well = |known: &mut Known| known.health = Health::Known(Vec::new());
    let (waiting, between) = next(waiting, well);
    assert_eq!(shown(&between), "Unknown", "long before, nothing is written");
    let (_, ahead) = next(waiting, |known| known.now = at(880));
    assert_eq!((shown(&ahead), ahead.again), ("True".into(), Some(at(1000))));
}

#[test]
fn a_requested_version_with_build_metadata_gives_a_valid_name() {
    let (_, decision) = next(known(), |known| {
        let spec = &mut Arc::make_mut(&mut known.upgrade).spec;
        spec.version = "v1.36.0+Vendor.1".parse().unwrap();
    });
    let Write::Commence { task, .. } = &decision.writes[0] else { panic!("no task") };
    assert_eq!(task, "edge-1-v1.36.0-vendor.1-1");
}

fn with_silences(known: &mut Known) {
    let silences = serde_json::from_value(json!([
        {"name": "plane", "during": "ControlPlane", "matchers": [{"name": "cluster", "value": "$(cluster)"}]},
        {"name": "workers", "during": "Workers", "matchers": [{"name": "cluster", "value": "$(cluster)"}]},
    ]));
    Arc::make_mut(&mut known.upgrade).spec.silences = silences.unwrap();
    known.machines.control_plane = vec!["v1.35.0".parse().unwrap()];
    known.machines.workers = vec!["v1.35.0".parse().unwrap(); 3];
}

/// Makes the writes to Alertmanager that are due, with this outcome, and decides again.
fn silenced(known: &mut Known, outcome: &SilenceOutcome) {
    let tried = decide(known).writes.into_iter().filter_map(|write| match write {
        Write::Silence(write) => Some((write, outcome.clone())),
        Write::Commence { .. } | Write::Abort(_) | Write::Capacity(_) | Write::RollBack { .. } => {
            None
        }
    });
    known.silenced = tried.collect();
}

fn alerts(decision: &Decision) -> (&str, &str) {
    let shown = conditions::get(&decision.status.conditions, SILENCED).unwrap();
    (&shown.status, &shown.reason)
}

#[test]
fn a_cluster_upgrade_does_not_begin_before_the_alerts_of_its_control_plane_are_silenced() {
    let (known, decision) = next(known(), with_silences);
    let [Write::Silence(SilenceWrite::Set(wish))] = &decision.writes[..] else {
        panic!("{:?}", decision.writes)
    };
    assert_eq!((&*wish.name, wish.updates_left), ("plane", 2));
    let down = SilenceOutcome::Failed("no answer".into());
    let (known, decision) = next(known, |known| silenced(known, &down));
    assert_eq!(step(&decision, SILENCED), ("StepError", "silence plane: no answer"));
    assert_eq!((decision.writes.len(), alerts(&decision)), (0, ("False", "SilenceFailed")));
    let (_, decision) = next(Known { silenced: Vec::new(), ..known }, |known| {
        silenced(known, &SilenceOutcome::Set("1".into()));
    });
    assert_eq!(step(&decision, SILENCED).0, "StepDone");
    assert!(matches!(&decision.writes[..], [Write::Commence { .. }]), "{:?}", decision.writes);
    assert_eq!(alerts(&decision), ("True", "Silenced"));
    assert_eq!(decision.status.history[0].silences[0].id, "1");
}

#[test]
fn silences_follow_the_parts_of_an_upgrade_and_keep_it_from_nothing() {
    let fresh = |known: Known| Known { silenced: Vec::new(), ..known };
    let (known, decision) = next(known(), |known| {
        with_silences(known);
        silenced(known, &SilenceOutcome::Set("1".into()));
    });
    let Write::Commence { task: name, .. } = decision.writes[0].clone() else { panic!("no task") };
    let (known, _) = next(fresh(known), |known| {
        known.tasks = vec![Arc::new(task(&name, "upgrade", None, TaskPhase::Ongoing))];
    });
    // Alertmanager is down when the workers begin.
    let (known, decision) = next(known, |known| {
        known.control_plane = Some(group("KubeadmControlPlane", "edge-1", "v1.36.0"));
        silenced(known, &SilenceOutcome::Failed("no answer".into()));
    });
    assert_eq!(known.silenced.len(), 2, "one is to be removed, one to be created");
    assert_eq!(step(&decision, "ControlPlaneUpgraded").0, "StepDone");
    assert_eq!(alerts(&decision), ("False", "SilenceFailed"));
    let (known, decision) = next(fresh(known), |known| {
        let due = decide(known).writes;
        let outcomes = due.into_iter().map(|write| match write {
            Write::Silence(write @ SilenceWrite::Set(_)) => {
                (write, SilenceOutcome::Set("2".into()))
            }
            Write::Silence(write @ SilenceWrite::Remove { .. }) => (write, SilenceOutcome::Removed),
            Write::Commence { .. }
            | Write::Abort(_)
            | Write::Capacity(_)
            | Write::RollBack { .. } => {
                panic!("{write:?}")
            }
        });
        known.silenced = outcomes.collect();
    });
    let silences = &decision.status.history[0].silences;
    assert_eq!((silences.len(), silences[1].updates_left), (2, 6));
    let (known, decision) = next(fresh(known), |known| {
        known.tasks = vec![Arc::new(task(&name, "upgrade", None, TaskPhase::Complete))];
    });
    assert_eq!(decision.status.phase, UpgradePhase::Completed);
    assert_eq!(
        decision.writes,
        [Write::Silence(SilenceWrite::Remove { name: "workers".into(), id: "2".into() })]
    );
    // One that could not be removed is tried again after the end.
    let (_, decision) = next(known, |_| {});
    assert_eq!(decision.writes.len(), 1);
}

#[test]
fn a_cluster_upgrade_that_is_stopped_or_late_removes_its_silences() {
    let stop = |known: &mut Known| Arc::make_mut(&mut known.upgrade).spec.stage = Stage::Abort;
    for end in [stop, |known: &mut Known| known.now = at(140)] {
        let sick = Health::Unknown("no answer".into());
        let (known, _) = next(known(), |known| {
            with_silences(known);
            Arc::make_mut(&mut known.upgrade).spec.silences[0].minutes_per_machine = 100;
            silenced(known, &SilenceOutcome::Set("1".into()));
            known.hindrance = Some(Hindrance::Passing("no answer".into()));
        });
        let (_, decision) = next(Known { silenced: Vec::new(), health: sick, ..known }, end);
        assert_eq!(decision.status.phase, UpgradePhase::Failed);
        assert!(
            matches!(&decision.writes[..], [Write::Silence(SilenceWrite::Remove { .. })]),
            "{:?}",
            decision.writes
        );
    }
}

/// The way from v1.35.0 to v1.36.0 is over a patch, unless a risk is accepted.
fn graph() -> GraphRead {
    let document = json!({
        "nodes": [{"version": "1.35.0"}, {"version": "1.35.7"}, {"version": "1.36.0"}],
        "edges": [[0, 1], [1, 2]],
        "conditionalEdges": [{
            "edges": [{"from": "1.35.0", "to": "1.36.0"}],
            "risks": [{"name": "Slow", "message": "m", "url": "u"}],
        }],
    });
    GraphRead::of(document.to_string().as_bytes())
}

/// The versions on the way of the task that is to be created, and of the record.
fn hops_of(decision: &Decision) -> (Vec<String>, Vec<String>) {
    let Write::Commence { hops, .. } = &decision.writes[0] else { panic!("no task") };
    let shown = |hops: &[KubernetesVersion]| hops.iter().map(ToString::to_string).collect();
    (shown(hops), shown(&decision.status.history[0].hops))
}

#[test]
fn a_cluster_takes_the_way_of_the_version_graph_and_shows_it_beforehand() {
    let (known, scheduled) = next(known(), |known| {
        known.graph = graph();
        Arc::make_mut(&mut known.upgrade).spec.start_at = Some(Time(at(1000)));
    });
    assert_eq!(ready(&scheduled), "Scheduled");
    assert_eq!(scheduled.status.history[0].hops, ["v1.35.7".parse().unwrap()]);
    let way = || vec!["v1.35.7".to_owned()];
    let (known, due) = next(known, |known| known.now = at(1000));
    assert_eq!(hops_of(&due), (way(), way()));
    let (_, accepted) = next(known, |known| {
        Arc::make_mut(&mut known.upgrade).spec.accepted_risks = vec!["Slow".into()];
    });
    assert_eq!(hops_of(&accepted), (vec![], vec![]));
    let (_, requested) = next(self::known(), |known| {
        Arc::make_mut(&mut known.upgrade).spec.hops = Some(vec!["v1.35.4".parse().unwrap()]);
    });
    assert_eq!(hops_of(&requested), (vec!["v1.35.4".into()], vec![]), "the request shows them");
}

#[test]
fn a_cluster_does_not_begin_while_the_version_graph_is_not_known() {
    let unknown = |known: &mut Known| known.graph = GraphRead::Unknown("no answer".into());
    let (known, waits) = next(known(), unknown);
    assert_eq!((waits.status.phase, ready(&waits)), (UpgradePhase::Pending, "GraphUnknown"));
    assert!(waits.writes.is_empty());
    assert_eq!(waits.again, Some(at(11)), "it is read again");
    let (_, late) = next(known.clone(), |known| known.now = at(131));
    let shown = conditions::get(&late.status.conditions, READY).unwrap();
    assert_eq!(&*shown.reason, "NotBegunInTime");
    assert!(shown.message.contains("because no answer. Nothing was changed"), "{}", shown.message);
    let (known, begun) = next(known, |known| known.graph = graph());
    assert_eq!(begun.writes.len(), 1);
    let (_, lost) = next(known, unknown);
    assert_eq!(step(&lost, "IsClusterUpgradable"), ("StepInProgress", "no answer"));
    assert!(lost.writes.is_empty(), "what was read before is not believed");
}

#[test]
fn a_commenced_upgrade_keeps_its_way_whatever_the_version_graph_becomes() {
    let hops: Vec<KubernetesVersion> = vec!["v1.35.7".parse().unwrap()];
    let (known, _) = next(known(), |known| known.graph = graph());
    let (known, created) = next(known, |known| {
        let mut task = task("edge-1-v1.36.0-1", "upgrade", None, TaskPhase::Ongoing);
        task.spec.hops = Some(hops.clone());
        known.tasks = vec![Arc::new(task)];
        known.graph = GraphRead::Unknown("no answer".into());
    });
    assert_eq!(step(&created, "ControlPlaneUpgraded").0, "StepInProgress");
    assert_eq!((&created.status.history[0].hops, created.again), (&hops, None));
    let (_, unrecorded) = next(known.clone(), |known| {
        Arc::make_mut(&mut known.upgrade).status = None;
    });
    assert_eq!(unrecorded.status.history[0].hops, hops, "the task shows it");
    let (_, deleted) = next(known, |known| known.tasks.clear());
    assert_eq!(hops_of(&deleted), (vec!["v1.35.7".into()], vec!["v1.35.7".into()]));
}

#[path = "cluster/extra_tests.rs"]
mod extra_tests;
