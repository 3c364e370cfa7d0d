use std::collections::BTreeSet;

use jiff::SignedDuration;
use proptest::prelude::*;
use refit_kinds::refit::{
    GroupFailure, MAX_FAILURES, MAX_FIRST_MACHINES, NodeUpdate, NodeUpdateSpec, OneWindow, Origin,
    Pacing, PacingOrder, Windows,
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
    unrecorded: Vec<(RolloutKey, GroupFailure)>,
    takes: Option<SignedDuration>,
}

fn by_owner(target: &str) -> RolloutKey {
    RolloutKey { origin: Origin::Hook, target: target.to_owned() }
}

fn by_hand(target: &str) -> RolloutKey {
    RolloutKey { origin: Origin::Task, target: target.to_owned() }
}

impl Paced {
    fn new(pacing: Pacing) -> Self {
        let owner = "machinedeployment/md".to_owned();
        let request = GOAL.to_owned();
        let pace = Pace { pacing, owner, owner_generation: Some(2), request };
        let (queue, unrecorded) = (Vec::new(), Vec::new());
        Self { status: UpdateGroupStatus::default(), pace, queue, unrecorded, takes: None }
    }

    /// Lets a machine, which was created at the second of its number, begin.
    fn begin(&mut self, n: usize, target: &str, second: i64) -> Result<(), Refusal> {
        self.begin_for(n, Some(&by_owner(target)), second)
    }

