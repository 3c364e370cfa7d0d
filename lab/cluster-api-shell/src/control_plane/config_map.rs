//! The ConfigMap `kube-system/kubeadm-config`: Cluster API updates it to the target before it
//! changes any machine (`docs/facts/control-plane.md#kubeadm-config`).

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use refit_cluster_api::cluster_configuration::{KEY, NAME, updated};
use serde_json::{Value, json};

use crate::{error::Error, workload::SYSTEM_NAMESPACE};

fn api(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), SYSTEM_NAMESPACE)
}

/// Whether the ConfigMap exists: kubeadm writes it once it has initialised the cluster.
pub(super) async fn exists(client: &Client) -> bool {
    api(client).get(NAME).await.is_ok()
}

/// Updates the ConfigMap to the control plane's spec.
pub(super) async fn update(client: &Client, control_plane: &Value) -> Result<(), Error> {
    let map = api(client).get(NAME).await;
    let map = map.map_err(Error::api(format!("read ConfigMap {SYSTEM_NAMESPACE}/{NAME}")))?;
    let text = map.data.as_ref().and_then(|data| data.get(KEY));
    let text = text.map_or("", String::as_str);
    let updated = updated(text, control_plane)
        .map_err(|error| Error::Invalid(format!("ConfigMap {SYSTEM_NAMESPACE}/{NAME}: {error}")))?;
    let Some(updated) = updated else {
        return Ok(());
    };
    let body = json!({"data": {KEY: updated}});
    let outcome = api(client).patch(NAME, &PatchParams::default(), &Patch::Merge(&body)).await;
    outcome.map_err(Error::api(format!("patch ConfigMap {SYSTEM_NAMESPACE}/{NAME}")))?;
    Ok(())
}
