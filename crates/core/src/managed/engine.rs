//! The phases of an upgrade and its history, for each platform.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    refit::{MAX_HISTORY, SilenceState, UpgradePhase, UpgradeRecord},
    version::KubernetesVersion,
};

use super::{
    notifications::set_aside,
    steps::{Progress, Step, Worked, pass_over, work},
};

/// Reason of an upgrade that is being stopped.
const CANCELLING: &str = "Cancelling";

/// What is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The version that is worked on: see [`version_at_work`].
    pub version: KubernetesVersion,
    /// When it begins at the earliest; `None` for at once.
    pub start_at: Option<Timestamp>,
    /// For how long after that time it may begin; `None` for ever.
    pub start_within: Option<SignedDuration>,
    /// Whether it is to stop.
    pub stops: bool,
    /// Who requests it.
    pub by: Option<String>,
    /// Generation of the object that requests it.
    pub generation: i64,
    /// By now, another version is requested: this one is only finished.
    pub is_for_another: bool,
}

/// An upgrade that a platform has found to have ended, other than by its last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// CamelCase reason.
    pub reason: &'static str,
    /// How it has ended, as a sentence.
    pub message: String,
}

/// The steps before an upgrade is commenced, in order.
#[derive(Clone, Copy, Debug)]
pub enum Preparations<'a, S, W> {
    /// They are asked.
    Due(&'a [Step<S, W>]),
    /// The work of the upgrade has begun, and is finished whatever they would find.
    Behind(&'a [Step<S, W>]),
}

/// What a platform knows of its cluster.
#[derive(Clone, Debug)]
pub struct Facts<'a, S, W> {
    /// The version that the cluster has now, if it is known.
    pub current: Option<KubernetesVersion>,
    /// Whether all of the cluster has the requested version, and nothing is under way.
    pub is_current: bool,
    /// Whether a part of the cluster is known to have another version.
    pub lacks_version: bool,
    /// Whether it was commenced, and its end was requested.
    pub is_stopping: bool,
    /// When the upgrade was commenced, if it was: from then on it is finished.
    pub commenced: Option<Timestamp>,
    /// Why it has ended.
    pub ended: Option<Ended>,
    /// Why the request cannot be carried out: a reason and a sentence.
    pub invalid: Option<(&'static str, String)>,
    /// The steps before the upgrade is commenced.
    pub preparations: Preparations<'a, S, W>,
    /// The steps after them, in order.
    pub steps: &'a [Step<S, W>],
    /// How far the end of an upgrade is that was commenced and is to stop.
    pub stop: fn(&S) -> Progress<W>,
    /// What the steps are decided on.
    pub known: &'a S,
    /// The time of the look.
    pub now: Timestamp,
}

/// What the condition Ready shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Whether the cluster has the version.
    pub is_ready: bool,
    /// CamelCase reason.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// What a look has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked<W> {
    /// The history, the newest first.
    pub history: Vec<UpgradeRecord>,
    /// What the object shows.
    pub ready: Ready,
    /// What is to be written now.
    pub writes: Vec<W>,
    /// When the next look is due, apart from changes.
    pub again: Option<Timestamp>,
    /// When the upgrade is to begin.
    pub begins_at: Timestamp,
    /// The record before, unless the upgrade begins with this look, for the first time or again.
    pub before: Option<UpgradeRecord>,
}

/// The version that is worked on: the requested one, or one before that was commenced, which is finished first.
pub fn version_at_work<'a>(
    history: &'a [UpgradeRecord],
    requested: &'a KubernetesVersion,
    was_commenced: impl Fn(&UpgradeRecord) -> bool,
) -> &'a KubernetesVersion {
    let mut under_way = history.iter().filter(|record| record.phase == UpgradePhase::Upgrading);
    under_way.find(|record| was_commenced(record)).map_or(requested, |record| &record.version)
}

/// Decides what is next, from the history so far.
pub fn look<S, W>(
    history: &[UpgradeRecord],
    request: &Request,
    facts: &Facts<'_, S, W>,
) -> Looked<W> {
    let known = history.iter().find(|record| record.version == request.version);
    let begins_again = |record: &UpgradeRecord| {
        let is_requested_again = record.generation < request.generation && !request.stops;
        is_requested_again
            && match record.phase {
                UpgradePhase::New | UpgradePhase::Pending | UpgradePhase::Upgrading => false,
                // It may have been given another version since.
                UpgradePhase::Completed => facts.lacks_version,
                UpgradePhase::Failed => true,
            }
    };
    let before = known.filter(|record| !begins_again(record)).cloned();
    let mut record = match before.clone() {
        Some(record) if record.phase == UpgradePhase::Completed => {
            // This request was for what the cluster has: later changes of the cluster are not for it.
            UpgradeRecord { generation: request.generation, ..record }
        }
        Some(record) => record,
        None => first(history, request, facts),
    };
    let (ready, writes, again) = advance(&mut record, request, facts);
    let begins_at = begins_at(&record, request);
    // What has not begun is not what became of the cluster.
    let others =
        history.iter().filter(|other| other.version != request.version && other.phase.has_ended());
    let history = [record].into_iter().chain(others.cloned()).take(MAX_HISTORY).collect();
    Looked { history, ready, writes, again, begins_at, before }
}