    fn begin_for(
        &mut self,
        n: usize,
        rollout: Option<&RolloutKey>,
        second: i64,
    ) -> Result<(), Refusal> {
        let (machine, machine_uid) = (name(n), uid(n));
        let wanted = slot(&machine, &machine_uid, &format!("{machine}-1"), at(second));
        let created = Some(created(n));
        let candidate =
            Candidate { machine: &machine, machine_uid: &machine_uid, created, rollout };
        let (pace, queue, failures) = (&self.pace, &*self.queue, &*self.unrecorded);
        let turn = Turn { pace, candidate, queue, failures, takes: self.takes };
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

    /// The slot is released with the failure: its host has rolled back.
    fn fail(&mut self, n: usize, cause: &str, second: i64) {
        self.status = release(&self.status, &uid(n)).unwrap_or_else(|| self.status.clone());
        self.record(&by_owner(GOAL), failure(n, cause, second));
    }

    fn record(&mut self, rollout: &RolloutKey, failure: GroupFailure) {
        record_failure(&mut self.status, self.pace.owner_generation, rollout, failure);
    }

    fn give_back(&mut self, n: usize) {
        let claims = self.status.claims;
        let Some(GiveBack::Release(next)) = give_back(&self.status, &uid(n), claims) else {
            panic!("the claim is marked as returned");
        };
        self.status = next;
    }

    fn rollout(&self) -> &refit_kinds::refit::GroupRollout {
        self.status.rollout.as_deref().unwrap()
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
    // There is nothing to look at yet.
    assert_eq!(group.begin(3, GOAL, 0), Err(Refusal::OutOfTurn { machine: name(1) }));
    group.succeed(1, 10);
    assert_eq!(group.begin(3, GOAL, 0), Err(Refusal::OutOfTurn { machine: name(2) }));
    group.succeed(2, 10);
    let refusal = group.begin(3, GOAL, 20).unwrap_err();
    let expected = "waiting for the approval of rollout 1 to v1.35.0, of which 2 machines have \
        begun: refit approve machinedeployment/md";
    assert_eq!(refusal.sentence(), expected);
    // One of the first may begin again.
    assert_eq!(group.begin(1, GOAL, 20), Ok(()));
    group.succeed(1, 30);
    group.pace.pacing.approve = Some(2);
    assert_eq!(reason(group.begin(3, GOAL, 40)), "ApprovalRequired");
    group.pace.pacing.approve = Some(1);
    assert_eq!(group.begin(3, GOAL, 40), Ok(()));
    // The approval is for this rollout only.
    assert_eq!(group.begin(4, OTHER, 50), Ok(()));
    assert_eq!(group.begin(5, OTHER, 50), Ok(()));
    assert_eq!(reason(group.begin(6, OTHER, 50)), "OutOfTurn");
    assert_eq!(group.rollout().number, 2);
}

#[test]
fn the_number_that_is_approved_is_bound_to_its_target() {
    let mut group = Paced::new(Pacing { pause_after: Some(0), ..Pacing::default() });
    let waits = |group: &mut Paced, target: &str| {
        let key = by_owner(target);
        record_approval(&mut group.status, &group.pace, std::iter::once(&key), at(0));
        group.status.awaits_approval
    };
    assert_eq!(waits(&mut group, GOAL), Some(1));
    group.pace.pacing.approve = Some(1);
    assert_eq!(waits(&mut group, GOAL), None);
    // Before a machine begins, the owner asks for something else.
    assert_eq!(reason(group.begin(1, OTHER, 1)), "ApprovalRequired");
    assert_eq!(waits(&mut group, OTHER), Some(2));
    // A view from before the change begins no rollout.
    group.pace.owner_generation = Some(1);
    assert_eq!(waits(&mut group, GOAL), Some(2));
}

#[test]
fn updates_that_people_request_count_in_the_rollout_of_the_owner() {
    let mut group = Paced::new(Pacing { pause_after: Some(1), ..Pacing::default() });
    group.begin(1, GOAL, 0).unwrap();
    group.succeed(1, 5);
    let refused = group.begin_for(2, Some(&by_hand("v1.34.9")), 10).unwrap_err();
    assert_eq!(refused.reason(), "ApprovalRequired");
    group.record(&by_hand("v1.34.9"), failure(3, "HostLost", 11));
    assert_eq!(group.rollout().failures.len(), 1);
    // Without a rollout of the owner, each goal is one, which the owner ends.
    let mut alone = Paced::new(Pacing { pause_after: Some(1), ..Pacing::default() });
    alone.begin_for(1, Some(&by_hand("v1.34.9")), 0).unwrap();
    alone.succeed(1, 5);
    record_end(&mut alone.status, &alone.pace, at(6));
    assert_eq!(reason(alone.begin_for(2, Some(&by_hand("v1.34.9")), 7)), "ApprovalRequired");
    assert_eq!(alone.begin(2, GOAL, 8), Ok(()));
    assert_eq!(alone.rollout().number, 2);
}

#[test]
fn an_update_that_fails_after_the_owner_has_moved_on_does_not_begin_a_rollout() {
    let mut group = Paced::new(Pacing { pause_after: Some(1), ..Pacing::default() });
    group.begin(1, GOAL, 0).unwrap();
    group.begin(2, OTHER, 10).unwrap();
    group.pace.request = OTHER.to_owned();
    // It belongs to what the owner requests now.
    group.record(&by_owner(OTHER), failure(1, "HostLost", 20));
    assert_eq!((group.rollout().number, group.rollout().failures.len()), (2, 1));
    assert_eq!(reason(group.begin(3, OTHER, 30)), "OutOfTurn");
    // An old view of the owner changes nothing.
    group.pace.owner_generation = Some(1);
    group.record(&by_owner(GOAL), failure(4, "HostLost", 40));
    assert_eq!((group.rollout().number, group.rollout().failures.len()), (2, 1));
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
    group.give_back(1);
    assert_eq!(group.begin(2, GOAL, 0), Ok(()));
    // A machine that has failed has begun, even if its next attempt returns its slot.
    group.fail(2, "HostStepFailed", 1);
    group.begin(2, GOAL, 2).unwrap();
    group.give_back(2);
    assert_eq!(reason(group.begin(3, GOAL, 3)), "ApprovalRequired");
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
    let first = |order: Option<PacingOrder>, queue: &[usize]| {
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
    assert_eq!(first(Some(PacingOrder::Newest), &[7, 1, 9]), "m-9");
    assert_eq!(first(Some(PacingOrder::Oldest), &[3, 9, 2]), "m-2");
    assert_eq!(first(Some(PacingOrder::Name), &[6, 10, 11]), "m-10");
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
fn a_failure_counts_before_it_is_recorded() {
    let mut group = Paced::new(Pacing { stop_after_failures: Some(1), ..Pacing::default() });
    group.begin(1, GOAL, 0).unwrap();
    group.unrecorded.push((by_owner(GOAL), failure(1, "HostLost", 5)));
    assert_eq!(reason(group.begin(2, GOAL, 6)), "RolloutStopped");
}

#[test]
fn a_rollout_has_ended_once_its_owner_shows_it() {
    let mut group = Paced::new(Pacing { pause_after: Some(1), ..Pacing::default() });
    group.begin(1, GOAL, 0).unwrap();
    group.succeed(1, 5);
    // As the owner was before the change, or for another one.
    let old = Pace { owner_generation: Some(1), ..group.pace.clone() };
    record_end(&mut group.status, &old, at(6));
    let other = Pace { request: OTHER.to_owned(), ..group.pace.clone() };
    record_end(&mut group.status, &other, at(6));
    assert_eq!(group.rollout().ended, None);
    record_end(&mut group.status, &group.pace, at(7));
    assert_eq!(group.rollout().ended, Some(Time(at(7))));
    // The same target once more is another rollout, with another first machine.
    assert_eq!(group.begin(2, GOAL, 8), Ok(()));
    assert_eq!(group.rollout().number, 2);
    group.succeed(2, 9);
    assert_eq!(reason(group.begin(3, GOAL, 10)), "ApprovalRequired");
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
    let failure = failure_of(&update).unwrap();
    assert_eq!(failure.cause, "HostStepFailed at kubeadm-upgrade");
    let mut succeeded = update.clone();
    succeeded.status.as_mut().unwrap().phase = refit_kinds::refit::Phase::Succeeded;
    assert_eq!(failure_of(&succeeded), None);
    // The failure is over, and an older success is not what ends it.
    let mut group = Paced::new(Pacing::default());
    group.record(&by_owner(GOAL), GroupFailure { at: Time(at(4)), ..failure.clone() });
    record_recovery(&mut group.status, &succeeded);
    assert_eq!(group.rollout().failures, []);
    group.record(&by_owner(GOAL), GroupFailure { at: Time(at(6)), ..failure });
    record_recovery(&mut group.status, &succeeded);
    assert_eq!(group.rollout().failures.len(), 1);
}

#[test]
fn an_update_belongs_to_what_its_owner_requests_or_to_its_own_goal() {
    let mut spec: NodeUpdateSpec = serde_json::from_value(json!({
        "machineRef": {"name": "m-1", "uid": "uid-1"}, "origin": "Hook",
        "goal": {"kubernetesVersion": GOAL}, "goalHash": "0123456789abcdef",
    }))
    .unwrap();
    let template = request_of(&GOAL.into(), "bigger");
    assert_eq!(
        (request_of(&GOAL.into(), "").as_str(), template.as_str()),
        (GOAL, "v1.35.0 (bigger)")
    );
    let pace = Pace { request: template.clone(), ..Pace::default() };
    assert_eq!(RolloutKey::of(&spec, &pace), Some(by_owner(&template)));
    // Its machine lacks only a part of it.
    spec.parts = Some(Vec::new());
    assert_eq!(RolloutKey::of(&spec, &pace), Some(by_owner(&template)));
    spec.origin = Origin::Task;
    assert_eq!(RolloutKey::of(&spec, &pace), Some(by_hand("goal 0123456789ab")));
    spec.parts = None;
    assert_eq!(RolloutKey::of(&spec, &pace), Some(by_hand(GOAL)));
}

/// Seconds since the epoch at which a window of an hour opens.
const OPENS: i64 = 7200;

fn in_windows() -> Paced {
    let once = vec![OneWindow { name: None, from: Time(at(OPENS)), until: Time(at(OPENS + 3600)) }];
    let windows = Windows { weekly: Vec::new(), once, estimate_seconds: 900 };
    Paced::new(Pacing { windows: Some(windows), ..Pacing::default() })
}

#[test]
fn a_machine_begins_only_in_a_window_in_which_its_update_fits() {
    let mut group = in_windows();
    let refusal = group.begin(1, GOAL, 0).unwrap_err();
    let expected = "waiting for the maintenance window that opens at 1970-01-01T02:00:00Z (the update takes an \
                    estimated 15 min)";
    assert_eq!((refusal.sentence().as_str(), refusal.ends_at()), (expected, Some(at(OPENS))));
    assert_eq!(group.begin(1, GOAL, OPENS), Ok(()));
    assert_eq!(group.begin(2, GOAL, OPENS + 2700), Ok(()), "it ends as the window closes");
    let refusal = group.begin(3, GOAL, OPENS + 2701).unwrap_err();
    assert!(refusal.sentence().starts_with("no maintenance window is open long enough"));
    assert!(refusal.sentence().ends_with("of the UpdateGroup of machinedeployment/md"));
    // What past updates took counts more than the estimate.
    group.takes = Some(SignedDuration::from_mins(5));
    assert_eq!(group.begin(3, GOAL, OPENS + 3300), Ok(()));
    assert_eq!(reason(group.begin_for(4, None, OPENS + 3301)), "NoWindow", "certificates, too");
}

#[test]
fn a_machine_that_has_begun_is_finished_after_its_window() {
    let mut group = in_windows();
    group.begin(1, GOAL, OPENS).unwrap();
    // Its slot is held, and may be claimed again.
    assert_eq!(group.begin(1, GOAL, OPENS + 9000), Ok(()));
}

#[test]
fn while_one_window_is_too_short_the_next_one_is_named() {
    let mut group = in_windows();
    let windows = group.pace.pacing.windows.as_mut().unwrap();
    windows.once.push(OneWindow { name: None, from: Time(at(86_400)), until: Time(at(90_000)) });
    let refusal = group.begin(1, GOAL, OPENS + 3000).unwrap_err();
    let expected = "waiting for the maintenance window that opens at 1970-01-02T00:00:00Z: the present one closes at \
                    1970-01-01T03:00:00Z, too soon for an update that takes an estimated 15 min";
    assert_eq!(refusal.sentence(), expected);
}

#[test]
fn windows_that_cannot_be_read_let_no_machine_begin() {
    let mut group = in_windows();
    let windows = group.pace.pacing.windows.as_mut().unwrap();
    windows.once[0].until = Time(at(0));
    let refusal = group.begin(1, GOAL, OPENS).unwrap_err();
    let field = "in spec.pacing.windows.once[0].until, expected";
    assert!(refusal.sentence().contains(field), "{}", refusal.sentence());
}

#[test]
fn new_certificates_belong_to_no_rollout() {
    let goal = json!({"certificates": {"lifetimeSeconds": 3600}});
    let spec: NodeUpdateSpec = serde_json::from_value(json!({
        "machineRef": {"name": "m-1", "uid": "uid-1"}, "origin": "Annotation",
        "goal": goal, "goalHash": "0123456789abcdef",
    }))
    .unwrap();
    assert_eq!(RolloutKey::of(&spec, &Pace::default()), None);
    let pacing = Pacing {
        pause_after: Some(1),
        soak_seconds: Some(600),
        stop_after_failures: Some(1),
        ..Pacing::default()
    };
    let mut group = Paced::new(pacing);
    group.begin(1, GOAL, 0).unwrap();
    group.succeed(1, 10);
    let before = group.status.rollout.clone();
    // Neither the time nor the approval that the rollout waits for holds them back, and they change nothing of it.
    group.begin_for(3, None, 20).unwrap();
    group.status = release(&group.status, &uid(3)).unwrap();
    assert_eq!(group.status.rollout, before);
    assert_eq!(reason(group.begin(2, GOAL, 2000)), "ApprovalRequired");
    group.fail(1, "HostStepFailed", 2001);
    group.begin_for(3, None, 2002).unwrap();
    group.status = release(&group.status, &uid(3)).unwrap();
    assert_eq!(reason(group.begin(2, GOAL, 2003)), "RolloutStopped");
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
        let mut disturbed = BTreeSet::new();
        let mut ended = BTreeSet::new();
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
                    ended.insert(n);
                }
                2 if held => {
                    group.fail(n, &format!("cause {n}"), second);
                    // It stays disturbed, whatever becomes of its next attempts.
                    ended.insert(n);
                }
                3 if held => {
                    group.give_back(n);
                    if !ended.contains(&n) {
                        disturbed.remove(&n);
                    }
                }
                _ => {}
            }
            prop_assert!(disturbed.len() <= usize::try_from(pause_after).unwrap());
        }
    }
}

#[test]
fn the_present_rollout_is_that_of_the_owner_or_of_people() {
    let mut paced = Paced::new(Pacing::default());
    assert_eq!(present_rollout(&paced.status, GOAL), 1);
    paced.begin(1, GOAL, 10).unwrap();
    assert_eq!(present_rollout(&paced.status, GOAL), 1);
    // The owner has moved on, and no machine has begun since.
    assert_eq!(present_rollout(&paced.status, OTHER), 2);
    record_end(&mut paced.status, &paced.pace, at(20));
    assert_eq!(present_rollout(&paced.status, GOAL), 2);
    paced.begin_for(2, Some(&by_hand(OTHER)), 30).unwrap();
    assert_eq!(present_rollout(&paced.status, GOAL), 2);
}
