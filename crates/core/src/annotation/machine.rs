//! The annotations of one Machine: they ask for a NodeUpdate, and show how far it is.
//!
//! | `upgrade-to` | NodeUpdate for it | what follows |
//! |---|---|---|
//! | absent | unfinished | it is stopped |
//! | absent | ended, not shown yet | its end is shown; a cancelled one leaves no status |
//! | not an option | | status `failed` |
//! | any, while Canonical's controllers may serve it | | an event |
//! | an option | none, or its end is shown | a NodeUpdate is requested |
//! | an option | for another option | it is stopped, or finished first |
//! | an option | a refresh runs | status `in-progress`, and the change id |
//! | an option | an attempt has failed | status `failed`, and when |
//! | an option | has succeeded | status `done`, the release, and no request any more |
//!
//! Which end is shown is an annotation of its own: so a request for what is already installed is carried out again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::{
    canonical::{K8SD, Keys, UpgradeStatus, Wanted},
    keys,
    refit::{Goal, GoalOption, K8sdRefresh, NodeUpdate, Phase, Stage},
};

use super::{
    Compat,
    notes::{
        DONE, IN_PROGRESS, LEFT, cancelled, changed, failed_with, left_note, left_to_others,
        normal, refused_note,
    },
};
use crate::node::{Announcement, SUPERSEDED};

/// Go's time.RFC1123Z.
const RFC1123Z: &str = "%a, %d %b %Y %H:%M:%S %z";
/// What is known of a Machine and of the annotations of one prefix.
#[derive(Clone, Copy, Debug)]
pub struct MachineSeen<'a> {
    /// The prefix.
    pub keys: Keys,
    /// How closely Canonical's controllers are followed.
    pub compat: Compat,
    /// All annotations of the Machine.
    pub annotations: &'a BTreeMap<String, String>,
    /// The newest NodeUpdate that annotations of this prefix have requested for this Machine.
    pub update: Option<&'a NodeUpdate>,
    /// k8sd runs on the machine.
    pub has_k8sd: bool,
    /// Another controller serves this prefix.
    pub is_served_by_others: bool,
    /// The current time.
    pub now: Timestamp,
}

/// What is to be requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Request {
    /// Nothing.
    #[default]
    None,
    /// A NodeUpdate to this goal, whatever an earlier one has reached.
    Ask(Goal),
    /// The stop of this NodeUpdate.
    Stop(String),
}

impl Request {
    pub(super) fn of_option(option: GoalOption) -> Self {
        Self::Ask(Goal { option: Some(option), ..Goal::default() })
    }
}

/// What follows from a Machine's annotations: events, then the change of annotations, then a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Announced {
    /// Annotations to set (`Some`) or to remove (`None`).
    pub changes: BTreeMap<&'static str, Option<String>>,
    /// The events that announce the change.
    pub events: Vec<Announcement>,
    /// What is to be requested.
    pub request: Request,
}

/// Decides what follows from the annotations of one prefix.
pub fn machine(seen: &MachineSeen<'_>) -> Announced {
    let Some(text) = seen.get(seen.keys.upgrade_to) else {
        return seen.without_request();
    };
    if seen.is_served_by_others {
        return seen.left_to_others(text);
    }
    let option = match Wanted::parse(seen.keys, text) {
        Ok(Wanted::Option(option)) => option,
        Ok(Wanted::Version(_) | Wanted::Bundle { .. }) => {
            let why =
                "k8sd installs a channel, revision or localPath, neither a version nor a bundle";
            return seen.refused(text, why);
        }
        Err(bad) => return seen.refused(text, &bad.to_string()),
    };
    if !seen.has_k8sd {
        let why = "no k8sd runs on this machine, and its updater has no such option";
        return seen.refused(text, why);
    }
    let Some(update) = seen.update.filter(|update| !seen.has_shown(update)) else {
        return seen.ask(option);
    };
    match &update.spec.goal.option {
        Some(requested) if *requested == option => seen.shows(update, &option),
        // The request was edited meanwhile: what was installed is shown before the new one begins.
        Some(installed) if update.phase() == Phase::Succeeded => seen.done(update, installed),
        Some(_) | None if update.phase().is_final() => seen.ask(option),
        Some(_) | None => {
            Announced { request: stop(update).unwrap_or_default(), ..Announced::default() }
        }
    }
}

