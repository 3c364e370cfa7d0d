//! Steps that this agent does not know, or that its policy forbids.

use refit_kinds::refit::FailureKind;
use serde_json::{Value, json};

use super::*;

fn unreadable(action: Value) -> PlannedAction {
    serde_json::from_value(action).unwrap()
}

#[test]
fn a_step_that_names_no_version_is_refused_and_fails_the_plan() {
    let mut state = journal(Gate::Stage, &["preflight"]);
    let action = unreadable(json!({"kubeadmInstall": {"version": "v1.35"}}));
    state.plan.as_mut().unwrap().steps[1].action = action;
    let Next::Refuse { attempt: 1, why, .. } = next(&state, None, at(20)) else { panic!() };
    let message = why.to_string();
    assert!(
        message.starts_with(
            "step kubeadm-install: kubeadmInstall: invalid Kubernetes version \"v1.35\""
        ),
        "{message}"
    );
    finish(&mut state, "kubeadm-install", 1, StepOutcome::FailedForGood, 21);
    assert_eq!(ended(&next(&state, None, at(22))), PlanState::Failed);
}

#[test]
fn a_step_that_this_agent_does_not_know_is_refused() {
    let mut state = journal(Gate::Stage, &["preflight"]);
    state.plan.as_mut().unwrap().steps[1].action = unreadable(json!({"firmwareUpdate": {}}));
    let Next::Refuse { attempt: 1, why, .. } = next(&state, None, at(20)) else { panic!() };
    let failure = crate::reason::Failure::invalid(&why);
    assert_eq!((failure.reason, failure.kind), ("StepUnknown", FailureKind::NeedsPerson));
    assert!(failure.message.contains("\"firmwareUpdate\"; install a newer version of the program"));
}

/// The refusal of one step by the host's policy.
fn forbids(id: &'static str) -> impl Fn(&PlannedStep) -> Option<PolicyRefusal> {
    move |step| {
        let forbidden = PolicyRefusal::Forbidden {
            file: "/etc/refit-agent/policy.toml".into(),
            key: "steps",
            what: format!("step {}", step.id),
        };
        (step.id == id).then_some(forbidden)
    }
}

#[test]
fn a_step_that_the_policy_forbids_refuses_the_plan_before_it_starts() {
    for gate in [Gate::Closed, Gate::Stage, Gate::Disrupt] {
        let mut state = journal(gate, &[]);
        let wanted = next(&state, None, at(20));
        assert_eq!(restrict(&state, wanted.clone(), |_| None), wanted);
        let refused = restrict(&state, wanted, forbids("kubelet-restart"));
        let Next::Refuse { step, attempt: 1, why } = refused else { panic!("{refused:?}") };
        assert_eq!(step, "kubelet-restart");
        let failure = crate::reason::Failure::invalid(&why);
        assert_eq!((failure.reason, failure.kind), ("PolicyForbids", FailureKind::NeedsPerson));
        finish(&mut state, "kubelet-restart", 1, StepOutcome::FailedForGood, 21);
        assert_eq!(ended(&next(&state, None, at(22))), PlanState::Failed, "nothing is undone");
    }
}

#[test]
fn a_policy_concerns_what_has_not_started_yet_and_no_undo() {
    // A stricter policy does not mind what is done, and stops the plan where it waits.
    let state = journal(Gate::Stage, &["preflight", "kubeadm-install"]);
    let waits = next(&state, None, at(20));
    assert!(matches!(waits, Next::AtGate { .. }), "{waits:?}");
    assert_eq!(restrict(&state, waits.clone(), forbids("kubeadm-install")), waits);
    let refused = restrict(&state, waits, forbids("kubelet-restart"));
    assert!(matches!(refused, Next::Refuse { .. }), "{refused:?}");
    // A step that runs is finished.
    let mut state = journal(Gate::Stage, &[]);
    start(&mut state, "preflight", 1);
    let runs = next(&state, None, at(20));
    assert_eq!(restrict(&state, runs.clone(), forbids("preflight")), runs);
    // Before its next attempt it is refused.
    finish(&mut state, "preflight", 1, StepOutcome::Failed, 10);
    let retried = restrict(&state, next(&state, None, at(20)), forbids("preflight"));
    assert!(matches!(retried, Next::Refuse { attempt: 2, .. }), "{retried:?}");
    // An undo is not a step of the plan.
    let mut state = journal(Gate::Upgrade, &["preflight", "kubeadm-install"]);
    abort(&mut state);
    let undo = next(&state, None, at(20));
    assert_eq!(started(&undo).0, "undo-kubeadm-install");
    assert_eq!(restrict(&state, undo.clone(), forbids("kubelet-restart")), undo);
}

#[test]
fn a_plan_with_an_unknown_step_is_refused_before_it_starts() {
    let mut state = journal(Gate::Stage, &[]);
    state.plan.as_mut().unwrap().steps[3].action = unreadable(json!({"firmwareUpdate": {}}));
    let Next::Refuse { step, attempt: 1, .. } = next(&state, None, at(20)) else { panic!() };
    assert_eq!(step, "kubelet-restart");
    finish(&mut state, "kubelet-restart", 1, StepOutcome::FailedForGood, 21);
    assert_eq!(ended(&next(&state, None, at(22))), PlanState::Failed);
}
