//! Pods of a node, and their eviction by the eviction API: PodDisruptionBudgets hold.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, EvictParams, ListParams, PostParams, Preconditions},
    core::Status,
};
use refit_core::{
    node::{EvictionRefusal, PodRef, PodView},
    report::Refusal,
};

use crate::groups::controller_of;

/// The kubelet runs the pod from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods of a node, in order of namespace and name.
pub(crate) async fn pods_on(client: &Client, node: &str) -> kube::Result<Vec<PodView>> {
    let api: Api<Pod> = Api::all(client.clone());
    let list = api
        .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
        .await?;
    let mut pods: Vec<PodView> = list.items.iter().map(view).collect();
    pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    Ok(pods)
}

fn view(pod: &Pod) -> PodView {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    PodView {
        pod: PodRef {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        },
        daemon_set: controller_of(pod.owner_references()).is_some_and(|o| o.kind == "DaemonSet"),
        mirror: pod.annotations().contains_key(MIRROR),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        terminating: pod.metadata.deletion_timestamp.is_some(),
    }
}

/// Evicts pods one after the other and says which evictions were refused. An error is one of the
/// way to the API server.
pub(crate) async fn evict(client: &Client, pods: &[PodRef]) -> kube::Result<Vec<EvictionRefusal>> {
    let mut refused = Vec::new();
    for pod in pods {
        if let Some(refusal) = evict_one(client, pod).await? {
            refused.push(EvictionRefusal {
                pod: pod.clone(),
                refusal,
            });
        }
    }
    Ok(refused)
}

async fn evict_one(client: &Client, pod: &PodRef) -> kube::Result<Option<Refusal>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        }),
        post_options: PostParams::default(),
    };
    match api.evict(&pod.name, &params).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(refusal(pod, &status)),
        Err(error) => Err(error),
    }
}

/// What a refused eviction means; `None` where the pod is gone, or is another one by now.
fn refusal(pod: &PodRef, status: &Status) -> Option<Refusal> {
    if matches!(status.code, 404 | 409) {
        return None;
    }
    let causes = status
        .details
        .as_ref()
        .map_or(&[][..], |details| &details.causes);
    let budget = causes
        .iter()
        .find(|cause| cause.reason == "DisruptionBudget");
    if let Some(cause) = budget.filter(|_| status.code == 429) {
        let name = budget_name(&cause.message);
        return Some(Refusal::PodDisruptionBudget {
            budget: name
                .map(|name| format!("{}/{name}", pod.namespace))
                .unwrap_or_default(),
            pod: pod.to_string(),
        });
    }
    Some(Refusal::EvictionRefused {
        pod: pod.to_string(),
        message: status.message.clone(),
    })
}

/// The name in "The disruption budget NAME needs ..." or "... NAME is still being processed ...".
fn budget_name(message: &str) -> Option<&str> {
    message
        .strip_prefix("The disruption budget ")?
        .split(' ')
        .next()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> PodRef {
        PodRef {
            namespace: "default".into(),
            name: "web-1".into(),
            uid: "u".into(),
        }
    }

    fn status(value: serde_json::Value) -> Status {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_refusal_names_the_budget() {
        let refused = status(json!({
            "code": 429,
            "reason": "TooManyRequests",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": { "causes": [{
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 2 healthy pods and has 2 currently",
            }]},
        }));
        assert_eq!(
            refusal(&pod(), &refused),
            Some(Refusal::PodDisruptionBudget {
                budget: "default/web".into(),
                pod: "default/web-1".into(),
            })
        );
    }

    #[test]
    fn a_throttled_eviction_is_no_budget() {
        let refused = status(json!({"code": 429, "message": "too many requests"}));
        assert_eq!(
            refusal(&pod(), &refused).unwrap().reason(),
            "EvictionRefused"
        );
    }

    #[test]
    fn a_pod_that_is_gone_is_evicted() {
        for code in [404, 409] {
            assert_eq!(refusal(&pod(), &status(json!({"code": code}))), None);
        }
    }

    #[test]
    fn daemon_sets_mirrors_and_ended_pods_are_told_apart() {
        let pod = |value| view(&serde_json::from_value(value).unwrap());
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": true,
        }]);
        assert!(pod(json!({"metadata": {"name": "a", "ownerReferences": owner}})).daemon_set);
        let mirror = json!({"name": "b", "annotations": {MIRROR: "x"}});
        assert!(pod(json!({"metadata": mirror})).mirror);
        assert!(pod(json!({"metadata": {"name": "c"}, "status": {"phase": "Failed"}})).finished);
    }
}
