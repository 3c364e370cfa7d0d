//! Nodes that were upgraded by hand.

use refit_kinds::{
    keys,
    refit::{NodeUpdateSpec, Origin, Phase, UpdatePart},
};

use super::world::*;
use crate::node::*;

/// A machine whose update is to verify only.
fn adopting(mut one: One) -> One {
    one.update.spec.parts = Some(vec![UpdatePart::adopted()]);
    one
}

fn annotate(one: &mut One, key: &str, value: &str) {
    let machine = one.machine.as_mut().unwrap();
    machine.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

fn upgraded_by_hand(one: &mut One) {
    one.node_mut().kubelet_version = GOAL.into();
    for pod in one.static_pods.iter_mut().filter(|pod| pod.node == "m-0") {
        pod.version = ImageVersion::of_tag(GOAL);
    }
}

#[test]
fn a_node_that_runs_the_goal_is_taken_as_it_is() {
    for one in [One::worker(), One::control_plane()] {
        let mut one = adopting(one);
        upgraded_by_hand(&mut one);
        one.node_mut().unschedulable = true;
        one.node_mut().cordoned_by = Some("m-0-0".to_owned());
        annotate(&mut one, keys::HOLD, "upgraded by hand");
        annotate(&mut one, keys::GUARDED_BY_US, keys::SKIP_REMEDIATION);
        annotate(&mut one, keys::SKIP_REMEDIATION, "refit");
        annotate(&mut one, keys::ADOPT, "m-0-0");
        one.settle();
        assert_eq!((one.phase(), one.slots()), (Phase::Succeeded, 0));
        assert!(!one.node().unwrap().unschedulable, "{:?}", one.log);
        assert!(one.plan.as_ref().is_none_or(|plan| plan.spec.plan_id.is_empty()));
        let left: Vec<String> = one.annotations().into_keys().collect();
        assert_eq!(left, [keys::HOLD]);
        assert_eq!(one.status().message, format!("the machine runs {GOAL}"));
    }
}

#[test]
fn a_node_with_other_versions_is_not_adopted_and_they_are_named() {
    let mut one = adopting(One::worker());
    one.settle();
    let status = one.status();
    assert_eq!((status.phase, &*status.failure_reason), (Phase::Failed, NOT_ADOPTED));
    assert!(status.failure_message.contains("its kubelet runs v1.34.2"), "{status:?}");
    let mut one = adopting(One::control_plane());
    one.node_mut().kubelet_version = GOAL.into();
    one.settle();
    let message = one.status().failure_message;
    assert!(message.contains("its kube-apiserver runs v1.34.2"), "{message}");
}

#[test]
fn a_node_that_is_not_ready_is_waited_for() {
    let mut one = adopting(One::worker());
    upgraded_by_hand(&mut one);
    one.node_mut().ready = false;
    one.settle();
    assert_eq!((one.phase(), one.blocked_by()), (Phase::Pending, vec!["NodeNotReady".to_owned()]));
}

#[test]
fn a_node_upgraded_by_hand_is_adopted_on_a_live_read_only() {
    let mut one = adopting(One::worker());
    assert!(requires_live_read(&one.snapshot(None), &one.decide()));
    upgraded_by_hand(&mut one);
    while one.decide().status.phase != Phase::Succeeded && one.step() {}
    assert!(requires_live_read(&one.snapshot(None), &one.decide()));
}

#[test]
fn an_update_that_has_not_begun_stops_to_be_adopted() {
    for mut one in [One::worker(), One::worker().staged()] {
        annotate(&mut one, keys::ADOPT, "m-0-1");
        one.settle();
        one.host_works();
        one.settle();
        assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, "Aborted"));
    }
    let mut begun = One::worker().upgraded();
    annotate(&mut begun, keys::ADOPT, "m-0-1");
    begun.settle();
    assert_eq!(begun.gate(), refit_kinds::refit::Gate::Disrupt);
}

#[test]
fn the_annotation_aborts_an_update_and_is_removed_with_its_end() {
    let mut one = One::worker();
    annotate(&mut one, keys::ABORT, "m-0-9");
    one.settle();
    assert!(!one.phase().is_final());
    annotate(&mut one, keys::ABORT, "m-0-1");
    one.settle();
    one.host_works();
    one.settle();
    assert_eq!((one.phase(), &*one.status().failure_reason), (Phase::Stopped, "Aborted"));
    assert!(!one.annotations().contains_key(keys::ABORT));
}

/// What an ended update of a person does about an annotation of its Machine.
fn again(key: &str, phase: Phase, change: impl FnOnce(&mut One)) -> Option<(u32, NodeUpdateSpec)> {
    let mut one = One::worker();
    one.update.spec.origin = Origin::Task;
    one.settle();
    let status = one.update.status.get_or_insert_default();
    (status.phase, status.failure_reason) = (phase, "HostStepFailed".to_owned());
    one.plan = None;
    annotate(&mut one, key, "m-0-1");
    change(&mut one);
    for _ in 0..9 {
        if let Some(Write::Management(ManagementWrite::Again { ordinal, spec })) =
            one.decide().write
        {
            return Some((ordinal, *spec));
        }
        if !one.step() {
            break;
        }
    }
    None
}

#[test]
fn the_update_of_a_person_is_retried_and_adopted_by_annotation() {
    for phase in [Phase::Failed, Phase::Stopped] {
        let (ordinal, spec) = again(keys::RETRY, phase, |_| {}).unwrap();
        assert_eq!((ordinal, spec.origin, spec.parts), (2, Origin::Task, None));
        let (ordinal, spec) = again(keys::ADOPT, phase, |_| {}).unwrap();
        assert_eq!((ordinal, spec.parts), (2, Some(vec![UpdatePart::adopted()])));
        // A retry of an update that only verified works again.
        let verified = |one: &mut One| one.update.spec.parts = Some(vec![UpdatePart::adopted()]);
        let (_, spec) = again(keys::RETRY, phase, verified).unwrap();
        assert_eq!(spec.parts, Some(vec![UpdatePart::kubeadm()]));
    }
    assert!(again(keys::RETRY, Phase::Succeeded, |_| {}).is_none());
    // The next call of Cluster API makes it.
    let hook = |one: &mut One| one.update.spec.origin = Origin::Hook;
    assert!(again(keys::RETRY, Phase::Failed, hook).is_none());
    // The task makes it.
    let of_task = |one: &mut One| annotate(one, keys::TASK, "workers");
    assert!(again(keys::RETRY, Phase::Failed, of_task).is_none());
    let other = |one: &mut One| annotate(one, keys::RETRY, "m-0-0");
    assert!(again(keys::RETRY, Phase::Failed, other).is_none());
}
