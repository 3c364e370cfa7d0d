//! Decides the next action, as pure functions of the journal, the plan and the current time.
//!
//! | journal | next |
//! |---|---|
//! | no plan, or one that has ended | accept the plan of the spec, if it is a different one |
//! | a newer gate or an abort is not recorded yet | record it |
//! | a step has started and not ended | check on it |
//! | a step failed for good | undo what is safe, end `Failed` |
//! | aborted, before the point of no return | undo what is safe, end `Stopped` |
//! | aborted, past it | continue up to the gate, end `Stopped` there |
//! | the next step needs a closed gate | wait |
//! | otherwise | start the next step, if the host's own policy allows the rest of the plan |

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::{
    Gate, HostPlan, HostPlanSpec, HostPlanStatus, HostStep, PlanId, PlanState, PlannedAction,
    PlannedStep, Role, StepError, StepRules, StepType, USUAL_ATTEMPTS,
};

use crate::{
    host::{Command, Job, Since},
    policy::PolicyRefusal,
    reason::TIMED_OUT,
    report::is_live,
    state::{AbortCause, JournalState, Progress, StepOutcome, StepRun, gate_of},
    undo::{UndoStep, undo_steps},
};

/// The longest backoff: a step is retried this soon after the cause of its failure has gone.
const BACKOFF_CEILING: SignedDuration = SignedDuration::from_secs(30);
/// The longest backoff of a download: a server that is away comes back within minutes, and all hosts
/// of a wave ask it.
const DOWNLOAD_BACKOFF_CEILING: SignedDuration = SignedDuration::from_secs(60);
/// Backoff after the first failed attempt. It doubles with each attempt, up to the ceiling.
const BACKOFF: SignedDuration = SignedDuration::from_secs(10);

/// How many attempts of kubeadm on a control plane are not counted because a reboot interrupted them, or the cluster was
/// not ready for them. The attempt after an interruption first restores the manifests that a power cut has damaged, and
/// without it a control plane would stay broken. Then its static pods need minutes until kubeadm can create a Job.
const FURTHER_ATTEMPTS: i32 = 5;

/// Why a step cannot be run at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidStep {
    /// This agent cannot run the step's action.
    #[error("step {step}: {error}")]
    Action {
        /// Id of the step.
        step: String,
        /// What is wrong with the action.
        error: StepError,
    },
    /// This host's own policy does not allow it.
    #[error("{0}")]
    Refused(PolicyRefusal),
    /// The step was started, but it is neither in the plan nor an undo step of the plan.
    #[error("step {step} was started, but the plan does not contain it")]
    Missing {
        /// Id of the step.
        step: String,
    },
}

/// The agent's next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing until the plan changes.
    Idle,
    /// Accept the plan of the spec.
    Accept {
        /// Id of the plan.
        plan: PlanId,
        /// Name of its NodeUpdate.
        node_update: String,
        /// The steps of the plan.
        steps: Vec<PlannedStep>,
        /// Id of the first step that cannot be rolled back. If empty, the step types decide.
        point_of_no_return: String,
    },
    /// Record that the plan may proceed up to a gate.
    SeeGate {
        /// The open gate.
        gate: Gate,
    },
    /// Record that the plan is to stop.
    SeeAbort {
        /// Why it is to stop.
        cause: AbortCause,
    },
    /// Wait until a gate opens.
    AtGate {
        /// Id of the waiting step.
        step: String,
        /// The gate that the step needs.
        gate: Gate,
    },
    /// Wait until a failed step may be retried.
    Backoff {
        /// Id of the step.
        step: String,
        /// End of the backoff.
        until: Timestamp,
    },
    /// Record that a step starts, then start it.
    Start {
        /// The job to start.
        job: Job,
        /// Number of the attempt, from 1.
        attempt: i32,
    },
    /// Check on a step that has started and not ended.
    Attend {
        /// The job that was started.
        job: Job,
        /// Number of the attempt.
        attempt: i32,
        /// State of the host when the step started.
        since: Since,
    },
    /// Record that a step cannot be run at all.
    Refuse {
        /// Id of the step.
        step: String,
        /// Number of the attempt that is refused.
        attempt: i32,
        /// Why it cannot be run.
        why: InvalidStep,
    },
    /// Record that the plan has ended.
    End {
        /// State in which it ended.
        state: PlanState,
    },
}

