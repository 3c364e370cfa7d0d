//! The kind MachineDrainRule.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether and in which order pods leave the nodes of some Machines in its namespace. If several
/// rules apply to a pod, the first by name counts.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineDrainRule",
    doc = "Whether and in which order pods leave the nodes of some Machines.",
    plural = "machinedrainrules",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Behavior", type_ = "string", json_path = ".spec.drain.behavior"),
    printcolumn(name = "Order", type_ = "string", json_path = ".spec.drain.order"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineDrainRuleSpec {
    /// What to do with the pods.
    pub drain: DrainConfig,
    /// Machines that match any of these; all Machines of the namespace if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub machines: Vec<DrainMachines>,
    /// Pods that match any of these; all pods if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub pods: Vec<DrainPods>,
}

/// What to do with the pods of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainConfig {
    /// [`DRAIN`], [`SKIP`] or [`WAIT_COMPLETED`]. It is a string, so that a value from a newer
    /// Cluster API does not make the whole rule unreadable.
    #[schemars(extend("enum" = ["Drain", "Skip", "WaitCompleted"]))]
    pub behavior: String,
    /// Pods with a lower order leave first; the default is 0. Only with [`DRAIN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<i32>,
}

/// Evict the pods.
pub const DRAIN: &str = "Drain";
/// Leave the pods, and do not wait for them.
pub const SKIP: &str = "Skip";
/// Leave the pods, and wait until they complete.
pub const WAIT_COMPLETED: &str = "WaitCompleted";

/// Machines of a rule: both selectors must match; an absent selector matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainMachines {
    /// Labels of the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Labels of its Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
}

/// Pods of a rule: both selectors must match; an absent selector matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPods {
    /// Labels of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Labels of its namespace, in the workload cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
}
