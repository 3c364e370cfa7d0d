//! UpdateGroup: how many machines of one group may be down, when the next one begins, and why the group waits.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ClaimId, ConfigurationPart, Disruption, GroupRollout, MachineUid, Pacing, UpdaterAction,
};
use crate::version::KubernetesVersion;

/// One control plane, MachineDeployment or standalone MachineSet: its slots, what blocks it and how
/// long its updates took.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "UpdateGroup",
    doc = "How many machines of a group may be unavailable, which machines wait, and why.",
    plural = "updategroups",
    shortname = "ug",
    category = "refit",
    namespaced,
    status = "UpdateGroupStatus",
    derive = "PartialEq",
    printcolumn(name = "Owner", type_ = "string", json_path = ".spec.owner.kind"),
    printcolumn(name = "Limit", type_ = "integer", json_path = ".status.limit"),
    printcolumn(name = "Paused", type_ = "boolean", json_path = ".spec.pacing.paused"),
    printcolumn(name = "Busy", type_ = "string", json_path = ".status.slots[*].machine"),
    printcolumn(
        name = "Progressing",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Progressing\")].status"
    ),
    printcolumn(
        name = "Blocked",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Blocked\")].status"
    ),
    printcolumn(
        name = "Why",
        type_ = "string",
        description = "What blocks the group; for a change that no updater covers, its first path",
        json_path = ".status.conditions[?(@.type==\"Blocked\")].message"
    ),
    printcolumn(
        name = "Answer",
        type_ = "string",
        description = "The last answer to Cluster API: in place, replaced, preserved, not now",
        json_path = ".status.conditions[?(@.type==\"Covered\")].reason"
    ),
    printcolumn(
        name = "Uncovered",
        type_ = "string",
        json_path = ".status.uncovered[*]",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.clusterName == oldSelf.clusterName && self.owner == oldSelf.owner && \
    self.controlPlane == oldSelf.controlPlane", "spec is immutable but for pacing: it names the owner of the group"))]
pub struct UpdateGroupSpec {
    /// Name of the Cluster.
    pub cluster_name: String,
    /// The control plane, MachineDeployment or MachineSet.
    pub owner: GroupOwner,
    /// Whether this is the control plane of its Cluster.
    pub control_plane: bool,
    /// When the next machine may be updated.
    #[serde(default, skip_serializing_if = "Pacing::is_default")]
    pub pacing: Pacing,
}

/// Reference to the owner of a group, in the group's namespace.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct GroupOwner {
    /// API group and version of the owner.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
}

/// The kind of object that owns the Machines of a group.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Owner {
    /// A control plane; Refit reads only the kind KubeadmControlPlane.
    #[serde(rename = "KubeadmControlPlane")]
    ControlPlane,
    /// A MachineDeployment.
    #[serde(rename = "MachineDeployment")]
    Deployment,
    /// A MachineSet without a MachineDeployment.
    #[serde(rename = "MachineSet")]
    Set,
}

impl Owner {
    /// The owner of this kind; `None` for a kind that Refit does not support.
    ///
    /// ```
    /// use refit_kinds::refit::Owner;
    /// assert_eq!(Owner::of_kind("MachineDeployment"), Some(Owner::Deployment));
    /// assert_eq!(Owner::of_kind("MachinePool"), None);
    /// ```
    pub fn of_kind(kind: &str) -> Option<Self> {
        [Self::ControlPlane, Self::Deployment, Self::Set]
            .into_iter()
            .find(|owner| owner.kind() == kind)
    }

    /// Kind of the owner, as in its objects.
    pub fn kind(self) -> &'static str {
        match self {
            Self::ControlPlane => "KubeadmControlPlane",
            Self::Deployment => "MachineDeployment",
            Self::Set => "MachineSet",
        }
    }

    /// JSON pointer to the version in the owner's spec.
    pub fn version_path(self) -> &'static str {
        match self {
            Self::ControlPlane => "/spec/version",
            Self::Deployment | Self::Set => "/spec/template/spec/version",
        }
    }
}

