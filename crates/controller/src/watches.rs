//! One watch per kind of the management cluster, and the keys that a change wakes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Resource, ResourceExt};
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_core::{group::COVERED, node::Ended, report::RefusalReason};
use refit_kinds::{
    conditions, keys,
    refit::{ClusterUpgradePlan, NodeUpdate, Owner, UpdateGroup, Updater, UpgradeTask},
};
use refit_runtime::{ObjectKey, Store, client::Served, store};

use crate::{
    PlanLocation, annotations, changed_settings, cluster_upgrade, cluster_upgrade_plan,
    context::Context,
    control_planes::{self, ForeignPlane},
    groups::{
        group_of, group_of_set, machine_key, node_updates_of_machine, unfinished_in,
        unfinished_of_group,
    },
    host_plan::cluster_key,
    indexes::{DEPLOYMENTS_BY_CLUSTER, GROUPS_BY_CLUSTER},
    node_update::look::update_node_name,
    notifications,
    owner::OwnerId,
    providers, replacement_hold, upgrade_task,
};

/// How long changes of its members are collected before a group is looked at.
const COLLECT: Duration = Duration::from_secs(1);

/// Watches every kind until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    let known = async {
        ctx.served.known().await;
        Box::pin(watch_all(ctx)).await;
    };
    tokio::select! {
        never = ctx.served.keep(&ctx.client) => match never {},
        () = known => {}
    }
}

async fn watch_all(ctx: &Context) {
    let Context { client, stores, queues, .. } = ctx;
    futures::join!(
        watch(ctx, &stores.machine_sets, |set| {
            let group = group_of_set(set).key;
            upgrade_task::wake(ctx, &group);
            replacement_hold::wake_group(ctx, &group_of_set(set));
            let owner = group_of_set(set).spec.owner;
            // Those of a MachineDeployment have copies of its annotations.
            if owner.owner() == Owner::Set {
                annotations::wake_owner(ctx, OwnerId::of(Owner::Set, set), set.annotations());
                changed_settings::wake_group(ctx, &group);
            }
            queues.groups.add(group);
        }),
        watch(ctx, &stores.machines, |machine| machine_changed(ctx, machine)),
        watch(ctx, &stores.machine_deployments, |deployment| {
            owner_changed(ctx, OwnerId::of(Owner::Deployment, deployment), deployment);
        }),
        watch_if_served(ctx, &stores.control_planes, |control_plane| {
            owner_changed(ctx, OwnerId::of(Owner::ControlPlane, control_plane), control_plane);
            wake_waiting_workers(ctx, control_plane);
        }),
        watch(ctx, &stores.clusters, |cluster| cluster_changed(ctx, cluster)),
        store::reflect(
            Api::all(client.clone()),
            store::everything(),
            stores.namespaces.clone(),
            |namespace: &Namespace| namespace_changed(ctx, namespace),
        ),
        watch(ctx, &stores.node_updates, |update| update_changed(ctx, update)),
        watch(ctx, &stores.update_groups, |group| group_changed(ctx, group)),
        watch(ctx, &stores.host_settings, |settings| {
            wake_namespace(ctx, settings);
            changed_settings::wake_namespace(ctx, &settings.namespace().unwrap_or_default());
        }),
        watch(ctx, &stores.disruption_policies, |policy| wake_namespace(ctx, policy)),
        watch(ctx, &stores.replacement_holds, |hold| {
            replacement_hold::hold_changed(ctx, hold);
        }),
        store::reflect(
            Api::all(client.clone()),
            store::everything(),
            stores.updaters.clone(),
            |updater: &Updater| queues.updaters.add(ObjectKey::of(updater)),
        ),
        watch(ctx, &stores.upgrade_tasks, |task| task_changed(ctx, task)),
        watch(ctx, &stores.cluster_upgrades, |upgrade| {
            queues.cluster_upgrades.add(ObjectKey::of(upgrade));
            notifications::upgrade_changed(ctx, upgrade);
            cluster_upgrade_plan::wake(ctx);
        }),
        store::reflect(
            Api::all(client.clone()),
            store::everything(),
            stores.cluster_upgrade_plans.clone(),
            |plan: &ClusterUpgradePlan| {
                queues.cluster_upgrade_plans.add(ObjectKey::of(plan));
                notifications::plan_changed(ctx, plan);
            },
        ),
        providers::run(ctx),
        control_planes::run(ctx),
        // A drain polls every few seconds anyway.
        watch_if_served(ctx, &stores.drain_rules, |_| {}),
        async {
            // Plans in workload clusters are watched there.
            if ctx.settings.plan_location == PlanLocation::Management {
                watch(ctx, &stores.host_plans, |plan| {
                    ctx.arrivals.saw(&stores.host_plans, ObjectKey::of(plan), ctx.clock.now());
                    wake_machine(ctx, &ObjectKey::of(plan));
                })
                .await;
            }
        },
    );
}

