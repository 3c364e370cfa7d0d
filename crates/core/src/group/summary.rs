//! What an UpdateGroup shows: who waits, and whether it goes on.

use jiff::Timestamp;
use refit_api::{
    conditions,
    refit::{Blocker, Phase, UpdateGroupStatus, Waiting},
};

use super::Limits;

/// Condition: a machine of the group is being updated.
pub const PROGRESSING: &str = "Progressing";
/// Condition: something that does not end by itself keeps the group from going on.
pub const BLOCKED: &str = "Blocked";
/// Reason of [`BLOCKED`]: a change that no updater covers.
pub const REASON_UNCOVERED: &str = "Uncovered";

/// The newest NodeUpdate of one Machine of the group.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Name of the Machine.
    pub machine: &'a str,
    /// How far its newest NodeUpdate is.
    pub phase: Phase,
    /// What keeps it.
    pub blocked_by: &'a [Blocker],
}

/// The status as it should be shown: limit, who waits, conditions. Slots, durations and what the
/// hooks wrote stay.
pub fn summarise(
    status: &UpdateGroupStatus,
    limits: Limits,
    members: &[Member<'_>],
    generation: Option<i64>,
    now: Timestamp,
) -> UpdateGroupStatus {
    let mut next = status.clone();
    next.limit = limits.slots();
    next.observed_generation = generation;
    next.waiting = members.iter().filter_map(waiting).collect();
    let running = members
        .iter()
        .filter(|member| !member.phase.is_final() && member.phase > Phase::Waiting)
        .count();
    let progressing = match running {
        0 => ("False", "Idle", "no machine is being updated".to_owned()),
        1 => ("True", "Updating", "1 machine is being updated".to_owned()),
        n => (
            "True",
            "Updating",
            format!("{n} machines are being updated"),
        ),
    };
    conditions::set(
        &mut next.conditions,
        now,
        generation,
        (PROGRESSING, progressing.0, progressing.1, &progressing.2),
    );
    let (state, reason, message) = blocked(&next, members);
    conditions::set(
        &mut next.conditions,
        now,
        generation,
        (BLOCKED, state, &reason, &message),
    );
    next
}

fn waiting(member: &Member<'_>) -> Option<Waiting> {
    let blocker = member
        .blocked_by
        .first()
        .filter(|_| member.phase <= Phase::Staging)?;
    Some(Waiting {
        machine: member.machine.to_owned(),
        reason: blocker.reason.clone(),
        message: blocker.message.clone(),
    })
}

fn blocked(status: &UpdateGroupStatus, members: &[Member<'_>]) -> (&'static str, String, String) {
    let replaced = conditions::get(&status.conditions, "Covered")
        .is_some_and(|condition| condition.reason == "UncoveredReplace");
    if !status.uncovered.is_empty() && !replaced {
        let message = status.uncovered.join("\n");
        return ("True", REASON_UNCOVERED.to_owned(), message);
    }
    let failed = members.iter().find(|member| {
        member.phase == Phase::Failed
            && status
                .slots
                .iter()
                .any(|slot| slot.machine == member.machine)
    });
    if let Some(failed) = failed {
        let message = format!(
            "the update of {} failed, and it is not available",
            failed.machine
        );
        return ("True", conditions::REASON_FAILED.to_owned(), message);
    }
    let stuck = members
        .iter()
        .filter(|member| member.phase <= Phase::Staging || member.phase == Phase::Draining)
        .flat_map(|member| {
            member
                .blocked_by
                .iter()
                .map(move |blocker| (member, blocker))
        })
        .find(|(_, blocker)| !ends_by_itself(status, blocker));
    match stuck {
        Some((member, blocker)) => {
            let message = format!("{}: {}", member.machine, blocker.message);
            ("True", blocker.reason.clone(), message)
        }
        None => ("False", "NotBlocked".to_owned(), String::new()),
    }
}

/// Whether the group's own progress ends a wait.
fn ends_by_itself(status: &UpdateGroupStatus, blocker: &Blocker) -> bool {
    match blocker.reason.as_str() {
        "SlotBusy" | "OlderUpdateUnfinished" | "OlderPlanRunning" | "GroupNotReady" => true,
        "GroupUnavailable" | "ControlPlaneUnhealthy" => !status.slots.is_empty(),
        _ => false,
    }
}
