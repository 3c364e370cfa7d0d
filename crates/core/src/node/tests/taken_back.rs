//! Updates that are given up: the worker that drains, the mark that is withdrawn, the way back.

use refit_kinds::{
    keys,
    refit::{Gate, Goal, Phase, PlanState, Stage, StepState},
};

use super::world::*;
use crate::node::requires_live_read;

/// A worker whose drain has begun.
fn draining() -> One {
    let mut one = One::worker().upgraded();
    while one.log.last().map(String::as_str) != Some("cordon") {
        assert!(one.step());
    }
    one
}

/// A worker whose update was aborted and rolled back, and for which Cluster API still waits.
fn aborted() -> One {
    let mut one = draining();
    one.update.spec.stage = Stage::Abort;
    one.settle();
    one.host_works();
    one.settle();
    one.awaited()
}

#[test]
fn an_abort_ends_the_drain_of_a_worker() {
    let mut one = draining();
    one.update.spec.stage = Stage::Abort;
    one.settle();
    assert_eq!((one.phase(), one.gate()), (Phase::Stopping, Gate::Upgrade));
    assert_eq!(one.status().message, "the host will stop at the next safe step");
    one.host_works();
    one.settle();
    assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, "Aborted"));
    assert!(one.annotations().is_empty(), "{:?}", one.annotations());
    assert_eq!((one.slots(), one.condition()), (0, None));
    assert!(!one.node().unwrap().unschedulable);
    let steps = one.status().steps;
    assert!(steps.iter().all(|step| step.state != StepState::Running), "{steps:?}");
}

#[test]
fn a_worker_stays_cordoned_if_its_host_is_not_as_before() {
    let mut one = draining();
    one.update.spec.stage = Stage::Abort;
    one.settle();
    one.host_works();
    let report = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    report.left_behind = vec!["package x was added.".into()];
    one.settle();
    assert_eq!(one.phase(), Phase::Stopped);
    assert!(one.status().failure_message.ends_with("package x was added"));
    assert!(one.node().unwrap().unschedulable);
}

#[test]
fn an_abort_is_too_late_once_the_kubelet_may_be_replaced() {
    let mut one = One::worker().upgraded();
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
    one.update.spec.stage = Stage::Abort;
    one.settle();
    assert!(!one.plan.as_ref().unwrap().spec.abort);
    let line = one.status().message;
    assert!(line.ends_with("(too late to abort: the update runs to completion)"), "{line}");
}

#[test]
fn an_update_that_its_owner_takes_back_is_withdrawn() {
    let mut one = aborted();
    assert!(one.decide().write.is_none(), "the owner still asks for it");
    one.owner_version = FROM.into();
    let decision = one.decide();
    assert!(requires_live_read(&one.snapshot(None), &decision));
    one.settle();
    assert!(!one.annotations().contains_key(keys::UPDATE_IN_PROGRESS));
    assert_eq!(one.events.last().unwrap().reason, "UpdateWithdrawn");
}

#[test]
fn no_other_update_is_withdrawn() {
    type Change = fn(&mut One);
    let table: [(&str, Change); 7] = [
        ("another machine runs the goal", |one| one.others_run = vec![FROM.into(), GOAL.into()]),
        ("another version is asked for", |one| one.owner_version = "v1.35.1".into()),
        ("the host runs the goal", |one| one.node_mut().kubelet_version = GOAL.into()),
        ("the next request is being made", |one| {
            one.machine.as_mut().unwrap().spec.version = FROM.into();
        }),
        ("the hook is not pending", |one| {
            let annotations = one.machine.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
            annotations.remove(keys::PENDING_HOOKS);
        }),
        ("the host has kept a change", |one| {
            let report = one.plan.as_mut().unwrap().status.as_mut().unwrap();
            report.left_behind = vec!["package x was added.".into()];
        }),
        ("the host is past the point of no return", |one| {
            let report = one.plan.as_mut().unwrap().status.as_mut().unwrap();
            report.past_no_return = true;
        }),
    ];
    for (why, change) in table {
        let mut one = aborted();
        one.owner_version = FROM.into();
        change(&mut one);
        one.settle();
        assert!(one.annotations().contains_key(keys::UPDATE_IN_PROGRESS), "{why}");
    }
}

/// The update to the version before the last one, which was given up.
fn way_back(last: One) -> One {
    let mut one = One { siblings: vec![last.update.clone()], update: update("m-0", 2), ..last };
    one.update.spec.goal = Goal::of_version(FROM.parse().unwrap());
    one.owner_version = FROM.into();
    one.log.clear();
    one
}

#[test]
fn the_way_back_disturbs_nothing() {
    let mut one = way_back(aborted());
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert_eq!(one.log, ["status", "condition UpToDate"]);
}

#[test]
fn the_way_back_uncordons_a_node_whose_update_failed() {
    let mut failed = One::worker().upgraded();
    failed.settle();
    failed.host_fails("kubelet-install");
    failed.settle();
    assert_eq!(failed.phase(), Phase::Failed);
    let mut one = way_back(failed);
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(!one.node().unwrap().unschedulable);
    assert!(!one.log.iter().any(|write| write.starts_with("gate")), "{:?}", one.log);
}

#[test]
fn a_host_that_was_changed_is_updated_on_its_way_back() {
    let mut half = aborted();
    half.plan.as_mut().unwrap().status.as_mut().unwrap().left_behind = vec!["x.".into()];
    let mut one = way_back(half);
    one.settle();
    assert_eq!(one.gate(), Gate::Stage);
    assert_eq!(one.plan.unwrap().status.unwrap().state, PlanState::Stopped);
}
