//! Cleanup after an update has ended: condition, slot, guard.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use refit_cluster_api::kinds::{Machine, update_hook_pending, update_in_progress};
use refit_kinds::{
    keys,
    refit::{Gate, NodeUpdate, NodeUpdateStatus, PartState, Phase, Slot, UpdateGroupStatus},
};

use super::{
    adopt, guard,
    lost::HOST_LOST,
    member_missing,
    order::{is_newer, is_unfinished, releases, same_machine, speaks},
    seen::{NodeView, Workload},
    snapshot::{
        Announcement, Decision, Group, GroupState, ManagementWrite, Providers, Severity, Snapshot,
        WorkloadWrite, Write,
    },
    status::machine_condition,
    verify::verify,
    work::is_control_plane,
    work_order::WorkState,
};
use crate::group::{self, Pace, RolloutKey};

/// How often a slot that is kept for a machine that is down is rechecked without a trigger.
const KEPT_SLOT_RECHECK: Duration = Duration::from_mins(1);

/// Cleans up after an update that has ended; its phase never changes again.
///
/// The guard and the condition belong to the NodeUpdate that speaks for the Machine. A slot is
/// released by the NodeUpdate that claimed it, once the machine is available again or gone, however
/// the update ended.
pub(super) fn after_end(s: &Snapshot, status: NodeUpdateStatus, now: Timestamp) -> Decision {
    let speaks = speaks(s);
    let machine = s.own_machine();
    let mut status = status;
    let mut write = None;
    let mut announce = Vec::new();
    if speaks && let Some(machine) = machine {
        let mut changes = guard::remove(machine);
        changes.extend(requests_done(&s.update, &same_machine(s), machine, &status));
        changes.extend(left(machine, &status));
        if !changes.is_empty() {
            write = Some(Write::Management(ManagementWrite::Unguard(changes)));
        }
        write = write.or_else(|| machine_condition(s, &status, now));
        write = write.or_else(|| show_cordon(s, &mut status));
        write = write.or_else(|| returned(s, machine, &status, now)).or_else(|| include(s));
        write = write.or_else(|| adopt::again(s, machine, &status));
        if write.is_none() && is_withdrawn(s, machine) {
            announce.push(withdrawal(s, machine));
            write = Some(Write::Management(ManagementWrite::Withdraw));
        }
        if write.is_none()
            && let Some((announcement, next)) = member_missing::withdrawal(s, machine, &status)
        {
            announce.push(announcement);
            write = Some(Write::Management(next));
        }
    } else if let Some(machine) = machine {
        let changes = left_by_upkeep(&s.update, &same_machine(s), machine, &status);
        if !changes.is_empty() {
            write = Some(Write::Management(ManagementWrite::Unguard(changes)));
        }
    }
    // It kept nothing from others but their turn.
    if let Some((group, entry)) = own_entry(s, speaks) {
        let next = group::leave(&group.status, entry);
        let next = next.map(|next| recorded(s, (next, entry), &group.pace, &status, now));
        write = write.or(next.map(|next| Write::Management(ManagementWrite::ReleaseSlot(next))));
    }
    let mut requeue = None;
    if let Some((group, slot)) = held_slot(s, speaks) {
        if machine.is_none() || available_again(s, &status) {
            let next = released(s, group, slot, &status, now);
            write =
                write.or(next.map(|next| Write::Management(ManagementWrite::ReleaseSlot(next))));
        } else {
            requeue = Some(KEPT_SLOT_RECHECK);
        }
    }
    Decision { status, write, announce, blockers: Vec::new(), requeue }
}

/// What an ended update that was only upkeep removes from its Machine, for which another one speaks: nothing while
/// that one works there.
pub(super) fn left_by_upkeep<'a>(
    update: &NodeUpdate,
    others: &(impl Iterator<Item = &'a NodeUpdate> + Clone),
    machine: &Machine,
    status: &NodeUpdateStatus,
) -> guard::Changes {
    if !update.spec.is_upkeep() || others.clone().any(is_unfinished) {
        return guard::Changes::new();
    }
    let mut changes = guard::remove(machine);
    changes.extend(requests_done(update, others, machine, status));
    changes
}

/// The group without the slot, and with what its own update has shown.
fn released(
    s: &Snapshot,
    Group { status: held, pace, .. }: &Group,
    slot: &Slot,
    status: &NodeUpdateStatus,
    now: Timestamp,
) -> Option<UpdateGroupStatus> {
    let next = group::release(held, &s.update.spec.machine_ref.uid)?;
    Some(recorded(s, (next, slot), pace, status, now))
}

