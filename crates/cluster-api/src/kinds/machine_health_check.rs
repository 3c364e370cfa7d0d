//! The kind MachineHealthCheck.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Opaque;

/// When Machines count as unhealthy, and when they may be remediated.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineHealthCheck",
    doc = "When the Machines of a selector count as unhealthy, and when they may be remediated.",
    plural = "machinehealthchecks",
    shortname = "mhc",
    shortname = "mhcs",
    category = "cluster-api",
    namespaced,
    status = "MachineHealthCheckStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.expectedMachines"),
    printcolumn(name = "Healthy", type_ = "integer", json_path = ".status.currentHealthy"),
    printcolumn(
        name = "Allowed",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"RemediationAllowed\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineHealthCheckSpec {
    /// Name of the Cluster.
    pub cluster_name: String,
    /// Selects the Machines to check.
    #[serde(default)]
    pub selector: LabelSelector,
    /// Checks that make a Machine unhealthy.
    #[serde(default)]
    pub checks: HealthChecks,
    /// How to remediate unhealthy Machines.
    #[serde(default)]
    pub remediation: HealthRemediation,
}

/// Checks that make a Machine unhealthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct HealthChecks {
    /// Seconds that a Machine may be without a Node; the default is 600, 0 means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_startup_timeout_seconds: Option<i32>,
    /// Conditions of the Node, any of which makes its Machine unhealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unhealthy_node_conditions: Vec<UnhealthyCondition>,
    /// Conditions of the Machine, any of which makes it unhealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unhealthy_machine_conditions: Vec<UnhealthyCondition>,
}

/// A condition status that makes a Machine unhealthy after a timeout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// The unhealthy status: `True`, `False` or `Unknown`.
    pub status: String,
    /// Seconds after which the status makes the Machine unhealthy.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub timeout_seconds: i32,
}

/// How to remediate unhealthy Machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct HealthRemediation {
    /// When remediation is allowed; always if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_if: Option<RemediationTrigger>,
    /// Template of an object that remediates instead of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<Opaque>,
}

/// How many unhealthy Machines still allow remediation; more than that suggest a different cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationTrigger {
    /// Maximum number or percentage of unhealthy Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_less_than_or_equal_to: Option<IntOrString>,
    /// Allowed range of the number of unhealthy Machines, such as `[3-5]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_in_range: Option<String>,
}

/// Observed state of the checked Machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineHealthCheckStatus {
    /// Conditions, keyed by type: `RemediationAllowed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Number of Machines that are checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_machines: Option<i32>,
    /// Number of checked Machines that are healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_healthy: Option<i32>,
    /// How many more may become unhealthy before remediation stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediations_allowed: Option<i32>,
    /// Names of the Machines that are checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Generation that the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
