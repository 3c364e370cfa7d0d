//! What wakes an update that has ended.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use refit_kinds::{
    keys,
    refit::{Goal, GoalCertificates, NodeUpdateStatus, Phase, Slot},
};

use super::world::*;
use crate::node::HOST_LOST;

fn slot(node_update: &str) -> Slot {
    Slot {
        machine: "m-0".into(),
        machine_uid: "uid-m-0".into(),
        node_update: node_update.into(),
        since: Time(at(0)),
        claim: 1.into(),
    }
}

/// A worker whose update ended in this phase, with everything cleaned up.
fn ended(phase: Phase) -> One {
    let mut one = One::worker();
    one.update.status = Some(NodeUpdateStatus { phase, ..Default::default() });
    one.settle();
    one
}

fn annotate(one: &mut One, key: &str, value: &str) {
    let annotations = one.machine.as_mut().unwrap().metadata.annotations.get_or_insert_default();
    annotations.insert(key.to_owned(), value.to_owned());
}

fn new_certificates() -> Goal {
    let certificates = GoalCertificates::of_lifetime(3600);
    Goal { certificates: Some(certificates), ..Goal::default() }
}

fn change(what: u8, one: &mut One) {
    match what {
        0 => annotate(one, keys::GUARDED_BY_US, keys::SKIP_REMEDIATION),
        1 => annotate(one, keys::RETRY, "m-0-0"),
        2 => {
            one.machine.as_mut().unwrap().status.as_mut().unwrap().conditions.clear();
        }
        3 => {
            let node = one.node_mut();
            node.unschedulable = true;
            node.cordoned_by = Some("m-0-1".into());
        }
        4 => {
            let node = one.node_mut();
            (node.unschedulable, node.excluded_by) = (false, Some("m-0-1".into()));
        }
        5 => one.group.as_mut().unwrap().slots.push(slot("m-0-1")),
        6 => {
            annotate(one, keys::UPDATE_IN_PROGRESS, "");
            annotate(one, keys::PENDING_HOOKS, keys::UPDATE_MACHINE_HOOK);
            one.owner_version = FROM.into();
            one.node_mut().kubelet_version = FROM.into();
        }
        7 => one.update.status.as_mut().unwrap().failure_reason = HOST_LOST.into(),
        8 => one.siblings.push(update("m-0", 2)),
        9 => one.machine.as_mut().unwrap().metadata.uid = Some("another".into()),
        10 => one.delete_machine(),
        11 => one.reachable = false,
        12 => one.update.status.as_mut().unwrap().cordoned_by_us = true,
        13 => one.node_mut().unschedulable = true,
        14 => one.update.spec.goal = new_certificates(),
        15 => annotate(one, keys::ABORT, "m-0-1"),
        16 => annotate(one, keys::RETRY, "m-0-2"),
        17 => {
            let mut ended = update("m-0", 2);
            ended.spec.goal = new_certificates();
            ended.status = Some(NodeUpdateStatus { phase: Phase::Failed, ..Default::default() });
            one.siblings.push(ended);
        }
        _ => one.group.as_mut().unwrap().slots.push(slot("m-0-2")),
    }
}

#[test]
fn an_ended_update_with_nothing_left_is_not_woken() {
    for phase in [Phase::Succeeded, Phase::Failed, Phase::Stopped] {
        let mut one = ended(phase);
        one.now += 1000;
        assert!(!one.may_have_work_left(), "{phase:?}");
    }
    let mut old = ended(Phase::Failed);
    old.siblings.push(update("m-0", 2));
    for duty_of_the_newest in [0, 2, 3, 4, 6] {
        change(duty_of_the_newest, &mut old);
    }
    assert!(!old.may_have_work_left(), "another NodeUpdate speaks for the Machine");
}

