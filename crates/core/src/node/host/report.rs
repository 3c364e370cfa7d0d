//! The agent's report, as a report on a part of an update.

use refit_kinds::refit::{
    FailureKind, HostPlanStatus, HostStepStatus, PlanState, PlannedStep, StepState, StepStatus,
};

use crate::node::work_order::{WorkFailure, WorkReport, WorkState, WorkStep};

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
        left_behind: report.left_behind.clone(),
    }
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
        message,
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
    let reason = match &*step.reason {
        "" => "HostStepFailed",
        reason => reason,
    };
    let mut message = format!("step {}: {}", step.id, step.message);
    for more in afterwards(report, step.failure) {
        message.push_str("; ");
        message.push_str(more);
    }
    WorkFailure { reason: reason.to_owned(), message }
}

/// Details for the operator in addition to the failure: the state of the host, and whether manual
/// intervention is required.
fn afterwards(report: &HostPlanStatus, failure: Option<FailureKind>) -> Vec<&str> {
    let undone = report.steps.iter().any(|step| step.state == StepState::Undone);
    let mut list: Vec<&str> =
        report.left_behind.iter().map(|sentence| sentence.trim_end_matches('.')).collect();
    if undone && list.is_empty() {
        list.push("the host has rolled back");
    }
    match failure {
        Some(FailureKind::NeedsPerson) => list.push("manual intervention is required"),
        Some(FailureKind::Final) => list.push("another attempt cannot succeed"),
        Some(FailureKind::Retriable) | None => {}
    }
    list
}
