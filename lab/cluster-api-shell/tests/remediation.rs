//! MachineHealthChecks and how owners remediate unhealthy Machines.

use std::sync::Arc;

use crate::common::{NAMESPACE, Switch, World, api, manifests, resource};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
};
use refit_runtime::gate::Open;
use serde_json::{Value, json};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const FOR: &str = "controlplane.cluster.x-k8s.io/remediation-for";
const IN_PROGRESS: &str = "controlplane.cluster.x-k8s.io/remediation-in-progress";

fn check(selector: Value, trigger: Value) -> Value {
    json!({
        "apiVersion": CORE, "kind": "MachineHealthCheck",
        "metadata": {"namespace": NAMESPACE, "name": "edge-1"},
        "spec": {
            "clusterName": "edge-1",
            "selector": {"matchLabels": selector},
            "checks": {
                "unhealthyNodeConditions": [
                    {"type": "Ready", "status": "Unknown", "timeoutSeconds": 300},
                ],
                "unhealthyMachineConditions": [
                    {"type": "MachineUpToDate", "status": "False", "timeoutSeconds": 60},
                ],
            },
            "remediation": {"triggerIf": trigger},
        },
    })
}

fn of_workers(trigger: Value) -> Value {
    check(json!({"cluster.x-k8s.io/deployment-name": "edge-1-md-0"}), trigger)
}

fn of_control_plane() -> Value {
    check(json!({"cluster.x-k8s.io/control-plane": ""}), json!({}))
}

