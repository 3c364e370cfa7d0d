//! What a plan says of a group: outcome, machines, paths, causes, blockers.

use std::fmt;

use refit_kinds::version::StatedVersion;
use serde::Serialize;

/// What happens to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PredictedOutcome {
    /// Nothing changes.
    Unchanged,
    /// Every machine stays and is updated.
    InPlace,
    /// Something keeps the change from being made, now or at all.
    Blocked,
    /// At least one machine is replaced, created on top or deleted.
    Replaced,
}

impl PredictedOutcome {
    /// The word that people read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::InPlace => "in place",
            Self::Blocked => "blocked",
            Self::Replaced => "replaced",
        }
    }
}

/// How many machines become what, from now to where the rollout ends or stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Machines that are there now.
    pub now: i64,
    /// Machines that stay and are updated.
    pub in_place: i64,
    /// Machines that are created.
    pub new: i64,
    /// Machines that are deleted.
    pub deleted: i64,
}

/// A path that differs, who changes it, and on which objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathLine {
    /// The path line as hooks, conditions and events have it, of the first object.
    pub line: String,
    /// Who makes the change; absent where nobody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updater: Option<String>,
    /// `Kind/name` of every object in which the path differs so.
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

/// Why Cluster API creates or deletes a machine without being asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CauseReason {
    /// Refit is not asked about this group.
    NotAsked,
    /// No updater covers the change, and policy says Replace.
    Uncovered,
    /// maxSurge creates a machine, and an old one goes for it.
    Surge,
    /// The strategy is OnDelete.
    OnDelete,
    /// `spec.rollout.after` has passed.
    RolloutAfter,
    /// Certificates expire within `spec.rollout.before`.
    CertificatesExpire,
    /// A person marked the machine.
    Marked,
    /// A health check failed.
    Remediation,
    /// The machine alone fails the control plane's checks.
    FailsPreflight,
    /// The machine does not say which template it was made of.
    NotCloned,
    /// There are more or fewer machines than replicas.
    Replicas,
}

impl CauseReason {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::NotAsked,
        Self::Uncovered,
        Self::Surge,
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
    /// What to set to change it; empty where nothing is to be set.
    pub remedy: String,
}

/// What keeps a change from being made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Blocked {
    /// CamelCase reason: the same as in conditions and `blockedBy` where it appears there.
    pub reason: String,
    /// `Kind/name` of what blocks.
    pub object: String,
    /// What blocks and what ends it.
    pub message: String,
}

/// What will happen to one group.
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
    /// Its turn: groups of one number go at once.
    pub turn: usize,
    /// Kubernetes version now.
    pub from: StatedVersion,
    /// Kubernetes version wanted.
    pub to: StatedVersion,
    /// What happens.
    pub outcome: PredictedOutcome,
    /// What becomes of its machines.
    pub machines: Counts,
    /// What differs, and who changes it.
    pub paths: Vec<PathLine>,
    /// Why machines are created or deleted.
    pub causes: Vec<Cause>,
    /// What blocks.
    pub blocked_by: Vec<Blocked>,
    /// What else is good to know.
    pub notes: Vec<String>,
    /// How long the updates in place take, by past ones; absent where there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
}

/// What will happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// What happens to all groups together.
    pub outcome: PredictedOutcome,
    /// Every group, in the order in which they go.
    pub groups: Vec<GroupPrediction>,
    /// What else is good to know, about all of them.
    pub notes: Vec<String>,
}

impl Prediction {
    /// A plan of these groups: one replaced machine outweighs what is blocked, and that what goes
    /// in place.
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