impl GroupOwner {
    /// Type of the owner. A kind that Refit does not support is a control plane of another
    /// provider.
    pub fn owner(&self) -> Owner {
        Owner::of_kind(&self.kind).unwrap_or(Owner::ControlPlane)
    }
}

/// Status of an UpdateGroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateGroupStatus {
    /// Machines that may be disturbed now. A slot is claimed by compare-and-swap on the
    /// resourceVersion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["machine"]))]
    pub slots: Vec<Slot>,
    /// Machines that are updated without being disturbed: they take no slot, and there are at most ten at a time. Entered
    /// by compare-and-swap, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["machine"]))]
    pub undisturbed: Vec<Slot>,
    /// Number of slots.
    #[serde(default)]
    pub limit: i32,
    /// Number of the last claim.
    #[serde(default)]
    pub claims: ClaimId,
    /// The last rollout of which a machine has begun or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Box<GroupRollout>>,
    /// Number of the rollout that waits for `spec.pacing.approve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaits_approval: Option<i64>,
    /// Machines that requested a slot and wait, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// Paths of a change that no updater covers, one per line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncovered: Vec<String>,
    /// What Updaters do about the change that the owner requests, until it requests another one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["updater"]))]
    pub change: Vec<ChangePart>,
    /// Generation of the owner that requested this change last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_generation: Option<i64>,
    /// The bundle that an UpgradeTask of the owner names, for updates that Cluster API requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Box<GroupBundle>>,
    /// Durations of past updates, newest last, by step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["step"]))]
    pub durations: Vec<StepDurations>,
    /// Conditions, keyed by type: `Progressing`, `Blocked`, `Covered`, `PolicyUnderstood`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where hosts of a group install a version from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupBundle {
    /// Where the bundle is, for the hosts.
    pub location: String,
    /// The version that it is for.
    pub version: KubernetesVersion,
}

/// What an Updater does about a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangePart {
    /// Name of the Updater.
    pub updater: String,
    /// Whether it makes the change, or leaves it.
    pub action: UpdaterAction,
    /// The paths, as in `uncovered`.
    pub paths: Vec<String>,
    /// For `kubeadm-config`: what is applied to the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ChangedConfiguration>,
}

/// What is applied of a KubeadmConfig, and how that disturbs the machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedConfiguration {
    /// What is applied.
    pub part: ConfigurationPart,
    /// How it disturbs each machine.
    pub disruption: Disruption,
}

impl ChangedConfiguration {
    /// Adds what another call about the same change has found.
    pub fn merge(&mut self, other: Self) {
        self.part.merge(other.part);
        self.disruption = self.disruption.max(other.disruption);
    }
}

/// A claimed slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// Name of the Machine.
    pub machine: String,
    /// uid of the Machine.
    pub machine_uid: MachineUid,
    /// The NodeUpdate that claimed it.
    pub node_update: String,
    /// When the slot was claimed.
    pub since: Time,
    /// Number of this claim in the group, from 1. The gate of a host's plan opens only for a claim
    /// that is newer than the last returned one (`HostPlan.spec.returnedClaim`).
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub claim: ClaimId,
}

/// A Machine that waits for a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Name of the Machine.
    pub machine: String,
    /// CamelCase reason.
    pub reason: String,
    /// A whole sentence that explains the reason.
    pub message: String,
}

/// Durations of one step in past updates of the group, in seconds, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepDurations {
    /// Name of the step.
    pub step: String,
    /// Durations, at most 16.
    #[schemars(length(max = 16))]
    pub seconds: Vec<i32>,
}

/// Name of the UpdateGroup of an owner.
///
/// ```
/// use refit_kinds::refit::update_group_name;
/// assert_eq!(update_group_name("KubeadmControlPlane", "edge-1"), "kubeadmcontrolplane-edge-1");
/// ```
pub fn update_group_name(kind: &str, name: &str) -> String {
    format!("{}-{name}", kind.to_lowercase())
}
