//! The certificates of k8sd: it signs its own, so the one that a Node shows first is kept, and no other is accepted
//! for that Node.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams};
use refit_cluster_api::kinds::Cluster;
use refit_kinds::keys;
use refit_runtime::{ObjectKey, apply, tls::Fingerprint};
use serde_json::json;

use super::K8sdError;
use crate::{api_error::cause, context::Context};

/// Name of the Secret with the fingerprints of a Cluster's Nodes: key is the uid of the Node, value the sha256 of its
/// certificate.
pub(super) fn secret_name(cluster: &str) -> String {
    format!("{cluster}-k8sd-certificates")
}

fn secrets(ctx: &Context, cluster: &ObjectKey) -> Api<Secret> {
    Api::namespaced(ctx.client.clone(), &cluster.namespace)
}

fn failed(cluster: &ObjectKey, verb: &str, error: &kube::Error) -> K8sdError {
    let name = secret_name(&cluster.name);
    K8sdError::NotSent(format!("Secret {name} cannot be {verb}: {}", cause(error)))
}

/// The fingerprint of a Node's certificate; `None` for a Node that was not called yet.
pub(super) async fn read(
    ctx: &Context,
    cluster: &ObjectKey,
    node_uid: &str,
) -> Result<Option<Fingerprint>, K8sdError> {
    let found = secrets(ctx, cluster).get_opt(&secret_name(&cluster.name)).await;
    let secret = found.map_err(|error| failed(cluster, "read", &error))?;
    let Some(pinned) = secret.and_then(|secret| secret.data?.remove(node_uid)) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&pinned.0);
    let parsed = text.trim().parse();
    let name = || secret_name(&cluster.name);
    parsed.map(Some).map_err(|error| {
        K8sdError::NotSent(format!("Secret {}: key {node_uid}: {error}; remove the key", name()))
    })
}

/// Keeps the fingerprint of a Node that was called for the first time.
pub(super) async fn keep(
    ctx: &Context,
    cluster: &ObjectKey,
    node_uid: &str,
    fingerprint: Fingerprint,
) -> Result<(), K8sdError> {
    let (api, name) = (secrets(ctx, cluster), secret_name(&cluster.name));
    let data = ByteString(fingerprint.to_string().into_bytes());
    let body = json!({ "data": { node_uid: data } });
    match apply::merge(&api, &name, &body).await {
        Ok(_) => return Ok(()),
        Err(error) if apply::is_not_found(&error) => {}
        Err(error) => return Err(failed(cluster, "written", &error)),
    }
    let owner = ctx.stores.clusters.get(cluster);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(BTreeMap::from([(keys::CLUSTER_NAME.to_owned(), cluster.name.clone())])),
            owner_references: owner.map(|owner| vec![owned_by(&owner)]),
            ..ObjectMeta::default()
        },
        type_: Some("refit.dev/k8sd-certificates".to_owned()),
        data: Some(BTreeMap::from([(node_uid.to_owned(), data)])),
        ..Secret::default()
    };
    let created = api.create(&PostParams::default(), &secret).await;
    created.map(drop).map_err(|error| failed(cluster, "created", &error))
}

fn owned_by(cluster: &Cluster) -> OwnerReference {
    OwnerReference {
        api_version: Cluster::api_version(&()).into_owned(),
        kind: Cluster::kind(&()).into_owned(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}
