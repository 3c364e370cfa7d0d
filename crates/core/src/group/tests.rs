use proptest::prelude::*;
use refit_kinds::{
    conditions,
    refit::{Blocker, NodeUpdateStatus, Phase, StepState, StepStatus, Waiting},
};

use super::{testing::claim, *};
use crate::{
    change::Policy,
    node::{MEMBER_MISSING, SUPERSEDED},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn wanted(n: u8) -> Slot {
    slot(&format!("m-{n}"), &format!("uid-{n}").into(), &format!("m-{n}-1"), at(0))
}

fn others(except: u8, total: u8, available: impl Fn(u8) -> bool) -> Vec<Other> {
    (0..total)
        .filter(|n| *n != except)
        .map(|n| Other { machine_uid: format!("uid-{n}").into(), available: available(n) })
        .collect()
}

const FIVE: Limits = Limits { replicas: 5, max_unavailable: 1 };

fn taken(status: &UpdateGroupStatus, n: u8, limits: Limits, total: u8) -> UpdateGroupStatus {
    match claim(status, &wanted(n), limits, &others(n, total, |_| true)) {
        Ok(Claim::Take(next)) => next,
        other => panic!("m-{n}: {other:?}"),
    }
}

#[test]
fn the_second_machine_waits_for_the_first() {
    let status = taken(&UpdateGroupStatus::default(), 1, FIVE, 5);
    let refused = claim(&status, &wanted(2), FIVE, &others(2, 5, |_| true));
    assert_eq!(refused, Err(Refusal::SlotBusy { machine: "m-1".into() }));
}

#[test]
fn a_repeated_claim_changes_nothing() {
    let status = taken(&UpdateGroupStatus::default(), 1, FIVE, 5);
    let again = claim(&status, &wanted(1), FIVE, &others(1, 5, |_| false));
    assert_eq!(again, Ok(Claim::Held));
}

#[test]
fn the_next_update_of_a_machine_takes_over_its_slot() {
    let status = taken(&UpdateGroupStatus::default(), 1, FIVE, 5);
    let retry = Slot { node_update: "m-1-2".into(), ..wanted(1) };
    let Ok(Claim::Take(next)) = claim(&status, &retry, FIVE, &others(1, 5, |_| false)) else {
        panic!("the slot is the machine's own");
    };
    assert_eq!(next.slots, [Slot { claim: 2.into(), ..retry }]);
}

#[test]
fn one_unavailable_machine_blocks_a_claim() {
    let refused = claim(&UpdateGroupStatus::default(), &wanted(1), FIVE, &others(1, 5, |n| n != 3));
    assert_eq!(
        refused,
        Err(Refusal::GroupUnavailable { available: 3, needed: 4, lacks_machines: false })
    );
}

#[test]
fn the_unavailable_machine_itself_may_be_repaired() {
    let claimed = claim(&UpdateGroupStatus::default(), &wanted(3), FIVE, &others(3, 5, |_| true));
    assert!(matches!(claimed, Ok(Claim::Take(_))));
}

#[test]
fn a_machine_with_a_slot_never_counts_as_available() {
    let two = Limits { replicas: 5, max_unavailable: 2 };
    let status = taken(&UpdateGroupStatus::default(), 1, two, 5);
    assert_eq!(enough_others(&status, two, &others(2, 5, |_| true)), Ok(()));
    let one_ill = others(2, 5, |n| n != 4);
    let refused = Refusal::GroupUnavailable { available: 2, needed: 3, lacks_machines: false };
    assert_eq!(enough_others(&status, two, &one_ill), Err(refused));
}

#[test]
fn a_group_of_one_machine_may_be_updated() {
    let alone = Limits { replicas: 1, max_unavailable: 1 };
    assert!(claim(&UpdateGroupStatus::default(), &wanted(0), alone, &[]).is_ok());
}

#[test]
fn without_an_unavailable_machine_a_surge_machine_must_stand_in() {
    let none = Limits { replicas: 5, max_unavailable: 0 };
    assert_eq!((none.slots(), none.others_needed()), (1, 5));
}

#[test]
fn a_claim_ends_the_wait() {
    let mut status = UpdateGroupStatus::default();
    status.waiting.push(Waiting {
        machine: "m-1".into(),
        reason: "SlotBusy".into(),
        message: String::new(),
    });
    assert!(taken(&status, 1, FIVE, 5).waiting.is_empty());
}

#[test]
fn only_a_held_slot_is_released() {
    let status = taken(&UpdateGroupStatus::default(), 1, FIVE, 5);
    assert_eq!(release(&status, &"uid-2".into()), None);
    let free = UpdateGroupStatus { slots: Vec::new(), ..status.clone() };
    assert_eq!(release(&status, &"uid-1".into()), Some(free));
}

fn step(name: &str, state: StepState, from: i64, to: i64) -> StepStatus {
    StepStatus {
        name: name.into(),
        state,
        started_at: Some(Time(at(from))),
        finished_at: Some(Time(at(to))),
        ..StepStatus::default()
    }
}

#[test]
fn only_the_newest_finished_steps_are_recorded() {
    let mut status = UpdateGroupStatus::default();
    for n in 0..20 {
        record_durations(
            &mut status,
            &[step("drain", StepState::Done, 0, n), step("reboot", StepState::Skipped, 0, 9)],
        );
    }
    assert_eq!(status.durations.len(), 2);
    assert_eq!(status.durations[0].seconds, (4..20).collect::<Vec<_>>());
    assert_eq!(median_seconds(&status.durations, "drain"), Some(12));
    assert_eq!(median_seconds(&status.durations, "reboot"), Some(0), "it was skipped");
    assert_eq!(median_seconds(&status.durations, "stage"), None);
}

#[test]
fn the_steps_that_are_left_are_expected_to_take_as_long_as_slow_ones_of_the_past() {
    let mut status = UpdateGroupStatus::default();
    for n in 1..=10 {
        record_durations(
            &mut status,
            &[step("stage", StepState::Done, 0, 900), step("drain", StepState::Done, 0, 10 * n)],
        );
    }
    let rest = |steps: &[&str]| {
        expected_rest(&status.durations, steps.iter().copied()).map(|rest| rest.as_secs())
    };
    assert_eq!(rest(&["drain"]), Some(100));
    assert_eq!(rest(&["drain", "reboot"]), None, "no past update has shown it");
    assert_eq!(rest(&[]), None);
}

fn blocker(reason: &str) -> Blocker {
    Blocker {
        reason: reason.into(),
        object: String::new(),
        pod: String::new(),
        message: "waiting for it".into(),
        since: Time(at(0)),
    }
}

fn member<'a>(machine: &'a str, in_progress: bool, status: &'a NodeUpdateStatus) -> Member<'a> {
    Member {
        machine,
        in_progress,
        is_behind: false,
        is_withdrawn: false,
        node_update: "m-1-1",
        status,
    }
}

fn ended(phase: Phase, reason: &str) -> NodeUpdateStatus {
    NodeUpdateStatus {
        phase,
        failure_reason: reason.to_owned(),
        failure_message: "step one: no.".to_owned(),
        ..NodeUpdateStatus::default()
    }
}

fn shown(phase: Phase, reason: &str) -> UpdateGroupStatus {
    let status =
        NodeUpdateStatus { phase, blocked_by: vec![blocker(reason)], ..Default::default() };
    let members = [member("m-1", true, &status)];
    summarise(&UpdateGroupStatus::default(), FIVE, &members, &Outside::default(), Some(1), at(0))
}

#[test]
fn a_group_shows_waiting_machines_and_their_causes() {
    let table = [
        (Phase::Waiting, "SlotBusy", 1, "False"),
        (Phase::Pending, "NoFreshReport", 1, "True"),
        (Phase::Draining, "PodDisruptionBudget", 0, "True"),
        (Phase::Verifying, "NodeNotReady", 0, "False"),
        (Phase::Upgrading, "ApiUnreachable", 0, "False"),
        (Phase::Disrupting, "NoFreshReport", 0, "True"),
    ];
    for (phase, reason, waiting, blocked) in table {
        let status = shown(phase, reason);
        assert_eq!(status.waiting.len(), waiting, "{phase:?}");
        let condition = conditions::get(&status.conditions, BLOCKED).unwrap();
        assert_eq!(condition.status, blocked, "{phase:?}");
        assert_eq!(status.limit, 1);
    }
}

#[test]
fn a_wait_that_lasts_blocks_a_group_in_every_phase() {
    let status = NodeUpdateStatus {
        phase: Phase::Upgrading,
        blocked_by: vec![blocker("ApiUnreachable")],
        ..Default::default()
    };
    for (seconds, shown) in [(299, "False"), (300, "True")] {
        let members = [member("m-1", true, &status)];
        let status = UpdateGroupStatus::default();
        let next = summarise(&status, FIVE, &members, &Outside::default(), Some(1), at(seconds));
        assert_eq!(conditions::get(&next.conditions, BLOCKED).unwrap().status, shown, "{seconds}");
    }
}

#[test]
fn a_machine_that_waits_for_others_recovers_none_of_them() {
    let status = NodeUpdateStatus {
        phase: Phase::Draining,
        blocked_by: vec![blocker("ControlPlaneUnhealthy")],
        ..Default::default()
    };
    for (holder, shown) in [(1, "True"), (2, "False")] {
        let group = taken(&UpdateGroupStatus::default(), holder, FIVE, 5);
        let next = summarise(
            &group,
            FIVE,
            &[member("m-1", true, &status)],
            &Outside::default(),
            None,
            at(0),
        );
        assert_eq!(conditions::get(&next.conditions, BLOCKED).unwrap().status, shown, "{holder}");
    }
}

#[test]
fn a_group_with_an_uncovered_change_is_blocked() {
    let status = UpdateGroupStatus { uncovered: vec!["line".into()], ..Default::default() };
    let next = summarise(&status, FIVE, &[], &Outside::default(), None, at(0));
    let condition = conditions::get(&next.conditions, BLOCKED).unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "Uncovered"));
}

