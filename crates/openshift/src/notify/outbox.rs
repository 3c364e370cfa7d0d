//! Entries of the service log that are posted once, also over a crash.
//!
//! OCM accepts the same entry again. So the history has a note before an entry is posted, and one that is found there leads to
//! a look at OCM's log: the entry may have been posted. The history is lost with an UpgradeConfig that is created again, and the
//! original has no notes in it, so an upgrade that has commenced leads to that look as well.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Event, LogEvent, note};
use crate::{
    Compat,
    provider::LogEntry,
    upgrade_config::{UpgradeCondition, UpgradeHistory},
};

/// Status of the note of an entry that is about to be posted. It does not explain a delay or a failure, as `False` would.
const POSTING: &str = "Unknown";
/// By how much the clock of OCM may be behind.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// How an entry of the service log is posted.
#[derive(Clone, Debug, PartialEq)]
pub enum Posting {
    /// At once.
    Post,
    /// [`note_posting`], store the history, and post.
    NoteAndPost,
    /// It may have been posted, as of this note: read the entries with the summary of the event
    /// ([`crate::provider::logs_request`]). If it [`is_posted`], it is sent; else as with [`Self::NoteAndPost`].
    LookUp(Box<UpgradeCondition>),
}

/// Decides how an entry is posted that was not sent. `commenced` is when the cluster-version operator began with the upgrade.
pub fn posting(
    compat: Compat,
    (event, text): (LogEvent, &str),
    history: Option<&UpgradeHistory>,
    commenced: Option<Timestamp>,
) -> Posting {
    let type_ = Event::Log(event).to_string();
    let mut conditions = history.map(|history| &*history.conditions).unwrap_or_default().iter();
    match (compat, conditions.find(|one| one.type_ == type_), commenced) {
        (Compat::Strict, _, _) => Posting::Post,
        (Compat::Repaired, None, None) => Posting::NoteAndPost,
        (Compat::Repaired, Some(note), _) => Posting::LookUp(Box::new(note.clone())),
        (Compat::Repaired, None, Some(at)) => Posting::LookUp(Box::new(UpgradeCondition {
            type_,
            message: text.to_owned(),
            start_time: Some(Time(at)),
            ..UpgradeCondition::default()
        })),
    }
}

/// Notes in the history that an entry is about to be posted. A note of the same text stays as it is.
pub fn note_posting(history: &mut UpgradeHistory, event: LogEvent, text: &str, now: Timestamp) {
    let type_ = Event::Log(event).to_string();
    let is_same = |one: &UpgradeCondition| one.type_ == type_ && one.message == text;
    if history.conditions.iter().any(is_same) {
        return;
    }
    note(history, Event::Log(event), POSTING, text, now);
}

/// Whether the entry of a note is among those of OCM: the same text for an earlier upgrade to the version does not count.
pub fn is_posted(noted: &UpgradeCondition, entries: &[LogEntry]) -> bool {
    let from = noted.start_time.as_ref().and_then(|start| start.0.checked_sub(SKEW).ok());
    let is_since = |at: Timestamp| from.is_none_or(|from| at >= from);
    entries
        .iter()
        .any(|one| one.description == noted.message && one.created_at.is_none_or(is_since))
}
