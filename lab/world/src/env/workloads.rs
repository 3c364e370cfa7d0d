//! ReplicaSet and DaemonSet controllers and the scheduler of a workload cluster.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{PassWrites, kubelet::Local, name, namespace, short_hash, text};
use crate::direct::Call;

/// Creates one pod of each DaemonSet on each Node.
pub(crate) fn daemon_pods(local: &Local<'_>, plan: &mut PassWrites) {
    for set in local.mirror.list("daemonsets.apps") {
        let uid = text(&set, "/metadata/uid");
        let pods = local.pods.iter().filter(|pod| is_owned(pod, uid));
        let served: BTreeSet<&str> = pods.map(|pod| text(pod, "/spec/nodeName")).collect();
        for node in local.nodes.keys().filter(|node| !served.contains(node.as_str())) {
            let pod = format!("{}-{}", name(&set), &short_hash(node)[..5]);
            if local.mirror.get("pods", namespace(&set), &pod).is_some() {
                continue;
            }
            let mut body = pod_of(&set, "DaemonSet");
            body["metadata"]["name"] = json!(pod);
            body["spec"]["nodeName"] = json!(node);
            local.send(plan, Call::create(pods_of(&set), body));
        }
    }
}

/// Maximum number of pods of a ReplicaSet: a mistyped `kubectl scale` must not exhaust the memory.
const MOST_PODS: u64 = 1000;

/// Maintains the number of pods that each ReplicaSet requests, on schedulable nodes.
pub(crate) fn replicas(local: &Local<'_>, plan: &mut PassWrites) {
    let mut load: BTreeMap<&str, Load> = local
        .nodes
        .keys()
        .filter(|node| local.schedulable(node))
        .map(|node| (node.as_str(), Load::default()))
        .collect();
    for pod in local.pods.iter().filter(|pod| !is_ending(pod)) {
        if let Some(load) = load.get_mut(text(pod, "/spec/nodeName")) {
            load.add(&pod["spec"]);
        }
    }
    for set in local.mirror.list("replicasets.apps") {
        let wanted = set["spec"]["replicas"].as_u64().unwrap_or(0).min(MOST_PODS);
        if set["status"]["replicas"].is_null() {
            // The application starts when all nodes have joined, so that it is spread over all of
            // them.
            if local.booting || load.is_empty() {
                continue;
            }
            let path = format!("/apis/apps/v1/namespaces/{}/replicasets", namespace(&set));
            let path = format!("{path}/{}/status", name(&set));
            let body = json!({"status": {"replicas": wanted}});
            local.send(plan, Call::merge(path, body));
        }
        let uid = text(&set, "/metadata/uid");
        let mut live = 0;
        for pod in local.pods.iter().filter(|pod| is_owned(pod, uid) && !is_ending(pod)) {
            live += 1;
            if text(pod, "/spec/nodeName").is_empty()
                && let Some(node) = place(local, &mut load, &pod["spec"])
            {
                let path = format!("{}/{}", pods_of(&set), name(pod));
                let body = json!({"spec": {"nodeName": node}});
                local.send(plan, Call::merge(path, body));
            }
        }
        for _ in live..wanted {
            let mut body = pod_of(&set, "ReplicaSet");
            body["metadata"]["generateName"] = json!(format!("{}-", name(&set)));
            if let Some(node) = place(local, &mut load, &body["spec"]) {
                body["spec"]["nodeName"] = json!(node);
            }
            local.send(plan, Call::create(pods_of(&set), body));
        }
    }
}

/// What the pods of a node take.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    pods: usize,
    cores: u64,
}

impl Load {
    fn add(&mut self, spec: &Value) {
        self.pods += 1;
        self.cores += cores(spec);
    }
}

/// The whole cores that the containers of a pod request.
fn cores(spec: &Value) -> u64 {
    let containers = spec["containers"].as_array();
    let requests = containers.into_iter().flatten();
    requests.filter_map(|one| text(one, "/resources/requests/cpu").parse::<u64>().ok()).sum()
}

/// Picks the node with the fewest pods, the first by name among equals, and counts one more pod there. Of what a pod
/// requires,
/// node selectors and whole cores count.
fn place(local: &Local<'_>, load: &mut BTreeMap<&str, Load>, spec: &Value) -> Option<String> {
    let fits = |node: &str, load: &Load| {
        let Some(node) = local.nodes.get(node) else { return false };
        let selector = spec["nodeSelector"].as_object();
        let all = text(node, "/status/allocatable/cpu").parse::<u64>().unwrap_or_default();
        selector.into_iter().flatten().all(|(key, value)| node["metadata"]["labels"][key] == *value)
            && load.cores + cores(spec) <= all
    };
    let candidates = load.iter_mut().filter(|(node, load)| fits(node, load));
    let (node, load) = candidates.min_by_key(|(_, load)| load.pods)?;
    load.add(spec);
    Some((*node).to_owned())
}

fn is_ending(pod: &Value) -> bool {
    !text(pod, "/metadata/deletionTimestamp").is_empty()
}

fn is_owned(pod: &Value, uid: &str) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["uid"] == uid)
}

fn pods_of(set: &Value) -> String {
    format!("/api/v1/namespaces/{}/pods", namespace(set))
}

fn pod_of(set: &Value, kind: &str) -> Value {
    let template = &set["spec"]["template"];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace(set),
            "labels": template["metadata"]["labels"],
            "ownerReferences": [{
                "apiVersion": "apps/v1",
                "kind": kind,
                "name": name(set),
                "uid": text(set, "/metadata/uid"),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    })
}
