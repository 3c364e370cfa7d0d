//! The report to the API. It is derived from the journal and the host alone, so a restarted agent
//! reports the same.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    FailureKind, Gate, HostFacts, HostPlanSpec, HostPlanStatus, HostStepStatus, PlanId, PlanState,
    PlannedStep, REPORT_INTERVAL_SECONDS, StepState, StepType,
};
use strum::VariantArray as _;

use crate::{
    bounds::bounded,
    engine::is_given_up,
    host::HostError,
    journal::JournalError,
    state::{JournalState, Progress, StepOutcome, StepRun, gate_of},
    undo::{UNDO, left_behind, not_taken, undo_id},
};

/// Age at which an unchanged report is sent again.
pub(crate) const HEARTBEAT: SignedDuration = SignedDuration::from_secs(REPORT_INTERVAL_SECONDS);

/// How long a report of mere progress waits for more of it: a step often ends when the next one begins, and short
/// steps follow each other.
const PROGRESS_DELAY: SignedDuration = SignedDuration::from_secs(20);

/// A condition that keeps the agent from running or recording anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// A whole sentence.
    pub message: String,
    /// Whether manual intervention is required.
    pub needs_person: bool,
}

impl Trouble {
    /// Converts a journal error.
    pub(crate) fn of_journal(error: &JournalError) -> Self {
        let (reason, needs_person) = match error {
            JournalError::Corrupt { .. } => ("JournalCorrupt", true),
            // The installer may bring the newer agent back by itself.
            JournalError::Newer { .. } => ("JournalNewer", false),
            JournalError::Disk { .. } => ("JournalNotWritable", false),
        };
        Self { reason, message: error.to_string(), needs_person }
    }

    /// Converts an error of the host that keeps a plan from going on.
    pub(crate) fn of_host(error: &HostError) -> Self {
        Self { reason: "HostUnreadable", message: error.to_string(), needs_person: false }
    }
}

/// Builds the report, without its timestamp.
pub(crate) fn report(
    state: &JournalState,
    spec: Option<&HostPlanSpec>,
    facts: &HostFacts,
    trouble: Option<&Trouble>,
) -> HostPlanStatus {
    let mut status = HostPlanStatus {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        capabilities: StepType::VARIANTS.to_vec(),
        facts: facts.clone(),
        reported_at: None,
        plan_id: PlanId::default(),
        state: PlanState::Idle,
        passed: Gate::Closed,
        steps: Vec::new(),
        past_no_return: false,
        left_behind: Vec::new(),
    };
    if let Some(plan) = &state.plan {
        status.plan_id.clone_from(&plan.id);
        status.state = plan_state(plan);
        status.passed = plan.passed();
        status.steps = steps(plan);
        status.past_no_return = plan.past_no_return();
        status.left_behind = left_behind(plan).into_iter().map(|(_, sentence)| sentence).collect();
    }
    if let Some(trouble) = trouble {
        add_trouble(&mut status, spec, trouble);
    }
    bounded(status)
}

fn add_trouble(status: &mut HostPlanStatus, spec: Option<&HostPlanSpec>, trouble: &Trouble) {
    // A plan that the trouble keeps from being accepted replaces one that has ended.
    let awaited = spec.filter(|spec| !spec.plan_id.is_empty() && spec.plan_id != status.plan_id);
    if let Some(spec) = awaited.filter(|_| !is_live(status.state)) {
        *status = HostPlanStatus {
            plan_id: spec.plan_id.clone(),
            state: PlanState::Retrying,
            passed: Gate::Closed,
            steps: spec.steps.iter().map(pending).collect(),
            past_no_return: false,
            left_behind: Vec::new(),
            ..std::mem::take(status)
        };
    }
    if status.plan_id.is_empty() || !is_live(status.state) {
        return;
    }
    let step = status
        .steps
        .iter_mut()
        .find(|step| matches!(step.state, StepState::Pending | StepState::Running));
    if let Some(step) = step {
        trouble.reason.clone_into(&mut step.reason);
        step.message.clone_from(&trouble.message);
        step.failure = Some(if trouble.needs_person {
            FailureKind::NeedsPerson
        } else {
            FailureKind::Retriable
        });
        if trouble.needs_person {
            step.state = StepState::Failed;
        }
    }
    if trouble.needs_person {
        status.state = PlanState::Failed;
    }
}

/// Whether a plan has begun and not ended.
pub(crate) fn is_live(state: PlanState) -> bool {
    matches!(
        state,
        PlanState::Running | PlanState::AtGate | PlanState::Retrying | PlanState::Undoing
    )
}

fn plan_state(plan: &Progress) -> PlanState {
    if let Some(ended) = plan.ended {
        return ended;
    }
    if plan.runs.keys().any(|id| id.starts_with(UNDO)) {
        return PlanState::Undoing;
    }
    if let Some((_, run)) = plan.open() {
        return if run.attempt > 1 { PlanState::Retrying } else { PlanState::Running };
    }
    match plan.next_step() {
        Some(step) if plan.runs.contains_key(&step.id) => PlanState::Retrying,
        Some(step) if gate_of(step) > plan.gate => PlanState::AtGate,
        _ => PlanState::Running,
    }
}

