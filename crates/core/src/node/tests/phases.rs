//! The update of one machine, phase by phase.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    keys,
    refit::{Gate, Phase, Role, StepState, StepType},
};

use super::world::*;
use crate::{
    node::{
        EvictionRefusal, GroupState, ImageVersion, ManagementWrite, OtherMachines, Others, Reboot,
        StaticPod, Write, decide,
    },
    report::Refusal,
};

fn without_status(log: &[String]) -> Vec<&str> {
    log.iter().map(String::as_str).filter(|word| *word != "status").collect()
}

#[test]
fn a_worker_passes_all_phases_in_order() {
    let mut one = One::worker().disrupted();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert_eq!(
        without_status(&one.log),
        [
            "condition Waiting",
            "gate Stage",
            "claim",
            "guard",
            "gate Upgrade",
            "condition ExternalUpgradeInProgress",
            "cordon",
            "evict",
            "gate Disrupt",
            "uncordon",
            "unguard",
            "condition UpToDate",
            "release",
        ]
    );
    assert!(one.annotations().is_empty());
    assert!(!one.node().unwrap().unschedulable);
    assert_eq!(one.slots(), 0);
}

#[test]
fn a_control_plane_member_claims_a_slot_before_its_plan() {
    let mut one = One::control_plane().disrupted();
    one.settle_with_static_pods();
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.status());
    let words = without_status(&one.log);
    let place = |word| words.iter().position(|w| *w == word).unwrap();
    assert!(place("claim") < place("gate Stage"));
    assert_eq!(one.status().role, Some(Role::FirstControlPlane));
}

#[test]
fn every_step_is_listed_in_order_and_ends() {
    let mut one = One::control_plane().disrupted();
    one.settle_with_static_pods();
    let status = one.status();
    let names: Vec<_> = status.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "preflight",
            "stage",
            "snapshot",
            "kubeadm-install",
            "kubeadm-upgrade",
            "cordon",
            "drain",
            "kubelet-install",
            "kubelet-restart",
            "verify",
            "node-ready",
            "uncordon",
        ]
    );
    for step in &status.steps {
        assert_eq!(step.state, StepState::Done, "{step:?}");
        assert!(step.started_at.is_some() && step.finished_at.is_some(), "{step:?}");
    }
    assert_eq!(status.progress.unwrap().percent, 100);
    assert_eq!(status.from_version, FROM.parse().ok());
}

#[test]
fn durations_are_recorded_with_the_release_of_the_slot() {
    let mut one = One::worker().disrupted();
    one.settle();
    let durations = &one.group.as_ref().unwrap().durations;
    assert!(durations.iter().any(|d| d.step == "kubelet-restart" && d.seconds == [5]));
    assert!(durations.iter().all(|d| d.seconds.len() == 1));
    one.update = update("m-0", 2);
    one.settle();
    let progress = one.status().progress.unwrap();
    assert!(progress.remaining_seconds.unwrap() > 0);
}

#[test]
fn without_past_durations_there_is_no_prediction() {
    let one = One::worker().staged();
    assert_eq!(one.status().progress.unwrap().remaining_seconds, None);
}

#[test]
fn staging_needs_no_slot_on_a_worker() {
    let mut one = One::worker();
    let busy = crate::group::slot("m-1", &"uid-m-1".into(), "m-1-1", at(0));
    one.group.as_mut().unwrap().slots.push(busy);
    one = one.staged();
    one.settle();
    assert_eq!((one.gate(), one.phase()), (Gate::Stage, Phase::Waiting));
    assert_eq!(one.blocked_by(), ["SlotBusy"]);
    assert_eq!(
        one.status().message,
        "waiting for m-1: as many machines of the group are unavailable as allowed"
    );
    assert_eq!(one.condition(), Some(("Unknown".into(), "Waiting".into())));
    one.group.as_mut().unwrap().slots.clear();
    one.settle();
    assert_eq!((one.gate(), one.phase()), (Gate::Upgrade, Phase::Upgrading));
}

