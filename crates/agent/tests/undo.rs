//! Failed and stopped plans: finished steps are rolled back whatever is killed and when, and what
//! remains is reported.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use crate::common::{Kill, NEW, OLD, Switch, World, reversible, worker_steps};
use refit_kinds::refit::{FailureKind, Gate, HostPlanStatus, PlanState, Role, StepState};
use serde_json::json;

fn states(status: &HostPlanStatus) -> Vec<(&str, StepState)> {
    let steps = status.steps.iter();
    steps.map(|step| (step.id.as_str(), step.state)).collect()
}

/// The part of the host that a rollback must restore.
fn packages_and_config(world: &World) -> BTreeMap<String, String> {
    let root = world.host_state().root.into_iter();
    let before =
        |path: &String| path.starts_with("/packages/") || path.starts_with("/var/lib/kubelet");
    root.filter(|(path, _)| before(path)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_a_failing_new_kubelet_is_rolled_back() {
    let world = World::new().await;
    let before = packages_and_config(&world);
    world.break_step("verify", 99);
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    let status = world.run_to(PlanState::Failed).await;
    assert_eq!(packages_and_config(&world), before);
    assert_eq!(status.facts.kubelet_version, OLD.parse().ok());
    assert!(!status.past_no_return);
    assert_eq!(status.left_behind, Vec::<String>::new());
    assert_eq!(
        states(&status),
        [
            ("preflight", StepState::Done),
            ("stage", StepState::Done),
            ("kubeadm-install", StepState::Undone),
            ("kubeadm-upgrade", StepState::Undone),
            ("kubelet-install", StepState::Undone),
            ("kubelet-restart", StepState::Undone),
            ("verify", StepState::Failed),
            ("undo-kubeadm-install", StepState::Done),
            ("undo-kubeadm-upgrade", StepState::Done),
            ("undo-kubelet-install", StepState::Done),
            ("undo-kubelet-restart", StepState::Done),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_kubeadm_without_changes_is_rolled_back() {
    let world = World::new().await.control_plane();
    let before = packages_and_config(&world);
    world.break_step("kubeadm-upgrade", 99);
    world.order(&reversible("p1", Gate::Disrupt, Role::FirstControlPlane)).await;
    let status = world.run_to(PlanState::Failed).await;
    assert_eq!(packages_and_config(&world), before);
    assert_eq!((status.past_no_return, status.left_behind), (false, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_past_no_return_reports_what_it_keeps() {
    let world = World::new().await.control_plane();
    world.break_step("kubelet-install", 99);
    world.order(&reversible("p1", Gate::Disrupt, Role::FirstControlPlane)).await;
    let status = world.run_to(PlanState::Failed).await;
    assert!(status.past_no_return);
    assert!(!status.steps.iter().any(|step| step.id.starts_with("undo-")));
    let left = status.left_behind.join(" ");
    assert!(left.contains("kubeadm-install") && left.contains("kubeadm-upgrade"), "{left}");
    let host = world.host_state();
    assert_eq!(host.static_pod_version("kube-apiserver").as_deref(), Some(NEW));
}

#[tokio::test(start_paused = true)]
async fn a_failed_undo_is_reported_and_the_others_run() {
    let world = World::new().await;
    world.break_step("kubelet-restart", 99);
    world.break_step("undo-kubeadm-upgrade", 99);
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    let status = world.run_to(PlanState::Failed).await;
    assert_eq!(status.left_behind.len(), 1, "{:?}", status.left_behind);
    assert!(status.left_behind[0].contains("undo-kubeadm-upgrade failed (CommandFailed)"));
    assert_eq!(status.facts.packages["kubelet"], "1.34.2-1.1");
}

#[tokio::test(start_paused = true)]
async fn an_abort_before_no_return_rolls_everything_back() {
    let world = World::new().await;
    let before = packages_and_config(&world);
    world.order(&reversible("p1", Gate::Upgrade, Role::Worker)).await;
    let switch = Switch::new(Kill::Never);
    let upgraded = async |world: &World| world.status().await.passed == Gate::Upgrade;
    assert!(world.run_until(&switch, 500, upgraded).await);
    let mut aborted = reversible("p1", Gate::Upgrade, Role::Worker);
    aborted["abort"] = json!(true);
    world.order(&aborted).await;
    let status = world.run_to(PlanState::Stopped).await;
    assert_eq!(packages_and_config(&world), before);
    assert_eq!(status.left_behind, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_full_host_disk_requires_manual_intervention() {
    let world = World::new().await;
    world.host.lock().unwrap().troubles.disk_full = true;
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    let status = world.run_to(PlanState::Failed).await;
    let stage = &status.steps[1];
    assert_eq!((stage.state, stage.attempt), (StepState::Failed, 1));
    assert_eq!(stage.reason, "DiskFull");
    assert_eq!(stage.failure, Some(FailureKind::NeedsPerson));
}

#[tokio::test(start_paused = true)]
async fn a_full_agent_disk_pauses_the_plan_with_a_reason() {
    let world = World::new().await;
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    let switch = Switch::new(Kill::Never);
    let upgrading = async |world: &World| world.host_state().runs.contains_key("kubeadm-upgrade");
    assert!(world.run_until(&switch, 500, upgrading).await);
    world.disk_full.store(true, Ordering::Relaxed);
    world.run_for(600).await;
    let status = world.status().await;
    assert!(status.steps.iter().any(|step| step.reason == "JournalNotWritable"), "{status:#?}");
    let host = world.host_state();
    assert_eq!(host.installed("kubelet").map(String::from).as_deref(), Some(OLD));
    world.disk_full.store(false, Ordering::Relaxed);
    let status = world.run_to(PlanState::Succeeded).await;
    assert_eq!(status.facts.kubelet_version, NEW.parse().ok());
    assert_eq!(world.host_state().runs["kubeadm-upgrade"], 1);
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_the_api_does_not_stop_work_up_to_the_gate() {
    let world = World::new().await;
    world.order(&reversible("p1", Gate::Upgrade, Role::Worker)).await;
    world.run_for(5).await;
    world.api_down(true);
    let switch = Switch::new(Kill::Never);
    world.run_until(&switch, 3600, async |_| false).await;
    assert_eq!(world.host_state().runs["kubeadm-upgrade"], 1);
    world.api_down(false);
    let status = world.run_to(PlanState::AtGate).await;
    assert_eq!(status.passed, Gate::Upgrade);
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    world.run_to(PlanState::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_cut_short_by_a_power_failure_is_retried() {
    let world = World::new().await;
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    let switch = Switch::new(Kill::Never);
    let upgrading = async |world: &World| world.host_state().runs.contains_key("kubeadm-upgrade");
    assert!(world.run_until(&switch, 500, upgrading).await);
    power_cut(&world);
    let status = world.run_to(PlanState::Succeeded).await;
    let step = status.steps.iter().find(|step| step.id == "kubeadm-upgrade").unwrap();
    assert_eq!((step.attempt, world.host_state().runs["kubeadm-upgrade"]), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_always_crashes_its_host_is_rolled_back() {
    let world = World::new().await;
    let before = packages_and_config(&world);
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    for run in 1..=3 {
        let switch = Switch::new(Kill::Never);
        let upgrading_again =
            async |world: &World| world.host_state().runs.get("kubeadm-upgrade") == Some(&run);
        assert!(world.run_until(&switch, 500, upgrading_again).await, "run {run}");
        power_cut(&world);
    }
    let status = world.run_to(PlanState::Failed).await;
    let step = status.steps.iter().find(|step| step.id == "kubeadm-upgrade").unwrap();
    assert_eq!((step.attempt, step.reason.as_str()), (3, "Interrupted"));
    assert_eq!(packages_and_config(&world), before);
}

fn power_cut(world: &World) {
    let mut host = world.host.lock().expect("no holder panics");
    host.power_off(world.clock.now());
    host.power_on(world.clock.now());
}

/// State that must be the same wherever the agent was killed.
#[derive(Debug, PartialEq)]
struct End {
    runs: BTreeMap<String, u32>,
    root: BTreeMap<String, String>,
    steps: Vec<(String, StepState, i32)>,
    left: Vec<String>,
}

/// Runs a plan whose verification fails for good, with a kill. Returns the final state and the
/// effects before the kill.
async fn killed(kill: Kill, away: Duration) -> (End, Vec<String>) {
    let world = World::new().await;
    world.break_step("verify", 99);
    world.order(&reversible("p1", Gate::Disrupt, Role::Worker)).await;
    let failed = async |world: &World| world.status().await.state == PlanState::Failed;
    let switch = Switch::new(kill);
    if !world.run_until(&switch, 2000, failed).await {
        tokio::time::sleep(away).await;
        let again = Switch::new(Kill::Never);
        assert!(world.run_until(&again, 2000, failed).await, "{kill:?}");
    }
    let status = world.status().await;
    let host = world.host_state();
    let steps = status.steps.into_iter();
    let end = End {
        runs: host.runs,
        root: host.root,
        steps: steps.map(|step| (step.id, step.state, step.attempt)).collect(),
        left: status.left_behind,
    };
    (end, switch.effects())
}

/// A kill may add one attempt to a verification that fails anyway.
#[tokio::test(start_paused = true)]
async fn a_kill_at_any_effect_of_an_undo_repeats_nothing() {
    let (expected, effects) = killed(Kill::Never, Duration::ZERO).await;
    assert_eq!(expected.runs["kubeadm-upgrade"], 1);
    assert_eq!(expected.runs["kubelet-restart"], 2, "once forth and once back");
    let first = effects.iter().position(|effect| effect.contains("undo-")).unwrap();
    let undo: Vec<_> = effects.iter().enumerate().skip(first.saturating_sub(2)).collect();
    assert!(undo.len() > 12, "{effects:#?}");
    for (number, effect) in undo {
        for kill in [Kill::Before(number), Kill::After(number)] {
            let away = if number % 2 == 0 { Duration::ZERO } else { Duration::from_mins(2) };
            let (end, seen) = killed(kill, away).await;
            assert_eq!(end, expected, "{kill:?} at {effect}, away {away:?}");
            assert_eq!(seen.len(), number + 1, "the kill at {effect} fires");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_of_an_older_controller_is_rolled_back_as_before() {
    let world = World::new().await;
    world.break_step("kubeadm-install", 99);
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, false)).await;
    let status = world.run_to(PlanState::Failed).await;
    assert_eq!(status.steps.last().unwrap().id, "undo-kubeadm-install");
    assert_eq!(status.left_behind, Vec::<String>::new());
}
