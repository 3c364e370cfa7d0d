//! The controller of UpdateGroups: creates them, shows which Machines wait and why, frees the
//! slots of Machines that are gone, and deletes old NodeUpdates.

mod live;
mod outside;
mod prune;
mod withdrawn;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_core::{
    ask::bundle_of,
    group::{
        Member, Outside, POLICY_UNDERSTOOD, Pace, RolloutKey, awaits_approval, failure_of,
        forget_old_answer, forget_replaced, machine_complaint, record_approval, record_end,
        record_failure, record_recovery, release, runs_another_version, show_policy, summarise,
    },
    node::{of_rollouts, speaker},
};
use refit_kinds::{
    conditions, keys,
    refit::{
        GroupBundle, MachineUid, NodeUpdate, NodeUpdateStatus, Phase, Slot, UpdateGroup,
        UpdateGroupStatus,
    },
};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType},
    queue::Action,
};

use crate::{
    context::{Context, Stores},
    groups::{
        Group, ensure_group, group_of, machines_of, node_updates_of, node_updates_of_machine,
        owner_generation, owner_object,
    },
    host_plan::{cluster_key, node_name},
    indexes::TASKS_BY_GROUP,
    metrics::measured,
    node_update::swap_group,
    owner::{LiveOwner, limits_of, pace_of},
    policy::live_policy,
    watches::wake_update,
};

/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// Requeue delay while old NodeUpdates are left to delete.
const MORE_TO_PRUNE: Duration = Duration::from_secs(1);
/// How often a group with slots is checked without an event: the deletion of a Machine may be
/// missed.
const SLOT_RECHECK: Duration = Duration::from_mins(1);

/// Reconciles UpdateGroups until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    let workers = ctx.settings.update_group_workers;
    let queue = &ctx.queues.groups;
    let reconcile = |key| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "update-group", reconcile(&ctx, &key)).await }
    };
    queue.work("update-group", workers, reconcile).await;
    Ok(())
}

pub(crate) async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    let stores = &ctx.stores;
    let machines = machines_of(stores, key);
    let updates = node_updates_of(stores, &machines);
    let Some(object) = stores.update_groups.get(key) else {
        ctx.gates.forget(key);
        let asked_for = updates.iter().any(|of_machine| !of_machine.is_empty());
        let group = machines.first().and_then(|machine| group_of(stores, machine));
        if let Some(group) = group.filter(|_| asked_for) {
            let made = ensure_group(ctx, &group).await?;
            stores.update_groups.insert(made);
            return Ok(Action::RequeueAfter(AFTER_CONFLICT));
        }
        return Ok(Action::Done);
    };
    let speakers: Vec<Option<&NodeUpdate>> = machines
        .iter()
        .zip(&updates)
        .map(|(machine, of_machine)| {
            speaker(of_machine.iter().map(AsRef::as_ref), &MachineUid::of(&machine.metadata))
        })
        .collect();
    let counted: Vec<&NodeUpdate> = machines
        .iter()
        .zip(&updates)
        .flat_map(|(machine, of_machine)| {
            of_rollouts(of_machine.iter().map(AsRef::as_ref), &MachineUid::of(&machine.metadata))
        })
        .collect();
    let status = object.status.clone().unwrap_or_default();
    let group = Group { key: key.clone(), spec: object.spec.clone() };
    let free = live::free_slots(ctx, &group, &status).await?;
    let held: Vec<Slot> =
        status.slots.iter().filter(|slot| !free.contains(slot)).cloned().collect();
    let outside = outside::outside(ctx, &group, (&machines, &speakers), &held);
    let members = (&*machines, &*speakers, &*counted);
    let next = next_status(ctx, &object, &status, members, &free, &outside);
    if next != status {
        announce_invalid_policy(ctx, &object, &status, &next).await;
        match swap_group(ctx, &object, &status, &next).await {
            Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => {
                return Ok(Action::RequeueAfter(AFTER_CONFLICT));
            }
            outcome => outcome?,
        }
    }
    for key in given_up_for_another_version(stores, &group, &machines, &speakers) {
        ctx.queues.node_updates.add(key);
    }
    if outside.lacks_machines {
        // They may stand in the way of the missing Machine, and no change of theirs wakes them.
        for (machine, update) in machines.iter().zip(&speakers) {
            let ended = update.filter(|update| update.phase().is_final());
            if let Some(update) = ended.filter(|_| update_in_progress(machine.as_ref())) {
                wake_update(ctx, update);
            }
        }
    }
    match withdrawn::request_withdrawn(ctx, &group, &machines).await {
        Err(error) if error.downcast_ref().is_some_and(apply::is_conflict) => {
            return Ok(Action::RequeueAfter(AFTER_CONFLICT));
        }
        outcome => outcome?,
    }
    if prune::prune(ctx, &machines, &updates, &next.slots).await? {
        return Ok(Action::RequeueAfter(MORE_TO_PRUNE));
    }
    let has_entries = !next.slots.is_empty() || !next.undisturbed.is_empty();
    let recheck = has_entries.then_some(SLOT_RECHECK);
    let soonest = blocks_in(ctx, &outside, &next).into_iter().chain(recheck).min();
    Ok(soonest.map_or(Action::Done, Action::RequeueAfter))
}

