//! The input of a prediction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use refit_core::{
    change::{OnUncovered, can_update::HostReport},
    node::{NodeView, another_could_take},
};
use refit_kinds::{
    json::{labels, name, time},
    keys,
    version::StatedVersion,
};
use serde_json::Value;

use super::{
    managers::Manager,
    objects::Objects,
    placement::{Placement, Room, Volumes},
    preflight::{WorkloadFacts, typed},
    providers::Providers,
    reach::{Extension, GroupRef, Read},
    target::TargetFacts,
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
    /// Where evicted pods could go.
    pub placement: Placement,
    /// What shows whether the target version fits.
    pub target: TargetFacts,
    /// Labels of the cluster's namespaces, if MachineDrainRules require them.
    pub namespace_labels: BTreeMap<String, BTreeMap<String, String>>,
    /// What could not be read, as sentences without a full stop.
    pub notes: Vec<String>,
}

/// What a prediction keeps of a Node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    view: NodeView,
    room: Room,
    runtime: String,
}

impl NodeFacts {
    /// Reads a Node.
    pub fn of(node: &Node) -> Self {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let runtime = info.map(|info| info.container_runtime_version.clone()).unwrap_or_default();
        Self { view: NodeView::of(node), room: Room::of(node), runtime }
    }
}

impl Hosts {
    /// Reads the facts out of HostPlans, Nodes, PodDisruptionBudgets and Pods.
    pub fn of(plans: &[Value], nodes: &[Value], budgets: &[Value], pods: &[Value]) -> Self {
        let nodes = typed::<Node>(nodes).map(|node| NodeFacts::of(&node)).collect();
        let mut hosts = Self::of_nodes(plans, nodes, budgets, Volumes::default());
        typed::<Pod>(pods).for_each(|pod| hosts.add_pod(&pod));
        hosts
    }

    /// The same without pods: they are added one by one, because a cluster has many of them.
    pub fn of_nodes(
        plans: &[Value],
        nodes: Vec<NodeFacts>,
        budgets: &[Value],
        volumes: Volumes,
    ) -> Self {
        let reported = |plan: &Value| Some((name(plan).to_owned(), reported_at(plan)?));
        let (mut views, mut rooms) = (Vec::new(), Vec::new());
        let mut target = TargetFacts::default();
        for NodeFacts { view, room, runtime } in nodes {
            target.runtimes.insert(view.name.to_string(), runtime);
            views.push(Arc::new(view));
            rooms.push(room);
        }
        let ahead = |plan: &Value| Some((name(plan).to_owned(), clock_ahead(plan)?));
        target.clocks = plans.iter().filter_map(ahead).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        let alone =
            views.iter().filter(|node| !node.unschedulable && !another_could_take(node, &views));
        let kubelet = |node: &Arc<NodeView>| (node.name.to_string(), node.kubelet_version.clone());
        Self {
            alone: alone.map(|node| node.name.to_string()).collect(),
            reported_at: plans.iter().filter_map(reported).collect(),
            kubelets: views.iter().map(kubelet).collect(),
            placement: Placement::new(rooms, volumes),
            target,
            preflight: WorkloadFacts {
                nodes: views,
                ..WorkloadFacts::of(plans, &[], budgets, &[])
            },
            ..Self::default()
        }
    }

    /// Adds a pod of one of the nodes.
    pub fn add_pod(&mut self, pod: &Pod) {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let may_leave = self.preflight.add_pod(pod);
        self.target.webhooks.iter_mut().for_each(|webhook| webhook.add(pod, may_leave));
        if !matches!(phase, Some("Succeeded" | "Failed")) {
            self.placement.add(pod, may_leave);
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
    Some(written_at(plan).unwrap_or(stated))
}

/// When the API server wrote the report in a HostPlan.
fn written_at(plan: &Value) -> Option<Timestamp> {
    let entries = plan.pointer("/metadata/managedFields").and_then(Value::as_array);
    let of_report = entries
        .into_iter()
        .flatten()
        .filter(|entry| entry.pointer("/fieldsV1/f:status/f:reportedAt").is_some());
    of_report.filter_map(|entry| time(entry, "/time")).max()
}

/// How far the clock of a host is ahead of its API server's, by its last report.
fn clock_ahead(plan: &Value) -> Option<SignedDuration> {
    Some(time(plan, "/status/reportedAt")?.duration_since(written_at(plan)?))
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
