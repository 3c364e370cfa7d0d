//! Silences in Alertmanager while a part of a cluster is worked on (`docs/facts/alertmanager.md`).
//!
//! A silence ends by itself, whatever becomes of the upgrade. It is set for as long as the machines of its part that are
//! left are expected to take, and set again when another one is done: a machine that hangs is not silenced for ever.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    refit::{AlertMatcher, SilenceRecord, SilenceState, SilencedPart, UpgradeSilence},
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
        /// How many of its machines are left.
        left: i32,
    },
    /// It is worked on.
    Works {
        /// How many of its machines are left.
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
    /// Names the request: silences of another one are not its own.
    pub request: String,
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
    /// For how many machines that are left it is.
    pub machines_left: i32,
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
                created.machines_left != left || begins && created.ends_at.0 <= self.now
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
        let Self { cluster, version, request, now, .. } = self;
        let part = match silence.during {
            SilencedPart::ControlPlane => "the control plane",
            SilencedPart::Workers => "the workers",
        };
        let machines = i64::from(left).saturating_add(1);
        let minutes = machines.saturating_mul(i64::from(silence.minutes_per_machine));
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
                "Refit upgrades {part} of Cluster {}/{} to {version}: silence {} of {request}",
                cluster.namespace, cluster.name, silence.name
            ),
            machines_left: left,
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
fn is_in_force(created: &SilenceRecord, now: Timestamp) -> bool {
    created.state == SilenceState::Active && created.ends_at.0 > now
}

/// The silences that were created, after what was tried.
pub fn noted(created: &[SilenceRecord], tried: &[SilenceTried]) -> Vec<SilenceRecord> {
    let mut noted = created.to_vec();
    for (write, outcome) in tried {
        let known = noted.iter_mut().find(|one| one.name == write.name());
        match (write, outcome) {
            (SilenceWrite::Set(wish), SilenceOutcome::Set(id) | SilenceOutcome::Ended(id)) => {
                let is_set = matches!(outcome, SilenceOutcome::Set(_));
                let record = SilenceRecord {
                    name: wish.name.clone(),
                    id: id.clone(),
                    machines_left: wish.machines_left,
                    ends_at: Time(wish.ends_at),
                    state: if is_set { SilenceState::Active } else { SilenceState::Ended },
                };
                match known {
                    Some(known) => *known = record,
                    None => noted.push(record),
                }
            }
            (SilenceWrite::Remove { .. }, SilenceOutcome::Removed) => {
                if let Some(known) = known {
                    known.state = SilenceState::Removed;
                }
            }
            // What failed is tried again at the next look.
            (SilenceWrite::Set(_), SilenceOutcome::Removed | SilenceOutcome::Failed(_))
            | (
                SilenceWrite::Remove { .. },
                SilenceOutcome::Set(_) | SilenceOutcome::Ended(_) | SilenceOutcome::Failed(_),
            ) => {}
        }
    }
    noted
}

#[cfg(test)]
#[path = "silences_tests.rs"]
mod tests;
