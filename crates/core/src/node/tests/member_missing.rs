//! A Machine that is deleted while another one of its group is to be updated.

use refit_kinds::{
    keys,
    refit::{Gate, Phase, Stage},
};

use super::{applied::word, world::*};
use crate::{
    group::Limits,
    node::{MEMBER_MISSING, request_again, requires_live_read},
};

/// One of three members, whose update Cluster API waits for.
fn member() -> One {
    One::control_plane().awaited()
}

/// Another member's Machine is gone.
fn lose_member(one: &mut One) {
    one.others.pop();
    one.control_plane.pop();
    one.nodes.retain(|node| &*node.name != "m-2");
    one.static_pods.retain(|pod| &*pod.node != "m-2");
}

/// Cluster API has created another Machine in its place.
fn replace_member(one: &mut One) {
    let other = crate::group::Other { machine_uid: "uid-m-3".into(), available: true };
    one.others.push(other);
}

fn is_marked(one: &One) -> bool {
    one.annotations().contains_key(keys::UPDATE_IN_PROGRESS)
}

#[test]
fn an_update_stops_so_that_cluster_api_can_create_a_missing_member() {
    for staged in [false, true] {
        let mut one = if staged { member().staged() } else { member() };
        lose_member(&mut one);
        if staged {
            one.settle();
            one.host_works();
        }
        while let decision = one.decide()
            && let Some(write) = &decision.write
        {
            let live = requires_live_read(&one.snapshot(None), &decision);
            assert_eq!(live, word(write) == "withdraw for member");
            one.step();
        }
        assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, MEMBER_MISSING));
        assert!(!is_marked(&one));
        assert_eq!((one.slots(), one.gate() <= Gate::Stage), (0, true));
        assert_eq!(one.events.last().unwrap().reason, "UpdateWithdrawn");
    }
}

/// The annotations that the controller of UpdateGroups changes once the group is complete.
fn requested_again(one: &One) -> Vec<(String, bool)> {
    let changes = request_again(&[one.machine.as_ref().unwrap()], 1, &one.owner_version);
    let changes = changes.into_iter().flat_map(|(_, changes)| changes);
    changes.map(|(key, value)| (key, value.is_some())).collect()
}

#[test]
fn the_update_is_requested_again_once_the_control_plane_is_complete() {
    let mut one = member();
    assert_eq!(requested_again(&one), [], "nothing was withdrawn");
    lose_member(&mut one);
    one.settle();
    let (note, mark) = (keys::WITHDRAWN_FOR_MEMBER, keys::UPDATE_IN_PROGRESS);
    assert_eq!(requested_again(&one), [(mark.to_owned(), true), (note.to_owned(), false)]);
    // Cluster API asks for another version itself.
    one.owner_version = "v1.35.1".into();
    assert_eq!(requested_again(&one), [(note.to_owned(), false)]);
    // So it does if it has requested another update meanwhile.
    one.owner_version = GOAL.into();
    let one = one.awaited();
    assert_eq!(requested_again(&one), [(note.to_owned(), false)]);
}

#[test]
fn the_mark_comes_off_whatever_the_kubelet_runs_and_the_owner_asks_for() {
    type Change = fn(&mut One);
    let table: [(&str, Change); 2] = [
        ("a later version is requested", |one| one.owner_version = "v1.35.1".into()),
        ("the kubelet runs the goal", |one| one.node_mut().kubelet_version = GOAL.into()),
    ];
    for (why, change) in table {
        let mut one = member();
        change(&mut one);
        lose_member(&mut one);
        one.settle();
        assert_eq!(one.status().failure_reason, MEMBER_MISSING, "{why}");
        assert!(!is_marked(&one), "{why}");
    }
}

#[test]
fn an_aborted_update_does_not_stand_in_the_way_either() {
    let mut one = member().staged();
    one.update.spec.stage = Stage::Abort;
    one.settle();
    one.host_works();
    one.settle();
    assert_eq!(one.status().failure_reason, "Aborted");
    assert!(is_marked(&one));
    lose_member(&mut one);
    one.settle();
    assert!(!is_marked(&one));
}

