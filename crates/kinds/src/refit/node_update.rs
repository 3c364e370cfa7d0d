//! NodeUpdate: one request to bring one Machine to one goal.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Gate, Goal, MachineUid, NodeName, PartStatus, SettingHashes, UpdatePart};
use crate::version::{self, KubernetesVersion};

/// A request to update one Machine to one goal. Its name is `<machine>-<ordinal>`: creating it is
/// a compare-and-swap that only one of several requests wins.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "NodeUpdate",
    doc = "A request to update one Machine to one goal.",
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
    printcolumn(
        name = "Left",
        type_ = "string",
        json_path = ".status.parts[?(@.state==\"Left\")].updater",
        priority = 1
    ),
    printcolumn(name = "Until", type_ = "string", json_path = ".spec.until", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.machineRef == oldSelf.machineRef && self.goal == oldSelf.goal && \
    self.goalHash == oldSelf.goalHash && self.origin == oldSelf.origin && \
    has(self.parts) == has(oldSelf.parts) && (!has(self.parts) || self.parts == oldSelf.parts) && \
    has(self.bundle) == has(oldSelf.bundle) && (!has(self.bundle) || self.bundle == oldSelf.bundle)", "spec is immutable but for stage and until"))]
#[x_kube(validation = ("(has(self.goal.kubernetesVersion) ? 1 : 0) + (has(self.goal.option) ? 1 : 0) + \
    (has(self.goal.certificates) ? 1 : 0) + (has(self.goal.hostSettings) ? 1 : 0) <= 1", "a goal has one of kubernetesVersion, option, certificates and hostSettings"))]
#[x_kube(validation = ("oldSelf.stage != 'Abort' || self.stage == 'Abort'", "an aborted NodeUpdate stays aborted; create a new one"))]
#[x_kube(validation = ("self.until == oldSelf.until || oldSelf.until == 'Stage' || self.until == 'Disrupt'", "until only moves forward: Stage, Upgrade, Disrupt"))]
pub struct NodeUpdateSpec {
    /// Whether the update continues or is to stop.
    #[serde(default)]
    pub stage: Stage,
    /// How far the update may go. It only moves forward: an update that has reached it waits there.
    #[serde(default)]
    pub until: Until,
    /// The Machine, by name and uid.
    pub machine_ref: MachineRef,
    /// How the request was made.
    pub origin: Origin,
    /// The goal of the update.
    pub goal: Goal,
    /// sha256 of the goal's canonical JSON.
    pub goal_hash: String,
    /// What updaters do about the goal, in this order; absent: `kubeadm` brings the host to the Kubernetes
    /// version. A part of the goal that the Machine has reached already is not listed. `kubeadm` with the action
    /// `Leave` verifies that the host was brought to the version by hand, and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["updater"]))]
    pub parts: Option<Vec<UpdatePart>>,
    /// Location of the bundle that the host installs from, in place of the sources of its HostSettings. Their
    /// `manifestSha256` and `publicKey` still apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = BUNDLE_LOCATION_MAX), regex(pattern = BUNDLE_LOCATION))]
    pub bundle: Option<String>,
}

/// What the location of a bundle looks like: a path on the host, or a URL without credentials.
pub const BUNDLE_LOCATION: &str =
    r"^((file://)?/+[!-.0-~][!-~]*|(https?|oci(\+http)?)://[A-Za-z0-9._:\[\]-]+(/[!->@-~]*)?)$";
/// How long it may be, in bytes.
pub const BUNDLE_LOCATION_MAX: usize = 1024;

impl NodeUpdate {
    /// Its phase; `Pending` until its controller has set one.
    pub fn phase(&self) -> Phase {
        self.status.as_ref().map(|status| status.phase).unwrap_or_default()
    }
}

/// Whether the update continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Stage {
    /// The update continues.
    #[default]
    Ongoing,
    /// The update stops at the next safe point.
    Abort,
}

/// How far an update may go.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::VariantArray,
)]
pub enum Until {
    /// The host prepares: downloads, checks and snapshots. Nothing is disturbed.
    Stage,
    /// kubeadm upgrades the host, which can still be rolled back. Only for workers: on a control plane
    /// machine, kubeadm's upgrade is the point of no return.
    Upgrade,
    /// The update runs to completion.
    #[default]
    Disrupt,
}

impl Until {
    /// The last gate that the host may pass.
    pub fn gate(self) -> Gate {
        match self {
            Self::Stage => Gate::Stage,
            Self::Upgrade => Gate::Upgrade,
            Self::Disrupt => Gate::Disrupt,
        }
    }
}

/// Reference to a Machine in the same namespace. A later Machine of the same name has another uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineRef {
    /// Name of the Machine.
    pub name: String,
    /// uid of the Machine.
    pub uid: MachineUid,
}

/// How a request was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Origin {
    /// Cluster API's UpdateMachine hook.
    Hook,
    /// An operator, by creating a NodeUpdate.
    Task,
    /// An annotation of the Machine, or of its owner.
    Annotation,
    /// HostSettings that have changed, where the policy of the owner starts updates for that.
    HostSettings,
}

