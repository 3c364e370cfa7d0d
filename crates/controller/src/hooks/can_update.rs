//! CanUpdateMachine and CanUpdateMachineSet: in place, or not, or not now.
//!
//! Everything is read from caches. What the request says of annotations is not trusted: policy is
//! read from the live owner and Cluster.

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_core::change::{
    Level, NotReady, Objects, Policy, Verdict, built_in, cover, verdict,
    verdict::{Unfinished, control_plane_behind},
};
use refit_kinds::{keys, refit::NodeUpdate, version::KubernetesVersion};
use refit_runtime::ObjectKey;

use super::{decision, wire};
use crate::{
    context::Context,
    groups::{Group, controller_of, group_of, group_of_set, machines_of, phase_of},
    host_plan::{HostReport, host_report},
    policy::{live_policy, unknown},
};

/// Answers CanUpdateMachine.
pub(super) async fn machine(ctx: &Context, body: &[u8]) -> Verdict {
    let judged = both_sides(body, wire::MACHINE)
        .and_then(|(current, desired)| judge_machine(ctx, &current, &desired));
    conclude(ctx, judged).await
}

/// Answers CanUpdateMachineSet.
pub(super) async fn machine_set(ctx: &Context, body: &[u8]) -> Verdict {
    let judged = both_sides(body, wire::MACHINE_SET)
        .and_then(|(current, desired)| judge_machine_set(ctx, &current, &desired));
    conclude(ctx, judged).await
}

/// A verdict with what it is about.
struct Judged {
    group: Group,
    policy: Policy,
    verdict: Verdict,
}

async fn conclude(ctx: &Context, judged: Result<Judged, NotReady>) -> Verdict {
    match judged {
        Err(why) => Verdict::NotReady(why),
        Ok(Judged { group, policy, verdict }) => {
            decision::record(ctx, &group, &policy, &verdict).await;
            verdict
        }
    }
}

fn both_sides(body: &[u8], members: wire::Members) -> Result<(Objects, Objects), NotReady> {
    let read = || {
        let mut request = wire::parse(body)?;
        let current = wire::side(&mut request, "current", members)?;
        let desired = wire::side(&mut request, "desired", members)?;
        Ok((current, desired))
    };
    read().map_err(|e: wire::BadRequest| NotReady::BadRequest { reason: e.to_string() })
}

fn judge_machine(ctx: &Context, current: &Objects, desired: &Objects) -> Result<Judged, NotReady> {
    let key = synced_key(ctx, current)?;
    let machine = ctx.stores.machines.get(&key).ok_or_else(|| unknown("Machine", &key))?;
    if machine.metadata.deletion_timestamp.is_some() {
        return Err(NotReady::Deleting { machine: key.name });
    }
    let group =
        group_of(&ctx.stores, &machine).ok_or(NotReady::OwnerUnknown { machine: key.name })?;
    let policy = live_policy(ctx, &group)?;
    let coverage = cover(Level::Machine, current, desired, built_in());
    let busy = group.spec.control_plane.then(|| another_machine(ctx, &group, &machine)).flatten();
    let unready = no_fresh_report(ctx, [machine.as_ref()]);
    let verdict = verdict(&policy, coverage, busy, unready);
    Ok(Judged { group, policy, verdict })
}

fn judge_machine_set(
    ctx: &Context,
    current: &Objects,
    desired: &Objects,
) -> Result<Judged, NotReady> {
    let key = synced_key(ctx, current)?;
    let set = ctx.stores.machine_sets.get(&key).ok_or_else(|| unknown("MachineSet", &key))?;
    let group = group_of_set(&set);
    let policy = live_policy(ctx, &group)?;
    let coverage = cover(Level::MachineSet, current, desired, built_in());
    let machines: Vec<Arc<Machine>> = machines_of_set(ctx, &key);
    let behind = control_plane_of(ctx, &key.namespace, &group, desired);
    let unready = behind.or_else(|| no_fresh_report(ctx, machines.iter().map(AsRef::as_ref)));
    let verdict = verdict(&policy, coverage, None, unready);
    Ok(Judged { group, policy, verdict })
}

