//! One watch per kind of the management cluster, and the keys that a change wakes.

use kube::{Api, Client, Resource, ResourceExt as _};
use refit_cluster_api::kinds::Cluster;
use refit_kinds::refit::{Owner, update_group_name};
use refit_runtime::{ObjectKey, Store, store};

use crate::{
    PlanLocation,
    context::Context,
    groups::{
        group_of, group_of_set, group_of_update, node_update_keys_of_machine, unfinished_of_group,
    },
};

/// Watches every kind until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    let Context { client, stores, queues, .. } = ctx;
    futures::join!(
        watch(client, &stores.machine_sets, |set| {
            queues.groups.add(group_of_set(set).key);
        }),
        watch(client, &stores.machines, |machine| {
            for key in node_update_keys_of_machine(stores, &ObjectKey::of(machine)) {
                queues.node_updates.add(key);
            }
            if let Some(group) = group_of(stores, machine) {
                queues.groups.add(group.key);
            }
        }),
        watch(client, &stores.machine_deployments, |deployment| {
            queues.groups.add(owned_group(Owner::Deployment, deployment));
        }),
        watch(client, &stores.control_planes, |control_plane| {
            queues.groups.add(owned_group(Owner::ControlPlane, control_plane));
        }),
        watch(client, &stores.clusters, |cluster| wake_cluster(ctx, cluster)),
        watch(client, &stores.node_updates, |update| {
            queues.node_updates.add(ObjectKey::of(update));
            if let Some(group) = group_of_update(stores, update) {
                queues.groups.add(group.key);
            }
        }),
        watch(client, &stores.update_groups, |group| {
            queues.groups.add(ObjectKey::of(group));
            for key in unfinished_of_group(stores, group) {
                queues.node_updates.add(key);
            }
        }),
        // A drain polls every few seconds anyway.
        watch(client, &stores.drain_rules, |_| {}),
        async {
            // Plans in workload clusters are watched there.
            if ctx.settings.plan_location == PlanLocation::Management {
                watch(client, &stores.host_plans, |plan| {
                    for key in node_update_keys_of_machine(stores, &ObjectKey::of(plan)) {
                        queues.node_updates.add(key);
                    }
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

/// A Cluster's policy, pause and endpoint affect all of its groups and unfinished NodeUpdates.
fn wake_cluster(ctx: &Context, cluster: &Cluster) {
    ctx.workload_index.clusters_changed();
    let namespace = cluster.namespace().unwrap_or_default();
    let name = cluster.name_any();
    for group in ctx.stores.update_groups.list_in(&namespace) {
        if group.spec.cluster_name == name {
            ctx.queues.groups.add(ObjectKey::of(group.as_ref()));
            for key in unfinished_of_group(&ctx.stores, &group) {
                ctx.queues.node_updates.add(key);
            }
        }
    }
}
