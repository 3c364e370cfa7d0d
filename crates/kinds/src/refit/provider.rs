//! The contract with providers: controllers of others that update machines (`docs/contract/`).
//!
//! A provider has a template kind and a kind that Refit makes from it for each update of a machine. These are
//! the parts of that kind which Refit writes and reads; everything else belongs to the provider.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClaimId, Gate, GoalOption, MachineRef, NodeName, PlanId, Role, Stage};
use crate::version::KubernetesVersion;

/// What Refit writes into `spec` of a provider's object. Fields of the template's own spec stay next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderSpec {
    /// The Machine, by name and uid, in the namespace of the object.
    pub machine_ref: MachineRef,
    /// The Node of the Machine.
    #[serde(default)]
    pub node_name: NodeName,
    /// What the Machine must reach.
    pub goal: ProviderGoal,
    /// Whether the update continues, or is to stop at the next safe point.
    #[serde(default)]
    pub stage: Stage,
    /// How far the provider may go. It only moves forward.
    #[serde(default)]
    pub gate: Gate,
}

/// What a provider is to bring a Machine to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderGoal {
    /// Kubernetes version, `vX.Y.Z`, if it is a part of the goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<KubernetesVersion>,
    /// What the node does for kubeadm: the first control plane machine of a version runs `kubeadm upgrade
    /// apply`, all others `kubeadm upgrade node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Where Kubernetes comes from, instead of its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<GoalOption>,
    /// sha256 of the values that the Updater claims of the Machine's objects. The values are in the objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
}

/// What a provider reports in `status` of its object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// The generation that this status is about: Refit trusts `ready` and a failure only for the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// With `stage: Ongoing`: the Machine has reached the goal. With `stage: Abort`: the provider has
    /// stopped, and the Machine is as it was before, except for what `leftBehind` names.
    #[serde(default)]
    pub ready: bool,
    /// The gate up to which everything is done.
    #[serde(default)]
    pub passed: Gate,
    /// From now on the update cannot be stopped or undone: `stage: Abort` has no effect.
    #[serde(default)]
    pub past_no_return: bool,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProviderProgress>,
    /// What an ended update has left on the machine, each entry a whole sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// Why it does not get on: a CamelCase word; empty if nothing is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,
    /// The same as a sentence for an operator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure_message: String,
    /// Whether the provider tries again by itself. If not, the failure ends the update.
    #[serde(default)]
    pub retriable: bool,
    /// Conditions of the provider's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// How far a provider has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderProgress {
    /// Completed share, 0 to 100.
    #[serde(default)]
    pub percent: i32,
    /// What it is doing, for an operator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A provider's object for an update of a Machine, as Refit reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderObject {
    /// Its name.
    pub name: String,
    /// The Updater whose template it was made from.
    pub updater: String,
    /// The NodeUpdate that it was made for.
    pub node_update: String,
    /// Identifies that NodeUpdate: a later one of its name has another uid.
    pub plan_id: PlanId,
    /// The claim of a slot that was returned unused: no gate opens for it any more.
    pub returned_claim: ClaimId,
    /// Its generation.
    pub generation: i64,
    /// Guards the next write.
    pub resource_version: String,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// What Refit has written.
    pub spec: ProviderSpec,
    /// What the provider reports.
    pub status: ProviderStatus,
}

impl ProviderObject {
    /// Whether the status is about the newest spec.
    pub fn is_observed(&self) -> bool {
        self.status.observed_generation == Some(self.generation)
    }
}
