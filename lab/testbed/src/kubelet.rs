//! The kubelet of a simulated host on a real API server. It only uses merge patches.

use jiff::{SignedDuration, Timestamp};
use lab_simhost::kubelet::{HostView, MIRROR_POD, mirror_pod};
use serde_json::{Value, json};

use crate::objects::{self, NODE, Objects, POD};

/// How often an idle kubelet reports.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(2);

/// The kubelet of one host.
#[derive(Debug)]
pub struct Kubelet {
    node: String,
    workload: Objects,
    pods: Objects,
    reported: Option<(HostView, Timestamp)>,
}

impl Kubelet {
    /// The kubelet of a Node, with a client of its cluster.
    pub fn new(node: &str, client: kube::Client) -> Self {
        Self {
            node: node.to_owned(),
            workload: Objects::of_cluster(client.clone()),
            pods: Objects::in_namespace(client, "kube-system"),
            reported: None,
        }
    }

    /// Reports what has changed, or a heartbeat.
    pub async fn report(&mut self, host: HostView, now: Timestamp) -> anyhow::Result<()> {
        if let Some((reported, at)) = &self.reported
            && *reported == host
            && (!host.up || now.duration_since(*at) < HEARTBEAT)
        {
            return Ok(());
        }
        let Some(node) = self.workload.find(NODE, &self.node).await? else {
            return Ok(());
        };
        self.workload.merge(NODE, &self.node, &host.report(&node, now)).await?;
        if host.up {
            self.mirror_pods(&node, &host).await?;
        }
        self.reported = Some((host, now));
        Ok(())
    }

    /// Annotates the pods that the provider created as mirror pods of static manifests.
    async fn mirror_pods(&self, node: &Value, host: &HostView) -> anyhow::Result<()> {
        for (component, image) in &host.static_pods {
            let wanted = mirror_pod(node, component, image);
            let name = objects::name(&wanted);
            let Some(pod) = self.pods.find(POD, name).await? else {
                continue;
            };
            let hash = objects::annotation(&wanted, MIRROR_POD);
            if objects::annotation(&pod, MIRROR_POD) == hash {
                continue;
            }
            let patch = json!({
                "metadata": {"annotations": wanted["metadata"]["annotations"]},
                "spec": {"containers": wanted["spec"]["containers"]},
            });
            self.pods.merge(POD, name, &patch).await?;
        }
        Ok(())
    }
}
