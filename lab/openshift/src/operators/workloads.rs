//! ReplicaSets and DaemonSets: their pods are created on nodes that may have them.

use std::collections::BTreeMap;

use refit_kinds::json::{is_deleting, name, text};
use serde_json::{Value, json};

use crate::cluster::{
    plan::Plan,
    view::{Kind, is_master, is_ready, uid},
};

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    let mut load: BTreeMap<&str, usize> = BTreeMap::new();
    for node in plan.view.list(Kind::Node).iter().filter(|node| is_schedulable(node)) {
        load.insert(name(node), plan.view.pods_of(name(node)).count());
    }
    for set in plan.view.list(Kind::ReplicaSet) {
        replicas(plan, set, &mut load);
    }
    for set in plan.view.list(Kind::DaemonSet) {
        daemons(plan, set);
    }
}

/// Whether a node takes pods that tolerate nothing.
fn is_schedulable(node: &Value) -> bool {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let keeps_away = |taint: &Value| matches!(text(taint, "/effect"), "NoSchedule" | "NoExecute");
    is_ready(node)
        && !is_master(node)
        && !taints.any(keeps_away)
        && node["spec"]["unschedulable"] != true
}

fn pods_of<'a>(plan: &Plan<'a>, set: &Value) -> Vec<&'a Value> {
    let owner = uid(set);
    let is_of = |pod: &&Value| {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|one| one["uid"] == owner)
    };
    plan.view.list(Kind::Pod).iter().filter(is_of).collect()
}

fn replicas(plan: &mut Plan<'_>, set: &Value, load: &mut BTreeMap<&str, usize>) {
    if is_deleting(set) {
        return;
    }
    let pods = pods_of(plan, set);
    let present = pods.iter().filter(|pod| !is_deleting(pod)).count();
    let wanted =
        set["spec"]["replicas"].as_u64().and_then(|count| count.try_into().ok()).unwrap_or(1);
    for _ in present..wanted {
        let Some((node, count)) = load.iter_mut().min_by_key(|(_, count)| **count) else { return };
        *count += 1;
        let metadata = json!({"generateName": format!("{}-", name(set))});
        create(plan, set, "ReplicaSet", metadata, node);
    }
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let status = json!({"replicas": present, "readyReplicas": ready, "availableReplicas": ready});
    plan.status(Kind::ReplicaSet, set, &status);
}

fn daemons(plan: &mut Plan<'_>, set: &Value) {
    let pods = pods_of(plan, set);
    for node in plan.view.list(Kind::Node).iter().filter(|node| is_ready(node)) {
        let node = name(node);
        if !pods.iter().any(|pod| text(pod, "/spec/nodeName") == node) {
            let metadata = json!({"name": format!("{}-{node}", name(set))});
            create(plan, set, "DaemonSet", metadata, node);
        }
    }
}

fn create(plan: &mut Plan<'_>, set: &Value, kind: &str, mut metadata: Value, node: &str) {
    let template = &set["spec"]["template"];
    metadata["namespace"] = set["metadata"]["namespace"].clone();
    metadata["labels"] = template["metadata"]["labels"].clone();
    metadata["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": name(set), "uid": uid(set), "controller": true,
    }]);
    let mut spec = template["spec"].clone();
    spec["nodeName"] = json!(node);
    plan.create(Kind::Pod, json!({"metadata": metadata, "spec": spec}));
}
