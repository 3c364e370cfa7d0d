//! What is known of the health of a Cluster.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_core::{
    managed::health::{HealthSeen, MachineSeen},
    node::{Workload, workload_refusal},
};
use refit_kinds::{keys, refit::MachineUid};
use refit_runtime::ObjectKey;

use crate::{
    api_error::{ReadError, is_silence},
    context::Context,
    groups::Group,
    host_plan::node_name,
    indexes::MACHINES_BY_CLUSTER,
    node_update::{
        live::{read_cluster, read_object},
        look::WorkloadCluster,
    },
    owner::LiveOwner,
    upgrade_task::cluster::groups_of,
};

/// What the caches show of a Cluster. The error is why it cannot be known.
pub(crate) fn seen(ctx: &Context, key: &ObjectKey) -> Result<HealthSeen, String> {
    let Some(view) = ctx.workload_index.view(key) else {
        return Err(format!("Cluster {} is not connected yet", key.name));
    };
    let cluster = WorkloadCluster { key: key.clone(), view };
    if let Some(unseen) = cluster.unseen(ctx) {
        return Err(why_unseen(&unseen, key));
    }
    let view = cluster.view;
    let owner = ctx.stores.clusters.get(key);
    let groups = owner.as_ref().map_or_else(Vec::new, |cluster| groups_of(ctx, cluster));
    let slots = slots(ctx, &groups);
    let machines = ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, key);
    Ok(HealthSeen {
        objects: objects(ctx, owner.as_deref(), &groups),
        machines: machines
            .iter()
            .map(|machine| {
                machine_seen(machine, slots.contains(&MachineUid::of(&machine.metadata)))
            })
            .collect(),
        nodes: view.nodes.list().iter().map(|node| node.view.clone()).collect(),
        static_pods: view.static_pods.list().iter().filter_map(|pod| pod.view.clone()).collect(),
    })
}

/// Brings the caches up to the present with what [`seen`] shows.
pub(crate) async fn read(ctx: &Context, cluster: &WorkloadCluster) -> Result<(), ReadError> {
    let key = &cluster.key;
    read_object(ctx, &ctx.stores.clusters, key).await?;
    let owner = ctx.stores.clusters.get(key);
    for group in owner.as_ref().map_or_else(Vec::new, |cluster| groups_of(ctx, cluster)) {
        LiveOwner::read(ctx, &group).await?;
        read_object(ctx, &ctx.stores.update_groups, &group.key).await?;
    }
    let read = read_cluster(ctx, cluster).await;
    if let Err(ReadError::Workload(request)) = &read
        && is_silence(&request.error)
    {
        cluster.view.mark_unreachable();
    }
    read
}

/// The Machines of groups that hold slots.
fn slots(ctx: &Context, groups: &[Group]) -> BTreeSet<MachineUid> {
    let objects = groups.iter().filter_map(|group| ctx.stores.update_groups.get(&group.key));
    let slots = objects.flat_map(|object| {
        let status = object.status.as_ref();
        let slots = status.map_or(&[][..], |status| &status.slots);
        slots.iter().map(|slot| slot.machine_uid.clone()).collect::<Vec<_>>()
    });
    slots.collect()
}

/// The Cluster and the owners of its Machines, with their conditions.
fn objects(
    ctx: &Context,
    cluster: Option<&Cluster>,
    groups: &[Group],
) -> Vec<(String, Vec<Condition>)> {
    let cluster = cluster.iter().map(|cluster| {
        let shown = cluster.status.as_ref().map(|status| status.conditions.clone());
        (format!("Cluster {}", cluster.name_any()), shown.unwrap_or_default())
    });
    let owners = groups.iter().filter_map(|group| {
        let owner = &group.spec.owner;
        let live = LiveOwner::of(&ctx.stores, group)?;
        Some((format!("{} {}", owner.kind, owner.name), live.conditions().to_vec()))
    });
    cluster.chain(owners).collect()
}

fn why_unseen(unseen: &Workload, cluster: &ObjectKey) -> String {
    match workload_refusal(unseen) {
        Some(refusal) => refusal.sentence(),
        None => format!("the first lists of Cluster {} are not complete", cluster.name),
    }
}

/// A Machine, which holds a slot of its group or not.
pub(crate) fn machine_seen(machine: &Machine, has_slot: bool) -> MachineSeen {
    MachineSeen {
        name: machine.name_any(),
        node: node_name(machine),
        is_control_plane: machine.labels().contains_key(keys::CONTROL_PLANE),
        deleting: machine.metadata.deletion_timestamp.is_some(),
        has_slot,
    }
}