#[test]
fn a_host_that_is_not_as_before_keeps_its_request() {
    let mut one = member().staged();
    one.update.spec.stage = Stage::Abort;
    one.settle();
    one.host_works();
    let report = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    report.left_behind = vec!["package x was added.".into()];
    lose_member(&mut one);
    one.settle();
    assert!(is_marked(&one));
}

#[test]
fn the_member_may_come_back_before_the_host_has_stopped() {
    let mut one = member().staged();
    lose_member(&mut one);
    while one.log.last().map(String::as_str) != Some("abort") {
        assert!(one.step());
    }
    replace_member(&mut one);
    one.settle();
    one.host_works();
    one.settle();
    assert_eq!(one.status().failure_reason, MEMBER_MISSING);
    assert!(is_marked(&one), "the next call of Cluster API makes the next NodeUpdate");
}

#[test]
fn an_update_goes_on_if_it_delays_no_member() {
    type Change = fn(&mut One);
    let table: [(&str, Change); 3] = [
        ("its host is past the first gate", |one| *one = one.clone().upgraded()),
        ("Cluster API does not wait for it", |one| {
            one.machine.as_mut().unwrap().metadata.annotations = None;
        }),
        ("a user aborts it", |one| one.update.spec.stage = Stage::Abort),
    ];
    for (why, change) in table {
        let mut one = member();
        change(&mut one);
        lose_member(&mut one);
        one.settle();
        assert_ne!(one.status().failure_reason, MEMBER_MISSING, "{why}");
    }
}

/// One of two workers, whose update Cluster API waits for, and which waits for the other.
fn worker() -> One {
    let mut one = One::worker().awaited().staged();
    one.limits = Limits { replicas: 2, max_unavailable: 1 };
    one.others.truncate(1);
    one.others[0].available = false;
    one.settle();
    assert_eq!(one.blocked_by(), ["GroupUnavailable"]);
    one
}

fn waits(one: &mut One, seconds: i64) {
    one.now += seconds;
    one.host_works();
    one.settle();
}

#[test]
fn an_update_of_a_worker_stops_once_a_machine_was_missing_for_5_minutes() {
    let mut one = worker();
    // An unavailable machine is not missing, however long the wait is.
    waits(&mut one, 3600);
    one.others.clear();
    one.settle();
    waits(&mut one, 280);
    assert!(one.phase() == Phase::Waiting && is_marked(&one));
    waits(&mut one, 20);
    one.host_works();
    one.settle();
    assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, MEMBER_MISSING));
    assert!(!is_marked(&one));
    let again = requested_again(&one).into_iter().find(|(key, _)| key == keys::UPDATE_IN_PROGRESS);
    assert_eq!(again.map(|(_, sets)| sets), Some(true));
}

#[test]
fn no_more_updates_are_requested_again_than_machines_may_be_down() {
    let annotated = |name: &str, keys: &[&str]| {
        let mut machine = machine(name);
        let all = keys.iter().map(|key| ((*key).to_owned(), String::new()));
        machine.metadata.annotations = Some(all.collect());
        machine.spec.version = GOAL.into();
        machine
    };
    let (note, mark) = (keys::WITHDRAWN_FOR_MEMBER, keys::UPDATE_IN_PROGRESS);
    let mut leaving = annotated("m-0", &[note]);
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    let mut outdated = annotated("m-4", &[note]);
    outdated.spec.version = FROM.into();
    let machines = [
        leaving,
        annotated("m-1", &[mark]),
        annotated("m-2", &[note]),
        annotated("m-3", &[note]),
        outdated,
    ];
    let all: Vec<_> = machines.iter().collect();
    let changed = |slots| {
        let changes = request_again(&all, slots, &GOAL.into());
        let names = changes.iter().map(|(machine, _)| machine.metadata.name.clone().unwrap());
        names.collect::<Vec<_>>()
    };
    // A note for a version that the owner no longer asks for is removed in any case.
    assert_eq!(changed(1), ["m-4"]);
    assert_eq!(changed(2), ["m-2", "m-4"]);
    assert_eq!(changed(5), ["m-2", "m-3", "m-4"]);
}