impl Next {
    /// Whether a step of the plan starts, now or once its gate opens. An undo step does not count.
    pub(crate) fn starts_a_step(&self) -> bool {
        match self {
            Self::Start { job, .. } => match job.command {
                Command::Step(_) => true,
                Command::Undo(_) => false,
            },
            Self::AtGate { .. } => true,
            Self::Idle
            | Self::Accept { .. }
            | Self::SeeGate { .. }
            | Self::SeeAbort { .. }
            | Self::Backoff { .. }
            | Self::Attend { .. }
            | Self::Refuse { .. }
            | Self::End { .. } => false,
        }
    }
}

/// Replaces the start of a step by a refusal if `refuses` returns one for any step that is left. All
/// of them are asked, so that a plan is refused before its first step, and a policy that becomes
/// stricter stops a plan before the node is drained and not after it.
pub(crate) fn restrict(
    state: &JournalState,
    next: Next,
    refuses: impl Fn(&PlannedStep) -> Option<PolicyRefusal>,
) -> Next {
    let Some(plan) = state.live().filter(|_| next.starts_a_step()) else {
        return next;
    };
    let mut left = plan.steps.iter().filter(|step| !plan.is_done(&step.id));
    let Some((step, why)) = left.find_map(|step| Some((&step.id, refuses(step)?))) else {
        return next;
    };
    let attempt = plan.runs.get(step).map_or(1, |run| run.attempt + 1);
    Next::Refuse { step: step.clone(), attempt, why: InvalidStep::Refused(why) }
}

