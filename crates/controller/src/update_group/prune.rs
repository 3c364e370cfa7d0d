//! Deletes NodeUpdates that are no longer needed.

use std::sync::Arc;

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Preconditions},
};
use refit_cluster_api::kinds::Machine;
use refit_core::node::{KEPT_UPDATES, prunable};
use refit_kinds::refit::{MachineUid, NodeUpdate, Slot};
use refit_runtime::{ObjectKey, apply};

use crate::{
    context::Context,
    host_plan::{cluster_key, node_name},
};

/// How many NodeUpdates one reconcile deletes: other groups have their turn in between.
const DELETES_AT_ONCE: usize = 50;

/// Deletes what the Machines of a group no longer need; returns whether more may be left.
pub(super) async fn prune(
    ctx: &Context,
    machines: &[Arc<Machine>],
    updates: &[Vec<Arc<NodeUpdate>>],
    slots: &[Slot],
) -> kube::Result<bool> {
    let mut left = DELETES_AT_ONCE;
    let may_be_prunable = |known: &Vec<Arc<NodeUpdate>>| known.len() > KEPT_UPDATES;
    let candidates = machines.iter().zip(updates).filter(|(_, known)| may_be_prunable(known));
    for (machine, known) in candidates {
        let uid = MachineUid::of(&machine.metadata);
        let node = node_name(machine).and_then(|name| {
            let view = ctx.workload_index.view(&cluster_key(machine))?;
            view.nodes.get(&ObjectKey::new("", &*name))
        });
        let node = node.map(|node| node.view.clone());
        for update in prunable(known, &uid, slots, node.as_deref(), ctx.clock.now()) {
            if left == 0 {
                return Ok(true);
            }
            left -= 1;
            delete(ctx, update).await?;
        }
    }
    Ok(false)
}

/// Deletes a NodeUpdate, unless it was changed since it was read.
async fn delete(ctx: &Context, update: &NodeUpdate) -> kube::Result<()> {
    let namespace = update.namespace().unwrap_or_default();
    let api: Api<NodeUpdate> = Api::namespaced(ctx.client.clone(), &namespace);
    let unchanged =
        Preconditions { uid: update.uid(), resource_version: update.resource_version() };
    let params = DeleteParams { preconditions: Some(unchanged), ..DeleteParams::default() };
    match api.delete(&update.name_any(), &params).await {
        // The next reconcile sees what happened.
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            ctx.stores.node_updates.remove(update);
            tracing::debug!(node_update = %ObjectKey::of(update), "deleted an old NodeUpdate");
            Ok(())
        }
    }
}
