//! How updates end, and what remains of them.

use kube::ResourceExt as _;
use refit_kinds::{
    keys,
    refit::{Gate, NodeUpdateStatus, Origin, Phase, Stage},
};

use super::world::*;
use crate::node::{MEMBER_MISSING, ManagementWrite, REQUEST_WITHDRAWN, SUPERSEDED, Write, decide};

fn aborted(mut one: One) -> One {
    one.update.spec.stage = Stage::Abort;
    one.settle();
    one
}

fn untouched(one: &One) {
    assert!(one.annotations().is_empty(), "{:?}", one.annotations());
    assert_eq!(one.slots(), 0);
    assert!(!one.node().unwrap().unschedulable);
    assert_eq!(one.condition(), None);
}

#[test]
fn an_abort_before_any_work_stops_immediately() {
    let one = aborted(One::worker());
    assert_eq!((one.phase(), one.gate()), (Phase::Stopped, Gate::Closed));
    assert_eq!(one.status().failure_reason, "Aborted");
    untouched(&one);
}

#[test]
fn an_abort_before_the_point_of_no_return_stops_the_host_first() {
    let mut one = aborted(One::worker().staged());
    assert_eq!(one.phase(), Phase::Stopping);
    assert!(one.plan.as_ref().unwrap().spec.abort);
    assert_eq!(one.gate(), Gate::Stage);
    one.host_works();
    one.settle();
    assert_eq!(one.phase(), Phase::Stopped);
    untouched(&one);
}

#[test]
fn an_abort_releases_slot_and_guard() {
    let mut one = One::worker().staged();
    while one.log.last().map(String::as_str) != Some("guard") {
        assert!(one.step());
    }
    let mut one = aborted(one);
    one.host_works();
    one.settle();
    assert_eq!(one.phase(), Phase::Stopped);
    untouched(&one);
}

#[test]
fn an_abort_after_the_point_of_no_return_is_too_late() {
    let mut one = One::control_plane().staged();
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
    one.update.spec.stage = Stage::Abort;
    one.settle();
    let line = one.status().message;
    assert!(line.ends_with("(too late to abort: the update runs to completion)"), "{line}");
    one.host_works();
    one.settle();
    one.host_works();
    one.kubelet_returns();
    one.settle();
    one.now += 10;
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(!one.plan.as_ref().unwrap().spec.abort);
}

#[test]
fn a_newer_request_stops_an_unstarted_older_one() {
    let mut one = One::worker().staged();
    one.siblings.push(update("m-0", 2));
    one.settle();
    assert_eq!(one.phase(), Phase::Stopping);
    one.host_works();
    one.settle();
    assert_eq!((one.phase(), one.status().failure_reason.as_str()), (Phase::Stopped, "Superseded"));
}

#[test]
fn an_abort_for_another_goal_is_not_an_operators() {
    let mut one = One::worker().staged();
    one.update.spec.stage = Stage::Abort;
    let mut changed = one.clone();
    changed.update.annotations_mut().insert(keys::GOAL_CHANGED.to_owned(), String::new());
    for (mut one, reason) in [(one, "Aborted"), (changed, SUPERSEDED)] {
        one.settle();
        one.host_works();
        one.settle();
        assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, reason));
    }
}

/// The newer NodeUpdate that an update was stopped for is deleted before the host has stopped.
#[test]
fn a_stop_whose_cause_is_gone_is_no_operators_abort() {
    let mut stopping = One::worker().staged();
    stopping.siblings.push(update("m-0", 2));
    stopping.settle();
    assert_eq!(stopping.phase(), Phase::Stopping);
    stopping.siblings.clear();
    let mut by_hand = stopping.clone();
    by_hand.update.spec.origin = Origin::Task;
    let awaited = stopping.clone().awaited();
    for (mut one, reason) in
        [(stopping, REQUEST_WITHDRAWN), (by_hand, SUPERSEDED), (awaited, MEMBER_MISSING)]
    {
        one.settle();
        one.host_works();
        one.settle();
        assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, reason));
    }
}

