//! The input of a prediction.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use refit_core::{
    change::{OnUncovered, can_update::HostReport},
    node::another_could_take,
};
use refit_kinds::{
    json::{labels, name, text, time},
    keys,
    version::StatedVersion,
};
use serde_json::Value;

use super::{
    managers::Manager,
    objects::Objects,
    preflight::WorkloadFacts,
    providers::Providers,
    reach::{Extension, GroupRef, Read},
};

/// Maximum age of an agent's report, after which its host counts as unknown: the agent reports
/// every five minutes, and two reports may be lost.
pub const REPORT_STALE_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// The input of a prediction.
#[derive(Clone, Debug)]
pub struct Input {
    /// The current time.
    pub now: Timestamp,
    /// The current objects.
    pub current: Objects,
    /// The desired objects: the current objects with the change applied.
    pub desired: Objects,
    /// The groups to predict.
    pub targets: Vec<GroupRef>,
    /// Predicts so many imagined machines of each MachineDeployment, all available, instead of its own.
    pub simulate: Option<i64>,
    /// Kinds that could not be read: their objects are derived from templates.
    pub unread_kinds: BTreeSet<String>,
    /// All ExtensionConfigs.
    pub extensions: Read<Vec<Extension>>,
    /// Cluster API's managers.
    pub managers: Read<Vec<Manager>>,
    /// Labels of namespaces, by name.
    pub namespaces: BTreeMap<String, Read<BTreeMap<String, String>>>,
    /// Facts about workload clusters, by namespace and name.
    pub hosts: BTreeMap<(String, String), Read<Hosts>>,
    /// Default policy for uncovered changes, if no annotation sets one.
    pub on_uncovered: OnUncovered,
    /// What the providers of infrastructure machines accept.
    pub providers: Providers,
}

impl Input {
    /// An input without a cluster: assumes that Cluster API calls Refit's hooks and that they can
    /// respond. A namespace that is not among the objects has opted in, and holds no replacements.
    pub fn offline(
        now: Timestamp,
        current: Objects,
        desired: Objects,
        targets: Vec<GroupRef>,
    ) -> Self {
        let namespaces = targets
            .iter()
            .map(|target| {
                let is_own = |object: &&Value| name(object) == target.namespace;
                let own = desired.of_kind("Namespace").find(is_own).map(labels);
                let opted_in = || [(keys::IN_PLACE.to_owned(), keys::OPTED_IN.to_owned())].into();
                (target.namespace.clone(), Read::Known(own.unwrap_or_else(opted_in)))
            })
            .collect();
        Self {
            now,
            current,
            desired,
            targets,
            simulate: None,
            unread_kinds: BTreeSet::new(),
            extensions: Read::Known(vec![Extension::assumed()]),
            managers: Read::Known(Manager::assumed()),
            namespaces,
            hosts: BTreeMap::new(),
            on_uncovered: OnUncovered::Preserve,
            providers: Providers::Assumed,
        }
    }
}

/// Facts about the hosts of one workload cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hosts {
    /// When the last report of each node's agent arrived.
    pub reported_at: BTreeMap<String, Timestamp>,
    /// Version of each node's kubelet.
    pub kubelets: BTreeMap<String, StatedVersion>,
    /// What the checks of the preflight read.
    pub preflight: WorkloadFacts,
    /// Nodes whose pods no other node can take: they are not drained.
    pub alone: BTreeSet<String>,
}

impl Hosts {
    /// Reads the facts out of HostPlans, Nodes, PodDisruptionBudgets and Pods.
    pub fn of(plans: &[Value], nodes: &[Value], budgets: &[Value], pods: &[Value]) -> Self {
        let reported = |plan: &Value| Some((name(plan).to_owned(), reported_at(plan)?));
        let kubelet = |node: &Value| {
            let version = text(node, "/status/nodeInfo/kubeletVersion");
            (name(node).to_owned(), version.into())
        };
        let preflight = WorkloadFacts::of(plans, nodes, budgets, pods);
        let views = &preflight.nodes;
        let alone =
            views.iter().filter(|node| !node.unschedulable && !another_could_take(node, views));
        Self {
            alone: alone.map(|node| node.name.to_string()).collect(),
            reported_at: plans.iter().filter_map(reported).collect(),
            kubelets: nodes.iter().map(kubelet).collect(),
            preflight,
        }
    }

