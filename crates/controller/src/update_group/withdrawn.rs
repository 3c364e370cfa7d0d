//! Updates that were withdrawn for a Machine that their group lacked.

use std::{collections::BTreeMap, sync::Arc};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::node::request_again;
use refit_kinds::keys;
use refit_runtime::{
    apply,
    events::{Announcement, EventType, reference},
};
use serde_json::json;

use crate::{
    context::Context,
    groups::Group,
    owner::{LiveOwner, limits_of},
};

/// Requests the updates again that were withdrawn for a missing member, once none is missing. Nothing is
/// requested for a namespace that opted out meanwhile.
pub(super) async fn request_withdrawn(
    ctx: &Context,
    group: &Group,
    machines: &[Arc<Machine>],
) -> anyhow::Result<()> {
    let is_withdrawn =
        |machine: &Arc<Machine>| machine.annotations().contains_key(keys::WITHDRAWN_FOR_MEMBER);
    let limits = limits_of(&ctx.stores, group, || machines.len());
    let waits = || limits.lacks(machines.len()) || !ctx.opted_in(&group.key.namespace);
    if !machines.iter().any(is_withdrawn) || waits() {
        return Ok(());
    }
    // Cluster API starts what its owner asks for now.
    LiveOwner::read(ctx, group).await?;
    let owner = LiveOwner::of(&ctx.stores, group);
    let wanted = owner.map(|owner| owner.version().clone()).unwrap_or_default();
    let machines: Vec<&Machine> = machines.iter().map(AsRef::as_ref).collect();
    for (machine, changes) in request_again(&machines, limits.slots(), &wanted) {
        request(ctx, machine, &changes).await?;
    }
    Ok(())
}

async fn request(
    ctx: &Context,
    machine: &Machine,
    changes: &BTreeMap<String, Option<String>>,
) -> anyhow::Result<()> {
    let name = machine.name_any();
    if changes.contains_key(keys::UPDATE_IN_PROGRESS) {
        let announcement = Announcement {
            about: reference(machine),
            type_: EventType::Normal,
            reason: "UpdateResumed".to_owned(),
            message: format!(
                "The update of Machine {name} to {} is requested again: its group has all its \
                 Machines.",
                machine.spec.version
            ),
            occurrence: machine
                .annotations()
                .get(keys::WITHDRAWN_FOR_MEMBER)
                .cloned()
                .unwrap_or_default(),
        };
        ctx.recorder.announce(&announcement).await;
    }
    let api: Api<Machine> =
        Api::namespaced(ctx.client.clone(), &machine.namespace().unwrap_or_default());
    let body = json!({ "metadata": {
        "resourceVersion": machine.resource_version(),
        "annotations": changes,
    }});
    ctx.stores.machines.insert(apply::merge(&api, &name, &body).await?);
    Ok(())
}