fn steps(plan: &Progress) -> Vec<HostStepStatus> {
    let mut steps: Vec<HostStepStatus> = plan
        .steps
        .iter()
        .map(|step| match plan.runs.get(&step.id) {
            Some(run) => tried(plan, &step.id, run),
            None => pending(step),
        })
        .collect();
    if matches!(plan.ended, Some(PlanState::Stopped | PlanState::Failed)) {
        let why = not_taken(plan);
        for step in &mut steps {
            if step.state == StepState::Pending {
                step.state = StepState::Skipped;
                "NotReached".clone_into(&mut step.reason);
                step.message.clone_from(&why);
            }
        }
    }
    let undone = plan.runs.iter().filter(|(id, _)| id.starts_with(UNDO));
    steps.extend(undone.map(|(id, run)| tried(plan, id, run)));
    steps
}

fn pending(step: &PlannedStep) -> HostStepStatus {
    HostStepStatus { id: step.id.clone(), ..HostStepStatus::default() }
}

fn tried(plan: &Progress, id: &str, run: &StepRun) -> HostStepStatus {
    let state = match run.outcome {
        _ if run.is_open() => StepState::Running,
        Some(StepOutcome::Done) if plan.is_done(&undo_id(id)) => StepState::Undone,
        Some(StepOutcome::Done) => StepState::Done,
        _ if plan.ended.is_some() || is_given_up(plan, id) => StepState::Failed,
        _ => StepState::Running,
    };
    let over = matches!(state, StepState::Done | StepState::Failed | StepState::Undone);
    HostStepStatus {
        id: id.to_owned(),
        state,
        attempt: run.attempt,
        started_at: Some(time(run.first_started_at)),
        finished_at: run.finished_at.filter(|_| over).map(time),
        reason: run.reason.clone(),
        failure: run.failure,
        message: run.message.clone(),
    }
}

/// API objects carry whole seconds.
fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// When a report is due: at once if a decision may depend on what differs, later for mere progress, else at the next
/// heartbeat. `known` was reported last, `news_since` is when something first differed from it.
pub(crate) fn due_at(
    wanted: &HostPlanStatus,
    known: Option<&HostPlanStatus>,
    news_since: Option<Timestamp>,
    now: Timestamp,
) -> Timestamp {
    let Some(known) = known else {
        return now;
    };
    let Some(reported_at) = &known.reported_at else {
        return now;
    };
    // A report from the future was written before the clock was set back.
    if reported_at.0 > now {
        return now;
    }
    let later = |from: Timestamp, by| from.checked_add(by).unwrap_or(now);
    if !differs(wanted, known) {
        later(reported_at.0, HEARTBEAT)
    } else if is_mere_progress(wanted, known) {
        later(news_since.unwrap_or(now), PROGRESS_DELAY)
    } else {
        now
    }
}

/// Whether the report differs from the one that was sent last.
pub(crate) fn differs(wanted: &HostPlanStatus, known: &HostPlanStatus) -> bool {
    HostPlanStatus { reported_at: None, ..known.clone() } != *wanted
}

/// Whether the report shows nothing new but that the host carries out its plan, up to a gate that it has not passed.
fn is_mere_progress(wanted: &HostPlanStatus, known: &HostPlanStatus) -> bool {
    let before = if known.plan_id == wanted.plan_id {
        known.clone()
    } else {
        HostPlanStatus {
            plan_id: wanted.plan_id.clone(),
            passed: Gate::Closed,
            steps: Vec::new(),
            past_no_return: false,
            left_behind: Vec::new(),
            ..known.clone()
        }
    };
    let is_news = |step: &HostStepStatus| {
        let before = before.steps.iter().find(|other| other.id == step.id).cloned();
        let before = before.unwrap_or_default();
        (step.failure, &step.reason, &step.message)
            != (before.failure, &before.reason, &before.message)
            || step.attempt > before.attempt.max(1)
            || must_be_known(step) && step.attempt > before.attempt
    };
    let has_news = wanted.steps.iter().any(is_news);
    let as_before = HostPlanStatus {
        state: PlanState::Running,
        // A finished step changes what is installed.
        facts: wanted.facts.clone(),
        steps: wanted.steps.clone(),
        reported_at: None,
        ..before
    };
    as_before == *wanted && !has_news
}

/// A step whose beginning must be known even if the host reports nothing more: during a reboot it could otherwise
/// count as lost, and static pods that kubeadm may have changed as unchanged.
fn must_be_known(step: &HostStepStatus) -> bool {
    [StepType::Reboot, StepType::RebootIfRequired, StepType::KubeadmUpgrade]
        .into_iter()
        .any(|kind| kind.id() == step.id)
}

/// Returns the report with its timestamp.
pub(crate) fn stamped(wanted: &HostPlanStatus, now: Timestamp) -> HostPlanStatus {
    HostPlanStatus { reported_at: Some(time(now)), ..wanted.clone() }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
