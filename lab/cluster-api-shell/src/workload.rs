//! State of workload clusters: Nodes and the static pods of control planes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Client, ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::kinds::Cluster;
use refit_runtime::{
    ObjectKey,
    store::{Index, everything},
    workload::WorkloadError,
};

use crate::{
    cache::{Cache, Change, Ended},
    context::{Context, lock, namespace_of},
    error::Error,
    live::{Live, Typed},
    wiring,
};

/// Namespace of the static pods.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";

const NODES_BY_PROVIDER_ID: Index<Live<Node>> = Index {
    name: "providerID",
    keys: |node| {
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        id.map(|id| ObjectKey::new("", id)).into_iter().collect()
    },
};

/// A watched workload cluster.
#[derive(Debug)]
pub(crate) struct Reached {
    /// A client for it.
    pub(crate) client: ClientHandle,
    /// Its Nodes.
    pub(crate) nodes: Cache<Node>,
    /// The static pods of its control plane.
    pub(crate) pods: Cache<Pod>,
}

/// A client that implements `Debug`.
#[derive(Clone)]
pub(crate) struct ClientHandle(pub(crate) Client);

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Reached {
    /// Whether Nodes and pods are known.
    pub(crate) fn is_ready(&self) -> bool {
        self.nodes.is_ready() && self.pods.is_ready()
    }

    /// The Node with this providerID.
    pub(crate) fn node_of(&self, provider_id: &str) -> Option<Arc<Live<Node>>> {
        let key = ObjectKey::new("", provider_id);
        self.nodes.listed(&NODES_BY_PROVIDER_ID, &key).into_iter().next()
    }
}

/// The workload cluster of a Cluster, `None` while it has no endpoint or no kubeconfig. The first
/// call starts the watches, so their caches may still be empty.
pub(crate) async fn reach(
    context: &Arc<Context>,
    cluster: &Live<Cluster>,
) -> Result<Option<Arc<Reached>>, Error> {
    let key = ObjectKey::of(cluster);
    if let Some(reached) = lock(&context.reached).get(&key) {
        return Ok(Some(reached.clone()));
    }
    let endpoint = cluster.spec.control_plane_endpoint.as_ref();
    if endpoint.is_none_or(|endpoint| endpoint.host.is_empty() || endpoint.port == 0) {
        return Ok(None);
    }
    let client = match context.workloads.client(&key.namespace, &key.name).await {
        Ok(client) => client,
        Err(WorkloadError::Secret { source, .. })
            if refit_runtime::apply::is_not_found(&source) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let mut all = lock(&context.reached);
    // Another reconcile may have started the watches meanwhile.
    if let Some(reached) = all.get(&key) {
        return Ok(Some(reached.clone()));
    }
    let reached = Arc::new(Reached {
        client: ClientHandle(client),
        nodes: Cache::indexed(ApiResource::erase::<Node>(&()), &[NODES_BY_PROVIDER_ID]),
        pods: Cache::new(ApiResource::erase::<Pod>(&())),
    });
    all.insert(key.clone(), reached.clone());
    drop(all);
    context.spawn(watch_all(context.clone(), key, reached.clone()));
    Ok(Some(reached))
}

/// Watches a workload cluster until its Cluster is deleted or rejects the credentials; then it must
/// be reached again.
async fn watch_all(context: Arc<Context>, cluster: ObjectKey, reached: Arc<Reached>) {
    let wanted = || context.clusters.get(&cluster).is_some();
    let nodes = reached.nodes.follow(
        reached.nodes.api(&reached.client.0, ""),
        everything(),
        wanted,
        |change| {
            if node_matters(change) {
                node_changed(&context, &cluster, change.object());
            }
        },
    );
    let pods = reached.pods.follow(
        reached.pods.api(&reached.client.0, SYSTEM_NAMESPACE),
        everything().labels("tier=control-plane"),
        wanted,
        |change| {
            if pod_matters(change) {
                control_plane_changed(&context, &cluster);
            }
        },
    );
    tokio::pin!(nodes, pods);
    let ended = tokio::select! {
        biased;
        ended = &mut nodes => ended,
        ended = &mut pods => ended,
    };
    lock(&context.reached).remove(&cluster);
    if ended == Ended::Unauthorized {
        context.workloads.forget(&cluster.namespace, &cluster.name);
        control_plane_changed(&context, &cluster);
    }
}

fn control_plane_changed(context: &Context, cluster: &ObjectKey) {
    let cluster = context.clusters.get(cluster);
    if let Some(reference) =
        cluster.as_ref().and_then(|cluster| cluster.spec.control_plane_ref.as_ref())
    {
        let namespace = cluster.as_ref().map(|cluster| namespace_of(cluster));
        let key = ObjectKey::new(namespace.unwrap_or_default(), &reference.name);
        context.queues.control_planes.add(key);
    }
}

fn node_changed(context: &Context, cluster: &ObjectKey, node: &Live<Node>) {
    let name = node.name_any();
    let provider_id = node.at("/spec/providerID").as_str();
    for machine in context.machines.list_in(&cluster.namespace) {
        let node_ref = machine.at("/status/nodeRef/name").as_str();
        let same_id = provider_id.is_some() && machine.spec.provider_id.as_deref() == provider_id;
        if machine.spec.cluster_name == cluster.name && (same_id || node_ref == Some(&name)) {
            context.queues.machines.add(ObjectKey::of(machine.as_ref()));
        }
    }
    wiring::enqueue_checks(context, &cluster.namespace, |check| {
        check.spec.cluster_name == cluster.name
    });
    control_plane_changed(context, cluster);
}

/// Heartbeats change a Node's resourceVersion constantly; only these parts matter to a Machine.
fn node_matters(change: &Change<Node>) -> bool {
    fn parts(node: &Live<Node>) -> impl PartialEq + use<> {
        let status = node.status.as_ref();
        let info = status.and_then(|status| status.node_info.as_ref());
        (
            node.spec.as_ref().and_then(|spec| spec.provider_id.clone()),
            node.is_deleting(),
            info.map(|info| (info.kubelet_version.clone(), info.boot_id.clone())),
            ready_condition(node),
            statuses(node),
        )
    }
    differs(change, parts)
}

/// Types and statuses of a Node's conditions: a MachineHealthCheck may check any of them.
fn statuses(node: &Node) -> Vec<(String, String)> {
    let status = node.status.as_ref();
    let list = status.and_then(|status| status.conditions.as_ref());
    let list = list.into_iter().flatten();
    list.map(|one| (one.type_.clone(), one.status.clone())).collect()
}

/// Status, reason and message of a Node's Ready condition.
pub(crate) fn ready_condition(node: &Node) -> Option<(String, String, String)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|one| one.type_ == "Ready")?;
    Some((
        ready.status.clone(),
        ready.reason.clone().unwrap_or_default(),
        ready.message.clone().unwrap_or_default(),
    ))
}

