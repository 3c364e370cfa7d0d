//! The next writes of a task for one group.

use std::cmp::Reverse;

use refit_kinds::{
    refit::{ExceptionRule, NodeUpdate, Owner, PacingOrder, Phase, Stage},
    version::KubernetesVersion,
};

use super::{
    GroupSeen, Member, MemberState, OwnerSeen, Paused, SpecState, member::is_for, sets::SetWrite,
};
use crate::ask::is_stopping;

/// How many Machines are marked at once, so that other work has its turn.
const MARKS_AT_ONCE: usize = 100;

/// A write of a task, or several that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let the task be deleted only after its end.
    AddFinalizer,
    /// Pause the owner.
    Pause,
    /// Set the owner's version.
    SetVersion(KubernetesVersion),
    /// Write the replicas of a MachineSet.
    Sets(SetWrite),
    /// Write on a Machine that the task is for it, and that it waits.
    Mark(String),
    /// Request what the Machine lacks: a NodeUpdate, or the write of what its update has reached.
    Advance {
        /// Name of the Machine.
        machine: String,
        /// Whether its MachineSet may hand it over now.
        may_hand_over: bool,
        /// Whether a NodeUpdate may be created.
        may_request: bool,
    },
    /// Stop a NodeUpdate.
    Stop(String),
    /// Remove from a Machine what the task has written on it.
    Unmark(String),
    /// Let Cluster API go on with the owner.
    Unpause,
    /// Let the task be deleted.
    RemoveFinalizer,
}

/// The next writes, in order. Later ones rest on earlier ones: an error ends them.
pub fn actions(seen: &GroupSeen<'_>) -> Vec<Action> {
    if seen.task.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
        // Without it, what the task has written would stay behind.
        let begins = !seen.stops() && !seen.phase().has_ended();
        return if begins { vec![Action::AddFinalizer] } else { Vec::new() };
    }
    if seen.phase().has_ended() || seen.stops() {
        return end(seen);
    }
    let Some(owner) = seen.owner.as_ref().filter(|_| seen.obstacle.is_none()) else {
        return Vec::new();
    };
    if owner.deleting {
        return end(seen);
    }
    if seen.is_via_machines() { via_machines(seen) } else { via_spec(seen, owner) }
}

fn via_spec(seen: &GroupSeen<'_>, owner: &OwnerSeen) -> Vec<Action> {
    if seen.owner_was_edited() {
        return Vec::new();
    }
    let version = seen.sets_version().filter(|_| !owner.of_topology);
    let set_version = version.map(|version| Action::SetVersion(version.clone()));
    match &owner.paused {
        // A task that was stopped has left it paused.
        Paused::ByTask(task) if task == seen.name() => {
            vec![set_version.unwrap_or(Action::Unpause)]
        }
        Paused::ByTask(_) => vec![Action::Pause],
        Paused::No | Paused::ByHold | Paused::ByOthers => set_version.into_iter().collect(),
    }
}

