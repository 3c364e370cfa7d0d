//! Draining a node: order, deadlines, volumes, load balancers, and configuration.

use jiff::SignedDuration;
use refit_cluster_api::kinds::MachineDeletion;
use refit_kinds::{
    keys,
    refit::{DrainRung, Gate, Phase, StepState},
};
use serde_json::json;

use super::world::*;
use crate::{node::*, report::Refusal};

fn policy(change: impl FnOnce(&mut DrainPolicy)) -> DrainChoice {
    let mut choice = DrainChoice::default();
    change(&mut choice.policy);
    choice
}

fn minutes(n: i64) -> SignedDuration {
    SignedDuration::from_mins(n)
}

/// A budget that allows no evictions.
fn tight(one: &mut One) {
    let name = |pod: &PodView| pod.pod.clone();
    one.refusals = one
        .pods
        .iter()
        .map(|pod| EvictionRefusal {
            pod: name(pod),
            refusal: Refusal::PodDisruptionBudget {
                budget: "default/web".into(),
                pod: name(pod).to_string(),
            },
        })
        .collect();
}

/// Decides every few seconds for some minutes, like the controller.
fn pass(one: &mut One, minutes: i64) {
    let until = one.now + minutes * 60;
    while one.now < until {
        one.step();
        one.now += 4;
    }
}

fn rung(one: &One) -> DrainRung {
    one.status().drain.unwrap_or_default().rung
}

fn reasons(one: &One) -> Vec<&'static str> {
    let all = one.events.iter().map(|event| event.reason);
    all.filter(|reason| reason.starts_with("Drain") && *reason != "Draining").collect()
}

fn step(one: &One, name: &str) -> (StepState, String) {
    let steps = one.status().steps;
    let step = steps.into_iter().find(|step| step.name == name).unwrap();
    (step.state, step.message)
}

fn deletion(one: &mut One, deletion: MachineDeletion) {
    one.machine.as_mut().unwrap().spec.deletion = Some(deletion);
}

#[test]
fn every_pod_held_by_a_budget_is_named_with_its_age() {
    let mut one = One::worker().upgraded();
    one.pods = vec![pod("web-1"), pod("web-2")];
    tight(&mut one);
    pass(&mut one, 1);
    let blocked = one.status().blocked_by;
    let named: Vec<_> = blocked.iter().map(|b| (&*b.object, &*b.pod)).collect();
    assert_eq!(named, [("default/web", "default/web-1"), ("default/web", "default/web-2")]);
    let since = blocked[1].since.clone();
    one.refusals.remove(0);
    pass(&mut one, 1);
    let blocked = one.status().blocked_by;
    assert_eq!(blocked.len(), 1);
    assert_eq!((&*blocked[0].pod, &blocked[0].since), ("default/web-2", &since));
}

#[test]
fn waiting_for_a_budget_emits_one_event() {
    let mut one = One::worker().upgraded();
    tight(&mut one);
    pass(&mut one, 14);
    assert_eq!((rung(&one), reasons(&one)), (DrainRung::Evict, vec!["DrainBlocked"]));
    pass(&mut one, 600);
    assert_eq!(rung(&one), DrainRung::Notified);
    assert_eq!(reasons(&one), ["DrainBlocked", "DrainTakesLong"]);
    assert_eq!((one.gate(), one.pods.len()), (Gate::Upgrade, 1));
}

#[test]
fn the_drain_escalates_by_its_deadlines() {
    let mut one = One::worker().upgraded();
    one.drain = policy(|policy| policy.delete_after = Some(minutes(30)));
    tight(&mut one);
    pass(&mut one, 29);
    assert_eq!(one.pods.len(), 1);
    pass(&mut one, 2);
    assert!(one.log.contains(&"delete".to_owned()));
    assert_eq!(one.gate(), Gate::Disrupt);
    assert_eq!(reasons(&one), ["DrainBlocked", "DrainTakesLong", "DrainDeletesPods"]);
    let message = &one.events.iter().rfind(|e| e.reason == "DrainDeletesPods").unwrap().message;
    assert_eq!(
        message,
        "Node m-0: default/web-1: not evicted within 30m, deleted with their grace period."
    );
}

