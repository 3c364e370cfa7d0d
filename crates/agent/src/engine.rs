//! What comes next, as pure functions of the journal, the plan and the time.
//!
//! | journal says | next |
//! |---|---|
//! | no plan, or one that is over | take up the plan of the spec, if it is another |
//! | a further gate or an abort that it does not know | write that down |
//! | a step has no end | attend to it |
//! | a step failed for good | undo what is safe, end `Failed` |
//! | to stop, before the point of no return | undo what is safe, end `Stopped` |
//! | to stop, past it | go on up to the gate, end `Stopped` there |
//! | the next step needs a closed gate | wait |
//! | otherwise | start the next step |

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::{
    Gate, HostPlanSpec, PlanId, PlanState, PlannedAction, PlannedStep, StepError, USUAL_ATTEMPTS,
};

use crate::{
    host::{Command, Job, Since},
    state::{AbortCause, JournalState, Progress, StepOutcome, StepRun, gate_of},
    undo::{UndoStep, undo_steps},
};

/// The longest wait between two tries: so soon after its cause has gone a failure is over.
const BACKOFF_CEILING: SignedDuration = SignedDuration::from_secs(30);
/// Wait after the first failed try; it doubles with each, up to the ceiling.
const BACKOFF: SignedDuration = SignedDuration::from_secs(10);

/// Why a step cannot be taken at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidStep {
    /// Its action cannot be carried out by this agent.
    #[error("step {step}: {error}")]
    Action {
        /// The step.
        step: String,
        /// Why.
        error: StepError,
    },
    /// It was started, and is neither in the plan nor rolls back what is.
    #[error("step {step} was started, and the plan does not say what it is")]
    Missing {
        /// The step.
        step: String,
    },
}

/// What the agent is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing until the plan changes.
    Idle,
    /// Take up the plan of the spec.
    Accept {
        /// Its id.
        plan: PlanId,
        /// Name of its NodeUpdate.
        node_update: String,
        /// Its steps.
        steps: Vec<PlannedStep>,
        /// Id of the first step that cannot be taken back; empty: judged by the steps' types.
        point_of_no_return: String,
    },
    /// Write down that the plan may go further.
    SeeGate {
        /// How far.
        gate: Gate,
    },
    /// Write down that the plan is to stop.
    SeeAbort {
        /// Why.
        cause: AbortCause,
    },
    /// Wait until a gate opens.
    AtGate {
        /// The step that waits.
        step: String,
        /// The gate that it needs.
        gate: Gate,
    },
    /// Wait until a failed step may be tried again.
    Backoff {
        /// The step.
        step: String,
        /// Until when.
        until: Timestamp,
    },
    /// Write down that a step starts, then start it.
    Start {
        /// What to start.
        job: Job,
        /// Which try, from 1.
        attempt: i32,
    },
    /// A step has started and has no end yet: find out about it.
    Attend {
        /// What was started.
        job: Job,
        /// Which try.
        attempt: i32,
        /// What the host was like when it started.
        since: Since,
    },
    /// Write down that a step cannot be taken at all.
    Refuse {
        /// The step.
        step: String,
        /// Which try it would be.
        attempt: i32,
        /// Why.
        why: InvalidStep,
    },
    /// Write down that the plan is over.
    End {
        /// How.
        state: PlanState,
    },
}

/// What comes next. Without a spec (the API is gone) it goes on with what the journal knows.
pub(crate) fn next(state: &JournalState, spec: Option<&HostPlanSpec>, now: Timestamp) -> Next {
    let Some(plan) = state.live() else {
        return accept(state, spec);
    };
    if let Some(seen) = spec.and_then(|spec| see(plan, spec)) {
        return seen;
    }
    if let Some((id, run)) = plan.open() {
        return attend(plan, id, run);
    }
    let Some(step) = plan.next_step() else {
        return Next::End { state: PlanState::Succeeded };
    };
    // Before anything is done: a host must not be left half way because of the last step.
    let unknown = plan.steps.iter().find(|step| step.step().is_none());
    let unknown = unknown.filter(|step| plan.runs.is_empty() || is_given_up(plan, &step.id));
    let step = unknown.unwrap_or(step);
    if is_given_up(plan, &step.id) {
        return undo(plan, now, PlanState::Failed);
    }
    if let Err(why) = job(plan, step, "") {
        return Next::Refuse { step: step.id.clone(), attempt: 1, why };
    }
    let closed = gate_of(step) > plan.gate;
    if plan.abort.is_some() && (closed || !plan.past_no_return()) {
        return undo(plan, now, PlanState::Stopped);
    }
    if closed {
        return Next::AtGate { step: step.id.clone(), gate: gate_of(step) };
    }
    try_step(plan, &step.id, now, |unit| job(plan, step, unit))
}

fn accept(state: &JournalState, spec: Option<&HostPlanSpec>) -> Next {
    let known = state.plan.as_ref().map(|plan| &plan.id);
    match spec {
        Some(spec) if !spec.plan_id.is_empty() && Some(&spec.plan_id) != known => Next::Accept {
            plan: spec.plan_id.clone(),
            node_update: spec.node_update.clone(),
            steps: spec.steps.clone(),
            point_of_no_return: spec.point_of_no_return.clone(),
        },
        _ => Next::Idle,
    }
}

