//! Facts of the host that cannot be read.

use refit_kinds::refit::{Gate, HostFacts, HostPlanStatus, HostStepStatus, PlanState, StepState};

use serde_json::json;

use crate::common::{Kill, NEW, OLD, Switch, World, spec, worker_steps};

fn break_fact(world: &World, fact: &str) {
    world.host.lock().unwrap().troubles.unreadable.insert(fact.to_owned());
}

fn mend(world: &World) {
    world.host.lock().unwrap().mend();
}

fn unread(facts: &HostFacts) -> Vec<&str> {
    facts.unread.iter().map(|unread| &*unread.fact).collect()
}

fn step<'a>(status: &'a HostPlanStatus, id: &str) -> &'a HostStepStatus {
    status.steps.iter().find(|step| step.id == id).expect(id)
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_read_the_packages_reports_the_rest_and_accepts_no_plan() {
    let world = World::new().await;
    break_fact(&world, "packages");
    world.run_for(30).await;
    let facts = world.status().await.facts;
    assert_eq!(unread(&facts), ["packages"]);
    assert_eq!(facts.kubelet_version, OLD.parse().ok());
    assert_eq!(facts.boot_id, world.host_state().boot_id);
    world.order_plan("p1", Gate::Disrupt, &worker_steps(NEW, false)).await;
    world.run_for(60).await;
    let status = world.status().await;
    assert_eq!((&*status.plan_id, status.state), ("p1", PlanState::Retrying));
    let first = &status.steps[0];
    assert_eq!((first.state, &*first.reason), (StepState::Pending, "HostUnreadable"));
    assert!(first.message.contains("cannot read packages"), "{}", first.message);
    assert!(status.steps.iter().all(|step| step.attempt == 0), "{:#?}", status.steps);
    mend(&world);
    let status = world.run_to(PlanState::Succeeded).await;
    assert!(unread(&status.facts).is_empty(), "{:?}", status.facts);
    // The plan that has ended does not hide that the next one waits.
    break_fact(&world, "packages");
    world.order_plan("p2", Gate::Disrupt, &worker_steps("v1.36.0", false)).await;
    world.run_for(60).await;
    let status = world.status().await;
    assert_eq!((&*status.plan_id, status.passed), ("p2", Gate::Closed));
    assert_eq!(status.steps[0].reason, "HostUnreadable");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_read_the_packages_ends_a_plan_that_is_aborted() {
    let world = World::new().await;
    break_fact(&world, "packages");
    let steps = worker_steps(NEW, false);
    world.order_plan("p1", Gate::Disrupt, &steps).await;
    world.run_for(60).await;
    assert_eq!(world.status().await.state, PlanState::Retrying);
    let mut aborted = spec("p1", Gate::Disrupt, &steps);
    aborted["abort"] = json!(true);
    world.order(&aborted).await;
    let status = world.run_to(PlanState::Stopped).await;
    assert_eq!(unread(&status.facts), ["packages"]);
    assert!(status.left_behind.is_empty(), "{status:#?}");
    assert!(status.steps.iter().all(|step| step.attempt == 0), "{status:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_read_its_host_at_all_reports_that() {
    let world = World::new().await;
    for fact in ["kubeletVersion", "bootID", "osImage", "packages"] {
        break_fact(&world, fact);
    }
    world.run_for(30).await;
    let status = world.status().await;
    assert_eq!(unread(&status.facts), ["bootID", "kubeletVersion", "osImage", "packages"]);
    assert!(status.facts.unread.iter().all(|unread| unread.message.contains("simulated")));
    assert!(status.reported_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_last_value_of_a_fact_is_kept_and_the_fact_is_marked() {
    let world = World::new().await;
    world
        .run_until(&Switch::new(Kill::Never), 700, async |world: &World| {
            let facts = world.status().await.facts;
            if facts.boot_id.is_empty() {
                return false;
            }
            break_fact(world, "osImage");
            let is_marked = unread(&facts) == ["osImage"];
            assert!(!is_marked || facts.os_image == world.host_state().facts().os_image);
            is_marked
        })
        .await;
    assert_eq!(unread(&world.status().await.facts), ["osImage"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_does_not_start_on_a_host_whose_boot_is_not_known() {
    let world = World::new().await;
    let steps = worker_steps(NEW, false);
    world.order_plan("p1", Gate::Stage, &steps).await;
    world.run_to(PlanState::AtGate).await;
    break_fact(&world, "bootID");
    world.order_plan("p1", Gate::Disrupt, &steps).await;
    world.run_for(60).await;
    let status = world.status().await;
    let next = step(&status, "kubeadm-install");
    assert_eq!((next.state, &*next.reason), (StepState::Pending, "HostUnreadable"));
    assert_eq!(next.attempt, 0);
    mend(&world);
    let status = world.run_to(PlanState::Succeeded).await;
    assert_eq!(step(&status, "kubeadm-install").reason, "");
}
