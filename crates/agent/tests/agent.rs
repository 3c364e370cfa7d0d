//! The whole agent against an in-process API server, a simulated disk and a simulated host.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, time::Duration};

use crate::common::{Kill, NEW, NODE, OLD, Switch, World, spec, worker_steps};
use refit_agent::PolicyFile;
use refit_kinds::refit::{FailureKind, Gate, PlanState, StepState};
use refit_kinds::version::KubernetesVersion;
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn the_agent_creates_its_host_plan_and_reports_without_a_plan() {
    let world = World::new().await;
    world.run_for(2).await;
    let plan = world.plan().await.expect("a HostPlan");
    assert_eq!(plan.spec.plan_id, "");
    let status = plan.status.expect("a report");
    assert_eq!(status.facts.kubelet_version, OLD.parse().ok());
    assert_eq!(status.facts.boot_id, world.host_state().boot_id);
    assert_eq!(status.state, PlanState::Idle);
    assert!(status.reported_at.is_some() && !status.capabilities.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_host_plan_is_created_once_its_crd_is_installed() {
    let world = World::bare();
    let switch = Switch::new(Kill::Never);
    world.run_until(&switch, 60, async |_| false).await;
    world.install().await;
    world.run_for(60).await;
    assert!(world.plan().await.expect("a HostPlan").status.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_whole_plan_succeeds_and_reports_each_step() {
    let world = World::new().await;
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, true)).await;
    let status = world.run_to(PlanState::Succeeded).await;
    assert_eq!(status.plan_id, "p1");
    assert_eq!(status.passed, Gate::Disrupt);
    assert_eq!(status.facts.kubelet_version, NEW.parse().ok());
    for step in &status.steps {
        assert_eq!((step.state, step.attempt), (StepState::Done, 1), "{step:?}");
        assert!(step.started_at.is_some() && step.finished_at.is_some());
    }
    let host = world.host_state();
    assert_eq!(host.boots, 2);
    assert_eq!(status.facts.boot_id, host.boot_id);
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_the_hosts_policy_refuses_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.toml");
    let write = |text: &str, mode| {
        fs::write(&policy, text).unwrap();
        fs::set_permissions(&policy, fs::Permissions::from_mode(mode)).unwrap();
    };
    let mut world = World::new().await;
    world.policy = Some(PolicyFile::new(&policy));
    for (id, text, mode, step, reason) in [
        ("p1", "steps = [\"preflight\", \"stage\"]", 0o644, "kubeadm-install", "PolicyForbids"),
        ("p2", "", 0o666, "preflight", "PolicyUnusable"),
        ("p3", "step = []", 0o644, "preflight", "PolicyUnusable"),
    ] {
        write(text, mode);
        world.order_plan(id, Gate::Stage, &worker_steps(NEW, false)).await;
        let status = world.run_until_ended(id).await;
        assert_eq!(status.state, PlanState::Failed, "{status:#?}");
        let failed = status.steps.iter().find(|step| step.state == StepState::Failed).unwrap();
        assert_eq!((&*failed.id, &*failed.reason), (step, reason), "{}", failed.message);
        assert_eq!(failed.failure, Some(FailureKind::NeedsPerson));
        assert!(failed.message.contains(&policy.display().to_string()), "{}", failed.message);
        assert!(world.host_state().runs.is_empty() && status.left_behind.is_empty());
    }
    // It is read again for each plan.
    write("paths = []\nrepositories = []", 0o644);
    world.order_plan("p4", Gate::Disrupt, &worker_steps(NEW, false)).await;
    let status = world.run_until_ended("p4").await;
    assert_eq!(status.state, PlanState::Succeeded, "{status:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_agent_waits_at_each_gate_until_it_opens() {
    let world = World::new().await;
    let steps = worker_steps(NEW, false);
    for (gate, passed, kubeadm, kubelet) in [
        (Gate::Closed, Gate::Closed, OLD, OLD),
        (Gate::Stage, Gate::Stage, OLD, OLD),
        (Gate::Upgrade, Gate::Upgrade, NEW, OLD),
    ] {
        world.order_plan("p1", gate, &steps).await;
        world.run_for(200).await;
        let status = world.status().await;
        assert_eq!((status.state, status.passed), (PlanState::AtGate, passed));
        let host = world.host_state();
        let installed = |name| host.installed(name).map(String::from).unwrap();
        assert_eq!(installed("kubeadm"), kubeadm);
        assert_eq!(installed("kubelet"), kubelet);
    }
    world.order_plan("p1", Gate::Disrupt, &steps).await;
    world.run_to(PlanState::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_twice_recovers() {
    let world = World::new().await;
    world.break_step("kubelet-install", 2);
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, false)).await;
    let status = world.run_to(PlanState::Succeeded).await;
    let step = status.steps.iter().find(|s| s.id == "kubelet-install");
    assert_eq!(step.unwrap().attempt, 3);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_keeps_failing_fails_the_plan_with_a_reason() {
    let world = World::new().await;
    world.break_step("kubeadm-upgrade", 99);
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, false)).await;
    let status = world.run_to(PlanState::Failed).await;
    let find = |id: &str| status.steps.iter().find(|s| s.id == id).unwrap();
    let failed = find("kubeadm-upgrade");
    assert_eq!((failed.state, failed.attempt), (StepState::Failed, 3));
    assert_eq!(failed.reason, "CommandFailed");
    assert!(failed.message.contains("simulated failure"), "{}", failed.message);
    let rest = find("kubelet-restart");
    assert_eq!(rest.state, StepState::Skipped);
    assert!(rest.message.contains("kubeadm-install"), "{}", rest.message);
}

#[tokio::test(start_paused = true)]
async fn the_packages_of_a_plan_stay_until_it_ends_in_whatever_way() {
    for (failures, end) in [(0, PlanState::Succeeded), (99, PlanState::Failed)] {
        let world = World::new().await;
        world.break_step("kubeadm-upgrade", failures);
        let steps = worker_steps(NEW, false);
        world.order_plan("p1", Gate::Stage, &steps).await;
        world.run_for(300).await;
        assert!(world.host_state().has_fetched());
        world.order_plan("p1", Gate::Disrupt, &steps).await;
        world.run_to(end).await;
        assert!(!world.host_state().has_fetched(), "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_before_no_return_restores_kubeadm() {
    let world = World::new().await;
    let steps = worker_steps(NEW, false);
    world.break_step("kubeadm-upgrade", 99);
    let mut early = steps.clone();
    early.remove(3);
    // Without the upgrade step the plan waits at the last gate with kubeadm installed.
    world.order_plan("p1", Gate::Upgrade, &early).await;
    world.run_to(PlanState::AtGate).await;
    world.run_for(120).await;
    assert_eq!(version_of(&world, "kubeadm"), NEW);
    let mut aborted = spec("p1", Gate::Upgrade, &early);
    aborted["abort"] = json!(true);
    world.order(&aborted).await;
    let status = world.run_to(PlanState::Stopped).await;
    assert_eq!(version_of(&world, "kubeadm"), OLD);
    let last = status.steps.last().unwrap();
    assert_eq!((last.id.as_str(), last.state), ("undo-kubeadm-install", StepState::Done));
}

fn version_of(world: &World, package: &str) -> String {
    let version: KubernetesVersion =
        world.host_state().installed(package).expect("it is installed");
    version.to_string()
}

#[tokio::test(start_paused = true)]
async fn an_abort_past_no_return_runs_to_the_open_gate() {
    let world = World::new().await;
    let steps = worker_steps(NEW, false);
    world.order_plan("p1", Gate::Disrupt, &steps).await;
    let switch = Switch::new(Kill::Never);
    let upgrading = async |world: &World| world.host_state().runs.contains_key("kubeadm-upgrade");
    assert!(world.run_until(&switch, 500, upgrading).await);
    let mut aborted = spec("p1", Gate::Disrupt, &steps);
    aborted["abort"] = json!(true);
    world.order(&aborted).await;
    let status = world.run_to(PlanState::Succeeded).await;
    assert_eq!(status.facts.kubelet_version, NEW.parse().ok());
}

#[tokio::test(start_paused = true)]
async fn another_plan_stops_the_first_and_then_runs() {
    let world = World::new().await;
    world.order_plan("p1", Gate::Stage, &worker_steps(NEW, false)).await;
    world.run_for(10).await;
    world.order_plan("p2", Gate::Disrupt, &worker_steps("v1.34.9", false)).await;
    let status = world.run_to(PlanState::Succeeded).await;
    assert_eq!(status.plan_id, "p2");
    assert_eq!(status.facts.kubelet_version, "v1.34.9".parse().ok());
}

#[tokio::test(start_paused = true)]
async fn a_to_b_to_a_does_the_work_again_each_time() {
    let world = World::new().await;
    for (id, version) in [("p1", NEW), ("p2", OLD), ("p3", NEW)] {
        world.order_plan(id, Gate::Disrupt, &worker_steps(version, false)).await;
        let switch = Switch::new(Kill::Never);
        let done = async |world: &World| {
            let status = world.status().await;
            status.plan_id == id && status.state == PlanState::Succeeded
        };
        assert!(world.run_until(&switch, 2000, done).await, "{id}");
        assert_eq!(world.status().await.facts.kubelet_version, version.parse().ok());
    }
    assert_eq!(world.host_state().runs["kubeadm-upgrade"], 3);
}

#[tokio::test(start_paused = true)]
async fn the_agent_continues_to_the_gate_without_the_api() {
    let world = World::new().await;
    world.order_plan("p1", Gate::Upgrade, &worker_steps(NEW, false)).await;
    world.run_for(10).await;
    world.api_down(true);
    world.run_for(400).await;
    assert_eq!(world.host_state().runs["kubeadm-upgrade"], 1);
    assert_eq!(version_of(&world, "kubelet"), OLD, "nothing past the gate");
    world.api_down(false);
    let status = world.run_to(PlanState::AtGate).await;
    assert_eq!(status.passed, Gate::Upgrade);
}

#[tokio::test(start_paused = true)]
async fn an_idle_agent_writes_only_its_heartbeat() {
    let world = World::new().await;
    world.run_for(5).await;
    let switch = Switch::new(Kill::Never);
    world.run_until(&switch, 1000, async |_| false).await;
    let effects = switch.effects();
    assert_eq!(effects.len(), 3, "{effects:#?}");
    let reported = world.status().await.reported_at.unwrap().0;
    assert!(world.clock.now().duration_since(reported).as_secs() < 300);
}

#[tokio::test(start_paused = true)]
async fn a_restart_writes_nothing_when_there_is_nothing_new() {
    let world = World::new().await;
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, false)).await;
    world.run_to(PlanState::Succeeded).await;
    let switch = Switch::new(Kill::Never);
    world.run_until(&switch, 60, async |_| false).await;
    assert_eq!(switch.effects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_host_plan_is_recreated_with_its_report() {
    let world = World::new().await;
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, false)).await;
    world.run_to(PlanState::Succeeded).await;
    let switch = Switch::new(Kill::Never);
    let deleted = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let parameters = kube::api::DeleteParams::default();
        world.api().delete(NODE, &parameters).await.unwrap();
    };
    tokio::join!(deleted, world.run_until(&switch, 30, async |_| false));
    let status = world.status().await;
    assert_eq!((&*status.plan_id, status.state), ("p1", PlanState::Succeeded));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_journal_stops_the_agent_with_a_reason() {
    let world = World::new().await;
    world.order_plan("p1", Gate::Stage, &worker_steps(NEW, false)).await;
    world.run_to(PlanState::AtGate).await;
    {
        let mut disk = world.disk.lock().unwrap();
        let text = disk.files.values_mut().next().unwrap();
        *text = text.replacen("preflight", "preflihgt", 1);
    }
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, false)).await;
    let status = world.run_to(PlanState::Failed).await;
    assert_eq!(status.steps[0].reason, "JournalCorrupt");
    assert_eq!(world.host_state().runs, BTreeMap::new());
}

