//! A control plane member that is deleted while another one is to be updated.

use refit_kinds::{
    keys,
    refit::{Gate, Phase, Stage},
};

use super::world::*;
use crate::node::{MEMBER_MISSING, requires_live_read};

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
            assert_eq!(live, word(write) == "withdraw");
            one.step();
        }
        assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, MEMBER_MISSING));
        assert!(!is_marked(&one));
        assert_eq!((one.slots(), one.gate() <= Gate::Stage), (0, true));
        assert_eq!(one.events.last().unwrap().reason, "UpdateWithdrawn");
    }
}

#[test]
fn the_update_is_made_again_once_the_control_plane_is_complete() {
    let mut one = member();
    lose_member(&mut one);
    one.settle();
    assert!(one.may_have_work_left());
    assert!(one.decide().write.is_none(), "the member is still missing");
    replace_member(&mut one);
    one.settle();
    assert_eq!(one.log.last().unwrap(), "resume 2");
    assert_eq!(one.events.last().unwrap().reason, "UpdateResumed");
    assert!(one.decide().write.is_none(), "the next NodeUpdate speaks for the Machine");
}

#[test]
fn it_is_not_made_again_for_a_version_that_no_one_asks_for() {
    type Change = fn(&mut One);
    let table: [(&str, Change); 3] = [
        ("the owner asks for another version", |one| one.owner_version = "v1.35.1".into()),
        ("the Machine has another version", |one| {
            one.machine.as_mut().unwrap().spec.version = "v1.35.1".into();
        }),
        ("the host runs the goal", |one| one.node_mut().kubelet_version = GOAL.into()),
    ];
    for (why, change) in table {
        let mut one = member();
        lose_member(&mut one);
        one.settle();
        replace_member(&mut one);
        change(&mut one);
        one.settle();
        assert!(!one.log.iter().any(|write| write.starts_with("resume")), "{why}");
    }
}

#[test]
fn the_mark_comes_off_even_if_the_owner_asks_for_a_later_version_by_now() {
    let mut one = member();
    lose_member(&mut one);
    one.owner_version = "v1.35.1".into();
    one.settle();
    assert_eq!(one.status().failure_reason, MEMBER_MISSING);
    assert!(!is_marked(&one));
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
    assert!(one.log.contains(&"resume 2".to_owned()), "{:?}", one.log);
    assert!(is_marked(&one), "nothing is withdrawn");
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
