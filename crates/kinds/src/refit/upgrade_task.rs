//! UpgradeTask: the upgrade of one machine group, or of a whole cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BUNDLE_LOCATION, BUNDLE_LOCATION_MAX, GoalOption, GroupOwner, MAX_HOPS, Stage};
use crate::version::{self, KubernetesVersion};

/// How many failed Machines a task names.
pub const MAX_TASK_FAILURES: usize = 20;
/// How many Machines a task may name. A task that names none upgrades every outdated one.
pub const MAX_TASK_MACHINES: usize = 1000;
/// How many children of a task are kept in its status: groups times hops.
pub const MAX_TASK_CHILDREN: usize = 500;

/// A request to bring the Machines of a control plane, a MachineDeployment or a whole Cluster to what
/// their owner requests, or to a version. It makes the NodeUpdates, a few at a time.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "UpgradeTask",
    doc = "A request to upgrade the Machines of a group, or of a whole Cluster, in place.",
    plural = "upgradetasks",
    shortname = "ut",
    category = "refit",
    namespaced,
    status = "UpgradeTaskStatus",
    derive = "PartialEq",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterRef.name"),
    printcolumn(name = "Owner", type_ = "string", json_path = ".spec.ownerRef.name"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.counts.updated"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.counts.failed"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.counts.total"),
    printcolumn(
        name = "Why",
        type_ = "string",
        description = "What the task waits for, or why it is not complete",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message"
    ),
    printcolumn(name = "Via", type_ = "string", json_path = ".spec.via", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.clusterRef == oldSelf.clusterRef && self.via == oldSelf.via && \
    has(self.ownerRef) == has(oldSelf.ownerRef) && (!has(self.ownerRef) || self.ownerRef == oldSelf.ownerRef) && \
    has(self.version) == has(oldSelf.version) && (!has(self.version) || self.version == oldSelf.version) && \
    has(self.hops) == has(oldSelf.hops) && (!has(self.hops) || self.hops == oldSelf.hops) && \
    has(self.machines) == has(oldSelf.machines) && (!has(self.machines) || self.machines == oldSelf.machines) && \
    has(self.updaterRef) == has(oldSelf.updaterRef) && (!has(self.updaterRef) || self.updaterRef == oldSelf.updaterRef) && \
    has(self.requestRef) == has(oldSelf.requestRef) && (!has(self.requestRef) || self.requestRef == oldSelf.requestRef) && \
    has(self.option) == has(oldSelf.option) && (!has(self.option) || self.option == oldSelf.option) && \
    has(self.bundle) == has(oldSelf.bundle) && (!has(self.bundle) || self.bundle == oldSelf.bundle) && \
    self.rollBack == oldSelf.rollBack",
    "spec is immutable but for stage and onAbort: create another UpgradeTask"))]
#[x_kube(validation = ("oldSelf.stage != 'Abort' || self.stage == 'Abort'", "an aborted UpgradeTask stays aborted; create a new one"))]
#[x_kube(validation = ("has(self.ownerRef) || has(self.version)", "a task for a whole Cluster needs version"))]
#[x_kube(validation = ("has(self.ownerRef) || !has(self.machines)", "machines needs ownerRef: they are Machines of that owner"))]
#[x_kube(validation = ("!has(self.machines) || self.via == 'Machines'", "machines needs via Machines: an owner's spec is for all of its Machines"))]
#[x_kube(validation = ("!has(self.requestRef) || has(self.ownerRef) && self.via == 'Machines'", "requestRef needs ownerRef, and via Machines"))]
#[x_kube(validation = ("!has(self.hops) || !has(self.ownerRef)", "hops is for a whole Cluster"))]
#[x_kube(validation = ("!has(self.option) || has(self.ownerRef) && self.via == 'Machines'", "option needs ownerRef, and via Machines"))]
#[x_kube(validation = ("!has(self.option) || !has(self.version) && !has(self.updaterRef) && !has(self.requestRef)",
    "option goes with neither version, updaterRef nor requestRef: it is installed whatever the owner's spec requests"))]
