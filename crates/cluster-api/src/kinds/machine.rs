//! Machine.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use refit_kinds::keys;
use refit_kinds::version::StatedVersion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ContractRef;

/// One machine of a cluster and what it should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    doc = "One machine of a cluster and what it should be.",
    plural = "machines",
    shortname = "ma",
    category = "cluster-api",
    namespaced,
    status = "MachineStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeRef.name"),
    printcolumn(
        name = "ProviderID",
        type_ = "string",
        json_path = ".spec.providerID",
        priority = 1
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Up-to-date",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"UpToDate\")].status"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineSpec {
    /// Name of the Cluster.
    pub cluster_name: String,
    /// How the machine joins.
    #[serde(default)]
    pub bootstrap: Bootstrap,
    /// The infrastructure machine.
    #[serde(default)]
    pub infrastructure_ref: ContractRef,
    /// Kubernetes version, `vX.Y.Z`. It is the target already while an update runs.
    #[serde(default, skip_serializing_if = "StatedVersion::is_absent")]
    pub version: StatedVersion,
    /// Identity of the machine at its provider.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Where the machine stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    /// How long a Machine must be Ready before it counts as Available, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
    /// Timeouts of a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletion>,
}

/// How a machine joins its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Bootstrap {
    /// The bootstrap config, or in a template its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<ContractRef>,
    /// Secret with the bootstrap data, once it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_name: Option<String>,
}

/// Timeouts of a Machine's deletion, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineDeletion {
    /// How long the drain may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_timeout_seconds: Option<i32>,
    /// How long the volumes of the Node may take to be detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_volume_detach_timeout_seconds: Option<i32>,
    /// How long the Node's deletion may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// What is known of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineStatus {
    /// Conditions, keyed by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// One-way milestones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<MachineInitialization>,
    /// The Node, once it registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// The Node's own report: the version that really runs is `kubeletVersion` here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// `Running`, `Updating`, `Deleting` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Generation that the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// One-way milestones of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineInitialization {
    /// The infrastructure machine is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
    /// The bootstrap data is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_data_secret_created: Option<bool>,
}

/// Names a Node of the workload cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRef {
    /// Name of the Node.
    pub name: String,
}

/// The part of `Node.status.nodeInfo` that we read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeInfo {
    /// Version of the kubelet that runs.
    #[serde(default)]
    pub kubelet_version: StatedVersion,
    /// Changes with each boot.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
}

/// Whether this object (Machine, infrastructure machine or bootstrap config) is being updated in
/// place: by annotation, or because the UpdateMachine hook is pending (`spec/capi.md 4.2`).
pub fn update_in_progress(object: &impl kube::ResourceExt) -> bool {
    annotations_show_update(object.annotations())
}

/// The same by the annotations alone.
pub fn annotations_show_update(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(keys::UPDATE_IN_PROGRESS) || update_hook_pending(annotations)
}

/// Whether Cluster API still has to call UpdateMachine for the Machine with these annotations.
pub fn update_hook_pending(annotations: &BTreeMap<String, String>) -> bool {
    annotations
        .get(keys::PENDING_HOOKS)
        .is_some_and(|hooks| hooks.split(',').any(|hook| hook.trim() == keys::UPDATE_MACHINE_HOOK))
}