/// The record of an upgrade that was just requested, or that has begun and has lost its record.
fn first<S, W>(
    history: &[UpgradeRecord],
    request: &Request,
    facts: &Facts<'_, S, W>,
) -> UpgradeRecord {
    let other = |version: &&KubernetesVersion| **version != request.version;
    let known = history.iter().find(|record| record.version == request.version);
    let before = || known.and_then(|record| record.preceding_version.clone());
    let completed = || {
        let mut done = history.iter().filter(|record| record.phase == UpgradePhase::Completed);
        done.find(|record| record.version != request.version).map(|record| record.version.clone())
    };
    // What could not be removed is still to be.
    let mut silences = known.map(|record| record.silences.clone()).unwrap_or_default();
    silences.retain(|silence| silence.state == SilenceState::Active);
    // What was not delivered is to be as well.
    let mut notifications = known.map(|record| record.notifications.clone()).unwrap_or_default();
    set_aside(&mut notifications);
    UpgradeRecord {
        version: request.version.clone(),
        preceding_version: facts
            .current
            .as_ref()
            .filter(other)
            .cloned()
            .or_else(before)
            .or_else(completed),
        hops: Vec::new(),
        phase: if facts.commenced.is_some() { UpgradePhase::Upgrading } else { UpgradePhase::New },
        reason: String::new(),
        message: String::new(),
        conditions: Vec::new(),
        requested_time: Time(facts.commenced.unwrap_or(facts.now)),
        requested_by: request.by.clone(),
        start_time: facts.commenced.map(Time),
        complete_time: None,
        worker_start_time: None,
        worker_complete_time: None,
        task: None,
        extra_capacity: None,
        silences,
        notifications,
        generation: request.generation,
    }
}

type Next<W> = (Ready, Vec<W>, Option<Timestamp>);

fn advance<S, W>(
    record: &mut UpgradeRecord,
    request: &Request,
    facts: &Facts<'_, S, W>,
) -> Next<W> {
    // What is being stopped is stopped first: a request that came meanwhile begins after that.
    let is_ending = is_cancelling(record) || facts.is_stopping;
    let is_for_this = (!is_ending || request.stops) && !request.is_for_another;
    if !record.phase.has_ended() && is_for_this {
        record.generation = request.generation;
        record.requested_by.clone_from(&request.by);
    }
    let has_commenced = facts.commenced.is_some();
    match record.phase {
        // It was commenced, and the record of that was lost.
        UpgradePhase::New | UpgradePhase::Pending if has_commenced => {
            record.phase = UpgradePhase::Upgrading;
            record.start_time = facts.commenced.map(Time);
            upgrade(record, request, facts)
        }
        UpgradePhase::New | UpgradePhase::Pending => wait_for_time(record, request, facts),
        // It was put off while it waited.
        UpgradePhase::Upgrading
            if !has_commenced
                && !is_cancelling(record)
                && facts.now < begins_at(record, request) =>
        {
            (record.start_time, record.task) = (None, None);
            record.conditions.clear();
            wait_for_time(record, request, facts)
        }
        UpgradePhase::Upgrading => upgrade(record, request, facts),
        UpgradePhase::Completed => (completed(record), Vec::new(), None),
        UpgradePhase::Failed => (failed(record), Vec::new(), None),
    }
}

fn wait_for_time<S, W>(
    record: &mut UpgradeRecord,
    request: &Request,
    facts: &Facts<'_, S, W>,
) -> Next<W> {
    record.phase = UpgradePhase::Pending;
    if request.stops {
        let message = "it was stopped on request before it had begun";
        return fail(record, "Cancelled", message.to_owned(), facts.now);
    }
    let begins = begins_at(record, request);
    if facts.now < begins {
        let ready = match &facts.invalid {
            Some((reason, message)) => not_ready(reason, message.clone()),
            None => not_ready("Scheduled", format!("it begins at {begins}")),
        };
        return (ready, Vec::new(), Some(begins));
    }
    if facts.is_current {
        return complete(record, facts.now);
    }
    if let Some(late) = too_late(record, request, facts) {
        return late;
    }
    if let Some((reason, message)) = &facts.invalid {
        return (not_ready(reason, message.clone()), Vec::new(), ends_at(record, request));
    }
    record.phase = UpgradePhase::Upgrading;
    record.start_time = Some(Time(facts.now));
    upgrade(record, request, facts)
}

