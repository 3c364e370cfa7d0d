//! Silences in Alertmanager, for alerts that an upgrade is expected to raise.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many silences an upgrade may have.
pub const MAX_SILENCES: usize = 8;
/// How many silences a record of an upgrade names: those that it has, and others that could not be removed yet.
pub const MAX_SILENCE_RECORDS: usize = 24;
/// How many matchers a silence may have.
pub const MAX_MATCHERS: usize = 16;
/// How long a machine is expected to take, in minutes.
pub const DEFAULT_MINUTES_PER_MACHINE: i32 = 15;
const MAX_MINUTES_PER_MACHINE: i32 = 1440;

/// A silence in Alertmanager while a part of the Cluster is worked on.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.matchers.exists(matcher, matcher.matchType == '=' && size(matcher.value) > 0)",
    "a silence needs a matcher with matchType = and a value: without one it could hide every alert"))]
pub struct UpgradeSilence {
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The part of the Cluster that it is for.
    pub during: SilencedPart,
    /// What an alert must have to be silenced: all of them. `$(cluster)` and `$(namespace)` in a value are those of the
    /// Cluster.
    #[schemars(length(min = 1, max = MAX_MATCHERS))]
    pub matchers: Vec<AlertMatcher>,
    /// How long a machine is expected to take, in minutes. The silence is set for as long as two of them take, and set again
    /// when one is done: a machine that hangs is not silenced for ever.
    #[serde(default = "default_minutes_per_machine")]
    #[schemars(range(min = 1, max = MAX_MINUTES_PER_MACHINE))]
    pub minutes_per_machine: i32,
}

fn default_minutes_per_machine() -> i32 {
    DEFAULT_MINUTES_PER_MACHINE
}

/// A part of a Cluster whose alerts are silenced while it is worked on.
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
    strum::VariantArray,
)]
pub enum SilencedPart {
    /// The control plane.
    ControlPlane,
    /// The workers.
    Workers,
}

/// What a label of an alert must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlertMatcher {
    /// Name of the label.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[a-zA-Z_][a-zA-Z0-9_]*$"))]
    pub name: String,
    /// Its value, or a regular expression for all of it.
    #[schemars(length(max = 1024))]
    pub value: String,
    /// How the label is compared with the value.
    #[serde(default)]
    pub match_type: MatchType,
}

impl AlertMatcher {
    /// Returns the matcher as Alertmanager's API has it.
    pub fn to_alertmanager(&self) -> serde_json::Value {
        let (is_equal, is_regex) = match self.match_type {
            MatchType::Equal => (true, false),
            MatchType::NotEqual => (false, false),
            MatchType::Matches => (true, true),
            MatchType::MatchesNot => (false, true),
        };
        serde_json::json!({
            "name": self.name, "value": self.value, "isEqual": is_equal, "isRegex": is_regex,
        })
    }
}

/// How a label is compared with a value, as in Alertmanager.
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
pub enum MatchType {
    /// It is the value.
    #[default]
    #[serde(rename = "=")]
    #[strum(serialize = "=")]
    Equal,
    /// It is not the value.
    #[serde(rename = "!=")]
    #[strum(serialize = "!=")]
    NotEqual,
    /// It matches the regular expression.
    #[serde(rename = "=~")]
    #[strum(serialize = "=~")]
    Matches,
    /// It does not match the regular expression.
    #[serde(rename = "!~")]
    #[strum(serialize = "!~")]
    MatchesNot,
}

/// A silence that an upgrade has created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SilenceRecord {
    /// Its name in the spec.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its ID in Alertmanager.
    pub id: String,
    /// How many updates of machines were left when it was set.
    pub updates_left: i32,
    /// When it ends by itself.
    pub ends_at: Time,
    /// Whether it is in force.
    pub state: SilenceState,
}

/// Whether a silence is in force.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::VariantArray,
)]
pub enum SilenceState {
    /// It is, until its end.
    Active,
    /// Refit has removed it: its part of the Cluster is done.
    Removed,
    /// Another client has removed it. It is not created again.
    Ended,
}
