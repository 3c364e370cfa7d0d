//! Claims of the tests.

use refit_kinds::refit::Origin;

use super::*;

/// Claims a slot of a group that is paced by nothing but its limits.
pub(super) fn claim(
    status: &UpdateGroupStatus,
    wanted: &Slot,
    limits: Limits,
    others: &[Other],
) -> Result<Claim, Refusal> {
    let pace = Pace::default();
    let rollout = RolloutKey { origin: Origin::Hook, target: "v1.35.0".to_owned() };
    let candidate = Candidate {
        machine: &wanted.machine,
        machine_uid: &wanted.machine_uid,
        created: None,
        rollout: Some(&rollout),
    };
    super::claim(
        status,
        wanted,
        limits,
        others,
        &Turn { pace: &pace, candidate, queue: &[], failures: &[], takes: None },
    )
}