#[test]
fn a_reverted_uncovered_change_no_longer_blocks() {
    let mut status = UpdateGroupStatus { uncovered: vec!["line".into()], ..Default::default() };
    let covered = (COVERED, "False", "UncoveredPreserve", "line");
    conditions::set(&mut status.conditions, at(0), Some(2), covered);
    for same in [None, Some(2)] {
        assert_eq!(forget_old_answer(&status, same, at(1)), status);
    }
    let next = forget_old_answer(&status, Some(3), at(1));
    assert!(next.uncovered.is_empty());
    let covered = conditions::get(&next.conditions, COVERED).unwrap();
    assert_eq!((&*covered.status, &*covered.reason), ("Unknown", "OwnerChanged"));
    assert_eq!(forget_old_answer(&next, Some(4), at(9)), next);
    let next = summarise(&next, FIVE, &[], &Outside::default(), None, at(1));
    assert!(!conditions::is_true(&next.conditions, BLOCKED));
}

fn answered(reason: &str, word: &str, generation: i64) -> UpdateGroupStatus {
    let mut status = UpdateGroupStatus::default();
    let covered = (COVERED, word, reason, "no report from Node n");
    conditions::set(&mut status.conditions, at(0), Some(generation), covered);
    status
}

#[test]
fn silent_agents_block_a_group_until_its_owner_changes() {
    let status = answered("NoFreshReport", "Unknown", 2);
    let blocked = summarise(&status, FIVE, &[], &Outside::default(), None, at(1));
    let condition = conditions::get(&blocked.conditions, BLOCKED).unwrap();
    assert_eq!(
        (&*condition.status, &*condition.reason, &*condition.message),
        ("True", "NoFreshReport", "no report from Node n")
    );
    let later = forget_old_answer(&blocked, Some(3), at(2));
    let later = summarise(&later, FIVE, &[], &Outside::default(), None, at(2));
    assert!(!conditions::is_true(&later.conditions, BLOCKED));
    let passing = answered("ControlPlaneBehind", "Unknown", 2);
    let passing = summarise(&passing, FIVE, &[], &Outside::default(), None, at(1));
    assert!(!conditions::is_true(&passing.conditions, BLOCKED));
}

