//! Maintenance windows: silences in Alertmanager while the control plane and the workers are upgraded
//! (`docs/facts/openshift-upgrades.md#silences`).
//!
//! The shell lists all silences once per look. It makes the writes in their order, each of them even if another one fails.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::{AlertMatcher, MatchType, SilencedPart};
use serde::Deserialize;

use crate::Compat;

/// The creator of the silences.
pub const CREATED_BY: &str = "managed-upgrade-operator";

/// A silence as `GET /api/v2/silences` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Silence {
    /// Its ID in Alertmanager.
    pub id: String,
    /// Whether it is in force.
    pub status: SilenceStatus,
    /// Its creator.
    pub created_by: String,
    /// What it is for.
    pub comment: String,
    /// When it comes into force.
    pub starts_at: Timestamp,
}

/// The status of a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct SilenceStatus {
    /// Whether it is in force.
    pub state: SilenceState,
}

/// Whether a silence is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SilenceState {
    /// Not yet.
    Pending,
    /// It is.
    Active,
    /// It has run out, or was ended. Alertmanager lists it for some days.
    Expired,
}

/// A write to Alertmanager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceWrite {
    /// `POST /api/v2/silences`.
    Create(NewSilence),
    /// `DELETE /api/v2/silence/ID`.
    Delete {
        /// Its ID.
        id: String,
    },
}

/// A silence to be created, by [`CREATED_BY`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSilence {
    /// What an alert must have.
    pub matchers: Vec<AlertMatcher>,
    /// What it is for.
    pub comment: String,
    /// When it comes into force.
    pub starts_at: Timestamp,
    /// When it ends by itself.
    pub ends_at: Timestamp,
}

/// How far the control plane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlPlane {
    /// Its upgrade has not commenced.
    Ahead,
    /// It is being upgraded.
    Works {
        /// Since then: `startedTime` of the version in the history of the ClusterVersion; the present until that is shown.
        since: Timestamp,
    },
    /// The history of the ClusterVersion has the version as `Completed`.
    Done,
}

/// The workers, and how long each takes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// `status.machineCount` of the pool.
    pub machines: i32,
    /// `status.updatedMachineCount` of the pool.
    pub updated: i32,
    /// `spec.PDBForceDrainTimeout`.
    pub pdb_force_drain: SignedDuration,
    /// `nodeDrain.timeOut`.
    pub node_drain: SignedDuration,
    /// `nodeDrain.expectedNodeDrainTime`.
    pub expected_drain: SignedDuration,
}

/// What the silences of an upgrade are decided on.
#[derive(Clone, Copy, Debug)]
pub struct SilencesSeen<'a> {
    /// Whether faults of the original are repaired.
    pub compat: Compat,
    /// All silences of Alertmanager, of any creator and state.
    pub silences: &'a [Silence],
    /// The version that the cluster is upgraded to.
    pub version: &'a str,
    /// The time of the look.
    pub now: Timestamp,
}