fn synced_key(ctx: &Context, current: &Objects) -> Result<ObjectKey, NotReady> {
    if !ctx.stores.synced() {
        return Err(NotReady::NotSynced);
    }
    wire::key_of(&current.owner)
        .ok_or_else(|| NotReady::BadRequest { reason: "the current object has no name".to_owned() })
}

/// Another machine of the control plane that is not finished (`architecture 4`: one at a time).
fn another_machine(ctx: &Context, group: &Group, this: &Machine) -> Option<NotReady> {
    let updates = ctx.stores.node_updates.list_in(&group.key.namespace);
    machines_of(&ctx.stores, &group.key)
        .iter()
        .filter(|machine| machine.name_any() != this.name_any())
        .find_map(|machine| {
            let unfinished = updates.iter().find(|update| is_unfinished_on(update, machine));
            let what = match unfinished {
                Some(update) => Unfinished::NodeUpdate(update.name_any()),
                None if update_in_progress(machine.as_ref()) => Unfinished::Marked,
                None => return None,
            };
            Some(NotReady::AnotherMachine { machine: machine.name_any(), what })
        })
}

fn is_unfinished_on(update: &NodeUpdate, machine: &Machine) -> bool {
    !phase_of(update).is_final()
        && machine.uid().is_some_and(|uid| uid == update.spec.machine_ref.uid)
}

/// Hosts of these Machines without a recent report of their agent.
fn no_fresh_report<'a>(
    ctx: &Context,
    machines: impl IntoIterator<Item = &'a Machine>,
) -> Option<NotReady> {
    let nodes: Vec<String> = machines
        .into_iter()
        .filter(|machine| machine.metadata.deletion_timestamp.is_none())
        .filter_map(|machine| match host_report(ctx, machine) {
            HostReport::Fresh => None,
            HostReport::Stale { node, .. } | HostReport::Missing { node } => {
                Some(format!("Node {node}"))
            }
            HostReport::NoNode => Some(format!("Machine {} (it has no Node)", machine.name_any())),
            HostReport::Unknown { reason } => {
                Some(format!("Machine {} ({reason})", machine.name_any()))
            }
        })
        .collect();
    (!nodes.is_empty()).then_some(NotReady::NoFreshReport { nodes })
}

fn machines_of_set(ctx: &Context, set: &ObjectKey) -> Vec<Arc<Machine>> {
    ctx.stores
        .machines
        .list_in(&set.namespace)
        .into_iter()
        .filter(|machine| {
            controller_of(machine.owner_references())
                .is_some_and(|owner| owner.kind == "MachineSet" && owner.name == set.name)
        })
        .collect()
}

/// Kubelets never get newer than their API server: the control plane goes first.
fn control_plane_of(
    ctx: &Context,
    namespace: &str,
    group: &Group,
    desired: &Objects,
) -> Option<NotReady> {
    // A version that cannot be read is not covered, and answered as such.
    let target: KubernetesVersion = desired.version(Level::MachineSet)?.parse().ok()?;
    ctx.stores
        .machines
        .list_in(namespace)
        .iter()
        .filter(|machine| machine.spec.cluster_name == group.spec.cluster_name)
        .filter(|machine| machine.labels().contains_key(keys::CONTROL_PLANE))
        .find_map(|machine| {
            let observed = observed_version(machine);
            let spec = machine.spec.version.as_deref();
            control_plane_behind(&machine.name_any(), observed, spec, &target)
        })
}

/// The version that a Machine's kubelet reports.
pub(super) fn observed_version(machine: &Machine) -> Option<&str> {
    let info = machine.status.as_ref()?.node_info.as_ref()?;
    Some(info.kubelet_version.as_str()).filter(|v| !v.is_empty())
}