fn upgrade<S, W>(
    record: &mut UpgradeRecord,
    request: &Request,
    facts: &Facts<'_, S, W>,
) -> Next<W> {
    if request.stops || is_cancelling(record) {
        let stopped = match facts.commenced {
            Some(_) => (facts.stop)(facts.known),
            None => Progress::Done,
        };
        return match stopped {
            Progress::Done | Progress::Unneeded => {
                fail(record, "Cancelled", "it was stopped on request".to_owned(), facts.now)
            }
            Progress::NotYet { why, writes } | Progress::Error { why, writes } => {
                (cancelling(record, why), writes, None)
            }
        };
    }
    if let Some(Ended { reason, message }) = &facts.ended {
        return fail(record, reason, message.clone(), facts.now);
    }
    if facts.commenced.is_none()
        && let Some(late) = too_late(record, request, facts)
    {
        return late;
    }
    let prepared = match facts.preparations {
        Preparations::Due(steps) => work(steps, facts.known, &mut record.conditions, facts.now),
        Preparations::Behind(steps) => {
            pass_over(steps, &mut record.conditions);
            Worked::Complete
        }
    };
    let worked = match prepared {
        Worked::Complete => work(facts.steps, facts.known, &mut record.conditions, facts.now),
        Worked::At { .. } => prepared,
    };
    match worked {
        Worked::Complete => complete(record, facts.now),
        Worked::At { reason, message, writes } => {
            let again = facts.commenced.is_none().then(|| ends_at(record, request)).flatten();
            (not_ready(reason, message), writes, again)
        }
    }
}

/// Whether an upgrade that was commenced is being stopped.
pub(super) fn is_cancelling(record: &UpgradeRecord) -> bool {
    record.phase == UpgradePhase::Upgrading && record.reason == CANCELLING
}

fn cancelling(record: &mut UpgradeRecord, why: String) -> Ready {
    CANCELLING.clone_into(&mut record.reason);
    not_ready(CANCELLING, why)
}

fn begins_at(record: &UpgradeRecord, request: &Request) -> Timestamp {
    request.start_at.unwrap_or(record.requested_time.0)
}

/// The first moment at which the upgrade may not begin any more.
fn ends_at(record: &UpgradeRecord, request: &Request) -> Option<Timestamp> {
    begins_at(record, request).checked_add(request.start_within?).ok()
}

/// Ends an upgrade that was not begun in time.
fn too_late<S, W>(
    record: &mut UpgradeRecord,
    request: &Request,
    facts: &Facts<'_, S, W>,
) -> Option<Next<W>> {
    let until = ends_at(record, request).filter(|until| *until <= facts.now)?;
    let from = begins_at(record, request);
    let step = record.conditions.iter().find(|step| step.status != "True");
    let why = match (&facts.invalid, step) {
        (Some((_, message)), _) => format!(", because {message}"),
        (None, Some(step)) => format!(", because of {}: {}", step.type_, step.message),
        (None, None) => String::new(),
    };
    let message = format!("it did not begin between {from} and {until}{why}. Nothing was changed");
    Some(fail(record, "NotBegunInTime", message, facts.now))
}

fn fail<W>(record: &mut UpgradeRecord, reason: &str, message: String, now: Timestamp) -> Next<W> {
    record.phase = UpgradePhase::Failed;
    reason.clone_into(&mut record.reason);
    record.message = message;
    record.complete_time = Some(Time(now));
    (failed(record), Vec::new(), None)
}

fn complete<W>(record: &mut UpgradeRecord, now: Timestamp) -> Next<W> {
    record.phase = UpgradePhase::Completed;
    record.complete_time = Some(Time(now));
    (completed(record), Vec::new(), None)
}

fn completed(record: &UpgradeRecord) -> Ready {
    let version = &record.version;
    let message = if record.start_time.is_some() {
        format!("the cluster is upgraded to {version}")
    } else {
        format!("the cluster had {version} before: nothing was to be done")
    };
    Ready { is_ready: true, reason: "Completed".to_owned(), message }
}

fn failed(record: &UpgradeRecord) -> Ready {
    not_ready(&record.reason, record.message.clone())
}

fn not_ready(reason: &str, message: String) -> Ready {
    Ready { is_ready: false, reason: reason.to_owned(), message }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
