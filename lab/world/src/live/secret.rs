//! The kubeconfig Secrets of workload clusters, which lead tools outside of the sandbox there, too.

use std::slice;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::config::Kubeconfig;
use lab_apiserver::ApiServer;
use refit_runtime::workload::kubeconfig_secret_name;
use serde_json::{Value, json};

use super::kubeconfig::{self, Entry};
use crate::direct::{Call, Direct, DirectError, ENVIRONMENT};

/// Writes address and credentials into the Secret of a cluster, where they are not there yet. One
/// that somebody deleted stays deleted.
pub(super) async fn publish(
    management: &ApiServer,
    namespace: &str,
    entry: &Entry<'_>,
) -> Result<(), DirectError> {
    let name = kubeconfig_secret_name(&entry.name);
    let secret = management.get_value("", "secrets", namespace, &name);
    if secret.is_none_or(|secret| leads_to(&secret, entry)) {
        return Ok(());
    }
    let text = kubeconfig::text(slice::from_ref(entry));
    let body = json!({"data": {"value": STANDARD.encode(text)}});
    let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    let api = Direct::new(management.clone(), ENVIRONMENT);
    api.send(Call::merge(path, body)).await.map(|_| ())
}

/// Whether a Secret says where an API is, and lets its reader in. Credentials of an earlier start
/// are as good as new ones.
fn leads_to(secret: &Value, entry: &Entry<'_>) -> bool {
    let Some(read) = read(secret) else {
        return false;
    };
    let cluster = read.clusters.first().and_then(|one| one.cluster.as_ref());
    let user = read.auth_infos.first().and_then(|one| one.auth_info.as_ref());
    let authority = STANDARD.encode(entry.ca);
    cluster.is_some_and(|cluster| {
        cluster.server.as_ref() == Some(&kubeconfig::url(entry.port))
            && cluster.certificate_authority_data.as_ref() == Some(&authority)
    }) && user.is_some_and(|user| user.client_key_data.is_some())
}

fn read(secret: &Value) -> Option<Kubeconfig> {
    let value = STANDARD.decode(secret["data"]["value"].as_str()?).ok()?;
    Kubeconfig::from_yaml(std::str::from_utf8(&value).ok()?).ok()
}
