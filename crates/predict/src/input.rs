//! The input of a prediction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use refit_core::{
    change::{OnUncovered, can_update::HostReport},
    node::{NodeView, another_could_take},
};
use refit_kinds::json::{annotations, condition, controller, is_deleting, name, text, time};
use refit_kinds::version::StatedVersion;
use serde_json::Value;

use super::{
    managers::Manager,
    objects::Objects,
    providers::Providers,
    reach::{Extension, GroupRef, Read},
};

/// Maximum age of an agent's report, after which its host counts as unknown: the agent reports
/// every five minutes, and two reports may be lost.
pub const REPORT_STALE_AFTER: SignedDuration = SignedDuration::from_mins(15);
/// Annotation of static pods, which the kubelet runs from files.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";

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
    /// Whether the change is made through the topology of a Cluster.
    pub through_topology: bool,
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
    /// respond.
    pub fn offline(
        now: Timestamp,
        current: Objects,
        desired: Objects,
        targets: Vec<GroupRef>,
    ) -> Self {
        let namespaces = targets
            .iter()
            .map(|target| {
                let labels = Read::Known(BTreeMap::new());
                (target.namespace.clone(), labels)
            })
            .collect();
        Self {
            now,
            current,
            desired,
            targets,
            through_topology: false,
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
    /// When the agent of each node last reported.
    pub reported_at: BTreeMap<String, Timestamp>,
    /// Version of each node's kubelet.
    pub kubelets: BTreeMap<String, StatedVersion>,
    /// PodDisruptionBudgets that currently allow no eviction, with the nodes of their pods.
    pub exhausted: BTreeMap<String, BTreeSet<String>>,
    /// Nodes whose pods no other node can take: they are not drained.
    pub alone: BTreeSet<String>,
}

impl Hosts {
    /// Reads the facts out of HostPlans, Nodes, PodDisruptionBudgets and Pods.
    pub fn of(plans: &[Value], nodes: &[Value], budgets: &[Value], pods: &[Value]) -> Self {
        let reported =
            |plan: &Value| Some((name(plan).to_owned(), time(plan, "/status/reportedAt")?));
        let kubelet = |node: &Value| {
            let version = text(node, "/status/nodeInfo/kubeletVersion");
            (name(node).to_owned(), version.into())
        };
        let views: Vec<Arc<NodeView>> = nodes.iter().map(node_view).map(Arc::new).collect();
        Self {
            alone: views
                .iter()
                .filter(|node| !node.unschedulable && !another_could_take(node, &views))
                .map(|node| node.name.to_string())
                .collect(),
            reported_at: plans.iter().filter_map(reported).collect(),
            kubelets: nodes.iter().map(kubelet).collect(),
            exhausted: budgets
                .iter()
                .filter(|budget| allows_none(budget))
                .map(|budget| {
                    let title = format!("{}/{}", text(budget, "/metadata/namespace"), name(budget));
                    (title, nodes_of(budget, pods))
                })
                .filter(|(_, nodes)| !nodes.is_empty())
                .collect(),
        }
    }

    /// State of the report of a node's agent.
    pub fn report(&self, node: &str, now: Timestamp) -> HostReport {
        let reported_at = self.reported_at.get(node).copied();
        HostReport::of(&node.into(), reported_at, REPORT_STALE_AFTER, now)
    }
}

/// The fields that decide whether a node takes pods.
fn node_view(node: &Value) -> NodeView {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    let keeps_away = |taint: &&Value| {
        text(taint, "/effect") != "PreferNoSchedule"
            && text(taint, "/key") != "node.kubernetes.io/unschedulable"
    };
    NodeView {
        name: name(node).into(),
        ready: condition(node, "Ready").is_some_and(|status| status == "True"),
        unschedulable: node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
        taints: taints
            .into_iter()
            .flatten()
            .filter(keeps_away)
            .map(|taint| text(taint, "/key").to_owned())
            .collect(),
        ..NodeView::default()
    }
}

fn allows_none(budget: &Value) -> bool {
    let count = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64);
    count("/status/disruptionsAllowed") == Some(0)
        && count("/status/expectedPods").is_none_or(|expected| expected > 0)
}

/// Nodes of the pods that a drain would evict and that the budget protects.
fn nodes_of(budget: &Value, pods: &[Value]) -> BTreeSet<String> {
    let selector = budget
        .pointer("/spec/selector")
        .and_then(|selector| serde_json::from_value::<LabelSelector>(selector.clone()).ok())
        .and_then(|selector| Selector::try_from(selector).ok());
    let namespace = text(budget, "/metadata/namespace");
    pods.iter()
        .filter(|pod| text(pod, "/metadata/namespace") == namespace)
        .filter(|pod| !is_deleting(pod))
        .filter(|pod| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed"))
        .filter(|pod| controller(pod).is_none_or(|(kind, _)| kind != "DaemonSet"))
        .filter(|pod| !annotations(pod).contains_key(MIRROR_POD))
        // Most policies let a pod that is not Ready be disrupted even if its budget is exhausted.
        .filter(|pod| condition(pod, "Ready").is_none_or(|status| status == "True"))
        .filter(|pod| {
            let labels = refit_kinds::json::labels(pod);
            selector.as_ref().is_some_and(|selector| selector.matches(&labels))
        })
        .map(|pod| text(pod, "/spec/nodeName").to_owned())
        .filter(|node| !node.is_empty())
        .collect()
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
    fn an_exhausted_budget_names_the_nodes_of_its_pods() {
        let budget = |allowed: i64, expected: i64| {
            json!({"metadata": {"name": "web", "namespace": "a"},
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"disruptionsAllowed": allowed, "expectedPods": expected}})
        };
        let pod = |namespace: &str, node: &str, owner: &str| {
            json!({"metadata": {"name": node, "namespace": namespace, "labels": {"app": "web"},
                    "ownerReferences": [{"kind": owner, "name": "o", "controller": true}]},
                "spec": {"nodeName": node}, "status": {"phase": "Running"}})
        };
        let pods = [
            pod("a", "n1", "ReplicaSet"),
            pod("a", "n2", "DaemonSet"),
            pod("b", "n3", "ReplicaSet"),
            pod("a", "", "ReplicaSet"),
        ];
        let hosts = |budget: Value| Hosts::of(&[], &[], &[budget], &pods).exhausted;
        assert_eq!(
            hosts(budget(0, 2)),
            [("a/web".to_owned(), BTreeSet::from(["n1".to_owned()]))].into()
        );
        assert!(hosts(budget(1, 2)).is_empty());
        assert!(hosts(budget(0, 0)).is_empty());
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
