//! The next writes of a task with an option.

use std::cmp::Reverse;

use refit_kinds::refit::{ExceptionRule, PacingOrder};

use super::{Lock, OptionMember, OptionSeen, OptionState};

/// A write of a task with an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionAction {
    /// Let the task be deleted only after its end.
    AddFinalizer,
    /// Take the lock of the control plane for this Machine.
    Lock(String),
    /// Release the lock.
    Unlock,
    /// Ask this Machine for the option.
    Ask(String),
    /// Ask it no longer.
    Withdraw(String),
    /// Let the task be deleted.
    RemoveFinalizer,
}

/// The next writes, in order. Later ones rest on earlier ones: an error ends them.
pub fn option_actions(seen: &OptionSeen<'_>) -> Vec<OptionAction> {
    let has_finalizer =
        seen.task.metadata.finalizers.as_ref().is_some_and(|known| !known.is_empty());
    let has_ended = seen.phase().has_ended();
    if !has_finalizer {
        // Without it, what the task asks for would stay behind.
        let begins = !seen.stops() && !has_ended;
        return if begins { vec![OptionAction::AddFinalizer] } else { Vec::new() };
    }
    if has_ended {
        let is_deleted = seen.task.metadata.deletion_timestamp.is_some();
        return if is_deleted { vec![OptionAction::RemoveFinalizer] } else { Vec::new() };
    }
    let Some(owner) = seen.owner.filter(|_| seen.obstacle.is_none() && !seen.stops()) else {
        return if seen.stops() { stop(seen) } else { Vec::new() };
    };
    if owner.deleting {
        return stop(seen);
    }
    match &seen.lock {
        Lock::Unused => asks(seen),
        Lock::Free => {
            let first = next(seen).first().map(|member| member.name.to_owned());
            let lock_and_ask =
                |name: String| [OptionAction::Lock(name.clone()), OptionAction::Ask(name)];
            first.into_iter().flat_map(lock_and_ask).collect()
        }
        Lock::Held(holder) if seen.may_unlock(holder) => vec![OptionAction::Unlock],
        Lock::Held(_) | Lock::Unreadable(_) => Vec::new(),
    }
}

fn asks(seen: &OptionSeen<'_>) -> Vec<OptionAction> {
    next(seen).iter().map(|member| OptionAction::Ask(member.name.to_owned())).collect()
}

/// The Machines that are asked next.
fn next<'s>(seen: &'s OptionSeen<'_>) -> Vec<&'s OptionMember<'s>> {
    if !seen.owner.is_some_and(|owner| owner.is_ready) || seen.is_paced_to_a_halt {
        return Vec::new();
    }
    let members = seen.members();
    let takes_a_place =
        |state: OptionState| state.is_under_way() || state == OptionState::ShownInProgress;
    let under_way = members.iter().filter(|(_, state)| takes_a_place(*state)).count();
    let is_next = |state| matches!(state, OptionState::Waiting | OptionState::Overruled);
    let mut waiting: Vec<_> = members.into_iter().filter(|(_, state)| is_next(*state)).collect();
    sort(&mut waiting, seen.order);
    let free = seen.at_once.saturating_sub(under_way);
    waiting.into_iter().take(free).map(|(member, _)| member).collect()
}

/// Those that are asked for something else come first: they may have begun.
fn sort(waiting: &mut [(&OptionMember<'_>, OptionState)], order: Option<PacingOrder>) {
    let is_fresh = |state: &OptionState| *state == OptionState::Waiting;
    waiting.sort_by(|(a, of_a), (b, of_b)| {
        let by_order = match order {
            None => a.uid.cmp(b.uid),
            Some(PacingOrder::Oldest) => a.created.cmp(&b.created),
            Some(PacingOrder::Newest) => Reverse(a.created).cmp(&Reverse(b.created)),
            Some(PacingOrder::Name) => a.name.cmp(b.name),
        };
        is_fresh(of_a).cmp(&is_fresh(of_b)).then(by_order).then(a.name.cmp(b.name))
    });
}

/// Whether nothing is left to do for any Machine of the task.
pub(super) fn is_done(seen: &OptionSeen<'_>) -> bool {
    let is_locked = match seen.lock {
        Lock::Held(_) | Lock::Unreadable(_) => true,
        Lock::Unused | Lock::Free => false,
    };
    let waits_for_machines = seen.machines.is_empty() && seen.lacks_machines;
    let is_done = |state: OptionState| match state {
        OptionState::Updated | OptionState::Excepted(ExceptionRule::Skip) => true,
        OptionState::Deleting
        | OptionState::Waiting
        | OptionState::Overruled
        | OptionState::ShownInProgress
        | OptionState::Excepted(ExceptionRule::Hold)
        | OptionState::Updating
        | OptionState::Failed => false,
    };
    !is_locked && !waits_for_machines && seen.members().into_iter().all(|(_, state)| is_done(state))
}

/// What is left of a task that stops: a Machine that is under way finishes its refresh, and begins no other.
fn stop(seen: &OptionSeen<'_>) -> Vec<OptionAction> {
    let option = seen.option.to_string();
    let is_asked = |member: &&OptionMember<'_>| {
        !member.deleting && member.annotations.get(seen.keys.upgrade_to) == Some(&option)
    };
    let members = seen.members();
    let asked = members.iter().map(|(member, _)| *member).filter(is_asked);
    let mut actions: Vec<OptionAction> =
        asked.map(|member| OptionAction::Withdraw(member.name.to_owned())).collect();
    if actions.is_empty()
        && let Lock::Held(holder) = &seen.lock
        && seen.may_unlock(holder)
    {
        actions.push(OptionAction::Unlock);
    }
    let is_deleted = seen.task.metadata.deletion_timestamp.is_some();
    if actions.is_empty() && is_deleted && has_stopped(seen) {
        actions.push(OptionAction::RemoveFinalizer);
    }
    actions
}

/// Whether a task that stops has nothing under way any more.
pub(super) fn has_stopped(seen: &OptionSeen<'_>) -> bool {
    // A deletion is not the task's.
    let is_at_rest = |state: OptionState| !state.is_under_way() || state == OptionState::Deleting;
    let is_locked = match &seen.lock {
        // A lock that cannot be read is left to a person.
        Lock::Held(_) => true,
        Lock::Unused | Lock::Free | Lock::Unreadable(_) => false,
    };
    !is_locked && seen.members().into_iter().all(|(_, state)| is_at_rest(state))
}
