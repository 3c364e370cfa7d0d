//! The result of a prediction for a group: outcome, machines, paths, causes, blockers.

use std::fmt;

use refit_kinds::{refit::Disruption, version::StatedVersion};
use serde::Serialize;

use super::{
    drains::DrainForecast, providers::ProviderQuestion, target::Warning, timeline::Timeline,
};

/// Predicted outcome for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PredictedOutcome {
    /// Nothing changes.
    Unchanged,
    /// Every machine stays and is updated in place.
    InPlace,
    /// Something prevents the change, temporarily or permanently.
    Blocked,
    /// At least one machine is replaced, created by a surge, or deleted.
    Replaced,
}

impl PredictedOutcome {
    /// The word shown to users.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::InPlace => "in place",
            Self::Blocked => "blocked",
            Self::Replaced => "replaced",
        }
    }
}

/// Number of machines by outcome, from now until the rollout ends or stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Current machines.
    pub now: i64,
    /// Machines that are updated in place.
    pub in_place: i64,
    /// Machines that are created.
    pub new: i64,
    /// Machines that are deleted.
    pub deleted: i64,
}

/// A differing path, the updater that changes it, and the affected objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathLine {
    /// The path line of the first object, as in hook messages, conditions and events.
    pub line: String,
    /// The updater that makes the change; absent if no updater covers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updater: Option<String>,
    /// Whether that updater leaves the machine as it is, as if it had the change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// `Kind/name` of every object with this difference.
    pub objects: Vec<String>,
}

impl fmt::Display for PathLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)?;
        match self.objects.len().saturating_sub(1) {
            0 => Ok(()),
            1 => f.write_str(", and 1 more machine"),
            more => write!(f, ", and {more} more machines"),
        }
    }
}

/// Why Cluster API creates or deletes a machine without calling a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CauseReason {
    /// Cluster API does not call Refit's hooks for this group.
    NotAsked,
    /// No updater covers the change, and the policy is Replace.
    Uncovered,
    /// maxSurge creates a machine, and an old one is deleted for it.
    Surge,
    /// The only machine of a control plane is updated in place only where replacements are held.
    NotHeld,
    /// The strategy is OnDelete.
    OnDelete,
    /// `spec.rollout.after` has passed.
    RolloutAfter,
    /// Certificates expire within `spec.rollout.before`.
    CertificatesExpire,
    /// A user marked the machine.
    Marked,
    /// A health check failed.
    Remediation,
    /// The machine alone fails the control plane's preflight checks.
    FailsPreflight,
    /// The machine does not record its template.
    NotCloned,
    /// The number of machines differs from the replicas.
    Replicas,
}

impl CauseReason {
    /// All causes.
    pub const ALL: [Self; 12] = [
        Self::NotAsked,
        Self::Uncovered,
        Self::Surge,
        Self::NotHeld,
        Self::OnDelete,
        Self::RolloutAfter,
        Self::CertificatesExpire,
        Self::Marked,
        Self::Remediation,
        Self::FailsPreflight,
        Self::NotCloned,
        Self::Replicas,
    ];
}

/// Why machines are created or deleted, and what to set to change that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// CamelCase reason.
    pub reason: CauseReason,
    /// `Kind/name` of the machine or group.
    pub object: String,
    /// What Cluster API does, as a sentence without a full stop.
    pub message: String,
    /// What to set to change it; empty if nothing helps.
    pub remedy: String,
}

/// What prevents a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Blocked {
    /// CamelCase reason, the same as in conditions and `blockedBy` if it appears there.
    pub reason: String,
    /// `Kind/name` of the blocking object.
    pub object: String,
    /// What blocks and what ends the wait.
    pub message: String,
}

/// The prediction for one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupPrediction {
    /// Namespace of the group.
    pub namespace: String,
    /// Kind of the group.
    pub kind: String,
    /// Name of the group.
    pub name: String,
    /// Name of its Cluster.
    pub cluster: String,
    /// Order of the rollout: groups with the same number are updated in parallel.
    pub turn: usize,
    /// Current Kubernetes version.
    pub from: StatedVersion,
    /// Desired Kubernetes version.
    pub to: StatedVersion,
    /// Predicted outcome.
    pub outcome: PredictedOutcome,
    /// Number of its machines by outcome.
    pub machines: Counts,
    /// How an update in place disturbs each machine; absent if none is updated in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// Differing paths, with the updaters that change them.
    pub paths: Vec<PathLine>,
    /// Why machines are created or deleted.
    pub causes: Vec<Cause>,
    /// What blocks the change.
    pub blocked_by: Vec<Blocked>,
    /// What does not block the change, and should be known before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// How the drains of its nodes go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drains: Vec<DrainForecast>,
    /// Additional notes.
    pub notes: Vec<String>,
    /// `Kind/name` of the group that it waits for; absent if it begins with the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Predicted duration, from the first turn of a machine to the end of the last one; absent if none has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
    /// When each machine has its turn; absent if none has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// What to ask providers.
    #[serde(skip)]
    pub questions: Vec<ProviderQuestion>,
}

/// A prediction for all groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// Combined outcome of all groups.
    pub outcome: PredictedOutcome,
    /// Every group, in rollout order.
    pub groups: Vec<GroupPrediction>,
    /// Additional notes about all groups.
    pub notes: Vec<String>,
}

impl Prediction {
    /// A prediction for these groups. The worst outcome counts: Replaced before Blocked before
    /// InPlace.
    pub fn of(mut groups: Vec<GroupPrediction>, mut notes: Vec<String>) -> Self {
        groups.sort_by(|a, b| {
            let key = |g: &GroupPrediction| {
                (g.namespace.clone(), g.cluster.clone(), g.turn, g.kind.clone(), g.name.clone())
            };
            key(a).cmp(&key(b))
        });
        notes.sort();
        notes.dedup();
        let outcome = groups.iter().map(|group| group.outcome).max();
        Self { outcome: outcome.unwrap_or(PredictedOutcome::Unchanged), groups, notes }
    }
}