fn hold_slots(one: &mut One, names: &[&str]) {
    let slot = |name: &&str| crate::group::slot(name, &format!("uid-{name}").into(), "u", at(0));
    one.group.as_mut().unwrap().slots = names.iter().map(slot).collect();
}

/// A worker that has prepared and waits for this machine.
fn waiting_for(name: &str) -> One {
    let mut one = One::worker();
    hold_slots(&mut one, &[name]);
    one = one.staged();
    one.settle();
    one
}

#[test]
fn an_update_names_the_same_machine_as_long_as_it_holds_a_slot() {
    let mut one = waiting_for("m-2");
    let mut named_with = |names: &[&str]| {
        hold_slots(&mut one, names);
        one.settle();
        one.status().blocked_by[0].object.clone()
    };
    assert_eq!(named_with(&["m-2"]), "m-2");
    assert_eq!(named_with(&["m-1", "m-2"]), "m-2");
    assert_eq!(named_with(&["m-1"]), "m-1");
}

#[test]
fn an_update_claims_a_free_slot_before_it_shows_that_it_waits_no_more() {
    let mut one = waiting_for("m-2");
    hold_slots(&mut one, &[]);
    let decision = one.decide();
    assert!(
        matches!(decision.write, Some(Write::Management(ManagementWrite::ClaimSlot(_)))),
        "{:?}",
        decision.write
    );
    assert_eq!(decision.announce.len(), 0, "events belong to the status that announces them");
    one.settle();
    assert_eq!((one.phase(), one.blocked_by().len()), (Phase::Upgrading, 0));
}

#[test]
fn an_update_shows_that_its_node_is_ready_again_before_it_claims_a_slot() {
    let mut one = One::worker().staged();
    one.node_mut().ready = false;
    one.settle();
    assert_eq!((one.slots(), one.blocked_by()), (0, vec!["NodeNotReady".to_owned()]));
    one.node_mut().ready = true;
    assert_eq!(one.decide().write, Some(Write::STATUS));
}

#[test]
fn nothing_is_disturbed_before_the_slot_is_held() {
    let mut one = One::worker().staged();
    while one.gate() < Gate::Upgrade {
        assert!(!one.node().unwrap().unschedulable);
        assert!(one.step());
    }
    assert_eq!(one.slots(), 1);
    assert!(one.annotations().contains_key(keys::SKIP_REMEDIATION));
    assert!(one.annotations().contains_key(keys::PRE_DRAIN_HOOK));
}

#[test]
fn a_plan_waits_until_its_host_has_passed_the_gate() {
    let mut one = One::worker();
    one.settle();
    assert_eq!((one.gate(), one.phase()), (Gate::Stage, Phase::Staging));
    one.settle();
    assert_eq!(one.gate(), Gate::Stage);
}

#[test]
fn an_admins_cordon_during_the_update_survives() {
    let mut one = One::worker().staged();
    while one.slots() == 0 {
        assert!(one.step());
    }
    one.node_mut().unschedulable = true;
    one.settle();
    one.host_works();
    one.settle();
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(one.node().unwrap().unschedulable);
    assert_eq!(one.node().unwrap().cordoned_by, None);
    assert!(!one.status().cordoned_by_us);
    assert_eq!(one.slots(), 0);
}

#[test]
fn a_node_uncordoned_during_its_drain_is_cordoned_again() {
    let mut one = One::worker().upgraded();
    one.node_mut().unschedulable = true;
    while one.phase() != Phase::Draining {
        assert!(one.step());
    }
    one.pods.push(pod("web-9"));
    one.node_mut().unschedulable = false;
    one.settle();
    assert!(one.node().unwrap().cordoned_by_us());
    assert!(one.status().cordoned_by_us);
}

