//! Simple workload controllers for a workload cluster, and a check of its budget: ReplicaSet and
//! DaemonSet controllers, the scheduler, and the part of kubelets that starts and stops ordinary
//! pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use kube::Client;
use lab_simhost::kubelet::{MIRROR_POD, is_ready, running};
use refit_kinds::json::{is_deleting, name, namespace, text};
use refit_runtime::Clock;
use serde_json::{Value, json};

use crate::management::send;

/// Interval between reconciles.
const PERIOD: Duration = Duration::from_millis(300);
const PODS: &str = "/api/v1/namespaces";

/// Number of pods of the application minus those that its budget allows to be missing.
const FEWEST: usize = 6;

/// Observations of the application.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    fewest: Arc<AtomicUsize>,
}

impl Watched {
    /// Returns the lowest number of ready pods since all were ready.
    pub fn fewest_ready(&self) -> usize {
        self.fewest.load(Ordering::SeqCst)
    }

    /// Checks that as many pods as the budget of the application requires were ready at all times.
    pub fn budget_was_kept(&self) -> anyhow::Result<()> {
        let fewest = self.fewest_ready();
        ensure!(fewest >= FEWEST, "only {fewest} pods of the application were ready at some time");
        ensure!(fewest < usize::MAX, "the application was never seen ready");
        Ok(())
    }
}

/// Keeps the workloads of a cluster running until the runtime ends.
pub fn keep(client: Client) -> Watched {
    let watched = Watched { fewest: Arc::new(AtomicUsize::new(usize::MAX)) };
    let sink = watched.fewest.clone();
    tokio::spawn(async move {
        loop {
            if let Err(error) = pass(&client, &sink).await {
                tracing::debug!("failed to observe the workloads, retrying: {error:#}");
            }
            tokio::time::sleep(PERIOD).await;
        }
    });
    watched
}

struct Snapshot {
    pods: Vec<Value>,
    nodes: Vec<Value>,
}

async fn list(client: &Client, path: &str) -> anyhow::Result<Vec<Value>> {
    let answer = send(client, "GET", path, &Value::Null).await?;
    Ok(answer["items"].as_array().cloned().unwrap_or_default())
}

async fn pass(client: &Client, fewest: &AtomicUsize) -> anyhow::Result<()> {
    let snapshot = Snapshot {
        pods: list(client, "/api/v1/pods").await?,
        nodes: list(client, "/api/v1/nodes").await?,
    };
    for pod in &snapshot.pods {
        kubelet(client, pod).await?;
    }
    for set in list(client, "/apis/apps/v1/daemonsets").await? {
        daemons(client, &snapshot, &set).await?;
    }
    for set in list(client, "/apis/apps/v1/replicasets").await? {
        let (ready, wanted) = replicas(client, &snapshot, &set).await?;
        if ready >= wanted || fewest.load(Ordering::SeqCst) != usize::MAX {
            fewest.fetch_min(ready, Ordering::SeqCst);
        }
    }
    Ok(())
}

fn path_of(pod: &Value) -> String {
    format!("{PODS}/{}/pods/{}", namespace(pod), name(pod))
}

/// Removes a pod that is being deleted and starts a new one. The stand-in kubelet manages mirror
/// pods.
async fn kubelet(client: &Client, pod: &Value) -> anyhow::Result<()> {
    let mirror = &pod["metadata"]["annotations"][MIRROR_POD];
    if text(pod, "/spec/nodeName").is_empty() || !mirror.is_null() {
        return Ok(());
    }
    if is_deleting(pod) {
        let body = json!({"gracePeriodSeconds": 0});
        send(client, "DELETE", &path_of(pod), &body).await?;
    } else if !is_ready(pod) {
        let body = running(pod, Clock::real().now());
        send(client, "PATCH", &format!("{}/status", path_of(pod)), &body).await?;
    }
    Ok(())
}

fn is_owned(pod: &Value, set: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner["uid"] == set["metadata"]["uid"])
}

fn pod_of(set: &Value, kind: &str, node: &str) -> Value {
    let template = &set["spec"]["template"];
    let mut spec = template["spec"].clone();
    spec["nodeName"] = json!(node);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-", name(set)),
            "labels": template["metadata"]["labels"],
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": kind, "controller": true,
                "name": set["metadata"]["name"], "uid": set["metadata"]["uid"],
            }],
        },
        "spec": spec,
    })
}

async fn create(client: &Client, set: &Value, pod: &Value) -> anyhow::Result<()> {
    let path = format!("{PODS}/{}/pods", namespace(set));
    send(client, "POST", &path, pod).await.map(drop)
}

async fn daemons(client: &Client, snapshot: &Snapshot, set: &Value) -> anyhow::Result<()> {
    let own = snapshot.pods.iter().filter(|pod| is_owned(pod, set));
    let there: BTreeSet<&str> = own.map(|pod| text(pod, "/spec/nodeName")).collect();
    for node in &snapshot.nodes {
        let node = name(node);
        if !there.contains(node) {
            create(client, set, &pod_of(set, "DaemonSet", node)).await?;
        }
    }
    Ok(())
}

/// Keeps the requested number of pods on schedulable nodes; returns how many are ready, and how
/// many should be.
async fn replicas(
    client: &Client,
    snapshot: &Snapshot,
    set: &Value,
) -> anyhow::Result<(usize, usize)> {
    let open = snapshot.nodes.iter().filter(|node| {
        let tainted = node["spec"]["taints"].as_array().is_some_and(|taints| !taints.is_empty());
        is_ready(node) && !tainted && node["spec"]["unschedulable"] != true
    });
    let mut load: BTreeMap<&str, usize> = open.map(|node| (name(node), 0)).collect();
    let own = snapshot.pods.iter().filter(|pod| is_owned(pod, set));
    let live: Vec<&Value> = own.filter(|pod| !is_deleting(pod)).collect();
    for pod in &live {
        if let Some(count) = load.get_mut(text(pod, "/spec/nodeName")) {
            *count += 1;
        }
    }
    let wanted = set["spec"]["replicas"].as_u64().unwrap_or_default();
    let wanted = usize::try_from(wanted).unwrap_or_default();
    for _ in live.len()..wanted {
        let Some((node, count)) = load.iter_mut().min_by_key(|(_, count)| **count) else {
            break;
        };
        *count += 1;
        create(client, set, &pod_of(set, "ReplicaSet", node)).await?;
    }
    Ok((live.iter().filter(|pod| is_ready(pod)).count(), wanted))
}
