use refit_kinds::keys;
use refit_kinds::refit::{CapacityMethod, CapacityState, CapacityTimeout, ExtraCapacity};

use super::*;
use crate::managed::capacity::{CapacityMachine, CloneSeen, DeploymentSeen};

fn with_capacity(method: CapacityMethod, on_timeout: CapacityTimeout) -> Known {
    let mut known = known();
    let upgrade = Arc::make_mut(&mut known.upgrade);
    upgrade.spec.extra_capacity = Some(ExtraCapacity {
        method,
        machines: 1,
        machine_deployments: Vec::new(),
        within_minutes: 30,
        on_timeout,
    });
    known.capacity.deployments = vec![DeploymentSeen {
        name: "md".into(),
        version: Some("v1.35.0".parse().unwrap()),
        replicas: 3,
        ..DeploymentSeen::default()
    }];
    known
}

fn guard(known: &mut Known, is_guarded: bool) {
    let finalizers = is_guarded.then(|| vec![keys::EXTRA_CAPACITY.to_owned()]);
    Arc::make_mut(&mut known.upgrade).metadata.finalizers = finalizers;
}

fn clone_of_md(unready: Option<&str>) -> CloneSeen {
    let machine = CapacityMachine {
        name: "md-extra-x".into(),
        is_extra: true,
        unready: unready.map(ToOwned::to_owned),
        ..CapacityMachine::default()
    };
    CloneSeen { name: "md-extra".into(), deleting: false, replicas: 1, machines: vec![machine] }
}

fn writes(decision: &Decision) -> Vec<CapacityWrite> {
    let all = decision.writes.iter();
    all.filter_map(|write| match write {
        Write::Capacity(write) => Some(write.clone()),
        Write::Commence { .. } | Write::Abort(_) | Write::Silence(_) | Write::RollBack { .. } => {
            None
        }
    })
    .collect()
}

fn commences(decision: &Decision) -> bool {
    decision.writes.iter().any(|write| matches!(write, Write::Commence { .. }))
}

fn state(decision: &Decision) -> Option<CapacityState> {
    decision.status.history[0].extra_capacity
}

fn shown(decision: &Decision) -> (&str, &str, &str) {
    let shown = conditions::get(&decision.status.conditions, EXTRA_CAPACITY).unwrap();
    (&shown.status, &shown.reason, &shown.message)
}

/// What the step shows after the deadline, where the upgrade waits.
fn late(why: &str) -> String {
    format!(
        "{why}. That takes longer than spec.extraCapacity.withinMinutes, and the upgrade still waits for it"
    )
}

fn sick(known: &mut Known) {
    let message = "Cluster edge-1 is not Available".to_owned();
    let check = refit_kinds::refit::ClusterCheck::ClusterApi;
    known.health = Health::Known(vec![Problem::Check(check, message)]);
}

/// An upgrade whose clone was requested and is not Ready yet.
fn reserving(on_timeout: CapacityTimeout) -> Known {
    let (known, decision) = next(with_capacity(CapacityMethod::Clone, on_timeout), |_| {});
    assert_eq!(writes(&decision), [CapacityWrite::Guard]);
    let (known, decision) = next(known, |known| guard(known, true));
    let clone = CapacityWrite::Clone { deployment: "md".into(), machines: 1 };
    assert_eq!(writes(&decision), [clone]);
    let (known, decision) = next(known, |known| {
        known.capacity.clones = vec![clone_of_md(Some("it has no Node"))];
        // Cluster API shows a Cluster with a MachineDeployment that lacks Machines as not Available.
        sick(known);
    });
    assert_eq!(step(&decision, "ComputeCapacityReserved").1, "Machine md-extra-x: it has no Node");
    assert_eq!(step(&decision, "ClusterHealthyBeforeUpgrade").0, "StepDone");
    let healthy = conditions::get(&decision.status.conditions, HEALTHY).unwrap();
    assert_eq!(healthy.status, "True", "what was just created does not count yet");
    assert_eq!((writes(&decision), state(&decision)), (vec![], Some(CapacityState::Reserving)));
    assert_eq!(shown(&decision).1, "Reserving");
    assert_eq!(decision.again, Some(at(10 + 30)), "the end of its time wakes the upgrade");
    known
}

