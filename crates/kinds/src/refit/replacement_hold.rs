//! ReplacementHold: which Machines Cluster API may create and delete in a namespace.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of the ReplacementHold of a namespace.
pub const REPLACEMENT_HOLD: &str = "refit";

/// Which Machines Cluster API may create and delete in a namespace: the parameters of the
/// ValidatingAdmissionPolicy `refit-replacement-holds`. The controller writes it. The permission to write this
/// kind lets Cluster API replace machines, or stops it from scaling.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "ReplacementHold",
    doc = "Which Machines Cluster API may create and delete in a namespace: the parameters of an admission policy. The controller writes it.",
    plural = "replacementholds",
    shortname = "rh",
    category = "refit",
    namespaced,
    derive = "PartialEq",
    validation = Rule::new("self.metadata.name == 'refit'").message("the policy reads the object with the name refit"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ReplacementHoldSpec {
    /// The users whose requests are held: those of Cluster API's managers.
    #[serde(default)]
    pub callers: Vec<String>,
    /// The owners whose Machines are held. Cluster API may create and delete the Machines of any other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<HeldOwner>,
}

/// What Cluster API may do to the Machines of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldOwner {
    /// Kind of the owner.
    pub kind: HeldKind,
    /// Name of the owner.
    pub name: String,
    /// Whether it may create one.
    pub create: Admission,
    /// Whether it may delete one. It always may if a MachineHealthCheck has requested the remediation of that Machine.
    pub delete: Admission,
    /// Names of the Machines that it may delete nevertheless.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletable_machines: Vec<String>,
    /// Names of the MachineSets whose Machines it may delete nevertheless.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletable_machine_sets: Vec<String>,
}

/// A kind of owners whose Machines are held.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum HeldKind {
    /// A control plane of kubeadm.
    KubeadmControlPlane,
    /// Workers.
    MachineDeployment,
}

/// Whether requests are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Admission {
    /// They are.
    Allowed,
    /// They are not.
    Refused,
}
