use std::collections::BTreeMap;

use refit_kinds::{
    refit::{Disruption, HostStep, HostStepStatus, KubeadmArgs, PackageArgs, Role},
    version::KubernetesVersion,
};

use super::*;
use crate::{host::Undo, state::Record};
use crate::{judge::INTERRUPTED, reason::CLUSTER_NOT_READY};

#[path = "engine_refusal_tests.rs"]
mod refusals;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn step(gate: Gate, step: HostStep) -> PlannedStep {
    PlannedStep { gate, undo: None, ..PlannedStep::new(step) }
}

fn new() -> KubernetesVersion {
    KubernetesVersion::new(1, 35, 0)
}

fn spec(gate: Gate) -> HostPlanSpec {
    HostPlanSpec {
        node_update: "m-1".to_owned(),
        plan_id: "p".into(),
        gate,
        abort: false,
        returned_claim: 0.into(),
        point_of_no_return: String::new(),
        disruption: Disruption::Drain,
        steps: vec![
            step(Gate::Stage, HostStep::Preflight { version: None }),
            step(
                Gate::Stage,
                HostStep::KubeadmInstall { version: new(), packages: PackageArgs::default() },
            ),
            step(
                Gate::Upgrade,
                HostStep::KubeadmUpgrade {
                    version: new(),
                    role: Role::Worker,
                    kubeadm: KubeadmArgs::default(),
                },
            ),
            step(Gate::Disrupt, HostStep::KubeletRestart {}),
        ],
    }
}

/// A journal in which the steps `done` succeeded.
fn journal(gate: Gate, done: &[&str]) -> JournalState {
    let mut state = JournalState::default();
    let spec = spec(gate);
    state.apply(&Record::PlanAccepted {
        plan: spec.plan_id.clone(),
        node_update: spec.node_update.clone(),
        steps: spec.steps,
        point_of_no_return: spec.point_of_no_return,
        packages: BTreeMap::from([("kubeadm".to_owned(), "1.34.2-1.1".to_owned())]),
        static_pods: BTreeMap::new(),
        at: at(0),
    });
    state.apply(&Record::GateSeen { plan: "p".into(), gate });
    for step in done {
        start(&mut state, step, 1);
        finish(&mut state, step, 1, StepOutcome::Done, 10);
    }
    state
}

fn start(state: &mut JournalState, step: &str, attempt: i32) {
    state.apply(&Record::StepStarted {
        plan: "p".into(),
        step: step.to_owned(),
        attempt,
        unit: unit_name("p", step, attempt),
        boot_id: "b1".to_owned(),
        at: at(5),
    });
}

fn finish(state: &mut JournalState, step: &str, attempt: i32, outcome: StepOutcome, second: i64) {
    state.apply(&finished(step, attempt, outcome, "", second));
}

/// An attempt fails with a reason.
fn fails_for(state: &mut JournalState, step: &str, attempt: i32, reason: &str) {
    state.apply(&finished(step, attempt, StepOutcome::Failed, reason, 10));
}

fn finished(step: &str, attempt: i32, outcome: StepOutcome, reason: &str, second: i64) -> Record {
    Record::StepFinished {
        plan: "p".into(),
        step: step.to_owned(),
        attempt,
        outcome,
        failure: None,
        unchanged: false,
        reason: reason.to_owned(),
        message: String::new(),
        at: at(second),
    }
}

fn fail(state: &mut JournalState, step: &str, attempts: i32) {
    for attempt in 1..=attempts {
        start(state, step, attempt);
        finish(state, step, attempt, StepOutcome::Failed, 10);
    }
}

fn abort(state: &mut JournalState) {
    state.apply(&Record::AbortSeen { plan: "p".into(), cause: AbortCause::Requested });
}

fn started(next: &Next) -> (&str, i32) {
    match next {
        Next::Start { job, attempt } => (&job.step, *attempt),
        other => panic!("{other:?}"),
    }
}

