//! Silences in Alertmanager while a part of a cluster is worked on (`docs/facts/alertmanager.md`).
//!
//! A silence ends by itself, whatever becomes of the upgrade. It is set for as long as two machines are expected to take,
//! and set again when one is done: a machine that hangs is not silenced for ever.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    refit::{
        AlertMatcher, MAX_SILENCE_RECORDS, SilenceRecord, SilenceState, SilencedPart,
        UpgradeSilence,
    },
    version::KubernetesVersion,
};

use crate::gates::GatedCluster;

/// How far a part of a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartState {
    /// It is not worked on yet.
    Ahead,
    /// It is about to be worked on: its silences must be in force.
    Begins {
        /// How many updates of its machines are left.
        left: i32,
    },
    /// It is worked on.
    Works {
        /// How many updates of its machines are left.
        left: i32,
    },
    /// It is not worked on any more.
    Done,
}

/// What the silences of an upgrade are decided on.
#[derive(Clone, Debug)]
pub struct SilencesSeen<'a> {
    /// Those that are wanted.
    pub wanted: &'a [UpgradeSilence],
    /// Those that were created.
    pub created: &'a [SilenceRecord],
    /// How far the control plane is.
    pub control_plane: PartState,
    /// How far the workers are.
    pub workers: PartState,
    /// The cluster.
    pub cluster: GatedCluster<'a>,
    /// The version that it is brought to.
    pub version: &'a KubernetesVersion,
    /// The UID of the object that requests it: silences of another one are not its own.
    pub uid: &'a str,
    /// The time of the look.
    pub now: Timestamp,
}

/// A write to Alertmanager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceWrite {
    /// Create a silence, or set the end of one.
    Set(SilenceWish),
    /// Remove one.
    Remove {
        /// Its name.
        name: String,
        /// Its ID in Alertmanager.
        id: String,
    },
}

/// A silence as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilenceWish {
    /// Its name.
    pub name: String,
    /// The one that it replaces. Without one, it may exist already, with the same comment.
    pub replaces: Option<Replaced>,
    /// What an alert must have.
    pub matchers: Vec<AlertMatcher>,
    /// What it is for. No other silence has this comment.
    pub comment: String,
    /// How many updates of machines are left then.
    pub updates_left: i32,
    /// When it ends.
    pub ends_at: Timestamp,
}

/// A silence that is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Its ID in Alertmanager.
    pub id: String,
    /// When it ends by itself: one that has ended before was ended by another client.
    pub ends_at: Timestamp,
}

/// What has come of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceOutcome {
    /// The silence of this ID is in force.
    Set(String),
    /// Another client has ended it before its time: this is its ID.
    Ended(String),
    /// It is in force no more.
    Removed,
    /// Why the write could not be made.
    Failed(String),
}

/// A write, and what has come of it.
pub type SilenceTried = (SilenceWrite, SilenceOutcome);

impl SilenceWrite {
    /// Whether another one is about the same silence.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Set(wish), Self::Set(other)) => wish.name == other.name,
            (Self::Remove { id, .. }, Self::Remove { id: other, .. }) => id == other,
            (Self::Set(_), Self::Remove { .. }) | (Self::Remove { .. }, Self::Set(_)) => false,
        }
    }

    /// The name of the silence.
    pub fn name(&self) -> &str {
        match self {
            Self::Set(SilenceWish { name, .. }) | Self::Remove { name, .. } => name,
        }
    }
}

