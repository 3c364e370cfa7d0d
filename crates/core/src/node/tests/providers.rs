//! Updates in which providers work, alone or with the agent.

use refit_kinds::{
    conditions,
    refit::{
        Disruption, Gate, Goal, GoalOption, MachineUid, NodeUpdate, PartState, Phase,
        ProviderObject, ProviderPart, ProviderStatus, Role, Stage, StepState, UpdatePart,
        UpdaterAction, UpdaterTemplate,
    },
};

use super::world::*;
use crate::node::*;

pub(super) fn part(updater: &str, brings_version: bool) -> UpdatePart {
    UpdatePart {
        updater: updater.into(),
        action: UpdaterAction::Update,
        disruption: Disruption::Drain,
        timeout_seconds: Some(600),
        host: None,
        template: Some(ProviderPart {
            template: UpdaterTemplate {
                api_version: "update.example/v1".into(),
                kind: "ThingUpdateTemplate".into(),
                name: "thing".into(),
            },
            brings_version,
        }),
    }
}

fn with(mut one: One, parts: &[UpdatePart]) -> One {
    one.update.spec.parts = Some(parts.to_vec());
    one
}

/// A machine whose provider brings the version: it has no agent.
pub(super) fn alone(mut one: One) -> One {
    one.plan = None;
    with(one, &[part("nodes", true)])
}

/// Providers note their orders and do what they may.
pub(super) fn providers_work(one: &mut One) {
    for object in &mut one.providers {
        object.status.observed_generation = Some(object.generation);
        let aborts = object.spec.stage == Stage::Abort;
        if !aborts {
            object.status.passed = object.spec.gate;
        }
        object.status.ready = aborts || object.spec.gate == Gate::Disrupt;
        if object.spec.gate == Gate::Disrupt && object.spec.goal.kubernetes_version.is_some() {
            one.nodes[0].kubelet_version = GOAL.into();
        }
    }
}

/// Providers work and Refit decides until neither has anything to do.
pub(super) fn run(one: &mut One) {
    for _ in 0..20 {
        one.settle();
        providers_work(one);
    }
}

fn acts(one: &One) -> Vec<&str> {
    let is_noise = |word: &&str| *word == "status" || word.starts_with("condition");
    one.log.iter().map(String::as_str).filter(|word| !is_noise(word)).collect()
}

pub(super) fn own(one: &mut One) -> &mut ProviderObject {
    one.providers.last_mut().unwrap()
}

#[test]
fn a_provider_brings_a_worker_to_a_version_without_an_agent() {
    let mut one = alone(One::worker());
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded, "{}", one.status().message);
    assert_eq!(
        acts(&one),
        [
            "ask nodes",
            "nodes up to Stage",
            "claim",
            "guard",
            "nodes up to Upgrade",
            "cordon",
            "evict",
            "nodes up to Disrupt",
            "begin nodes",
            "call nodes",
            "uncordon",
            "unguard",
            "release",
        ]
    );
    let goal = own(&mut one).spec.goal.clone();
    assert_eq!(goal.kubernetes_version, Some(GOAL.parse().unwrap()));
    assert_eq!(goal.role, Some(Role::Worker));
}

#[test]
fn a_provider_gets_the_role_of_a_control_plane_machine_and_waits_for_its_slot() {
    let mut one = alone(One::control_plane());
    for pod in &mut one.static_pods {
        if pod.component == "kube-apiserver" {
            pod.version = ImageVersion::Version(GOAL.parse().unwrap());
        }
    }
    one.settle();
    assert_eq!(acts(&one)[..3], ["ask nodes", "claim", "nodes up to Stage"]);
    assert!(own(&mut one).spec.goal.role.is_some_and(|role| role != Role::Worker));
}

