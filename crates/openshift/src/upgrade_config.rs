//! UpgradeConfig: when an OpenShift cluster is upgraded to which release, and what became of it. Wire-compatible with the
//! kind of OpenShift's managed-upgrade-operator (`docs/facts/openshift-upgrades.md#upgradeconfig`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Name of the one object that is worked on.
pub const NAME: &str = "managed-upgrade-config";
/// Namespace of the operator, and of that object.
pub const NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// The request.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "upgrade.managed.openshift.io",
    version = "v1alpha1",
    kind = "UpgradeConfig",
    doc = "UpgradeConfig is the Schema for the upgradeconfigs API",
    plural = "upgradeconfigs",
    singular = "upgradeconfig",
    shortname = "upgrade",
    namespaced,
    status = "UpgradeConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "desired_version", type_ = "string", json_path = ".spec.desired.version"),
    printcolumn(name = "phase", type_ = "string", json_path = ".status.history[0].phase"),
    printcolumn(
        name = "stage",
        type_ = "string",
        json_path = ".status.history[0].conditions[0].type"
    ),
    printcolumn(
        name = "status",
        type_ = "string",
        json_path = ".status.history[0].conditions[0].status"
    ),
    printcolumn(
        name = "reason",
        type_ = "string",
        json_path = ".status.history[0].conditions[0].reason"
    ),
    printcolumn(
        name = "message",
        type_ = "string",
        json_path = ".status.history[0].conditions[0].message"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeConfigSpec {
    /// The OpenShift release.
    pub desired: Desired,
    /// When the upgrade starts at the earliest, as RFC 3339 text: it is validated when the upgrade is decided on.
    pub upgrade_at: String,
    /// How long a PodDisruptionBudget may block the drain of a node before the drain is forced, in minutes. With 0 it is
    /// forced once the expected drain time has elapsed.
    #[serde(rename = "PDBForceDrainTimeout")]
    #[schemars(range(min = 0))]
    pub pdb_force_drain_timeout: i32,
    /// The platform, whose steps are taken.
    #[serde(rename = "type")]
    pub type_: UpgradeType,
    /// Whether an extra node is added before the upgrade, for the Pods of drained ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_reservation: Option<bool>,
}

/// An OpenShift release: by channel and version, or by image, which has precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    /// The version, such as `4.16.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The channel, such as `stable-4.16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The release image, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// The platform of a cluster. The API accepts `OSD` and `ARO`; an object with another one, from before that rule, takes the
/// steps of OSD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UpgradeType(pub String);

/// The name of the platform OSD.
pub const OSD: &str = "OSD";
/// The name of the platform ARO.
pub const ARO: &str = "ARO";

impl JsonSchema for UpgradeType {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "UpgradeType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "enum": [OSD, ARO]})
    }

    fn inline_schema() -> bool {
        true
    }
}

/// The history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeConfigStatus {
    /// One entry for each version, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<UpgradeHistory>,
}

/// The upgrade to one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeHistory {
    /// The version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The version of the cluster before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub preceding_version: String,
    /// How far it is.
    pub phase: Phase,
    /// Its steps, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<UpgradeCondition>,
    /// When its steps began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When its last step was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,
    /// When the first worker began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_start_time: Option<Time>,
    /// When the last worker was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_complete_time: Option<Time>,
}

/// How far an upgrade is.
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
    strum::IntoStaticStr,
)]
pub enum Phase {
    /// It was just requested.
    #[default]
    New,
    /// It waits for its time.
    Pending,
    /// Its steps are worked through.
    Upgrading,
    /// All are done.
    Upgraded,
    /// It did not begin in time.
    Failed,
}

/// How far a step is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeCondition {
    /// What holds when the step is done, such as `ControlPlaneUpgraded`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True` if it is done, else `False`; `Unknown` is never written.
    pub status: String,
    /// When it was looked at last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// When `status` changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,
    /// `TYPE done`, or `TYPE not done`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it waits for, or why it cannot be done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl UpgradeConfig {
    /// The entry of the version that is requested, once it has one.
    pub fn entry(&self) -> Option<&UpgradeHistory> {
        let version = self.spec.desired.version.as_deref().unwrap_or_default();
        self.status.as_ref()?.history.iter().find(|entry| entry.version == version)
    }
}

impl UpgradeHistory {
    /// The condition of a step, once it has begun.
    pub fn condition(&self, step: &str) -> Option<&UpgradeCondition> {
        self.conditions.iter().find(|condition| condition.type_ == step)
    }

    /// Whether a step is done.
    pub fn is_done(&self, step: &str) -> bool {
        self.condition(step).is_some_and(|condition| condition.status == "True")
    }
}