fn ready(known: &mut Known) {
    known.capacity.clones = vec![clone_of_md(None)];
    known.health = Health::Known(Vec::new());
}

/// An upgrade with extra Machines that was commenced.
fn commenced() -> Known {
    let (known, decision) = next(reserving(CapacityTimeout::Delay), ready);
    assert_eq!(shown(&decision), ("True", "Reserved", "in addition: Machines md-extra-x"));
    assert!(commences(&decision));
    let (known, _) = next(known, |known| {
        let name = "edge-1-v1.36.0-1";
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Ongoing))];
    });
    known
}

#[test]
fn an_upgrade_begins_once_its_extra_machines_are_ready_and_the_cluster_is_healthy_with_them() {
    let (known, decision) = next(reserving(CapacityTimeout::Delay), |known| {
        known.capacity.clones = vec![clone_of_md(None)];
    });
    assert_eq!(step(&decision, "ClusterHealthyBeforeUpgrade").0, "StepInProgress");
    assert!(!commences(&decision));
    let (known, decision) = next(known, ready);
    assert!(commences(&decision));
    let (_, decision) = next(known, |known| {
        let upgrade = Arc::make_mut(&mut known.upgrade);
        let capacity = upgrade.spec.extra_capacity.as_mut().unwrap();
        capacity.on_timeout = CapacityTimeout::Proceed;
        known.now = at(10 + 31);
        sick(known);
    });
    assert_eq!(writes(&decision), [], "they are Ready: the health keeps it waiting");
}

#[test]
fn extra_machines_are_removed_before_the_cluster_is_checked_after_its_upgrade() {
    let (known, decision) = next(commenced(), |known| {
        known.capacity.clones = vec![clone_of_md(Some("its Node is not Ready"))];
    });
    assert_eq!(writes(&decision), [], "what happens to them meanwhile stops nothing");
    assert_eq!(step(&decision, "ComputeCapacityReserved").0, "StepDone");
    let (known, decision) = next(known, |known| {
        known.control_plane = Some(group("KubeadmControlPlane", "edge-1", "v1.36.0"));
        known.workers = vec![group("MachineDeployment", "md", "v1.36.0")];
        let name = "edge-1-v1.36.0-1";
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Complete))];
        sick(known);
    });
    assert_eq!(writes(&decision), [CapacityWrite::Delete("md-extra".into())]);
    assert_eq!(shown(&decision), ("False", "Removing", "deletion of Machines md-extra-x"));
    let (known, decision) = next(known, |known| known.capacity.clones[0].deleting = true);
    assert_eq!((writes(&decision), ready_reason(&decision)), (vec![], "StepInProgress"));
    let (known, decision) = next(known, |known| known.capacity.clones.clear());
    assert_eq!(writes(&decision), [CapacityWrite::Unguard]);
    assert_eq!(step(&decision, "ClusterHealthyAfterUpgrade").0, "StepInProgress");
    assert_eq!(state(&decision), Some(CapacityState::Removed));
    let (_, decision) = next(known, |known| {
        guard(known, false);
        known.health = Health::Known(Vec::new());
    });
    assert_eq!((writes(&decision), decision.status.phase), (vec![], UpgradePhase::Completed));
    assert_eq!(shown(&decision).1, "Removed");
}

fn ready_reason(decision: &Decision) -> &str {
    super::ready(decision)
}

#[test]
fn an_upgrade_without_its_extra_machines_shows_that_it_waits_by_default() {
    let (known, decision) =
        next(reserving(CapacityTimeout::Delay), |known| known.now = at(10 + 30));
    let late = late("Machine md-extra-x: it has no Node");
    assert_eq!(step(&decision, "ComputeCapacityReserved"), ("StepError", &*late));
    assert!(decision.writes.is_empty());
    let (known, decision) = next(known, |known| known.now = at(10 + 120));
    assert_eq!(decision.status.phase, UpgradePhase::Failed, "it was not begun in time");
    assert!(decision.status.history[0].message.contains("ComputeCapacityReserved"));
    assert_eq!(writes(&decision), [CapacityWrite::Delete("md-extra".into())]);
    let (_, decision) = next(known, |known| known.capacity.clones[0].deleting = true);
    assert_eq!(writes(&decision), [CapacityWrite::Unguard], "Cluster API does the rest");
}

