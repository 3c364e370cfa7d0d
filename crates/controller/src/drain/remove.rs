//! Removes pods by the eviction API, which respects disruption budgets, or by deletion, which does
//! not.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
    core::Status,
};
use refit_core::{
    node::{DrainRefusal, EvictionRefusal, How, PodRef, Removal},
    report::Refusal,
};
use serde_json::{Value, json};

/// Requests the removal of pods one after the other, and returns the refusals. An error means that
/// the API server could not be reached. A single request without a response, among others that have
/// one, does not stop the removal of the other pods; a second one does.
pub(crate) async fn remove(
    client: &Client,
    removals: &[Removal],
) -> kube::Result<Vec<EvictionRefusal>> {
    let mut refused = Vec::new();
    let mut silent = None;
    let mut answers = 0_usize;
    for removal in removals {
        match (remove_one(client, removal).await, &silent) {
            (Ok(refusal), _) => {
                answers += 1;
                refused.extend(refusal.map(|refusal| eviction_refusal(removal, refusal)));
            }
            (Err(error), None) => silent = Some((removal, error)),
            (Err(error), Some(_)) => return Err(error),
        }
    }
    match silent {
        Some((_, error)) if answers == 0 => return Err(error),
        Some((removal, error)) => {
            let refusal = Refusal::EvictionRefused {
                pod: removal.pod.to_string(),
                message: format!("the API server did not respond: {error}"),
            };
            refused.push(eviction_refusal(removal, refusal));
        }
        None => {}
    }
    Ok(refused)
}

fn eviction_refusal(removal: &Removal, refusal: Refusal) -> EvictionRefusal {
    EvictionRefusal { pod: removal.pod.clone(), refusal }
}

async fn remove_one(client: &Client, removal: &Removal) -> kube::Result<Option<Refusal>> {
    let pod = &removal.pod;
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let of_this_pod = |grace_period_seconds| DeleteParams {
        grace_period_seconds,
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            ..Preconditions::default()
        }),
        ..DeleteParams::default()
    };
    let outcome = match removal.how {
        How::Evict { grace_seconds } => {
            let body = eviction(pod, &of_this_pod(grace_seconds));
            api.create_subresource::<_, Value>("eviction", &pod.name, &PostParams::default(), &body)
                .await
                .map(|_| ())
        }
        How::Delete { grace_seconds } => {
            api.delete(&pod.name, &of_this_pod(grace_seconds)).await.map(|_| ())
        }
        How::Force => api.delete(&pod.name, &of_this_pod(Some(0))).await.map(|_| ()),
    };
    match outcome {
        Ok(()) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(refusal(pod, &status)),
        Err(error) => Err(error),
    }
}

/// The body of an eviction. `Api::evict` of kube 5.0 names the options `delete_options`, which API
/// servers silently drop: precondition and grace period would be lost.
fn eviction(pod: &PodRef, options: &DeleteParams) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    })
}

/// The meaning of a refusal; `None` if the pod is gone or has been replaced.
fn refusal(pod: &PodRef, status: &Status) -> Option<Refusal> {
    match status.code {
        404 if is_about(status, pod) => return None,
        // The eviction API is missing, not the pod. Treating the pod as gone would report a
        // node as empty without removing any pod.
        404 => {
            return Some(Refusal::Drain(DrainRefusal::EvictionUnavailable {
                pod: pod.to_string(),
            }));
        }
        409 => return None,
        _ => {}
    }
    let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
    let budget = causes.iter().find(|cause| cause.reason == "DisruptionBudget");
    if let Some(cause) = budget.filter(|_| status.code == 429) {
        let name = budget_name(&cause.message);
        return Some(Refusal::PodDisruptionBudget {
            budget: name.map(|name| format!("{}/{name}", pod.namespace)).unwrap_or_default(),
            pod: pod.to_string(),
        });
    }
    Some(Refusal::EvictionRefused { pod: pod.to_string(), message: status.message.clone() })
}

/// Whether a refusal names this pod: an API server without this route names nothing, and a proxy
/// returns a page.
fn is_about(status: &Status, pod: &PodRef) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| details.name == pod.name)
}

/// The name in "The disruption budget NAME needs ..." or "... NAME is still being processed ...".
fn budget_name(message: &str) -> Option<&str> {
    message.strip_prefix("The disruption budget ")?.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodRef {
        PodRef { namespace: "default".into(), name: "web-1".into(), uid: "u".into() }
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
    fn an_eviction_has_the_pods_uid_and_grace_period() {
        let options = DeleteParams {
            grace_period_seconds: Some(30),
            preconditions: Some(Preconditions {
                uid: Some("u".into()),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        let body = eviction(&pod(), &options);
        let read: k8s_openapi::api::policy::v1::Eviction = serde_json::from_value(body).unwrap();
        let options = read.delete_options.unwrap();
        assert_eq!(options.grace_period_seconds, Some(30));
        assert_eq!(options.preconditions.unwrap().uid.as_deref(), Some("u"));
    }

    #[test]
    fn a_throttled_eviction_is_not_a_budget_refusal() {
        let refused = status(json!({"code": 429, "message": "too many requests"}));
        assert_eq!(refusal(&pod(), &refused).unwrap().reason(), "EvictionRefused");
    }

    #[test]
    fn two_budgets_on_one_pod_keep_the_servers_message() {
        let refused = status(json!({"code": 500, "message": "more than one PodDisruptionBudget"}));
        let refusal = refusal(&pod(), &refused).unwrap();
        assert!(refusal.sentence().contains("more than one"));
    }

    #[test]
    fn a_pod_that_is_gone_is_evicted() {
        let gone = json!({"code": 404, "reason": "NotFound",
            "details": {"kind": "pods", "name": "web-1"}});
        assert_eq!(refusal(&pod(), &status(gone)), None);
        assert_eq!(refusal(&pod(), &status(json!({"code": 409}))), None);
    }

    #[test]
    fn a_route_that_is_missing_is_not_a_pod_that_is_gone() {
        let answers = [
            json!({"code": 404, "reason": "NotFound", "details": {},
                "message": "the server could not find the requested resource"}),
            json!({"code": 404, "message": "404 page not found"}),
            json!({"code": 404, "details": {"kind": "namespaces", "name": "default"}}),
        ];
        for answer in answers {
            let refusal = refusal(&pod(), &status(answer)).unwrap();
            assert_eq!(refusal.reason(), "EvictionUnavailable");
            assert!(refusal.sentence().contains("drain-delete-after"));
        }
    }
}
