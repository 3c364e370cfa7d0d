//! The response to UpdateMachine, and which NodeUpdate to create or stop first.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    keys,
    refit::{
        Goal, MachineUid, NodeUpdate, NodeUpdateStatus, Phase, Stage, StepState, StepStatus,
        ordinal_of,
    },
    version::KubernetesVersion,
};

use crate::{
    node::{HOST_LOST, MEMBER_MISSING, SUPERSEDED, is_past_return, newest},
    report::{Reason, RefusalReason},
};

/// Shortest interval between two calls for the same Machine.
pub const RETRY_MIN_SECONDS: i32 = 1;
/// Longest interval between two calls: it limits how old the message on the Machine can be.
pub const RETRY_MAX_SECONDS: i32 = 15;
/// Interval between two calls if there is no prediction yet.
const RETRY_UNKNOWN_SECONDS: i32 = 5;
/// How long the Machine's own status may lag after its NodeUpdate, which checked the Node itself,
/// has succeeded. After that, the status is trusted: the host was changed by other means.
const REPORT_LAG: SignedDuration = SignedDuration::from_secs(300);

/// Known facts about the Machine itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Its name.
    pub name: String,
    /// Its uid: a NodeUpdate with another uid belongs to another Machine.
    pub uid: MachineUid,
    /// The version that its kubelet reports.
    pub kubelet_version: Option<KubernetesVersion>,
    /// Value of the annotation that requests another attempt.
    pub retry: Option<String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether the agent on its host has reported recently.
    pub host_reports: bool,
    /// Whether its group has fewer Machines than its owner asks for.
    pub lacks_member: bool,
}

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

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Respond and write nothing.
    Answer(Answer),
    /// Create the NodeUpdate with this ordinal. Its creation is the compare-and-swap: if it already
    /// exists, read it and decide again.
    Create {
        /// Ordinal of the NodeUpdate.
        ordinal: u32,
    },
    /// Request a stop of this NodeUpdate, and respond meanwhile.
    Abort {
        /// Name of the NodeUpdate.
        name: String,
        /// The response.
        answer: Answer,
    },
}

/// Decides what to do about a request for `goal` on this Machine, given the known NodeUpdates.
///
/// The newest NodeUpdate of the Machine's uid determines the response, and none is created while an
/// older one is unfinished: an operator may have created the newest. The list may be out of date: a
/// NodeUpdate is created by its ordinal, so it can be created only once.
pub fn decide(
    machine: &MachineFacts,
    goal: &Goal,
    updates: &[&NodeUpdate],
    now: Timestamp,
) -> Decision {
    let decision = by_newest(machine, goal, updates, now);
    let unfinished = updates.iter().find(|update| {
        update.spec.machine_ref.uid == machine.uid && !View::of(update).phase.is_final()
    });
    match (&decision, unfinished) {
        (Decision::Create { .. }, Some(older)) if older.spec.goal == *goal => {
            Decision::Answer(running(older, now))
        }
        (Decision::Create { .. }, Some(older)) => supersede(older),
        (Decision::Create { .. } | Decision::Answer(_) | Decision::Abort { .. }, _) => decision,
    }
}

fn by_newest(
    machine: &MachineFacts,
    goal: &Goal,
    updates: &[&NodeUpdate],
    now: Timestamp,
) -> Decision {
    if machine.deleting {
        let text = format!("stopped: Machine {} is being deleted", machine.name);
        return Decision::Answer(Answer::retry(text, RETRY_MAX_SECONDS));
    }
    let create = || Decision::Create { ordinal: next_ordinal(machine, updates) };
    let Some(newest) = newest(updates.iter().copied(), &machine.uid) else {
        return create();
    };
    let View { name, phase, .. } = View::of(newest);
    let retry_asked = machine.retry.as_deref() == Some(name);
    if newest.spec.goal == *goal {
        return match phase {
            Phase::Succeeded => succeeded(machine, goal, newest, now).unwrap_or_else(create),
            Phase::Failed | Phase::Stopped if retry_asked => create(),
            // It stopped for a goal that no one wants any more.
            Phase::Stopped if ended_with(newest, SUPERSEDED) => create(),
            Phase::Stopped if ended_with(newest, MEMBER_MISSING) && !machine.lacks_member => {
                create()
            }
            Phase::Stopped if ended_with(newest, MEMBER_MISSING) => {
                let text = "waiting until the group has all its Machines";
                Decision::Answer(Answer::retry(text, RETRY_UNKNOWN_SECONDS))
            }
            // The host is back: the next update adopts what it finds there.
            Phase::Failed if ended_with(newest, HOST_LOST) && machine.host_reports => create(),
            Phase::Failed => Decision::Answer(failed(newest)),
            Phase::Stopped => Decision::Answer(stopped(newest)),
            Phase::Pending
            | Phase::Waiting
            | Phase::Staging
            | Phase::Upgrading
            | Phase::Draining
            | Phase::Disrupting
            | Phase::Verifying
            | Phase::Uncordoning
            | Phase::Stopping => Decision::Answer(running(newest, now)),
        };
    }
    if !phase.is_final() {
        return supersede(newest);
    }
    create()
}