#[test]
fn the_agent_and_a_provider_share_slot_and_drain_one_after_the_other() {
    let mut one = with(One::worker(), &[UpdatePart::kubeadm(), part("firmware", false)]);
    for _ in 0..8 {
        one.settle();
        one.host_works();
        if one.plan.as_ref().unwrap().spec.gate == Gate::Disrupt {
            one.kubelet_returns();
        }
        one.settle();
        providers_work(&mut one);
    }
    assert_eq!(one.phase(), Phase::Succeeded, "{}", one.status().message);
    let log = acts(&one);
    let order: Vec<&&str> = log
        .iter()
        .filter(|word| word.starts_with("gate") || word.contains(" up to ") || **word == "cordon")
        .collect();
    assert_eq!(
        order,
        [
            &"gate Stage",
            &"firmware up to Stage",
            &"gate Upgrade",
            &"firmware up to Upgrade",
            &"cordon",
            &"gate Disrupt",
            &"firmware up to Disrupt",
        ]
    );
    let goal = own(&mut one).spec.goal.clone();
    assert_eq!((goal.kubernetes_version, goal.role), (None, None));
}

#[test]
fn an_abort_before_the_drain_reaches_the_provider() {
    for gate in [Gate::Stage, Gate::Upgrade] {
        let mut one = alone(One::worker());
        one.settle();
        if gate == Gate::Upgrade {
            providers_work(&mut one);
            one.settle();
        }
        assert_eq!(own(&mut one).spec.gate, gate);
        one.update.spec.stage = Stage::Abort;
        one.settle();
        assert_eq!(one.phase(), Phase::Stopping);
        assert_eq!(own(&mut one).spec.stage, Stage::Abort);
        providers_work(&mut one);
        one.settle();
        assert_eq!(one.phase(), Phase::Stopped, "{}", one.status().message);
        assert_eq!(one.slots(), 0);
    }
}

#[test]
fn an_abort_after_the_drain_comes_too_late() {
    let mut one = alone(One::worker());
    for _ in 0..2 {
        one.settle();
        providers_work(&mut one);
    }
    one.settle();
    assert_eq!(own(&mut one).spec.gate, Gate::Disrupt);
    one.update.spec.stage = Stage::Abort;
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(!acts(&one).contains(&"abort nodes"));
}

