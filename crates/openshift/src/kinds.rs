//! The part of OpenShift's kinds that managed upgrades read. What is not read is kept as it is.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the one ClusterVersion of a cluster.
pub const CLUSTER_VERSION: &str = "version";
/// Name of the MachineConfigPool of the workers.
pub const WORKER_POOL: &str = "worker";
/// Namespace of MachineSets and Machines.
pub const MACHINE_API: &str = "openshift-machine-api";

/// Which release a cluster is to run: the cluster-version operator brings it there.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "config.openshift.io",
    version = "v1",
    kind = "ClusterVersion",
    plural = "clusterversions",
    status = "ClusterVersionStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClusterVersionSpec {
    /// Identifies the cluster.
    #[serde(rename = "clusterID", default)]
    pub cluster_id: String,
    /// The channel whose updates are available.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub channel: String,
    /// URL of the version graph; empty for the default one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub upstream: String,
    /// The release that is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_update: Option<Release>,
}

/// A release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Release {
    /// Its version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Its image.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
}

/// What the cluster-version operator shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClusterVersionStatus {
    /// The release that it works towards, or runs.
    #[serde(default)]
    pub desired: Release,
    /// The releases of the cluster, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ReleaseHistory>,
    /// The updates that are recommended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_updates: Option<Vec<Release>>,
    /// The updates with known risks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditional_updates: Vec<ConditionalUpdate>,
    /// Conditions, such as `Upgradeable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OperatorCondition>,
}

/// A release that a cluster was or is brought to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ReleaseHistory {
    /// `Completed` or `Partial`.
    pub state: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Its image.
    #[serde(default)]
    pub image: String,
    /// When the operator began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_time: Option<Time>,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
}

/// An update with known risks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ConditionalUpdate {
    /// The release.
    pub release: Release,
}

/// A condition of one of OpenShift's operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct OperatorCondition {
    /// Its type, such as `Degraded`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A CamelCase reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One of OpenShift's operators.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "config.openshift.io",
    version = "v1",
    kind = "ClusterOperator",
    plural = "clusteroperators",
    shortname = "co",
    status = "ClusterOperatorStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClusterOperatorSpec {}

/// What an operator shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClusterOperatorStatus {
    /// Conditions, such as `Available` and `Degraded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OperatorCondition>,
}

/// Nodes with the same configuration: the machine-config operator brings it to them.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "machineconfiguration.openshift.io",
    version = "v1",
    kind = "MachineConfigPool",
    plural = "machineconfigpools",
    shortname = "mcp",
    status = "MachineConfigPoolStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineConfigPoolSpec {
    /// Whether the operator leaves its nodes alone.
    #[serde(default)]
    pub paused: bool,
}

/// How far a pool is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineConfigPoolStatus {
    /// How many nodes it has.
    #[serde(default)]
    pub machine_count: i32,
    /// How many of them have the configuration.
    #[serde(default)]
    pub updated_machine_count: i32,
    /// How many of them cannot be brought to it without help.
    #[serde(default)]
    pub degraded_machine_count: i32,
}

/// A number of Machines with the same template, of OpenShift's own machine API.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "machine.openshift.io",
    version = "v1beta1",
    kind = "MachineSet",
    plural = "machinesets",
    namespaced,
    status = "MachineSetStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineSetSpec {
    /// How many Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The rest, such as selector and template: a copy has all of it.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: BTreeMap<String, Value>,
}

/// How many Machines of a set there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineSetStatus {
    /// How many Machines.
    #[serde(default)]
    pub replicas: i32,
    /// How many of them have a Ready node.
    #[serde(default)]
    pub ready_replicas: i32,
}

/// A machine of OpenShift's own machine API.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "machine.openshift.io",
    version = "v1beta1",
    kind = "Machine",
    plural = "machines",
    namespaced,
    status = "MachineStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineSpec {}

/// The node of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineStatus {
    /// Its node, once it has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// Such as `Running` or `Deleting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

/// A reference to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeRef {
    /// Name of the node.
    #[serde(default)]
    pub name: String,
}