fn ended_with(update: &NodeUpdate, reason: &str) -> bool {
    update.status.as_ref().is_some_and(|status| status.failure_reason == reason)
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

/// One past the highest ordinal in use, even if another Machine with this name used it.
fn next_ordinal(machine: &MachineFacts, updates: &[&NodeUpdate]) -> u32 {
    updates
        .iter()
        .filter_map(|update| ordinal_of(update.metadata.name.as_deref()?, &machine.name))
        .max()
        .unwrap_or(0)
        .saturating_add(1)
}

/// Done, or waiting for the Machine's own status; `None` if the work must be repeated.
fn succeeded(
    machine: &MachineFacts,
    goal: &Goal,
    update: &NodeUpdate,
    now: Timestamp,
) -> Option<Decision> {
    if machine.kubelet_version.as_ref() == Some(&goal.kubernetes_version) {
        return Some(Decision::Answer(Answer::done()));
    }
    let finished = update.status.as_ref().and_then(|s| s.finished_at.as_ref());
    let may_lag = finished.is_none_or(|t| now.duration_since(t.0) < REPORT_LAG);
    if machine.kubelet_version.is_some() && !may_lag {
        return None;
    }
    let text = format!(
        "waiting until Machine {} reports kubelet {}",
        machine.name, goal.kubernetes_version
    );
    Some(Decision::Answer(Answer::retry(text, RETRY_UNKNOWN_SECONDS)))
}

fn running(update: &NodeUpdate, now: Timestamp) -> Answer {
    if update.spec.stage == Stage::Abort && !update.status.as_ref().is_some_and(is_past_return) {
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
fn seconds_to_next_call(status: &NodeUpdateStatus, now: Timestamp) -> Option<i32> {
    let rest = status.progress.as_ref()?.remaining_seconds?.max(0);
    // Waiting for a slot or for pods does not bring the end closer.
    let on_its_way = matches!(
        status.phase,
        Phase::Upgrading | Phase::Disrupting | Phase::Verifying | Phase::Uncordoning
    );
    let moved = |step: &StepStatus| Some(step.finished_at.as_ref().or(step.started_at.as_ref())?.0);
    let times = status.steps.iter().filter_map(moved);
    let since = times.filter(|time| on_its_way && *time <= now).max();
    let gone = since.map_or(0, |since| now.duration_since(since).as_secs());
    let left = i64::from(rest) - gone;
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

/// Another goal is requested while this NodeUpdate is unfinished: it is stopped if kubeadm has not
/// started, otherwise it must finish.
fn supersede(update: &NodeUpdate) -> Decision {
    let View { name, phase, .. } = View::of(update);
    let version = &update.spec.goal.kubernetes_version;
    if update.spec.stage == Stage::Abort && !update.status.as_ref().is_some_and(is_past_return) {
        let text = format!("waiting for NodeUpdate {name} to {version} to stop");
        return Decision::Answer(Answer::retry(text, RETRY_UNKNOWN_SECONDS));
    }
    if phase.is_undisturbed() {
        let text = format!("stopping NodeUpdate {name} to {version}: the goal has changed");
        return Decision::Abort {
            name: name.to_owned(),
            answer: Answer::retry(text, RETRY_MIN_SECONDS),
        };
    }
    let text =
        format!("waiting for NodeUpdate {name} to {version} to finish first: {}", progress(update));
    Decision::Answer(Answer::retry(text, RETRY_UNKNOWN_SECONDS))
}