/// How long it takes until the group counts as blocked because Cluster API requests no update.
fn blocks_in(ctx: &Context, outside: &Outside<'_>, status: &UpdateGroupStatus) -> Option<Duration> {
    let at = outside.rollout.as_ref()?.blocks_at(status)?;
    let left = Duration::try_from(at.duration_since(ctx.clock.now())).ok()?;
    (!left.is_zero()).then_some(left)
}

/// Keys of the updates that ended without success and whose owner asks for another version since:
/// they may be withdrawn, and no change of theirs wakes them.
fn given_up_for_another_version(
    stores: &Stores,
    group: &Group,
    machines: &[Arc<Machine>],
    speakers: &[Option<&NodeUpdate>],
) -> Vec<ObjectKey> {
    let wanted = LiveOwner::of(stores, group).map(|owner| owner.version().clone());
    let Some(wanted) = wanted else { return Vec::new() };
    machines
        .iter()
        .zip(speakers)
        .filter(|(machine, _)| {
            machine.spec.version != wanted && update_in_progress(machine.as_ref())
        })
        .filter_map(|(_, update)| *update)
        .filter(|update| matches!(update.phase(), Phase::Failed | Phase::Stopped))
        .map(ObjectKey::of)
        .collect()
}

fn next_status(
    ctx: &Context,
    object: &UpdateGroup,
    status: &UpdateGroupStatus,
    (machines, speakers, counted): (&[Arc<Machine>], &[Option<&NodeUpdate>], &[&NodeUpdate]),
    free: &[Slot],
    outside: &Outside<'_>,
) -> UpdateGroupStatus {
    let stores = &ctx.stores;
    let group = Group { key: ObjectKey::of(object), spec: object.spec.clone() };
    let none = NodeUpdateStatus::default();
    let members: Vec<Member<'_>> = machines
        .iter()
        .zip(speakers)
        .filter_map(|(machine, update)| {
            let update = (*update)?;
            let stays = machine.metadata.deletion_timestamp.is_none();
            let in_progress = stays && update_in_progress(machine.as_ref());
            Some(Member {
                machine: machine.metadata.name.as_deref()?,
                in_progress,
                is_behind: stays && !in_progress && runs_another_version(machine),
                is_withdrawn: machine.annotations().contains_key(keys::WITHDRAWN_FOR_MEMBER),
                node_update: update.metadata.name.as_deref()?,
                status: update.status.as_ref().unwrap_or(&none),
            })
        })
        .collect();
    let mut next = status.clone();
    next.bundle = bundle_of_tasks(stores, &group).map(Box::new);
    for slot in free.iter().filter(|slot| status.slots.contains(slot)) {
        next = release(&next, &slot.machine_uid).unwrap_or(next);
    }
    next.undisturbed.retain(|entry| !free.contains(entry));
    let limits = limits_of(stores, &group, || machines.len()).paced(&object.spec.pacing);
    let now = ctx.clock.now_seconds();
    let pace = pace_of(stores, &group, &object.spec.pacing);
    record_rollout(stores, &group, &pace, &mut next, (machines, speakers, counted), now);
    next = forget_old_answer(&next, owner_generation(stores, &group), now);
    next = forget_replaced(
        &next,
        LiveOwner::of(stores, &group).is_some_and(|owner| owner.is_up_to_date()),
    );
    if let Ok(mut policy) = live_policy(ctx, &group) {
        let mut asked = machines.iter().zip(speakers);
        policy.not_understood = policy
            .not_understood
            .or_else(|| asked.find_map(|(machine, update)| machine_complaint(machine, *update)));
        next = show_policy(&next, &policy, now);
    }
    summarise(&next, limits, &members, outside, object.metadata.generation, now)
}

