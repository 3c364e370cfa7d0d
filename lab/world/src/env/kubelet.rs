//! Kubelets: register Nodes, create mirror pods, start and end pods.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use lab_simhost::kubelet::{HostView, MIRROR_POD, is_ready, mirror_pod, ready_condition, running};
use serde_json::{Value, json};

use super::{
    HEARTBEAT, POD_START, PassWrites, SILENCE, STATIC_POD_START, View, flag,
    infrastructure::address,
    later, name, namespace, rfc3339,
    state::{EnvState, HostRecord, host_key},
    text, time,
};
use crate::{direct::Call, mirror::Mirror};

/// One workload cluster as a pass sees it.
pub(crate) struct Local<'a> {
    pub(crate) view: &'a View<'a>,
    pub(crate) cluster: &'a str,
    pub(crate) mirror: &'a Mirror,
    /// Booted hosts, by node name.
    pub(crate) hosts: BTreeMap<&'a str, (&'a HostRecord, &'a HostView)>,
    /// Whether a host of the cluster has yet to become a Node.
    pub(crate) booting: bool,
    pub(crate) nodes: BTreeMap<String, Arc<Value>>,
    pub(crate) pods: Vec<Arc<Value>>,
}

impl<'a> Local<'a> {
    pub(crate) fn new(
        view: &'a View<'a>,
        state: &'a EnvState,
        cluster: &'a str,
        mirror: &'a Mirror,
    ) -> Self {
        let records = || state.hosts.values().filter(|host| host.cluster == cluster);
        let hosts: BTreeMap<_, _> = records()
            .filter_map(|host| {
                let seen = view.hosts.get(&host_key(cluster, &host.node))?;
                Some((&*host.node, (host, &**seen)))
            })
            .collect();
        let nodes = mirror.list("nodes");
        Self {
            view,
            cluster,
            mirror,
            booting: records().count() > nodes.len(),
            hosts,
            nodes: nodes.into_iter().map(|node| (name(&node).to_owned(), node)).collect(),
            pods: mirror.list("pods"),
        }
    }

    pub(crate) fn send(&self, plan: &mut PassWrites, call: Call) {
        plan.workload(self.cluster, call);
    }

    /// Whether the Node of this name is Ready and schedulable.
    pub(crate) fn schedulable(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| {
            let taints = node["spec"]["taints"].as_array();
            let tainted = taints
                .into_iter()
                .flatten()
                .any(|taint| matches!(taint["effect"].as_str(), Some("NoSchedule" | "NoExecute")));
            is_ready(node) && !tainted && !flag(node, "/spec/unschedulable")
        })
    }
}

/// Registers Nodes and updates their status.
pub(crate) fn nodes(local: &Local<'_>, plan: &mut PassWrites) {
    for (node, (record, host)) in &local.hosts {
        match local.nodes.get(*node) {
            None if host.up => {
                let body = new_node(local, record, host);
                local.send(plan, Call::create("/api/v1/nodes", body));
            }
            None => {}
            Some(object) => report(local, object, host, plan),
        }
    }
}

fn report(local: &Local<'_>, object: &Value, host: &HostView, plan: &mut PassWrites) {
    let ready = ready_condition(object);
    let now = local.view.now;
    let path = format!("/api/v1/nodes/{}/status", name(object));
    if !host.up {
        if is_ready(object) {
            local.send(plan, Call::merge(path, host.report(object, now)));
        } else {
            silence(local, object, path, plan);
        }
        return;
    }
    let beat = ready.and_then(|c| time(c, "/lastHeartbeatTime"));
    let info = &object["status"]["nodeInfo"];
    let same = is_ready(object)
        && info["kubeletVersion"] == host.kubelet_version.as_str()
        && info["bootID"] == host.boot_id.as_str();
    // Times in the API are whole seconds: a heartbeat counts as new from the next second on.
    let due = beat.filter(|beat| *beat >= host.up_at).map(next_heartbeat);
    if let Some(due) = due.filter(|due| same && now < *due) {
        plan.wake_at(due);
        return;
    }
    local.send(plan, Call::merge(path, host.report(object, now)));
}