/// Watches a kind in the version that is served: another one is read from the beginning.
async fn watch<K>(ctx: &Context, store: &Store<K>, mut changed: impl FnMut(&K))
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let kind = K::kind(&());
    loop {
        let api: Api<K> = Api::all(ctx.client.clone());
        let served = ctx.served.of(&kind);
        tokio::select! {
            biased;
            () = store::reflect(api, store::everything(), store.clone(), &mut changed) => return,
            () = ctx.served.changed(&kind, served) => {}
        }
    }
}

/// Watches a kind that the API server may lack: until it is served, there are no objects of it.
async fn watch_if_served<K>(ctx: &Context, store: &Store<K>, changed: impl FnMut(&K))
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let kind = K::kind(&());
    if ctx.served.of(&kind) == Served::Missing {
        store.mark_ready();
        ctx.served.changed(&kind, Served::Missing).await;
        store.expect_list();
    }
    watch(ctx, store, changed).await;
}

/// Wakes the unfinished NodeUpdates in the namespace of an object that selects owners: which ones it applied
/// to before is unknown here.
fn wake_namespace(ctx: &Context, object: &impl ResourceExt) {
    for key in unfinished_in(&ctx.stores, &object.namespace().unwrap_or_default()) {
        ctx.queues.node_updates.add(key);
    }
}

/// Wakes the NodeUpdates of a Machine, except those that have ended and left nothing to do.
pub(crate) fn wake_machine(ctx: &Context, machine: &ObjectKey) {
    for update in node_updates_of_machine(&ctx.stores, machine) {
        wake_update(ctx, &update);
    }
}

/// Wakes a NodeUpdate, unless it has ended and left nothing to do.
pub(crate) fn wake_update(ctx: &Context, update: &NodeUpdate) {
    if has_work_left(ctx, update) {
        ctx.queues.node_updates.add(ObjectKey::of(update));
    }
}

/// Whether a NodeUpdate has not ended, or has left something to do.
pub(crate) fn has_work_left(ctx: &Context, update: &NodeUpdate) -> bool {
    if !update.phase().is_final() {
        return true;
    }
    let stores = &ctx.stores;
    let key = machine_key(update);
    let machine = stores.machines.get(&key);
    let group = machine.as_ref().and_then(|machine| group_of(stores, machine));
    let group = group.and_then(|group| stores.update_groups.get(&group.key));
    let status = group.as_ref().and_then(|group| group.status.as_ref());
    let node = machine.as_ref().and_then(|machine| {
        let view = ctx.workload_index.view(&cluster_key(machine))?;
        view.nodes.get(&ObjectKey::new("", &*update_node_name(update, machine)))
    });
    let node = node.map(|node| node.view.clone());
    let of_machine = node_updates_of_machine(stores, &key);
    let ended = Ended {
        update,
        of_machine: &of_machine,
        machine: machine.as_deref(),
        slots: status.map_or(&[], |status| &status.slots),
        undisturbed: status.map_or(&[], |status| &status.undisturbed),
        node: node.as_deref(),
    };
    ended.may_have_work_left()
}

