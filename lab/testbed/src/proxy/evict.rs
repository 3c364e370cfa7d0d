//! The eviction subresource for an API server that has none.

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Backend, Body, response, status};
use crate::objects::{self, text};

/// The pod of an eviction request.
pub(super) struct Target {
    namespace: String,
    name: String,
}

impl Target {
    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

/// The pod of a request, if the request is an eviction.
pub(super) fn target(method: &Method, path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]
            if method == Method::POST =>
        {
            Some(Target { namespace: (*namespace).to_owned(), name: (*name).to_owned() })
        }
        _ => None,
    }
}

/// Evicts the pod: checks the uid precondition and the disruption budgets, then deletes.
pub(super) async fn answer(
    backend: &Backend,
    target: &Target,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Body>> {
    let body = request.into_body().collect().await?.to_bytes();
    let eviction: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (code, pod) = backend.json(Method::GET, &target.path()).await?;
    if !code.is_success() {
        let message = format!("pods {:?} not found", target.name);
        let details = json!({"name": target.name, "kind": "pods"});
        return Ok(status(StatusCode::NOT_FOUND, "NotFound", &message, details));
    }
    let wanted = text(&eviction, "/deleteOptions/preconditions/uid");
    if !wanted.is_empty() && wanted != objects::uid(&pod) {
        let message = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({})",
            objects::uid(&pod)
        );
        return Ok(status(StatusCode::CONFLICT, "Conflict", &message, json!({})));
    }
    if let Some(refusal) = budget_refusal(backend, target, &pod).await? {
        return Ok(refusal);
    }
    let (code, body) = backend.json(Method::DELETE, &target.path()).await?;
    if !code.is_success() {
        return Ok(response(code, &body));
    }
    let done = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    Ok(response(StatusCode::CREATED, &done))
}

/// The response of a PodDisruptionBudget that forbids the eviction.
async fn budget_refusal(
    backend: &Backend,
    target: &Target,
    pod: &Value,
) -> anyhow::Result<Option<Response<Body>>> {
    let policy = format!("/apis/policy/v1/namespaces/{}", target.namespace);
    let (code, budgets) =
        backend.json(Method::GET, &format!("{policy}/poddisruptionbudgets")).await?;
    let budgets = budgets["items"].as_array().cloned().unwrap_or_default();
    if !code.is_success() || budgets.is_empty() {
        return Ok(None);
    }
    let core = format!("/api/v1/namespaces/{}/pods", target.namespace);
    let (_, pods) = backend.json(Method::GET, &core).await?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    for budget in budgets.iter().filter(|budget| selects(budget, pod)) {
        let chosen = pods.iter().filter(|pod| selects(budget, pod));
        let healthy = chosen.filter(|pod| objects::is_true(pod, "Ready")).count();
        let needed = budget["spec"]["minAvailable"].as_u64().unwrap_or_default();
        let needed = usize::try_from(needed)?;
        if healthy <= needed {
            let name = objects::name(budget);
            let cause = format!(
                "The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
            );
            let details = json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]});
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            let code = StatusCode::TOO_MANY_REQUESTS;
            return Ok(Some(status(code, "TooManyRequests", message, details)));
        }
    }
    Ok(None)
}

/// Whether a budget selects a pod.
fn selects(budget: &Value, pod: &Value) -> bool {
    let labels = budget["spec"]["selector"]["matchLabels"].as_object();
    labels.is_some_and(|labels| {
        let of_pod = &pod["metadata"]["labels"];
        !labels.is_empty() && labels.iter().all(|(key, value)| of_pod.get(key) == Some(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_post_to_the_subresource_is_an_eviction() {
        let path = "/api/v1/namespaces/default/pods/web-1/eviction";
        assert!(target(&Method::POST, path).is_some_and(|pod| pod.name == "web-1"));
        assert!(target(&Method::GET, path).is_none());
        assert!(target(&Method::POST, "/api/v1/namespaces/default/pods/web-1").is_none());
    }

    #[test]
    fn a_budget_without_labels_selects_nothing() {
        let pod = json!({"metadata": {"labels": {"app": "web"}}});
        let budget = |labels: Value| json!({"spec": {"selector": {"matchLabels": labels}}});
        assert!(selects(&budget(json!({"app": "web"})), &pod));
        assert!(!selects(&budget(json!({"app": "db"})), &pod));
        assert!(!selects(&budget(json!({})), &pod));
    }
}