#[test]
fn a_pod_that_resists_is_forced_if_policy_allows() {
    let mut one = One::worker().upgraded();
    one.drain = policy(|policy| policy.force_after = Some(minutes(20)));
    tight(&mut one);
    pass(&mut one, 22);
    assert!(one.log.contains(&"force".to_owned()) && !one.log.contains(&"delete".to_owned()));
    assert_eq!(rung(&one), DrainRung::Force);
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn deadlines_count_from_stored_timestamps() {
    let mut one = One::worker().upgraded();
    one.drain = policy(|policy| policy.delete_after = Some(minutes(30)));
    tight(&mut one);
    pass(&mut one, 1);
    // No decision for an hour: the controller was down.
    one.now += 3600;
    one.step();
    pass(&mut one, 1);
    assert!(one.pods.is_empty(), "the first look after it finds the deadline over");
}

#[test]
fn an_unreplicated_pod_waits_until_policy_changes() {
    let mut one = One::worker().upgraded();
    one.pods = vec![PodView { unreplicated: true, ..pod("once") }];
    one.drain = policy(|policy| policy.delete_after = Some(minutes(1)));
    pass(&mut one, 60);
    assert_eq!(one.blocked_by(), ["PodUnreplicated"]);
    assert_eq!(one.pods.len(), 1, "no rung of the ladder takes what policy keeps");
    one.drain.policy.unreplicated = PodPolicy::Evict;
    pass(&mut one, 1);
    assert_eq!((one.pods.len(), one.gate()), (0, Gate::Disrupt));
}

#[test]
fn groups_leave_in_order_with_their_own_deadlines() {
    let mut one = One::worker().upgraded();
    let rule = |name: &str, app: &str, order: i32| {
        serde_json::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
            "metadata": {"name": name},
            "spec": {"drain": {"behavior": "Drain", "order": order},
                "pods": [{"selector": {"matchLabels": {"app": app}}}]},
        }))
        .unwrap()
    };
    one.around.rules = vec![rule("a", "db", 10), rule("b", "web", -1)];
    let labelled_pod = |name: &str, app: &str| PodView {
        labels: [("app".to_owned(), app.to_owned())].into(),
        ..pod(name)
    };
    one.pods = vec![
        labelled_pod("db-1", "db"),
        labelled_pod("other-1", "other"),
        labelled_pod("web-1", "web"),
    ];
    one.drain = policy(|policy| policy.delete_after = Some(minutes(30)));
    tight(&mut one);
    pass(&mut one, 20);
    let blocked = one.status().blocked_by;
    assert_eq!(blocked.len(), 1, "only those whose turn it is are asked");
    assert_eq!(blocked[0].pod, "default/web-1");
    pass(&mut one, 11);
    let names: Vec<_> = one.pods.iter().map(|pod| pod.pod.name.clone()).collect();
    assert_eq!(names, ["db-1", "other-1"]);
    pass(&mut one, 28);
    assert_eq!(one.pods.len(), 2, "the turn of the next began after the first");
    pass(&mut one, 3);
    assert_eq!(one.pods.len(), 1);
    one.refusals.clear();
    pass(&mut one, 1);
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn a_pod_that_comes_back_is_evicted_before_the_disruption() {
    let mut one = One::worker().upgraded();
    one.around.attachments = Some(vec![Attachment { name: "csi-1".into(), volume: "pv-1".into() }]);
    pass(&mut one, 1);
    assert_eq!(one.blocked_by(), ["VolumeAttached"]);
    one.around.attachments = Some(Vec::new());
    one.pods = vec![PodView { created_at: Some(at(one.now)), ..pod("web-9") }];
    let before = one.log.len();
    one.settle();
    let writes: Vec<_> = one.log[before..].iter().filter(|w| *w != "status").collect();
    assert_eq!(writes, ["evict", "gate Disrupt"]);
}

#[test]
fn the_wait_for_volumes_has_the_machines_timeout() {
    let mut one = One::worker().upgraded();
    one.around.attachments = Some(vec![Attachment { name: "csi-1".into(), volume: "pv-1".into() }]);
    deletion(
        &mut one,
        MachineDeletion {
            node_volume_detach_timeout_seconds: Some(600),
            ..MachineDeletion::default()
        },
    );
    pass(&mut one, 9);
    assert_eq!((one.gate(), one.blocked_by()), (Gate::Upgrade, vec!["VolumeAttached".into()]));
    assert_eq!(one.status().blocked_by[0].object, "csi-1");
    pass(&mut one, 2);
    assert_eq!((one.gate(), rung(&one)), (Gate::Disrupt, DrainRung::GivenUp));
    assert_eq!(reasons(&one), ["DrainGivenUp"]);
    let mut patient = One::worker().upgraded();
    patient.around.attachments = one.around.attachments;
    pass(&mut patient, 600);
    assert_eq!(patient.gate(), Gate::Upgrade);
    let machine = patient.machine.as_mut().unwrap();
    let annotations = machine.metadata.annotations.as_mut().unwrap();
    let word = keys::EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH;
    annotations.insert(word.into(), "false".into());
    pass(&mut patient, 1);
    assert_eq!(patient.gate(), Gate::Disrupt, "whatever the annotation's value");
}

