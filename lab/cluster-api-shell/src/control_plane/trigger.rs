//! Starts the update of one control plane Machine
//! (`docs/facts/control-plane.md#starting-an-update`; the numbers in comments are its steps).

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::kubeadm_config::Entry;
use refit_kinds::keys::{self, MANAGER_KUBEADM_CONTROL_PLANE};
use refit_runtime::ObjectKey;
use serde_json::json;

use super::Plane;
use crate::{
    context::Context,
    error::Error,
    live::{Bare, Live},
    machine::{Part, Parts},
    machine_set::mark_pending,
    templates,
};

/// Starts the update, or continues a start that was interrupted: completed steps are skipped. The
/// desired objects follow from the current spec.
pub(super) async fn start(context: &Arc<Context>, plane: &Plane, name: &str) -> Result<(), Error> {
    let key = ObjectKey::new(&plane.namespace, name);
    let Some(mut machine) = context.machines.get(&key) else {
        return Ok(());
    };
    let manager = MANAGER_KUBEADM_CONTROL_PLANE;
    let template = plane.desired().infrastructure_template();
    let template = templates::fetch(context, &plane.namespace, &template).await?;
    // 1: the point of no return.
    if !machine.annotations().contains_key(keys::UPDATE_IN_PROGRESS) {
        tracing::info!(machine = name, "starting in-place update");
        let body = json!({"metadata": {"annotations": {keys::UPDATE_IN_PROGRESS: ""}}});
        machine = context.merge(&context.machines, &machine, &body).await?;
    }
    let parts = Parts::load(context, &machine).await?;
    // 2
    let infrastructure = existing(&parts.infrastructure)?;
    let object_name = infrastructure.name_any();
    let intent = plane.desired().infrastructure(&template, &object_name, true);
    let cache = &parts.infrastructure.cache;
    context.apply(cache, manager, Some(infrastructure), intent).await?;
    // 3
    if let Some(part) = &parts.bootstrap {
        let config = existing(part)?;
        let intent = plane.desired().bootstrap(&config.name_any(), Entry::Join, true);
        let config = context.apply(&part.cache, manager, Some(config), intent).await?;
        if !config.at("/spec/initConfiguration").is_null() {
            // Another field manager owns the field: an apply does not remove it.
            let body = json!({"spec": {"initConfiguration": null}});
            context.merge(&part.cache, &config, &body).await?;
        }
    }
    // 4
    let intent = plane.desired().updated_machine(machine.json());
    let machine = context.apply(&context.machines, manager, Some(&machine), intent).await?;
    // 5
    mark_pending(context, &machine, false).await
}

fn existing(part: &Part) -> Result<&Live<Bare>, Error> {
    part.object.as_deref().ok_or_else(|| Error::Missing {
        kind: part.reference.kind.clone(),
        name: part.reference.name.clone(),
    })
}
