//! Releasing an unused slot, with the host's plan in between.

use refit_kinds::refit::Gate;

use super::world::{One, at};
use crate::{group, node::Write};

/// A staged worker that holds its slot and was paused before anything was disturbed.
fn held_and_paused() -> One {
    let mut one = One::worker().staged();
    let slot = group::slot("m-0", &"uid-m-0".into(), "m-0-1", at(0));
    one.group = Some(group::with_slot(&one.group.unwrap(), &slot));
    one.paused = Some("Cluster edge-1".into());
    one
}

fn returned(one: &One) -> refit_kinds::refit::ClaimId {
    one.plan.as_ref().unwrap().spec.returned_claim
}

#[test]
fn the_plan_is_marked_before_the_slot_is_released() {
    let mut one = held_and_paused();
    while returned(&one) == 0.into() {
        assert_eq!(one.slots(), 1);
        assert!(one.step());
    }
    assert_eq!((returned(&one), one.gate()), (1.into(), Gate::Stage));
    one.settle();
    assert_eq!(one.slots(), 0);
}

#[test]
fn a_marked_slot_is_claimed_again_before_the_gate_opens() {
    let mut one = held_and_paused();
    while returned(&one) == 0.into() {
        assert!(one.step());
    }
    // The controller that marked the plan crashed before it released the slot.
    one.paused = None;
    one.log.clear();
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
    assert!(one.log.contains(&"claim".to_owned()), "{:?}", one.log);
    assert!(one.group.as_ref().unwrap().slots[0].claim > returned(&one));
}

#[test]
fn a_slot_is_kept_if_the_host_state_is_unknown() {
    let mut one = held_and_paused();
    one.plan = None;
    one.settle();
    assert_eq!(one.slots(), 1);
}

#[test]
fn the_next_plan_of_the_host_keeps_the_mark() {
    let mut one = One::worker();
    one.plan.as_mut().unwrap().spec.returned_claim = 7.into();
    while one.gate() == Gate::Closed {
        let decision = one.decide();
        let write = decision.write.clone().unwrap();
        if let Write::HostPlan(spec) = &write {
            assert_eq!(spec.returned_claim, 7.into());
        }
        one.apply(&decision, write);
    }
    one = one.staged();
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
    assert_eq!(one.group.as_ref().unwrap().slots[0].claim, 8.into());
}
