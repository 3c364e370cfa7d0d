//! A control plane member that is deleted while another one is to be updated.

use refit_kinds::{
    keys,
    refit::{Gate, Phase, Stage},
};

use super::{applied::word, world::*};
use crate::node::{MEMBER_MISSING, request_again, requires_live_read};

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

/// The annotations that the controller of UpdateGroups changes once the control plane is complete.
fn requested_again(one: &One) -> Vec<(String, bool)> {
    let changes = request_again(one.machine.as_ref().unwrap(), &one.owner_version);
    changes.into_iter().map(|(key, value)| (key, value.is_some())).collect()
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
