//! Orphaned slots, read from the API server: a stale cache must not free the slot of a machine
//! whose update is in progress.

use kube::Api;
use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{MachineUid, NodeUpdate, Slot, UpdateGroupStatus};
use refit_runtime::ObjectKey;

use super::is_free;
use crate::{context::Context, groups::Group};

/// The orphaned slots, and orphaned entries without a slot.
pub(super) async fn free_slots(
    ctx: &Context,
    group: &Group,
    status: &UpdateGroupStatus,
) -> kube::Result<Vec<Slot>> {
    let mut free = Vec::new();
    for slot in status.slots.iter().chain(&status.undisturbed) {
        if is_free(ctx, group, slot) && is_orphaned(ctx, &group.key.namespace, slot).await? {
            free.push(slot.clone());
        }
    }
    Ok(free)
}

async fn is_orphaned(ctx: &Context, namespace: &str, slot: &Slot) -> kube::Result<bool> {
    let machines: Api<Machine> = Api::namespaced(ctx.client.clone(), namespace);
    let machine = machines.get_opt(&slot.machine).await?;
    if machine.is_none_or(|machine| MachineUid::of(&machine.metadata) != slot.machine_uid) {
        return Ok(true);
    }
    let updates: Api<NodeUpdate> = Api::namespaced(ctx.client.clone(), namespace);
    let update = updates.get_opt(&slot.node_update).await?;
    if update.is_some_and(|update| update.spec.machine_ref.uid == slot.machine_uid) {
        return Ok(false);
    }
    // The object of a provider outlives its NodeUpdate as long as it has a finalizer.
    let key = ObjectKey::new(namespace, &slot.machine);
    let updaters = ctx.stores.updaters.list();
    let at_work = ctx.providers.may_be_at_work(&ctx.client, &updaters, &key, &slot.machine_uid);
    Ok(!at_work.await.unwrap_or_else(|error| {
        tracing::warn!(machine = %key, %error, "the slot stays: the provider cannot be read");
        true
    }))
}
