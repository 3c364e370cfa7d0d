//! An application with a disruption budget in a real cluster, and checks that the budget is kept.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use serde_json::{Value, json};

use crate::{eventually, management::send};

/// Interval between the checks of its pods.
const PERIOD: Duration = Duration::from_millis(200);
const LABEL: &str = "app=web";

/// Observations of its pods since all of them were ready.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// Lowest number of running pods without a deletion request.
    pub fewest: usize,
    /// All pods at that time, for the report.
    pub then: String,
    /// The highest number of such pods that were not Ready: the kubelet of their node did not
    /// report for some time, for example because its API server was recreated.
    pub unheard: usize,
    /// Highest number of restarts of a container in place.
    pub restarts: i32,
    /// uid of each pod that ever existed.
    pub pods: BTreeSet<String>,
}

/// The application of a cluster.
#[derive(Clone)]
pub struct Workload {
    client: Client,
    replicas: usize,
    observations: Arc<Mutex<Observations>>,
}

impl std::fmt::Debug for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Workload")
    }
}

impl Workload {
    /// Starts it with this many pods, of which one may be missing, and waits until all are ready.
    /// From then on it is watched until the runtime ends.
    pub async fn start(client: &Client, replicas: usize) -> anyhow::Result<Self> {
        let [deployment, budget] = objects(replicas);
        let path = "/apis/apps/v1/namespaces/default/deployments";
        send(client, "POST", path, &deployment).await?;
        let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
        send(client, "POST", path, &budget).await?;
        let workload = Self { client: client.clone(), replicas, observations: Arc::default() };
        eventually("the application is ready", Duration::from_mins(2), async || {
            let pods = workload.pods().await;
            let pods = pods.map_err(|error| format!("{error:#}"))?;
            let ready = pods.iter().filter(|pod| is(pod, "Ready")).count();
            (ready == replicas).then_some(()).ok_or_else(|| format!("{ready} pods are ready"))
        })
        .await?;
        workload.lock().fewest = replicas;
        tokio::spawn(workload.clone().watch());
        Ok(workload)
    }

    /// Returns the observations so far.
    pub fn observations(&self) -> Observations {
        self.lock().clone()
    }

    /// Returns how many of its pods must be ready at any time.
    pub fn budget(&self) -> usize {
        self.replicas - 1
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Observations> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let list = pods.list(&ListParams::default().labels(LABEL)).await?;
        Ok(list.items)
    }

    async fn watch(self) {
        loop {
            // While the API server is unreachable there is no information about the pods.
            if let Ok(pods) = self.pods().await {
                let mut observed = self.lock();
                let running = pods.iter().filter(|pod| runs(pod)).count();
                if running < observed.fewest {
                    observed.fewest = running;
                    observed.then = shown(&pods);
                }
                let unheard = pods.iter().filter(|pod| runs(pod) && !is(pod, "Ready"));
                observed.unheard = observed.unheard.max(unheard.count());
                observed.restarts = pods.iter().map(restarts).fold(observed.restarts, i32::max);
                let uids = pods.iter().filter_map(|pod| pod.metadata.uid.clone());
                observed.pods.extend(uids);
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
}

fn is(pod: &Pod, condition: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c.type_ == condition && c.status == "True")
}

/// Reports whether the kubelet reports the pod as running and no deletion was requested. The
/// condition Ready is not used: other components reset it if the kubelet has not reported.
fn runs(pod: &Pod) -> bool {
    is(pod, "ContainersReady") && pod.metadata.deletion_timestamp.is_none()
}

fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let mut containers = containers.into_iter().flatten();
    containers.next().map_or(0, |one| one.restart_count)
}

/// Formats pods with their nodes and states.
fn shown(pods: &[Pod]) -> String {
    let one = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let state = match &pod.metadata.deletion_timestamp {
            Some(_) => "is terminating",
            None if runs(pod) => "is running",
            None => "is not running yet",
        };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        format!("{name} on {} {state}", node.unwrap_or("no node"))
    };
    pods.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A Deployment that runs on every kind of node and spreads its pods if possible, and its budget.
fn objects(replicas: usize) -> [Value; 2] {
    let labels = json!({"app": "web"});
    let apart = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": labels},
        },
    }]});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "affinity": {"podAntiAffinity": apart},
                    "automountServiceAccountToken": false,
                    "containers": [{"name": "web", "image": "registry.k8s.io/pause:3.10"}],
                },
            },
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    });
    [deployment, budget]
}