fn via_machines(seen: &GroupSeen<'_>) -> Vec<Action> {
    let Some(owner) = &seen.owner else { return Vec::new() };
    // A lone MachineSet replaces no Machine, whatever its template.
    let replaces = owner.owner != Owner::Set;
    let is_paused = match &owner.paused {
        Paused::ByOthers => true,
        // One that an older task has left paused is taken over, and so is one that would replace its only Machine.
        Paused::No | Paused::ByHold | Paused::ByTask(_) => owner.paused.is_by(seen.name()),
    };
    if replaces && !is_paused && !is_done(seen) {
        return vec![Action::Pause];
    }
    if seen.owner_was_edited() {
        let begun_late = seen.members().filter_map(|member| match member.state(seen.target()) {
            MemberState::Updating(update) if update.phase().is_undisturbed() => Some(update),
            MemberState::Updated
            | MemberState::Deleting
            | MemberState::Waiting
            | MemberState::Excepted(_)
            | MemberState::Updating(_)
            | MemberState::Reached
            | MemberState::Failed(_) => None,
        });
        return begun_late.filter_map(stop).collect();
    }
    if let Some(version) = seen.sets_version() {
        // The topology writes it, and would overwrite what the task writes.
        return if owner.of_topology {
            Vec::new()
        } else {
            vec![Action::SetVersion(version.clone())]
        };
    }
    if is_done(seen) {
        return settle(seen);
    }
    let sets = seen.sets.as_ref().and_then(super::SetsSeen::next_write).map(Action::Sets);
    if seen.sets.as_ref().is_some_and(|sets| sets.current.is_none()) {
        // What its Machines are to become is read from it.
        return sets.into_iter().collect();
    }
    let marks = seen.members().filter(|member| is_to_be_marked(seen, member));
    let marks = marks.take(MARKS_AT_ONCE).map(|member| Action::Mark(member.name.to_owned()));
    let updated =
        seen.members().filter(|member| is_updated(seen, member) && is_marked(seen, member));
    let unmarks = updated.map(|member| Action::Unmark(member.name.to_owned()));
    sets.into_iter().chain(marks).chain(unmarks).chain(advances(seen)).collect()
}

/// Whether nothing is left to do for any Machine of the task.
pub(super) fn is_done(seen: &GroupSeen<'_>) -> bool {
    seen.sets_version().is_none()
        && seen.members().all(|member| match member.state(seen.target()) {
            MemberState::Updated
            | MemberState::Deleting
            | MemberState::Excepted(ExceptionRule::Skip) => true,
            MemberState::Waiting
            | MemberState::Excepted(ExceptionRule::Hold)
            | MemberState::Updating(_)
            | MemberState::Reached
            | MemberState::Failed(_) => false,
        })
}

fn is_updated(seen: &GroupSeen<'_>, member: &Member<'_>) -> bool {
    matches!(member.state(seen.target()), MemberState::Updated)
}

fn is_marked(seen: &GroupSeen<'_>, member: &Member<'_>) -> bool {
    member.task == Some(seen.name())
}

fn is_to_be_marked(seen: &GroupSeen<'_>, member: &Member<'_>) -> bool {
    let lacks_mark = !is_marked(seen, member);
    match member.state(seen.target()) {
        // A NodeUpdate for another goal speaks for it until the next one does.
        MemberState::Waiting => {
            lacks_mark || member.update.is_none() && !member.shows_that_it_waits()
        }
        MemberState::Updating(_) | MemberState::Reached | MemberState::Failed(_) => lacks_mark,
        MemberState::Updated | MemberState::Deleting | MemberState::Excepted(_) => false,
    }
}

/// The Machines for which something can be requested: those whose update has succeeded or is for something else, and
/// as many of the waiting ones as the window has room for.
fn advances(seen: &GroupSeen<'_>) -> Vec<Action> {
    let (mut under_way, mut waiting, mut now) = (0, Vec::new(), Vec::new());
    for member in seen.members().filter(|member| !member.is_updated_by_cluster_api) {
        match member.state(seen.target()) {
            MemberState::Updated
            | MemberState::Deleting
            | MemberState::Excepted(_)
            | MemberState::Failed(_) => {}
            // It keeps its slot: the others wait for it.
            MemberState::Waiting
                if member.update.is_some_and(|update| update.phase() == Phase::Failed) =>
            {
                under_way += 1;
                now.push(member);
            }
            MemberState::Waiting => waiting.push(member),
            MemberState::Reached => {
                under_way += 1;
                now.push(member);
            }
            MemberState::Updating(update) => {
                under_way += 1;
                if !is_for(update, seen.target()) {
                    now.push(member);
                }
            }
        }
    }
    let room = window(seen).saturating_sub(under_way);
    let next = in_order(waiting, seen.order).into_iter().take(room);
    let next = next.filter(|_| !seen.is_paced_to_a_halt);
    let may_hand_over = seen.sets.as_ref().is_none_or(super::SetsSeen::may_hand_over);
    let advance = |member: &Member<'_>| Action::Advance {
        machine: member.name.to_owned(),
        may_hand_over: may_hand_over || member.spec == SpecState::HandedOver,
        may_request: true,
    };
    now.into_iter().chain(next).map(advance).collect()
}