/// State that must be the same wherever the agent was killed.
#[derive(Debug, PartialEq)]
struct End {
    state: PlanState,
    runs: BTreeMap<String, u32>,
    boots: u32,
    root: BTreeMap<String, String>,
    kubelet: Option<KubernetesVersion>,
    steps: Vec<(String, StepState, i32)>,
}

async fn end_of(world: &World) -> End {
    let status = world.status().await;
    let host = world.host_state();
    let steps = status.steps.into_iter().map(|step| (step.id, step.state, step.attempt)).collect();
    End {
        state: status.state,
        runs: host.runs,
        boots: host.boots,
        root: host.root,
        kubelet: status.facts.kubelet_version,
        steps,
    }
}

/// Runs a plan with a kill, then restarts the agent after `away`. Returns the final state and the
/// effects before the kill.
async fn killed(kill: Kill, away: Duration, forgetful: bool) -> (End, Vec<String>) {
    let mut world = World::new().await;
    world.forgetful = forgetful;
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, true)).await;
    let done = async |world: &World| match world.status().await.state {
        PlanState::Succeeded => true,
        // Without its journal an agent does not continue a plan.
        PlanState::Failed => forgetful,
        PlanState::Idle
        | PlanState::Running
        | PlanState::AtGate
        | PlanState::Retrying
        | PlanState::Undoing
        | PlanState::Stopped => false,
    };
    let switch = Switch::new(kill);
    let finished = world.run_until(&switch, 2000, done).await;
    if kill == Kill::Never {
        assert!(finished);
    } else if !finished {
        tokio::time::sleep(away).await;
        let restarted = Switch::new(Kill::Never);
        assert!(world.run_until(&restarted, 2000, done).await, "{kill:?}");
    }
    (end_of(&world).await, switch.effects())
}

