//! How many machines of a group may be down, and which: one object, claimed by compare-and-swap.
//!
//! Everything here turns one [`UpdateGroupStatus`] into the next. The caller writes the result with
//! the resourceVersion that it read, so only one of two concurrent claims succeeds. This enforces
//! the limit, not a Lease or a single replica
//! (`docs/adr/0004-a-lease-a-fence-and-compare-and-swap.md`).

mod annotations;
mod durations;
mod exception;
mod pacing;
mod summary;
mod undisturbed;
mod unrequested;

#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod pacing_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{ClaimId, MachineUid, Slot, UpdateGroupStatus};

pub use annotations::{OwnerPacing, machine_complaint};
pub use durations::{MAX_DURATIONS, expected_rest, median_seconds, record_durations};
pub use exception::{Exception, exception_of};
pub use pacing::{
    Candidate, Pace, Queued, RolloutKey, Turn, awaits_approval, failure_of, is_window_open,
    outside_of_windows, owner_argument, present_rollout, record_approval, record_end,
    record_failure, record_recovery, record_success, request_of, rollout_number, start_refusal,
    stopped_rollout, waits_for_turn,
};
pub use summary::{
    BLOCKED, COVERED, ControlPlane, Member, Outside, POLICY_UNDERSTOOD, PROGRESSING,
    REASON_UNCOVERED, answer_blocks, forget_old_answer, forget_replaced, show_policy, summarise,
};
pub use undisturbed::{UNDISTURBED_AT_ONCE, enter, leave, leave_unused};
pub use unrequested::{REASON_NOT_REQUESTED, Rollout, observed_version, runs_another_version};

use crate::report::Refusal;

/// Limits on unavailable machines, from the group's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Desired number of machines.
    pub replicas: i32,
    /// Maximum number of unavailable machines.
    pub max_unavailable: i32,
}

impl Limits {
    /// The limits of a control plane: one member at a time, whatever its size.
    pub fn control_plane(replicas: i32) -> Self {
        Self { replicas, max_unavailable: 1 }
    }

    /// The limits of updates that Cluster API does not request: no surge machine stands in for another, so that with
    /// `maxUnavailable` 0 one machine is down at a time.
    #[must_use]
    pub fn without_surge(self) -> Self {
        Self { max_unavailable: self.max_unavailable.max(1), ..self }
    }

    /// How many machines may be disturbed at once.
    ///
    /// At least one: with `maxUnavailable` 0, a surge machine stands in for the disturbed one.
    pub fn slots(self) -> i32 {
        self.max_unavailable.max(1)
    }

    /// Whether a group with this number of Machines has fewer than its owner asks for.
    pub fn lacks(self, present: usize) -> bool {
        i32::try_from(present).is_ok_and(|present| present < self.replicas)
    }

    /// How many other machines must be available while one is disturbed.
    pub fn others_needed(self) -> i32 {
        self.replicas.saturating_sub(self.max_unavailable.max(0)).max(0)
    }
}

/// Another machine of the group, as counted by a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// uid of the Machine.
    pub machine_uid: MachineUid,
    /// Whether it is available, regardless of slots.
    pub available: bool,
}

/// How to release a slot that was never used.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one per decision, and it is written at once"
)]
pub enum GiveBack {
    /// First mark the host's plan with this claim: a controller that is about to open the plan for
    /// the claim then fails.
    Mark(ClaimId),
    /// Write this status over the one that was read; the slot is then free.
    Release(UpdateGroupStatus),
}

/// Result of a claim that was not refused.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one per decision, and it is written at once"
)]
pub enum Claim {
    /// The slot is held already.
    Held,
    /// Write this status over the one that was read; the slot is then held.
    Take(UpdateGroupStatus),
}

/// Whether this Machine holds a slot.
pub fn holds(status: &UpdateGroupStatus, machine_uid: &MachineUid) -> bool {
    status.slots.iter().any(|slot| slot.machine_uid == *machine_uid)
}