    /// State of the report of a node's agent.
    pub fn report(&self, node: &str, now: Timestamp) -> HostReport {
        let reported_at = self.reported_at.get(node).copied();
        HostReport::of(&node.into(), reported_at, REPORT_STALE_AFTER, now)
    }
}

/// When the report in a HostPlan arrived, by the clock of its API server: the clock of the host may be
/// wrong (`docs/facts/kubernetes.md#when-an-object-was-written`). Without managedFields, the time that the
/// report states.
pub fn reported_at(plan: &Value) -> Option<Timestamp> {
    let stated = time(plan, "/status/reportedAt")?;
    let entries = plan.pointer("/metadata/managedFields").and_then(Value::as_array);
    let of_report = entries
        .into_iter()
        .flatten()
        .filter(|entry| entry.pointer("/fieldsV1/f:status/f:reportedAt").is_some());
    Some(of_report.filter_map(|entry| time(entry, "/time")).max().unwrap_or(stated))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_alone_if_no_other_takes_its_pods() {
        let node = |name: &str, taint: Option<&str>, ready: &str| {
            json!({
                "metadata": {"name": name},
                "spec": {"taints": taint.map(|key| json!([{"key": key, "effect": "NoSchedule"}]))},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        let alone = |nodes: &[Value]| {
            let hosts = Hosts::of(&[], nodes, &[], &[]);
            hosts.alone.into_iter().collect::<Vec<_>>()
        };
        let (one, plane) = (node("w-1", None, "True"), node("cp", Some("cp"), "True"));
        assert_eq!(alone(std::slice::from_ref(&one)), ["w-1"]);
        // The worker could take the pods of the control plane node, but not the other way round.
        assert_eq!(alone(&[one.clone(), plane]), ["w-1"]);
        // A node that is down takes the pods when it is back.
        assert!(alone(&[one.clone(), node("w-2", None, "False")]).is_empty());
        assert!(alone(&[one, node("w-2", None, "True")]).is_empty());
    }

    #[test]
    fn a_report_arrives_when_its_api_server_writes_it() {
        let entry = |time: &str, fields: Value| json!({"time": time, "fieldsV1": fields});
        let status = || json!({"f:status": {"f:reportedAt": {}}});
        let plan = |entries: &[Value]| {
            json!({
                "metadata": {"name": "n", "managedFields": entries},
                "status": {"reportedAt": "2026-01-01T00:20:00Z"},
            })
        };
        let spec = entry("2026-01-01T00:07:00Z", json!({"f:spec": {"f:gate": {}}}));
        let arrived = |plan: &Value| reported_at(plan).map(|at| at.to_string());
        let written = plan(&[entry("2026-01-01T00:05:00Z", status()), spec.clone()]);
        assert_eq!(arrived(&written).as_deref(), Some("2026-01-01T00:05:00Z"));
        let stated = Some("2026-01-01T00:20:00Z");
        assert_eq!(arrived(&plan(&[spec])).as_deref(), stated);
        assert_eq!(arrived(&json!({"status": {"reportedAt": stated}})).as_deref(), stated);
        assert_eq!(arrived(&json!({"metadata": {"name": "n"}, "status": {}})), None);
    }

    #[test]
    fn a_report_is_fresh_for_a_quarter_of_an_hour() {
        let plan =
            json!({"metadata": {"name": "n"}, "status": {"reportedAt": "2026-01-01T00:00:00Z"}});
        let hosts = Hosts::of(&[plan, json!({"metadata": {"name": "silent"}})], &[], &[], &[]);
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(hosts.report("n", at("2026-01-01T00:15:00Z")), HostReport::Fresh);
        assert_eq!(
            hosts.report("n", at("2026-01-01T00:15:01Z")),
            HostReport::Silent { node: "n".into() }
        );
        assert_eq!(
            hosts.report("silent", at("2026-01-01T00:00:00Z")),
            HostReport::Silent { node: "silent".into() }
        );
    }
}