/// Short enough that systemd still knows the unit, and long enough that it does not.
const AWAY: [Duration; 2] = [Duration::ZERO, Duration::from_mins(2)];

#[tokio::test(start_paused = true)]
async fn a_kill_at_any_effect_repeats_no_command() {
    let (expected, effects) = killed(Kill::Never, Duration::ZERO, false).await;
    for count in expected.runs.values() {
        assert_eq!(*count, 1, "{expected:?}");
    }
    assert_eq!(expected.runs.len(), 3);
    assert!(effects.len() > 25, "{effects:#?}");
    let mut fired = 0;
    for (number, effect) in effects.iter().enumerate() {
        for kill in [Kill::Before(number), Kill::After(number)] {
            for away in AWAY {
                let (end, seen) = killed(kill, away, false).await;
                assert_eq!(end, expected, "{kill:?} at {effect}, away {away:?}");
                fired += usize::from(seen.len() == number + 1);
            }
        }
    }
    assert_eq!(fired, effects.len() * 4, "every kill fires");
}

#[tokio::test(start_paused = true)]
async fn without_its_journal_the_agent_does_not_continue_a_plan() {
    let (expected, effects) = killed(Kill::Never, Duration::ZERO, true).await;
    assert_eq!(expected.state, PlanState::Succeeded);
    let mut failed = 0;
    for number in 0..effects.len() {
        let (end, _) = killed(Kill::After(number), AWAY[1], true).await;
        failed += usize::from(end.state == PlanState::Failed);
    }
    assert!(failed > 0);
}