#[test]
fn extra_machines_that_break_before_the_upgrade_begins_have_the_whole_time_again() {
    let gate = "gate closed".to_owned();
    let check = refit_kinds::refit::ClusterCheck::Cordons;
    let cordoned = Health::Known(vec![Problem::Check(check, gate)]);
    let (known, _) = next(reserving(CapacityTimeout::Proceed), ready);
    let (known, decision) = next(known, |known| {
        known.now = at(10 + 60);
        known.health = cordoned;
    });
    assert_eq!(step(&decision, "ClusterHealthyBeforeUpgrade").0, "StepInProgress");
    let (_, decision) = next(known, |known| {
        known.capacity.clones = vec![clone_of_md(Some("its Node is not Ready"))];
        sick(known);
    });
    assert_eq!((writes(&decision), state(&decision)), (vec![], Some(CapacityState::Reserving)));
    assert_eq!(decision.again, Some(at(10 + 60 + 1 + 30)));
}

#[test]
fn the_silences_of_a_control_plane_are_removed_while_an_upgrade_lacks_extra_machines() {
    let silence = |decision: &Decision| {
        let mut writes = decision.writes.iter();
        writes.find_map(|write| match write {
            Write::Silence(write) => Some(write.clone()),
            Write::Commence { .. }
            | Write::Abort(_)
            | Write::Capacity(_)
            | Write::RollBack { .. } => None,
        })
    };
    let (known, decision) = next(reserving(CapacityTimeout::Delay), |known| {
        ready(known);
        with_silences(known);
    });
    assert!(matches!(silence(&decision), Some(SilenceWrite::Set(_))), "{decision:?}");
    let (known, _) = next(known, |known| silenced(known, &SilenceOutcome::Set("1".into())));
    let (_, decision) = next(Known { silenced: Vec::new(), ..known }, |known| {
        known.capacity.clones = vec![clone_of_md(Some("its Node is not Ready"))];
    });
    assert_eq!(step(&decision, "ComputeCapacityReserved").0, "StepInProgress");
    assert!(matches!(silence(&decision), Some(SilenceWrite::Remove { .. })), "{decision:?}");
}

#[test]
fn an_upgrade_to_another_version_keeps_the_extra_machines_that_are_not_ready_yet() {
    let (_, decision) = next(reserving(CapacityTimeout::Delay), |known| {
        let upgrade = Arc::make_mut(&mut known.upgrade);
        upgrade.spec.version = "v1.36.1".parse().unwrap();
        upgrade.metadata.generation = Some(2);
    });
    assert_eq!(step(&decision, "ComputeCapacityReserved").1, "Machine md-extra-x: it has no Node");
    assert_eq!((writes(&decision), state(&decision)), (vec![], Some(CapacityState::Reserving)));
}

#[test]
fn a_refusal_is_shown_after_the_deadline() {
    let refused = Some(Hindrance::Refused("may not create".into()));
    let no_clone = |on_timeout| {
        let (known, _) = next(with_capacity(CapacityMethod::Clone, on_timeout), |_| {});
        let (known, _) = next(known, |known| guard(known, true));
        next(known, |known| {
            known.hindrance.clone_from(&refused);
            known.now = at(10 + 5);
        })
    };
    let (known, _) = no_clone(CapacityTimeout::Delay);
    let (_, decision) = next(known, |known| known.now = at(10 + 40));
    let late = late("may not create");
    assert_eq!(step(&decision, "ComputeCapacityReserved"), ("StepError", &*late));
    let (known, _) = no_clone(CapacityTimeout::Proceed);
    let (_, decision) = next(known, |known| {
        known.now = at(10 + 40);
        known.hindrance = None;
    });
    let why = "may not create. After 30 minutes, the upgrade goes on without extra Machines";
    assert_eq!(shown(&decision), ("False", "Skipped", why));
}

