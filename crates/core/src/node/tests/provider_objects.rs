//! Objects of providers that vanish, are deleted, or are left by another update of the machine.

use refit_kinds::refit::{Gate, Phase, ProviderObject, Stage};

use super::{
    providers::{alone, own, part, providers_work, run},
    world::*,
};
use crate::node::*;

#[test]
fn older_work_of_a_provider_is_stopped_before_new_work_begins() {
    let mut one = alone(One::worker());
    one.settle();
    let old = own(&mut one).clone();
    let mut one = alone(One::worker());
    one.providers.push(ProviderObject {
        plan_id: serde_json::from_value("of-another".into()).unwrap(),
        node_update: "m-0-0".into(),
        ..old
    });
    one.settle();
    assert_eq!(one.blocked_by(), ["OlderPlanRunning"]);
    assert_eq!(own(&mut one).spec.stage, Stage::Abort);
    providers_work(&mut one);
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn the_slot_stays_while_the_provider_of_a_deleted_update_may_be_at_work() {
    let mut one = alone(One::worker());
    one.settle();
    providers_work(&mut one);
    while own(&mut one).spec.gate < Gate::Upgrade {
        one.step();
    }
    // The update was deleted and made again, and a finalizer keeps its object.
    let slots = one.slots();
    one.update = update("m-0", 2);
    one.update.spec.parts = Some(vec![part("nodes", true)]);
    for _ in 0..5 {
        one.step();
    }
    assert_eq!((one.slots(), one.blocked_by()), (slots, vec!["OlderPlanRunning".to_owned()]));
    // An abort of the new update ends once the provider has.
    one.update.spec.stage = Stage::Abort;
    for _ in 0..5 {
        one.step();
    }
    assert_eq!((one.phase(), one.slots()), (Phase::Stopping, slots));
    assert_eq!(one.blocked_by(), ["OlderPlanRunning"]);
    let object = &mut one.providers[0];
    object.status.observed_generation = Some(object.generation);
    object.status.ready = true;
    for _ in 0..5 {
        one.step();
    }
    assert_eq!((one.phase(), one.slots()), (Phase::Stopped, 0));
}

#[test]
fn an_object_that_vanishes_while_its_provider_may_work_fails_the_update() {
    let mut one = alone(One::worker());
    one.settle();
    providers_work(&mut one);
    one.settle();
    assert_eq!(own(&mut one).spec.gate, Gate::Upgrade);
    one.settle();
    one.providers.clear();
    one.update.spec.stage = Stage::Abort;
    one.settle();
    assert_eq!(one.phase(), Phase::Failed);
    assert_eq!(one.status().failure_reason, "ProviderObjectDeleted");
}

#[test]
fn an_object_that_vanishes_while_its_provider_prepares_is_made_again() {
    let mut one = alone(One::worker());
    one.settle();
    one.providers.clear();
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn an_object_that_is_being_deleted_gets_no_further_gate() {
    let mut one = alone(One::worker());
    one.settle();
    providers_work(&mut one);
    own(&mut one).is_deleting = true;
    one.settle();
    assert_eq!(own(&mut one).spec.gate, Gate::Stage);
    assert_eq!(one.blocked_by(), ["UpdaterFails"]);
    assert!(one.status().message.contains("is being deleted"));
}

/// The live read that a decision needs, as the controller asks for it.
fn needs_live_read(one: &One) -> (Option<Write>, bool) {
    let decision = one.decide();
    let needs = requires_live_read(&one.snapshot(None), &decision);
    (decision.write, needs)
}

#[test]
fn a_view_from_before_an_object_was_made_returns_no_slot_and_ends_no_update() {
    let mut one = alone(One::worker());
    one.settle();
    providers_work(&mut one);
    while own(&mut one).spec.gate < Gate::Upgrade {
        one.step();
    }
    // The cache of the objects is older than the slot.
    let mut old = one.clone();
    old.providers.clear();
    old.update.status = None;
    old.paused = Some("Cluster edge-1".into());
    let released = (0..5).any(|_| {
        let (write, needs) = needs_live_read(&old);
        let releases = matches!(write, Some(Write::Management(ManagementWrite::ReleaseSlot(_))));
        assert!(!releases || needs, "the slot of a provider at work is returned");
        old.step();
        releases
    });
    assert!(released);
    // It is older than what the NodeUpdate records.
    one.settle();
    let mut old = one.clone();
    old.providers.clear();
    let (write, needs) = needs_live_read(&old);
    assert_eq!((write, needs), (Some(Write::STATUS), true), "ProviderObjectDeleted");
    // With all objects, only a gate needs the read.
    let (_, needs) = needs_live_read(&one);
    assert!(!needs);
}

#[test]
fn older_work_that_the_view_lacked_at_the_start_holds_up_the_gate() {
    let mut one = alone(One::worker());
    one.settle();
    let old = ProviderObject {
        name: "m-0-0-nodes".into(),
        plan_id: serde_json::from_value("of-another".into()).unwrap(),
        node_update: "m-0-0".into(),
        ..own(&mut one).clone()
    };
    providers_work(&mut one);
    one.providers.insert(0, old);
    one.settle();
    assert_eq!(one.blocked_by(), ["OlderPlanRunning"]);
    assert_eq!(one.providers[0].spec.stage, Stage::Abort);
    assert_eq!(one.providers[1].spec.gate, Gate::Stage);
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded, "{}", one.status().message);
}