/// The group with what the update of a slot, or of an entry without one, has shown.
fn recorded(
    s: &Snapshot,
    (mut next, slot): (UpdateGroupStatus, &Slot),
    pace: &Pace,
    status: &NodeUpdateStatus,
    now: Timestamp,
) -> UpdateGroupStatus {
    let uid = &s.update.spec.machine_ref.uid;
    // A holder that is gone may have been upkeep.
    let is_holder = |one: &NodeUpdate| one.metadata.name.as_ref() == Some(&slot.node_update);
    let is_known = is_holder(&s.update) || same_machine(s).any(is_holder);
    if let Some(rollout) = RolloutKey::of(&s.update.spec, pace).filter(|_| is_known) {
        if status.phase == Phase::Succeeded {
            group::record_success(&mut next, uid, now);
            group::record_durations(&mut next, &status.steps);
        }
        // Whatever wakes by the release counts it.
        if let Some(failure) = group::failure_of(&s.update) {
            group::record_failure(&mut next, pace.owner_generation, &rollout, failure);
        }
    }
    next
}

/// Whether Cluster API still waits for an update that the Machine's owner no longer asks for, and
/// whose host runs what the owner asks for, as before. Cluster API notices neither by itself
/// (`docs/facts/machine.md#in-place-update`).
///
/// Every other Machine of the group must run that version, too: otherwise the way back is not
/// covered, and the Machine would be left with the new version in its spec and without an update.
fn is_withdrawn(s: &Snapshot, machine: &Machine) -> bool {
    let Workload::Seen(seen) = &s.workload else {
        return false;
    };
    let runs = seen.node().and_then(|node| node.kubelet_version.version());
    let Some(goal) = &s.update.spec.goal.kubernetes_version else {
        return false;
    };
    let with_all = |runs| match &s.group {
        GroupState::Present(group) => group.others.run.iter().all(|other| other.is(runs)),
        GroupState::None | GroupState::Missing => false,
    };
    is_awaited(machine)
        && machine.metadata.deletion_timestamp.is_none()
        && machine.spec.version.is(goal)
        && runs.is_some_and(|runs| runs != goal && s.owner_version.is(runs) && with_all(runs))
        && s.workers(seen).ended_rolled_back()
}

/// Whether Cluster API has requested an update and waits for it: it sets the goal before it sets the
/// hook.
pub(super) fn is_awaited(machine: &Machine) -> bool {
    let annotations = machine.metadata.annotations.as_ref();
    annotations
        .is_some_and(|all| all.contains_key(keys::UPDATE_IN_PROGRESS) && update_hook_pending(all))
}

fn withdrawal(s: &Snapshot, machine: &Machine) -> Announcement {
    let goal = s.update.spec.target();
    Announcement {
        severity: Severity::Normal,
        reason: "UpdateWithdrawn",
        message: format!(
            "The update of Machine {} to {goal} is withdrawn: its owner asks for the version that \
             it runs.",
            machine.metadata.name.as_deref().unwrap_or_default()
        ),
    }
}

/// Notes on the Machine which Updaters have left some of its fields as they are, once the update has
/// succeeded. A name stays until that Updater makes a change of the Machine.
fn left(machine: &Machine, status: &NodeUpdateStatus) -> Option<(String, Option<String>)> {
    let known = machine.metadata.annotations.as_ref().and_then(|all| all.get(keys::LEFT));
    let known: BTreeSet<&str> = known.map(|text| text.split(',').collect()).unwrap_or_default();
    let mut all = known.clone();
    for part in &status.parts {
        match part.state {
            PartState::Left => all.insert(&part.updater),
            PartState::Done | PartState::Unverified => all.remove(&*part.updater),
            PartState::Pending | PartState::Ongoing | PartState::Running | PartState::Verifying => {
                false
            }
        };
    }
    let is_new = status.phase == Phase::Succeeded && all != known;
    let note = (!all.is_empty()).then(|| Vec::from_iter(all).join(","));
    is_new.then(|| (keys::LEFT.to_owned(), note))
}

