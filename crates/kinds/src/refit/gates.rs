//! Health gates: what must hold before the next machine of a group begins.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ClusterCheck;

/// How many gates a group may have.
pub const MAX_GATES: usize = 16;
/// How many characters the name of a gate has at most.
pub const MAX_GATE_NAME: usize = 63;
/// How many characters an expression of PromQL or CEL has at most.
pub const MAX_EXPRESSION: usize = 2048;
/// How many labels a gate on alerts selects by.
pub const MAX_ALERT_LABELS: usize = 16;
/// How many alerts a gate ignores by name.
pub const MAX_IGNORED_ALERTS: usize = 50;
/// How many objects a gate reads at most: with more, it is closed.
pub const MAX_GATE_OBJECTS: i32 = 500;

/// A check that must pass before the next machine of a group begins: one of `checks`, `alerts`, `query` and
/// `objects`. What cannot be checked does not pass.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "[has(self.checks), has(self.alerts), has(self.query), has(self.objects)].filter(x, x).size() == 1",
    "a gate needs exactly one of checks, alerts, query and objects"
))]
pub struct PacingGate {
    /// Its name, for messages.
    #[schemars(length(min = 1, max = MAX_GATE_NAME))]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Checks of the Cluster, apart from machines that are being updated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "set"))]
    pub checks: Vec<ClusterCheck>,
    /// No such alert fires in Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<AlertsGate>,
    /// A query of PromQL, such as `ceph_health_status == bool 0`: it must have a result, and no value of 0. `$(cluster)`
    /// and `$(namespace)` stand for the name and the namespace of the Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_EXPRESSION))]
    pub query: Option<String>,
    /// An expression of CEL that is true for each of these objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectsGate>,
}

/// Alerts that must not fire.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "self.labels.all(label, label.matches('^[a-zA-Z_][a-zA-Z0-9_]*$'))",
    "labels are names of Prometheus: letters, digits and _"
))]
pub struct AlertsGate {
    /// The alerts with all of these labels. In values, `$(cluster)` and `$(namespace)` stand for the name and the
    /// namespace of the Cluster.
    #[serde(default = "critical")]
    #[schemars(extend("maxProperties" = MAX_ALERT_LABELS, "additionalProperties" = {"type": "string", "maxLength": 253}))]
    pub labels: BTreeMap<String, String>,
    /// The names of alerts that may fire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_IGNORED_ALERTS), inner(length(min = 1, max = 100)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub ignored: Vec<String>,
}

fn critical() -> BTreeMap<String, String> {
    BTreeMap::from([("severity".to_owned(), "critical".to_owned())])
}

/// Objects for each of which an expression must be true.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.kind != 'Secret' || self.apiVersion != 'v1'", "Secrets cannot be read by a gate"))]
#[x_kube(validation = (
    "self.cluster != 'Management' || !has(self.namespace)",
    "in the management cluster, only objects of the namespace of the Cluster can be read: leave out namespace"
))]
pub struct ObjectsGate {
    /// The cluster that has the objects [default: Workload].
    #[serde(default)]
    pub cluster: GateCluster,
    /// Their API version, such as `ceph.rook.io/v1`.
    #[schemars(length(min = 1, max = 316))]
    pub api_version: String,
    /// Their kind, such as `CephCluster`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Their namespace [default: all, or the namespace of the Cluster in the management cluster].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Only objects that these labels select [default: all].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The expression, such as `self.status.ceph.health == 'HEALTH_OK'`.
    #[schemars(length(min = 1, max = MAX_EXPRESSION))]
    pub expression: String,
    /// How many objects there must be at least.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = MAX_GATE_OBJECTS))]
    pub at_least: i32,
}

fn one() -> i32 {
    1
}

/// Which cluster has the objects of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GateCluster {
    /// The workload cluster.
    #[default]
    Workload,
    /// The management cluster.
    Management,
}

/// What a gate asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateTest<'a> {
    /// Checks of the Cluster.
    Checks(&'a [ClusterCheck]),
    /// Alerts that must not fire.
    Alerts(&'a AlertsGate),
    /// A query of PromQL.
    Query(&'a str),
    /// An expression of CEL.
    Objects(&'a ObjectsGate),
}

impl PacingGate {
    /// What the gate asks for; `None` unless it is exactly one thing.
    pub fn test(&self) -> Option<GateTest<'_>> {
        let checks = (!self.checks.is_empty()).then_some(GateTest::Checks(&self.checks));
        let all = [
            checks,
            self.alerts.as_ref().map(GateTest::Alerts),
            self.query.as_deref().map(GateTest::Query),
            self.objects.as_ref().map(GateTest::Objects),
        ];
        let mut asked = all.into_iter().flatten();
        asked.next().filter(|_| asked.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_gate_asks_for_exactly_one_thing() {
        let gate = |mut body: serde_json::Value| {
            body["name"] = "g".into();
            serde_json::from_value::<PacingGate>(body).unwrap()
        };
        let alerts = gate(json!({"alerts": {}}));
        let Some(GateTest::Alerts(of)) = alerts.test() else { panic!("{alerts:?}") };
        assert_eq!(of.labels, critical());
        assert_eq!(gate(json!({"query": "up"})).test(), Some(GateTest::Query("up")));
        assert_eq!(gate(json!({"query": "up", "checks": ["Nodes"]})).test(), None);
        assert_eq!(gate(json!({})).test(), None);
    }
}