#[test]
fn a_replacement_is_shown_until_it_is_done() {
    let mut status = answered("UncoveredReplace", "False", 2);
    status.uncovered = vec!["line".into()];
    assert!(!conditions::is_true(
        &summarise(&status, FIVE, &[], &Outside::default(), None, at(1)).conditions,
        BLOCKED
    ));
    assert_eq!(forget_replaced(&status, false), status);
    assert!(forget_replaced(&status, true).uncovered.is_empty());
    let mut preserved = answered("UncoveredPreserve", "False", 2);
    preserved.uncovered = vec!["line".into()];
    assert_eq!(forget_replaced(&preserved, true), preserved);
}

#[test]
fn an_invalid_policy_has_a_condition_until_corrected() {
    let confused = Policy {
        not_understood: Some(("refit.dev/on-uncovered".into(), "replace".into())),
        ..Policy::default()
    };
    let fine = UpdateGroupStatus::default();
    assert_eq!(show_policy(&fine, &Policy::default(), at(0)), fine);
    let status = show_policy(&fine, &confused, at(0));
    let condition = conditions::get(&status.conditions, POLICY_UNDERSTOOD).unwrap();
    assert_eq!((&*condition.status, &*condition.reason), ("False", "UnknownValue"));
    assert!(condition.message.contains("invalid value \"replace\""));
    assert_eq!(show_policy(&status, &confused, at(9)), status);
    let status = show_policy(&status, &Policy::default(), at(9));
    assert!(conditions::is_true(&status.conditions, POLICY_UNDERSTOOD));
}

