use std::collections::BTreeMap;

use refit_kinds::{
    refit::{HostStep, PackageArgs},
    version::KubernetesVersion,
};

use super::*;
use crate::state::Record;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn planned(step: HostStep) -> PlannedStep {
    PlannedStep { undo: None, ..PlannedStep::new(step) }
}

fn journal() -> JournalState {
    JournalState::replay([&Record::PlanAccepted {
        plan: "p".into(),
        node_update: "m-1".to_owned(),
        steps: vec![
            planned(HostStep::Preflight { version: None }),
            planned(HostStep::KubeadmInstall {
                version: KubernetesVersion::new(1, 35, 0),
                packages: PackageArgs::default(),
            }),
            planned(HostStep::KubeletRestart {}),
        ],
        point_of_no_return: String::new(),
        packages: BTreeMap::from([("kubeadm".to_owned(), "1.34.2-1.1".to_owned())]),
        static_pods: BTreeMap::new(),
        at: at(0),
    }])
}

fn start(state: &mut JournalState, step: &str, attempt: i32) {
    state.apply(&Record::StepStarted {
        plan: "p".into(),
        step: step.to_owned(),
        attempt,
        unit: "u".to_owned(),
        boot_id: "b".to_owned(),
        at: at(i64::from(attempt) * 10),
    });
}

fn finish(state: &mut JournalState, step: &str, attempt: i32, outcome: StepOutcome) {
    state.apply(&Record::StepFinished {
        plan: "p".into(),
        step: step.to_owned(),
        attempt,
        outcome,
        failure: None,
        unchanged: false,
        reason: if outcome == StepOutcome::Done { "" } else { "CommandFailed" }.to_owned(),
        message: String::new(),
        at: at(i64::from(attempt) * 10 + 5),
    });
}

fn gate(state: &mut JournalState, gate: Gate) {
    state.apply(&Record::GateSeen { plan: "p".into(), gate });
}

fn end(state: &mut JournalState, ended: PlanState) {
    state.apply(&Record::PlanEnded { plan: "p".into(), state: ended, at: at(90) });
}

fn report_of(state: &JournalState) -> HostPlanStatus {
    report(state, None, &HostFacts::default(), None)
}

fn states(status: &HostPlanStatus) -> Vec<StepState> {
    status.steps.iter().map(|step| step.state).collect()
}

#[test]
fn version_and_capabilities_are_reported_before_any_plan() {
    let status = report_of(&JournalState::default());
    assert_eq!(status.state, PlanState::Idle);
    assert!(!status.agent_version.is_empty());
    assert_eq!(status.capabilities, StepType::VARIANTS);
}

#[test]
fn a_plan_behind_a_closed_gate_is_at_the_gate() {
    let mut state = journal();
    assert_eq!(report_of(&state).state, PlanState::AtGate);
    gate(&mut state, Gate::Stage);
    assert_eq!(report_of(&state).state, PlanState::Running);
    start(&mut state, "preflight", 1);
    assert_eq!(report_of(&state).state, PlanState::Running);
    finish(&mut state, "preflight", 1, StepOutcome::Done);
    let status = report_of(&state);
    assert_eq!((status.state, status.passed), (PlanState::AtGate, Gate::Stage));
    assert_eq!(states(&status), [StepState::Done, StepState::Pending, StepState::Pending]);
}

#[test]
fn a_retried_step_runs_and_keeps_its_last_failure() {
    let mut state = journal();
    gate(&mut state, Gate::Stage);
    start(&mut state, "preflight", 1);
    finish(&mut state, "preflight", 1, StepOutcome::Failed);
    let status = report_of(&state);
    assert_eq!(status.state, PlanState::Retrying);
    assert_eq!(status.steps[0].state, StepState::Running);
    assert_eq!(status.steps[0].reason, "CommandFailed");
    assert_eq!(status.steps[0].finished_at, None);
    start(&mut state, "preflight", 2);
    let status = report_of(&state);
    assert_eq!((status.state, status.steps[0].attempt), (PlanState::Retrying, 2));
    assert_eq!(status.steps[0].started_at, Some(time(at(10))), "of the first try");
}

