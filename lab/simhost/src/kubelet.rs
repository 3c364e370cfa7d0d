//! What the kubelet of a simulated host reports: Node status, static pods and pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    json::{is_true, name, text, whole_condition},
    refit::hash_json,
};
use serde_json::{Value, json};

use crate::state::HostState;

/// Annotation of a mirror pod, which represents a static pod manifest.
pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// What is visible of a host from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Whether the kubelet is up.
    pub up: bool,
    /// When the kubelet came up; in the future while it is down.
    pub up_at: Timestamp,
    /// Version of the running kubelet, `vX.Y.Z`.
    pub kubelet_version: String,
    /// Changes with each boot.
    pub boot_id: String,
    /// Pretty name of the operating system.
    pub os_image: String,
    /// Images in the static pod manifests, by component.
    pub static_pods: BTreeMap<String, String>,
}

impl HostView {
    /// The view of a host at `now`.
    pub fn of(host: &mut HostState, now: Timestamp) -> Self {
        host.tick(now);
        let facts = host.facts();
        Self {
            up: host.kubelet_up(now),
            up_at: host.kubelet_up_at,
            kubelet_version: facts.kubelet_version.map_or_else(String::new, |v| v.to_string()),
            boot_id: facts.boot_id,
            os_image: facts.os_image,
            static_pods: facts.static_pods,
        }
    }

    /// Whether a host looks like this at `now`.
    pub fn is_of(&self, host: &mut HostState, now: Timestamp) -> bool {
        host.tick(now);
        // Every host has the same image.
        let Self { up, up_at, kubelet_version, boot_id, os_image: _, static_pods } = self;
        *up == host.kubelet_up(now)
            && *up_at == host.kubelet_up_at
            && *kubelet_version == host.kubelet_version
            && *boot_id == host.boot_id
            && *static_pods == host.static_pods()
    }

    /// The status patch of this host's Node: its conditions and, while the kubelet is up, its node
    /// info. Conditions are a list, so a merge patch contains all of them.
    pub fn report(&self, node: &Value, now: Timestamp) -> Value {
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions: Vec<Value> =
            conditions.into_iter().flatten().filter(|c| c["type"] != "Ready").cloned().collect();
        conditions.push(self.ready_condition(node, now));
        let mut status = json!({"conditions": conditions});
        if self.up {
            status["nodeInfo"] = self.node_info();
        }
        json!({"status": status})
    }

    /// The Ready condition. It keeps its last transition time if its status does not change.
    pub fn ready_condition(&self, node: &Value, now: Timestamp) -> Value {
        let (status, reason, message) = if self.up {
            ("True", "KubeletReady", "kubelet is posting ready status")
        } else {
            ("False", "KubeletNotReady", "the kubelet is starting")
        };
        let since = ready_condition(node)
            .filter(|known| known["status"] == status)
            .map(|known| &known["lastTransitionTime"])
            .filter(|since| since.is_string());
        let now = json!(Time(now));
        json!({
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since.unwrap_or(&now),
        })
    }

    /// The `nodeInfo` of a Node's status.
    pub fn node_info(&self) -> Value {
        json!({
            "architecture": "amd64",
            "bootID": self.boot_id,
            "containerRuntimeVersion": "containerd://2.1.4",
            "kernelVersion": "6.8.0-60-generic",
            "kubeProxyVersion": "",
            "kubeletVersion": self.kubelet_version,
            "machineID": self.boot_id,
            "operatingSystem": "linux",
            "osImage": self.os_image,
            "systemUUID": self.boot_id,
        })
    }
}

/// The Ready condition of a Node or a pod.
pub fn ready_condition(object: &Value) -> Option<&Value> {
    whole_condition(object, "Ready")
}

/// Whether a Node or a pod is Ready.
pub fn is_ready(object: &Value) -> bool {
    is_true(object, "Ready")
}

/// The mirror pod of a static pod manifest of a Node.
pub fn mirror_pod(node: &Value, component: &str, image: &str) -> Value {
    let pod = format!("{component}-{}", name(node));
    let hash = short_hash(&format!("{pod}={image}"));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod,
            "namespace": "kube-system",
            "labels": {"component": component, "tier": "control-plane"},
            "annotations": {
                MIRROR_POD: hash,
                "kubernetes.io/config.hash": hash,
                "kubernetes.io/config.source": "file",
            },
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Node",
                "name": name(node),
                "uid": text(node, "/metadata/uid"),
                "controller": true,
            }],
        },
        "spec": {
            "nodeName": name(node),
            "hostNetwork": true,
            "priorityClassName": "system-node-critical",
            "containers": [{"name": component, "image": image}],
        },
    })
}

/// The status patch of a pod that has started.
pub fn running(pod: &Value, now: Timestamp) -> Value {
    let now = json!(Time(now));
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let container = &pod["spec"]["containers"][0];
    json!({"status": {
        "phase": "Running",
        "startTime": now,
        "conditions": [condition("ContainersReady"), condition("Ready")],
        "containerStatuses": [{
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": true,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }],
    }})
}

/// The first eight hex digits of the hash of a text.
pub fn short_hash(input: &str) -> String {
    let mut hash = hash_json(&Value::from(input));
    hash.truncate(8);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_that_is_down_keeps_the_other_conditions() {
        let now: Timestamp = "2026-03-02T08:00:00Z".parse().unwrap();
        let node = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T00:00:00Z"},
            {"type": "DiskPressure", "status": "False"},
        ]}});
        let view = HostView::of(&mut HostState::new("n", true, "v1.34.2", now), now);
        let up = view.report(&node, now);
        let ready = ready_condition(&up).unwrap();
        assert_eq!(ready["lastTransitionTime"], "2026-03-01T00:00:00Z");
        assert_eq!(ready["lastHeartbeatTime"], "2026-03-02T08:00:00Z");
        assert_eq!(up["status"]["nodeInfo"]["kubeletVersion"], "v1.34.2");
        let down = HostView { up: false, ..view }.report(&node, now);
        let ready = ready_condition(&down).unwrap();
        assert_eq!(
            (&ready["status"], &ready["lastTransitionTime"]),
            (&json!("False"), &json!(Time(now)))
        );
        assert_eq!(down["status"]["conditions"][0]["type"], "DiskPressure");
        assert!(down["status"].get("nodeInfo").is_none());
    }
}