fn ended(next: &Next) -> PlanState {
    match next {
        Next::End { state } => *state,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_plan_nothing_happens() {
    let empty = JournalState::default();
    assert_eq!(next(&empty, None, at(0)), Next::Idle);
    let spec = HostPlanSpec::default();
    assert_eq!(next(&empty, Some(&spec), at(0)), Next::Idle);
}

#[test]
fn a_new_plan_is_accepted_once() {
    let spec = spec(Gate::Closed);
    let accept = next(&JournalState::default(), Some(&spec), at(0));
    assert!(matches!(accept, Next::Accept { plan, .. } if plan == "p"));
    let mut state = journal(Gate::Closed, &[]);
    state.apply(&Record::PlanEnded { plan: "p".into(), state: PlanState::Failed, at: at(1) });
    assert_eq!(next(&state, Some(&spec), at(2)), Next::Idle);
    let other = HostPlanSpec { plan_id: "q".into(), ..spec };
    assert!(matches!(next(&state, Some(&other), at(2)), Next::Accept { plan, .. } if plan == "q"));
}

#[test]
fn nothing_runs_past_the_gate() {
    for (gate, done, waits) in [
        (Gate::Closed, &[][..], "preflight"),
        (Gate::Stage, &["preflight", "kubeadm-install"], "kubeadm-upgrade"),
        (Gate::Upgrade, &["preflight", "kubeadm-install", "kubeadm-upgrade"], "kubelet-restart"),
    ] {
        let state = journal(gate, done);
        match next(&state, Some(&spec(gate)), at(20)) {
            Next::AtGate { step, gate: needed } => {
                assert_eq!(step, waits);
                assert!(needed > gate);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn up_to_the_gate_no_api_is_needed() {
    let state = journal(Gate::Upgrade, &["preflight"]);
    assert_eq!(started(&next(&state, None, at(20))), ("kubeadm-install", 1));
}

#[test]
fn an_opened_gate_is_recorded_while_a_step_runs() {
    let mut state = journal(Gate::Stage, &[]);
    start(&mut state, "preflight", 1);
    let seen = next(&state, Some(&spec(Gate::Disrupt)), at(6));
    assert_eq!(seen, Next::SeeGate { gate: Gate::Disrupt });
}

#[test]
fn a_gate_that_closes_again_is_ignored() {
    let state = journal(Gate::Stage, &["preflight"]);
    let next = next(&state, Some(&spec(Gate::Closed)), at(20));
    assert_eq!(started(&next), ("kubeadm-install", 1));
}

#[test]
fn an_open_step_is_checked_before_another_starts() {
    let mut state = journal(Gate::Disrupt, &["preflight"]);
    start(&mut state, "kubeadm-install", 2);
    match next(&state, None, at(6)) {
        Next::Attend { job, attempt, since } => {
            assert_eq!((job.step.as_str(), attempt), ("kubeadm-install", 2));
            assert_eq!(job.unit, "refit-p-kubeadm-install-2");
            assert_eq!(since.boot_id, "b1");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_step_waits_longer_each_time_then_the_plan_fails() {
    for (attempts, waits) in [(1, 10), (2, 20)] {
        let mut state = journal(Gate::Stage, &[]);
        fail(&mut state, "preflight", attempts);
        let backoff = next(&state, None, at(11));
        let until = at(10 + waits);
        assert!(matches!(backoff, Next::Backoff { until: u, .. } if u == until), "{backoff:?}");
        let again = next(&state, None, until);
        assert_eq!(started(&again), ("preflight", attempts + 1));
    }
    let mut state = journal(Gate::Stage, &[]);
    fail(&mut state, "preflight", USUAL_ATTEMPTS);
    assert_eq!(ended(&next(&state, None, at(11))), PlanState::Failed);
}

#[test]
fn a_clock_that_was_set_back_does_not_stop_retries() {
    let mut state = journal(Gate::Stage, &[]);
    fail(&mut state, "preflight", 1);
    assert_eq!(started(&next(&state, None, at(-3600))), ("preflight", 2));
}

#[test]
fn a_failure_before_no_return_restores_the_package() {
    let mut state = journal(Gate::Stage, &["preflight"]);
    fail(&mut state, "kubeadm-install", USUAL_ATTEMPTS);
    let undo = next(&state, None, at(11));
    match &undo {
        Next::Start { job, .. } => {
            assert_eq!(job.step, "undo-kubeadm-install");
            let packages = BTreeMap::from([("kubeadm".to_owned(), "1.34.2-1.1".to_owned())]);
            assert_eq!(job.command, Command::Undo(Undo::Packages { packages }));
        }
        other => panic!("{other:?}"),
    }
    start(&mut state, "undo-kubeadm-install", 1);
    assert!(matches!(next(&state, None, at(12)), Next::Attend { .. }));
    finish(&mut state, "undo-kubeadm-install", 1, StepOutcome::Done, 13);
    assert_eq!(ended(&next(&state, None, at(14))), PlanState::Failed);
}

#[test]
fn an_undo_that_keeps_failing_does_not_keep_the_plan_open() {
    let mut state = journal(Gate::Stage, &["preflight", "kubeadm-install"]);
    abort(&mut state);
    fail(&mut state, "undo-kubeadm-install", USUAL_ATTEMPTS);
    assert_eq!(ended(&next(&state, None, at(99))), PlanState::Stopped);
}

#[test]
fn an_upgrade_that_fails_for_good_is_not_undone() {
    let mut state = journal(Gate::Upgrade, &["preflight", "kubeadm-install"]);
    fail(&mut state, "kubeadm-upgrade", USUAL_ATTEMPTS);
    assert_eq!(ended(&next(&state, None, at(11))), PlanState::Failed);
}

#[test]
fn an_abort_is_recorded_then_undoes_and_stops() {
    let mut state = journal(Gate::Disrupt, &["preflight", "kubeadm-install"]);
    let aborted = HostPlanSpec { abort: true, ..spec(Gate::Disrupt) };
    let cause = AbortCause::Requested;
    assert_eq!(next(&state, Some(&aborted), at(11)), Next::SeeAbort { cause });
    abort(&mut state);
    let undo = next(&state, Some(&aborted), at(11));
    assert_eq!(started(&undo), ("undo-kubeadm-install", 1));
}

#[test]
fn an_abort_before_anything_was_touched_just_stops() {
    let mut state = journal(Gate::Disrupt, &["preflight"]);
    abort(&mut state);
    assert_eq!(ended(&next(&state, None, at(11))), PlanState::Stopped);
}

#[test]
fn an_abort_past_no_return_continues_up_to_the_gate() {
    let done = ["preflight", "kubeadm-install", "kubeadm-upgrade"];
    let mut open = journal(Gate::Disrupt, &done);
    abort(&mut open);
    assert_eq!(started(&next(&open, None, at(20))), ("kubelet-restart", 1));
    let mut closed = journal(Gate::Upgrade, &done);
    abort(&mut closed);
    assert_eq!(ended(&next(&closed, None, at(20))), PlanState::Stopped);
}

#[test]
fn a_new_plan_stops_the_current_one_before_it_is_accepted() {
    let mut state = journal(Gate::Stage, &["preflight"]);
    let other = HostPlanSpec { plan_id: "q".into(), ..spec(Gate::Disrupt) };
    let cause = AbortCause::Superseded;
    assert_eq!(next(&state, Some(&other), at(20)), Next::SeeAbort { cause });
    state.apply(&Record::AbortSeen { plan: "p".into(), cause });
    assert_eq!(ended(&next(&state, Some(&other), at(20))), PlanState::Stopped);
}

#[test]
fn a_recreated_empty_host_plan_stops_nothing() {
    let state = journal(Gate::Stage, &["preflight"]);
    let next = next(&state, Some(&HostPlanSpec::default()), at(20));
    assert_eq!(started(&next), ("kubeadm-install", 1));
}

#[test]
fn a_plan_whose_steps_are_done_has_succeeded() {
    let done = ["preflight", "kubeadm-install", "kubeadm-upgrade", "kubelet-restart"];
    let state = journal(Gate::Disrupt, &done);
    assert_eq!(ended(&next(&state, None, at(20))), PlanState::Succeeded);
}

#[test]
fn unit_names_need_no_escaping() {
    assert_eq!(unit_name("a/b", "x y;$(z)%n\"", 3), "refit-a_b-x_y___z__n_-3");
}

#[test]
fn the_plan_sets_timeout_and_attempts_of_a_step() {
    let mut state = journal(Gate::Stage, &[]);
    let steps = &mut state.plan.as_mut().unwrap().steps;
    steps[0].timeout_seconds = Some(7);
    steps[0].max_attempts = Some(1);
    match next(&state, None, at(1)) {
        Next::Start { job, .. } => assert_eq!(job.timeout_seconds, 7),
        other => panic!("{other:?}"),
    }
    fail(&mut state, "preflight", 1);
    assert_eq!(ended(&next(&state, None, at(11))), PlanState::Failed);
}

/// A journal in which the first step is a download.
fn downloading() -> JournalState {
    let mut state = journal(Gate::Stage, &[]);
    state.plan.as_mut().unwrap().steps[0].action = PlannedAction::Known(HostStep::Stage {
        version: new(),
        packages: PackageArgs::default(),
        images: None,
        bundle: None,
    });
    state
}

#[test]
fn a_download_is_retried_for_half_an_hour() {
    let mut state = downloading();
    let mut second = 0;
    for attempt in 1..=31 {
        start(&mut state, "preflight", attempt);
        finish(&mut state, "preflight", attempt, StepOutcome::Failed, second);
        let Next::Backoff { until, .. } = next(&state, None, at(second)) else { panic!() };
        let waits = until.duration_since(at(second)).as_secs();
        let expected = match attempt {
            1 => 10,
            2 => 20,
            3 => 40,
            _ => 60,
        };
        assert_eq!(waits, expected, "{attempt}");
        second += waits;
        assert_eq!(started(&next(&state, None, at(second))), ("preflight", attempt + 1));
    }
    assert!((1700..1900).contains(&second), "{second}");
    fail(&mut state, "preflight", 32);
    assert_eq!(ended(&next(&state, None, at(11))), PlanState::Failed);
}

#[test]
fn a_download_that_times_out_is_retried_like_other_steps() {
    let times_out = |state: &mut JournalState, attempt| {
        start(state, "preflight", attempt);
        fails_for(state, "preflight", attempt, TIMED_OUT);
    };
    let mut state = downloading();
    times_out(&mut state, 2);
    assert!(matches!(next(&state, None, at(11)), Next::Backoff { .. }));
    times_out(&mut state, USUAL_ATTEMPTS);
    assert_eq!(ended(&next(&state, None, at(11))), PlanState::Failed);
    // A limit of the plan counts as it is.
    state.plan.as_mut().unwrap().steps[0].max_attempts = Some(5);
    assert!(matches!(next(&state, None, at(11)), Next::Backoff { .. }));
}

#[test]
fn attempts_of_kubeadm_do_not_count_while_reboots_interrupt_them() {
    let fails = |state: &mut JournalState, attempt, reason: &str| {
        start(state, "kubeadm-upgrade", attempt);
        fails_for(state, "kubeadm-upgrade", attempt, reason);
    };
    for allowed in [1, USUAL_ATTEMPTS] {
        let mut state = journal(Gate::Upgrade, &["preflight", "kubeadm-install"]);
        let step = &mut state.plan.as_mut().unwrap().steps[2];
        step.max_attempts = Some(allowed);
        step.action = PlannedAction::Known(HostStep::KubeadmUpgrade {
            version: new(),
            role: Role::ControlPlane,
            kubeadm: KubeadmArgs::default(),
        });
        let before = state.clone();
        for (attempt, reason) in [(1, INTERRUPTED), (2, CLUSTER_NOT_READY)] {
            fails(&mut state, attempt, reason);
            assert_eq!(started(&next(&state, None, at(60))), ("kubeadm-upgrade", attempt + 1));
        }
        for attempt in 3..=allowed + 2 {
            assert!(!is_given_up(state.plan.as_ref().unwrap(), "kubeadm-upgrade"));
            fails(&mut state, attempt, "StaticPodNotReplaced");
        }
        assert!(is_given_up(state.plan.as_ref().unwrap(), "kubeadm-upgrade"));
        // A host that crashes each time is not upgraded for ever.
        let mut state = before;
        for attempt in 1..=allowed + FURTHER_ATTEMPTS {
            assert!(!is_given_up(state.plan.as_ref().unwrap(), "kubeadm-upgrade"));
            fails(&mut state, attempt, INTERRUPTED);
        }
        assert!(is_given_up(state.plan.as_ref().unwrap(), "kubeadm-upgrade"));
    }
}

#[test]
fn final_failures_are_not_retried() {
    let mut state = journal(Gate::Stage, &[]);
    start(&mut state, "preflight", 1);
    finish(&mut state, "preflight", 1, StepOutcome::FailedForGood, 10);
    assert_eq!(ended(&next(&state, None, at(11))), PlanState::Failed);
}

#[test]
fn a_plan_that_an_earlier_host_has_started_is_not_begun() {
    let reported = |plan: &str, state, attempt| {
        let mut object = HostPlan::new("node", spec(Gate::Disrupt));
        let steps = vec![HostStepStatus {
            id: "preflight".to_owned(),
            attempt,
            ..HostStepStatus::default()
        }];
        object.status = Some(HostPlanStatus {
            plan_id: plan.into(),
            state,
            steps,
            ..HostPlanStatus::default()
        });
        object
    };
    let empty = JournalState::default();
    for (plan, state, attempt, wanted) in [
        ("p", PlanState::Running, 1, true),
        ("p", PlanState::Succeeded, 1, true),
        // The refusal itself is reported like this.
        ("p", PlanState::Failed, 0, true),
        // It waits for a signature.
        ("p", PlanState::Retrying, 0, false),
        ("o", PlanState::Succeeded, 1, false),
        ("", PlanState::Idle, 0, false),
    ] {
        let found = is_of_earlier_host(&empty, &reported(plan, state, attempt));
        assert_eq!(found, wanted, "{plan} {state:?} {attempt}");
    }
    let knows = journal(Gate::Stage, &["preflight"]);
    assert!(!is_of_earlier_host(&knows, &reported("p", PlanState::Running, 1)));
    assert!(!is_of_earlier_host(&empty, &HostPlan::new("node", spec(Gate::Disrupt))));
}
