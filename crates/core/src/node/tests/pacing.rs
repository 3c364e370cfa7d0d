//! What the pacing of a group holds back.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    keys,
    refit::{
        ExceptionRule, Gate, GroupFailure, GroupRollout, OneWindow, Origin, PacingException,
        PacingGate, Phase, UpdateGroupStatus, Windows,
    },
};

use super::{rules::refused, world::*};
use crate::{
    gates::{ClosedGate, GatesRead},
    node::{GroupState, ManagementWrite, Write, decide, requires_gates},
};

/// Three machines of the rollout have failed at the same step.
fn stopped_by_failures() -> UpdateGroupStatus {
    let failures = ["a", "b", "c"].map(|machine| GroupFailure {
        machine: machine.to_owned(),
        machine_uid: machine.into(),
        node_update: format!("{machine}-1"),
        cause: "HostStepFailed at kubeadm-upgrade".to_owned(),
        at: Time(at(1)),
    });
    let rollout = GroupRollout {
        number: 1,
        origin: Origin::Hook,
        target: GOAL.to_owned(),
        since: Time(at(0)),
        ended: None,
        owner_generation: None,
        first_machines: Vec::new(),
        last_updated: None,
        failures: failures.into(),
    };
    UpdateGroupStatus { rollout: Some(Box::new(rollout)), ..UpdateGroupStatus::default() }
}

#[test]
fn a_host_does_not_even_prepare_once_its_rollout_has_stopped() {
    for mut one in [One::worker(), One::control_plane()] {
        one.group = Some(stopped_by_failures());
        one.pace.request = GOAL.to_owned();
        let mut one = refused(one, "RolloutStopped");
        one.pace.pacing.failures_since = Some(Time(at(1)));
        one.settle();
        assert_eq!(one.phase(), Phase::Staging);
    }
}

#[test]
fn a_machine_that_is_down_is_repaired_although_its_rollout_has_stopped() {
    let mut one = One::worker().upgraded();
    let mut status = stopped_by_failures();
    status.slots = one.group.clone().unwrap().slots;
    one.group = Some(status);
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
}

/// Windows that are open for an hour from a time on, and for another one a day later.
fn windows(from: i64) -> Windows {
    let once = [from, from + 86_400].map(|from| OneWindow {
        name: None,
        from: Time(at(from)),
        until: Time(at(from + 3600)),
    });
    Windows { weekly: Vec::new(), once: once.into(), estimate_seconds: 600 }
}

#[test]
fn a_machine_does_not_begin_in_a_window_that_has_closed_since_its_claim() {
    let mut one = One::control_plane();
    one.pace.pacing.windows = Some(windows(0));
    one.settle();
    assert_eq!((one.slots(), one.gate()), (1, Gate::Stage));
    one.now = 7200;
    one.host_works();
    one.settle();
    assert_eq!((one.blocked_by(), one.slots()), (vec!["WindowClosed".to_owned()], 0));
    assert_eq!(one.gate(), Gate::Stage, "{:?}", one.log);
    one.now = 86_400;
    one.settle();
    assert_eq!((one.slots(), one.gate()), (1, Gate::Upgrade));
    // What has begun is finished.
    one.now = 100_000;
    one.host_works();
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt, "{:?}", one.blocked_by());
}

fn gates() -> Vec<PacingGate> {
    serde_json::from_value(serde_json::json!([{"name": "alerts", "alerts": {}}])).unwrap()
}

fn closed_gates() -> Vec<ClosedGate> {
    vec![ClosedGate { name: "alerts".to_owned(), why: "NodeDown fires".to_owned() }]
}

#[test]
fn a_worker_prepares_and_then_waits_for_the_gates_of_its_group() {
    let mut one = One::worker();
    one.pace.pacing.gates = gates();
    one.closed_gates = closed_gates();
    let mut one = one.staged();
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["GateClosed".to_owned()], Gate::Stage));
    assert_eq!(one.slots(), 0);
    one.closed_gates.clear();
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
    // What has begun is finished.
    one.closed_gates = closed_gates();
    one.host_works();
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt, "{:?}", one.blocked_by());
}

#[test]
fn a_machine_does_not_begin_if_a_gate_has_closed_since_its_claim() {
    let mut one = One::control_plane();
    one.pace.pacing.gates = gates();
    one.settle();
    assert_eq!((one.slots(), one.gate()), (1, Gate::Stage));
    one.closed_gates = closed_gates();
    one.now = 120;
    one.host_works();
    one.settle();
    assert_eq!((one.blocked_by(), one.slots()), (vec!["GateClosed".to_owned()], 0));
    one.closed_gates.clear();
    one.settle();
    assert_eq!((one.slots(), one.gate()), (1, Gate::Upgrade));
}