#[test]
fn a_single_node_is_not_drained_and_the_status_shows_it() {
    let mut one = One::worker();
    one.nodes.truncate(1);
    one.limits = crate::group::Limits { replicas: 1, max_unavailable: 1 };
    one.others.clear();
    one = one.disrupted();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(!one.log.contains(&"cordon".to_owned()));
    assert!(!one.log.contains(&"evict".to_owned()));
    for name in ["cordon", "drain"] {
        let step = one.status().steps.into_iter().find(|step| step.name == name).unwrap();
        assert_eq!(step.state, StepState::Skipped);
        assert_eq!(step.message, "no other node can run the pods");
    }
}

#[test]
fn tainted_nodes_take_only_pods_of_equally_tainted_nodes() {
    let mut one = One::worker();
    for node in &mut one.nodes[1..] {
        node.taints = vec!["node-role.kubernetes.io/control-plane".into()];
    }
    let worker = one.clone().disrupted();
    assert!(!worker.log.contains(&"cordon".to_owned()));
    one.node_mut().taints = vec!["node-role.kubernetes.io/control-plane".into()];
    let like = one.disrupted();
    assert!(like.log.contains(&"cordon".to_owned()));
}

#[test]
fn a_node_is_drained_while_others_are_updated() {
    let mut one = One::worker();
    for node in &mut one.nodes[1..] {
        node.unschedulable = true;
        node.ready = false;
        node.taints = vec![
            "node.kubernetes.io/not-ready".into(),
            "node.cluster.x-k8s.io/uninitialized".into(),
        ];
    }
    let drained = one.disrupted();
    assert!(drained.log.contains(&"cordon".to_owned()));
    assert!(drained.log.contains(&"evict".to_owned()));
}

#[test]
fn daemon_sets_mirror_pods_and_ended_pods_stay() {
    let mut one = One::worker();
    let keep = |name: &str| pod(name);
    one.pods = vec![
        crate::node::PodView { daemon_set: true, ..keep("ds") },
        crate::node::PodView { mirror: true, ..keep("mirror") },
        crate::node::PodView { finished: true, ..keep("job") },
    ];
    one = one.disrupted();
    assert!(!one.log.contains(&"evict".to_owned()));
    assert_eq!(one.gate(), Gate::Disrupt);
    assert_eq!(one.pods.len(), 3);
}