#[test]
fn extra_machines_are_removed_once_it_shows_that_workers_cannot_return() {
    let (known, decision) = next(commenced(), |known| {
        let upgrade = Arc::make_mut(&mut known.upgrade);
        (upgrade.spec.stage, upgrade.spec.roll_back_workers) = (Stage::Abort, true);
        let owner = group("MachineDeployment", "md", "v1.36.0").owner;
        known.returning = vec![Returning { owner, to: Err("another minor version".into()) }];
    });
    assert_eq!(writes(&decision), [], "the task is under way");
    let (known, decision) = next(known, |known| {
        let name = "edge-1-v1.36.0-1";
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Aborted))];
    });
    assert_eq!(decision.status.phase, UpgradePhase::Upgrading, "{}", ready_reason(&decision));
    assert_eq!(writes(&decision), [CapacityWrite::Delete("md-extra".into())]);
    let (_, decision) = next(known, |known| known.capacity.clones.clear());
    assert_eq!(shown(&decision).1, "Removed");
}

#[test]
fn an_unhealthy_cluster_gets_no_extra_machines_even_if_some_are_left_from_an_earlier_upgrade() {
    let mut known = with_capacity(CapacityMethod::Clone, CapacityTimeout::Delay);
    guard(&mut known, true);
    sick(&mut known);
    known.capacity.clones = vec![CloneSeen { deleting: true, ..clone_of_md(None) }];
    let (known, decision) = next(known, |_| {});
    assert_eq!(step(&decision, "ClusterHealthyBeforeUpgrade").0, "StepInProgress");
    let (known, decision) = next(known, |known| known.capacity.clones.clear());
    assert_eq!(writes(&decision), []);
    let (known, decision) = next(known, |known| known.health = Health::Known(Vec::new()));
    assert_eq!(writes(&decision).len(), 1);
    // One of two exists, and the Cluster is not healthy because of something else as well.
    let (_, decision) = next(known, |known| {
        known.capacity.deployments.push(DeploymentSeen {
            name: "other".into(),
            replicas: 1,
            ..DeploymentSeen::default()
        });
        known.capacity.clones = vec![clone_of_md(Some("it has no Node"))];
        sick(known);
    });
    assert_eq!(writes(&decision), []);
}

#[test]
fn a_deleted_upgrade_stays_until_a_task_lets_its_extra_machine_be_deleted() {
    let (known, _) = next(commenced(), |known| {
        let machine =
            CapacityMachine { is_deleted_first: true, ..clone_of_md(None).machines.remove(0) };
        let md = &mut known.capacity.deployments[0];
        (md.machines, md.replicas) = (vec![machine], 0);
        md.paused = crate::task::Paused::ByTask("t".into());
        known.capacity.clones.clear();
    });
    let (known, decision) = next(known, |known| {
        let upgrade = Arc::make_mut(&mut known.upgrade);
        upgrade.metadata.deletion_timestamp = Some(Time(known.now));
        let name = "edge-1-v1.36.0-1";
        let mut of_group = task("t", "other", None, TaskPhase::Aborted);
        of_group.metadata.finalizers = Some(vec![keys::TASK_FINALIZER.to_owned()]);
        let of_cluster = task(name, "upgrade", None, TaskPhase::Aborted);
        known.tasks = vec![Arc::new(of_cluster), Arc::new(of_group)];
    });
    assert_eq!(writes(&decision), []);
    let why = "deletion of Machines md-extra-x (MachineDeployment md is paused)";
    assert_eq!(shown(&decision), ("False", "Removing", why));
    let (_, decision) = next(known.clone(), |known| known.capacity.deployments[0].machines.clear());
    assert_eq!(writes(&decision), [CapacityWrite::Unguard]);
    let (_, decision) = next(known, |known| {
        known.tasks.retain(|task| task.metadata.name.as_deref() != Some("t"));
    });
    assert_eq!(writes(&decision), [CapacityWrite::Unguard], "a task that is gone lets nothing go");
    assert!(shown(&decision).2.contains("UpgradeTask t, which is gone"), "{decision:?}");
}