#[test]
fn a_failed_machine_is_repaired_although_it_may_be_what_a_gate_has_found() {
    let mut one = One::control_plane();
    one.pace.pacing.gates = gates();
    one.settle();
    let mut status = one.group.clone().unwrap();
    let mut rollout = stopped_by_failures().rollout.unwrap();
    rollout.failures[0].machine_uid = status.slots[0].machine_uid.clone();
    rollout.failures.truncate(1);
    status.rollout = Some(rollout);
    one.group = Some(status);
    one.closed_gates = closed_gates();
    one.now = 120;
    one.host_works();
    one.settle();
    assert_eq!((one.slots(), one.gate()), (1, Gate::Upgrade), "{:?}", one.blocked_by());
}

#[test]
fn a_machine_begins_only_after_its_gates_were_checked_as_they_are_now() {
    let requires = |one: &One, checked: Option<Vec<PacingGate>>| {
        let mut snapshot = one.snapshot(None);
        let GroupState::Present(group) = &mut snapshot.group else { panic!("it has a group") };
        let read = |gates| Arc::new(GatesRead { gates, closed: Vec::new() });
        group.gates = checked.map(read);
        let decision = decide(&snapshot, at(one.now));
        requires_gates(&snapshot, &decision, at(one.now))
    };
    let mut one = One::worker().staged();
    while !matches!(one.decide().write, Some(Write::Management(ManagementWrite::ClaimSlot(_)))) {
        assert!(one.step());
    }
    assert!(!requires(&one, None), "a group without gates");
    one.pace.pacing.gates = gates();
    assert!(requires(&one, None));
    assert!(requires(&one, Some(Vec::new())), "the gates were added since");
    assert!(!requires(&one, Some(gates())));
}

#[test]
fn a_worker_prepares_and_then_waits_for_its_window() {
    let mut one = One::worker();
    one.pace.pacing.windows = Some(windows(3600));
    let mut one = one.staged();
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["WindowClosed".to_owned()], Gate::Stage));
    one.now = 3600;
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
}

#[test]
fn a_worker_prepares_and_then_waits_for_the_approval_of_its_rollout() {
    let mut one = One::worker();
    one.pace.pacing.pause_after = Some(0);
    let mut one = one.staged();
    one.settle();
    assert_eq!((one.gate(), one.blocked_by()), (Gate::Stage, vec!["ApprovalRequired".to_owned()]));
    one.pace.pacing.approve = Some(1);
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
}

fn annotate(one: &mut One, key: &str, value: &str) {
    let machine = one.machine.as_mut().unwrap();
    machine.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

#[test]
fn a_held_or_skipped_machine_does_not_begin_until_it_is_released() {
    for (key, reason) in [(keys::HOLD, "Held"), (keys::SKIP, "Skipped")] {
        for mut one in [One::worker(), One::control_plane(), One::worker().staged()] {
            let before = one.gate();
            annotate(&mut one, key, "its disk is replaced");
            one.settle();
            assert_eq!((one.gate(), one.slots()), (before, 0), "{key}");
            assert_eq!(one.blocked_by(), [reason]);
            let message = one.status().message;
            assert!(message.contains("(its disk is replaced)"), "{message}");
            assert!(message.contains("refit release m-0"), "{message}");
            one.machine.as_mut().unwrap().metadata.annotations = None;
            one.settle();
            assert!(one.gate() > before, "{key}");
        }
    }
}

#[test]
fn a_machine_that_has_begun_is_finished_although_it_is_held() {
    let mut one = One::worker().upgraded();
    annotate(&mut one, keys::HOLD, "too late");
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn a_machine_is_skipped_in_one_rollout_only() {
    let mut one = One::worker().staged();
    let exception = PacingException {
        machine: "m-0".to_owned(),
        rule: ExceptionRule::Skip,
        reason: "its disk is replaced".to_owned(),
        rollout: Some(1),
    };
    one.pace.pacing.exceptions = vec![exception];
    one.settle();
    assert_eq!(one.blocked_by(), ["Skipped"]);
    let mut status = stopped_by_failures();
    let rollout = status.rollout.as_mut().unwrap();
    rollout.failures.clear();
    rollout.target = "v1.34.9".to_owned();
    one.group = Some(status);
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
}
