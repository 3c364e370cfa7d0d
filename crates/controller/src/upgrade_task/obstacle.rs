//! What stands in the way of a task.

use std::sync::Arc;

use kube::{Resource as _, ResourceExt as _};
use refit_cluster_api::kinds::{CONTRACT_VERSION, CONTROL_PLANE_GROUP, CORE_GROUP, Cluster};
use refit_core::task::{Obstacle, roll_back::never_returns};
use refit_kinds::{
    canonical::Keys,
    keys,
    refit::{Owner, UpgradeTask, Via},
    version::StatedVersion,
};
use refit_runtime::{ObjectKey, client::Served};

use super::{TOPOLOGY_OWNED, has_ended};
use crate::{
    annotations,
    context::Context,
    groups::{Group, machines_of},
    indexes::{TASKS_BY_CLUSTER, TASKS_BY_GROUP},
    owner::LiveOwner,
};

/// What stands in the way of a task for a group. `driven` is a Machine that Cluster API updates in place.
pub(super) fn of_group(
    ctx: &Context,
    task: &UpgradeTask,
    (group, owner): (&Group, Option<&LiveOwner>),
    driven: Option<&str>,
) -> Option<Obstacle> {
    let of_cluster = match of_cluster(ctx, task) {
        Ok(cluster) => cluster.name_any(),
        Err(obstacle) => return Some(obstacle),
    };
    let (kind, name) = (&group.spec.owner.kind, &group.spec.owner.name);
    let api_group = match Owner::of_kind(kind) {
        Some(Owner::ControlPlane) => CONTROL_PLANE_GROUP,
        Some(Owner::Deployment) => CORE_GROUP,
        Some(Owner::Set) | None => {
            let why = format!(
                "ownerRef is a KubeadmControlPlane or a MachineDeployment: a task cannot upgrade the Machines of a \
                 {kind}"
            );
            return Some(Obstacle::NotSupported { why });
        }
    };
    let api_version = &group.spec.owner.api_version;
    if api_version.split_once('/').map(|(of, _)| of) != Some(api_group) {
        let why = format!(
            "invalid value {api_version:?} in ownerRef.apiVersion, expected {api_group}/{CONTRACT_VERSION} for a {kind}: \
             delete this task, and create another one"
        );
        return Some(Obstacle::NotSupported { why });
    }
    let Some(owner) = owner else {
        return Some(Obstacle::Missing { object: format!("{kind} {name}") });
    };
    if let Some(why) = of_another_cluster(owner, group, &of_cluster) {
        return Some(Obstacle::NotSupported { why });
    }
    if let Some(version) = task.spec.version.as_ref().filter(|_| task.spec.roll_back) {
        let machines = machines_of(&ctx.stores, &group.key);
        let stated = machines.iter().map(|machine| &machine.spec.version);
        let versions = stated.chain([owner.version()]).filter_map(StatedVersion::version);
        let of_topology = owner.labels().contains_key(TOPOLOGY_OWNED);
        if let Err(why) = never_returns(name, of_topology, version, versions) {
            return Some(Obstacle::NotSupported { why: why.to_string() });
        }
    }
    older_task(ctx, task, group)
        .or(driven.map(|machine| Obstacle::UpdatedByClusterApi { machine: machine.to_owned() }))
}

/// What stands in the way of a task that installs an option by annotations of a prefix.
pub(super) fn of_option(
    ctx: &Context,
    task: &UpgradeTask,
    (group, owner): (&Group, Option<&LiveOwner>),
    keys: Keys,
) -> Option<Obstacle> {
    let of_cluster = match of_cluster(ctx, task) {
        Ok(cluster) => cluster.name_any(),
        Err(obstacle) => return Some(obstacle),
    };
    if !annotations::is_served(ctx, keys) {
        let why = format!(
            "this controller does not serve {}: start it with --canonical ControllersAbsent, or abort this task",
            keys.upgrade_to
        );
        return Some(Obstacle::NotSupported { why });
    }
    if let Some(why) = owner.and_then(|owner| of_another_cluster(owner, group, &of_cluster)) {
        return Some(Obstacle::NotSupported { why });
    }
    older_task(ctx, task, group)
}

fn of_another_cluster(owner: &LiveOwner, group: &Group, cluster: &str) -> Option<String> {
    let (kind, name) = (&group.spec.owner.kind, &group.spec.owner.name);
    let is_of_another = owner.labels().get(keys::CLUSTER_NAME).is_some_and(|of| of != cluster);
    is_of_another.then(|| format!("{kind} {name} is not of Cluster {cluster}"))
}

