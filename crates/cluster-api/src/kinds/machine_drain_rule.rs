//! MachineDrainRule.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether and in which order pods leave the nodes of some Machines of its namespace. Of several
/// rules that apply to a pod, the first by name counts.
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
    /// What happens to the pods.
    pub drain: DrainConfig,
    /// The Machines, any of these; all of the namespace if nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub machines: Vec<DrainMachines>,
    /// The pods, any of these; all if nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub pods: Vec<DrainPods>,
}

/// What happens to the pods of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainConfig {
    /// [`DRAIN`], [`SKIP`] or [`WAIT_COMPLETED`]. Text, so that a word of a newer Cluster API does
    /// not make the whole rule unreadable.
    #[schemars(extend("enum" = ["Drain", "Skip", "WaitCompleted"]))]
    pub behavior: String,
    /// Lower ones leave first; 0 if nothing is said. With [`DRAIN`] only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<i32>,
}

/// The pods are evicted.
pub const DRAIN: &str = "Drain";
/// The pods stay, and nobody waits for them.
pub const SKIP: &str = "Skip";
/// The pods stay until they have completed by themselves.
pub const WAIT_COMPLETED: &str = "WaitCompleted";

/// Machines of a rule: both selectors must match, one that is not there matches.
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

/// Pods of a rule: both selectors must match, one that is not there matches.
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
