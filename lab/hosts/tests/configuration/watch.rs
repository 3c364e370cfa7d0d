//! A watch of all Nodes during the test: which were cordoned, how many of a group at once, and whether pods of the
//! application were left on a node whose host boots.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use lab_hosts::{cluster::Cluster, host::Host, management::send};
use refit_kinds::json::{name, text};
use serde_json::Value;

/// Interval between looks. A host needs longer to boot, and its node stays cordoned meanwhile.
const PERIOD: Duration = Duration::from_millis(200);

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Observations>);

#[derive(Debug, Default)]
struct Observations {
    /// Nodes that are cordoned.
    cordoned: BTreeSet<String>,
    /// How often each node was cordoned.
    cordons: BTreeMap<String, u32>,
    /// Boots of each host.
    boots: BTreeMap<String, u32>,
    /// What must not happen.
    violations: Vec<String>,
}

impl Watch {
    /// Looks at the Nodes until the future is dropped or a request fails.
    pub(crate) async fn keep(&self, cluster: &Cluster, hosts: &[Host]) -> anyhow::Error {
        loop {
            if let Err(error) = self.look(cluster, hosts).await {
                return error.context("failed to watch the Nodes");
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// How often each node was cordoned, without those that never were.
    ///
    /// # Errors
    /// What happened that must not.
    pub(crate) fn cordons(&self) -> anyhow::Result<BTreeMap<String, u32>> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(seen.violations.is_empty(), "{}", seen.violations.join("; "));
        Ok(seen.cordons.clone())
    }

    async fn look(&self, cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<()> {
        // First, so that pods and nodes are not older than a boot.
        let boots: BTreeMap<String, u32> =
            hosts.iter().map(|host| (host.name.clone(), host.boots())).collect();
        let nodes = items(cluster, "/api/v1/nodes").await?;
        let pods = applications(cluster).await?;
        let cordoned: BTreeSet<String> = nodes
            .iter()
            .filter(|node| node["spec"]["unschedulable"] == true)
            .map(|node| name(node).to_owned())
            .collect();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for node in cordoned.difference(&seen.cordoned).cloned().collect::<Vec<_>>() {
            *seen.cordons.entry(node).or_default() += 1;
        }
        for group in [&cluster.control_planes, &cluster.workers] {
            let of_group: Vec<&String> =
                group.iter().filter(|one| cordoned.contains(*one)).collect();
            if of_group.len() > 1 {
                seen.violations.push(format!("{of_group:?} were cordoned at once"));
            }
        }
        for (host, count) in &boots {
            if seen.boots.get(host).is_none_or(|known| known == count) {
                continue;
            }
            let left = pods.values().filter(|node| *node == host).count();
            if left > 0 || !cordoned.contains(host) {
                let is_cordoned = cordoned.contains(host);
                seen.violations.push(format!(
                    "{host} booted with {left} pods of the application; cordoned: {is_cordoned}"
                ));
            }
        }
        seen.cordoned = cordoned;
        seen.boots = boots;
        Ok(())
    }
}

/// The node of each pod of the application, by the uid of the pod.
pub(crate) async fn applications(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let pods = items(cluster, "/api/v1/pods").await?;
    let of_set = pods
        .iter()
        .filter(|pod| text(pod, "/metadata/ownerReferences/0/kind") == "ReplicaSet")
        .map(|pod| (text(pod, "/metadata/uid").to_owned(), text(pod, "/spec/nodeName").to_owned()));
    Ok(of_set.collect())
}

/// Lists objects of the workload cluster.
pub(crate) async fn items(cluster: &Cluster, path: &str) -> anyhow::Result<Vec<Value>> {
    let answer = send(&cluster.workload, "GET", path, &Value::Null).await?;
    answer["items"].as_array().cloned().with_context(|| format!("{path} is not a list"))
}