#[x_kube(validation = ("!has(self.bundle) || has(self.ownerRef) && !has(self.option)",
    "bundle needs ownerRef, because a bundle is for one version; and it does not go with option: k8sd has no bundles"))]
#[x_kube(validation = ("!self.rollBack || self.via == 'Machines' && has(self.version) && has(self.ownerRef) && self.ownerRef.kind == 'MachineDeployment'",
    "rollBack needs version, via Machines, and an ownerRef of kind MachineDeployment: a control plane never goes back"))]
pub struct UpgradeTaskSpec {
    /// Whether the task continues or is to stop.
    #[serde(default)]
    pub stage: Stage,
    /// What becomes of the Machines in progress, with stage `Abort`. It may be changed while the task stops.
    #[serde(default)]
    pub on_abort: OnAbort,
    /// The Cluster, in the namespace of the task.
    pub cluster_ref: ClusterRef,
    /// The control plane or MachineDeployment; absent for the whole Cluster: its control plane, then its
    /// workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_ref: Option<GroupOwner>,
    /// The Kubernetes version that the task sets in the owner's spec. Absent: the owner's spec stays, and
    /// its Machines are brought to it.
    #[serde(default, with = "version::or_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version::or_empty::schema")]
    pub version: Option<KubernetesVersion>,
    /// What k8sd installs on the Machines, one after the other, instead of what the owner's spec requests: the task neither
    /// pauses the owner nor writes its spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<GoalOption>,
    /// Location of the bundle that hosts install from, in place of the sources of their HostSettings: a path on each host, or
    /// a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = BUNDLE_LOCATION_MAX), regex(pattern = BUNDLE_LOCATION))]
    pub bundle: Option<String>,
    /// For a Cluster: the versions on the way; a minor version of which none is named is taken at `.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_HOPS))]
    pub hops: Option<Vec<KubernetesVersion>>,
    /// Names of the Machines to upgrade; absent: all that are outdated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_TASK_MACHINES))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub machines: Option<Vec<String>>,
    /// The only Updater that may be used; absent: all that apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updater_ref: Option<UpdaterRef>,
    /// The Secret with the specs of the ExternalUpgrade request that made the task: its Machines get nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_ref: Option<RequestRef>,
    /// The version may be lower than that of the workers, if their hosts can be brought to it: another patch release of the
    /// same minor version.
    #[serde(default)]
    pub roll_back: bool,
    /// Who works through the Machines.
    pub via: Via,
}

impl UpgradeTaskSpec {
    /// A task for a Cluster, with the defaults of the API.
    pub fn of(cluster: &str, via: Via) -> Self {
        Self {
            stage: Stage::Ongoing,
            on_abort: OnAbort::RollBack,
            cluster_ref: ClusterRef { name: cluster.to_owned() },
            owner_ref: None,
            version: None,
            option: None,
            bundle: None,
            hops: None,
            machines: None,
            updater_ref: None,
            request_ref: None,
            roll_back: false,
            via,
        }
    }
}

/// What becomes of the Machines in progress when an upgrade is stopped. No further Machine begins.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::Display,
)]
pub enum OnAbort {
    /// Those that have not passed their point of no return are rolled back, the others are finished.
    #[default]
    RollBack,
    /// They are finished. Those that have disturbed nothing yet are stopped.
    Finish,
}

/// Reference to a Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterRef {
    /// Name of the Cluster.
    pub name: String,
}

/// Reference to the Secret of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestRef {
    /// Name of the Secret, in the namespace of the task.
    pub name: String,
}

/// Reference to an Updater.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpdaterRef {
    /// Name of the Updater.
    pub name: String,
}

