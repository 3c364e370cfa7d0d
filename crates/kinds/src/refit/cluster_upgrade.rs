//! ClusterUpgrade: when the whole of a Cluster is upgraded to which version, and what became of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CapacityState, ExtraCapacity, MAX_SILENCE_RECORDS, MAX_SILENCES, MAX_UPGRADE_NOTIFICATIONS,
    OnAbort, SilenceRecord, Stage, UpgradeNotification, UpgradeSilence, Via,
};
use crate::version::KubernetesVersion;

/// How many versions the history of a Cluster names; the oldest are dropped.
pub const MAX_HISTORY: usize = 30;
/// How many steps an upgrade may have.
pub const MAX_STEPS: usize = 32;
/// For how long after its time an upgrade may begin, in minutes.
pub const DEFAULT_START_WITHIN_MINUTES: i32 = 120;
/// How far ahead of its time a Cluster is checked, in minutes.
pub const DEFAULT_CHECK_AHEAD_MINUTES: i32 = 120;
/// How many characters `requestedBy` and `reason` have at most.
pub const MAX_REQUEST_TEXT: usize = 256;
/// How many versions on the way may be named.
pub const MAX_HOPS: usize = 16;
/// How many risks of a version graph may be accepted.
pub const MAX_ACCEPTED_RISKS: usize = 32;
/// How many characters the name of a channel, or of a risk, of a version graph has at most.
pub const MAX_GRAPH_NAME: usize = 128;
/// How many minutes ahead or late may be set: more than a month is a mistake.
pub const MAX_MINUTES: i32 = 44_640;

/// The upgrade of a whole Cluster: its control plane, then its workers, in place. It has the name of the Cluster, so there is
/// one for each; another version replaces the one before, and the history names both.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "ClusterUpgrade",
    doc = "The scheduled upgrade of a whole Cluster in place, and its history. It has the name of the Cluster.",
    plural = "clusterupgrades",
    shortname = "cu",
    category = "refit",
    namespaced,
    status = "ClusterUpgradeStatus",
    derive = "PartialEq",
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(
        name = "From",
        type_ = "string",
        description = "The version of the control plane before",
        json_path = ".status.history[0].precedingVersion"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Step",
        type_ = "string",
        description = "The step that was begun last",
        json_path = ".status.history[0].conditions[0].type"
    ),
    printcolumn(
        name = "Why",
        type_ = "string",
        description = "What the upgrade waits for, or how it has ended",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message"
    ),
    printcolumn(name = "At", type_ = "string", json_path = ".spec.startAt", priority = 1),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.history[0].startTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.hops) || self.hops.all(hop, hop != self.version)", "hops are the versions on the way to version"))]
#[x_kube(validation = ("!has(self.extraCapacity) || self.extraCapacity.method != 'Replicas' || !has(self.via) || self.via == 'Machines'",
    "extraCapacity.method Replicas needs via: Machines, as Cluster API would upgrade the extra Machines; use the method Clone"))]
pub struct ClusterUpgradeSpec {
    /// The Kubernetes version of the whole Cluster. While an upgrade to another version is under way, it waits for its end.
    pub version: KubernetesVersion,
    /// Whether the upgrade continues or is to stop. `Abort` ends it: before it has begun at once, afterwards as an aborted
    /// UpgradeTask does.
    #[serde(default)]
    pub stage: Stage,
    /// What becomes of the Machines in progress, with stage `Abort`. It may be changed while the upgrade stops.
    #[serde(default)]
    pub on_abort: OnAbort,
    /// With stage `Abort`: once its UpgradeTask has ended, the workers that it has upgraded return to the version that they
    /// had before, where their hosts can. The control plane never does.
    #[serde(default)]
    pub roll_back_workers: bool,
    /// When it begins at the earliest [default: at once].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Time>,
    /// For how long after that time it may begin, in minutes; 0 for ever. One that could not begin by then has failed, and
    /// nothing was changed.
    #[serde(default = "default_start_within")]
    #[schemars(range(min = 0, max = MAX_MINUTES))]
    pub start_within_minutes: i32,
    /// How long before its time the Cluster is checked, in minutes, so that what would keep it from beginning is seen
    /// ahead. One that is requested earlier is checked when it is requested, too.
    #[serde(default = "default_check_ahead")]
    #[schemars(range(min = 0, max = MAX_MINUTES))]
    pub check_ahead_minutes: i32,
    /// The versions on the way; a minor version of which none is named is taken at `.0`. Where the controller has a version
    /// graph, they must be a way through it [default: the shortest].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_HOPS))]
    pub hops: Option<Vec<KubernetesVersion>>,
    /// The channel of the version graph whose versions may be taken [default: all versions of the graph].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_GRAPH_NAME))]
    pub channel: Option<String>,
    /// Names of the risks that the version graph gives for versions, and that are accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ACCEPTED_RISKS), inner(length(min = 1, max = MAX_GRAPH_NAME)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub accepted_risks: Vec<String>,
    /// Who works through the Machines [default: Cluster API where it calls Refit for all of them, else Refit].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// Checks of the Cluster's health that do not keep the upgrade waiting, neither before it nor after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub ignored_checks: Vec<ClusterCheck>,
    /// Silences in Alertmanager while the Cluster is worked on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SILENCES))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub silences: Vec<UpgradeSilence>,
    /// Machines that the Cluster has in addition meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_capacity: Option<ExtraCapacity>,
    /// Who has requested it, for the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_REQUEST_TEXT))]
    pub requested_by: Option<String>,
}

