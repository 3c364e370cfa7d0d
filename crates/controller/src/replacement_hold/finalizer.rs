//! The finalizer of a ReplacementHold.
//!
//! A namespace is deleted in any order. Where the API server asks for the ReplacementHold, it refuses every request about a
//! Machine once the object is gone, those of the namespace controller included: so it must go last.

use kube::{Api, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::Machine;
use refit_core::hold::keeps_finalizer;
use refit_kinds::{
    keys,
    refit::{REPLACEMENT_HOLD, ReplacementHold},
};
use refit_runtime::{ObjectKey, apply, queue::Action};
use serde_json::json;

use super::AFTER_CONFLICT;
use crate::context::Context;

/// The finalizers of a new ReplacementHold.
pub(super) fn of_new(ctx: &Context, namespace: &str) -> Option<Vec<String>> {
    ctx.holds_replacements(namespace).then(|| vec![keys::HOLD_FINALIZER.to_owned()])
}

/// Whether a namespace is being deleted: nothing can be created there.
pub(super) fn is_leaving(ctx: &Context, namespace: &str) -> bool {
    let found = ctx.stores.namespaces.get(&ObjectKey::new("", namespace));
    found.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
}

/// Sets or removes the finalizer; `None` if it is as it has to be.
pub(super) async fn settle(
    ctx: &Context,
    hold: &ReplacementHold,
) -> anyhow::Result<Option<Action>> {
    let namespace = hold.namespace().unwrap_or_default();
    if ctx.stores.namespaces.get(&ObjectKey::new("", &*namespace)).is_none() {
        return Ok(None);
    }
    let is_deleting = hold.metadata.deletion_timestamp.is_some();
    let is_set = hold.finalizers().iter().any(|one| one == keys::HOLD_FINALIZER);
    let holds = ctx.holds_replacements(&namespace);
    let has_machines =
        if is_set && holds && is_deleting { has_machines(ctx, &namespace).await? } else { true };
    let keeps = keeps_finalizer(holds, is_deleting, has_machines);
    // An object that is being deleted gets no further finalizer.
    if keeps == is_set || keeps && is_deleting {
        return Ok(None);
    }
    let mut finalizers = hold.finalizers().to_vec();
    finalizers.retain(|one| one != keys::HOLD_FINALIZER);
    if keeps {
        finalizers.push(keys::HOLD_FINALIZER.to_owned());
    }
    let body = json!({"metadata": {
        "resourceVersion": hold.resource_version(), "finalizers": finalizers,
    }});
    let api: Api<ReplacementHold> = Api::namespaced(ctx.client.clone(), &namespace);
    match apply::merge(&api, REPLACEMENT_HOLD, &body).await {
        Ok(written) if !is_deleting => ctx.stores.replacement_holds.insert(written),
        Ok(_) => return Ok(Some(Action::Done)),
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Some(Action::RequeueAfter(AFTER_CONFLICT)))
}

/// Whether a namespace has Machines at this moment.
async fn has_machines(ctx: &Context, namespace: &str) -> kube::Result<bool> {
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), namespace);
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(machines) => Ok(!machines.items.is_empty()),
        Err(error) if apply::is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