/// Who works through the Machines of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::Display)]
pub enum Via {
    /// Cluster API, which calls Refit's hooks: the task edits the owner's spec and waits. Needs Cluster
    /// API's feature gate `InPlaceUpdates`.
    Spec,
    /// Refit: the owner is paused, and the task writes each Machine after its update. Works without the
    /// feature gate.
    Machines,
}

/// Phase of an UpgradeTask.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::VariantArray,
)]
pub enum TaskPhase {
    /// It has not begun: it waits for what its condition Ready names.
    #[default]
    Pending,
    /// Machines are being upgraded, or wait for it.
    Ongoing,
    /// Every Machine of the task is up to date, or was skipped.
    Complete,
    /// It was stopped on request.
    Aborted,
    /// Nothing more happens until a person acts: the condition Ready names what.
    Failed,
}

impl UpgradeTask {
    /// What orders tasks, the oldest first: of those of one owner that have not ended, the first one works.
    pub fn age(&self) -> (Option<&Time>, Option<&String>) {
        (self.metadata.creation_timestamp.as_ref(), self.metadata.name.as_ref())
    }

    /// Its phase; `Pending` until its controller has set one.
    pub fn phase(&self) -> TaskPhase {
        self.status.as_ref().map(|status| status.phase).unwrap_or_default()
    }
}

impl TaskPhase {
    /// Whether the task has ended for good. A failed one goes on when its cause is gone.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Complete | Self::Aborted)
    }
}

/// How many Machines of a task are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskCounts {
    /// All Machines of the task.
    pub total: i32,
    /// Up to date.
    pub updated: i32,
    /// Being updated.
    pub updating: i32,
    /// Waiting for their turn.
    pub waiting: i32,
    /// Failed or stopped for good.
    pub failed: i32,
    /// Skipped or held by an operator.
    pub excepted: i32,
}

/// A Machine whose update failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskFailure {
    /// Name of the Machine.
    pub machine: String,
    /// Name of the NodeUpdate.
    pub node_update: String,
    /// CamelCase reason, from the NodeUpdate.
    pub reason: String,
    /// A whole sentence: what failed and what to do.
    pub message: String,
    /// When it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// A child of a task for a whole Cluster: one group's way to one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskChild {
    /// Name of the child.
    pub name: String,
    /// The version that it brings its group to.
    #[schemars(with = "String")]
    pub version: KubernetesVersion,
    /// Its phase.
    pub phase: TaskPhase,
}

/// Status of an UpgradeTask.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeTaskStatus {
    /// Phase of the task.
    #[serde(default)]
    pub phase: TaskPhase,
    /// The version that the Machines are brought to.
    #[serde(default, with = "version::or_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version::or_empty::schema")]
    pub version: Option<KubernetesVersion>,
    /// How many Machines are in which state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<TaskCounts>,
    /// The last failures, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_TASK_FAILURES))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["machine"]))]
    pub failures: Vec<TaskFailure>,
    /// What the task asks of the owner's spec, as a hash: whether the spec was edited meanwhile.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_request: String,
    /// The children of a task for a whole Cluster, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_TASK_CHILDREN))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub children: Vec<TaskChild>,
    /// When the first Machine was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it was complete or aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Conditions, keyed by type: `Ready`, and `OwnerPaused` while Refit pauses the owner.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_written_by_hand_needs_few_words() {
        let task: UpgradeTaskSpec = serde_json::from_value(serde_json::json!({
            "clusterRef": {"name": "edge-1"}, "version": "v1.35.0", "via": "Machines",
        }))
        .unwrap();
        assert_eq!((task.stage, task.owner_ref, task.machines), (Stage::Ongoing, None, None));
    }

    #[test]
    fn a_failed_task_may_go_on() {
        assert!(TaskPhase::Complete.has_ended() && TaskPhase::Aborted.has_ended());
        assert!(!TaskPhase::Failed.has_ended() && !TaskPhase::Pending.has_ended());
    }
}