#[test]
fn an_ended_update_is_woken_for_what_is_left_of_it() {
    let table = [
        (Phase::Succeeded, 0, "its guard"),
        (Phase::Succeeded, 1, "the request of a retry that succeeded"),
        (Phase::Succeeded, 2, "its condition"),
        (Phase::Failed, 3, "its cordon"),
        (Phase::Failed, 4, "its exclusion from load balancers"),
        (Phase::Failed, 5, "its slot"),
        (Phase::Stopped, 6, "an update that Cluster API still waits for"),
    ];
    for (phase, what, left) in table {
        let mut one = ended(phase);
        change(what, &mut one);
        assert!(one.may_have_work_left(), "{left}");
    }
    let mut lost = ended(Phase::Failed);
    for what in [3, 7, 12] {
        change(what, &mut lost);
    }
    assert!(lost.may_have_work_left(), "the cordon of a host that was lost and may return");
}

#[test]
fn new_certificates_and_upgrades_end_only_their_own_requests() {
    let by_phase = |phase, changes: &[u8]| {
        let mut one = ended(phase);
        for what in changes {
            change(*what, &mut one);
        }
        one.settle();
        one
    };
    let is_asked = |one: &One| one.annotations().contains_key(keys::RETRY);
    let speaker = by_phase(Phase::Succeeded, &[17, 16]);
    assert!(is_asked(&speaker), "the refresh m-0-2 is to be repeated");
    let mut refreshed = ended(Phase::Succeeded);
    change(17, &mut refreshed);
    change(14, &mut refreshed);
    refreshed.update.metadata.name = Some("m-0-3".into());
    change(16, &mut refreshed);
    refreshed.settle();
    assert!(!is_asked(&refreshed), "a later refresh has succeeded");
    let mut earlier = ended(Phase::Succeeded);
    for what in [14, 17, 16] {
        change(what, &mut earlier);
        earlier.settle();
    }
    assert!(is_asked(&earlier), "an earlier refresh has succeeded");
    let mut upgrade = update("m-0", 2);
    upgrade.status = Some(NodeUpdateStatus { phase: Phase::Failed, ..Default::default() });
    let mut refreshed = ended(Phase::Succeeded);
    refreshed.siblings.push(upgrade);
    change(14, &mut refreshed);
    change(16, &mut refreshed);
    change(15, &mut refreshed);
    change(0, &mut refreshed);
    refreshed.settle();
    let left: Vec<String> = refreshed.annotations().into_keys().collect();
    assert_eq!(left, [keys::RETRY], "the upgrade m-0-2 is to be repeated");
}

#[test]
fn an_upgrade_that_has_ended_releases_the_slot_of_an_earlier_one() {
    let mut one = ended(Phase::Succeeded);
    one.node_mut().kubelet_version = GOAL.into();
    let mut earlier = update("m-0", 0);
    earlier.status = Some(NodeUpdateStatus { phase: Phase::Failed, ..Default::default() });
    one.siblings.push(earlier);
    one.group.as_mut().unwrap().slots.push(slot("m-0-0"));
    one.settle();
    assert_eq!(one.slots(), 0, "it may never see the version that it wants");
}

#[test]
fn an_ended_upgrade_leaves_the_slot_of_a_refresh_to_it() {
    let mut one = ended(Phase::Succeeded);
    one.node_mut().kubelet_version = GOAL.into();
    change(17, &mut one);
    change(18, &mut one);
    one.settle();
    assert_eq!(one.slots(), 1);
    one.siblings.clear();
    one.settle();
    let group = one.group.as_ref().unwrap();
    assert_eq!((group.slots.len(), &group.durations, &group.rollout), (0, &Vec::new(), &None));
    assert_eq!(one.phase(), Phase::Succeeded);
}

proptest! {
    #[test]
    fn no_ended_update_with_a_write_or_a_wait_is_left_asleep(
        phase in prop::sample::select(vec![Phase::Succeeded, Phase::Failed, Phase::Stopped]),
        changes in prop::collection::vec(0_u8..19, 0..6),
    ) {
        let mut one = ended(phase);
        for what in changes {
            change(what, &mut one);
            // Asserts it for every decision.
            one.decide();
        }
    }
}