/// Phase of a NodeUpdate, in order of time.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::VariantArray,
)]
pub enum Phase {
    /// Nothing has been decided yet, or the update waits for a precondition of its start.
    #[default]
    Pending,
    /// The host runs downloads and checks; nothing is disturbed.
    Staging,
    /// The update waits for a slot of its group, or for what `blockedBy` names.
    Waiting,
    /// kubeadm upgrades the host.
    Upgrading,
    /// The node is cordoned and its pods are evicted.
    Draining,
    /// The host replaces the kubelet, and reboots if required.
    Disrupting,
    /// The node is checked against the goal after its return.
    Verifying,
    /// The node is being uncordoned.
    Uncordoning,
    /// The update is being stopped.
    Stopping,
    /// The goal was reached.
    Succeeded,
    /// The goal was not reached, and nothing more happens until a retry is requested.
    Failed,
    /// The update was stopped before it reached the goal.
    Stopped,
}

impl Phase {
    /// Whether nothing on the node or its host has been disturbed yet.
    pub fn is_undisturbed(self) -> bool {
        self <= Self::Waiting
    }

    /// Whether nothing more happens automatically.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Stopped)
    }
}

/// Role of a machine in its cluster for kubeadm (`docs/facts/kubeadm.md#first-control-plane`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// Runs `kubeadm upgrade apply`.
    FirstControlPlane,
    /// Runs `kubeadm upgrade node` with static pods.
    ControlPlane,
    /// Runs `kubeadm upgrade node`.
    Worker,
}

/// What blocks an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// CamelCase reason, from an enum of `refit-core`.
    pub reason: String,
    /// The object that blocks, such as `default/web`.
    #[serde(default)]
    pub object: String,
    /// The pod that blocks a drain, such as `default/web-1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// A whole sentence: what blocks and how to resolve it.
    #[serde(default)]
    pub message: String,
    /// When the block began.
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
    /// Succeeded.
    Done,
    /// Failed; `message` gives the reason.
    Failed,
    /// Found to be unnecessary.
    Skipped,
    /// Done, then rolled back.
    Undone,
}

impl StepState {
    /// Whether nothing is left to do.
    pub fn is_done_or_skipped(self) -> bool {
        matches!(self, Self::Done | Self::Skipped)
    }
}

/// One step of a NodeUpdate, on the host or in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepStatus {
    /// Name, such as `kubeadm-upgrade`.
    pub name: String,
    /// State of the step.
    pub state: StepState,
    /// Number of the current attempt, from 1.
    #[serde(default)]
    pub attempt: i32,
    /// When the first attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the step finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// What failed, or what was found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Escalation level of a drain (docs/drain.md).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum DrainRung {
    /// Pods are evicted, and disruption budgets are respected.
    #[default]
    Evict,
    /// Like `Evict`; a warning event about the long drain was emitted.
    Notified,
    /// Pods whose eviction was refused are deleted, with their grace period.
    Delete,
    /// Pods that are still there are deleted without a grace period.
    Force,
    /// The Machine's own timeout ended the drain; pods or volumes were left.
    GivenUp,
}

/// Persistent state of a drain, from which its deadlines are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// The highest escalation level so far.
    #[serde(default)]
    pub rung: DrainRung,
    /// When the drain reached that level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Why the drain reached that level.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Order of the pods that are drained now, from MachineDrainRules.
    #[serde(default)]
    pub order: i32,
    /// When the drain of that order began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_since: Option<Time>,
    /// When Refit took the node out of its load balancers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_since: Option<Time>,
    /// When the pods were gone and the wait for volumes began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_since: Option<Time>,
}

/// Completed share of an update, and the remaining time predicted from past durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Completed share, 0 to 100.
    pub percent: i32,
    /// Predicted remaining time in seconds; absent without past durations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<i32>,
}

/// Status of a NodeUpdate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeUpdateStatus {
    /// Phase of the update.
    #[serde(default)]
    pub phase: Phase,
    /// One line for `kubectl get -o wide` and for the hook's response.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Role of the machine. It is decided once and kept through retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The Node of the Machine.
    #[serde(default, skip_serializing_if = "NodeName::is_empty")]
    pub node_name: NodeName,
    /// Version of the kubelet when the update began.
    #[serde(default, with = "version::or_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version::or_empty::schema")]
    pub from_version: Option<KubernetesVersion>,
    /// What blocks the update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<Blocker>,
    /// The steps, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub steps: Vec<StepStatus>,
    /// What Updaters have done in the update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["updater"]))]
    pub parts: Vec<PartStatus>,
    /// The settings of its HostSettings that the host has after the update; absent if its plan applies none. They are noted
    /// when the plan is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_settings: Option<SettingHashes>,
    /// Progress of the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Whether Refit cordoned the Node. Refit uncordons it when the update succeeds.
    #[serde(default)]
    pub cordoned_by_us: bool,
    /// State of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// CamelCase reason of a failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,
    /// A whole sentence: what failed and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure_message: String,
    /// Whether a retry may succeed without manual intervention.
    #[serde(default)]
    pub retriable: bool,
    /// When the first disruptive step or host step was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When a final phase was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Conditions, keyed by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Name of a Machine's NodeUpdate with this ordinal.
///
/// ```
/// assert_eq!(refit_kinds::refit::node_update_name("edge-1-x7k2p", 3), "edge-1-x7k2p-3");
/// ```
pub fn node_update_name(machine: &str, ordinal: u32) -> String {
    format!("{machine}-{ordinal}")
}

/// The ordinal in a NodeUpdate's name, if the name belongs to this Machine.
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