impl SilencesSeen<'_> {
    /// What is to be written to Alertmanager now.
    pub fn due(&self) -> Vec<SilenceWrite> {
        let wanted: BTreeSet<&str> = self.wanted.iter().map(|one| &*one.name).collect();
        let of_wanted = self.wanted.iter().filter_map(|silence| {
            let created = self.created.iter().find(|created| created.name == silence.name);
            self.due_of(silence, created)
        });
        let strays = self.created.iter().filter(|created| !wanted.contains(&*created.name));
        of_wanted.chain(strays.filter_map(|created| self.removed(created))).collect()
    }

    /// How far the part of a silence is.
    fn part(&self, silence: &UpgradeSilence) -> PartState {
        match silence.during {
            SilencedPart::ControlPlane => self.control_plane,
            SilencedPart::Workers => self.workers,
        }
    }

    fn due_of(
        &self,
        silence: &UpgradeSilence,
        created: Option<&SilenceRecord>,
    ) -> Option<SilenceWrite> {
        let (left, begins) = match self.part(silence) {
            PartState::Ahead => return None,
            PartState::Begins { left } => (left, true),
            PartState::Works { left } => (left, false),
            PartState::Done => return created.and_then(|created| self.removed(created)),
        };
        let is_due = created.is_none_or(|created| match created.state {
            SilenceState::Active => {
                created.updates_left != left || begins && created.ends_at.0 <= self.now
            }
            // The upgrade was put off since.
            SilenceState::Removed => begins,
            SilenceState::Ended => false,
        });
        is_due.then(|| SilenceWrite::Set(self.wish(silence, created, left)))
    }

    fn wish(
        &self,
        silence: &UpgradeSilence,
        created: Option<&SilenceRecord>,
        left: i32,
    ) -> SilenceWish {
        let Self { cluster, version, uid, now, .. } = self;
        let part = match silence.during {
            SilencedPart::ControlPlane => "the control plane",
            SilencedPart::Workers => "the workers",
        };
        // The machine that is worked on, and the next one: by then it was set again.
        let machines = i64::from(left.clamp(0, 1)) + 1;
        let minutes = machines * i64::from(silence.minutes_per_machine);
        let filled = silence
            .matchers
            .iter()
            .cloned()
            .map(|matcher| AlertMatcher { value: cluster.fill_in(&matcher.value), ..matcher });
        SilenceWish {
            name: silence.name.clone(),
            // One that Refit has removed is not replaced: a new one is created.
            replaces: created
                .filter(|created| created.state == SilenceState::Active)
                .map(|created| Replaced { id: created.id.clone(), ends_at: created.ends_at.0 }),
            matchers: filled.collect(),
            comment: format!(
                "Refit upgrades {part} of Cluster {}/{} to {version}: silence {} of {uid}",
                cluster.namespace, cluster.name, silence.name
            ),
            updates_left: left,
            ends_at: now.saturating_add(SignedDuration::from_mins(minutes)).unwrap_or(*now),
        }
    }

    fn removed(&self, created: &SilenceRecord) -> Option<SilenceWrite> {
        let is_in_force = is_in_force(created, self.now);
        let SilenceRecord { name, id, .. } = created.clone();
        is_in_force.then_some(SilenceWrite::Remove { name, id })
    }

    /// The condition of the silences, after what was tried: status, reason and message. `None` without silences.
    pub fn condition(&self, tried: &[SilenceTried]) -> Option<(bool, &'static str, String)> {
        if self.wanted.is_empty() && self.created.is_empty() {
            return None;
        }
        let failed = tried.iter().filter_map(|(write, outcome)| match outcome {
            SilenceOutcome::Failed(why) => Some(format!("silence {}: {why}", write.name())),
            SilenceOutcome::Set(_) | SilenceOutcome::Ended(_) | SilenceOutcome::Removed => None,
        });
        let failed: Vec<String> = failed.collect();
        if !failed.is_empty() {
            return Some((false, "SilenceFailed", failed.join("; ")));
        }
        let works = |created: &&SilenceRecord| {
            let wanted = self.wanted.iter().find(|wanted| wanted.name == created.name);
            wanted.is_some_and(|wanted| match self.part(wanted) {
                PartState::Begins { .. } | PartState::Works { .. } => true,
                PartState::Ahead | PartState::Done => false,
            })
        };
        let of_works: Vec<&SilenceRecord> = self.created.iter().filter(works).collect();
        if let Some(ended) = of_works.iter().find(|one| one.state == SilenceState::Ended) {
            let message = format!("silence {} was removed by another client", ended.name);
            return Some((false, "SilenceEnded", message));
        }
        if let Some(late) = of_works.iter().find(|created| !is_in_force(created, self.now)) {
            let message = format!(
                "silence {} ended at {}: its machines take longer than minutesPerMachine",
                late.name, late.ends_at.0
            );
            return Some((false, "SilenceExpired", message));
        }
        let shown = self.created.iter().filter(|created| is_in_force(created, self.now));
        let shown: Vec<String> =
            shown.map(|one| format!("silence {} until {}", one.name, one.ends_at.0)).collect();
        Some(if shown.is_empty() {
            (false, "NothingSilenced", "no silence is in force".to_owned())
        } else {
            (true, "Silenced", shown.join("; "))
        })
    }

    /// When the next silence ends by itself.
    pub fn next_end(&self) -> Option<Timestamp> {
        let in_force = self.created.iter().filter(|created| is_in_force(created, self.now));
        in_force.map(|created| created.ends_at.0).min()
    }
}

/// Whether a silence hides alerts, as far as it is known.
pub fn is_in_force(created: &SilenceRecord, now: Timestamp) -> bool {
    created.state == SilenceState::Active && created.ends_at.0 > now
}

/// The removal of every silence that is in force.
pub fn removals(created: &[SilenceRecord], now: Timestamp) -> impl Iterator<Item = SilenceWrite> {
    let in_force = created.iter().filter(move |created| is_in_force(created, now));
    in_force.map(|SilenceRecord { name, id, .. }| SilenceWrite::Remove {
        name: name.clone(),
        id: id.clone(),
    })
}

/// Notes the silences that were set for an upgrade.
pub fn note_set(created: &mut Vec<SilenceRecord>, tried: &[SilenceTried]) {
    for (write, outcome) in tried {
        let SilenceWrite::Set(wish) = write else { continue };
        let (id, state) = match outcome {
            SilenceOutcome::Set(id) => (id, SilenceState::Active),
            SilenceOutcome::Ended(id) => (id, SilenceState::Ended),
            // What failed is tried again at the next look.
            SilenceOutcome::Removed | SilenceOutcome::Failed(_) => continue,
        };
        let record = SilenceRecord {
            name: wish.name.clone(),
            id: id.clone(),
            updates_left: wish.updates_left,
            ends_at: Time(wish.ends_at),
            state,
        };
        match created.iter_mut().find(|one| one.name == wish.name) {
            Some(known) => *known = record,
            None => created.push(record),
        }
    }
}

/// Notes the silences of any upgrade that were removed.
pub fn note_removed(created: &mut [SilenceRecord], tried: &[SilenceTried]) {
    for (write, outcome) in tried {
        let SilenceWrite::Remove { id, .. } = write else { continue };
        let known = created.iter_mut().find(|one| one.id == *id);
        if let Some(known) = known.filter(|_| *outcome == SilenceOutcome::Removed) {
            known.state = SilenceState::Removed;
        }
    }
}

/// Drops what is neither wanted nor in force.
pub fn forget(created: &mut Vec<SilenceRecord>, wanted: &[UpgradeSilence], now: Timestamp) {
    created
        .retain(|one| is_in_force(one, now) || wanted.iter().any(|wanted| wanted.name == one.name));
    let surplus = created.len().saturating_sub(MAX_SILENCE_RECORDS);
    created.drain(..surplus);
}

#[cfg(test)]
#[path = "silences_tests.rs"]
mod tests;
