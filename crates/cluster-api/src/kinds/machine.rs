//! The kind Machine.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use refit_kinds::keys;
use refit_kinds::version::StatedVersion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ContractRef;

/// One machine of a cluster and its desired state.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    doc = "A machine of a cluster and its desired state.",
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
    /// How the machine joins the cluster.
    #[serde(default)]
    pub bootstrap: Bootstrap,
    /// Reference to the infrastructure machine.
    #[serde(default)]
    pub infrastructure_ref: ContractRef,
    /// Kubernetes version, `vX.Y.Z`. During an update this is already the target version.
    #[serde(default, skip_serializing_if = "StatedVersion::is_absent")]
    pub version: StatedVersion,
    /// ID of the machine at its provider.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Failure domain of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    /// Seconds that a Machine must be Ready before it counts as Available.
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
    /// Reference to the bootstrap config; in a template, to its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<ContractRef>,
    /// Secret with the bootstrap data, once it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_name: Option<String>,
}

/// Timeouts of a Machine's deletion, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineDeletion {
    /// Timeout of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_timeout_seconds: Option<i32>,
    /// Timeout for detaching the volumes of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_volume_detach_timeout_seconds: Option<i32>,
    /// Timeout of the Node's deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// Observed state of a Machine.
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
    /// Reference to the Node, once it has registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// Information reported by the Node; `kubeletVersion` is the version that really runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// RFC 3339 timestamp: when the certificates of a control plane Machine expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_date: Option<String>,
    /// Phase: `Running`, `Updating`, `Deleting` and others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Generation that the status was computed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// One-way milestones of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineInitialization {
    /// The infrastructure machine exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
    /// The bootstrap data exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_data_secret_created: Option<bool>,
}

/// Reference to a Node of the workload cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRef {
    /// Name of the Node.
    pub name: String,
}

/// The part of `Node.status.nodeInfo` that Refit reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeInfo {
    /// Version of the running kubelet.
    #[serde(default)]
    pub kubelet_version: StatedVersion,
    /// Boot ID; changes with each boot.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
}

/// Reports whether this object (Machine, infrastructure machine or bootstrap config) is being
/// updated in place: by annotation, or because the UpdateMachine hook is pending
/// (`docs/facts/machine.md#conditions`).
pub fn update_in_progress(object: &impl kube::ResourceExt) -> bool {
    annotations_show_update(object.annotations())
}

/// Like [`update_in_progress`], from the annotations alone.
pub fn annotations_show_update(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(keys::UPDATE_IN_PROGRESS) || update_hook_pending(annotations)
}

/// Reports whether the UpdateMachine hook is pending on a Machine with these annotations.
pub fn update_hook_pending(annotations: &BTreeMap<String, String>) -> bool {
    annotations
        .get(keys::PENDING_HOOKS)
        .is_some_and(|hooks| hooks.split(',').any(|hook| hook.trim() == keys::UPDATE_MACHINE_HOOK))
}