/// Returns the next action. Without a spec (the API is unreachable) the journal alone decides.
pub(crate) fn next(state: &JournalState, spec: Option<&HostPlanSpec>, now: Timestamp) -> Next {
    let Some(plan) = state.live() else {
        return accept(state, spec);
    };
    if let Some(change) = spec.and_then(|spec| unrecorded_change(plan, spec)) {
        return change;
    }
    if let Some((id, run)) = plan.open() {
        return attend(plan, id, run);
    }
    let Some(step) = plan.next_step() else {
        return Next::End { state: PlanState::Succeeded };
    };
    // A later step than the next one is given up if it was refused in advance.
    if plan.steps.iter().any(|step| is_given_up(plan, &step.id)) {
        return undo(plan, now, PlanState::Failed);
    }
    // Check all steps before the first one starts: an unknown last step must not leave a host half
    // upgraded.
    let unknown = plan.steps.iter().find(|step| step.step().is_none());
    let step = unknown.filter(|_| plan.runs.is_empty()).unwrap_or(step);
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

/// Whether a plan was started by an earlier host of this name, or before the journal was removed: its
/// HostPlan reports progress that the journal does not know. This host was not drained for it.
pub(crate) fn is_of_earlier_host(state: &JournalState, plan: &HostPlan) -> bool {
    let known = state.plan.as_ref().is_some_and(|known| known.id == plan.spec.plan_id);
    let started = |status: &HostPlanStatus| {
        let ended = status.state != PlanState::Idle && !is_live(status.state);
        status.plan_id == plan.spec.plan_id
            && (ended || status.steps.iter().any(|step| step.attempt > 0))
    };
    !known && !plan.spec.plan_id.is_empty() && plan.status.as_ref().is_some_and(started)
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

/// Returns the gate or the abort in the spec that the journal does not record yet.
fn unrecorded_change(plan: &Progress, spec: &HostPlanSpec) -> Option<Next> {
    let cause = if spec.plan_id == plan.id {
        if spec.gate > plan.gate {
            return Some(Next::SeeGate { gate: spec.gate });
        }
        spec.abort.then_some(AbortCause::Requested)
    } else {
        // An empty spec means that the HostPlan was deleted and recreated: no reason to stop.
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

/// Returns the job that was started under this id, undo steps included.
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
    let wait = backoff(plan, step, attempt - 1);
    let retry_at = run.and_then(|run| run.finished_at?.checked_add(wait).ok());
    if let Some(until) = retry_at
        && now < until
        // After a clock was set back, the wait is still no longer than the backoff.
        && until.duration_since(now) <= wait
    {
        return Next::Backoff { step: step.to_owned(), until };
    }
    match job(&unit_name(&plan.id, step, attempt)) {
        Ok(job) => Next::Start { job, attempt },
        Err(why) => Next::Refuse { step: step.to_owned(), attempt, why },
    }
}

/// Rolls back what can be rolled back, then ends the plan.
fn undo(plan: &Progress, now: Timestamp, end: PlanState) -> Next {
    for step in undo_steps(plan) {
        if !plan.is_done(&step.id) && !is_given_up(plan, &step.id) {
            let id = step.id.clone();
            return try_step(plan, &id, now, |unit| Ok(undo_job(plan, step, unit)));
        }
    }
    Next::End { state: end }
}

/// Whether a step is not retried any more.
pub(crate) fn is_given_up(plan: &Progress, step: &str) -> bool {
    plan.runs.get(step).is_some_and(|run| {
        !run.is_open()
            && match run.outcome {
                Some(StepOutcome::FailedForGood) => true,
                Some(StepOutcome::Failed) => run.attempt >= max_attempts(plan, step, run),
                Some(StepOutcome::Done) | None => false,
            }
    })
}

/// Maximum attempts of a step: those of the plan, else the default of its step type. A download that
/// used its whole timeout is not repeated as often as one whose server did not respond: each attempt
/// may take an hour. On a control plane, attempts of kubeadm that failed for what passes are
/// [not counted](FURTHER_ATTEMPTS).
fn max_attempts(plan: &Progress, step: &str, run: &StepRun) -> i32 {
    let usual = step_rules(plan, step).map_or(USUAL_ATTEMPTS, |rules| rules.attempts);
    let usual = if run.reason == TIMED_OUT { usual.min(USUAL_ATTEMPTS) } else { usual };
    let step = plan.steps.iter().find(|known| known.id == step);
    let attempts = step.and_then(|step| step.max_attempts).unwrap_or(usual).max(1);
    if step.and_then(PlannedStep::step).is_some_and(upgrades_a_control_plane) {
        return attempts.saturating_add(run.passing.min(FURTHER_ATTEMPTS));
    }
    attempts
}

fn upgrades_a_control_plane(step: &HostStep) -> bool {
    matches!(
        step,
        HostStep::KubeadmUpgrade { role: Role::FirstControlPlane | Role::ControlPlane, .. }
    )
}

/// The rules of a step of the plan; `None` for an undo step.
fn step_rules(plan: &Progress, step: &str) -> Option<StepRules> {
    let step = plan.steps.iter().find(|known| known.id == step)?;
    step.step_type().map(StepType::rules)
}

fn backoff(plan: &Progress, step: &str, attempt: i32) -> SignedDuration {
    let is_download = step_rules(plan, step).is_some_and(|rules| rules.is_download());
    let ceiling = if is_download { DOWNLOAD_BACKOFF_CEILING } else { BACKOFF_CEILING };
    let doublings = u32::try_from(attempt - 1).unwrap_or_default().min(4);
    (BACKOFF * 2_i32.pow(doublings)).min(ceiling)
}

/// Name of the systemd unit of an attempt. It has only characters that need no escaping in systemd
/// and in file names.
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
