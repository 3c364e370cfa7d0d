//! Best-effort drain of the Node of a Machine that is being deleted.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{EvictParams, ListParams, Patch, PatchParams},
};
use refit_runtime::apply::is_not_found;
use serde_json::json;

use crate::{error::Error, workload::ready_condition};

/// Annotation of a static pod's mirror: the API server cannot evict pods that only the kubelet
/// runs.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// How long a drain waits for a pod of an unreachable Node after the end of its grace period.
const GIVEN_UP: SignedDuration = SignedDuration::from_mins(5);

/// Cordons a Node and evicts its pods. Returns the remaining pods; an empty list means the Node is
/// drained.
pub(super) async fn drain(
    client: &Client,
    node: &str,
    now: Timestamp,
) -> Result<Vec<String>, Error> {
    let Some(unreachable) = cordon(client, node).await? else {
        return Ok(Vec::new());
    };
    let all: Api<Pod> = Api::all(client.clone());
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = all.list(&params).await;
    let pods = pods.map_err(Error::api(format!("list the pods of Node {node}")))?;
    let mut left = Vec::new();
    for pod in pods.items.iter().filter(|pod| has_to_go(pod)) {
        if unreachable && is_given_up(pod, now) {
            continue;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_none() {
            let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            match api.evict(&name, &EvictParams::default()).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => continue,
                // A PodDisruptionBudget blocks the eviction for now.
                Err(kube::Error::Api(status)) if status.code == 429 => {}
                Err(error) => {
                    return Err(Error::api(format!("evict pod {namespace}/{name}"))(error));
                }
            }
        }
        left.push(format!("{namespace}/{name}"));
    }
    Ok(left)
}

/// Cordons a Node, and returns whether its kubelet is unreachable; `None` if the Node does not
/// exist.
async fn cordon(client: &Client, node: &str) -> Result<Option<bool>, Error> {
    let api: Api<Node> = Api::all(client.clone());
    let found = match api.get(node).await {
        Ok(found) => found,
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(Error::api(format!("read Node {node}"))(error)),
    };
    let unreachable = is_unreachable(&found);
    let spec = found.spec.unwrap_or_default();
    if spec.unschedulable != Some(true) {
        let body = json!({"spec": {"unschedulable": true}});
        let outcome = api.patch(node, &PatchParams::default(), &Patch::Merge(&body)).await;
        outcome.map_err(Error::api(format!("cordon Node {node}")))?;
    }
    Ok(Some(unreachable))
}

/// Whether a Node's kubelet is unreachable, so that its pods never terminate.
fn is_unreachable(node: &Node) -> bool {
    ready_condition(node).is_some_and(|(status, _, _)| status == "Unknown")
}

/// Whether a pod's grace period ended so long ago that its kubelet will not terminate it any more.
fn is_given_up(pod: &Pod, now: Timestamp) -> bool {
    let end = pod.metadata.deletion_timestamp.as_ref();
    end.is_some_and(|end| now.duration_since(end.0) > GIVEN_UP)
}

/// Whether a pod must be evicted: DaemonSet pods, static pods and finished pods need not.
fn has_to_go(pod: &Pod) -> bool {
    let owners = pod.owner_references().iter();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !pod.annotations().contains_key(MIRROR)
        && !controllers.any(|owner| owner.kind == "DaemonSet" || owner.kind == "Node")
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn pod(metadata: Value, phase: &str) -> Pod {
        serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
    }

    #[test]
    fn pods_of_a_silent_kubelet_are_skipped_after_a_timeout() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let leaving =
            pod(json!({"name": "p", "deletionTimestamp": "1970-01-01T00:00:30Z"}), "Running");
        assert!(!is_given_up(&leaving, at(330)));
        assert!(is_given_up(&leaving, at(331)));
        assert!(!is_given_up(&pod(json!({"name": "p"}), "Running"), at(9999)));
        let node = |status: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": [
                {"type": "Ready", "status": status},
            ]}}))
            .unwrap()
        };
        assert!(is_unreachable(&node("Unknown")));
        assert!(!is_unreachable(&node("False")));
    }

    #[test]
    fn only_pods_that_need_the_node_are_evicted() {
        let owned = |kind: &str| {
            json!({"name": "p", "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true,
            }]})
        };
        assert!(has_to_go(&pod(json!({"name": "p"}), "Running")));
        assert!(has_to_go(&pod(owned("ReplicaSet"), "Pending")));
        assert!(!has_to_go(&pod(owned("DaemonSet"), "Running")));
        assert!(!has_to_go(&pod(json!({"name": "p"}), "Succeeded")));
        let mirror = json!({"name": "p", "annotations": {MIRROR: "x"}});
        assert!(!has_to_go(&pod(mirror, "Running")));
    }
}
