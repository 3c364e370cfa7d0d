//! ClusterUpgradePlan: the upgrade of a fleet of Clusters, in waves.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ClusterCheck, ExtraCapacity, MAX_ACCEPTED_RISKS, MAX_GRAPH_NAME, MAX_HOPS, MAX_MINUTES,
    MAX_PLAN_NOTIFICATIONS, MAX_SILENCES, PlanNotification, UpgradeSilence, Via,
    default_start_within,
};
use crate::version::KubernetesVersion;

/// How many waves a plan may have.
pub const MAX_WAVES: usize = 32;
/// How many Clusters a plan names that are under way or have failed.
pub const MAX_NAMED_CLUSTERS: usize = 50;
/// How many namespaces a plan may list.
const MAX_NAMESPACES: usize = 1000;
const DEFAULT_AT_ONCE: i32 = 10;
const DEFAULT_STOP_AFTER_FAILURES: i32 = 1;
const DEFAULT_SAME_CAUSE_STOPS: i32 = 3;

/// The upgrade of a fleet: it requests a ClusterUpgrade for each selected Cluster, wave by wave, and stops if too many fail.
/// The permission to write this kind upgrades Clusters in every namespace that has opted in.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "ClusterUpgradePlan",
    doc = "The upgrade of a fleet of Clusters in waves: it requests a ClusterUpgrade for each.",
    plural = "clusterupgradeplans",
    shortname = "cup",
    category = "refit",
    status = "ClusterUpgradePlanStatus",
    validation = Rule::new("self.metadata.name.size() <= 63").message("the name is a label of the ClusterUpgrades: at most 63 characters"),
    derive = "PartialEq",
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Wave", type_ = "string", json_path = ".status.wave"),
    printcolumn(name = "Upgraded", type_ = "integer", json_path = ".status.counts.completed"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.counts.failed"),
    printcolumn(name = "Requested", type_ = "integer", json_path = ".status.counts.requested"),
    printcolumn(
        name = "Why",
        type_ = "string",
        description = "What the plan waits for, or how it has ended",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.hops) || self.hops.all(hop, hop != self.version)", "hops are the versions on the way to version"))]
pub struct ClusterUpgradePlanSpec {
    /// The Kubernetes version of the Clusters. Another version begins with the first wave again.
    pub version: KubernetesVersion,
    /// Which Clusters, by their labels [default: all].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
    /// In which namespaces [default: in all that have opted in].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_NAMESPACES))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// The waves, in order. Clusters that none of them takes are in a last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAVES))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub waves: Vec<Wave>,
    /// No further Cluster is requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// When the first wave begins at the earliest [default: at once].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Time>,
    /// How many Clusters are upgraded at once.
    #[serde(default = "default_at_once")]
    #[schemars(range(min = 1, max = 1000))]
    pub clusters_at_once: i32,
    /// After so many Clusters whose upgrade has failed or does not go on, no further one is requested; 0 for never.
    #[serde(default = "default_stop_after_failures")]
    #[schemars(range(min = 0, max = 1000))]
    pub stop_after_failures: i32,
    /// After so many Clusters whose upgrades failed for the same cause, no further one is requested; 0 for never.
    #[serde(default = "default_same_cause_stops")]
    #[schemars(range(min = 0, max = 1000))]
    pub same_cause_stops: i32,
    /// Only failures after this time stop the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures_since: Option<Time>,
    /// `startWithinMinutes` of the ClusterUpgrades.
    #[serde(default = "default_start_within")]
    #[schemars(range(min = 0, max = MAX_MINUTES))]
    pub start_within_minutes: i32,
    /// `hops` of the ClusterUpgrades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_HOPS))]
    pub hops: Option<Vec<KubernetesVersion>>,
    /// `channel` of the ClusterUpgrades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_GRAPH_NAME))]
    pub channel: Option<String>,
    /// `acceptedRisks` of the ClusterUpgrades.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ACCEPTED_RISKS), inner(length(min = 1, max = MAX_GRAPH_NAME)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub accepted_risks: Vec<String>,
    /// `via` of the ClusterUpgrades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// `ignoredChecks` of the ClusterUpgrades.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub ignored_checks: Vec<ClusterCheck>,
    /// `silences` of the ClusterUpgrades.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SILENCES))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub silences: Vec<UpgradeSilence>,
    /// `extraCapacity` of the ClusterUpgrades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_capacity: Option<ExtraCapacity>,
}

fn default_at_once() -> i32 {
    DEFAULT_AT_ONCE
}

fn default_stop_after_failures() -> i32 {
    DEFAULT_STOP_AFTER_FAILURES
}

fn default_same_cause_stops() -> i32 {
    DEFAULT_SAME_CAUSE_STOPS
}

/// A wave: Clusters that are upgraded before those of the next one.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.count) || !has(self.percent)", "a wave has count or percent, not both"))]
pub struct Wave {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How many Clusters it has [default, without percent: all that are left].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub count: Option<i32>,
    /// The same, as a percentage of all selected Clusters, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub percent: Option<i32>,
    /// Only Clusters with these labels are in it [default: any].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
    /// For how long all of its Clusters must have been upgraded before the next wave begins, in minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_MINUTES))]
    pub soak_minutes: Option<i32>,
}

/// How far a plan is.
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
pub enum PlanPhase {
    /// It has requested nothing yet.
    #[default]
    Pending,
    /// Clusters are being upgraded, or it soaks.
    Progressing,
    /// It requests no further Cluster until a person acts: it is paused, or too many have failed.
    Stopped,
    /// Every wave has ended.
    Completed,
}

/// How many Clusters are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterCounts {
    /// Requested so far.
    pub requested: i32,
    /// Those of them that are upgraded.
    pub completed: i32,
    /// Those of them whose upgrade has failed, or does not go on.
    pub failed: i32,
}