#[test]
fn skipped_steps_name_what_remains_on_the_host() {
    let mut state = journal();
    gate(&mut state, Gate::Upgrade);
    for step in ["preflight", "kubeadm-install"] {
        start(&mut state, step, 1);
        finish(&mut state, step, 1, StepOutcome::Done);
    }
    end(&mut state, PlanState::Stopped);
    let status = report_of(&state);
    assert_eq!(status.state, PlanState::Stopped);
    assert_eq!(status.passed, Gate::Upgrade);
    let last = &status.steps[2];
    assert_eq!((last.state, last.reason.as_str()), (StepState::Skipped, "NotReached"));
    assert!(last.message.contains("kubeadm-install"), "{}", last.message);
    assert_eq!(status.left_behind.len(), 1);
    let left = &status.left_behind[0];
    assert!(left.contains("undo-kubeadm-install did not run"), "{left}");
}

#[test]
fn an_undo_is_a_step_of_the_report_and_leaves_nothing() {
    let mut state = journal();
    gate(&mut state, Gate::Upgrade);
    for step in ["preflight", "kubeadm-install", "undo-kubeadm-install"] {
        start(&mut state, step, 1);
        finish(&mut state, step, 1, StepOutcome::Done);
    }
    end(&mut state, PlanState::Stopped);
    let status = report_of(&state);
    assert_eq!(status.steps[3].id, "undo-kubeadm-install");
    assert_eq!(
        states(&status),
        [StepState::Done, StepState::Undone, StepState::Skipped, StepState::Done]
    );
    assert_eq!(status.left_behind, Vec::<String>::new());
    let message = &status.steps[2].message;
    assert!(message.contains("the plan left nothing on the host"), "{message}");
}

#[test]
fn a_damaged_journal_fails_the_plan_with_a_reason() {
    let spec = HostPlanSpec {
        plan_id: "p".into(),
        steps: journal().plan.unwrap().steps,
        ..HostPlanSpec::default()
    };
    let trouble = Trouble::of_journal(&JournalError::Corrupt { line: 3, reason: "x".to_owned() });
    let status =
        report(&JournalState::default(), Some(&spec), &HostFacts::default(), Some(&trouble));
    assert_eq!((status.state, &*status.plan_id), (PlanState::Failed, "p"));
    assert_eq!(status.steps[0].reason, "JournalCorrupt");
    assert!(status.steps[0].message.contains("line 3"));
}

#[test]
fn a_journal_of_a_newer_agent_is_reported_but_does_not_end_the_plan() {
    let spec = HostPlanSpec {
        plan_id: "p".into(),
        steps: journal().plan.unwrap().steps,
        ..HostPlanSpec::default()
    };
    let trouble = Trouble::of_journal(&JournalError::Newer { what: "line 3: x".to_owned() });
    let status =
        report(&JournalState::default(), Some(&spec), &HostFacts::default(), Some(&trouble));
    assert_eq!((status.state, &*status.plan_id), (PlanState::Retrying, "p"));
    assert_eq!(status.steps[0].reason, "JournalNewer");
    let message = &status.steps[0].message;
    assert!(message.contains("line 3") && message.contains("install the newer"), "{message}");
}

#[test]
fn a_full_disk_is_reported_but_does_not_end_the_plan() {
    let mut state = journal();
    gate(&mut state, Gate::Stage);
    let trouble = Trouble::of_journal(&JournalError::Disk {
        attempt: "written",
        source: std::io::ErrorKind::StorageFull.into(),
    });
    let status = report(&state, None, &HostFacts::default(), Some(&trouble));
    assert_eq!(status.state, PlanState::Running);
    assert_eq!(status.steps[0].reason, "JournalNotWritable");
}

