//! What a task with an option shows.

use std::collections::BTreeMap;

use refit_kinds::{
    canonical::K8SD,
    refit::{NodeUpdate, TaskCounts, TaskFailure, TaskPhase, UpgradeTaskStatus},
};

use super::{
    Lock, OptionMember, OptionSeen, OptionState,
    actions::{has_stopped, is_done},
};
use crate::task::status::{
    MAX_FAILURE_MESSAGE, Refused, Shown, hindered, keep_newest, names, obstructed, show,
};

/// Reason of a failure after which another attempt follows.
const REFRESH_FAILED: &str = "RefreshFailed";
/// Reason of a failure without a NodeUpdate.
const REFUSED: &str = "RequestRefused";

/// The status of a task with an option. `refused` are the objects that could not be written, by kind and name.
pub fn option_status(
    seen: &OptionSeen<'_>,
    refused: &BTreeMap<String, Refused>,
) -> UpgradeTaskStatus {
    let old = seen.task.status.clone().unwrap_or_default();
    let generation = seen.task.metadata.generation;
    let mut next = UpgradeTaskStatus { observed_generation: generation, ..old.clone() };
    if old.phase.has_ended() {
        return next;
    }
    let members = seen.members();
    next.counts = Some(counts(&members));
    next.failures = failures(&members);
    let shown = shown(seen, &members, refused, &next);
    show(&mut next, seen.now, shown);
    next
}

fn counts(members: &[(&OptionMember<'_>, OptionState)]) -> TaskCounts {
    let mut counts = TaskCounts::default();
    for (_, state) in members {
        counts.total += 1;
        match state {
            OptionState::Updated => counts.updated += 1,
            OptionState::Updating => counts.updating += 1,
            OptionState::Failed => counts.failed += 1,
            OptionState::Excepted(_) => counts.excepted += 1,
            OptionState::Waiting
            | OptionState::Overruled
            | OptionState::ShownInProgress
            | OptionState::Deleting => {
                counts.waiting += 1;
            }
        }
    }
    counts
}

fn failures(members: &[(&OptionMember<'_>, OptionState)]) -> Vec<TaskFailure> {
    let failed = members.iter().filter(|(_, state)| *state == OptionState::Failed);
    let mut failures: Vec<TaskFailure> = failed.map(|(member, _)| failure(member)).collect();
    keep_newest(&mut failures);
    failures
}

fn failure(member: &OptionMember<'_>) -> TaskFailure {
    let machine = member.name;
    let Some(update) = member.update else {
        return TaskFailure {
            machine: machine.to_owned(),
            node_update: String::new(),
            reason: REFUSED.to_owned(),
            message: format!("the request was refused: see the events of Machine {machine}"),
            at: None,
        };
    };
    failure_of(machine, update)
}

fn failure_of(machine: &str, update: &NodeUpdate) -> TaskFailure {
    let status = update.status.clone().unwrap_or_default();
    let refresh = status.part(K8SD).refresh.unwrap_or_default();
    let (reason, message, at) = if update.phase().is_final() {
        (status.failure_reason, status.failure_message, status.finished_at)
    } else {
        (REFRESH_FAILED.to_owned(), refresh.last_failure, refresh.last_failed_at)
    };
    TaskFailure {
        machine: machine.to_owned(),
        node_update: update.metadata.name.clone().unwrap_or_default(),
        reason,
        message: message.chars().take(MAX_FAILURE_MESSAGE).collect(),
        at,
    }
}

fn shown(
    seen: &OptionSeen<'_>,
    members: &[(&OptionMember<'_>, OptionState)],
    refused: &BTreeMap<String, Refused>,
    next: &UpgradeTaskStatus,
) -> Shown {
    let counts = next.counts.unwrap_or_default();
    let progress = format!("{} of {} Machines have {}", counts.updated, counts.total, seen.option);
    let begun = seen.phase() != TaskPhase::Pending || counts.updating + counts.failed > 0;
    let at_work = if begun { TaskPhase::Ongoing } else { TaskPhase::Pending };
    let waits = |reason, message| (at_work, reason, message);
    if seen.stops() {
        return if has_stopped(seen) {
            (TaskPhase::Aborted, "Aborted", "the task was stopped on request".to_owned())
        } else {
            let message = format!("{progress}; the task ends with those that are under way");
            (TaskPhase::Ongoing, "Aborting", message)
        };
    }
    if let Some(obstacle) = &seen.obstacle {
        return obstructed(obstacle, waits);
    }
    let Some(owner) = &seen.owner else {
        let message = "the owner is not known: it does not exist, or its kind cannot be read";
        return waits("OwnerUnknown", message.to_owned());
    };
    if owner.deleting {
        return (TaskPhase::Failed, "OwnerDeleting", "the owner is being deleted".to_owned());
    }
    if let Lock::Unreadable(why) = &seen.lock {
        return (TaskPhase::Failed, "LockUnreadable", why.clone());
    }
    if let Some(shown) =
        hindered(refused, |message| waits("Waiting", format!("{progress}. {message}")))
    {
        return shown;
    }
    if let Some(missing) = seen.missing() {
        let message =
            format!("the owner has no Machine {missing}: delete this task, and create another one");
        return (TaskPhase::Failed, "MachineMissing", message);
    }
    if is_done(seen) {
        return (TaskPhase::Complete, "Complete", progress);
    }
    let failed = members.iter().filter(|(_, state)| *state == OptionState::Failed);
    if let Some(names) = names(failed.clone().map(|(member, _)| member.name)) {
        let is_final = |(member, _): &(&OptionMember<'_>, OptionState)| {
            member.update.is_none_or(|update| update.phase().is_final())
        };
        return if failed.clone().all(is_final) {
            let message = format!(
                "{progress}; {names} failed. Ways out: refit retry, another option, or delete the Machine; the task \
                 goes on by itself"
            );
            (TaskPhase::Failed, "MachinesFailed", message)
        } else {
            (TaskPhase::Ongoing, "Retrying", format!("{progress}; {names} failed and tries again"))
        };
    }
    if counts.updating == 0 && !owner.is_ready {
        let message = format!("{progress}; waits until all replicas of the owner are ready");
        return waits("OwnerNotReady", message);
    }
    if counts.updating == 0 && seen.is_paced_to_a_halt {
        return waits("Paced", format!("{progress}; the group's pacing lets none begin"));
    }
    let mut shown = members.iter().filter(|(_, state)| *state == OptionState::ShownInProgress);
    if counts.updating == 0
        && let Some((member, _)) = shown.next()
    {
        let message = format!(
            "{progress}; Machine {} shows an upgrade that nothing requests: remove its annotation {}",
            member.name, seen.keys.status
        );
        return waits("ShownInProgress", message);
    }
    waits("Upgrading", progress)
}