/// A check of the health of a Cluster, before and after its upgrade.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum ClusterCheck {
    /// Cluster API shows no part of the Cluster as unavailable.
    ClusterApi,
    /// Every Machine of the control plane stays, and its Node and its pods are Ready, without etcd.
    ControlPlane,
    /// Every member of etcd is Ready.
    Etcd,
    /// Every Machine has a Node, which is Ready and has room.
    Nodes,
    /// Only Refit has cordoned a Node.
    Cordons,
}

pub(super) fn default_start_within() -> i32 {
    DEFAULT_START_WITHIN_MINUTES
}

fn default_check_ahead() -> i32 {
    DEFAULT_CHECK_AHEAD_MINUTES
}

impl ClusterUpgradeSpec {
    /// A request for a version, at once, with the defaults of the API.
    pub fn to(version: KubernetesVersion) -> Self {
        Self {
            version,
            stage: Stage::Ongoing,
            on_abort: OnAbort::RollBack,
            roll_back_workers: false,
            start_at: None,
            start_within_minutes: DEFAULT_START_WITHIN_MINUTES,
            check_ahead_minutes: DEFAULT_CHECK_AHEAD_MINUTES,
            hops: None,
            channel: None,
            accepted_risks: Vec::new(),
            via: None,
            ignored_checks: Vec::new(),
            silences: Vec::new(),
            extra_capacity: None,
            requested_by: None,
        }
    }
}

/// How far the upgrade of a Cluster is.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::VariantArray,
)]
pub enum UpgradePhase {
    /// It was just requested.
    #[default]
    New,
    /// It waits for its time.
    Pending,
    /// Its steps are worked through.
    Upgrading,
    /// Every step is done.
    Completed,
    /// It has ended before its last step: its `reason` names why.
    Failed,
}

impl UpgradePhase {
    /// Whether the upgrade has ended.
    pub fn has_ended(self) -> bool {
        match self {
            Self::New | Self::Pending | Self::Upgrading => false,
            Self::Completed | Self::Failed => true,
        }
    }
}

/// The upgrade of a Cluster to one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeRecord {
    /// The version that it brings the Cluster to.
    pub version: KubernetesVersion,
    /// The version that the control plane had before, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preceding_version: Option<KubernetesVersion>,
    /// The versions on the way that the version graph has chosen, or that its UpgradeTask takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_HOPS))]
    pub hops: Vec<KubernetesVersion>,
    /// How far it is.
    pub phase: UpgradePhase,
    /// Why it has failed, as a CamelCase word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it has failed, as a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Its steps, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_STEPS))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<StepCondition>,
    /// When it was requested, or requested again after it had failed.
    pub requested_time: Time,
    /// Who has requested it, by `spec.requestedBy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// When its steps began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the last step was done, or it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,
    /// When the first worker began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_start_time: Option<Time>,
    /// When the last worker was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_complete_time: Option<Time>,
    /// Name of the UpgradeTask that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// How far its extra Machines are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_capacity: Option<CapacityState>,
    /// The silences that it has created in Alertmanager.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SILENCE_RECORDS))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub silences: Vec<SilenceRecord>,
    /// What people are notified of, in the order in which it was reached, if the controller has receivers. The record of an
    /// earlier version, or request, keeps only what was not delivered yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_UPGRADE_NOTIFICATIONS))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["event", "generation"]))]
    pub notifications: Vec<UpgradeNotification>,
    /// Generation of the ClusterUpgrade that it was last decided on: a failed one begins again with a later one.
    #[serde(default)]
    pub generation: i64,
}

/// A step of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepCondition {
    /// Name of the step.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// `True` if it is done, else `False`.
    pub status: String,
    /// `StepDone`, `StepInProgress` or `StepError`.
    pub reason: String,
    /// What it waits for, or why it cannot be done.
    pub message: String,
    /// When it was begun.
    pub start_time: Time,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,
    /// When `status` changed last.
    pub last_transition_time: Time,
}

/// Status of a ClusterUpgrade.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradeStatus {
    /// Phase of the newest upgrade.
    #[serde(default)]
    pub phase: UpgradePhase,
    /// The upgrades of the Cluster, the newest first, one per version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_HISTORY))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["version"]))]
    pub history: Vec<UpgradeRecord>,
    /// Conditions, keyed by type: `Ready`, whether the Cluster has the version; `Healthy`, what the last check of the Cluster
    /// found; `AlertsSilenced`; `ExtraCapacity`, whether its extra Machines are Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_upgrade_written_by_hand_needs_only_a_version() {
        let spec: ClusterUpgradeSpec =
            serde_json::from_value(serde_json::json!({"version": "v1.36.1"})).unwrap();
        assert_eq!(spec, ClusterUpgradeSpec::to("v1.36.1".parse().unwrap()));
    }
}