/// Wakes the group of an owner, its tasks, the tasks of its Cluster, and what its annotations ask for.
fn owner_changed(ctx: &Context, owner: OwnerId, object: &impl kube::ResourceExt) {
    let group = owner.group_key();
    replacement_hold::wake_owner(ctx, &owner);
    upgrade_task::wake(ctx, &group);
    annotations::wake_owner(ctx, owner, object.annotations());
    changed_settings::wake_group(ctx, &group);
    if let Some(cluster) = object.labels().get(keys::CLUSTER_NAME) {
        let cluster = ObjectKey::new(&group.namespace, cluster);
        upgrade_task::wake_whole(ctx, &cluster);
        cluster_upgrade::wake(ctx, &cluster);
    }
    ctx.queues.groups.add(group);
}

pub(crate) fn machine_changed(ctx: &Context, machine: &Machine) {
    let cluster = cluster_key(machine);
    work_changed(ctx, &cluster);
    cluster_upgrade::wake(ctx, &cluster);
    wake_machine(ctx, &ObjectKey::of(machine));
    annotations::wake(ctx, machine);
    changed_settings::wake(ctx, machine);
    replacement_hold::machine_changed(ctx, machine);
    if let Some(group) = group_of(&ctx.stores, machine) {
        replacement_hold::wake_group(ctx, &group);
        upgrade_task::wake(ctx, &group.key);
        member_changed(ctx, group.key);
    }
}

/// Wakes the group of a Machine or NodeUpdate. What it shows of them may wait for further changes.
fn member_changed(ctx: &Context, group: ObjectKey) {
    if ctx.stores.update_groups.get(&group).is_some() {
        ctx.queues.groups.add_after(group, COLLECT);
    } else {
        ctx.queues.groups.add(group);
    }
}

pub(crate) fn update_changed(ctx: &Context, update: &NodeUpdate) {
    wake_update(ctx, update);
    let is_gone = || ctx.stores.node_updates.get(&ObjectKey::of(update)).is_none();
    if update.spec.is_upkeep() && (update.phase().is_final() || is_gone()) {
        // The update that spoke for the Machine before does so again.
        wake_machine(ctx, &machine_key(update));
    }
    // A Machine without a known group has a cluster, too.
    if let Some(machine) = ctx.stores.machines.get(&machine_key(update)) {
        work_changed(ctx, &cluster_key(&machine));
        annotations::wake(ctx, &machine);
        if update.phase().is_final() || is_gone() {
            changed_settings::wake(ctx, &machine);
        }
        if let Some(group) = group_of(&ctx.stores, &machine) {
            upgrade_task::wake(ctx, &group.key);
            member_changed(ctx, group.key);
        }
    }
}

/// Wakes a task, those that wait for its end, and the task that it is a part of.
fn task_changed(ctx: &Context, task: &UpgradeTask) {
    let key = ObjectKey::of(task);
    let cluster = ObjectKey::new(&key.namespace, &task.spec.cluster_ref.name);
    upgrade_task::wake_of_cluster(ctx, &cluster);
    cluster_upgrade::wake(ctx, &cluster);
    annotations::wake_owner_of(ctx, task);
    replacement_hold::wake_group(ctx, &upgrade_task::group_of_task(task));
    if task.spec.bundle.is_some() {
        // It shows the bundle.
        ctx.queues.groups.add(upgrade_task::group_of_task(task).key);
    }
    ctx.queues.upgrade_tasks.add(key);
}

pub(crate) fn group_changed(ctx: &Context, group: &UpdateGroup) {
    let key = ObjectKey::of(group);
    work_changed(ctx, &ObjectKey::new(&key.namespace, &group.spec.cluster_name));
    for update in unfinished_of_group(&ctx.stores, &key) {
        ctx.queues.node_updates.add(update);
    }
    upgrade_task::wake(ctx, &key);
    // An update that has ended releases its slot, or leaves its group, once the group is known.
    let status = group.status.iter();
    for slot in status.flat_map(|status| status.slots.iter().chain(&status.undisturbed)) {
        let holder = ObjectKey::new(&key.namespace, &slot.node_update);
        if let Some(update) = ctx.stores.node_updates.get(&holder) {
            wake_update(ctx, &update);
        }
    }
    if group.spec.control_plane {
        // Its only machine may be skipped no longer.
        let plane = ObjectKey::new(&key.namespace, &group.spec.owner.name);
        replacement_hold::wake_only_machine(ctx, &plane);
        // Workers wait for their control plane.
        let cluster = ObjectKey::new(&key.namespace, &group.spec.cluster_name);
        for workers in ctx.stores.update_groups.listed(&GROUPS_BY_CLUSTER, &cluster) {
            let workers = ObjectKey::of(workers.as_ref());
            for update in unfinished_of_group(&ctx.stores, &workers) {
                ctx.queues.node_updates.add(update);
            }
            ctx.queues.groups.add(workers);
        }
    }
    ctx.queues.groups.add(key);
}