fn older_task(ctx: &Context, task: &UpgradeTask, group: &Group) -> Option<Obstacle> {
    let others = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &group.key);
    // Cluster API never updates the only Machine of a control plane in place: a task that it would work for gets nowhere.
    let is_of_only = task.annotations().contains_key(keys::SINGLE_REPLICA);
    let gets_nowhere = |other: &UpgradeTask| is_of_only && other.spec.via == Via::Spec;
    let older = others.iter().find(|other| is_before(other, task) && !gets_nowhere(other));
    older.map(|other| Obstacle::OlderTask { task: other.name_any() })
}

/// What stands in the way of a task for a whole Cluster.
pub(super) fn of_whole(ctx: &Context, task: &UpgradeTask) -> Option<Obstacle> {
    let cluster = of_cluster(ctx, task).and_then(|cluster| {
        as_a_whole(&cluster)?;
        Ok(cluster)
    });
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(obstacle) => return Some(obstacle),
    };
    let key = ObjectKey::of(cluster.as_ref());
    let others = ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, &key);
    let mut wholes = others.iter().filter(|other| other.spec.owner_ref.is_none());
    let older = wholes.find(|other| is_before(other, task));
    older.map(|other| Obstacle::OlderTask { task: other.name_any() })
}

/// What stands in the way of any upgrade of a whole Cluster.
pub(crate) fn of_whole_cluster(ctx: &Context, key: &ObjectKey) -> Option<Obstacle> {
    cluster_of(ctx, key, true).and_then(|cluster| as_a_whole(&cluster)).err()
}

/// Whether a Cluster can be upgraded as a whole.
fn as_a_whole(cluster: &Cluster) -> Result<(), Obstacle> {
    let name = cluster.name_any();
    let kind = cluster.spec.control_plane_ref.as_ref().map(|plane| plane.kind.clone());
    if kind.as_deref() != Some(Owner::ControlPlane.kind()) {
        let kind = kind.unwrap_or_else(|| "missing".to_owned());
        let why = format!(
            "the control plane of Cluster {name} is {kind}, not a KubeadmControlPlane: create a task for each \
             MachineDeployment"
        );
        return Err(Obstacle::NotSupported { why });
    }
    if has_machine_pools(cluster) {
        let why = format!(
            "the topology of Cluster {name} has MachinePools, which its new version would upgrade, too: set \
             spec.topology.version yourself"
        );
        return Err(Obstacle::NotSupported { why });
    }
    Ok(())
}

fn has_machine_pools(cluster: &Cluster) -> bool {
    let topology = cluster.spec.topology.as_ref().and_then(|topology| topology.0.get("workers"));
    let pools = topology.and_then(|workers| workers.get("machinePools")?.as_array());
    pools.is_some_and(|pools| !pools.is_empty())
}

/// The Cluster of a task, if nothing about it or its namespace stands in the way.
fn of_cluster(ctx: &Context, task: &UpgradeTask) -> Result<Arc<Cluster>, Obstacle> {
    let key = ObjectKey::new(task.namespace().unwrap_or_default(), &task.spec.cluster_ref.name);
    // What an annotation asks for writes no spec.
    let cluster = cluster_of(ctx, &key, task.spec.option.is_none())?;
    if let Some(updater) = &task.spec.updater_ref
        && ctx.stores.updaters.get(&ObjectKey::new("", &updater.name)).is_none()
    {
        return Err(Obstacle::Missing { object: format!("Updater {}", updater.name) });
    }
    Ok(cluster)
}

/// A Cluster, if nothing about it or its namespace stands in the way.
fn cluster_of(
    ctx: &Context,
    key: &ObjectKey,
    writes_specs: bool,
) -> Result<Arc<Cluster>, Obstacle> {
    if !ctx.opted_in(&key.namespace) {
        return Err(Obstacle::NotOptedIn { namespace: key.namespace.clone() });
    }
    if writes_specs && ctx.served.of(&Cluster::kind(&())) == Served::Older {
        let why = format!(
            "Cluster API serves no {CONTRACT_VERSION} here: upgrade Cluster API to v1.12 or later, or upgrade the \
             machines by annotation"
        );
        return Err(Obstacle::NotSupported { why });
    }
    let Some(cluster) = ctx.stores.clusters.get(key) else {
        return Err(Obstacle::Missing { object: format!("Cluster {}", key.name) });
    };
    if cluster.spec.paused == Some(true) || cluster.annotations().contains_key(keys::PAUSED) {
        return Err(Obstacle::ClusterPaused { cluster: cluster.name_any() });
    }
    Ok(cluster)
}

/// Whether another task is older and has not ended.
fn is_before(other: &UpgradeTask, task: &UpgradeTask) -> bool {
    !has_ended(other) && other.age() < task.age()
}
