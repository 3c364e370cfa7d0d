//! The response to UpdateMachine: how a request stands, in words and seconds.

use jiff::Timestamp;
use refit_kinds::{
    keys,
    refit::{Goal, NodeUpdate, NodeUpdateStatus, Phase, StepState, StepStatus},
    version::StatedVersion,
};

use crate::{
    ask::{Wait, is_stopping},
    report::{Reason, RefusalReason},
};

/// Shortest interval between two calls for the same Machine.
pub const RETRY_MIN_SECONDS: i32 = 1;
/// Longest interval between two calls: it limits how old the message on the Machine can be.
pub const RETRY_MAX_SECONDS: i32 = 15;
/// Interval between two calls if there is no prediction yet.
const RETRY_UNKNOWN_SECONDS: i32 = 5;
/// How long the last phases of an update usually take at most, in seconds.
const LAST_PHASES_SECONDS: i64 = 60;

/// The response to UpdateMachine. It is always a Success: for a Failure, Cluster API hides the
/// message (`docs/facts/machine.md#in-place-update`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Message to show. It changes with the step, not every second.
    pub message: String,
    /// Zero only if the goal is reached.
    pub retry_after_seconds: i32,
}

impl Answer {
    /// The goal is reached.
    pub fn done() -> Self {
        Self { message: String::new(), retry_after_seconds: 0 }
    }

    /// The goal is not reached: Cluster API calls again after `seconds`, at least 1 and at most 15.
    pub fn retry(message: impl Into<String>, seconds: i32) -> Self {
        Self {
            message: message.into(),
            retry_after_seconds: seconds.clamp(RETRY_MIN_SECONDS, RETRY_MAX_SECONDS),
        }
    }

    /// Whether the goal is reached.
    pub fn is_done(&self) -> bool {
        self.retry_after_seconds == 0
    }
}

/// The response to a request that waits, for a Machine of this name.
pub fn waiting(wait: &Wait<'_>, machine: &str, goal: &Goal, now: Timestamp) -> Answer {
    match wait {
        Wait::Deletion => {
            let text = format!("stopped: Machine {machine} is being deleted");
            Answer::retry(text, RETRY_MAX_SECONDS)
        }
        Wait::Report => {
            let version = StatedVersion::from(goal.kubernetes_version.clone());
            let text = format!("waiting until Machine {machine} reports kubelet {version}");
            Answer::retry(text, RETRY_UNKNOWN_SECONDS)
        }
        Wait::Members => {
            Answer::retry("waiting until the group has all its Machines", RETRY_UNKNOWN_SECONDS)
        }
        Wait::Running(update) => running(update, now),
        Wait::Failed(update) => failed(update),
        Wait::Stopped(update) => stopped(update),
        Wait::Stopping(update) => {
            let text = format!("waiting for {} to stop", named(update));
            Answer::retry(text, RETRY_UNKNOWN_SECONDS)
        }
        Wait::Finishing(update) => {
            let text =
                format!("waiting for {} to finish first: {}", named(update), progress(update));
            Answer::retry(text, RETRY_UNKNOWN_SECONDS)
        }
    }
}

/// The response while a stop of this NodeUpdate is requested.
pub fn stopping(update: &NodeUpdate) -> Answer {
    let text = format!("stopping {}: the goal has changed", named(update));
    Answer::retry(text, RETRY_MIN_SECONDS)
}

fn named(update: &NodeUpdate) -> String {
    let name = View::of(update).name;
    format!("NodeUpdate {name} to {}", update.spec.target())
}

struct View<'a> {
    name: &'a str,
    phase: Phase,
    message: &'a str,
}

impl<'a> View<'a> {
    fn of(update: &'a NodeUpdate) -> Self {
        let status = update.status.as_ref();
        Self {
            name: update.metadata.name.as_deref().unwrap_or_default(),
            phase: status.map(|s| s.phase).unwrap_or_default(),
            message: status.map_or("", |s| s.message.as_str()),
        }
    }
}

fn running(update: &NodeUpdate, now: Timestamp) -> Answer {
    if is_stopping(update) {
        return Answer::retry("stopping at the next safe step", RETRY_UNKNOWN_SECONDS);
    }
    let status = update.status.as_ref();
    let seconds = status.and_then(|status| seconds_to_next_call(status, now));
    Answer::retry(progress(update), seconds.unwrap_or(RETRY_UNKNOWN_SECONDS))
}

