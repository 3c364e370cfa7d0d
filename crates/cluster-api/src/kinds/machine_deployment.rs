//! The kind MachineDeployment.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MachineSetDeletion, MachineTemplate};
use crate::IntOrPercent;

/// Workers of a cluster, rolled out from one template to the next.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineDeployment",
    doc = "Workers of a cluster, rolled out from one template to the next.",
    plural = "machinedeployments",
    shortname = "md",
    category = "cluster-api",
    namespaced,
    status = "MachineDeploymentStatus",
    derive = "PartialEq",
    derive = "Default",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Up-to-date", type_ = "integer", json_path = ".status.upToDateReplicas"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.template.spec.version")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineDeploymentSpec {
    /// Name of the Cluster.
    pub cluster_name: String,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Selects the Machines of the deployment.
    #[serde(default)]
    pub selector: LabelSelector,
    /// Template of the Machines.
    #[serde(default)]
    pub template: MachineTemplate,
    /// How changes are rolled out to the Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<MachineDeploymentRollout>,
    /// Pauses the rollout, but not the syncing of MachineSets
    /// (`docs/facts/machine-deployment.md#paused-machinedeployment`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Order in which Machines are deleted at a scale-down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineSetDeletion>,
}

/// How changes are rolled out to the Machines of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineDeploymentRollout {
    /// RFC 3339 timestamp: Machines older than this are rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Rolling update or on delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<MachineDeploymentStrategy>,
}

/// Rollout strategy of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineDeploymentStrategy {
    /// `RollingUpdate` or `OnDelete`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Parameters of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

impl MachineDeployment {
    /// Returns how many of `replicas` machines may be unavailable by its `maxUnavailable`: at least
    /// one if it does not surge, as Cluster API decides. A value that Cluster API's webhooks would
    /// reject counts as not set.
    pub fn max_unavailable(&self, replicas: i64) -> i64 {
        let unavailable = IntOrPercent::read(self.rolling_update().max_unavailable.as_ref(), 0);
        let unavailable = unavailable.map_or(0, |limit| limit.rounded_down(replicas));
        if self.max_surge(replicas) > 0 { unavailable } else { unavailable.max(1) }
    }

    /// Returns how many machines a rollout may have in addition to `replicas`. A value that Cluster API's webhooks
    /// would reject counts as not set.
    pub fn max_surge(&self, replicas: i64) -> i64 {
        if self.rolls_on_delete() {
            return 0;
        }
        let surge = IntOrPercent::read(self.rolling_update().max_surge.as_ref(), 1);
        surge.map_or(1, |limit| limit.rounded_up(replicas))
    }

    fn rolling_update(&self) -> RollingUpdate {
        let strategy = self.strategy();
        strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default()
    }

    /// Whether a rollout touches no Machine before an operator deletes it: the strategy `OnDelete`.
    pub fn rolls_on_delete(&self) -> bool {
        self.strategy().is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete"))
    }

    fn strategy(&self) -> Option<&MachineDeploymentStrategy> {
        self.spec.rollout.as_ref()?.strategy.as_ref()
    }
}

/// How many machines may be missing or additional during a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Maximum number of unavailable machines; Cluster API's default is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Maximum number of additional machines; Cluster API's default is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
}

/// Observed state of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct MachineDeploymentStatus {
    /// Conditions, keyed by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of Machines that are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of Machines that are Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Number of Machines that match the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// Phase, such as `Running` or `ScalingUp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Generation that the status was computed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
