//! NodeUpdate: one request to bring one Machine to one goal.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Goal, MachineUid, NodeName};
use crate::version::{self, KubernetesVersion};

/// One request to bring one Machine to one goal. Named `<machine>-<ordinal>`: creating it is the
/// compare-and-swap by which only one of several requests wins.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "NodeUpdate",
    doc = "One request to bring one Machine to one goal.",
    plural = "nodeupdates",
    shortname = "nu",
    category = "refit",
    namespaced,
    status = "NodeUpdateStatus",
    derive = "PartialEq",
    printcolumn(name = "Machine", type_ = "string", json_path = ".spec.machineRef.name"),
    printcolumn(name = "Goal", type_ = "string", json_path = ".spec.goal.kubernetesVersion"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Percent", type_ = "integer", json_path = ".status.progress.percent"),
    printcolumn(name = "Blocked by", type_ = "string", json_path = ".status.blockedBy[0].reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.machineRef == oldSelf.machineRef && self.goal == oldSelf.goal && self.goalHash == oldSelf.goalHash && self.origin == oldSelf.origin", "spec is immutable but for stage"))]
#[x_kube(validation = ("oldSelf.stage != 'Abort' || self.stage == 'Abort'", "an aborted NodeUpdate stays aborted: ask for a new one"))]
pub struct NodeUpdateSpec {
    /// Whether the work goes on or is to stop.
    #[serde(default)]
    pub stage: Stage,
    /// The Machine, by name and uid.
    pub machine_ref: MachineRef,
    /// Which way in made the request.
    pub origin: Origin,
    /// What is to be reached.
    pub goal: Goal,
    /// sha256 of the goal's canonical JSON.
    pub goal_hash: String,
}

/// Whether the work goes on (seed 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Stage {
    /// The work goes on.
    #[default]
    Ongoing,
    /// The work stops at the next safe point.
    Abort,
}

/// Names a Machine of the same namespace. The uid tells it from a later one of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineRef {
    /// Name of the Machine.
    pub name: String,
    /// uid of the Machine.
    pub uid: MachineUid,
}

/// Which way in made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Origin {
    /// Cluster API's UpdateMachine hook.
    Hook,
    /// An operator, by a NodeUpdate of their own.
    Task,
}

/// How far a NodeUpdate is, in the order of time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// Nothing has been decided yet, or the update waits for a precondition of its start.
    #[default]
    Pending,
    /// The host downloads and checks; nothing is disturbed.
    Staging,
    /// Waits for a slot of its group, or for what `blockedBy` names.
    Waiting,
    /// kubeadm does its part.
    Upgrading,
    /// The node is cordoned and its pods are evicted.
    Draining,
    /// The host replaces the kubelet, and reboots where that is needed.
    Disrupting,
    /// The node must come back as asked for.
    Verifying,
    /// The node is opened for pods again.
    Uncordoning,
    /// The work is being stopped.
    Stopping,
    /// The goal is reached.
    Succeeded,
    /// The goal is not reached, and nothing more happens until somebody asks.
    Failed,
    /// The work was stopped before the goal was reached.
    Stopped,
}

impl Phase {
    /// Whether nothing on the node or its host is disturbed yet.
    pub fn is_undisturbed(self) -> bool {
        self <= Self::Waiting
    }

    /// Whether nothing more happens by itself.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Stopped)
    }
}

/// What a machine is in its cluster, as far as kubeadm cares (`spec/node.md 2.3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// Runs `kubeadm upgrade apply`.
    FirstControlPlane,
    /// Runs `kubeadm upgrade node` with static pods.
    ControlPlane,
    /// Runs `kubeadm upgrade node`.
    Worker,
}

/// What keeps an update from going on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// CamelCase reason, from an enum of `refit-core`.
    pub reason: String,
    /// The object that blocks, such as `default/web`.
    #[serde(default)]
    pub object: String,
    /// The pod that cannot leave the node, where a drain is blocked, such as `default/web-1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// A whole sentence: what blocks and what ends it.
    #[serde(default)]
    pub message: String,
    /// Since when.
    pub since: Time,
}

/// State of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StepState {
    /// Not started.
    #[default]
    Pending,
    /// Started.
    Running,
    /// Ended well.
    Done,
    /// Ended badly; `message` says how.
    Failed,
    /// Found to be unnecessary.
    Skipped,
    /// Done, then taken back.
    Undone,
}

/// One step of a NodeUpdate, on the host or in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepStatus {
    /// Name, such as `kubeadm-upgrade`.
    pub name: String,
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
    /// What went wrong, or what was found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How hard a drain tries: the escalation ladder (docs/drain.md).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum DrainRung {
    /// Pods are evicted, and budgets are waited for.
    #[default]
    Evict,
    /// The same, and somebody was told that it takes long.
    Notified,
    /// Pods that withstood their eviction are deleted, with their grace.
    Delete,
    /// Pods that withstood that, too, are removed without grace.
    Force,
    /// The Machine's own timeout ended the drain; pods or volumes were left.
    GivenUp,
}

/// What a drain has to remember: its deadlines count from here, whoever looks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// How hard it tries: the highest rung so far.
    #[serde(default)]
    pub rung: DrainRung,
    /// Since when it is on that rung.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Why it got there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Order of the pods whose turn it is, by MachineDrainRules.
    #[serde(default)]
    pub order: i32,
    /// Since when it is their turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_since: Option<Time>,
    /// Since when the node is out of its load balancers on our word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_since: Option<Time>,
    /// Since when the pods are gone and volumes are waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_since: Option<Time>,
}

/// How much is done, and how long the rest takes by past durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// 0 to 100.
    pub percent: i32,
    /// Predicted rest in seconds; absent while there is nothing to predict from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<i32>,
}

/// What is known of a NodeUpdate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeUpdateStatus {
    /// How far the update is.
    #[serde(default)]
    pub phase: Phase,
    /// One line for `kubectl get -o wide` and the hook's answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Decided once, sticky through retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The Node of the Machine.
    #[serde(default, skip_serializing_if = "NodeName::is_empty")]
    pub node_name: NodeName,
    /// Version that the kubelet ran when the update began.
    #[serde(default, with = "version::or_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version::or_empty::schema")]
    pub from_version: Option<KubernetesVersion>,
    /// What keeps the update from going on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<Blocker>,
    /// The steps, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub steps: Vec<StepStatus>,
    /// How much is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The cordon on the Node is ours, and is lifted at a good end.
    #[serde(default)]
    pub cordoned_by_us: bool,
    /// What the drain has come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// CamelCase reason of a failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,
    /// A whole sentence on the failure and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure_message: String,
    /// Whether one more try may help without a person.
    #[serde(default)]
    pub retriable: bool,
    /// When the first disturbing or host step was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When a final phase was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Conditions, keyed by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Name of the NodeUpdate of a Machine with this ordinal.
///
/// ```
/// assert_eq!(refit_kinds::refit::node_update_name("edge-1-x7k2p", 3), "edge-1-x7k2p-3");
/// ```
pub fn node_update_name(machine: &str, ordinal: u32) -> String {
    format!("{machine}-{ordinal}")
}

/// The ordinal in a NodeUpdate's name, if the name is of this Machine.
pub fn ordinal_of(name: &str, machine: &str) -> Option<u32> {
    name.strip_prefix(machine)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ordinal_is_read_back_from_the_name() {
        assert_eq!(ordinal_of("m-1-12", "m-1"), Some(12));
        assert_eq!(ordinal_of("m-1-x", "m-1"), None);
        assert_eq!(ordinal_of("other-1", "m"), None);
    }
}
