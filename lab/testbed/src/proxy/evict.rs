//! The eviction subresource over an API server that has none.

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Backend, Body, response, status};
use crate::objects::{self, text};

/// A pod that somebody wants to evict.
pub(super) struct Asked {
    namespace: String,
    name: String,
}

impl Asked {
    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

/// The pod of a request for an eviction.
pub(super) fn asked(method: &Method, path: &str) -> Option<Asked> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]
            if method == Method::POST =>
        {
            Some(Asked { namespace: (*namespace).to_owned(), name: (*name).to_owned() })
        }
        _ => None,
    }
}

/// Evicts: checks who is meant, asks the budgets, deletes.
pub(super) async fn answer(
    backend: &Backend,
    asked: &Asked,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Body>> {
    let body = request.into_body().collect().await?.to_bytes();
    let eviction: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (code, pod) = backend.json(Method::GET, &asked.path()).await?;
    if !code.is_success() {
        let message = format!("pods {:?} not found", asked.name);
        let details = json!({"name": asked.name, "kind": "pods"});
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
    if let Some(refusal) = refused(backend, asked, &pod).await? {
        return Ok(refusal);
    }
    let (code, body) = backend.json(Method::DELETE, &asked.path()).await?;
    if !code.is_success() {
        return Ok(response(code, &body));
    }
    let done = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    Ok(response(StatusCode::CREATED, &done))
}

/// What a PodDisruptionBudget says against it.
async fn refused(
    backend: &Backend,
    asked: &Asked,
    pod: &Value,
) -> anyhow::Result<Option<Response<Body>>> {
    let policy = format!("/apis/policy/v1/namespaces/{}", asked.namespace);
    let (code, budgets) =
        backend.json(Method::GET, &format!("{policy}/poddisruptionbudgets")).await?;
    let budgets = budgets["items"].as_array().cloned().unwrap_or_default();
    if !code.is_success() || budgets.is_empty() {
        return Ok(None);
    }
    let core = format!("/api/v1/namespaces/{}/pods", asked.namespace);
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

/// Whether a budget is about a pod.
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
        assert!(asked(&Method::POST, path).is_some_and(|pod| pod.name == "web-1"));
        assert!(asked(&Method::GET, path).is_none());
        assert!(asked(&Method::POST, "/api/v1/namespaces/default/pods/web-1").is_none());
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
