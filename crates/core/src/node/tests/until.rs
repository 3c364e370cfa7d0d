//! How far an update goes: `spec.until`.

use refit_kinds::{
    keys,
    refit::{Gate, Phase, Stage, Until},
};

use super::world::*;

fn until(mut one: One, until: Until) -> One {
    one.update.spec.until = until;
    one
}

#[test]
fn an_update_until_stage_prepares_the_host_and_holds_no_slot() {
    let mut one = until(One::worker(), Until::Stage).staged();
    one.settle();
    assert_eq!((one.gate(), one.phase()), (Gate::Stage, Phase::Waiting));
    assert_eq!((one.blocked_by(), one.slots()), (vec!["UntilReached".to_owned()], 0));
    let mut one = until(one, Until::Disrupt);
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Upgrade, 1));
}

#[test]
fn an_update_until_upgrade_does_not_drain_and_can_be_aborted() {
    let mut one = until(One::worker(), Until::Upgrade).upgraded();
    one.settle();
    assert_eq!((one.gate(), one.phase()), (Gate::Upgrade, Phase::Upgrading));
    assert_eq!(one.blocked_by(), ["UntilReached"]);
    assert!(!one.node().unwrap().unschedulable);
    let mut aborted = one.clone();
    aborted.update.spec.stage = Stage::Abort;
    aborted.settle();
    assert_eq!(aborted.phase(), Phase::Stopping);
    let mut goes_on = until(one, Until::Disrupt);
    goes_on.settle();
    assert_eq!(goes_on.gate(), Gate::Disrupt);
}

/// The upgrade of a control plane machine is its point of no return: nothing can wait after it. Its role
/// is certain only while no other member is updated.
#[test]
fn a_control_plane_machine_waits_before_its_upgrade_and_keeps_its_slot() {
    for held in [Until::Stage, Until::Upgrade] {
        let mut one = until(One::control_plane(), held).staged();
        one.settle();
        assert_eq!((one.gate(), one.slots()), (Gate::Stage, 1), "{held}");
        let message = one.status().message;
        assert!(message.starts_with("waiting until spec.until of NodeUpdate m-0-1 is Disrupt"));
        let mut one = until(one, Until::Disrupt);
        one.settle();
        assert_eq!(one.gate(), Gate::Upgrade);
    }
}

#[test]
fn a_control_plane_machine_that_goes_down_while_it_is_held_is_not_upgraded() {
    let mut one = until(One::control_plane(), Until::Stage).staged();
    one.settle();
    one.node_mut().ready = false;
    one.settle();
    assert_eq!(one.blocked_by(), ["NodeNotReady"]);
    let mut one = until(one, Until::Disrupt);
    one.settle();
    assert_eq!((one.gate(), one.blocked_by()), (Gate::Stage, vec!["NodeNotReady".to_owned()]));
    one.node_mut().ready = true;
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
}

#[test]
fn a_held_control_plane_machine_claims_a_lost_slot_again() {
    let mut one = until(One::control_plane(), Until::Stage).staged();
    one.settle();
    one.group.as_mut().unwrap().slots.clear();
    one.settle();
    assert_eq!((one.slots(), one.blocked_by()), (1, vec!["UntilReached".to_owned()]));
}

/// An operator has to let the older one go on, or abort it.
#[test]
fn an_update_behind_one_that_is_held_names_the_hold() {
    let mut older = until(One::worker(), Until::Upgrade).upgraded();
    older.settle();
    let mut one = older.clone();
    one.update = update("m-0", 2);
    one.siblings.push(older.update);
    one.settle();
    assert_eq!(one.blocked_by(), ["UntilReached"]);
    assert!(one.status().message.contains("NodeUpdate m-0-1 is Disrupt"));
}

/// The API server refuses to move `until` back; a restored object may have moved.
#[test]
fn an_update_past_its_hold_does_not_wait() {
    let mut plane = until(One::control_plane().upgraded(), Until::Stage);
    plane.settle();
    assert_ne!(plane.blocked_by(), ["UntilReached"]);
    let mut worker = One::worker().upgraded();
    worker.pods = vec![pod("web-1")];
    worker.step();
    worker.step();
    assert!(worker.node().unwrap().unschedulable);
    let mut worker = until(worker, Until::Upgrade);
    worker.pods.clear();
    worker.settle();
    assert_eq!(worker.gate(), Gate::Disrupt);
}

#[test]
fn a_node_that_goes_down_while_its_update_is_held_is_left_to_remediation() {
    let mut one = until(One::worker(), Until::Upgrade).upgraded();
    one.settle();
    assert!(one.annotations().contains_key(keys::SKIP_REMEDIATION));
    one.node_mut().ready = false;
    one.settle();
    assert_eq!(one.blocked_by(), ["NodeNotReady"]);
    assert!(!one.annotations().contains_key(keys::SKIP_REMEDIATION));
    assert_eq!(one.slots(), 1);
    one.node_mut().ready = true;
    one.settle();
    assert_eq!(one.blocked_by(), ["UntilReached"]);
    assert!(one.annotations().contains_key(keys::SKIP_REMEDIATION));
}
