//! Machines that a Cluster has in addition while it is upgraded.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many Machines a MachineDeployment gets in addition at most.
pub const MAX_EXTRA_MACHINES: i32 = 10;
/// How many MachineDeployments may be named.
pub const MAX_EXTRA_DEPLOYMENTS: usize = 64;
/// How long extra Machines may take until they are Ready, in minutes.
pub const DEFAULT_CAPACITY_MINUTES: i32 = 30;
const MAX_CAPACITY_MINUTES: i32 = 1440;

/// Machines that take up the Pods of drained ones. They are created before the upgrade begins, are not upgraded, and are
/// deleted after the workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtraCapacity {
    /// How they are added.
    #[serde(default)]
    pub method: CapacityMethod,
    /// How many each MachineDeployment gets.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = MAX_EXTRA_MACHINES))]
    pub machines: i32,
    /// Names of the MachineDeployments that get some [default: all of the Cluster that have Machines].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_EXTRA_DEPLOYMENTS), inner(length(min = 1, max = 253)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub machine_deployments: Vec<String>,
    /// How long they may take until they are Ready, in minutes.
    #[serde(default = "default_minutes")]
    #[schemars(range(min = 1, max = MAX_CAPACITY_MINUTES))]
    pub within_minutes: i32,
    /// What becomes of the upgrade if they are not Ready by then.
    #[serde(default)]
    pub on_timeout: CapacityTimeout,
}

fn one() -> i32 {
    1
}

fn default_minutes() -> i32 {
    DEFAULT_CAPACITY_MINUTES
}

/// How Machines are added.
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
pub enum CapacityMethod {
    /// By a temporary MachineDeployment with the same template.
    #[default]
    Clone,
    /// By more replicas of the MachineDeployment. Not where a topology writes them, and not with `via: Spec`: Cluster API
    /// would upgrade the extra Machines as well.
    Replicas,
}

/// What becomes of an upgrade whose extra Machines are not Ready in time.
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
pub enum CapacityTimeout {
    /// It waits for them for as long as it may begin.
    #[default]
    Delay,
    /// It begins without them. Those that were created are deleted before.
    Proceed,
}

/// How far the extra Machines of an upgrade are.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::IntoStaticStr,
)]
pub enum CapacityState {
    /// They are not all Ready yet.
    Reserving,
    /// They were Ready before the upgrade began.
    Reserved,
    /// They were not Ready in time: the upgrade has begun without them.
    Skipped,
    /// They are to be deleted, or are deleted.
    Removed,
}
