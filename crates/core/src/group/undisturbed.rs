//! Machines of a group that are updated without being disturbed: paced like any other, without slots.

use refit_kinds::refit::{Slot, UpdateGroupStatus};

use super::{Claim, Turn, pacing};
use crate::report::Refusal;

/// How many machines of a group are updated at a time without being disturbed. They are no outage, but what is wrong with a
/// change shows before it is on all of them.
pub const UNDISTURBED_AT_ONCE: usize = 10;

/// Enters a Machine that is updated without being disturbed: its group's pacing decides as about any other, but it takes no
/// slot, and it does not matter how many others are available.
pub fn enter(status: &UpdateGroupStatus, wanted: &Slot, turn: &Turn<'_>) -> Result<Claim, Refusal> {
    let is_own = |one: &Slot| one.machine_uid == wanted.machine_uid;
    let entered = status.undisturbed.iter().find(|one| is_own(one));
    if entered.is_some_and(|one| one.node_update == wanted.node_update) {
        return Ok(Claim::Held);
    }
    if let Some(first) = status.undisturbed.first().filter(|_| entered.is_none())
        && status.undisturbed.len() >= UNDISTURBED_AT_ONCE
    {
        return Err(Refusal::OutOfTurn { machine: first.machine.clone() });
    }
    pacing::may_begin(status, turn, wanted.since.0)?;
    let mut next = status.clone();
    next.claims = next.claims.next();
    next.undisturbed.retain(|one| !is_own(one));
    next.undisturbed.push(Slot { claim: next.claims, ..wanted.clone() });
    next.undisturbed
        .sort_by(|a, b| (&a.machine, &a.machine_uid).cmp(&(&b.machine, &b.machine_uid)));
    next.waiting.retain(|waiting| waiting.machine != wanted.machine);
    pacing::record_begin(&mut next, turn, wanted.since.0);
    Ok(Claim::Take(next))
}

/// The status without this entry; `None` if there is no such entry.
pub fn leave(status: &UpdateGroupStatus, entry: &Slot) -> Option<UpdateGroupStatus> {
    status.undisturbed.contains(entry).then(|| {
        let mut next = status.clone();
        next.undisturbed.retain(|one| one != entry);
        next
    })
}

/// The same for a machine that has not begun after all.
pub fn leave_unused(status: &UpdateGroupStatus, entry: &Slot) -> Option<UpdateGroupStatus> {
    leave(status, entry).map(|mut next| {
        pacing::record_not_begun(&mut next, &entry.machine, entry.claim);
        next
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use refit_kinds::refit::{Origin, Pacing};

    use super::*;
    use crate::group::{Candidate, Pace, RolloutKey, slot};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn wanted(n: usize) -> Slot {
        slot(&format!("m-{n}"), &format!("uid-{n}").into(), &format!("m-{n}-1"), at(0))
    }

    fn entered(
        status: &UpdateGroupStatus,
        wanted: &Slot,
        pacing: &Pacing,
    ) -> Result<Claim, Refusal> {
        let pace = Pace {
            pacing: pacing.clone(),
            owner: "machinedeployment/md".into(),
            ..Pace::default()
        };
        let rollout = RolloutKey { origin: Origin::Hook, target: "v1.35.0".to_owned() };
        let candidate = Candidate {
            machine: &wanted.machine,
            machine_uid: &wanted.machine_uid,
            created: None,
            rollout: Some(&rollout),
        };
        enter(
            status,
            wanted,
            &Turn { pace: &pace, candidate, queue: &[], failures: &[], takes: None },
        )
    }

    fn took(status: &UpdateGroupStatus, wanted: &Slot, pacing: &Pacing) -> UpdateGroupStatus {
        match entered(status, wanted, pacing) {
            Ok(Claim::Take(next)) => next,
            other => panic!("{}: {other:?}", wanted.machine),
        }
    }

    #[test]
    fn ten_machines_are_updated_at_a_time_and_none_of_them_takes_a_slot() {
        let pacing = Pacing::default();
        let mut status = UpdateGroupStatus::default();
        for n in 0..UNDISTURBED_AT_ONCE {
            status = took(&status, &wanted(n), &pacing);
        }
        assert!(status.slots.is_empty());
        let refused = entered(&status, &wanted(10), &pacing);
        assert_eq!(refused, Err(Refusal::OutOfTurn { machine: "m-0".into() }));
        assert_eq!(entered(&status, &wanted(3), &pacing), Ok(Claim::Held));
        // The next update of a machine takes over its entry.
        let retry = Slot { node_update: "m-3-2".into(), ..wanted(3) };
        let next = took(&status, &retry, &pacing);
        assert_eq!(next.undisturbed.len(), UNDISTURBED_AT_ONCE);
        assert_eq!(leave(&next, &status.undisturbed[3]), None, "another update has entered");
        let entry = next.undisturbed[3].clone();
        let left = leave(&next, &entry).unwrap();
        assert_eq!(took(&left, &wanted(10), &pacing).undisturbed.len(), UNDISTURBED_AT_ONCE);
    }

    #[test]
    fn a_machine_that_is_not_disturbed_counts_in_its_rollout() {
        let pacing = Pacing { pause_after: Some(1), ..Pacing::default() };
        let first = took(&UpdateGroupStatus::default(), &wanted(0), &pacing);
        let refused = entered(&first, &wanted(1), &pacing);
        assert_eq!(
            refused,
            Err(Refusal::OutOfTurn { machine: "m-0".into() }),
            "nothing to look at yet"
        );
        let entry = &first.undisturbed[0];
        let done = leave(&first, entry).unwrap();
        let refused = entered(&done, &wanted(1), &pacing);
        assert!(matches!(refused, Err(Refusal::ApprovalRequired { begun: 1, .. })), "{refused:?}");
        let not_begun = leave_unused(&first, entry).unwrap();
        assert!(entered(&not_begun, &wanted(1), &pacing).is_ok());
    }
}
