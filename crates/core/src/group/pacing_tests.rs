use jiff::SignedDuration;
use proptest::prelude::*;
use refit_kinds::refit::{
    GroupFailure, MAX_FAILURES, MAX_FIRST_MACHINES, NodeUpdate, Pacing, PacingOrder,
};
use serde_json::json;

use super::*;

const GOAL: &str = "v1.35.0";
const OTHER: &str = "v1.36.0";
const MANY: Limits = Limits { replicas: 200, max_unavailable: 200 };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn uid(n: usize) -> MachineUid {
    format!("uid-{n}").into()
}

fn created(n: usize) -> Timestamp {
    at(i64::try_from(n).unwrap())
}

fn name(n: usize) -> String {
    format!("m-{n}")
}

/// A group that is paced.
#[derive(Clone, Debug)]
struct Paced {
    status: UpdateGroupStatus,
    pace: Pace,
    queue: Vec<Queued>,
}

impl Paced {
    fn new(pacing: Pacing) -> Self {
        let owner = "machinedeployment/md".to_owned();
        let pace = Pace { pacing, owner, owner_generation: Some(2) };
        Self { status: UpdateGroupStatus::default(), pace, queue: Vec::new() }
    }

    /// Lets a machine, which was created at the second of its number, begin.
    fn begin(&mut self, n: usize, target: &str, second: i64) -> Result<(), Refusal> {
        let (machine, machine_uid) = (name(n), uid(n));
        let wanted = slot(&machine, &machine_uid, &format!("{machine}-1"), at(second));
        let candidate = Candidate {
            machine: &machine,
            machine_uid: &machine_uid,
            created: Some(created(n)),
            target,
        };
        let turn = Turn { pace: &self.pace, candidate, queue: &self.queue };
        match claim(&self.status, &wanted, MANY.paced(&self.pace.pacing), &[], &turn) {
            Ok(Claim::Take(next)) => self.status = next,
            Ok(Claim::Held) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    fn succeed(&mut self, n: usize, second: i64) {
        let mut next = release(&self.status, &uid(n)).unwrap();
        record_success(&mut next, &uid(n), at(second));
        self.status = next;
    }

    fn fail(&mut self, n: usize, cause: &str, second: i64) {
        record_failure(&mut self.status, GOAL, failure(n, cause, second));
    }

    fn rollout(&self) -> &refit_kinds::refit::GroupRollout {
        self.status.rollout.as_ref().unwrap()
    }
}

fn failure(n: usize, cause: &str, second: i64) -> GroupFailure {
    GroupFailure {
        machine: name(n),
        machine_uid: uid(n),
        node_update: format!("m-{n}-{second}"),
        cause: cause.to_owned(),
        at: Time(at(second)),
    }
}

fn reason(outcome: Result<(), Refusal>) -> &'static str {
    outcome.map_or_else(|refusal| refusal.reason(), |()| "begins")
}

#[test]
fn a_group_without_pacing_records_its_rollout_and_refuses_nothing() {
    let mut group = Paced::new(Pacing::default());
    for n in 0..MAX_FIRST_MACHINES + 5 {
        assert_eq!(group.begin(n, GOAL, 0), Ok(()));
    }
    let rollout = group.rollout();
    assert_eq!((rollout.number, rollout.target.as_str()), (1, GOAL));
    assert_eq!(rollout.first_machines.len(), MAX_FIRST_MACHINES);
    assert_eq!(rollout.owner_generation, Some(2));
}

#[test]
fn pacing_lowers_the_limit_of_the_owner_and_never_raises_it() {
    let limits = |of_owner, paced| {
        let limits = Limits { replicas: 5, max_unavailable: of_owner };
        let paced = limits.paced(&Pacing { max_unavailable: paced, ..Pacing::default() });
        (paced.slots(), paced.others_needed())
    };
    assert_eq!(limits(3, Some(2)), (2, 3));
    assert_eq!(limits(3, Some(9)), (3, 2));
    assert_eq!(limits(0, Some(1)), (1, 5));
    assert_eq!(limits(3, None), (3, 2));
}

#[test]
fn after_the_first_machines_a_rollout_waits_for_the_approval_of_its_number() {
    let mut group = Paced::new(Pacing { pause_after: Some(2), ..Pacing::default() });
    assert_eq!(group.begin(1, GOAL, 0), Ok(()));
    assert_eq!(group.begin(2, GOAL, 0), Ok(()));
    let refusal = group.begin(3, GOAL, 0).unwrap_err();
    let expected = "waiting for the approval of rollout 1 to v1.35.0, of which 2 machines have \
        begun: refit approve machinedeployment/md";
    assert_eq!(refusal.sentence(), expected);
    group.succeed(1, 10);
    assert_eq!(reason(group.begin(3, GOAL, 20)), "ApprovalRequired");
    // One of the first may begin again.
    assert_eq!(group.begin(1, GOAL, 20), Ok(()));
    group.pace.pacing.approve = Some(2);
    assert_eq!(reason(group.begin(3, GOAL, 20)), "ApprovalRequired");
    group.pace.pacing.approve = Some(1);
    assert_eq!(group.begin(3, GOAL, 20), Ok(()));
    // The approval is for this rollout only.
    assert_eq!(group.begin(4, OTHER, 30), Ok(()));
    assert_eq!(group.begin(5, OTHER, 30), Ok(()));
    assert_eq!(reason(group.begin(6, OTHER, 30)), "ApprovalRequired");
    assert_eq!(group.rollout().number, 2);
}

#[test]
fn with_pause_after_zero_no_machine_begins_before_the_approval() {
    let mut group = Paced::new(Pacing { pause_after: Some(0), ..Pacing::default() });
    assert_eq!(reason(group.begin(1, GOAL, 0)), "ApprovalRequired");
    assert_eq!(group.status.rollout, None);
    group.pace.pacing.approve = Some(1);
    assert_eq!(group.begin(1, GOAL, 0), Ok(()));
    assert_eq!(group.begin(2, GOAL, 0), Ok(()));
}

#[test]
fn a_slot_that_is_returned_unused_leaves_room_for_another_first_machine() {
    let mut group = Paced::new(Pacing { pause_after: Some(1), ..Pacing::default() });
    group.begin(1, GOAL, 0).unwrap();
    assert_eq!(reason(group.begin(2, GOAL, 0)), "ApprovalRequired");
    let claim = group.status.slots[0].claim;
    let Some(GiveBack::Release(next)) = give_back(&group.status, &uid(1), claim) else {
        panic!("the claim is marked as returned");
    };
    group.status = next;
    assert_eq!(group.begin(2, GOAL, 0), Ok(()));
}

#[test]
fn the_next_machine_begins_once_the_last_one_has_been_back_long_enough() {
    let mut group = Paced::new(Pacing { soak_seconds: Some(600), ..Pacing::default() });
    group.begin(1, GOAL, 0).unwrap();
    // What has not been updated yet does not soak.
    group.begin(2, GOAL, 0).unwrap();
    group.succeed(1, 100);
    assert_eq!(group.begin(3, GOAL, 699), Err(Refusal::Soaking { until: at(700) }));
    assert_eq!(group.begin(3, GOAL, 700), Ok(()));
    // Another rollout does not wait for this one.
    group.succeed(2, 710);
    assert_eq!(group.begin(4, OTHER, 711), Ok(()));
}

#[test]
fn the_machines_that_wait_begin_in_the_order_of_the_group() {
    let queued = |n: usize| Queued { machine: name(n), created: Some(created(n)) };
    let first = |order, queue: &[usize]| {
        let mut group = Paced::new(Pacing { order, ..Pacing::default() });
        group.queue = queue.iter().copied().map(queued).collect();
        match group.begin(5, GOAL, 0) {
            Ok(()) => name(5),
            Err(refusal) => refusal.object(),
        }
    };
    assert_eq!(first(None, &[1, 9]), "m-5");
    assert_eq!(first(Some(PacingOrder::Oldest), &[9, 1]), "m-1");
    assert_eq!(first(Some(PacingOrder::Oldest), &[9]), "m-5");
    assert_eq!(first(Some(PacingOrder::Newest), &[1]), "m-5");
    assert_eq!(first(Some(PacingOrder::Newest), &[9, 1]), "m-9");
    assert_eq!(first(Some(PacingOrder::Name), &[6, 10]), "m-10");
}

#[test]
fn the_same_cause_on_three_machines_stops_the_rollout() {
    let cause = "HostStepFailed at kubeadm-upgrade";
    let mut group = Paced::new(Pacing::default());
    group.begin(0, GOAL, 0).unwrap();
    group.fail(1, cause, 1);
    group.fail(2, "HostLost", 2);
    group.fail(2, cause, 3);
    assert_eq!(group.begin(8, GOAL, 4), Ok(()));
    group.fail(3, cause, 5);
    let refusal = group.begin(9, GOAL, 6).unwrap_err();
    let expected = "the rollout to v1.35.0 has stopped: m-1, m-2, m-3 failed with HostStepFailed at \
        kubeadm-upgrade. Retry them, or go on without them: refit resume machinedeployment/md";
    assert_eq!(refusal.sentence(), expected);
    // Another attempt on one of them begins, and ends the stop if it succeeds.
    assert_eq!(group.begin(3, GOAL, 7), Ok(()));
    assert_eq!(reason(group.begin(9, GOAL, 7)), "RolloutStopped");
    group.succeed(3, 8);
    assert_eq!(group.begin(9, GOAL, 9), Ok(()));
}

#[test]
fn any_failures_stop_a_rollout_at_the_limit_of_the_group() {
    let pacing = Pacing { stop_after_failures: Some(2), ..Pacing::default() };
    let mut group = Paced::new(pacing);
    group.fail(1, "HostLost", 1);
    assert_eq!(group.begin(8, GOAL, 1), Ok(()));
    group.fail(2, "UpdaterTimedOut", 2);
    assert_eq!(reason(group.begin(9, GOAL, 2)), "RolloutStopped");
    // The operator goes on.
    group.pace.pacing.failures_since = Some(Time(at(2)));
    assert_eq!(group.begin(9, GOAL, 3), Ok(()));
    // Another target is another rollout.
    group.pace.pacing.failures_since = None;
    assert_eq!(group.begin(10, OTHER, 3), Ok(()));
    assert_eq!(group.rollout().failures, []);
}

#[test]
fn a_limit_of_zero_lets_a_rollout_go_on_after_any_number_of_failures() {
    let mut group = Paced::new(Pacing { same_cause_stops: 0, ..Pacing::default() });
    for n in 0..MAX_FAILURES + 5 {
        group.fail(n, "HostLost", 1);
    }
    assert_eq!(group.begin(99, GOAL, 2), Ok(()));
    assert_eq!(group.rollout().failures.len(), MAX_FAILURES);
}

#[test]
fn a_failure_counts_once_and_only_in_its_own_rollout() {
    let mut group = Paced::new(Pacing::default());
    group.begin(1, GOAL, 10).unwrap();
    group.fail(2, "HostLost", 9);
    assert_eq!(group.rollout().failures, []);
    group.fail(2, "HostLost", 11);
    group.fail(2, "HostLost", 11);
    assert_eq!(group.rollout().failures.len(), 1);
    // What failed before another rollout is shown by its NodeUpdate as before.
    group.begin(3, OTHER, 20).unwrap();
    group.fail(2, "HostLost", 11);
    assert_eq!((group.rollout().number, group.rollout().failures.len()), (2, 0));
}

#[test]
fn a_rollout_has_ended_once_its_owner_shows_it() {
    let mut group = Paced::new(Pacing { pause_after: Some(1), ..Pacing::default() });
    group.begin(1, GOAL, 0).unwrap();
    group.succeed(1, 5);
    // As the owner was before the change.
    record_end(&mut group.status, Some(1), at(6));
    assert_eq!(group.rollout().ended, None);
    record_end(&mut group.status, Some(2), at(7));
    assert_eq!(group.rollout().ended, Some(Time(at(7))));
    // The same target once more is another rollout, with another first machine.
    assert_eq!(group.begin(2, GOAL, 8), Ok(()));
    assert_eq!(group.rollout().number, 2);
    assert_eq!(reason(group.begin(3, GOAL, 8)), "ApprovalRequired");
}

#[test]
fn a_failed_update_names_the_step_at_which_it_failed() {
    let update: NodeUpdate = serde_json::from_value(json!({
        "metadata": {"name": "m-1-1"},
        "spec": {"machineRef": {"name": "m-1", "uid": "uid-1"}, "origin": "Hook",
            "goal": {"kubernetesVersion": GOAL}, "goalHash": "h"},
        "status": {"phase": "Failed", "failureReason": "HostStepFailed",
            "finishedAt": "1970-01-01T00:00:05Z",
            "steps": [{"name": "stage", "state": "Done"}, {"name": "kubeadm-upgrade", "state": "Failed"}]},
    }))
    .unwrap();
    let (target, failure) = failure_of(&update, Some(7)).unwrap();
    assert_eq!(target, GOAL);
    assert_eq!(failure.cause, "HostStepFailed at kubeadm-upgrade");
    let mut succeeded = update.clone();
    succeeded.status.as_mut().unwrap().phase = refit_kinds::refit::Phase::Succeeded;
    assert_eq!(failure_of(&succeeded, Some(7)), None);
    // Without a version, the change of the owner is the target.
    let mut memory = update.spec;
    memory.parts = Some(Vec::new());
    assert_eq!(target_of(&memory, Some(7)), "generation 7 of its owner");
    assert_eq!(target_of(&memory, None), "its desired state");
}

proptest! {
    /// Whatever succeeds, fails or is returned: without an approval no more than `pauseAfter` machines begin.
    #[test]
    fn no_more_machines_than_allowed_begin_without_an_approval(
        pause_after in 0_i32..4,
        soak in prop::option::of(1_i32..50),
        moves in prop::collection::vec((0_usize..8, 0_u8..4), 0..60),
    ) {
        let pacing = Pacing { pause_after: Some(pause_after), soak_seconds: soak, ..Pacing::default() };
        let mut group = Paced::new(pacing);
        let mut disturbed = std::collections::BTreeSet::new();
        let mut last_success = None;
        for (second, (n, what)) in moves.into_iter().enumerate() {
            let second = i64::try_from(second).unwrap();
            let held = holds(&group.status, &uid(n));
            match what {
                0 if !held && group.begin(n, GOAL, second).is_ok() => {
                    let soaked = last_success.zip(soak).is_none_or(|(last, soak)| {
                        at(second) >= at(last) + SignedDuration::from_secs(soak.into())
                    });
                    prop_assert!(soaked, "m-{n} began at {second}, the last success was {last_success:?}");
                    disturbed.insert(n);
                }
                1 if held => {
                    group.succeed(n, second);
                    last_success = Some(second);
                }
                2 if held => group.fail(n, &format!("cause {n}"), second),
                3 if held && !group.rollout().failures.iter().any(|one| one.machine_uid == uid(n)) => {
                    let claims = group.status.slots.iter().map(|slot| slot.claim).max().unwrap();
                    if let Some(GiveBack::Release(next)) = give_back(&group.status, &uid(n), claims) {
                        group.status = next;
                        disturbed.remove(&n);
                    }
                }
                _ => {}
            }
            prop_assert!(disturbed.len() <= usize::try_from(pause_after).unwrap());
        }
    }
}
