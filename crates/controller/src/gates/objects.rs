//! Reads the objects of a gate.

use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::{GroupVersion, Selector},
    discovery::{self, ApiResource, Scope},
};
use refit_core::gates::objects::ObjectsRead;
use refit_kinds::refit::{GateCluster, ObjectsGate};
use refit_runtime::{ObjectKey, apply};

use crate::{api_error::cause, context::Context};

/// How many objects are read at a time.
const PAGE: u32 = 50;

/// Reads the objects of a gate. The error is why they cannot be read.
pub(super) async fn read(
    ctx: &Context,
    gate: &ObjectsGate,
    cluster: &ObjectKey,
) -> Result<ObjectsRead, String> {
    let ObjectsGate { api_version, kind, namespace, .. } = gate;
    let version: GroupVersion =
        api_version.parse().map_err(|_| format!("{api_version:?} is not an API version"))?;
    let version = version.with_kind(kind);
    if version.group.is_empty() && version.kind == "Secret" {
        return Err("Secrets cannot be read by a gate".to_owned());
    }
    let (client, namespace) = match gate.cluster {
        GateCluster::Workload => {
            let client = ctx.workloads.client(&cluster.namespace, &cluster.name).await;
            let why = |error| format!("Cluster {} cannot be read: {error}", cluster.name);
            (client.map_err(why)?, namespace.clone())
        }
        // Others in the management cluster may be of another tenant.
        GateCluster::Management => (ctx.client.clone(), Some(cluster.namespace.clone())),
    };
    let found = discovery::pinned_kind(&client, &version).await;
    let (resource, can) = found.map_err(|error| {
        if matches!(error, kube::Error::Discovery(_)) {
            format!("the API server serves no kind {kind} of {api_version}")
        } else if apply::is_not_found(&error) {
            format!("the API server does not serve {api_version}")
        } else {
            format!("{api_version} {kind} cannot be read: {}", cause(&error))
        }
    })?;
    if can.scope == Scope::Cluster && namespace.is_some() {
        return Err(match gate.cluster {
            GateCluster::Workload => {
                format!("objects of kind {kind} have no namespace: remove objects.namespace")
            }
            GateCluster::Management => {
                format!(
                    "objects of kind {kind} have no namespace, and cannot be read in the management cluster"
                )
            }
        });
    }
    list(&client, &resource, namespace.as_deref(), gate).await
}

/// Lists page by page: an object may be large.
async fn list(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
    gate: &ObjectsGate,
) -> Result<ObjectsRead, String> {
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
    if let Some(selector) = &gate.selector {
        let selector = Selector::try_from(selector.clone());
        params =
            params.labels_from(&selector.map_err(|error| format!("objects.selector: {error}"))?);
    }
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let mut read = ObjectsRead::default();
    loop {
        let page = api.list(&params).await.map_err(|error| {
            let ApiResource { api_version, kind, .. } = resource;
            format!("{api_version} {kind} cannot be listed: {}", cause(&error))
        })?;
        for object in &page.items {
            let object = serde_json::to_value(object).map_err(|error| error.to_string())?;
            read.add(&gate.kind, object)?;
        }
        params.continue_token = page.metadata.continue_.filter(|next| !next.is_empty());
        if params.continue_token.is_none() || read.has_more {
            return Ok(read);
        }
    }
}
