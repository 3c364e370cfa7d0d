//! The annotations of one Machine about its certificates: they ask for a NodeUpdate that has k8sd issue them again, and
//! show how far it is.
//!
//! | `refresh-certificates` | NodeUpdate for it | what follows |
//! |---|---|---|
//! | absent | unfinished | it is stopped |
//! | absent | ended, not shown yet | its end is shown; a cancelled one leaves no status |
//! | absent | none | status `in-progress` is removed |
//! | not a lifetime | | status `failed` |
//! | any, while Canonical's controllers may serve it | | an event |
//! | a lifetime | none, or its end is shown | a NodeUpdate is requested, once the Machine has a Node |
//! | a lifetime | none, and an upgrade has not ended | an event |
//! | a lifetime | for another lifetime | it is stopped, or finished first |
//! | a lifetime | k8sd is at work, or the node is watched after it | status `in-progress` |
//! | a lifetime | an attempt has failed, the next one has not begun | status `failed` |
//! | a lifetime | has succeeded | status `done`, when they expire, and no request any more |

use std::{collections::BTreeMap, fmt};

use jiff::{Timestamp, tz::TimeZone};
use refit_kinds::{
    canonical::{
        CANONICAL, CERTIFICATES_EXPIRY, CertificateKeys, K8SD, Keys, Lifetime, UpgradeStatus,
    },
    keys,
    refit::{Goal, GoalCertificates, NodeUpdate, PartStatus, Phase},
};

use super::{
    Compat,
    machine::{Announced, Request, stop},
    notes::{LEFT, changed, left_note, left_to_others, normal, refused_note},
};
use crate::node::{Announcement, SUPERSEDED, Severity, begins_attempt};

/// Reason of the event that a refresh has begun.
const IN_PROGRESS: &str = "CertificatesRefreshInProgress";
/// Reason of the event that the certificates are issued.
const DONE: &str = "CertificatesRefreshDone";
/// Reason of the event that an attempt has failed.
const FAILED: &str = "CertificatesRefreshFailed";
/// Reason of the event that an upgrade must end first.
const WAITING: &str = "CertificatesRefreshWaiting";
/// Prefix of [`CertificateKeys::noted`] for a request that waits for what follows.
const WAITS: &str = "waits: ";

/// What is known of a Machine and of the annotations of one prefix.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct CertificatesSeen<'a> {
    /// The prefix.
    pub keys: Keys,
    /// How closely Canonical's controllers are followed.
    pub compat: Compat,
    /// All annotations of the Machine.
    pub annotations: &'a BTreeMap<String, String>,
    /// The newest NodeUpdate that these annotations have requested for this Machine.
    pub update: Option<&'a NodeUpdate>,
    /// What comes first on this Machine.
    pub upgrade: Option<Upgrade<'a>>,
    /// k8sd runs on the machine.
    pub has_k8sd: bool,
    /// The Machine has a Node.
    pub has_node: bool,
    /// The Machine is being deleted.
    pub is_deleting: bool,
    /// Another controller serves this prefix.
    pub is_served_by_others: bool,
}

/// An upgrade of a Machine that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade<'a> {
    /// This NodeUpdate.
    NodeUpdate(&'a str),
    /// The Machine is one of this UpgradeTask.
    Task(&'a str),
    /// Cluster API requests it.
    ClusterApi,
}

impl fmt::Display for Upgrade<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeUpdate(name) => write!(f, "NodeUpdate {name}"),
            Self::Task(name) => write!(f, "UpgradeTask {name}"),
            Self::ClusterApi => f.write_str("the update that Cluster API requests"),
        }
    }
}

/// Decides what follows from the annotations of one prefix. A NodeUpdate that is requested respects a pause itself.
pub fn certificates(seen: &CertificatesSeen<'_>) -> Announced {
    if seen.is_deleting {
        return Announced::default();
    }
    let Some(text) = seen.get(seen.own().refresh) else {
        return seen.without_request();
    };
    if seen.is_served_by_others {
        let events = vec![left_to_others(seen.own().refresh, "this Machine")];
        return seen.noted(left_note(text), events);
    }
    let lifetime: Lifetime = match text.parse() {
        Ok(lifetime) => lifetime,
        Err(why) => {
            return seen.refused(text, &format!("annotation {}: {why}", seen.own().refresh));
        }
    };
    if !seen.has_k8sd {
        return seen.refused(text, "no k8sd runs on this machine");
    }
    let Some(update) = seen.update.filter(|update| !seen.has_shown(update)) else {
        return seen.ask(lifetime);
    };
    match requested(update) {
        Some(seconds) if seconds == lifetime.seconds() => seen.shows(update, text, lifetime),
        // The request was edited meanwhile.
        Some(_) | None if update.phase() == Phase::Succeeded => seen.done(update),
        Some(_) | None if update.phase().is_final() => seen.ask(lifetime),
        Some(_) | None => {
            Announced { request: stop(update).unwrap_or_default(), ..Announced::default() }
        }
    }
}

