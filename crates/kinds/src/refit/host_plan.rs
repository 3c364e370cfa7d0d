//! HostPlan: the steps of one host, how far it may go, and its report.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{ClaimId, PackageDriver, PlanId, PlannedStep, StepState, StepType};
use crate::version::{self, KubernetesVersion};

/// What the agent on a host is to do, and what it says of itself. There is one per node, named as
/// the node; the agent makes it with an empty plan and reports before it has anything to do.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "HostPlan",
    doc = "What the agent on a host is to do, how far it may go, and what it says of itself.",
    plural = "hostplans",
    shortname = "hp",
    category = "refit",
    namespaced,
    status = "HostPlanStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Plan", type_ = "string", json_path = ".spec.nodeUpdate"),
    printcolumn(name = "Gate", type_ = "string", json_path = ".spec.gate"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Kubelet", type_ = "string", json_path = ".status.facts.kubeletVersion"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.agentVersion"),
    printcolumn(name = "Reported", type_ = "date", json_path = ".status.reportedAt")
)]
#[serde(rename_all = "camelCase")]
pub struct HostPlanSpec {
    /// Name of the NodeUpdate that the plan is of; empty without a plan.
    #[serde(default)]
    pub node_update: String,
    /// uid of that NodeUpdate: tells one plan from the next.
    #[serde(default)]
    pub plan_id: PlanId,
    /// How far the agent may go. It only moves forward within one plan.
    #[serde(default)]
    pub gate: Gate,
    /// Stop at the next safe step.
    #[serde(default)]
    pub abort: bool,
    /// The claim of a slot that was given back unused: the gate is opened for a later one only.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub returned_claim: ClaimId,
    /// Id of the first step that cannot be rolled back: before it a failure or an abort undoes what
    /// was done. Empty in plans from before this field, where the agent judges by the steps' types.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub point_of_no_return: String,
    /// The steps, in order.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub steps: Vec<PlannedStep>,
}

/// How far an agent may go.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Gate {
    /// Nothing may start.
    #[default]
    Closed,
    /// Downloads, checks and snapshots: nothing is disturbed.
    Stage,
    /// kubeadm's part: static pods are replaced, workloads go on.
    Upgrade,
    /// Everything: the node is drained.
    Disrupt,
}

/// What an agent says of its host and its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPlanStatus {
    /// Version of the agent.
    #[serde(default)]
    pub agent_version: String,
    /// Step types that the agent knows. Those of a newer agent that are not known here are left out.
    #[serde(default, deserialize_with = "known_types")]
    pub capabilities: Vec<StepType>,
    /// What the host looks like.
    #[serde(default)]
    pub facts: HostFacts,
    /// When the agent last said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_at: Option<Time>,
    /// The plan that `state` and `steps` speak of.
    #[serde(default)]
    pub plan_id: PlanId,
    /// How far that plan is.
    #[serde(default)]
    pub state: PlanState,
    /// The gate up to which every step is done.
    #[serde(default)]
    pub passed: Gate,
    /// The steps, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub steps: Vec<HostStepStatus>,
    /// The point of no return lies behind: what is begun is ended, not undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub past_no_return: bool,
    /// What a plan that failed or was stopped has left on the host, each as a whole sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub left_behind: Vec<String>,
}

fn known_types<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StepType>, D::Error> {
    let names = Vec::<serde_json::Value>::deserialize(deserializer)?;
    Ok(names.into_iter().filter_map(|name| serde_json::from_value(name).ok()).collect())
}

/// What a host looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// Version of the kubelet that runs, `vX.Y.Z`; empty where none runs.
    #[serde(default, with = "version::or_empty")]
    #[schemars(schema_with = "version::or_empty::schema")]
    pub kubelet_version: Option<KubernetesVersion>,
    /// Changes with each boot.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
    /// Pretty name of the operating system.
    #[serde(default)]
    pub os_image: String,
    /// Installed packages that matter, by name.
    #[serde(default)]
    pub packages: BTreeMap<String, String>,
    /// Images of the static pods, as their manifests have them, by component; none on a worker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub static_pods: BTreeMap<String, String>,
    /// The package manager that the host's Kubernetes is from; none where the host has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_driver: Option<PackageDriver>,
}

/// How far a plan is on its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlanState {
    /// There is no plan.
    #[default]
    Idle,
    /// A step is under way.
    Running,
    /// The next step needs a gate that is not open.
    AtGate,
    /// A step failed and is tried again.
    Retrying,
    /// A step failed for good, or the plan was aborted: what was done is taken back.
    Undoing,
    /// Every step is done.
    Succeeded,
    /// A step failed for good.
    Failed,
    /// The plan was aborted, and what could be undone is undone.
    Stopped,
}

/// One step on its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostStepStatus {
    /// Id of the planned step.
    pub id: String,
    /// How far it is.
    pub state: StepState,
    /// Which try this is, from 1.
    #[serde(default)]
    pub attempt: i32,
    /// When the first try started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// CamelCase reason of a failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What may end a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
    /// What went wrong and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What may end a failure.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FailureKind {
    /// Another try: a lock, a mirror, a timeout.
    Retriable,
    /// Nothing on this host: the plan cannot be carried out as it is, only another one can.
    Final,
    /// A person on this host or at what it depends on; then another try.
    NeedsPerson,
}