/// What the spec says that the journal does not know yet.
fn see(plan: &Progress, spec: &HostPlanSpec) -> Option<Next> {
    let cause = if spec.plan_id == plan.id {
        if spec.gate > plan.gate {
            return Some(Next::SeeGate { gate: spec.gate });
        }
        spec.abort.then_some(AbortCause::Requested)
    } else {
        // An empty spec is a HostPlan that was deleted and made again: no reason to stop.
        (!spec.plan_id.is_empty()).then_some(AbortCause::Superseded)
    };
    let cause = cause.filter(|_| plan.abort.is_none())?;
    Some(Next::SeeAbort { cause })
}

fn attend(plan: &Progress, id: &str, run: &StepRun) -> Next {
    match started_job(plan, id, &run.unit) {
        Ok(job) => Next::Attend {
            job,
            attempt: run.attempt,
            since: Since { at: run.started_at, boot_id: run.boot_id.clone() },
        },
        Err(why) => Next::Refuse { step: id.to_owned(), attempt: run.attempt, why },
    }
}

/// What was started under this id, undo steps included.
fn started_job(plan: &Progress, id: &str, unit: &str) -> Result<Job, InvalidStep> {
    if let Some(step) = plan.steps.iter().find(|step| step.id == id) {
        return job(plan, step, unit);
    }
    let undo = undo_steps(plan).into_iter().find(|step| step.id == id);
    let undo = undo.ok_or_else(|| InvalidStep::Missing { step: id.to_owned() })?;
    Ok(undo_job(plan, undo, unit))
}

fn undo_job(plan: &Progress, step: UndoStep, unit: &str) -> Job {
    Job::new(plan.id.clone(), unit, &step.id, Command::Undo(step.undo))
}

fn job(plan: &Progress, step: &PlannedStep, unit: &str) -> Result<Job, InvalidStep> {
    let command = match &step.action {
        PlannedAction::Known(known) => Command::Step(known.clone()),
        PlannedAction::Unknown(unknown) => {
            let error = unknown.error().clone();
            return Err(InvalidStep::Action { step: step.id.clone(), error });
        }
    };
    let mut job = Job::new(plan.id.clone(), unit, &step.id, command);
    if let Some(seconds) = step.timeout_seconds.and_then(|s| u32::try_from(s).ok()) {
        job.timeout_seconds = seconds.max(1);
    }
    Ok(job)
}

fn try_step(
    plan: &Progress,
    step: &str,
    now: Timestamp,
    job: impl FnOnce(&str) -> Result<Job, InvalidStep>,
) -> Next {
    let run = plan.runs.get(step);
    let attempt = run.map_or(1, |run| run.attempt + 1);
    if let Some(until) = run.and_then(retry_at)
        && now < until
        // A clock that was set back does not make anybody wait longer than the backoff.
        && until.duration_since(now) <= backoff(attempt - 1)
    {
        return Next::Backoff { step: step.to_owned(), until };
    }
    match job(&unit_name(&plan.id, step, attempt)) {
        Ok(job) => Next::Start { job, attempt },
        Err(why) => Next::Refuse { step: step.to_owned(), attempt, why },
    }
}

/// Takes back what can be taken back, then ends the plan.
fn undo(plan: &Progress, now: Timestamp, end: PlanState) -> Next {
    for step in undo_steps(plan) {
        if !plan.is_done(&step.id) && !is_given_up(plan, &step.id) {
            let id = step.id.clone();
            return try_step(plan, &id, now, |unit| Ok(undo_job(plan, step, unit)));
        }
    }
    Next::End { state: end }
}

/// Whether no further try of a step is made.
pub(crate) fn is_given_up(plan: &Progress, step: &str) -> bool {
    plan.runs.get(step).is_some_and(|run| {
        !run.is_open()
            && match run.outcome {
                Some(StepOutcome::FailedForGood) => true,
                Some(StepOutcome::Failed) => run.attempt >= max_attempts(plan, step),
                Some(StepOutcome::Done) | None => false,
            }
    })
}

/// How often a step is tried: as often as the plan says, else as often as its type deserves.
fn max_attempts(plan: &Progress, step: &str) -> i32 {
    let step = plan.steps.iter().find(|known| known.id == step);
    let usual = step.and_then(PlannedStep::step_type).map(|type_| type_.rules().attempts);
    let asked = step.and_then(|step| step.max_attempts);
    asked.or(usual).unwrap_or(USUAL_ATTEMPTS).max(1)
}

fn retry_at(run: &StepRun) -> Option<Timestamp> {
    let wait = backoff(run.attempt);
    run.finished_at.and_then(|at| at.checked_add(wait).ok())
}

fn backoff(attempt: i32) -> SignedDuration {
    let doublings = u32::try_from(attempt - 1).unwrap_or_default().min(4);
    (BACKOFF * 2_i32.pow(doublings)).min(BACKOFF_CEILING)
}

/// Name of the unit of an attempt. Only characters that systemd and file names take as they are.
pub(crate) fn unit_name(plan: &str, step: &str, attempt: i32) -> String {
    let clean = |text: &str| -> String {
        text.chars()
            .take(80)
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect()
    };
    format!("refit-{}-{}-{attempt}", clean(plan), clean(step))
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