#[test]
fn an_extra_machine_that_is_not_requested_any_more_is_deleted_even_if_it_makes_the_cluster_unhealthy()
 {
    let other = |name: &str, known: &mut Known| {
        let upgrade = Arc::make_mut(&mut known.upgrade);
        let capacity = upgrade.spec.extra_capacity.as_mut().unwrap();
        capacity.machine_deployments = vec![name.into()];
        known.capacity.deployments.push(DeploymentSeen {
            name: name.into(),
            version: Some("v1.35.0".parse().unwrap()),
            replicas: 1,
            ..DeploymentSeen::default()
        });
    };
    let delete = CapacityWrite::Delete("md-extra".into());
    let (known, decision) = next(reserving(CapacityTimeout::Delay), |known| other("other", known));
    assert_eq!(writes(&decision), [delete], "and nothing is created");
    let (known, decision) = next(known, |known| known.capacity.clones[0].deleting = true);
    assert_eq!(step(&decision, "ClusterHealthyBeforeUpgrade").0, "StepInProgress");
    let (_, decision) = next(known, |known| {
        known.capacity.clones.clear();
        known.health = Health::Known(Vec::new());
    });
    let clone = CapacityWrite::Clone { deployment: "other".into(), machines: 1 };
    assert_eq!(writes(&decision), [clone]);
    // Fewer of them.
    let (_, decision) = next(reserving(CapacityTimeout::Delay), |known| {
        known.capacity.clones[0].replicas = 3;
    });
    let fewer = CapacityWrite::Resize { clone: "md-extra".into(), from: 3, machines: 1 };
    assert_eq!(writes(&decision), [fewer]);
}

#[test]
fn an_upgrade_whose_task_was_deleted_asks_for_no_extra_machines_once_they_were_removed_or_skipped()
{
    let (known, _) = next(commenced(), |known| {
        known.control_plane = Some(group("KubeadmControlPlane", "edge-1", "v1.36.0"));
        known.workers = vec![group("MachineDeployment", "md", "v1.36.0")];
        let name = "edge-1-v1.36.0-1";
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Complete))];
        known.capacity.clones.clear();
        sick(known);
    });
    let (_, decision) = next(known, |known| {
        guard(known, false);
        known.tasks.clear();
        known.health = Health::Known(Vec::new());
    });
    assert_eq!(writes(&decision), []);
    // A minor version above what its workers have, so that their extra Machines would be refused.
    let (known, _) = next(reserving(CapacityTimeout::Proceed), |known| known.now = at(10 + 30));
    let (_, decision) = next(known, |known| {
        known.capacity.clones.clear();
        guard(known, false);
        known.capacity.deployments[0].version = Some("v1.34.0".parse().unwrap());
        known.health = Health::Known(Vec::new());
    });
    assert!(commences(&decision), "{decision:?}");
}

#[test]
fn an_upgrade_without_workers_has_no_extra_capacity_to_show() {
    let mut known = with_capacity(CapacityMethod::Clone, CapacityTimeout::Delay);
    known.capacity.deployments.clear();
    let (known, decision) = next(known, |_| {});
    assert_eq!(state(&decision), None);
    let (_, decision) = next(known, |_| {});
    assert_eq!(state(&decision), None);
    assert!(conditions::get(&decision.status.conditions, EXTRA_CAPACITY).is_none());
}

#[test]
fn the_finalizer_stays_while_the_cluster_could_not_be_read() {
    let (known, decision) = next(commenced(), |known| {
        Arc::make_mut(&mut known.upgrade).spec.extra_capacity = None;
        known.capacity.clones.clear();
    });
    assert_eq!(writes(&decision), [CapacityWrite::Unguard]);
    let unread = Some(Hindrance::Passing("timed out".into()));
    let (_, decision) = next(known, |known| known.hindrance = unread);
    assert_eq!(writes(&decision), []);
}

