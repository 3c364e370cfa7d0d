//! The cluster's kubeadm configuration, before its first control plane machine is changed: what Cluster API's control
//! plane controller would write (`docs/facts/control-plane.md#kubeadm-config`).

use anyhow::Context as _;
use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::ClusterRoleBinding};
use kube::{Api, Client, ResourceExt as _};
use refit_cluster_api::cluster_configuration::{KEY, NAME, admins_binding, updated};
use refit_kinds::{refit::Owner, version::StatedVersion};
use refit_runtime::apply;
use serde_json::{Value, json};

use super::{look::Look, objects};
use crate::context::Context;

const SYSTEM_NAMESPACE: &str = "kube-system";

/// Brings the configuration to what the control plane wants; for workers, there is nothing to do.
pub(super) async fn prepare(ctx: &Context, look: &Look) -> anyhow::Result<()> {
    if look.group.spec.owner.owner() != Owner::ControlPlane {
        return Ok(());
    }
    let plane = objects::owner(ctx, &look.group).await?;
    let cluster = look.group.cluster_key();
    let client = ctx.workloads.client(&cluster.namespace, &cluster.name).await?;
    let StatedVersion::Version(version) = refit_kinds::json::text(&plane, "/spec/version").into()
    else {
        return Ok(());
    };
    if let Some(binding) = admins_binding(&version) {
        let binding: ClusterRoleBinding = serde_json::from_value(binding)?;
        let api: Api<ClusterRoleBinding> = Api::all(client.clone());
        let name = binding.name_any();
        let found = api.get_opt(&name).await;
        if found.with_context(|| format!("cannot read ClusterRoleBinding {name}"))?.is_none() {
            let made = apply::create_or_get(&api, &binding).await;
            made.with_context(|| format!("cannot create ClusterRoleBinding {name}"))?;
        }
    }
    configure(&client, &plane).await
}

async fn configure(client: &Client, plane: &Value) -> anyhow::Result<()> {
    let what = || format!("ConfigMap {SYSTEM_NAMESPACE}/{NAME}");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let map = api.get(NAME).await.with_context(|| format!("cannot read {}", what()))?;
    let text = map.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str);
    let Some(text) = updated(text, plane).with_context(what)? else {
        return Ok(());
    };
    let body = json!({
        "metadata": {"resourceVersion": map.resource_version()}, "data": {KEY: text},
    });
    let written = apply::merge(&api, NAME, &body).await;
    written.map(drop).with_context(|| format!("cannot write {}", what()))
}