#[test]
fn the_machines_timeout_ends_a_drain_and_names_the_rest() {
    let mut one = One::worker().upgraded();
    tight(&mut one);
    deletion(
        &mut one,
        MachineDeletion { node_drain_timeout_seconds: Some(300), ..MachineDeletion::default() },
    );
    pass(&mut one, 4);
    assert_eq!(one.gate(), Gate::Upgrade);
    pass(&mut one, 2);
    assert_eq!((one.gate(), one.pods.len()), (Gate::Disrupt, 1));
    let (state, why) = step(&one, "drain");
    assert_eq!(state, StepState::Done);
    assert_eq!(why, "nodeDrainTimeoutSeconds exceeded, pods remain on the node: default/web-1");
    let mut endless = One::worker().upgraded();
    tight(&mut endless);
    deletion(
        &mut endless,
        MachineDeletion { node_drain_timeout_seconds: Some(0), ..MachineDeletion::default() },
    );
    pass(&mut endless, 60);
    assert_eq!(endless.gate(), Gate::Upgrade, "0 means no limit, as in Cluster API");
}

#[test]
fn a_machine_excluded_from_drains_is_only_cordoned() {
    let mut one = One::worker().upgraded();
    let annotations = one.machine.as_mut().unwrap().metadata.annotations.as_mut();
    annotations.unwrap().insert(keys::EXCLUDE_NODE_DRAINING.into(), String::new());
    one.settle();
    assert_eq!((one.gate(), one.pods.len()), (Gate::Disrupt, 1));
    assert!(one.node().unwrap().cordoned_by_us());
    assert_eq!(step(&one, "drain").0, StepState::Skipped);
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(!one.node().unwrap().unschedulable);
}

#[test]
fn load_balancers_get_time_and_the_node_returns() {
    let mut one = One::worker().upgraded();
    one.drain = policy(|policy| policy.load_balancer_wait = minutes(2));
    pass(&mut one, 1);
    assert_eq!(one.node().unwrap().excluded_by.as_deref(), Some("m-0-1"));
    assert_eq!(one.pods.len(), 1, "nothing is evicted yet");
    pass(&mut one, 2);
    assert_eq!((one.pods.len(), one.gate()), (0, Gate::Disrupt));
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    let node = one.node().unwrap();
    assert!(!node.excluded && node.excluded_by.is_none() && !node.unschedulable);
}

#[test]
fn a_users_own_exclusion_stays_without_a_wait() {
    let mut one = One::worker().upgraded();
    one.node_mut().excluded = true;
    one.drain = policy(|policy| policy.load_balancer_wait = minutes(2));
    one.settle();
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(one.node().unwrap().excluded);
    assert!(!one.log.iter().any(|word| word == "exclude" || word == "include"));
}

#[test]
fn an_invalid_value_is_shown_in_the_node_update() {
    let mut one = One::worker().upgraded();
    one.drain.not_understood = vec![(keys::DRAIN_DELETE_AFTER.into(), "soon".into())];
    tight(&mut one);
    pass(&mut one, 1);
    let conditions = one.status().conditions;
    assert_eq!(conditions[0].type_, "PolicyUnderstood");
    assert_eq!(conditions[0].status, "False");
    assert!(conditions[0].message.contains("refit.dev/drain-delete-after: \"soon\""));
    one.drain.not_understood.clear();
    pass(&mut one, 1);
    assert_eq!(one.status().conditions[0].status, "True");
}

/// A worker that is being drained while a budget allows no evictions, and the only other one.
fn stuck_beside_another() -> One {
    let mut one = One::worker().upgraded();
    let machine = one.machine.as_mut().unwrap();
    machine.spec.deletion.get_or_insert_default().node_drain_timeout_seconds = Some(600);
    one.nodes.truncate(2);
    tight(&mut one);
    pass(&mut one, 2);
    assert!(one.node().unwrap().cordoned_by_us());
    one.leaving = vec![Leaving { machine: "m-1".into(), node: "m-1".into() }];
    one
}

#[test]
fn a_drain_leaves_room_for_the_pods_of_a_machine_that_is_being_deleted() {
    let mut one = stuck_beside_another();
    pass(&mut one, 1);
    assert_eq!((one.phase(), one.blocked_by()), (Phase::Draining, vec!["RoomForOthers".into()]));
    assert!(!one.node().unwrap().unschedulable);
    assert_eq!((one.status().drain, step(&one, "drain").0), (None, StepState::Pending));
    // Longer than the drain may take: its deadlines begin again.
    pass(&mut one, 60);
    one.leaving.clear();
    one.nodes.push(node("m-2"));
    pass(&mut one, 1);
    assert!(one.node().unwrap().cordoned_by_us());
    assert_eq!(one.blocked_by(), ["PodDisruptionBudget"]);
}

#[test]
fn a_drain_goes_on_if_it_takes_room_from_no_one() {
    type Change = fn(&mut One);
    let table: [(&str, Change); 3] = [
        ("another node takes pods", |one| one.nodes.push(node("m-2"))),
        ("the deleted Machine has no Node any more", |one| one.nodes.truncate(1)),
        ("an admin has cordoned the node", |one| one.node_mut().cordoned_by = None),
    ];
    for (why, change) in table {
        let mut one = stuck_beside_another();
        change(&mut one);
        pass(&mut one, 1);
        assert_eq!(one.blocked_by(), ["PodDisruptionBudget"], "{why}");
        assert!(one.node().unwrap().unschedulable, "{why}");
    }
}