#[test]
fn a_terminating_pod_is_not_evicted_again() {
    let mut one = One::worker().upgraded();
    one.pods = vec![crate::node::PodView { terminating: true, ..pod("web-1") }];
    one.settle();
    assert!(!one.log.contains(&"evict".to_owned()));
    assert_eq!((one.gate(), one.phase()), (Gate::Upgrade, Phase::Draining));
    one.pods.clear();
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn a_budget_blocks_the_drain_until_it_allows_evictions() {
    let mut one = One::worker().upgraded();
    one.refusals = vec![EvictionRefusal {
        pod: pod("web-1").pod,
        refusal: Refusal::PodDisruptionBudget {
            budget: "default/web".into(),
            pod: "default/web-1".into(),
        },
    }];
    while one.log.last().map(String::as_str) != Some("evict") {
        assert!(one.step());
        if one.log.iter().any(|word| word == "evict") {
            break;
        }
    }
    assert_eq!(one.blocked_by(), ["PodDisruptionBudget"]);
    assert_eq!(one.status().blocked_by[0].object, "default/web");
    assert!(one.events.iter().any(|event| event.reason == "DrainBlocked"));
    let since = one.status().blocked_by[0].since.clone();
    // A repeated rejection does not write the status again.
    let before = one.log.len();
    for _ in 0..3 {
        one.step();
    }
    assert!(one.log[before..].iter().all(|word| word == "evict"), "{:?}", &one.log[before..]);
    assert_eq!(one.status().blocked_by[0].since, since);
    one.refusals.clear();
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
    assert!(one.blocked_by().is_empty());
}

type Break = fn(&mut One);

#[test]
fn the_node_must_come_back_in_the_desired_state() {
    let ready = One::worker().disrupted();
    let broken: [(&str, Break); 4] = [
        ("NodeNotReady", |one| one.node_mut().ready = false),
        ("NodeNotVerified", |one| {
            one.node_mut().kubelet_version = FROM.into();
        }),
        ("NodeNotVerified", |one| {
            one.node_mut().heartbeat = Some(at(0));
        }),
        ("NodeNotReady", |one| {
            one.nodes.retain(|node| node.name != "m-0");
        }),
    ];
    for (reason, break_it) in broken {
        let mut one = ready.clone();
        break_it(&mut one);
        one.settle();
        assert_eq!(one.phase(), Phase::Verifying);
        assert_eq!(one.blocked_by(), [reason]);
        assert_eq!(one.slots(), 1);
    }
}

#[test]
fn a_missing_heartbeat_names_a_restart_in_the_future() {
    for (restarted_in, is_named) in [(-1, false), (600, true)] {
        let mut one = One::worker().disrupted();
        let now = one.now;
        one.node_mut().heartbeat = Some(at(now - 60));
        let report = one.plan.as_mut().unwrap().status.as_mut().unwrap();
        let restart = report.steps.iter_mut().find(|step| step.id == StepType::KubeletRestart.id());
        restart.unwrap().started_at = Some(Time(at(now + restarted_in)));
        one.settle();
        let message = one.status().blocked_by.remove(0).message;
        assert!(message.contains("no heartbeat since its kubelet was restarted"), "{message}");
        assert_eq!(message.contains("dates the restart in the future"), is_named, "{message}");
    }
}

#[test]
fn an_unexpected_kubelet_version_is_named() {
    let reports = [
        (FROM, "its kubelet still reports v1.34.2"),
        ("", "its kubelet still reports no version"),
        ("1.35", "its kubelet still reports \"1.35\", which is not a version"),
    ];
    for (reported, expected) in reports {
        let mut one = One::worker().disrupted();
        one.node_mut().kubelet_version = reported.into();
        one.settle();
        let blocker = one.status().blocked_by.remove(0);
        assert!(blocker.message.contains(expected), "{}", blocker.message);
    }
}

#[test]
fn the_static_pods_of_a_control_plane_must_run_the_goal() {
    let ready = One::control_plane().disrupted();
    let mut old = ready.clone();
    old.static_pods.iter_mut().find(|pod| pod.node == "m-0").unwrap().version =
        ImageVersion::of_tag(FROM);
    old.settle();
    assert_eq!(old.phase(), Phase::Verifying);
    let mut other = ready.clone();
    other.static_pods.iter_mut().find(|pod| pod.node == "m-0").unwrap().version =
        ImageVersion::of_tag("latest");
    other.settle();
    assert_eq!(other.phase(), Phase::Verifying, "an invalid tag is not the goal");
    let mut ill = ready.clone();
    ill.static_pods.iter_mut().filter(|pod| pod.node == "m-0").for_each(|pod| pod.ready = false);
    ill.settle();
    assert_eq!(ill.blocked_by(), ["NodeNotVerified"]);
    let mut blind = ready;
    for pod in &mut blind.static_pods {
        *pod = StaticPod { version: ImageVersion::Untagged, ..pod.clone() };
    }
    blind.settle_with_static_pods();
    assert_eq!(blind.phase(), Phase::Succeeded);
}

#[test]
fn static_pods_must_settle_after_a_kubelet_restart() {
    let mut one = One::control_plane().disrupted();
    one.settle();
    let why = &one.status().blocked_by[0].message;
    assert!(why.contains("checked 10 s after"), "{why}");
    let before = one.decide().requeue.unwrap();
    one.now += 2;
    let later = one.decide().requeue.unwrap();
    assert_eq!(before, later + Duration::from_secs(2));
    // The kubelet detects the change and recreates the pods.
    one.static_pods.iter_mut().for_each(|pod| pod.ready = false);
    one.settle_with_static_pods();
    assert_eq!(one.phase(), Phase::Verifying);
    one.static_pods.iter_mut().for_each(|pod| pod.ready = true);
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_clock_set_back_does_not_hold_up_a_control_plane() {
    let mut one = One::control_plane().disrupted();
    one.now += 3600;
    one.settle();
    assert_eq!(one.phase(), Phase::Verifying);
    one.now -= 3600;
    one.settle_with_static_pods();
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
}

#[test]
fn a_requested_reboot_is_planned_and_verified_on_the_node() {
    let mut one = One::worker();
    one.reboot = Reboot::Always;
    one = one.disrupted();
    let plan = one.plan.as_mut().unwrap();
    let ids: Vec<_> = plan.spec.steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!(ids[ids.len() - 2..], ["reboot", "verify"]);
    plan.status.as_mut().unwrap().facts.boot_id = "boot-2".into();
    one.settle();
    assert_eq!(one.blocked_by(), ["NodeNotVerified"]);
    one.node_mut().boot_id = "boot-2".into();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_repeated_decision_is_the_same() {
    let mut one = One::control_plane();
    for _ in 0..60 {
        assert_eq!(one.decide(), one.decide());
        if !one.step() {
            one.host_works();
            if one.gate() == Gate::Disrupt {
                one.kubelet_returns();
            }
        }
    }
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn the_condition_follows_the_phase() {
    let mut one = One::worker();
    let mut seen = Vec::new();
    for _ in 0..80 {
        if !one.step() {
            one.host_works();
            if one.gate() == Gate::Disrupt {
                one.kubelet_returns();
            }
        }
        if let Some((status, reason)) = one.condition() {
            let both = format!("{status}/{reason}");
            if seen.last() != Some(&both) {
                seen.push(both);
            }
        }
    }
    assert_eq!(seen, ["Unknown/Waiting", "Unknown/ExternalUpgradeInProgress", "True/UpToDate"]);
}

#[test]
fn no_status_message_names_both_versions() {
    let mut one = One::worker();
    for _ in 0..80 {
        let status = one.status();
        assert!(!(status.message.contains(FROM) && status.message.contains(GOAL)));
        if !one.step() {
            one.host_works();
            if one.gate() == Gate::Disrupt {
                one.kubelet_returns();
            }
        }
    }
}

#[test]
fn each_start_and_end_emits_one_event() {
    let mut one = One::worker().disrupted();
    one.settle();
    let reasons: Vec<_> = one.events.iter().map(|event| event.reason).collect();
    assert_eq!(reasons, ["UpdateStarted", "Draining", "UpdateSucceeded"]);
}

#[test]
fn the_other_machines_are_read_only_while_one_more_may_be_disturbed() {
    let reads = |one: &One| {
        let mut snapshot = one.snapshot(None);
        let GroupState::Present(group) = &mut snapshot.group else { panic!("there is a group") };
        let read = Arc::new(AtomicBool::new(false));
        let (note, known) = (read.clone(), group.others.clone());
        group.others = Others::read_on_use(move || {
            note.store(true, Ordering::Relaxed);
            OtherMachines::clone(&known)
        });
        decide(&snapshot, at(one.now));
        read.load(Ordering::Relaxed)
    };
    let mut one = One::worker().awaited();
    one.settle();
    assert_eq!((one.phase(), reads(&one)), (Phase::Staging, false));
    one.host_works();
    assert!(reads(&one), "the claim");
    one.settle();
    assert_eq!((one.phase(), reads(&one)), (Phase::Upgrading, false));
    one.host_works();
    one.settle();
    assert_eq!((one.phase(), reads(&one)), (Phase::Disrupting, false));
    one.host_works();
    one.settle();
    assert_eq!((one.phase(), reads(&one)), (Phase::Verifying, false));
}