/// When the heartbeat after this one is due: all idle kubelets report at the same times, so that one pass
/// serves all of them.
fn next_heartbeat(beat: Timestamp) -> Timestamp {
    let period = HEARTBEAT.as_secs();
    later(beat, SignedDuration::from_secs(period - beat.as_second().rem_euclid(period)))
}

/// Sets the status that the node lifecycle controller sets when a kubelet stops reporting.
fn silence(local: &Local<'_>, object: &Value, path: String, plan: &mut PassWrites) {
    let Some(ready) = ready_condition(object).filter(|ready| ready["status"] == "False") else {
        return;
    };
    let now = local.view.now;
    let due = time(ready, "/lastTransitionTime").map_or(now, |since| later(since, SILENCE));
    if now < due {
        plan.wake_at(due);
        return;
    }
    let mut unknown = ready.clone();
    unknown["status"] = json!("Unknown");
    unknown["reason"] = json!("NodeStatusUnknown");
    unknown["message"] = json!("Kubelet stopped posting node status.");
    unknown["lastTransitionTime"] = json!(rfc3339(now));
    let body = json!({"status": {"conditions": [unknown]}});
    local.send(plan, Call::merge(path, body));
}

fn new_node(local: &Local<'_>, record: &HostRecord, host: &HostView) -> Value {
    let node = &record.node;
    let mut labels = json!({
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": node,
        "kubernetes.io/os": "linux",
    });
    let mut spec = json!({"providerID": record.provider_id});
    if record.control_plane {
        labels["node-role.kubernetes.io/control-plane"] = json!("");
        spec["taints"] =
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "labels": labels},
        "spec": spec,
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": address(node)},
                {"type": "Hostname", "address": node},
            ],
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [host.ready_condition(&Value::Null, local.view.now)],
            "nodeInfo": host.node_info(),
        },
    })
}

/// Maintains one mirror pod per static pod manifest; replaces it when the manifest changes.
pub(crate) fn static_pods(local: &Local<'_>, plan: &mut PassWrites) {
    for (node, (_, host)) in &local.hosts {
        let Some(object) = local.nodes.get(*node).filter(|_| host.up) else {
            continue;
        };
        for (component, image) in &host.static_pods {
            let pod = format!("{component}-{node}");
            let path = format!("/api/v1/namespaces/kube-system/pods/{pod}");
            match local.mirror.get("pods", "kube-system", &pod) {
                Some(found) if text(&found, "/spec/containers/0/image") == image => continue,
                Some(_) => local.send(plan, Call::delete(path)),
                None => {}
            }
            let body = mirror_pod(object, component, image);
            local.send(plan, Call::create("/api/v1/namespaces/kube-system/pods", body));
        }
    }
}

/// Starts pods, and removes those that are being deleted.
pub(crate) fn pods(local: &Local<'_>, plan: &mut PassWrites) {
    let now = local.view.now;
    for pod in &local.pods {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() {
            continue;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", namespace(pod), name(pod));
        let Some((_, host)) = local.hosts.get(node) else {
            // The host is gone: no kubelet will remove its pods.
            local.send(plan, Call::delete(path));
            continue;
        };
        if !host.up {
            continue;
        }
        if let Some(end) = time(pod, "/metadata/deletionTimestamp") {
            if end <= now {
                local.send(plan, Call::delete(path));
            } else {
                plan.wake_at(end);
            }
            continue;
        }
        if is_ready(pod) {
            continue;
        }
        let mirror = pod["metadata"]["annotations"].get(MIRROR_POD).is_some();
        let delay = if mirror { STATIC_POD_START } else { POD_START };
        let start = time(pod, "/metadata/creationTimestamp").unwrap_or(now);
        let due = later(start, delay);
        if now >= due {
            local.send(plan, Call::merge(format!("{path}/status"), running(pod, now)));
        } else {
            plan.wake_at(due);
        }
    }
}
