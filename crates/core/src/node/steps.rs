//! The steps of a NodeUpdate, those of its updater and those of the controller, in one order.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    Gate, NodeUpdateStatus, PlannedStep, Progress, StepDurations, StepState, StepStatus,
};

use super::work_order::WorkStep;
use crate::group::median_seconds;

/// Controller step: cordon the node.
pub const STEP_CORDON: &str = "cordon";
/// Controller step: drain the node.
pub const STEP_DRAIN: &str = "drain";
/// Controller step: wait until the node is Ready and matches the goal.
pub const STEP_NODE_READY: &str = "node-ready";
/// Controller step: uncordon the node.
pub const STEP_UNCORDON: &str = "uncordon";

/// Names of all steps of an update in order: the steps of the plan, with cordon and drain before
/// the first step that requires a drained node, and the controller's check at the end.
pub fn step_names(plan: &[PlannedStep]) -> Vec<&str> {
    in_order(plan.iter().map(|step| (step.gate, step.id.as_str())))
}

fn in_order<'a>(steps: impl Iterator<Item = (Gate, &'a str)>) -> Vec<&'a str> {
    let (before, after): (Vec<_>, Vec<_>) = steps.partition(|(gate, _)| *gate < Gate::Disrupt);
    before
        .into_iter()
        .map(|(_, name)| name)
        .chain([STEP_CORDON, STEP_DRAIN])
        .chain(after.into_iter().map(|(_, name)| name))
        .chain([STEP_NODE_READY, STEP_UNCORDON])
        .collect()
}

/// Updates the list of steps from the steps of the updater.
pub(super) fn mirror(status: &mut NodeUpdateStatus, work: &[WorkStep]) {
    let old = std::mem::take(&mut status.steps);
    let reported = |name: &str| work.iter().find(|step| step.name == name)?.status.clone();
    let known = |name: &str| old.iter().find(|step| step.name == name).cloned();
    let new = |name: &str| StepStatus { name: name.to_owned(), ..StepStatus::default() };
    status.steps = in_order(work.iter().map(|step| (step.gate, step.name.as_str())))
        .into_iter()
        .map(|name| reported(name).or_else(|| known(name)).unwrap_or_else(|| new(name)))
        .collect();
}

/// A step as it is known before anything is reported of it; the controller's own steps as they are.
pub(super) fn without_report(step: &StepStatus) -> StepStatus {
    if [STEP_CORDON, STEP_DRAIN, STEP_NODE_READY, STEP_UNCORDON].contains(&step.name.as_str()) {
        return step.clone();
    }
    StepStatus { name: step.name.clone(), ..StepStatus::default() }
}

/// State of a step; `Pending` if it is not listed.
pub(super) fn state_of(status: &NodeUpdateStatus, name: &str) -> StepState {
    let step = status.steps.iter().find(|step| step.name == name);
    step.map(|step| step.state).unwrap_or_default()
}

/// When a step was first attempted.
pub(super) fn started(status: &NodeUpdateStatus, name: &str) -> Option<Timestamp> {
    let step = status.steps.iter().find(|step| step.name == name)?;
    step.started_at.as_ref().map(|time| time.0)
}

/// Advances one of the controller's steps. A step that has ended does not change.
pub(super) fn advance(
    status: &mut NodeUpdateStatus,
    name: &str,
    state: StepState,
    now: Timestamp,
    message: &str,
) {
    let Some(step) = status.steps.iter_mut().find(|step| step.name == name) else {
        return;
    };
    let ended = |state| {
        matches!(
            state,
            StepState::Done | StepState::Skipped | StepState::Failed | StepState::Undone
        )
    };
    if step.state == state || ended(step.state) {
        return;
    }
    step.state = state;
    message.clone_into(&mut step.message);
    if state != StepState::Skipped {
        step.attempt = 1;
        step.started_at.get_or_insert(Time(now));
    }
    if ended(state) {
        step.finished_at = Some(Time(now));
    }
}

/// Forgets that one of the controller's steps has begun.
pub(super) fn reset(status: &mut NodeUpdateStatus, name: &str) {
    if let Some(step) = status.steps.iter_mut().find(|step| step.name == name) {
        *step = StepStatus { name: name.to_owned(), ..StepStatus::default() };
    }
}

/// Progress, and the remaining time predicted from past durations.
///
/// It changes only when a step does: a status that counted seconds would be written every second.
pub(super) fn progress(steps: &[StepStatus], durations: &[StepDurations]) -> Option<Progress> {
    if steps.is_empty() {
        return None;
    }
    let past: Vec<Option<i32>> =
        steps.iter().map(|step| median_seconds(durations, &step.name)).collect();
    let ended = |step: &StepStatus| step.state.is_done_or_skipped();
    // If every step has past durations, each is weighted by them; otherwise all count the same.
    let weighted = past.iter().all(Option::is_some);
    let weight = |seconds: &Option<i32>| {
        if weighted { i64::from(seconds.unwrap_or_default().max(1)) } else { 1 }
    };
    let total: i64 = past.iter().map(weight).sum();
    let done: i64 =
        steps.iter().zip(&past).filter(|(step, _)| ended(step)).map(|(_, s)| weight(s)).sum();
    let percent = i32::try_from(done * 100 / total.max(1)).unwrap_or_default();
    let known = past.iter().any(Option::is_some);
    let rest: i64 = steps
        .iter()
        .zip(&past)
        .filter(|(step, _)| !ended(step))
        .map(|(_, seconds)| i64::from(seconds.unwrap_or_default()))
        .sum();
    Some(Progress {
        percent,
        remaining_seconds: known.then(|| i32::try_from(rest).unwrap_or(i32::MAX)),
    })
}
