//! The kubeconfig Secrets of workload clusters: they also give access to tools outside the sandbox.

use std::slice;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lab_apiserver::ApiServer;
use refit_runtime::workload::kubeconfig_secret_name;
use serde_json::json;

use super::kubeconfig::{self, Entry};
use crate::direct::{Call, Direct, DirectError, ENVIRONMENT};

/// Writes address and credentials into the Secret of a cluster. Does not recreate a deleted Secret.
pub(super) async fn publish(
    management: &ApiServer,
    namespace: &str,
    entry: &Entry<'_>,
) -> Result<(), DirectError> {
    let name = kubeconfig_secret_name(&entry.name);
    if management.get_value("", "secrets", namespace, &name).is_none() {
        return Ok(());
    }
    let text = kubeconfig::text(slice::from_ref(entry));
    let body = json!({"data": {"value": STANDARD.encode(text)}});
    let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    let api = Direct::new(management.clone(), ENVIRONMENT);
    api.send(Call::merge(path, body)).await.map(|_| ())
}
