use std::sync::Arc;

use refit_kinds::refit::{GroupOwner, OnAbort, Stage, TaskPhase, UpgradePhase};

use super::Returning;
use crate::{
    managed::cluster::{
        Known, Write,
        tests::{begun, next, ready, task},
    },
    task::HopTo,
};

const TASK: &str = "edge-1-v1.36.0-1";

fn owner(name: &str) -> GroupOwner {
    GroupOwner { kind: "MachineDeployment".into(), name: name.into(), ..GroupOwner::default() }
}

fn returning(name: &str, to: Result<Option<&str>, &str>) -> Returning {
    let to = to.map(|to| to.map(|to| to.parse().unwrap())).map_err(str::to_owned);
    Returning { owner: owner(name), to }
}

/// An upgrade that was stopped with the return of its workers, and whose task has ended.
fn stopped(groups: Vec<Returning>) -> Known {
    let (known, decision) = next(begun(), |known| {
        let spec = &mut Arc::make_mut(&mut known.upgrade).spec;
        (spec.stage, spec.roll_back_workers) = (Stage::Abort, true);
    });
    assert_eq!(decision.writes, [Write::Abort(TASK.into())], "the task ends first");
    let mut known = known;
    known.tasks = vec![Arc::new(task(TASK, "upgrade", None, TaskPhase::Aborted))];
    known.returning = groups;
    known
}

/// A task that rolls back workers.
fn back(name: &str, of: &str, phase: TaskPhase) -> Arc<refit_kinds::refit::UpgradeTask> {
    let mut task = task(name, "upgrade", Some(owner(of)), phase);
    task.spec.roll_back = true;
    Arc::new(task)
}

#[test]
fn workers_return_one_group_after_the_other_once_the_task_has_ended() {
    let groups = || {
        vec![
            returning("a", Ok(Some("v1.35.2"))),
            returning("b", Ok(None)),
            returning("c", Ok(Some("v1.35.3"))),
        ]
    };
    let (known, decision) = next(stopped(groups()), |_| {});
    let [Write::RollBack { task: first, to }] = &decision.writes[..] else {
        panic!("{:?}", decision.writes);
    };
    assert_eq!(*to, HopTo { owner: owner("a"), version: "v1.35.2".parse().unwrap() });
    assert_eq!((decision.status.phase, ready(&decision)), (UpgradePhase::Upgrading, "Cancelling"));
    let (known, decision) = next(known, |known| {
        known.tasks.push(back(first, "a", TaskPhase::Ongoing));
    });
    assert_eq!((decision.writes.len(), ready(&decision)), (0, "Cancelling"), "one at a time");
    // It was stopped by another client: it is not created again.
    let (known, decision) = next(known, |known| {
        known.tasks[1] = back(first, "a", TaskPhase::Aborted);
    });
    let [Write::RollBack { task: second, to }] = &decision.writes[..] else {
        panic!("{:?}", decision.writes);
    };
    assert_eq!((&*to.owner.name, second != first), ("c", true));
    let (_, decision) = next(known, |known| {
        known.tasks.push(back(second, "c", TaskPhase::Complete));
        known.returning[2].to = Ok(None);
    });
    assert!(decision.writes.is_empty());
    assert_eq!((decision.status.phase, ready(&decision)), (UpgradePhase::Failed, "Cancelled"));
}

#[test]
fn no_worker_returns_if_one_group_cannot_and_the_upgrade_names_why() {
    let groups = vec![returning("a", Ok(Some("v1.35.2"))), returning("b", Err("b cannot"))];
    let (known, decision) = next(stopped(groups), |_| {});
    assert_eq!((decision.writes.len(), ready(&decision)), (0, "Cancelling"));
    let message =
        &decision.status.conditions.iter().find(|one| one.type_ == "Ready").unwrap().message;
    assert!(message.starts_with("b cannot. ") && message.contains("rollBackWorkers"), "{message}");
    let (_, decision) = next(known, |known| {
        Arc::make_mut(&mut known.upgrade).spec.roll_back_workers = false;
    });
    assert_eq!((decision.status.phase, ready(&decision)), (UpgradePhase::Failed, "Cancelled"));
}

#[test]
fn an_upgrade_that_is_requested_again_begins_after_the_workers_that_return() {
    let (known, decision) = next(stopped(vec![returning("a", Ok(Some("v1.35.2")))]), |_| {});
    let [Write::RollBack { task: name, .. }] = &decision.writes[..] else {
        panic!("{:?}", decision.writes);
    };
    let (known, decision) = next(known, |known| {
        known.tasks.push(back(name, "a", TaskPhase::Ongoing));
        let upgrade = Arc::make_mut(&mut known.upgrade);
        upgrade.spec.stage = Stage::Ongoing;
        upgrade.metadata.generation = Some(3);
    });
    assert_eq!(ready(&decision), "Cancelled", "what was stopped ends first");
    let (known, decision) = next(known, |_| {});
    assert_eq!((decision.writes.len(), ready(&decision)), (0, "OlderTask"));
    let (_, decision) = next(known, |known| {
        known.tasks[1] = back(name, "a", TaskPhase::Complete);
    });
    let [Write::Commence { version, .. }] = &decision.writes[..] else {
        panic!("{:?}", decision.writes);
    };
    assert_eq!(version.to_string(), "v1.36.0", "not the version of the workers that returned");
}

#[test]
fn a_task_that_stops_otherwise_than_the_upgrade_is_asked_again() {
    let stop = |known: &mut Known| {
        let spec = &mut Arc::make_mut(&mut known.upgrade).spec;
        (spec.stage, spec.on_abort) = (Stage::Abort, OnAbort::Finish);
    };
    let (known, _) = next(begun(), stop);
    let (known, decision) = next(known, |known| {
        Arc::make_mut(&mut known.tasks[0]).spec.stage = Stage::Abort;
    });
    assert_eq!(decision.writes, [Write::Abort(TASK.into())]);
    let (_, decision) = next(known, |known| {
        Arc::make_mut(&mut known.tasks[0]).spec.on_abort = OnAbort::Finish;
    });
    assert!(decision.writes.is_empty());
}
