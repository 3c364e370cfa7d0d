//! The kind KubeadmControlPlane.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use refit_kinds::version::StatedVersion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ContractRef, MachineDeletion, Opaque, TemplateMeta};
use crate::IntOrPercent;

/// The control plane machines of a cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmControlPlane",
    doc = "The control plane machines of a cluster.",
    plural = "kubeadmcontrolplanes",
    shortname = "kcp",
    category = "cluster-api",
    namespaced,
    status = "KubeadmControlPlaneStatus",
    derive = "PartialEq",
    derive = "Default",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Up-to-date", type_ = "integer", json_path = ".status.upToDateReplicas"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct KubeadmControlPlaneSpec {
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Kubernetes version, `vX.Y.Z`.
    pub version: StatedVersion,
    /// Template of the Machines.
    #[serde(default)]
    pub machine_template: ControlPlaneMachineTemplate,
    /// Spec of the Machines' KubeadmConfigs.
    #[serde(default)]
    pub kubeadm_config_spec: Opaque,
    /// How changes are rolled out to the Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<ControlPlaneRollout>,
}

/// Template of control plane Machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ControlPlaneMachineTemplate {
    /// Labels and annotations.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// Template reference and timeouts.
    #[serde(default)]
    pub spec: ControlPlaneMachineTemplateSpec,
}

/// Template reference and timeouts of control plane Machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ControlPlaneMachineTemplateSpec {
    /// The infrastructure machine template.
    #[serde(default)]
    pub infrastructure_ref: ContractRef,
    /// Timeouts of a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletion>,
}

/// How changes are rolled out to control plane Machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ControlPlaneRollout {
    /// RFC 3339 timestamp: Machines older than this are rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// What is rolled out before it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ControlPlaneRolloutBefore>,
    /// Only `RollingUpdate` exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<ControlPlaneStrategy>,
}

/// What is rolled out before it is due.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ControlPlaneRolloutBefore {
    /// Machines whose certificates expire within this many days are rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_days: Option<i32>,
}

impl KubeadmControlPlane {
    /// Returns how many additional machines a rollout may add. A value that Cluster API's webhooks would reject
    /// counts as not set.
    pub fn max_surge(&self) -> i64 {
        let strategy = self.spec.rollout.as_ref().and_then(|rollout| rollout.strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = IntOrPercent::read(rolling.and_then(|rolling| rolling.max_surge.as_ref()), 1);
        surge.map_or(1, |limit| limit.rounded_up(1))
    }
}

/// Rollout strategy of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ControlPlaneStrategy {
    /// `RollingUpdate`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Parameters of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<ControlPlaneRollingUpdate>,
}

/// Limit of additional machines during a rollout of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneRollingUpdate {
    /// 0 or 1; Cluster API's default is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
}

/// Observed state of a KubeadmControlPlane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct KubeadmControlPlaneStatus {
    /// Conditions, keyed by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// One-way milestones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ControlPlaneInitialization>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of Machines that are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of Machines that are Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Number of Machines that match the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// Lowest version among the Machines.
    #[serde(default, skip_serializing_if = "StatedVersion::is_absent")]
    pub version: StatedVersion,
    /// Generation that the status was computed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// One-way milestones of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneInitialization {
    /// The first machine of the control plane is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}
