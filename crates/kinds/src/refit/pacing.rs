//! Pacing: when the next machine of a group may be updated, and what has been updated so far.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClaimId, MAX_GATES, MachineUid, Origin, PacingGate, Windows};

/// How many failures a rollout keeps, and the highest limit on them.
pub const MAX_FAILURES: usize = 20;
/// How many of the first machines of a rollout are kept by name, and the highest `pauseAfter`.
pub const MAX_FIRST_MACHINES: usize = 100;
/// How many machines of a group `exceptions` can name.
pub const MAX_EXCEPTIONS: usize = 100;
/// How many characters the reason of an exception has at most.
pub const MAX_EXCEPTION_REASON: usize = 256;
const DEFAULT_SAME_CAUSE_STOPS: i32 = 3;

/// When the next machine of a group may be updated. It applies to updates of any origin, and never to a
/// machine that is being updated: what has begun is finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pacing {
    /// No further machine begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// How many machines of the group may be unavailable. It lowers the limit of the group's owner, and
    /// never raises it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_unavailable: Option<i32>,
    /// Which of the waiting machines is next [default: the first that asks].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<PacingOrder>,
    /// After so many machines, each rollout waits for `approve`. With 0 it does not begin before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_FIRST_MACHINES))]
    pub pause_after: Option<i32>,
    /// The rollout that may go on after `pauseAfter` machines: `status.rollout.number`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub approve: Option<i64>,
    /// How long an updated machine must have been back before the next one begins, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub soak_seconds: Option<i32>,
    /// When machines may begin [default: at any time].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Windows>,
    /// What must hold before a machine begins [default: nothing more].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_GATES))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub gates: Vec<PacingGate>,
    /// After so many failed updates, a rollout stops [default: never].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_FAILURES))]
    pub stop_after_failures: Option<i32>,
    /// After so many updates that failed for the same reason at the same step, a rollout stops; 0 for never.
    #[serde(default = "default_same_cause_stops")]
    #[schemars(range(min = 0, max = MAX_FAILURES))]
    pub same_cause_stops: i32,
    /// Only failures after this time stop a rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures_since: Option<Time>,
    /// Machines that do not begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_EXCEPTIONS))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["machine"]))]
    pub exceptions: Vec<PacingException>,
}

fn default_same_cause_stops() -> i32 {
    DEFAULT_SAME_CAUSE_STOPS
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            paused: false,
            max_unavailable: None,
            order: None,
            pause_after: None,
            approve: None,
            soak_seconds: None,
            windows: None,
            gates: Vec::new(),
            stop_after_failures: None,
            same_cause_stops: DEFAULT_SAME_CAUSE_STOPS,
            failures_since: None,
            exceptions: Vec::new(),
        }
    }
}

impl Pacing {
    /// Whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A machine that does not begin, although its group goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PacingException {
    /// Name of the Machine.
    #[schemars(length(min = 1, max = 253))]
    pub machine: String,
    /// For how long.
    pub rule: ExceptionRule,
    /// Why.
    #[schemars(length(min = 1, max = MAX_EXCEPTION_REASON))]
    pub reason: String,
    /// The last rollout in which a machine is skipped, by `status.rollout.number` [default: all, until the
    /// exception is removed].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rollout: Option<i64>,
}

/// For how long a machine does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExceptionRule {
    /// Until the exception is removed.
    Hold,
    /// In this rollout.
    Skip,
}

/// An order of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PacingOrder {
    /// The machine that was created first.
    Oldest,
    /// The machine that was created last.
    Newest,
    /// By name.
    Name,
}

/// A rollout of a group: all updates for one request of its owner. Without such a request: all NodeUpdates that
/// people create with one goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupRollout {
    /// Number of the rollout in its group, from 1: `spec.pacing.approve` names it.
    pub number: i64,
    /// How its first update was requested: `Hook` for a rollout of the owner.
    pub origin: Origin,
    /// What its machines are updated to: version and infrastructure template of the owner, or the goal of the
    /// NodeUpdates.
    pub target: String,
    /// When it began.
    pub since: Time,
    /// When the owner reported all machines as updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// Newest generation of the owner for which something was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_generation: Option<i64>,
    /// The machines that began first, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_FIRST_MACHINES))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["machine"]))]
    pub first_machines: Vec<FirstMachine>,
    /// When the last machine was back after its update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// The last failed updates, at most 20. One is removed when a later update of its machine succeeds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_FAILURES))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["nodeUpdate"]))]
    pub failures: Vec<GroupFailure>,
}

/// A machine that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FirstMachine {
    /// Name of the Machine.
    pub machine: String,
    /// The claim of the slot with which it began first.
    #[schemars(range(min = 0))]
    pub claim: ClaimId,
}

/// A failed update of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupFailure {
    /// Name of the Machine.
    pub machine: String,
    /// uid of the Machine.
    pub machine_uid: MachineUid,
    /// Name of the NodeUpdate.
    pub node_update: String,
    /// The reason and the step of the failure, such as `HostStepFailed at kubeadm-upgrade`.
    pub cause: String,
    /// When it failed.
    pub at: Time,
}
