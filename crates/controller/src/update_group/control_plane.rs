//! Control planes that lack a Machine or are blocked, and the groups that wait for them.

use std::{collections::BTreeMap, sync::Arc};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::{group::BLOCKED, node::request_again};
use refit_kinds::{conditions, keys, version::StatedVersion};
use refit_runtime::{
    apply,
    events::{Announcement, EventType, reference},
};
use serde_json::json;

use crate::{
    context::{Context, Stores},
    groups::{Group, lacks_machines},
    hooks::can_update::observed_version,
    indexes::GROUPS_BY_CLUSTER,
    owner::LiveOwner,
};

/// Requests the updates again that were withdrawn for a missing control plane member, once none is
/// missing. Nothing is requested for a namespace that opted out meanwhile.
pub(super) async fn request_withdrawn(
    ctx: &Context,
    group: &Group,
    machines: &[Arc<Machine>],
) -> anyhow::Result<()> {
    let is_withdrawn =
        |machine: &&Arc<Machine>| machine.annotations().contains_key(keys::WITHDRAWN_FOR_MEMBER);
    let withdrawn: Vec<_> = machines.iter().filter(is_withdrawn).collect();
    let waits = lacks_machines(&ctx.stores, group) || !ctx.opted_in(&group.key.namespace);
    if withdrawn.is_empty() || waits {
        return Ok(());
    }
    // Cluster API starts what its owner asks for now.
    LiveOwner::read(ctx, group).await?;
    let owner = LiveOwner::of(&ctx.stores, group);
    let wanted = owner.map(|owner| owner.version().clone()).unwrap_or_default();
    for machine in withdrawn {
        request(ctx, machine, &wanted).await?;
    }
    Ok(())
}

async fn request(ctx: &Context, machine: &Machine, wanted: &StatedVersion) -> anyhow::Result<()> {
    let changes: BTreeMap<_, _> = request_again(machine, wanted);
    if changes.is_empty() {
        return Ok(());
    }
    let name = machine.name_any();
    if changes.contains_key(keys::UPDATE_IN_PROGRESS) {
        let announcement = Announcement {
            about: reference(machine),
            type_: EventType::Normal,
            reason: "UpdateResumed".to_owned(),
            message: format!(
                "The update of Machine {name} to {} is requested again: its control plane has all \
                 its Machines.",
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

/// Why the control plane of a group of workers is blocked, while the workers are not all as their owner
/// requests.
pub(super) fn blocked(stores: &Stores, group: &Group, machines: &[Arc<Machine>]) -> Option<String> {
    let owner = LiveOwner::of(stores, group)?;
    let unfinished = machines.iter().any(|machine| observed_version(machine) != *owner.version());
    if group.spec.control_plane || !unfinished {
        return None;
    }
    let groups = stores.update_groups.listed(&GROUPS_BY_CLUSTER, &group.cluster_key());
    let control_plane = groups.iter().find(|other| other.spec.control_plane)?;
    let blocked = conditions::get(&control_plane.status.as_ref()?.conditions, BLOCKED)?;
    (blocked.status == "True").then(|| blocked.message.clone())
}