/// Claims a slot for one Machine.
///
/// A slot that an older NodeUpdate of the same Machine still holds is taken over: the Machine is
/// down already, and only this update can repair it. A machine that holds a slot never counts as
/// available, whatever its conditions are. The group's pacing decides about every other claim.
///
/// `wanted.claim` is the last claim that was released: a slot whose claim is not newer is claimed
/// again.
pub fn claim(
    status: &UpdateGroupStatus,
    wanted: &Slot,
    limits: Limits,
    others: &[Other],
    turn: &Turn<'_>,
) -> Result<Claim, Refusal> {
    if let Some(held) = status.slots.iter().find(|s| s.machine_uid == wanted.machine_uid) {
        let good = held.claim > wanted.claim || wanted.claim == ClaimId::default();
        return Ok(if good && held.node_update == wanted.node_update {
            Claim::Held
        } else {
            Claim::Take(with_slot(status, wanted))
        });
    }
    let taken = i32::try_from(status.slots.len()).unwrap_or(i32::MAX);
    if let Some(holder) = status.slots.first()
        && taken >= limits.slots()
    {
        return Err(Refusal::SlotBusy { machine: holder.machine.clone() });
    }
    pacing::may_begin(status, turn, wanted.since.0)?;
    enough_others(status, limits, others)?;
    let mut next = with_slot(status, wanted);
    pacing::record_begin(&mut next, turn, wanted.since.0);
    Ok(Claim::Take(next))
}

/// Whether enough other machines are available for one more to be disturbed.
pub fn enough_others(
    status: &UpdateGroupStatus,
    limits: Limits,
    others: &[Other],
) -> Result<(), Refusal> {
    let available =
        others.iter().filter(|other| other.available && !holds(status, &other.machine_uid)).count();
    let available = i32::try_from(available).unwrap_or(i32::MAX);
    let needed = limits.others_needed();
    if available < needed {
        let lacks_machines = limits.lacks(others.len() + 1);
        return Err(Refusal::GroupUnavailable { available, needed, lacks_machines });
    }
    Ok(())
}

/// The status with this slot, regardless of the limit: for a machine that is down already.
pub fn with_slot(status: &UpdateGroupStatus, slot: &Slot) -> UpdateGroupStatus {
    let mut next = status.clone();
    next.slots.retain(|s| s.machine_uid != slot.machine_uid);
    next.claims = next.claims.max(slot.claim).next();
    next.slots.push(Slot { claim: next.claims, ..slot.clone() });
    next.slots.sort_by(|a, b| (&a.machine, &a.machine_uid).cmp(&(&b.machine, &b.machine_uid)));
    next.waiting.retain(|waiting| waiting.machine != slot.machine);
    next
}

/// The status without the slot of this Machine; `None` if it holds none.
pub fn release(status: &UpdateGroupStatus, machine_uid: &MachineUid) -> Option<UpdateGroupStatus> {
    holds(status, machine_uid).then(|| {
        let mut next = status.clone();
        next.slots.retain(|slot| slot.machine_uid != *machine_uid);
        next
    })
}

/// Releases the slot of a Machine that was not disturbed under it; `None` if the Machine holds
/// none.
///
/// Slot and plan are two objects, and another controller may be about to open the plan for this
/// very slot. So the plan is marked first: opening it is a compare-and-swap on the plan and
/// requires a claim newer than the mark. A newer claim is a write to the group, on which the
/// release is a compare-and-swap. One of the two fails, however old the views are
/// (`docs/adr/0004`).
pub fn give_back(
    status: &UpdateGroupStatus,
    machine_uid: &MachineUid,
    returned_claim: ClaimId,
) -> Option<GiveBack> {
    let held = status.slots.iter().find(|slot| slot.machine_uid == *machine_uid)?;
    if held.claim > returned_claim {
        return Some(GiveBack::Mark(held.claim));
    }
    let (machine, claim) = (held.machine.clone(), held.claim);
    release(status, machine_uid).map(|mut next| {
        pacing::record_not_begun(&mut next, &machine, claim);
        GiveBack::Release(next)
    })
}

/// The slot of a Machine for one of its NodeUpdates.
pub fn slot(machine: &str, machine_uid: &MachineUid, node_update: &str, now: Timestamp) -> Slot {
    Slot {
        machine: machine.to_owned(),
        machine_uid: machine_uid.clone(),
        node_update: node_update.to_owned(),
        since: Time(now),
        claim: ClaimId::default(),
    }
}