/// Removes the annotations that request another attempt once a later one than they name has succeeded, and the one
/// that aborts this NodeUpdate. An annotation that names this NodeUpdate requests a future attempt; one that names
/// upkeep is not done by an upgrade, nor the other way round.
pub(super) fn requests_done<'a>(
    update: &NodeUpdate,
    others: &(impl Iterator<Item = &'a NodeUpdate> + Clone),
    machine: &Machine,
    status: &NodeUpdateStatus,
) -> guard::Changes {
    let annotations = machine.metadata.annotations.as_ref();
    let is_done = |key: &&str| {
        let Some(asked) = annotations.and_then(|all| all.get(*key)) else { return false };
        let own = update.metadata.name.as_ref() == Some(asked);
        if **key == *keys::ABORT {
            return own;
        }
        let named = others.clone().find(|other| other.metadata.name.as_ref() == Some(asked));
        let is_later = named.is_none_or(|named| {
            let is_same_kind = named.spec.upkeep() == update.spec.upkeep();
            is_same_kind && is_newer(update, named)
        });
        !own && is_later && status.phase == Phase::Succeeded
    };
    let all = [keys::RETRY, keys::ADOPT, keys::ABORT];
    all.into_iter().filter(is_done).map(|key| (key.to_owned(), None)).collect()
}

/// The Machine's entry without a slot, if this NodeUpdate must remove it.
fn own_entry(s: &Snapshot, speaks: bool) -> Option<(&Group, &Slot)> {
    let group = match &s.group {
        GroupState::Present(group) => group,
        GroupState::None | GroupState::Missing => return None,
    };
    let mut entries = group.status.undisturbed.iter();
    let entry = entries.find(|entry| releases(&s.update, speaks, entry, same_machine(s)))?;
    Some((group, entry))
}

/// The Machine's slot, if this NodeUpdate must release it.
fn held_slot(s: &Snapshot, speaks: bool) -> Option<(&Group, &Slot)> {
    let group = match &s.group {
        GroupState::Present(group) => group,
        GroupState::None | GroupState::Missing => return None,
    };
    let mut slots = group.status.slots.iter();
    let slot = slots.find(|slot| releases(&s.update, speaks, slot, same_machine(s)))?;
    Some((group, slot))
}

/// Whether the machine serves again according to its Node: Ready, without Refit's cordon, and in an
/// expected version. An admin's cordon is the admin's choice and does not hold up the group.
fn available_again(s: &Snapshot, status: &NodeUpdateStatus) -> bool {
    let Workload::Seen(seen) = &s.workload else {
        return false;
    };
    let right_version = |node: &NodeView| {
        s.update.spec.goal.accepts(&node.kubelet_version)
            || status.phase != Phase::Succeeded
                && status.from_version.as_ref().is_some_and(|from| node.kubelet_version.is(from))
    };
    // A provider that has not ended may go on at any time.
    let is_busy = match &s.providers {
        Providers::Known(_) => s.workers(seen).has_busy_provider(),
        Providers::NotSynced | Providers::Unusable(_) => status
            .parts
            .iter()
            .any(|part| part.gate >= Some(Gate::Upgrade) && !part.state.has_ended()),
    };
    let is_back = |node: &NodeView| node.ready && !node.cordoned_by_us() && right_version(node);
    seen.node().is_some_and(is_back) && !is_busy
}

/// Makes the node of a lost host schedulable again after the host has returned and ended its plan by
/// itself. While Cluster API waits for the update, the next NodeUpdate does so.
fn returned(
    s: &Snapshot,
    machine: &Machine,
    status: &NodeUpdateStatus,
    now: Timestamp,
) -> Option<Write> {
    let Workload::Seen(seen) = &s.workload else {
        return None;
    };
    let lost = status.failure_reason == HOST_LOST && !update_in_progress(machine);
    let workers = s.workers(seen);
    workers.report().filter(|report| lost && report.state == WorkState::Succeeded)?;
    let goal = s.update.spec.goal.kubernetes_version.as_ref();
    verify(seen, &status.node_name, goal, is_control_plane(machine), Some(&workers), now).ok()?;
    seen.node()?.cordoned_by_us().then_some(Write::Workload(WorkloadWrite::Uncordon))
}

/// Returns a node to its load balancers once an operator uncordoned it after a failed update.
fn include(s: &Snapshot) -> Option<Write> {
    let Workload::Seen(seen) = &s.workload else {
        return None;
    };
    let node = seen.node()?;
    (!node.unschedulable && node.excluded_by.is_some())
        .then_some(Write::Workload(WorkloadWrite::Include))
}

/// After a failed update the node may still carry Refit's cordon; the status reports whether it
/// does.
fn show_cordon(s: &Snapshot, status: &mut NodeUpdateStatus) -> Option<Write> {
    let Workload::Seen(seen) = &s.workload else {
        return None;
    };
    let cordoned_by_us = seen.node()?.cordoned_by_us();
    (cordoned_by_us != status.cordoned_by_us).then(|| {
        status.cordoned_by_us = cordoned_by_us;
        Write::STATUS
    })
}
