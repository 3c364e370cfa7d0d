//! The lock of a control plane, in the form of Canonical's controllers: a ConfigMap that names the member whose turn it
//! is (`docs/facts/canonical.md#lock`).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DeleteParams, PostParams, Preconditions},
};
use refit_cluster_api::kinds::Cluster;
use refit_core::task::option::Lock;
use refit_kinds::keys;
use refit_runtime::{ObjectKey, apply};
use serde::{Deserialize, Serialize};

use crate::{api_error::cause, context::Context};

/// Key of the ConfigMap's data.
const KEY: &str = "lock-information";

/// Who holds the lock.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    machine_name: String,
    machine_namespace: String,
}

fn name(cluster: &ObjectKey) -> String {
    format!("{}-cp-inplace-upgrade-lock", cluster.name)
}

fn api(ctx: &Context, cluster: &ObjectKey) -> Api<ConfigMap> {
    Api::namespaced(ctx.client.clone(), &cluster.namespace)
}

/// The lock of a Cluster's control plane, read live, and the uid of its ConfigMap.
pub(super) async fn read(
    ctx: &Context,
    cluster: &ObjectKey,
) -> kube::Result<(Lock, Option<String>)> {
    let map = match api(ctx, cluster).get_opt(&name(cluster)).await {
        Ok(Some(map)) => map,
        Ok(None) => return Ok((Lock::Free, None)),
        Err(error) if is_forbidden(&error) => {
            return Ok((Lock::Unreadable(cause(&error)), None));
        }
        Err(error) => return Err(error),
    };
    let uid = map.uid();
    let text = map.data.as_ref().and_then(|data| data.get(KEY));
    let holder: Option<Holder> = text.and_then(|text| serde_json::from_str(text).ok());
    let lock = match holder {
        Some(holder) => Lock::Held(holder.machine_name),
        None => Lock::Unreadable(format!(
            "ConfigMap {} is the lock of the control plane, and its {KEY} names no Machine: see that no member of the \
             control plane is being upgraded, and delete it",
            name(cluster)
        )),
    };
    Ok((lock, uid))
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden())
}

/// Takes the lock for a Machine. That another client was faster is an error.
pub(super) async fn take(ctx: &Context, cluster: &Cluster, machine: &str) -> anyhow::Result<()> {
    let key = ObjectKey::of(cluster);
    let holder =
        Holder { machine_name: machine.to_owned(), machine_namespace: key.namespace.clone() };
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name(&key)),
            namespace: Some(key.namespace.clone()),
            labels: Some(BTreeMap::from([(keys::CLUSTER_NAME.to_owned(), key.name.clone())])),
            owner_references: Some(vec![OwnerReference {
                api_version: Cluster::api_version(&()).into_owned(),
                kind: Cluster::kind(&()).into_owned(),
                name: key.name.clone(),
                uid: cluster.uid().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), serde_json::to_string(&holder)?)])),
        ..ConfigMap::default()
    };
    api(ctx, &key).create(&PostParams::default(), &map).await?;
    Ok(())
}

/// Releases the lock of this uid, not one that another client has taken since.
pub(super) async fn release(
    ctx: &Context,
    cluster: &ObjectKey,
    uid: Option<&str>,
) -> kube::Result<()> {
    let of_uid = Preconditions { uid: uid.map(str::to_owned), resource_version: None };
    let params = DeleteParams::default().preconditions(of_uid);
    let deleted = api(ctx, cluster).delete(&name(cluster), &params).await;
    apply::optional(deleted).map(drop)
}
