//! The metrics of the deployment-validation-operator.

use std::sync::Arc;

use refit_openshift::Compat;
use serde_json::json;

use crate::bed::{Bed, answering, reply};

const NAMESPACE: &str = "openshift-deployment-validation-operator";

#[tokio::test(start_paused = true)]
async fn its_metrics_are_read_if_it_is_installed() {
    let bed = Bed::new().await;
    assert_eq!(bed.remote(Compat::Repaired).dvo_metrics().await, Ok(None));
    bed.create(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "deployment-validation-operator-metrics", "namespace": NAMESPACE},
        "spec": {"ports": [{"name": "http-metrics", "port": 8383}]},
    }))
    .await;
    let host = format!("deployment-validation-operator-metrics.{NAMESPACE}.svc.cluster.local");
    let (received, metrics) = (Arc::default(), "a 1\n");
    let listener = bed.network.listen(&host, 8383);
    tokio::spawn(answering(listener, None, Arc::clone(&received), move |_| reply(200, metrics)));
    assert_eq!(bed.remote(Compat::Repaired).dvo_metrics().await, Ok(Some(metrics.to_owned())));
    let asked = received.lock().unwrap().clone();
    assert_eq!((&*asked[0].line, &*asked[0].authorization), ("GET /metrics", ""));

    let listener = bed.network.listen(&host, 8383);
    tokio::spawn(answering(listener, None, received, |_| reply(503, "")));
    let error = bed.remote(Compat::Repaired).dvo_metrics().await.unwrap_err();
    assert!(error.contains("HTTP status 503"), "{error}");
    // The original does not look at the status.
    assert_eq!(bed.remote(Compat::Strict).dvo_metrics().await, Ok(Some(String::new())));
}