/// Wakes what depends on a control plane of another provider. It is of a kind of an API group.
pub(crate) fn plane_changed(ctx: &Context, (api_group, kind): (&str, &str), plane: &ForeignPlane) {
    owner_changed(ctx, OwnerId::new(api_group, kind, plane), plane);
    wake_waiting_workers(ctx, plane);
}

/// Workers may wait for the version that the owner of their control plane requests.
fn wake_waiting_workers(ctx: &Context, control_plane: &impl kube::ResourceExt) {
    let Some(cluster) = control_plane.labels().get(keys::CLUSTER_NAME) else { return };
    let cluster = ObjectKey::new(control_plane.namespace().unwrap_or_default(), cluster);
    for workers in ctx.stores.machine_deployments.listed(&DEPLOYMENTS_BY_CLUSTER, &cluster) {
        let owner = OwnerId::of(Owner::Deployment, workers.as_ref());
        annotations::wake_owner(ctx, owner, workers.annotations());
    }
    for workers in ctx.stores.update_groups.listed(&GROUPS_BY_CLUSTER, &cluster) {
        let shown = workers.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let behind: &str = RefusalReason::ControlPlaneBehind.into();
        if conditions::get(shown, COVERED).is_some_and(|answer| answer.reason == behind) {
            ctx.queues.groups.add(ObjectKey::of(workers.as_ref()));
        }
    }
}

/// Opening or closing a namespace opens or closes the connections to its workload clusters.
fn namespace_changed(ctx: &Context, namespace: &Namespace) {
    for cluster in ctx.stores.clusters.list_in(&namespace.name_any()) {
        let key = ObjectKey::of(cluster.as_ref());
        upgrade_task::wake_of_cluster(ctx, &key);
        cluster_upgrade::wake(ctx, &key);
        ctx.workload_index.cluster_changed(key);
    }
    if ctx.opted_in(&namespace.name_any()) {
        annotations::wake_namespace(ctx, &namespace.name_any());
        changed_settings::wake_namespace(ctx, &namespace.name_any());
    }
    replacement_hold::wake_namespace(ctx, &namespace.name_any());
    for group in ctx.stores.update_groups.list_in(&namespace.name_any()) {
        ctx.queues.groups.add(ObjectKey::of(group.as_ref()));
    }
}

/// Outside of namespaces that opted in, the work that is left decides about the connection.
pub(crate) fn work_changed(ctx: &Context, cluster: &ObjectKey) {
    if !ctx.opted_in(&cluster.namespace) {
        ctx.workload_index.cluster_changed(cluster.clone());
    }
}

/// A Cluster's policy, pause and endpoint affect all of its groups and unfinished NodeUpdates.
pub(crate) fn cluster_changed(ctx: &Context, cluster: &Cluster) {
    let key = ObjectKey::of(cluster);
    ctx.stores.foreign_planes.expect(cluster);
    ctx.workload_index.cluster_changed(key.clone());
    upgrade_task::wake_of_cluster(ctx, &key);
    cluster_upgrade::wake(ctx, &key);
    cluster_upgrade_plan::wake(ctx);
    replacement_hold::wake_cluster(ctx, cluster);
    changed_settings::wake_cluster(ctx, cluster);
    for group in ctx.stores.update_groups.listed(&GROUPS_BY_CLUSTER, &key) {
        group_changed(ctx, &group);
    }
}
