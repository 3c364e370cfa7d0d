//! When a host counts as lost, and what remains then.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use refit_kinds::{
    keys,
    refit::{Phase, StepState},
};

use super::world::*;
use crate::{
    node::{Workload, decide},
    report::Refusal,
};

const LIMIT: Option<SignedDuration> = Some(SignedDuration::from_mins(15));

/// The host last reported at this second, and not since.
fn last_report(one: &One) -> i64 {
    one.reported_at().unwrap().as_second()
}

fn is_lost_after(one: &One, seconds: i64) -> bool {
    let mut one = one.clone();
    one.now = last_report(&one) + seconds;
    one.host_lost_after = LIMIT;
    one.settle();
    one.status().failure_reason == "HostLost"
}

#[test]
fn a_host_that_stops_reporting_is_lost_in_any_phase() {
    let phases: [fn() -> One; 5] = [
        One::worker,
        || One::worker().staged(),
        || One::control_plane().staged(),
        || One::worker().upgraded(),
        || {
            let mut one = One::worker().disrupted();
            one.node_mut().ready = false;
            one
        },
    ];
    for phase in phases {
        let mut one = phase();
        one.settle();
        assert!(!is_lost_after(&one, 800), "{:?}", one.phase());
        assert!(is_lost_after(&one, 900), "{:?}", one.phase());
    }
}

#[test]
fn a_report_from_the_future_is_no_sign_of_life() {
    let mut one = One::worker().upgraded();
    one.settle();
    let requested = last_report(&one);
    let plan = one.plan.as_mut().unwrap();
    let ahead = Time(at(requested + 100_000));
    plan.status.as_mut().unwrap().reported_at = Some(ahead);
    one.now = requested + 100_000 - 2_000;
    one.host_lost_after = LIMIT;
    one.settle();
    assert_eq!(one.status().failure_reason, "HostLost");
}

#[test]
fn a_host_whose_plan_was_deleted_is_lost_once_it_has_begun() {
    let without_plan = |mut one: One| {
        one.settle();
        let reported = last_report(&one);
        one.plan = None;
        one.complete_since = reported;
        one.now = reported + 900;
        one.host_lost_after = LIMIT;
        one.settle();
        one.status().failure_reason.clone()
    };
    assert_eq!(without_plan(One::worker().upgraded()), "HostLost");
    assert_eq!(without_plan(One::control_plane().staged()), "HostLost");
}

#[test]
fn a_lost_host_keeps_its_slot_and_may_be_remediated() {
    let mut one = One::worker().upgraded();
    one.settle();
    assert!(!one.annotations().is_empty(), "it is guarded");
    one.node_mut().ready = false;
    one.now = last_report(&one) + 900;
    one.host_lost_after = LIMIT;
    one.settle();
    assert_eq!(one.phase(), Phase::Failed);
    assert!(one.annotations().is_empty(), "{:?}", one.annotations());
    assert_eq!(one.slots(), 1);
}

#[test]
fn a_host_is_not_lost_while_its_report_cannot_be_read() {
    let mut one = One::worker().staged();
    one.settle();
    one.refused = Some(Refusal::ApiRefused {
        what: "a write to the NodeUpdate".to_owned(),
        message: "a read of HostPlan m-0: forbidden".to_owned(),
    });
    assert!(!is_lost_after(&one, 900));
    one.refused = None;
    assert!(is_lost_after(&one, 900));
}

#[test]
fn a_step_may_take_its_time() {
    let mut one = One::worker().staged();
    one.settle();
    let plan = one.plan.as_mut().unwrap();
    let step = plan.spec.steps.iter_mut().last().unwrap();
    step.timeout_seconds = Some(1200);
    let id = step.id.clone();
    let steps = &mut plan.status.as_mut().unwrap().steps;
    steps.iter_mut().find(|step| step.id == id).unwrap().state = StepState::Running;
    assert!(!is_lost_after(&one, 1400));
    assert!(is_lost_after(&one, 1500), "its timeout and one report");
}

#[test]
fn time_in_which_no_report_would_have_been_seen_does_not_count() {
    let mut one = One::worker().staged();
    one.settle();
    one.complete_since = last_report(&one) + 600;
    assert!(!is_lost_after(&one, 1400));
    assert!(is_lost_after(&one, 1500));
    one.update.metadata.creation_timestamp = Some(Time(at(last_report(&one) + 1000)));
    assert!(!is_lost_after(&one, 1800), "the update was requested later");
    assert!(is_lost_after(&one, 1900));
}

#[test]
fn a_host_that_returns_is_uncordoned_if_no_further_update_will_do_so() {
    let lost = || {
        let mut one = One::worker().upgraded();
        one.settle();
        one.node_mut().ready = false;
        one.now = last_report(&one) + 900;
        one.host_lost_after = LIMIT;
        one.settle();
        one.host_works();
        one.kubelet_returns();
        one
    };
    let mut given_up = lost();
    given_up.settle();
    assert!(!given_up.node().unwrap().unschedulable);
    assert_eq!(given_up.slots(), 0);
    let mut awaited = lost();
    let machine = awaited.machine.as_mut().unwrap();
    machine.annotations_mut().insert(keys::UPDATE_IN_PROGRESS.to_owned(), String::new());
    awaited.settle();
    assert!(awaited.node().unwrap().unschedulable, "the next update finds it drained");
    assert_eq!(awaited.slots(), 1);
}

#[test]
fn a_decision_does_not_depend_on_the_clock_of_the_host() {
    let mut one = One::worker().staged();
    one.settle();
    one.host_lost_after = LIMIT;
    for (silent, expected) in [(0, ""), (899, ""), (900, "HostLost")] {
        one.now = last_report(&one) + silent;
        for offset in [-1200, 0, 1200] {
            let mut snapshot = one.snapshot(None);
            let Workload::Seen(seen) = &mut snapshot.workload else { unreachable!() };
            let plan = Arc::make_mut(seen.host_plan.as_mut().unwrap());
            let stated = &mut plan.status.as_mut().unwrap().reported_at;
            *stated = Some(Time(at(last_report(&one) + offset)));
            let decision = decide(&snapshot, at(one.now));
            assert_eq!(decision.status.failure_reason, expected, "{silent} {offset}");
        }
    }
}