impl MachineSeen<'_> {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// Whether the end of this NodeUpdate is shown.
    fn has_shown(&self, update: &NodeUpdate) -> bool {
        update.metadata.name.as_deref() == self.get(self.keys.shown)
    }

    fn is_strict(&self) -> bool {
        self.compat.is_strict(self.keys)
    }

    fn ask(&self, option: GoalOption) -> Announced {
        if self.is_strict() {
            return self.strict_ask(option);
        }
        Announced { request: Request::of_option(option), ..Announced::default() }
    }

    /// The change to these values: what is so already is left out.
    pub(super) fn change<const N: usize>(
        &self,
        values: [(Option<&'static str>, Option<String>); N],
    ) -> BTreeMap<&'static str, Option<String>> {
        let served = values.into_iter().filter_map(|(key, value)| Some((key?, value)));
        changed(self.annotations, served)
    }

    /// A text that asks for nothing that can be done.
    fn refused(&self, text: &str, why: &str) -> Announced {
        let noted = refused_note(text);
        // What was requested before is not wanted any more.
        let request = self.update.and_then(stop).unwrap_or_default();
        if self.is_strict() || self.has_noted(&noted) {
            return Announced { request, ..Announced::default() };
        }
        Announced { request, ..self.failed_for_good(text, why, noted) }
    }

    /// Whether a failure is announced.
    fn has_noted(&self, failure: &str) -> bool {
        self.get(self.keys.noted) == Some(failure)
    }

    /// A failure that is announced once, and waits for a person.
    fn failed_for_good(&self, option: &str, why: &str, noted: String) -> Announced {
        let Keys { status, change_id, last_failed_attempt_at, .. } = self.keys;
        Announced {
            changes: self.change([
                (Some(status), Some(UpgradeStatus::Failed.to_string())),
                (change_id, None),
                (Some(last_failed_attempt_at), Some(rfc1123z(self.now))),
                (Some(self.keys.noted), Some(noted)),
            ]),
            events: vec![failed_with(option, why)],
            request: Request::None,
        }
    }

    /// Only reports that Refit does nothing, once for each request.
    fn left_to_others(&self, text: &str) -> Announced {
        let noted = left_note(text);
        if self.has_noted(&noted) {
            return Announced::default();
        }
        Announced {
            changes: BTreeMap::from([(self.keys.noted, Some(noted))]),
            events: vec![left_to_others(self.keys.upgrade_to, "this Machine")],
            request: Request::None,
        }
    }

    /// Nothing is requested any more: what runs is stopped, and its end is shown.
    fn without_request(&self) -> Announced {
        let Some(update) = self.update.filter(|update| !self.has_shown(update)) else {
            return self.without_status();
        };
        let phase = update.phase();
        if !phase.is_final() {
            return Announced { request: stop(update).unwrap_or_default(), ..Announced::default() };
        }
        let option = update.spec.goal.option.as_ref();
        match option.filter(|_| phase == Phase::Succeeded) {
            Some(option) => self.done(update, option),
            None => self.cancelled(update.metadata.name.clone()),
        }
    }

    /// No update is under way: what was noted about a request that was removed is removed as well.
    fn without_status(&self) -> Announced {
        match self.get(self.keys.noted) {
            Some(noted) if noted.starts_with(LEFT) => Announced {
                changes: self.change([(Some(self.keys.noted), None)]),
                ..Announced::default()
            },
            Some(_) => self.cancelled(self.get(self.keys.shown).map(str::to_owned)),
            None => Announced::default(),
        }
    }

    fn cancelled(&self, shown: Option<String>) -> Announced {
        if self.is_strict() {
            let changes =
                self.change([(Some(self.keys.shown), shown), (Some(self.keys.noted), None)]);
            return Announced { changes, ..Announced::default() };
        }
        let Keys { status, change_id, last_failed_attempt_at, .. } = self.keys;
        Announced {
            changes: self.change([
                (Some(status), None),
                (change_id, None),
                (Some(last_failed_attempt_at), None),
                (Some(self.keys.shown), shown),
                (Some(self.keys.noted), None),
            ]),
            events: vec![cancelled()],
            request: Request::None,
        }
    }

    /// What a NodeUpdate for the request shows.
    fn shows(&self, update: &NodeUpdate, option: &GoalOption) -> Announced {
        let status = update.status.clone().unwrap_or_default();
        match status.phase {
            Phase::Succeeded => self.done(update, option),
            Phase::Stopped if status.failure_reason == SUPERSEDED => self.ask(option.clone()),
            Phase::Failed | Phase::Stopped => self.ended(update, option, &status.failure_message),
            Phase::Pending
            | Phase::Staging
            | Phase::Waiting
            | Phase::Upgrading
            | Phase::Draining
            | Phase::Disrupting
            | Phase::Verifying
            | Phase::Uncordoning
            | Phase::Stopping => match &status.part(K8SD).refresh {
                Some(refresh) if self.is_strict() => self.strict_under_way(option, refresh),
                Some(refresh) => self.under_way(option, refresh),
                None => Announced::default(),
            },
        }
    }

    fn done(&self, update: &NodeUpdate, option: &GoalOption) -> Announced {
        if self.is_strict()
            && let Some(first) = self.strict_done(option)
        {
            return first;
        }
        let Keys { upgrade_to, status, release, change_id, last_failed_attempt_at, .. } = self.keys;
        let message = format!("Successfully performed in place upgrade with {option}");
        // A request for something else, which was made meanwhile, stays.
        let is_reached = self.get(upgrade_to).is_none_or(|to| to == option.to_string());
        Announced {
            changes: self.change([
                (is_reached.then_some(upgrade_to), None),
                (Some(status), Some(UpgradeStatus::Done.to_string())),
                (Some(release), Some(option.to_string())),
                (change_id, None),
                (Some(last_failed_attempt_at), None),
                (Some(self.keys.shown), update.metadata.name.clone()),
                (Some(self.keys.noted), None),
            ]),
            events: if self.is_strict() { Vec::new() } else { vec![normal(DONE, message)] },
            request: Request::None,
        }
    }

    /// The update has ended without success, and a person decides how it goes on.
    fn ended(&self, update: &NodeUpdate, option: &GoalOption, why: &str) -> Announced {
        let name = update.metadata.name.clone().unwrap_or_default();
        if self.get(keys::RETRY) == Some(&name) {
            return self.ask(option.clone());
        }
        if self.has_noted(&name) {
            return Announced::default();
        }
        self.failed_for_good(&option.to_string(), why, name)
    }

    fn under_way(&self, option: &GoalOption, refresh: &K8sdRefresh) -> Announced {
        let Keys { status, release, change_id, last_failed_attempt_at, .. } = self.keys;
        // An attempt may fail and the next one begin between two looks.
        let failed_at = refresh.last_failed_at.as_ref().map(|at| rfc1123z(at.0));
        let is_news =
            failed_at.is_some() && failed_at.as_deref() != self.get(last_failed_attempt_at);
        let last_failed = failed_at.is_some().then_some(last_failed_attempt_at);
        let changes = match &refresh.change_id {
            Some(change) => self.change([
                (Some(status), Some(UpgradeStatus::InProgress.to_string())),
                (change_id, Some(change.clone())),
                (Some(release), None),
                (last_failed, failed_at),
            ]),
            None if failed_at.is_some() => self.change([
                (Some(status), Some(UpgradeStatus::Failed.to_string())),
                (change_id, None),
                (last_failed, failed_at),
            ]),
            // k8sd has not accepted the first request yet.
            None => BTreeMap::new(),
        };
        let mut events = Vec::new();
        if is_news {
            events.push(failed_with(&option.to_string(), &refresh.last_failure));
        }
        if refresh.change_id.is_some() && !changes.is_empty() {
            let message = format!("Performing in place upgrade with {option}");
            events.push(normal(IN_PROGRESS, message));
        }
        Announced { changes, events, request: Request::None }
    }
}

/// The stop of an unfinished NodeUpdate that has not been asked to stop.
pub(super) fn stop(update: &NodeUpdate) -> Option<Request> {
    let goes_on = !update.phase().is_final() && update.spec.stage == Stage::Ongoing;
    goes_on.then(|| Request::Stop(update.metadata.name.clone().unwrap_or_default()))
}

pub(super) fn rfc1123z(at: Timestamp) -> String {
    at.to_zoned(jiff::tz::TimeZone::UTC).strftime(RFC1123Z).to_string()
}

#[cfg(test)]
mod tests;