#[test]
fn a_report_is_due_on_change_and_each_five_minutes() {
    let wanted = report_of(&journal());
    assert_eq!(due_at(&wanted, None, None, at(0)), at(0));
    let known = stamped(&wanted, at(0));
    assert_eq!(due_at(&wanted, Some(&known), None, at(10)), at(300));
    assert!(due_at(&wanted, Some(&known), None, at(301)) <= at(301));
    let mut news = wanted.clone();
    news.facts.boot_id = "other".to_owned();
    assert_eq!(due_at(&news, Some(&known), Some(at(10)), at(10)), at(10));
    assert_eq!(due_at(&wanted, Some(&known), None, at(-10)), at(-10), "a report from the future");
}

/// The report of these steps after another one, at 10 seconds, and when it is due.
fn due_after(before: impl Fn(&mut JournalState), then: impl Fn(&mut JournalState)) -> Timestamp {
    let mut state = journal();
    gate(&mut state, Gate::Disrupt);
    before(&mut state);
    let known = stamped(&report_of(&state), at(0));
    then(&mut state);
    due_at(&report_of(&state), Some(&known), Some(at(10)), at(10))
}

#[test]
fn the_progress_of_steps_waits_for_more_of_it() {
    assert_eq!(due_after(|_| (), |state| start(state, "preflight", 1)), at(30));
    let mut state = journal();
    gate(&mut state, Gate::Stage);
    start(&mut state, "preflight", 1);
    let known = stamped(&report_of(&state), at(0));
    let mut wanted = report_of(&state);
    wanted.steps[0].state = StepState::Done;
    wanted.steps[0].finished_at = Some(time(at(5)));
    (wanted.steps[1].state, wanted.steps[1].attempt) = (StepState::Running, 1);
    wanted.facts.kubelet_version = Some(KubernetesVersion::new(1, 35, 0));
    assert_eq!(due_at(&wanted, Some(&known), Some(at(10)), at(10)), at(30));
}

#[test]
fn a_report_that_a_decision_rests_on_is_due_at_once() {
    let started = |state: &mut JournalState| start(state, "preflight", 1);
    let failed = |state: &mut JournalState| finish(state, "preflight", 1, StepOutcome::Failed);
    assert_eq!(due_after(started, failed), at(10), "a failed attempt");
    let again = |state: &mut JournalState| start(state, "preflight", 2);
    assert_eq!(
        due_after(
            |state| {
                started(state);
                failed(state);
            },
            again
        ),
        at(10),
        "a second attempt"
    );
    let passed = |state: &mut JournalState| finish(state, "preflight", 1, StepOutcome::Done);
    let mut state = journal();
    gate(&mut state, Gate::Stage);
    start(&mut state, "preflight", 1);
    let known = stamped(&report_of(&state), at(0));
    passed(&mut state);
    let due = due_at(&report_of(&state), Some(&known), Some(at(10)), at(10));
    assert_eq!(due, at(10), "a gate");
    let ended = |state: &mut JournalState| end(state, PlanState::Succeeded);
    assert_eq!(due_after(|_| (), ended), at(10), "the end of the plan");
}

#[test]
fn the_beginning_of_a_step_that_must_be_known_is_reported_at_once() {
    for (kind, due) in [
        (StepType::Reboot, at(10)),
        (StepType::KubeadmUpgrade, at(10)),
        (StepType::KubeletInstall, at(30)),
    ] {
        let mut known = stamped(&report_of(&journal()), at(0));
        kind.id().clone_into(&mut known.steps[2].id);
        let mut wanted =
            HostPlanStatus { reported_at: None, state: PlanState::Running, ..known.clone() };
        wanted.steps[2].attempt = 1;
        assert_eq!(due_at(&wanted, Some(&known), Some(at(10)), at(10)), due, "{kind:?}");
    }
}

#[test]
fn a_report_survives_serialization() {
    let mut state = journal();
    gate(&mut state, Gate::Stage);
    start(&mut state, "preflight", 1);
    let status = stamped(&report_of(&state), at(1));
    let text = serde_json::to_string(&status).unwrap();
    let back: HostPlanStatus = serde_json::from_str(&text).unwrap();
    assert_eq!(back, status);
}