#[test]
fn an_upgrade_shows_that_it_goes_on_without_extra_machines_by_policy() {
    let (known, decision) = next(reserving(CapacityTimeout::Proceed), |known| {
        known.now = at(10 + 30);
        known.receivers = [refit_kinds::refit::Receiver::CloudEvents].into();
    });
    let message = "Machine md-extra-x: it has no Node. After 30 minutes, the upgrade goes on without extra Machines";
    assert_eq!(writes(&decision), [CapacityWrite::Delete("md-extra".into())]);
    assert_eq!(state(&decision), Some(CapacityState::Skipped));
    let notified = &decision.status.history[0].notifications;
    let events: Vec<String> = notified.iter().map(|one| one.event.to_string()).collect();
    assert!(events.contains(&"CapacitySkipped".to_owned()), "{events:?}");
    let (known, decision) = next(known, |known| known.capacity.clones[0].deleting = true);
    assert!(!commences(&decision), "a Cluster that loses a Machine is not healthy");
    let (known, decision) = next(known, |known| {
        known.capacity.clones.clear();
        guard(known, false);
        known.health = Health::Known(Vec::new());
    });
    assert!(commences(&decision));
    assert_eq!(shown(&decision), ("False", "Skipped", message));
    assert_eq!(step(&decision, "ComputeCapacityReserved").0, "-");
    let (_, decision) = next(known, |known| {
        let name = "edge-1-v1.36.0-1";
        known.tasks = vec![Arc::new(task(name, "upgrade", None, TaskPhase::Complete))];
        known.control_plane = Some(group("KubeadmControlPlane", "edge-1", "v1.36.0"));
    });
    assert_eq!(decision.status.phase, UpgradePhase::Completed);
    assert_eq!((state(&decision), shown(&decision).1), (Some(CapacityState::Skipped), "Skipped"));
}

#[test]
fn extra_machines_of_an_upgrade_that_is_stopped_or_put_off_are_removed() {
    let (_, decision) = next(reserving(CapacityTimeout::Delay), |known| {
        let upgrade = Arc::make_mut(&mut known.upgrade);
        upgrade.spec.stage = Stage::Abort;
    });
    assert_eq!(decision.status.phase, UpgradePhase::Failed);
    assert_eq!(writes(&decision), [CapacityWrite::Delete("md-extra".into())]);
    let (known, decision) = next(reserving(CapacityTimeout::Delay), |known| {
        Arc::make_mut(&mut known.upgrade).spec.start_at = Some(Time(at(900)));
    });
    assert_eq!(decision.status.phase, UpgradePhase::Pending);
    assert_eq!(writes(&decision), [CapacityWrite::Delete("md-extra".into())]);
    let (known, _) = next(known, |known| {
        known.capacity.clones.clear();
        guard(known, false);
    });
    let (_, decision) = next(known, |known| {
        known.health = Health::Known(Vec::new());
        known.now = at(900);
    });
    assert_eq!(writes(&decision), [CapacityWrite::Guard], "they are created again at its time");
    let (_, decision) = next(commenced(), |known| {
        Arc::make_mut(&mut known.upgrade).spec.extra_capacity = None;
    });
    assert_eq!(writes(&decision), [CapacityWrite::Delete("md-extra".into())], "without the spec");
}

#[test]
fn an_upgrade_that_has_lost_its_status_finds_its_extra_machines() {
    let (known, _) = next(commenced(), |_| {});
    let (_, decision) = next(known, |known| {
        Arc::make_mut(&mut known.upgrade).status = None;
    });
    assert_eq!((writes(&decision), state(&decision)), (vec![], Some(CapacityState::Reserved)));
}

#[test]
fn extra_replicas_are_worked_around_by_refit_and_not_by_cluster_api() {
    let known = with_capacity(CapacityMethod::Replicas, CapacityTimeout::Delay);
    assert_eq!(known.via(), Some(Via::Machines));
    let known = with_capacity(CapacityMethod::Clone, CapacityTimeout::Delay);
    assert_eq!(known.via(), None);
}

#[test]
fn a_refused_write_for_extra_machines_is_shown_until_it_succeeds_and_writes_the_status_once() {
    let (known, _) = next(with_capacity(CapacityMethod::Clone, CapacityTimeout::Delay), |_| {});
    let (known, _) = next(known, |known| guard(known, true));
    let refused = Some(Hindrance::Refused("may not create".into()));
    let (known, decision) = next(known, |known| known.hindrance = refused);
    assert_eq!(step(&decision, "ComputeCapacityReserved"), ("StepError", "may not create"));
    let (_, again) = next(known, |known| known.hindrance = None);
    assert_eq!(again.status.history, decision.status.history);
    assert_eq!(writes(&again).len(), 1, "it is tried again");
}