#[test]
fn an_older_update_past_the_point_of_no_return_ends_first() {
    let mut one = One::worker().upgraded();
    one.siblings.push(update("m-0", 2));
    one.settle();
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    // The newer NodeUpdate owns the condition and the guard.
    assert!(one.annotations().contains_key(keys::GUARDED_BY_US));
    assert_eq!(one.slots(), 0);
}

#[test]
fn a_permanent_step_failure_ends_the_update_with_its_reason() {
    let mut one = One::worker();
    one.settle();
    one.host_fails("stage");
    one.settle();
    let status = one.status();
    assert_eq!((status.phase, status.retriable), (Phase::Failed, false));
    assert_eq!(status.failure_reason, "PackageMissing");
    assert_eq!(
        status.message,
        "failed: PackageMissing; step stage: put the package into the repository"
    );
    assert_eq!(one.condition(), Some(("False".into(), "Failed".into())));
    assert!(one.events.iter().any(|event| event.reason == "UpdateFailed"));
    assert!(one.annotations().is_empty());
    assert_eq!(one.slots(), 0);
}

fn failed_while_down() -> One {
    let mut one = One::worker().upgraded();
    one.settle();
    one.host_fails("kubelet-install");
    one.node_mut().ready = false;
    one.settle();
    assert_eq!(one.phase(), Phase::Failed);
    one
}

#[test]
fn a_failed_machine_that_is_down_keeps_only_its_slot() {
    let one = failed_while_down();
    assert_eq!(one.slots(), 1);
    assert!(one.annotations().is_empty());
    assert!(one.decide().requeue.is_some());
}

#[test]
fn after_a_failure_the_status_shows_the_cordons_owner() {
    let mut one = failed_while_down();
    assert!(one.status().cordoned_by_us);
    one.node_mut().ready = true;
    one.settle();
    assert_eq!(one.slots(), 1, "our own cordon keeps the machine unavailable");
    one.node_mut().unschedulable = false;
    one.settle();
    assert!(!one.status().cordoned_by_us);
    assert_eq!(one.slots(), 0);
}

#[test]
fn the_next_attempt_takes_over_slot_and_cordon() {
    let mut one = failed_while_down();
    one.siblings.push(one.update.clone());
    one.update = update("m-0", 2);
    one.settle();
    one.host_works();
    one.settle();
    one.host_works();
    one.settle();
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.status());
    assert!(!one.node().unwrap().unschedulable);
    assert_eq!(one.slots(), 0);
    assert!(one.annotations().is_empty());
}

#[test]
fn a_retry_request_is_removed_after_the_retry_succeeds() {
    let asked = |name: &str, ordinal, phase| {
        let mut one = One::worker();
        let machine = one.machine.as_mut().unwrap();
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::RETRY.to_owned(), name.to_owned());
        one.update = update("m-0", ordinal);
        one.update.status = Some(NodeUpdateStatus { phase, ..Default::default() });
        one.settle();
        one.annotations().contains_key(keys::RETRY)
    };
    assert!(!asked("m-0-1", 2, Phase::Succeeded));
    assert!(asked("m-0-1", 2, Phase::Failed));
    // The annotation requests a future attempt.
    assert!(asked("m-0-2", 2, Phase::Succeeded));
    assert!(asked("m-0-1", 1, Phase::Failed));
}