/// A wave that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaveStatus {
    /// Its name.
    pub name: String,
    /// How many Clusters it has.
    pub size: i32,
    /// How many of them are in which state.
    pub counts: ClusterCounts,
    /// When it began.
    pub since: Time,
    /// When its last Cluster was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
}

/// A Cluster that is under way, or whose upgrade has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamedCluster {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its wave.
    pub wave: String,
    /// `Waiting`, `Upgrading` or `Failed`.
    pub state: String,
    /// Why it has failed, as a cause that other Clusters may share.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// Status of a ClusterUpgradePlan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradePlanStatus {
    /// How far it is.
    #[serde(default)]
    pub phase: PlanPhase,
    /// The version that the waves are for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<KubernetesVersion>,
    /// The present wave and how many there are, such as `canary (1 of 3)`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wave: String,
    /// The Clusters of all waves.
    #[serde(default)]
    pub counts: ClusterCounts,
    /// The waves that have begun, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAVES + 1))]
    pub waves: Vec<WaveStatus>,
    /// The Clusters that have failed, then those that are under way, at most 50. All: `kubectl get clusterupgrades -A -l
    /// refit.dev/plan=NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_NAMED_CLUSTERS))]
    pub clusters: Vec<NamedCluster>,
    /// Why a request was refused by the API server, while it is repeated.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// What people are notified of, the newest last, if the controller has receivers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_PLAN_NOTIFICATIONS))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["number"]))]
    pub notifications: Vec<PlanNotification>,
    /// Conditions, keyed by type: `Ready`, whether every Cluster has the version.
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
    fn a_plan_written_by_hand_needs_only_a_version() {
        let spec: ClusterUpgradePlanSpec =
            serde_json::from_value(serde_json::json!({"version": "v1.36.1"})).unwrap();
        assert_eq!((spec.clusters_at_once, spec.stop_after_failures), (10, 1));
        assert!(!spec.paused && spec.waves.is_empty());
    }
}
