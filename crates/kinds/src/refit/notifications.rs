//! Notifications in the status of a ClusterUpgrade or of a ClusterUpgradePlan: what people and systems are notified of, and
//! whether that was delivered.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PlanPhase, UpgradePhase};
use crate::version::KubernetesVersion;

/// How many notifications an upgrade keeps; the oldest of earlier requests are dropped.
pub const MAX_UPGRADE_NOTIFICATIONS: usize = 24;
/// How many notifications a plan keeps: more than two for each wave. Those that were delivered are dropped first, then the
/// oldest.
pub const MAX_PLAN_NOTIFICATIONS: usize = 100;
/// How many characters the message of a notification has at most.
pub const MAX_NOTIFICATION_MESSAGE: usize = 512;
/// How many characters are kept of why a notification could not be delivered.
pub const MAX_DELIVERY_ERROR: usize = 160;

/// A receiver of notifications.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum Receiver {
    /// The server of `--notify-cloudevents-url`.
    CloudEvents,
    /// The webhook of `--notify-slack-url-file`.
    Slack,
}

/// How far the delivery of a notification is.
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
pub enum DeliveryState {
    /// It was not delivered yet, and is tried again.
    #[default]
    Waiting,
    /// The receiver has it.
    Sent,
    /// It was given up: `lastError` names why.
    Failed,
}

/// The delivery of a notification to one receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The receiver.
    pub receiver: Receiver,
    /// How far it is.
    #[serde(default)]
    pub state: DeliveryState,
    /// How many attempts have failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_attempts: i32,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DELIVERY_ERROR))]
    pub last_error: String,
    /// When it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_time: Option<Time>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &i32) -> bool {
    *count == 0
}

impl Delivery {
    /// One that was not tried yet.
    pub fn to(receiver: Receiver) -> Self {
        Self {
            receiver,
            state: DeliveryState::Waiting,
            failed_attempts: 0,
            last_error: String::new(),
            retry_time: None,
        }
    }
}

/// A point of an upgrade that people are notified of.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum UpgradeEvent {
    /// It waits for its time.
    Scheduled,
    /// A check of the Cluster fails, ahead of its time or before the start.
    HealthCheckFailed,
    /// Its steps are worked through.
    Started,
    /// Its extra Machines were not Ready in time: it goes on without them.
    CapacitySkipped,
    /// It has not commenced half an hour after its time.
    Delayed,
    /// The upgrade of the Machines has commenced: first those of the control plane.
    ControlPlaneStarted,
    /// The control plane has the version.
    ControlPlaneFinished,
    /// The workers have the version.
    WorkersFinished,
    /// Every step is done.
    Completed,
    /// It has ended before its last step.
    Failed,
}

/// A notification of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeNotification {
    /// What the notification is about.
    pub event: UpgradeEvent,
    /// When it was reached.
    pub time: Time,
    /// The phase of the upgrade then.
    pub phase: UpgradePhase,
    /// Why, as a CamelCase word.
    pub reason: String,
    /// A sentence.
    #[schemars(length(max = MAX_NOTIFICATION_MESSAGE))]
    pub message: String,
    /// Generation of the request then.
    pub generation: i64,
    /// It was for an earlier request, or another time, and is kept until it is delivered.
    #[serde(default, skip_serializing_if = "is_false")]
    pub earlier: bool,
    /// Its receivers.
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["receiver"]))]
    pub deliveries: Vec<Delivery>,
}

/// A point of a plan that people are notified of.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum PlanEvent {
    /// A wave has begun.
    WaveStarted,
    /// The last Cluster of a wave was done.
    WaveCompleted,
    /// No further Cluster is requested.
    Stopped,
    /// Every wave has ended.
    Completed,
}

/// A notification of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanNotification {
    /// Counts the notifications of the plan, from 1.
    pub number: i64,
    /// What the notification is about.
    pub event: PlanEvent,
    /// The version that the plan was for.
    pub version: KubernetesVersion,
    /// The wave, if it is about one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wave: String,
    /// When it was reached.
    pub time: Time,
    /// The phase of the plan then.
    pub phase: PlanPhase,
    /// Why, as a CamelCase word.
    pub reason: String,
    /// A sentence.
    #[schemars(length(max = MAX_NOTIFICATION_MESSAGE))]
    pub message: String,
    /// Generation of the plan then.
    pub generation: i64,
    /// Its receivers.
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["receiver"]))]
    pub deliveries: Vec<Delivery>,
}