#[test]
fn an_ended_update_leaves_the_machine_to_the_running_one() {
    let mut one = One::worker().upgraded();
    let mut old = one.clone();
    old.siblings.push(one.update.clone());
    old.update = update("m-0", 0);
    old.update.status = Some(NodeUpdateStatus { phase: Phase::Succeeded, ..Default::default() });
    assert_eq!(old.decide().write, None);
    one.siblings.push(old.update);
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn a_final_phase_never_changes() {
    for phase in [Phase::Succeeded, Phase::Failed, Phase::Stopped] {
        let mut one = One::worker();
        one.update.status = Some(NodeUpdateStatus { phase, ..Default::default() });
        one.update.spec.stage = Stage::Abort;
        one.delete_machine();
        one.settle();
        assert_eq!(one.phase(), phase);
    }
}

#[test]
fn a_deletion_waits_only_until_the_host_stops() {
    let mut one = One::worker().upgraded();
    one.delete_machine();
    one.settle();
    assert_eq!((one.phase(), one.blocked_by()), (Phase::Stopping, vec!["MachineDeleting".into()]));
    assert!(one.annotations().contains_key(keys::PRE_DRAIN_HOOK));
    assert!(one.plan.as_ref().unwrap().spec.abort);
    one.host_works();
    one.settle();
    assert_eq!(one.phase(), Phase::Stopped);
    assert!(one.annotations().is_empty());
}

#[test]
fn a_deletion_does_not_wait_for_a_host_that_is_gone() {
    for reachable in [true, false] {
        let mut one = One::worker().upgraded();
        one.delete_machine();
        one.settle();
        one.reachable = reachable;
        one.now += 1000;
        one.settle();
        assert_eq!(one.phase(), Phase::Stopped);
        assert!(one.annotations().is_empty());
    }
}

#[test]
fn a_machine_deleted_early_is_released() {
    let mut one = One::worker();
    one.delete_machine();
    one.settle();
    assert_eq!((one.phase(), one.gate()), (Phase::Stopped, Gate::Closed));
}

#[test]
fn a_machine_that_is_gone_ends_its_update() {
    let mut one = One::worker().staged();
    one.machine = None;
    one.settle();
    assert_eq!(one.status().failure_reason, "MachineGone");
    assert!(one.plan.as_ref().unwrap().spec.abort);
}

#[test]
fn another_machine_of_the_same_name_is_left_alone() {
    let mut one = One::worker().upgraded();
    let before = {
        let machine = one.machine.as_mut().unwrap();
        machine.metadata.uid = Some("another".into());
        machine.clone()
    };
    one.settle();
    assert_eq!(one.status().failure_reason, "MachineReplaced");
    assert_eq!(one.machine, Some(before));
    assert_eq!(one.slots(), 0);
}

#[test]
fn a_host_that_stops_unrequested_ends_the_update() {
    let mut one = One::worker().staged();
    one.plan.as_mut().unwrap().status.as_mut().unwrap().state =
        refit_kinds::refit::PlanState::Stopped;
    one.settle();
    assert_eq!(one.status().failure_reason, "HostStopped");
}

#[test]
fn a_guard_disabled_during_an_update_is_removed() {
    let mut one = One::worker().upgraded();
    let annotations = one.machine.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::REMEDIATION_GUARD.to_owned(), "Disabled".to_owned());
    one.settle();
    assert_eq!(one.annotations().keys().collect::<Vec<_>>(), [keys::REMEDIATION_GUARD]);
}

#[test]
fn a_users_own_guard_survives_every_end() {
    let mut one = One::worker();
    let annotations = one.machine.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::SKIP_REMEDIATION.to_owned(), "mine".to_owned());
    one = one.disrupted();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert_eq!(one.annotations().keys().collect::<Vec<_>>(), [keys::SKIP_REMEDIATION]);
}

#[test]
fn nothing_is_written_before_the_first_sync() {
    let update = update("m-0", 1);
    let machine = machine("m-0");
    let snapshot = snapshot(&update, Some(&machine));
    assert_eq!(decide(&snapshot, at(0)).write, None);
}

#[test]
fn a_deletion_does_not_wait_for_an_unreadable_cluster() {
    let mut one = One::worker().staged();
    one.settle();
    assert!(one.annotations().contains_key(keys::PRE_DRAIN_HOOK));
    one.delete_machine();
    let decided = |one: &One, after: i64| {
        let snapshot = snapshot(&one.update, one.machine.as_ref());
        decide(&snapshot, at(one.now + after))
    };
    assert_eq!(decided(&one, 900).write, None);
    let decision = decided(&one, 901);
    assert_eq!(decision.status.phase, Phase::Stopped);
    let write = decision.write.clone().unwrap();
    one.apply(&decision, write);
    assert!(matches!(
        decided(&one, 902).write,
        Some(Write::Management(ManagementWrite::Unguard(_)))
    ));
}