#[test]
fn a_status_about_an_older_order_is_not_believed() {
    let mut one = alone(One::worker());
    one.settle();
    let object = own(&mut one);
    object.status.passed = Gate::Disrupt;
    object.status.ready = true;
    object.status.observed_generation = Some(0);
    one.settle();
    assert_eq!(own(&mut one).spec.gate, Gate::Stage);
    let object = own(&mut one);
    object.status.observed_generation = Some(object.generation);
    one.settle();
    // What it has passed counts only up to its gate.
    assert_eq!(own(&mut one).spec.gate, Gate::Upgrade);
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_provider_that_reports_ready_and_does_nothing_is_named() {
    let mut one = alone(One::worker());
    for _ in 0..4 {
        one.settle();
        providers_work(&mut one);
        one.nodes[0].kubelet_version = FROM.into();
    }
    one.settle();
    assert_eq!(one.phase(), Phase::Verifying);
    assert_eq!(one.blocked_by(), ["NodeNotVerified"]);
    assert_eq!(one.slots(), 1);
}

#[test]
fn a_failure_that_a_provider_retries_is_shown_and_ends_nothing() {
    let mut one = alone(One::worker());
    one.settle();
    let object = own(&mut one);
    object.status.observed_generation = Some(object.generation);
    object.status.failure_reason = "MirrorDown".into();
    object.status.failure_message = "the mirror does not answer".into();
    object.status.retriable = true;
    one.settle();
    assert_eq!(one.blocked_by(), ["UpdaterFails"]);
    assert!(one.status().message.contains("the mirror does not answer"));
    own(&mut one).status = ProviderStatus::default();
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_failure_for_good_stops_the_agent_too_and_fails_the_update() {
    let mut one = with(One::worker(), &[UpdatePart::kubeadm(), part("firmware", false)]);
    one.settle();
    one.host_works();
    let object = own(&mut one);
    object.status.observed_generation = Some(object.generation);
    object.status.failure_reason = "NotSupported".into();
    object.status.failure_message = "there is no firmware for this board".into();
    one.settle();
    assert_eq!(acts(&one).last(), Some(&"abort"));
    assert!(!one.phase().is_final());
    let plan = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    plan.state = refit_kinds::refit::PlanState::Stopped;
    one.settle();
    assert_eq!(one.phase(), Phase::Failed);
    assert_eq!(one.status().failure_reason, "NotSupported");
    assert_eq!(
        one.status().failure_message,
        "Updater firmware: there is no firmware for this board"
    );
}

#[test]
fn a_provider_that_does_not_run_is_named_and_fails_the_update_in_the_end() {
    let mut one = alone(One::worker());
    one.settle();
    one.now += 90;
    one.settle();
    assert_eq!(one.blocked_by(), ["UpdaterFails"]);
    assert!(one.status().message.contains("has not observed generation 1"));
    one.now += 600;
    one.settle();
    assert_eq!(one.phase(), Phase::Failed);
    assert_eq!(one.status().failure_reason, "UpdaterTimedOut");
}

#[test]
fn time_spent_waiting_for_a_slot_is_not_the_providers() {
    let mut one = alone(One::worker());
    one.others[0].available = false;
    one.settle();
    providers_work(&mut one);
    one.now += 10_000;
    one.settle();
    assert_eq!(one.phase(), Phase::Waiting);
    one.others[0].available = true;
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_goal_without_a_version_is_a_providers() {
    let mut one = alone(One::worker());
    let option = GoalOption::Channel("1.35-classic/stable".into());
    one.update.spec.goal = Goal { option: Some(option.clone()), ..Goal::default() };
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded, "{}", one.status().message);
    assert_eq!(own(&mut one).spec.goal.option, Some(option));
}

#[test]
fn an_unused_slot_is_marked_at_the_provider_before_it_is_returned() {
    let mut one = alone(One::worker());
    one.settle();
    providers_work(&mut one);
    while one.slots() == 0 {
        one.step();
    }
    one.paused = Some("Cluster edge-1".into());
    one.settle();
    assert_eq!(one.slots(), 0);
    let log = acts(&one);
    let mark = log.iter().rposition(|word| *word == "nodes up to Stage").unwrap();
    assert!(log[mark..].contains(&"release"), "{log:?}");
    assert_ne!(own(&mut one).returned_claim, refit_kinds::refit::ClaimId::default());
    one.paused = None;
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded, "{}", one.status().message);
}

#[test]
fn a_provider_can_be_stopped_while_its_part_is_shown_as_ongoing() {
    let mut one = alone(One::worker());
    one.settle();
    one.settle();
    let status = one.status();
    assert_eq!(status.parts[0].state, PartState::Ongoing);
    assert!(!status.has_updater_begun());
    let machine = one.machine.as_ref().unwrap().status.as_ref().unwrap();
    assert!(conditions::get(&machine.conditions, conditions::MACHINE_UP_TO_DATE).is_some());
    assert_eq!(one.providers[0].spec.machine_ref.uid, MachineUid::from("uid-m-0"));
}

#[test]
fn a_late_provider_is_stopped_and_keeps_the_slot_until_it_has_ended() {
    let mut one = alone(One::worker());
    one.settle();
    providers_work(&mut one);
    one.settle();
    assert_eq!(own(&mut one).spec.gate, Gate::Upgrade);
    one.settle();
    one.now += 700;
    one.settle();
    assert_eq!(one.phase(), Phase::Failed);
    assert_eq!(one.status().failure_reason, "UpdaterTimedOut");
    assert_eq!(own(&mut one).spec.stage, Stage::Abort);
    assert_eq!(one.slots(), 1, "the provider may come back");
    providers_work(&mut one);
    one.settle();
    assert_eq!(one.slots(), 0);
}

#[test]
fn a_provider_that_does_not_stop_is_named_and_ends_the_update() {
    let mut one = alone(One::worker());
    one.settle();
    one.update.spec.stage = Stage::Abort;
    one.settle();
    one.now += 90;
    one.settle();
    assert_eq!(one.phase(), Phase::Stopping);
    assert_eq!(one.blocked_by(), ["UpdaterFails"]);
    one.now += 600;
    one.settle();
    assert_eq!(one.phase(), Phase::Failed);
    assert!(one.status().failure_message.contains("has not stopped within 600 s"));
}

#[test]
fn a_provider_past_its_point_of_no_return_is_not_stopped() {
    let mut one = alone(One::worker());
    one.settle();
    providers_work(&mut one);
    one.settle();
    let object = own(&mut one);
    object.status.observed_generation = Some(object.generation);
    object.status.past_no_return = true;
    one.update.spec.stage = Stage::Abort;
    run(&mut one);
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(!acts(&one).contains(&"abort nodes"));
}

#[test]
fn a_point_of_no_return_before_the_gate_upgrade_does_not_count() {
    let mut one = alone(One::worker());
    one.settle();
    let object = own(&mut one);
    object.status.observed_generation = Some(object.generation);
    object.status.past_no_return = true;
    one.update.spec.stage = Stage::Abort;
    one.settle();
    assert_eq!(own(&mut one).spec.stage, Stage::Abort);
    providers_work(&mut one);
    one.settle();
    assert_eq!(one.phase(), Phase::Stopped, "{}", one.status().message);
    assert!(!acts(&one).contains(&"claim"));
}

#[test]
fn the_gate_of_the_second_updater_opens_only_while_the_other_members_are_healthy() {
    let mut one =
        with(One::control_plane(), &[UpdatePart::kubeadm(), part("firmware", false)]).awaited();
    for _ in 0..8 {
        one.settle();
        one.host_works();
        if one.plan.as_ref().unwrap().spec.gate == Gate::Disrupt {
            one.kubelet_returns();
            one.nodes[1].ready = false;
        }
        one.settle();
        if own(&mut one).spec.gate < Gate::Upgrade || one.nodes[1].ready {
            providers_work(&mut one);
        }
    }
    assert_eq!(own(&mut one).spec.gate, Gate::Upgrade);
    assert!(!one.blocked_by().is_empty());
    one.nodes[1].ready = true;
    one.settle();
    assert_eq!(own(&mut one).spec.gate, Gate::Disrupt);
}

#[test]
fn a_machine_that_its_provider_has_turned_off_is_not_lost() {
    let mut one = with(One::worker(), &[UpdatePart::kubeadm(), part("firmware", false)]);
    one.host_lost_after = Some(jiff::SignedDuration::from_mins(5));
    for _ in 0..4 {
        one.settle();
        one.host_works();
        if one.plan.as_ref().unwrap().spec.gate == Gate::Disrupt {
            one.kubelet_returns();
        }
        one.settle();
        if own(&mut one).spec.gate < Gate::Disrupt {
            providers_work(&mut one);
        }
    }
    assert_eq!(own(&mut one).spec.gate, Gate::Disrupt);
    let object = own(&mut one);
    object.status.observed_generation = Some(object.generation);
    one.now += 400;
    one.settle();
    assert!(!one.phase().is_final(), "{}", one.status().message);
    assert!(!one.blocked_by().contains(&"NoFreshReport".to_owned()));
}

#[test]
fn an_update_whose_provider_cannot_be_reached_can_be_aborted_before_its_first_order() {
    for providers in [
        Providers::NotSynced,
        Providers::Unusable(crate::report::Refusal::UpdaterUnusable {
            updater: "nodes".into(),
            why: "its kind is not served".into(),
        }),
    ] {
        let mut one = alone(One::worker());
        let snapshot = |one: &One| Snapshot { providers: providers.clone(), ..one.snapshot(None) };
        let waiting = decide(&snapshot(&one), at(one.now));
        assert!(waiting.write.is_none() || waiting.write == Some(Write::STATUS));
        one.update.spec.stage = Stage::Abort;
        let stopped = decide(&snapshot(&one), at(one.now));
        assert_eq!(stopped.status.phase, Phase::Stopped);
    }
}

#[test]
fn the_second_member_of_a_control_plane_finds_that_the_first_has_been_brought_to_the_version() {
    let mut first = alone(One::control_plane());
    assert!(!has_brought_version(&first.update));
    for pod in &mut first.static_pods {
        pod.version = ImageVersion::Version(GOAL.parse().unwrap());
    }
    run(&mut first);
    let update = NodeUpdate { ..first.update };
    let done =
        update.status.as_ref().unwrap().steps.iter().find(|step| step.name == "updater/nodes");
    assert!(done.is_some_and(|step| step.state == StepState::Done), "{:?}", update.status);
    assert!(has_brought_version(&update));
}
