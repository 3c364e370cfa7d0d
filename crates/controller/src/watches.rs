//! One watch per kind of the management cluster, and the keys that a change wakes.

use kube::{Api, Client, Resource};
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_kinds::refit::{NodeUpdate, Owner, UpdateGroup, update_group_name};
use refit_runtime::{ObjectKey, Store, store};

use crate::{
    PlanLocation,
    context::Context,
    groups::{
        group_of, group_of_set, group_of_update, node_update_keys_of_machine, unfinished_of_group,
    },
    indexes::GROUPS_BY_CLUSTER,
};

/// Watches every kind until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    let Context { client, stores, queues, .. } = ctx;
    futures::join!(
        watch(client, &stores.machine_sets, |set| {
            queues.groups.add(group_of_set(set).key);
        }),
        watch(client, &stores.machines, |machine| machine_changed(ctx, machine)),
        watch(client, &stores.machine_deployments, |deployment| {
            queues.groups.add(owned_group(Owner::Deployment, deployment));
        }),
        watch(client, &stores.control_planes, |control_plane| {
            queues.groups.add(owned_group(Owner::ControlPlane, control_plane));
        }),
        watch(client, &stores.clusters, |cluster| cluster_changed(ctx, cluster)),
        watch(client, &stores.node_updates, |update| update_changed(ctx, update)),
        watch(client, &stores.update_groups, |group| group_changed(ctx, group)),
        // A drain polls every few seconds anyway.
        watch(client, &stores.drain_rules, |_| {}),
        async {
            // Plans in workload clusters are watched there.
            if ctx.settings.plan_location == PlanLocation::Management {
                watch(client, &stores.host_plans, |plan| {
                    wake_machine(ctx, &ObjectKey::of(plan));
                })
                .await;
            }
        },
    );
}

async fn watch<K>(client: &Client, store: &Store<K>, changed: impl FnMut(&K))
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    store::reflect(api, store::everything(), store.clone(), changed).await;
}

fn owned_group(kind: Owner, owner: &impl kube::ResourceExt) -> ObjectKey {
    ObjectKey::new(
        owner.namespace().unwrap_or_default(),
        update_group_name(kind.kind(), &owner.name_any()),
    )
}

/// Wakes the NodeUpdates of a Machine.
pub(crate) fn wake_machine(ctx: &Context, machine: &ObjectKey) {
    for key in node_update_keys_of_machine(&ctx.stores, machine) {
        ctx.queues.node_updates.add(key);
    }
}

pub(crate) fn machine_changed(ctx: &Context, machine: &Machine) {
    wake_machine(ctx, &ObjectKey::of(machine));
    if let Some(group) = group_of(&ctx.stores, machine) {
        ctx.queues.groups.add(group.key);
    }
}

pub(crate) fn update_changed(ctx: &Context, update: &NodeUpdate) {
    ctx.queues.node_updates.add(ObjectKey::of(update));
    if let Some(group) = group_of_update(&ctx.stores, update) {
        ctx.queues.groups.add(group.key);
    }
}

pub(crate) fn group_changed(ctx: &Context, group: &UpdateGroup) {
    let key = ObjectKey::of(group);
    for update in unfinished_of_group(&ctx.stores, &key) {
        ctx.queues.node_updates.add(update);
    }
    ctx.queues.groups.add(key);
}

/// A Cluster's policy, pause and endpoint affect all of its groups and unfinished NodeUpdates.
pub(crate) fn cluster_changed(ctx: &Context, cluster: &Cluster) {
    let key = ObjectKey::of(cluster);
    ctx.workload_index.cluster_changed(key.clone());
    for group in ctx.stores.update_groups.listed(&GROUPS_BY_CLUSTER, &key) {
        group_changed(ctx, &group);
    }
}