/// A running cluster with a MachineHealthCheck.
async fn world(control_planes: i64, workers: i64, check: Value) -> World {
    let world = World::new(&[
        manifests::extension_config(),
        manifests::control_plane(control_planes, 1),
        manifests::deployment(workers, 0, 1),
        check,
    ])
    .await;
    let status = json!({"status": {"conditions": [{
        "type": "ControlPlaneInitialized", "status": "True", "reason": "Initialized",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    api(&world.admin, CORE, "Cluster")
        .patch_status("edge-1", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    world
}

fn is_up(world: &World) -> bool {
    World::is_done(&world.deployment()) && World::is_done(&world.control_plane())
}

fn names(world: &World, control_plane: bool) -> Vec<String> {
    let machines = world.machines();
    let of_role = machines.iter().filter(|machine| {
        let label = &machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"];
        label.is_null() != control_plane
    });
    of_role.map(|machine| machine["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn condition(world: &World, machine: &str, type_: &str) -> (String, String) {
    let machine = world.one("cluster.x-k8s.io", "machines", machine);
    let conditions = machine["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|one| one["type"] == type_);
    let text = |key: &str| {
        let value = found.and_then(|found| found[key].as_str());
        value.unwrap_or_default().to_owned()
    };
    (text("status"), text("reason"))
}

async fn set_node_ready(world: &World, node: &str, status: &str) {
    let nodes: Api<DynamicObject> =
        Api::all_with(world.workload_admin.clone(), &resource("v1", "Node"));
    let now = world.clock.now_seconds().to_string();
    let body = json!({"status": {"conditions": [{
        "type": "Ready", "status": status, "reason": "R", "message": "",
        "lastTransitionTime": now,
    }]}});
    nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
}

async fn annotate(world: &World, machine: &str, key: &str, value: Value) {
    let body = json!({"metadata": {"annotations": {key: value}}});
    api(&world.admin, CORE, "Machine")
        .patch(machine, &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
}

fn uid_of(world: &World, name: &str) -> String {
    let machine = world.one("cluster.x-k8s.io", "machines", name);
    let uid = machine["metadata"]["uid"].as_str();
    uid.unwrap_or_default().to_owned()
}

/// Whether a Machine is gone and all others are healthy. Its successor may have the same name.
fn is_replaced(world: &World, uid: &str) -> bool {
    let machines = world.machines();
    !machines.iter().any(|one| one["metadata"]["uid"] == uid) && is_up(world)
}

fn uids(world: &World, control_plane: bool) -> Vec<String> {
    let names = names(world, control_plane);
    names.iter().map(|name| uid_of(world, name)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_a_silent_kubelet_is_replaced() {
    let world = world(1, 3, of_workers(json!({}))).await;
    world.run_open(10, is_up).await;
    let before = names(&world, false);
    let uids_before = uids(&world, false);
    let started = world.clock.now();
    set_node_ready(&world, &before[0], "Unknown").await;
    world.run_open(30, |world| is_replaced(world, &uids_before[0])).await;
    assert!(world.clock.now().duration_since(started).as_secs() >= 300);
    let after = uids(&world, false);
    let kept = after.iter().filter(|uid| uids_before.contains(uid)).count();
    assert_eq!((after.len(), kept), (3, 2));
    let status = world.one("cluster.x-k8s.io", "machinehealthchecks", "edge-1")["status"].clone();
    assert_eq!(status["expectedMachines"], 3);
    let events = world.list("", "events");
    let marked: Vec<_> =
        events.iter().filter(|event| event["reason"] == "MachineMarkedUnhealthy").collect();
    assert_eq!(marked.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_checked_world_at_rest_is_not_written_to() {
    let world = world(1, 2, of_workers(json!({}))).await;
    world.run_open(10, is_up).await;
    world.run_for(Arc::new(Open), 60).await;
    for name in names(&world, false) {
        assert_eq!(condition(&world, &name, "HealthCheckSucceeded").0, "True");
    }
    let switch = Arc::new(Switch::default());
    world.run_for(switch.clone(), 3600).await;
    assert_eq!(*switch.log.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn more_unhealthy_workers_than_allowed_are_left_alone() {
    let trigger = json!({"unhealthyLessThanOrEqualTo": 1});
    let world = world(1, 3, of_workers(trigger)).await;
    world.run_open(10, is_up).await;
    let before = names(&world, false);
    set_node_ready(&world, &before[0], "Unknown").await;
    set_node_ready(&world, &before[1], "Unknown").await;
    world.run_for(Arc::new(Open), 1800).await;
    assert_eq!(names(&world, false), before);
    let check = world.one("cluster.x-k8s.io", "machinehealthchecks", "edge-1");
    assert_eq!(check["status"]["conditions"][0]["reason"], "TooManyUnhealthy");
    assert_eq!(condition(&world, &before[0], "HealthCheckSucceeded").0, "False");
    assert_eq!(condition(&world, &before[0], "OwnerRemediated").0, "");
    // One is back: the other one alone does not indicate a site-wide failure.
    set_node_ready(&world, &before[1], "True").await;
    let sick = uid_of(&world, &before[0]);
    world.run_open(30, |world| is_replaced(world, &sick)).await;
    assert!(names(&world, false).contains(&before[1]));
}

#[tokio::test(start_paused = true)]
async fn a_failed_machine_is_replaced_and_a_waiting_one_is_not() {
    let world = world(1, 2, of_workers(json!({}))).await;
    world.run_open(10, is_up).await;
    let before = names(&world, false);
    let set_up_to_date = async |machine: &str, status: &str, reason: &str| {
        let machine_now = world.one("cluster.x-k8s.io", "machines", machine);
        let mut conditions = machine_now["status"]["conditions"].as_array().unwrap().clone();
        conditions.retain(|one| one["type"] != "MachineUpToDate");
        conditions.push(json!({
            "type": "MachineUpToDate", "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": world.clock.now_seconds().to_string(),
        }));
        let body = json!({"status": {"conditions": conditions}});
        api(&world.admin, CORE, "Machine")
            .patch_status(machine, &PatchParams::default(), &Patch::Merge(&body))
            .await
            .unwrap();
    };
    set_up_to_date(&before[0], "Unknown", "Waiting").await;
    set_up_to_date(&before[1], "Unknown", "Updating").await;
    world.run_for(Arc::new(Open), 1800).await;
    assert_eq!(names(&world, false), before);
    set_up_to_date(&before[0], "False", "Failed").await;
    let sick = uid_of(&world, &before[0]);
    world.run_open(30, |world| is_replaced(world, &sick)).await;
    assert!(names(&world, false).contains(&before[1]));
}

#[tokio::test(start_paused = true)]
async fn an_annotation_asks_for_remediation_and_another_forbids_it() {
    let world = world(1, 2, of_workers(json!({}))).await;
    world.run_open(10, is_up).await;
    let before = names(&world, false);
    let skip = "cluster.x-k8s.io/skip-remediation";
    annotate(&world, &before[0], skip, json!("")).await;
    let remediate = "cluster.x-k8s.io/remediate-machine";
    annotate(&world, &before[0], remediate, json!("")).await;
    world.run_for(Arc::new(Open), 600).await;
    assert_eq!(names(&world, false), before);
    annotate(&world, &before[0], skip, Value::Null).await;
    let sick = uid_of(&world, &before[0]);
    world.run_open(10, |world| is_replaced(world, &sick)).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_well_again_in_time_is_kept() {
    let world = world(1, 2, of_workers(json!({}))).await;
    world.run_open(10, is_up).await;
    let before = names(&world, false);
    set_node_ready(&world, &before[0], "Unknown").await;
    world.run_for(Arc::new(Open), 240).await;
    set_node_ready(&world, &before[0], "True").await;
    world.run_for(Arc::new(Open), 900).await;
    assert_eq!(names(&world, false), before);
    assert_eq!(condition(&world, &before[0], "HealthCheckSucceeded").0, "True");
}

#[tokio::test(start_paused = true)]
async fn only_one_of_three_control_plane_machines_is_replaced() {
    let world = world(3, 1, of_control_plane()).await;
    world.run_open(20, is_up).await;
    let before = names(&world, true);
    annotate(&world, &before[1], "cluster.x-k8s.io/remediate-machine", json!("")).await;
    let uids_before = uids(&world, true);
    world.run_open(30, |world| is_replaced(world, &uids_before[1])).await;
    world.run_for(Arc::new(Open), 120).await;
    let machines = world.machines();
    let new: Vec<_> = machines
        .iter()
        .filter(|machine| machine["metadata"]["annotations"][FOR].is_string())
        .collect();
    assert_eq!((names(&world, true).len(), new.len()), (3, 1));
    let machine = new[0];
    let made_for = machine["metadata"]["annotations"][FOR].as_str().unwrap();
    assert!(made_for.contains(&before[1]), "{made_for}");
    assert!(world.control_plane()["metadata"]["annotations"][IN_PROGRESS].is_null());
    // Both remaining machines are healthy, but two of three may not be deleted.
    let api = api(&world.admin, CORE, "MachineHealthCheck");
    let body = json!({"spec": {"checks": {"unhealthyNodeConditions": [
        {"type": "Ready", "status": "True", "timeoutSeconds": 0},
    ]}}});
    api.patch("edge-1", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    world.run_for(Arc::new(Open), 20).await;
    let deleting = world
        .machines()
        .iter()
        .filter(|machine| !machine["metadata"]["deletionTimestamp"].is_null())
        .count();
    assert!(deleting <= 1);
}

#[tokio::test(start_paused = true)]
async fn the_only_control_plane_machine_is_never_remediated() {
    let world = world(1, 1, of_control_plane()).await;
    world.run_open(10, is_up).await;
    let before = names(&world, true);
    annotate(&world, &before[0], "cluster.x-k8s.io/remediate-machine", json!("")).await;
    world.run_for(Arc::new(Open), 1800).await;
    assert_eq!(names(&world, true), before);
    assert_eq!(
        condition(&world, &before[0], "OwnerRemediated"),
        ("False".to_owned(), "CannotBeRemediated".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_a_controller_is_adopted() {
    let world = world(1, 2, of_workers(json!({}))).await;
    world.run_open(10, is_up).await;
    let before = names(&world, false);
    let body = json!({"metadata": {"ownerReferences": null}});
    api(&world.admin, CORE, "Machine")
        .patch(&before[0], &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
    world.run_for(Arc::new(Open), 120).await;
    let machine = world.one("cluster.x-k8s.io", "machines", &before[0]);
    assert_eq!(machine["metadata"]["ownerReferences"][0]["kind"], "MachineSet");
    // No other Machine was created meanwhile.
    assert_eq!(names(&world, false), before);
}

/// Remediates one machine of a role while the process is killed at an effect; returns the end
/// state, and whether the kill took place.
async fn killed(control_plane: bool, at: usize, after: bool) -> (Vec<String>, bool) {
    let check = if control_plane { of_control_plane() } else { of_workers(json!({})) };
    let world = world(if control_plane { 3 } else { 1 }, 2, check).await;
    world.run_open(20, is_up).await;
    world.run_for(Arc::new(Open), 60).await;
    let sick = names(&world, control_plane).remove(0);
    annotate(&world, &sick, "cluster.x-k8s.io/remediate-machine", json!("")).await;
    let uid = uid_of(&world, &sick);
    let switch = Arc::new(Switch::killing(at, after));
    world.run(switch.clone(), 30, |world| is_replaced(world, &uid) || switch.is_dead()).await;
    world.run_open(30, |world| is_replaced(world, &uid)).await;
    world.run_for(Arc::new(Open), 120).await;
    let noted = &world.control_plane()["metadata"]["annotations"][IN_PROGRESS];
    assert!(noted.is_null(), "killed at {at}, after: {after}: {noted}");
    let machines = world.machines();
    let end = machines
        .iter()
        .map(|machine| {
            let made_for = machine["metadata"]["annotations"][FOR].is_string();
            format!("{} {made_for}", machine["metadata"]["name"])
        })
        .collect();
    (end, switch.is_dead())
}

async fn sweep(control_plane: bool, step: usize) {
    let (undisturbed, _) = killed(control_plane, usize::MAX, false).await;
    let mut fired = 0;
    for at in (0..).step_by(step) {
        let after = at % 2 == 0;
        let (end, dead) = killed(control_plane, at, after).await;
        assert_eq!(end, undisturbed, "killed at effect {at}, after: {after}");
        if !dead {
            break;
        }
        fired += 1;
    }
    assert!(fired >= 4, "only {fired} kills took place");
}

#[tokio::test(start_paused = true)]
async fn control_plane_remediation_survives_a_kill() {
    sweep(true, 13).await;
}

#[tokio::test(start_paused = true)]
async fn worker_remediation_survives_a_kill() {
    sweep(false, 7).await;
}