/// How many Machines may have an unfinished NodeUpdate: those that may be down, and as many that prepare meanwhile.
/// Members of a control plane follow one another.
fn window(seen: &GroupSeen<'_>) -> usize {
    match seen.owner.as_ref().map(|owner| owner.owner) {
        Some(Owner::ControlPlane) | None => 1,
        Some(Owner::Deployment | Owner::Set) => seen.slots.saturating_mul(2).max(1),
    }
}

/// The Machines in the order of the group's pacing; by default by age.
fn in_order<'a, 'b>(
    mut members: Vec<&'a Member<'b>>,
    order: Option<PacingOrder>,
) -> Vec<&'a Member<'b>> {
    match order {
        None | Some(PacingOrder::Oldest) => {
            members.sort_by_key(|member| (member.created, member.name));
        }
        Some(PacingOrder::Newest) => {
            members.sort_by_key(|member| (Reverse(member.created), member.name));
        }
        Some(PacingOrder::Name) => members.sort_by_key(|member| member.name),
    }
    members
}

/// The Machines are done: what the task has written is removed, and the owner goes on if it would replace none.
fn settle(seen: &GroupSeen<'_>) -> Vec<Action> {
    let marked = seen.machines.iter().filter(|member| is_marked(seen, member));
    let unmarks: Vec<Action> =
        marked.map(|member| Action::Unmark(member.name.to_owned())).collect();
    if !unmarks.is_empty() {
        return unmarks;
    }
    // After its end, the owner may be another task's.
    let is_ours = seen.owner.as_ref().is_some_and(|owner| owner.paused.is_by(seen.name()));
    let is_of_another = seen.owner.as_ref().is_some_and(|owner| match &owner.paused {
        Paused::ByTask(name) => name != seen.name(),
        Paused::No | Paused::ByHold | Paused::ByOthers => false,
    });
    if seen.phase().has_ended() && !is_ours || is_of_another {
        return Vec::new();
    }
    let sets = seen.sets.clone().filter(|_| seen.is_via_machines());
    let at_rest = sets.map(|sets| super::SetsSeen { ends: true, ..sets });
    if let Some(write) = at_rest.and_then(|sets| sets.next_write()) {
        return vec![Action::Sets(write)];
    }
    unpause(seen).into_iter().collect()
}

fn unpause(seen: &GroupSeen<'_>) -> Option<Action> {
    let owner = seen.owner.as_ref()?;
    let keeps_some = seen.members().any(|member| member.exception.is_some() && !member.is_extra);
    let may_go_on =
        owner.replaces_none || owner.deleting || seen.goes_on_by_policy() && !keeps_some;
    (owner.paused.is_by(seen.name()) && may_go_on).then_some(Action::Unpause)
}

/// The stop of a NodeUpdate that has not been stopped yet.
fn stop(update: &NodeUpdate) -> Option<Action> {
    let may_stop = update.spec.stage == Stage::Ongoing && !update.phase().is_final();
    let name = update.metadata.name.clone().unwrap_or_default();
    (may_stop && !is_stopping(update)).then_some(Action::Stop(name))
}

/// Whether what a Machine's update has reached is still what the owner requests, and can be written.
fn can_be_written(seen: &GroupSeen<'_>) -> bool {
    let is_wanted = seen.sets_version().is_none() && !seen.owner_was_edited();
    seen.owner.as_ref().is_some_and(|owner| !owner.deleting) && seen.obstacle.is_none() && is_wanted
}

