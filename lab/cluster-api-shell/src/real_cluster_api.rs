//! Refuses to start next to the real Cluster API: both would act on every Machine.

use std::fmt::Debug;

use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease};
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams};
use refit_kinds::keys;
use refit_runtime::{ObjectKey, apply::is_not_found};
use serde::de::DeserializeOwned;

/// Name prefix of the Leases for the leader election of Cluster API's managers.
const LEASE_PREFIX: &str = "controller-leader-election-capi";
/// Deployments of Cluster API's managers.
const DEPLOYMENTS: [&str; 2] =
    ["capi-controller-manager", "capi-kubeadm-control-plane-controller-manager"];

/// The real Cluster API runs in this management cluster.
#[derive(Debug, thiserror::Error)]
#[error(
    "{kind} {name} belongs to a real Cluster API in this management cluster; Refit's stand-in for \
     it must not run next to it"
)]
pub struct RealClusterApi {
    /// Kind of the object that shows it.
    pub kind: &'static str,
    /// Its namespace and name.
    pub name: String,
}

/// Fails if a real Cluster API is found.
pub(crate) async fn refuse(client: &Client) -> anyhow::Result<()> {
    if let Some(name) = find::<Lease>(client, |name| name.starts_with(LEASE_PREFIX)).await? {
        let kind = "Lease";
        return Err(RealClusterApi { kind, name }.into());
    }
    if let Some(name) = find::<Deployment>(client, |name| DEPLOYMENTS.contains(&name)).await? {
        let kind = "Deployment";
        return Err(RealClusterApi { kind, name }.into());
    }
    Ok(())
}

async fn find<K>(client: &Client, matches: impl Fn(&str) -> bool) -> kube::Result<Option<String>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let list = match api.list(&ListParams::default()).await {
        Ok(list) => list,
        // An embedded API server need not serve this kind.
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = list.items.iter().find(|object| {
        matches(&object.name_any()) && !object.annotations().contains_key(keys::STAND_IN)
    });
    Ok(found.map(|object| ObjectKey::of(object).to_string()))
}