impl SilencesSeen<'_> {
    /// The writes for the window of the control plane, which lasts for `window`. Alerts of the names `criticals` are silenced
    /// too, though they are critical.
    ///
    /// Repaired (M9): what counts is a silence in force, so an upgrade that is tried again is silenced again. A silence that
    /// is lost is created again, for the rest of the window.
    pub fn control_plane(
        &self,
        state: ControlPlane,
        window: SignedDuration,
        criticals: &[String],
    ) -> Vec<SilenceWrite> {
        let from = match (self.compat, state) {
            (Compat::Strict, _) | (Compat::Repaired, ControlPlane::Ahead) => self.now,
            (Compat::Repaired, ControlPlane::Works { since }) => since,
            (Compat::Repaired, ControlPlane::Done) => return vec![],
        };
        let ends_at = after(from, window);
        if ends_at <= self.now {
            return vec![];
        }
        let part = comment_part(SilencedPart::ControlPlane);
        let version = self.version;
        let noise =
            (default_matchers(), format!("Silence for {part} upgrade to version {version}"));
        let critical = (!criticals.is_empty()).then(|| {
            (
                vec![matches("alertname", format!("({})", criticals.join("|")))],
                format!("Silence for critical alerts during {part} upgrade to version {version}"),
            )
        });
        let wanted = [noise].into_iter().chain(critical);
        wanted
            .filter(|(_, comment)| !self.has_control_plane(state, comment))
            .map(|(matchers, comment)| self.create(matchers, comment, ends_at))
            .collect()
    }

    fn has_control_plane(&self, state: ControlPlane, comment: &str) -> bool {
        let is_underway = match state {
            ControlPlane::Works { .. } => true,
            ControlPlane::Ahead | ControlPlane::Done => false,
        };
        self.silences.iter().filter(|one| one.comment == comment).any(|one| match self.compat {
            Compat::Strict => true,
            // One that has ended during the upgrade ran out, or was ended by an operator.
            Compat::Repaired => is_own(one) && (self.is_in_force(one) || is_underway),
        })
    }

    /// The writes for the window of the workers. It is set again whenever a worker is done; one that runs out is not
    /// extended, which is how a timeout is detected.
    ///
    /// Repaired (M9): the silence that was created last counts, not any of the past; the new one is in force before the old
    /// one is deleted; and silences of a version with the same beginning are left alone.
    pub fn workers(&self, workers: &Workers) -> Vec<SilenceWrite> {
        let left = workers.machines.saturating_sub(workers.updated);
        if left < 1 {
            return vec![];
        }
        let base = format!(
            "Silence for {} upgrade to version {}",
            comment_part(SilencedPart::Workers),
            self.version
        );
        let comment = format!("{base} with remaining {left} nodes");
        let per_node =
            workers.pdb_force_drain.max(workers.node_drain).saturating_add(workers.expected_drain);
        let ends_at = after(self.now, per_node.saturating_mul(left));
        let create = |comment| self.create(default_matchers(), comment, ends_at);
        match self.compat {
            Compat::Strict => {
                if self.silences.iter().any(|one| one.comment == comment) {
                    return vec![];
                }
                let mut silences = self.silences.iter();
                let old = silences.find(|one| self.is_in_force(one) && one.comment.contains(&base));
                old.map(delete).into_iter().chain([create(comment)]).collect()
            }
            Compat::Repaired => {
                let prefix = format!("{base} with remaining ");
                let own = self
                    .silences
                    .iter()
                    .filter(|one| is_own(one) && one.comment.starts_with(&prefix));
                let latest = own.clone().max_by_key(|one| one.starts_at);
                let kept = latest.filter(|one| one.comment == comment);
                let old = own.filter(|one| {
                    self.is_in_force(one) && kept.is_none_or(|kept| kept.id != one.id)
                });
                let new = kept.is_none().then(|| create(comment));
                new.into_iter().chain(old.map(delete)).collect()
            }
        }
    }

    /// The writes that end the windows of a part, for any version.
    pub fn end(&self, part: SilencedPart) -> Vec<SilenceWrite> {
        let part = comment_part(part);
        let own = self.silences.iter().filter(|one| is_own(one) && self.is_in_force(one));
        own.filter(|one| one.comment.contains(part)).map(delete).collect()
    }

    /// The writes when an upgrade fails, which it only does before it commences.
    ///
    /// Repaired (M9): the window of the control plane ends. In the original it stays until it runs out.
    pub fn after_failure(&self) -> Vec<SilenceWrite> {
        match self.compat {
            Compat::Strict => vec![],
            Compat::Repaired => self.end(SilencedPart::ControlPlane),
        }
    }

    /// Whether any silence of the operator is in force: without one, workers that are upgraded take too long.
    pub fn is_active(&self) -> bool {
        self.silences.iter().any(|one| is_own(one) && self.is_in_force(one))
    }

    /// In the original, a silence that the clock of Alertmanager is not at yet does not count.
    fn is_in_force(&self, silence: &Silence) -> bool {
        match silence.status.state {
            SilenceState::Pending => self.compat == Compat::Repaired,
            SilenceState::Active => true,
            SilenceState::Expired => false,
        }
    }

    fn create(
        &self,
        matchers: Vec<AlertMatcher>,
        comment: String,
        ends_at: Timestamp,
    ) -> SilenceWrite {
        SilenceWrite::Create(NewSilence { matchers, comment, starts_at: self.now, ends_at })
    }
}

/// What the comments of a part's silences have in common.
fn comment_part(part: SilencedPart) -> &'static str {
    match part {
        SilencedPart::ControlPlane => "OSD control plane",
        SilencedPart::Workers => "OSD worker node",
    }
}

fn is_own(silence: &Silence) -> bool {
    silence.created_by == CREATED_BY
}

fn delete(silence: &Silence) -> SilenceWrite {
    SilenceWrite::Delete { id: silence.id.clone() }
}

/// Alerts of OpenShift's own namespaces that are not critical.
fn default_matchers() -> Vec<AlertMatcher> {
    vec![
        matches("severity", "(warning|info)".to_owned()),
        matches("namespace", "(^openshift.*|^kube.*|^redhat.*|^default$)".to_owned()),
    ]
}

fn matches(name: &str, value: String) -> AlertMatcher {
    AlertMatcher { name: name.to_owned(), value, match_type: MatchType::Matches }
}

fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}