/// The task has ended, or is to stop: what is under way is stopped or finished, then what the task has written is
/// removed.
fn end(seen: &GroupSeen<'_>) -> Vec<Action> {
    if is_to_be_paused(seen) {
        return vec![Action::Pause];
    }
    let mut stops = Vec::new();
    let mut under_way = false;
    for member in seen.members().filter(|member| is_marked(seen, member)) {
        match member.state(seen.target()) {
            MemberState::Updating(update) => {
                under_way = true;
                let is_finished = seen.finishes() && !update.phase().is_undisturbed();
                stops.extend(stop(update).filter(|_| !is_finished));
            }
            MemberState::Reached if can_be_written(seen) => {
                under_way = true;
                let may_hand_over = seen.sets.as_ref().is_none_or(super::SetsSeen::may_hand_over)
                    || member.spec == SpecState::HandedOver;
                let machine = member.name.to_owned();
                stops.push(Action::Advance { machine, may_hand_over, may_request: false });
            }
            MemberState::Reached
            | MemberState::Updated
            | MemberState::Deleting
            | MemberState::Waiting
            | MemberState::Excepted(_)
            | MemberState::Failed(_) => {}
        }
    }
    if under_way {
        let sets = seen.sets.as_ref().and_then(super::SetsSeen::next_write).map(Action::Sets);
        return sets.into_iter().chain(stops).collect();
    }
    let settled = settle(seen);
    let is_deleted = seen.task.metadata.deletion_timestamp.is_some();
    // Without the task, the MachineSets of an owner that stays paused would keep what is to be deleted.
    let is_paused = seen.owner.as_ref().is_some_and(|owner| owner.paused.is_by(seen.name()));
    let mut kept = seen.sets.iter().flat_map(super::SetsSeen::to_be_lowered);
    let keeps_some = is_paused && seen.is_via_machines() && kept.next().is_some();
    if settled.is_empty() && is_deleted && !keeps_some {
        return vec![Action::RemoveFinalizer];
    }
    settled
}

/// Whether a task that is to stop has stopped: nothing of its Machines is under way or left behind.
pub(super) fn has_stopped(seen: &GroupSeen<'_>) -> bool {
    let is_under_way =
        |member: &Member<'_>| is_marked(seen, member) || is_finished_by_cluster_api(seen, member);
    !seen.machines.iter().any(is_under_way) && !is_to_be_paused(seen)
}

/// Whether Cluster API would begin other Machines of a task that is to stop, or its topology would set the version.
fn is_to_be_paused(seen: &GroupSeen<'_>) -> bool {
    let Some(owner) = seen.owner.as_ref().filter(|_| works_through_spec(seen)) else {
        return false;
    };
    let is_next = |member: &Member<'_>| {
        !member.deleting
            && member.spec != SpecState::Current
            && !is_finished_by_cluster_api(seen, member)
    };
    let begins_others = match seen.sets_version() {
        None => seen.machines.iter().any(is_next),
        Some(_) => owner.of_topology && !owner.replaces_none,
    };
    owner.paused == Paused::No && !owner.deleting && begins_others
}

/// Whether Cluster API has begun the Machine of a task that is to stop: it has written the Machine's spec.
fn is_finished_by_cluster_api(seen: &GroupSeen<'_>, member: &Member<'_>) -> bool {
    works_through_spec(seen)
        && match member.state(seen.target()) {
            MemberState::Updating(_) => true,
            MemberState::Waiting | MemberState::Reached => member.is_updated_by_cluster_api,
            MemberState::Updated
            | MemberState::Deleting
            | MemberState::Excepted(_)
            | MemberState::Failed(_) => false,
        }
}

/// Whether a task that is to stop has left its Machines to Cluster API.
fn works_through_spec(seen: &GroupSeen<'_>) -> bool {
    let is_ending = seen.stops() && !seen.phase().has_ended();
    is_ending && !seen.is_via_machines() && seen.obstacle.is_none()
}