/// The bundle that the tasks of a group ask for.
pub(crate) fn bundle_of_tasks(stores: &Stores, group: &Group) -> Option<GroupBundle> {
    let tasks = stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &group.key);
    if tasks.is_empty() {
        return None;
    }
    let owner = LiveOwner::of(stores, group);
    let requested = owner.as_ref().and_then(|owner| owner.version().version());
    bundle_of(tasks.iter().map(AsRef::as_ref), requested)
}

/// Records what has become of the group's rollout.
fn record_rollout(
    stores: &Stores,
    group: &Group,
    pace: &Pace,
    next: &mut UpdateGroupStatus,
    (machines, speakers, counted): (&[Arc<Machine>], &[Option<&NodeUpdate>], &[&NodeUpdate]),
    now: Timestamp,
) {
    for update in counted {
        record_recovery(next, update);
        if let Some(failure) = failure_of(update)
            && let Some(rollout) = RolloutKey::of(&update.spec, pace)
        {
            record_failure(next, pace.owner_generation, &rollout, failure);
        }
    }
    let waiting = speakers.iter().flatten().filter(|update| awaits_approval(update));
    let rollouts: Vec<_> =
        waiting.filter_map(|update| RolloutKey::of(&update.spec, pace)).collect();
    record_approval(next, pace, rollouts.iter(), now);
    let is_up_to_date = LiveOwner::of(stores, group).is_some_and(|owner| owner.is_up_to_date());
    // Upkeep belongs to no rollout of the owner.
    let (upkeep, others): (Vec<&NodeUpdate>, Vec<&NodeUpdate>) =
        speakers.iter().flatten().partition(|update| update.spec.is_upkeep());
    let is_of_upkeep = |slot: &Slot| {
        upkeep.iter().any(|update| update.metadata.name.as_ref() == Some(&slot.node_update))
    };
    let all_ended = others.iter().all(|update| update.phase().is_final());
    let none_asked = !machines.iter().any(|machine| update_in_progress(machine.as_ref()));
    let mut held = next.slots.iter().chain(&next.undisturbed);
    if is_up_to_date && all_ended && none_asked && held.all(is_of_upkeep) {
        record_end(next, pace, now);
    }
}

/// Emits an event on the owner for an invalid annotation, once per change.
async fn announce_invalid_policy(
    ctx: &Context,
    object: &UpdateGroup,
    status: &UpdateGroupStatus,
    next: &UpdateGroupStatus,
) {
    let policy_condition = |status: &UpdateGroupStatus| {
        conditions::get(&status.conditions, POLICY_UNDERSTOOD).cloned()
    };
    let (before, after) = (policy_condition(status), policy_condition(next));
    let Some(after) = after.filter(|after| after.status == "False") else {
        return;
    };
    if before.as_ref().is_some_and(|before| before.message == after.message) {
        return;
    }
    let group = Group { key: ObjectKey::of(object), spec: object.spec.clone() };
    let occurrence = before.map_or_else(
        || "first".to_owned(),
        |before| format!("after {} of {}", before.status, before.last_transition_time.0),
    );
    let announcement = Announcement {
        about: owner_object(&ctx.stores, &group),
        type_: EventType::Warning,
        reason: "PolicyNotUnderstood".to_owned(),
        message: after.message,
        occurrence,
    };
    ctx.recorder.announce(&announcement).await;
}

/// Whether a slot is orphaned: its Machine is gone, or its NodeUpdate is gone and the node is ready
/// and not cordoned by Refit.
fn is_free(ctx: &Context, group: &Group, slot: &Slot) -> bool {
    let stores: &Stores = &ctx.stores;
    let namespace = &group.key.namespace;
    let machine = stores.machines.get(&ObjectKey::new(namespace, &slot.machine));
    let Some(machine) =
        machine.filter(|machine| MachineUid::of(&machine.metadata) == slot.machine_uid)
    else {
        return true;
    };
    let updates = node_updates_of_machine(stores, &ObjectKey::of(machine.as_ref()));
    if updates.iter().any(|update| update.spec.machine_ref.uid == slot.machine_uid) {
        return false;
    }
    let Some(node) = node_name(&machine) else {
        return false;
    };
    let Some(view) = ctx.workload_index.view(&cluster_key(&machine)) else {
        return false;
    };
    let node = view.nodes.get(&ObjectKey::new("", &*node));
    let is_current = view.synced() && !view.is_unreachable();
    is_current && node.is_some_and(|node| node.view.ready && !node.view.cordoned_by_us())
}