/// What an update does or waits for. Cluster API copies it into a condition and asks for the same
/// text in the same state: so without counters, times and percentages
/// (`docs/facts/hooks.md#requests-and-responses`).
fn progress(update: &NodeUpdate) -> String {
    let View { phase, message, .. } = View::of(update);
    let Some(status) = &update.status else {
        return "pending".to_owned();
    };
    if let Some(blocker) = status.blocked_by.first() {
        let counts =
            Reason::of(&blocker.reason) == Some(Reason::Update(RefusalReason::GroupUnavailable));
        return match (counts, blocker.message.as_str()) {
            (true, _) => "waiting until enough other machines of the group are available".into(),
            (false, "") => format!("waiting for {}: {}", blocker.object, blocker.reason),
            (false, message) => message.to_owned(),
        };
    }
    let tried = |step: &&StepStatus| {
        !step.message.is_empty() && matches!(step.state, StepState::Running | StepState::Pending)
    };
    match (phase, status.steps.iter().find(tried)) {
        (_, Some(step)) => format!("step {} is tried again: {}", step.name, step.message),
        (Phase::Draining, None) => "draining the node".to_owned(),
        (_, None) if message.is_empty() => format!("{phase:?}").to_lowercase(),
        (_, None) => message.to_owned(),
    }
}

/// When Cluster API should call again, from the predicted remaining time. Cluster API never calls
/// earlier than requested, so it does not notice an end in between
/// (`docs/facts/machine.md#in-place-update`, step 8). The wait is half of the remaining time, or
/// half of the delay if the update is late. `None` if there is no prediction.
///
/// The prediction changes only with a step, so the time since the last step change is subtracted.
/// It may come from another machine's clock: a wrong clock costs at most the longest interval.
///
/// Without a prediction, the end is near while the last phases are as short as they usually are.
fn seconds_to_next_call(status: &NodeUpdateStatus, now: Timestamp) -> Option<i32> {
    let moved = |step: &StepStatus| Some(step.finished_at.as_ref().or(step.started_at.as_ref())?.0);
    let since = status.steps.iter().filter_map(moved).filter(|time| *time <= now).max();
    let gone = since.map(|since| now.duration_since(since).as_secs());
    let Some(rest) = status.progress.as_ref().and_then(|progress| progress.remaining_seconds)
    else {
        let is_last = matches!(status.phase, Phase::Verifying | Phase::Uncordoning);
        let is_near = is_last && gone.is_some_and(|gone| gone < LAST_PHASES_SECONDS);
        return is_near.then_some(RETRY_MIN_SECONDS);
    };
    // Waiting for a slot or for pods does not bring the end closer.
    let on_its_way = matches!(
        status.phase,
        Phase::Upgrading | Phase::Disrupting | Phase::Verifying | Phase::Uncordoning
    );
    let gone = gone.filter(|_| on_its_way).unwrap_or_default();
    let left = i64::from(rest.max(0)) - gone;
    Some(i32::try_from(left.unsigned_abs().div_ceil(2)).unwrap_or(i32::MAX))
}

fn failed(update: &NodeUpdate) -> Answer {
    let name = View::of(update).name;
    let status = update.status.as_ref();
    let reason = status.map_or("", |s| s.failure_reason.as_str());
    let reason = if reason.is_empty() { "Unknown" } else { reason };
    let details = match status.map_or("", |s| s.failure_message.as_str()) {
        "" => format!("see NodeUpdate {name}."),
        message if message.ends_with('.') => message.to_owned(),
        message => format!("{message}."),
    };
    let text = format!(
        "failed: {reason}; {details} To try again, annotate the Machine with {}={name}",
        keys::RETRY
    );
    Answer::retry(text, RETRY_MAX_SECONDS)
}

fn stopped(update: &NodeUpdate) -> Answer {
    let View { name, message, .. } = View::of(update);
    let cause = if message.is_empty() {
        format!("NodeUpdate {name} was aborted")
    } else {
        message.trim_end_matches('.').to_owned()
    };
    let text =
        format!("stopped: {cause}. To continue, annotate the Machine with {}={name}", keys::RETRY);
    Answer::retry(text, RETRY_MAX_SECONDS)
}
