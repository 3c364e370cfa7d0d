//! The agent's report, as a report on a part of an update. Its texts come from a host that may have been taken over:
//! only so much of them is copied that they cannot fill the management cluster.

use refit_kinds::{
    clip,
    refit::{
        FailureKind, HostPlanStatus, HostStepStatus, MAX_FACT, MAX_LEFT_BEHIND, MAX_MESSAGE,
        PlanState, PlannedStep, StepState, StepStatus,
    },
};

use crate::node::work_order::{WorkFailure, WorkReport, WorkState, WorkStep};

/// Longest reason that is believed to be one.
const MAX_REASON: usize = 64;

/// The report on a plan.
pub(super) fn of(report: &HostPlanStatus) -> WorkReport {
    let state = match report.state {
        PlanState::Idle | PlanState::Running | PlanState::AtGate | PlanState::Retrying => {
            WorkState::Working
        }
        PlanState::Undoing => WorkState::Undoing,
        PlanState::Succeeded => WorkState::Succeeded,
        PlanState::Failed => WorkState::Failed(failure(report)),
        PlanState::Stopped => WorkState::Stopped,
    };
    WorkReport {
        passed_gate: report.passed,
        state,
        past_no_return: report.past_no_return,
        left_behind: left_behind(report).collect(),
    }
}

fn left_behind(report: &HostPlanStatus) -> impl Iterator<Item = String> {
    report.left_behind.iter().take(MAX_LEFT_BEHIND).map(|sentence| clip(sentence, MAX_FACT))
}

/// The steps of a plan, with what the agent reported about them.
pub(super) fn steps(planned: &[PlannedStep], report: Option<&HostPlanStatus>) -> Vec<WorkStep> {
    let reports = report.map_or(&[][..], |report| &report.steps);
    let status_of = |id: &str| reports.iter().find(|step| step.id == id).map(status);
    let step = |step: &PlannedStep| WorkStep {
        name: step.id.clone(),
        gate: step.gate,
        status: status_of(&step.id),
    };
    planned.iter().map(step).collect()
}

fn status(step: &HostStepStatus) -> StepStatus {
    let message = match (&*step.reason, &*step.message) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    StepStatus {
        name: step.id.clone(),
        state: step.state,
        attempt: step.attempt,
        started_at: step.started_at.clone(),
        finished_at: step.finished_at.clone(),
        message: clip(&message, MAX_FACT),
    }
}

fn failure(report: &HostPlanStatus) -> WorkFailure {
    let failed = |step: &&HostStepStatus| step.state == StepState::Failed;
    let Some(step) = report.steps.iter().find(failed) else {
        return WorkFailure {
            reason: "HostStepFailed".to_owned(),
            message: "the agent reported no reason".to_owned(),
        };
    };
    let is_reason = (1..=MAX_REASON).contains(&step.reason.len())
        && step.reason.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && step.reason.starts_with(|first: char| first.is_ascii_uppercase());
    let reason = if is_reason { &*step.reason } else { "HostStepFailed" };
    let mut message = clip(&format!("step {}: {}", step.id, step.message), MAX_MESSAGE);
    for more in afterwards(report, step.failure) {
        message.push_str("; ");
        message.push_str(&more);
    }
    WorkFailure { reason: reason.to_owned(), message: clip(&message, 2 * MAX_MESSAGE) }
}

/// Details for the operator in addition to the failure: the state of the host, and whether manual
/// intervention is required.
fn afterwards(report: &HostPlanStatus, failure: Option<FailureKind>) -> Vec<String> {
    let undone = report.steps.iter().any(|step| step.state == StepState::Undone);
    let mut list: Vec<String> =
        left_behind(report).map(|sentence| sentence.trim_end_matches('.').to_owned()).collect();
    if undone && list.is_empty() {
        list.push("the host has rolled back".to_owned());
    }
    let needed = match failure {
        Some(FailureKind::NeedsPerson) => Some("manual intervention is required"),
        Some(FailureKind::Final) => Some("another attempt cannot succeed"),
        Some(FailureKind::Retriable) | None => None,
    };
    list.extend(needed.map(str::to_owned));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: &str, message: &str) -> HostPlanStatus {
        let step = HostStepStatus {
            id: "snapshot".into(),
            state: StepState::Failed,
            reason: reason.into(),
            message: message.into(),
            failure: Some(FailureKind::NeedsPerson),
            ..HostStepStatus::default()
        };
        HostPlanStatus {
            state: PlanState::Failed,
            steps: vec![step],
            left_behind: vec![message.to_owned(); 100],
            ..HostPlanStatus::default()
        }
    }

    #[test]
    fn the_texts_of_a_host_are_copied_within_bounds() {
        let status = failed("DiskFull", &"é".repeat(70_000));
        let report = of(&status);
        let WorkState::Failed(failure) = &report.state else { panic!("{:?}", report.state) };
        assert_eq!(failure.reason, "DiskFull");
        assert!(failure.message.starts_with("step snapshot: é"));
        assert!(failure.message.ends_with("; manual intervention is required"));
        assert!(failure.message.len() <= 2 * MAX_MESSAGE, "{}", failure.message.len());
        assert_eq!(report.left_behind.len(), MAX_LEFT_BEHIND);
        assert!(report.left_behind.iter().all(|sentence| sentence.len() <= MAX_FACT));
        let step = super::status(&status.steps[0]);
        assert!(step.message.starts_with("DiskFull: é") && step.message.len() <= MAX_FACT);
    }

    #[test]
    fn a_reason_that_no_condition_can_have_is_replaced() {
        let long = "A".repeat(MAX_REASON + 1);
        for (given, shown) in [
            ("PackageMissing", "PackageMissing"),
            ("", "HostStepFailed"),
            ("disk full", "HostStepFailed"),
            ("9Lives", "HostStepFailed"),
            (&long, "HostStepFailed"),
        ] {
            assert_eq!(failure(&failed(given, "x")).reason, shown, "{given}");
        }
    }
}