#[test]
fn a_failed_machine_that_is_down_blocks_its_group() {
    let status = taken(&UpdateGroupStatus::default(), 1, FIVE, 5);
    let failed = ended(Phase::Failed, "CommandFailed");
    let next = summarise(
        &status,
        FIVE,
        &[member("m-1", false, &failed)],
        &Outside::default(),
        None,
        at(0),
    );
    assert!(conditions::is_true(&next.conditions, BLOCKED));
}

#[test]
fn a_machine_whose_update_was_given_up_blocks_until_cluster_api_no_longer_waits() {
    let running = ended(Phase::Upgrading, "");
    for (phase, reason, shown) in [
        (Phase::Failed, "CommandFailed", Some("Failed")),
        (Phase::Stopped, "Aborted", Some("Aborted")),
        (Phase::Stopped, SUPERSEDED, None),
    ] {
        let status = ended(phase, reason);
        let blocked = |in_progress| {
            let members = [member("m-2", true, &running), member("m-1", in_progress, &status)];
            let next = summarise(
                &UpdateGroupStatus::default(),
                FIVE,
                &members,
                &Outside::default(),
                None,
                at(0),
            );
            let condition = conditions::get(&next.conditions, BLOCKED).unwrap().clone();
            (condition.status == "True").then_some(condition)
        };
        assert!(blocked(false).is_none(), "{reason}");
        let condition = blocked(true);
        assert_eq!(condition.as_ref().map(|one| &*one.reason), shown, "{reason}");
        for part in ["m-1", "step one: no"] {
            assert!(condition.as_ref().is_none_or(|one| one.message.contains(part)), "{part}");
        }
    }
}

#[test]
fn a_machine_that_cluster_api_takes_for_updated_blocks_its_group() {
    let status = ended(Phase::Failed, "CommandFailed");
    let members = [Member { is_behind: true, ..member("m-1", false, &status) }];
    let none = UpdateGroupStatus::default();
    let next = summarise(&none, FIVE, &members, &Outside::default(), None, at(0));
    let condition = conditions::get(&next.conditions, BLOCKED).unwrap();
    assert_eq!((&*condition.status, &*condition.reason), ("True", "Failed"));
    assert!(condition.message.contains("with a NodeUpdate of your own"), "{}", condition.message);
    let done = ended(Phase::Succeeded, "");
    let members = [Member { is_behind: true, ..member("m-1", false, &done) }];
    let next = summarise(&none, FIVE, &members, &Outside::default(), None, at(0));
    assert!(!conditions::is_true(&next.conditions, BLOCKED));
}

#[test]
fn a_slot_whose_update_was_deleted_blocks_its_group() {
    let status = taken(&UpdateGroupStatus::default(), 1, FIVE, 5);
    let outside = Outside { deserted: status.slots.first(), ..Outside::default() };
    let next = summarise(&status, FIVE, &[], &outside, None, at(0));
    let condition = conditions::get(&next.conditions, BLOCKED).unwrap();
    assert_eq!((&*condition.status, &*condition.reason), ("True", "NodeUpdateDeleted"));
    assert!(condition.message.contains(&status.slots[0].node_update), "{}", condition.message);
}

#[test]
fn a_given_up_update_is_shown_with_the_next_command() {
    let status = ended(Phase::Failed, "CommandFailed");
    let (_, message) = member("m-1", true, &status).given_up().unwrap();
    assert_eq!(
        message,
        "Machine m-1: NodeUpdate m-1-1 failed: CommandFailed; step one: no. To try again: refit \
         retry machine/m-1"
    );
}

#[test]
fn a_group_that_lacks_a_machine_is_blocked() {
    let status = ended(Phase::Stopped, MEMBER_MISSING);
    // Without its cluster, an update that has stopped is not withdrawn yet.
    for (is_withdrawn, in_progress, shown) in
        [(true, false, true), (false, true, true), (false, false, false)]
    {
        let one = Member { is_withdrawn, ..member("m-1", in_progress, &status) };
        for lacks_machines in [true, false] {
            let outside = Outside { lacks_machines, ..Outside::default() };
            let status = UpdateGroupStatus::default();
            let members = std::slice::from_ref(&one);
            let next = summarise(&status, FIVE, members, &outside, None, at(0));
            let condition = conditions::get(&next.conditions, BLOCKED).unwrap();
            let shown = shown && lacks_machines;
            assert_eq!(condition.reason == MEMBER_MISSING, shown, "{condition:?}");
            let named = condition.message.starts_with("Machine m-1: its update continues once");
            assert_eq!(named, shown);
        }
    }
}