fn pod_matters(change: &Change<Pod>) -> bool {
    fn parts(pod: &Live<Pod>) -> impl PartialEq + use<> {
        (pod.is_deleting(), pod_state(pod))
    }
    differs(change, parts)
}

/// Phase of a pod, and whether it is Ready.
pub(crate) fn pod_state(pod: &Pod) -> (String, bool) {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.clone());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    (phase.unwrap_or_default(), ready)
}

fn differs<K: Typed, P: PartialEq>(change: &Change<K>, parts: impl Fn(&Live<K>) -> P) -> bool {
    match (&change.before, &change.now) {
        (Some(before), Some(now)) => parts(before) != parts(now),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(status: Value) -> Arc<Live<Node>> {
        Arc::new(Live::read(json!({"metadata": {"name": "n"}, "status": status})).unwrap())
    }

    fn change(before: Value, now: Value) -> Change<Node> {
        Change { before: Some(node(before)), now: Some(node(now)) }
    }

    fn ready(status: &str, heartbeat: &str) -> Value {
        json!({"conditions": [{
            "type": "Ready", "status": status, "lastHeartbeatTime": heartbeat,
        }]})
    }

    #[test]
    fn a_heartbeat_does_not_matter_and_readiness_does() {
        let (one, two) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z");
        assert!(!node_matters(&change(ready("True", one), ready("True", two))));
        assert!(node_matters(&change(ready("True", one), ready("False", two))));
    }

    #[test]
    fn a_pod_is_ready_by_its_condition() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        assert_eq!(pod_state(&pod), ("Running".to_owned(), true));
        assert_eq!(pod_state(&Pod::default()), (String::new(), false));
    }
}