impl CertificatesSeen<'_> {
    /// Whether k8sd is to be asked when the certificates expire: where Refit takes the place of Canonical's controllers,
    /// and nothing shows it.
    pub fn lacks_expiry(&self) -> bool {
        self.keys == CANONICAL
            && self.has_k8sd
            && self.has_node
            && !self.is_served_by_others
            && !self.is_deleting
            && self.get(CERTIFICATES_EXPIRY).is_none()
    }

    fn own(&self) -> CertificateKeys {
        self.keys.certificates
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    fn is_strict(&self) -> bool {
        self.compat.is_strict(self.keys)
    }

    /// Whether the end of this NodeUpdate is shown.
    fn has_shown(&self, update: &NodeUpdate) -> bool {
        update.metadata.name.as_deref() == self.get(self.own().shown)
    }

    /// Announces what these values change; nothing, if they are so already.
    fn change<const N: usize>(
        &self,
        values: [(&'static str, Option<String>); N],
        events: Vec<Announcement>,
    ) -> Announced {
        let changes = changed(self.annotations, values);
        if changes.is_empty() {
            return Announced::default();
        }
        Announced { changes, events, request: Request::None }
    }

    /// Announces something once.
    fn noted(&self, note: String, events: Vec<Announcement>) -> Announced {
        self.change([(self.own().noted, Some(note))], events)
    }

    fn ask(&self, lifetime: Lifetime) -> Announced {
        let CertificateKeys { status, .. } = self.own();
        // Canonical's controller does not continue what another one has begun.
        let is_begun = self.get(status) == Some(UpgradeStatus::InProgress.into());
        if !self.has_node || self.is_strict() && is_begun {
            return Announced::default();
        }
        let Some(upgrade) = self.upgrade else {
            let certificates = GoalCertificates::of_lifetime(lifetime.seconds());
            let goal = Goal { certificates: Some(certificates), ..Goal::default() };
            return Announced { request: Request::Ask(goal), ..Announced::default() };
        };
        if self.is_strict() {
            return Announced::default();
        }
        let message = format!("The refresh of certificates waits until {upgrade} has ended.");
        self.noted(format!("{WAITS}{upgrade}"), vec![normal(WAITING, message)])
    }

    /// A text that asks for nothing that can be done.
    fn refused(&self, text: &str, why: &str) -> Announced {
        let note = refused_note(text);
        // What was requested before is not wanted any more.
        let request = self.update.and_then(stop).unwrap_or_default();
        if self.get(self.own().noted) == Some(&note) {
            return Announced { request, ..Announced::default() };
        }
        // Canonical's controller reads the text after it has announced the refresh, and announces no failure.
        let event = if self.is_strict() { in_progress(text) } else { failed(why) };
        Announced { request, ..self.failed_for_good(note, event) }
    }

    /// A failure that is announced once, and waits for a person.
    fn failed_for_good(&self, note: String, event: Announcement) -> Announced {
        let CertificateKeys { status, noted, .. } = self.own();
        let values = [(status, Some(UpgradeStatus::Failed.to_string())), (noted, Some(note))];
        self.change(values, vec![event])
    }

    /// Nothing is requested any more: what runs is stopped, and its end is shown.
    fn without_request(&self) -> Announced {
        let CertificateKeys { status, shown, noted, .. } = self.own();
        if let Some(update) = self.update.filter(|update| !self.has_shown(update)) {
            let phase = update.phase();
            if phase == Phase::Succeeded {
                return self.done(update);
            }
            if phase.is_final() {
                return self.cancelled(update.metadata.name.clone());
            }
            return Announced { request: stop(update).unwrap_or_default(), ..Announced::default() };
        }
        let is_begun = self.get(status) == Some(UpgradeStatus::InProgress.into());
        match self.get(noted) {
            Some(note) if note.starts_with(LEFT) => self.change([(noted, None)], Vec::new()),
            None if self.is_served_by_others || !is_begun => Announced::default(),
            Some(_) | None => self.cancelled(self.get(shown).map(str::to_owned)),
        }
    }

    fn cancelled(&self, of: Option<String>) -> Announced {
        let CertificateKeys { status, shown, noted, .. } = self.own();
        let is_begun = self.get(status) == Some(UpgradeStatus::InProgress.into());
        let kept = self.get(status).filter(|_| self.is_strict() && !is_begun).map(str::to_owned);
        self.change([(status, kept), (shown, of), (noted, None)], Vec::new())
    }

    /// What a NodeUpdate for the request shows.
    fn shows(&self, update: &NodeUpdate, text: &str, lifetime: Lifetime) -> Announced {
        let status = update.status.clone().unwrap_or_default();
        match status.phase {
            Phase::Succeeded => self.done(update),
            Phase::Stopped if status.failure_reason == SUPERSEDED => self.ask(lifetime),
            Phase::Failed | Phase::Stopped => {
                let name = update.metadata.name.clone().unwrap_or_default();
                if self.get(keys::RETRY) == Some(&name) {
                    return self.ask(lifetime);
                }
                if self.get(self.own().noted) == Some(&name) {
                    return Announced::default();
                }
                self.failed_for_good(name, failed(&status.failure_message))
            }
            Phase::Pending
            | Phase::Staging
            | Phase::Waiting
            | Phase::Upgrading
            | Phase::Draining
            | Phase::Disrupting
            | Phase::Verifying
            | Phase::Uncordoning
            | Phase::Stopping => self.under_way(update, &status.part(K8SD), text),
        }
    }

    fn under_way(&self, update: &NodeUpdate, part: &PartStatus, text: &str) -> Announced {
        // k8sd has not been asked yet.
        let Some(refresh) = &part.refresh else { return Announced::default() };
        let CertificateKeys { status, noted, .. } = self.own();
        let next =
            if begins_attempt(part) { UpgradeStatus::Failed } else { UpgradeStatus::InProgress };
        let name = update.metadata.name.as_deref().unwrap_or_default();
        // An attempt may fail and the next one begin between two looks.
        let attempts = refresh.failed_attempts;
        let note = (attempts > 0).then(|| format!("failed attempt {attempts} of {name}"));
        let mut events = Vec::new();
        if note.is_some() && note.as_deref() != self.get(noted) {
            events.push(failed(&refresh.last_failure));
        }
        if next == UpgradeStatus::InProgress && self.get(status) != Some(next.into()) {
            events.push(in_progress(text));
        }
        self.change([(status, Some(next.to_string())), (noted, note)], events)
    }

    fn done(&self, update: &NodeUpdate) -> Announced {
        let CertificateKeys { refresh, status, shown, noted } = self.own();
        let issued = update.status.clone().unwrap_or_default().part(K8SD).refresh;
        let expires = issued.and_then(|issued| issued.certificates_expire_at).map(|at| at.0);
        // A request for something else, which was made meanwhile, stays.
        let asked = self.get(refresh).filter(|text| {
            text.parse::<Lifetime>().ok().map(Lifetime::seconds) != requested(update)
        });
        let known = self.get(CERTIFICATES_EXPIRY).map(str::to_owned);
        self.change(
            [
                (refresh, asked.map(str::to_owned)),
                (status, Some(UpgradeStatus::Done.to_string())),
                (CERTIFICATES_EXPIRY, expires.map(|at| at.to_string()).or(known)),
                (shown, update.metadata.name.clone()),
                (noted, None),
            ],
            vec![issued_until(expires)],
        )
    }
}

/// The lifetime that a NodeUpdate is for, in seconds.
fn requested(update: &NodeUpdate) -> Option<i64> {
    update.spec.goal.certificates.and_then(|certificates| certificates.lifetime_seconds)
}

fn in_progress(text: &str) -> Announcement {
    normal(IN_PROGRESS, format!("Certificates refresh in progress. TTL: {text}"))
}

fn failed(why: &str) -> Announcement {
    let message = format!("Failed to refresh certificates: {why}");
    Announcement { severity: Severity::Warning, reason: FAILED, message }
}

fn issued_until(expires: Option<Timestamp>) -> Announcement {
    // Go's form of a time.
    let shown = |at: Timestamp| at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S +0000 UTC");
    let until = expires.map(|at| format!(", will expire at {}", shown(at))).unwrap_or_default();
    normal(DONE, format!("Certificates refreshed{until}"))
}

#[cfg(test)]
mod tests;
