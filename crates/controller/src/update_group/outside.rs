//! What holds a group up from outside: the control plane's group, or Cluster API itself.

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Cluster, Machine, update_in_progress};
use refit_core::{
    ask::{BundleExpected, bundle_for},
    group::{
        BLOCKED, ControlPlane, Limits, Outside, Rollout, observed_version, runs_another_version,
    },
};
use refit_kinds::{
    canonical::REFIT,
    conditions, keys,
    refit::{MachineUid, NodeUpdate, Phase, Slot},
};
use refit_runtime::ObjectKey;

use super::bundle_of_tasks;
use crate::{
    context::{Context, Stores},
    groups::{Group, control_plane_group},
    owner::{LiveOwner, limits_of},
    replacement_hold::waits_without_surge,
};

pub(super) fn outside<'a>(
    ctx: &Context,
    group: &Group,
    (machines, speakers): (&'a [Arc<Machine>], &[Option<&NodeUpdate>]),
    slots: &'a [Slot],
) -> Outside<'a> {
    let stores = &ctx.stores;
    let limits = limits_of(stores, group, || machines.len());
    Outside {
        lacks_machines: limits.lacks(machines.len()),
        control_plane: control_plane(stores, group, machines),
        deserted: slots.iter().find(|slot| is_deserted(stores, group, machines, slot)),
        held: held(ctx, group),
        bundle: bundle_expected(stores, group, machines, speakers),
        rollout: rollout(stores, group, limits, machines),
    }
}

/// A Machine whose update Cluster API requests, and which does not begin before its bundle is known.
fn bundle_expected<'a>(
    stores: &Stores,
    group: &Group,
    machines: &'a [Arc<Machine>],
    speakers: &[Option<&NodeUpdate>],
) -> Option<(&'a str, BundleExpected)> {
    let annotations = LiveOwner::of(stores, group)?.annotations();
    let requested = annotations.get(REFIT.upgrade_to)?;
    let noted = bundle_of_tasks(stores, group);
    let is_to_come = |machine: &Machine, update: &NodeUpdate| {
        let goal = update.spec.goal.kubernetes_version.as_ref();
        let has_reached =
            update.phase() == Phase::Succeeded && goal == machine.spec.version.version();
        update.phase().is_final() && !has_reached
    };
    let mut waiting = machines.iter().zip(speakers).filter(|(machine, update)| {
        update.is_none_or(|update| is_to_come(machine, update))
            && update_in_progress(machine.as_ref())
            && runs_another_version(machine)
    });
    waiting.find_map(|(machine, _)| {
        let version = machine.spec.version.version()?;
        let why = bundle_for(version, noted.as_ref(), Some(requested)).err()?;
        Some((machine.metadata.name.as_deref()?, why))
    })
}

/// Whether the NodeUpdate that claimed a slot is gone, and no request of Cluster API makes another.
fn is_deserted(stores: &Stores, group: &Group, machines: &[Arc<Machine>], slot: &Slot) -> bool {
    let key = ObjectKey::new(&group.key.namespace, &slot.node_update);
    let waits = |machine: &Arc<Machine>| {
        MachineUid::of(&machine.metadata) == slot.machine_uid
            && machine.metadata.deletion_timestamp.is_none()
            && !update_in_progress(machine.as_ref())
    };
    stores.node_updates.get(&key).is_none() && machines.iter().any(waits)
}

fn rollout<'a>(
    stores: &Stores,
    group: &Group,
    limits: Limits,
    machines: &'a [Arc<Machine>],
) -> Option<Rollout<'a>> {
    let owner = LiveOwner::of(stores, group)?;
    let cluster = stores.clusters.get(&group.cluster_key())?;
    let shown = owner.rollout().filter(|_| !is_paused(&owner, &cluster)).unwrap_or_default();
    let is_true = |kind| conditions::is_true(shown, kind);
    Some(Rollout {
        owner: named(group),
        control_plane: group.spec.control_plane,
        version: owner.version().clone(),
        unchanged_since: shown.iter().map(|one| one.last_transition_time.0).max(),
        scales: is_true(conditions::SCALING_UP) || is_true(conditions::SCALING_DOWN),
        replicas: limits.replicas,
        machines: machines.iter().map(AsRef::as_ref).collect(),
    })
}

/// Whether Cluster API does nothing for an owner.
fn is_paused(owner: &LiveOwner, cluster: &Cluster) -> bool {
    cluster.spec.paused == Some(true)
        || cluster.annotations().contains_key(keys::PAUSED)
        || owner.annotations().contains_key(keys::PAUSED)
}

/// Name of the only Machine, if Cluster API waits for a surge machine that is refused.
fn held(ctx: &Context, group: &Group) -> Option<String> {
    let owner = LiveOwner::of(&ctx.stores, group)?;
    let cluster = ctx.stores.clusters.get(&group.cluster_key())?;
    (!is_paused(&owner, &cluster)).then(|| waits_without_surge(ctx, group)).flatten()
}

/// The control plane of a group of workers that are not all as their owner requests.
fn control_plane(
    stores: &Stores,
    group: &Group,
    machines: &[Arc<Machine>],
) -> Option<ControlPlane> {
    let owner = LiveOwner::of(stores, group)?;
    let unfinished = machines.iter().any(|machine| observed_version(machine) != *owner.version());
    if group.spec.control_plane || !unfinished {
        return None;
    }
    let above = control_plane_group(stores.clusters.get(&group.cluster_key())?.as_ref())?;
    let shown = stores.update_groups.get(&above.key).and_then(|shown| shown.status.clone());
    let blocked = shown.and_then(|shown| conditions::get(&shown.conditions, BLOCKED).cloned());
    Some(ControlPlane {
        owner: named(&above),
        version: LiveOwner::of(stores, &above)?.version().clone(),
        workers_version: owner.version().clone(),
        blocked: blocked.filter(|found| found.status == "True").map(|found| found.message),
    })
}

fn named(group: &Group) -> String {
    format!("{} {}", group.spec.owner.kind, group.spec.owner.name)
}
