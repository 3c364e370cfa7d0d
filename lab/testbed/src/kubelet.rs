//! What the kubelet of a simulated host says: its Node and its mirror pods, by merge patches only.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use lab_simhost::HostState;
use refit_agent::host::CONTROL_PLANE;
use serde_json::{Value, json};

use crate::objects::{self, NODE, Objects, POD};

/// How often a kubelet says that it is there.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(2);
/// On a pod that stands for a manifest on a host.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What can be seen of a host from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct View {
    up: bool,
    version: String,
    boot_id: String,
    images: BTreeMap<String, String>,
}

impl View {
    fn of(host: &mut HostState, now: Timestamp) -> (Self, Timestamp) {
        host.tick(now);
        let facts = host.facts();
        let components = ["etcd"].into_iter().chain(CONTROL_PLANE);
        let images = components
            .filter_map(|component| Some((component.to_owned(), host.static_pod_image(component)?)))
            .collect();
        let view = Self {
            up: host.kubelet_up(now),
            version: facts.kubelet_version,
            boot_id: facts.boot_id,
            images,
        };
        (view, host.kubelet_up_at)
    }
}

/// The kubelet of one host.
#[derive(Debug)]
pub struct Kubelet {
    node: String,
    workload: Objects,
    pods: Objects,
    told: Option<(View, Timestamp)>,
}

impl Kubelet {
    /// The kubelet of a node, with clients of its cluster and of its `kube-system`.
    pub fn new(node: &str, client: kube::Client) -> Self {
        Self {
            node: node.to_owned(),
            workload: Objects::of_cluster(client.clone()),
            pods: Objects::in_namespace(client, "kube-system"),
            told: None,
        }
    }

    /// Says what is new, or that it is still there.
    pub async fn tell(&mut self, view: Seen) -> anyhow::Result<()> {
        let Seen { view, up_at, now } = view;
        if let Some((told, at)) = &self.told
            && *told == view
            && *at >= up_at.min(now)
            && (!view.up || now.duration_since(*at) < HEARTBEAT)
        {
            return Ok(());
        }
        let Some(node) = self.workload.find(NODE, &self.node).await? else {
            return Ok(());
        };
        self.workload.merge(NODE, &self.node, &patch(&node, &view, now)).await?;
        if view.up {
            self.mirror_pods(&view).await?;
        }
        self.told = Some((view, now));
        Ok(())
    }

    /// Marks the pods that the provider made as what a kubelet makes of manifests.
    async fn mirror_pods(&self, view: &View) -> anyhow::Result<()> {
        for (component, image) in &view.images {
            let name = format!("{component}-{}", self.node);
            let Some(pod) = self.pods.find(POD, &name).await? else {
                continue;
            };
            let hash = format!("{name}={image}");
            if objects::annotation(&pod, MIRROR) == Some(&hash) {
                continue;
            }
            let patch = json!({
                "metadata": {"annotations": {
                    MIRROR: hash,
                    "kubernetes.io/config.source": "file",
                }},
                "spec": {"containers": [{"name": component, "image": image}]},
            });
            self.pods.merge(POD, &name, &patch).await?;
        }
        Ok(())
    }
}

/// What a kubelet has to tell at some time.
#[derive(Clone, Debug)]
pub struct Seen {
    view: View,
    up_at: Timestamp,
    now: Timestamp,
}

impl Seen {
    /// What there is to see of a host now.
    pub fn of(host: &mut HostState, now: Timestamp) -> Self {
        let (view, up_at) = View::of(host, now);
        Self { view, up_at, now }
    }
}

/// The patch of a Node. Its conditions are a list, so all of them go along.
fn patch(node: &Value, view: &View, now: Timestamp) -> Value {
    let conditions = node["status"]["conditions"].as_array().cloned();
    let mut conditions = conditions.unwrap_or_default();
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let (status, reason, message) = if view.up {
        ("True", "KubeletReady", "kubelet is posting ready status")
    } else {
        ("False", "KubeletNotReady", "the kubelet is starting")
    };
    let known = conditions.iter().position(|condition| condition["type"] == "Ready");
    let known = known.map(|at| conditions.remove(at));
    let since = known
        .filter(|condition| condition["status"] == status)
        .map(|condition| condition["lastTransitionTime"].clone())
        .filter(|since| !since.is_null());
    conditions.push(json!({
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since.unwrap_or_else(|| json!(now)),
    }));
    let mut status = json!({"conditions": conditions});
    if view.up {
        status["nodeInfo"] = json!({
            "kubeletVersion": view.version,
            "bootID": view.boot_id,
            "machineID": view.boot_id,
            "systemUUID": view.boot_id,
            "osImage": "Debian GNU/Linux 13 (trixie), simulated",
            "operatingSystem": "linux",
            "architecture": "amd64",
            "kernelVersion": "6.12.0",
            "containerRuntimeVersion": "containerd://2.1.4",
            "kubeProxyVersion": "",
        });
    }
    json!({"status": status})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_that_is_down_says_so_and_leaves_the_other_conditions() {
        let now: Timestamp = "2026-03-02T08:00:00Z".parse().unwrap();
        let node = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T00:00:00Z"},
            {"type": "DiskPressure", "status": "False"},
        ]}});
        let mut host = HostState::new("n", true, "v1.34.2", now);
        let up = patch(&node, &View::of(&mut host, now).0, now);
        let ready = objects::condition(&up, "Ready").unwrap();
        assert_eq!(ready["lastTransitionTime"], "2026-03-01T00:00:00Z");
        assert_eq!(ready["lastHeartbeatTime"], "2026-03-02T08:00:00Z");
        assert_eq!(up["status"]["nodeInfo"]["kubeletVersion"], "v1.34.2");
        let down = patch(&node, &View::default(), now);
        assert_eq!(objects::condition(&down, "Ready").unwrap()["status"], "False");
        assert!(objects::condition(&down, "DiskPressure").is_some());
        assert!(down["status"].get("nodeInfo").is_none());
    }
}