#[test]
fn a_group_whose_surge_machine_is_refused_is_blocked_and_names_the_ways_out() {
    let status = answered("Covered", "True", 1);
    let outside = Outside { held: Some("m-1".into()), ..Outside::default() };
    let next = summarise(&status, FIVE, &[], &outside, None, at(0));
    let condition = conditions::get(&next.conditions, BLOCKED).unwrap();
    assert_eq!((&*condition.status, &*condition.reason), ("True", "ReplacementHeld"));
    for words in ["Machine m-1", "maxSurge 0", "refit.dev/on-uncovered=Replace"] {
        assert!(condition.message.contains(words), "{condition:?}");
    }
}

#[test]
fn workers_that_wait_for_a_control_plane_that_nothing_updates_are_blocked() {
    let refused = answered("ControlPlaneBehind", "Unknown", 2);
    let fine = UpdateGroupStatus::default();
    let why = Some("cp-1: waiting until its Node is Ready");
    let (old, new) = ("v1.35.0", "v1.36.0");
    for (status, version, why, shown) in [
        (&refused, new, why, Some("ControlPlaneBlocked")),
        (&refused, old, None, Some("ControlPlaneBehind")),
        (&refused, old, why, Some("ControlPlaneBehind")),
        (&refused, "v1.36.1", None, None),
        (&refused, new, None, None),
        (&fine, new, why, None),
        (&fine, old, None, None),
    ] {
        let control_plane = ControlPlane {
            owner: "KubeadmControlPlane edge-1".to_owned(),
            version: version.into(),
            workers_version: "v1.36.2".into(),
            blocked: why.map(str::to_owned),
        };
        let outside = Outside { control_plane: Some(control_plane), ..Outside::default() };
        let next = summarise(status, FIVE, &[], &outside, None, at(1));
        let condition = conditions::get(&next.conditions, BLOCKED).unwrap();
        let reason = (condition.status == "True").then_some(&*condition.reason);
        assert_eq!(reason, shown);
    }
}

#[test]
fn a_repeated_summary_changes_nothing() {
    let status = |phase, blocked_by| NodeUpdateStatus { phase, blocked_by, ..Default::default() };
    let running = status(Phase::Upgrading, Vec::new());
    let waiting = status(Phase::Waiting, vec![blocker("SlotBusy")]);
    let members = [member("m-1", true, &running), member("m-2", true, &waiting)];
    let first = summarise(
        &UpdateGroupStatus::default(),
        FIVE,
        &members,
        &Outside::default(),
        Some(1),
        at(0),
    );
    assert_eq!(summarise(&first, FIVE, &members, &Outside::default(), Some(1), at(99)), first);
}

proptest! {
    #[test]
    fn never_more_slots_than_the_limit(
        replicas in 1_i32..8,
        max_unavailable in 0_i32..4,
        ops in prop::collection::vec((any::<bool>(), 0_u8..8, any::<u8>()), 0..60),
    ) {
        let limits = Limits { replicas, max_unavailable };
        let total = u8::try_from(replicas).unwrap();
        let mut status = UpdateGroupStatus::default();
        for (take, n, ill) in ops {
            let n = n % total;
            if take {
                let others = others(n, total, |m| ill & (1 << m) == 0);
                if let Ok(Claim::Take(next)) = claim(&status, &wanted(n), limits, &others) {
                    let available = others
                        .iter()
                        .filter(|o| o.available && !holds(&status, &o.machine_uid))
                        .count();
                    prop_assert!(i32::try_from(available).unwrap() >= limits.others_needed());
                    status = next;
                    prop_assert_eq!(
                        claim(&status, &wanted(n), limits, &others),
                        Ok(Claim::Held)
                    );
                }
            } else if let Some(next) = release(&status, &format!("uid-{n}").into()) {
                status = next;
            }
            let slots = i32::try_from(status.slots.len()).unwrap();
            prop_assert!(slots <= limits.slots());
            let mut uids: Vec<_> = status.slots.iter().map(|s| &s.machine_uid).collect();
            uids.dedup();
            prop_assert_eq!(uids.len(), status.slots.len());
        }
    }
}
