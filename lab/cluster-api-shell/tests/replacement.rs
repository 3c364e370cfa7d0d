//! Replaced Machines and deleted MachineSets: Cluster API's behaviour without in-place updates.

use std::sync::Arc;

use crate::common::{World, manifests};
use refit_kinds::json::whole_condition;
use refit_runtime::gate::Open;
use serde_json::Value;

const OLD: &str = "v1.34.2";
const NEW: &str = "v1.35.0";

async fn workers(replicas: i64, max_surge: i64, max_unavailable: i64) -> World {
    World::new(&[
        manifests::extension_config(),
        manifests::control_plane(1, 1),
        manifests::deployment(replicas, max_surge, max_unavailable),
    ])
    .await
}

fn is_up(world: &World) -> bool {
    World::is_done(&world.deployment()) && World::is_done(&world.control_plane())
}

fn uids(world: &World, role: &str) -> Vec<Value> {
    let machines = world.machines();
    let of_role = machines.iter().filter(|machine| {
        let label = &machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"];
        label.is_null() == (role == "worker")
    });
    of_role.map(|machine| machine["metadata"]["uid"].clone()).collect()
}

async fn change_workers(world: &World, version: &str) {
    world.set_version("MachineDeployment", "edge-1-md-0", version).await;
}

fn condition(object: &Value, type_: &str) -> Value {
    whole_condition(object, type_).cloned().unwrap_or_default()
}

fn sets(world: &World) -> Vec<String> {
    let sets = world.list("cluster.x-k8s.io", "machinesets");
    let names = sets.iter().map(|set| set["metadata"]["name"].as_str());
    names.map(|name| name.unwrap().to_owned()).collect()
}

async fn change_deployment(world: &World, spec: Value) {
    use kube::api::{Patch, PatchParams};
    let body = serde_json::json!({ "spec": spec });
    crate::common::api(&world.admin, "cluster.x-k8s.io/v1beta2", "MachineDeployment")
        .patch("edge-1-md-0", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_old_machine_set_is_deleted_once_its_rollout_is_complete() {
    let world = workers(2, 0, 1).await;
    world.run_open(10, is_up).await;
    let first = sets(&world);
    change_workers(&world, NEW).await;
    let busy = |world: &World| {
        world.machines().iter().any(|machine| condition(machine, "Updating")["status"] == "True")
    };
    world.run_open(10, busy).await;
    assert_eq!(sets(&world).len(), 2);
    world.run_open(30, is_up).await;
    world.run_for(Arc::new(Open), 10).await;
    let left = sets(&world);
    assert_eq!(left.len(), 1);
    assert_ne!(left, first);
    // Change back: the same template yields a set with the same name, which must work.
    change_workers(&world, OLD).await;
    world.run_open(30, is_up).await;
    world.run_for(Arc::new(Open), 10).await;
    assert_eq!(sets(&world), first);
}

#[tokio::test(start_paused = true)]
async fn on_delete_replaces_only_what_a_user_deletes() {
    use kube::api::DeleteParams;

    let world = workers(2, 0, 1).await;
    world.run_open(10, is_up).await;
    let before = uids(&world, "worker");
    let strategy = serde_json::json!({"strategy": {"type": "OnDelete", "rollingUpdate": null}});
    let template = serde_json::json!({"spec": {"version": "v1.34.9"}});
    change_deployment(&world, serde_json::json!({"rollout": strategy, "template": template})).await;
    world.run_for(Arc::new(Open), 600).await;
    assert_eq!(uids(&world, "worker"), before);
    assert!(world.extension.calls("canupdatemachineset").is_empty());
    let victim =
        world.machines().into_iter().find(|machine| machine["metadata"]["uid"] == before[0]);
    let victim = victim.unwrap()["metadata"]["name"].clone();
    crate::common::api(&world.admin, "cluster.x-k8s.io/v1beta2", "Machine")
        .delete(victim.as_str().unwrap(), &DeleteParams::default())
        .await
        .unwrap();
    world.run_for(Arc::new(Open), 600).await;
    let after = uids(&world, "worker");
    assert_eq!(after.len(), 2);
    assert_eq!(after.iter().filter(|uid| before.contains(uid)).count(), 1);
    let new =
        world.machines().into_iter().filter(|machine| machine["spec"]["version"] == "v1.34.9");
    assert_eq!(new.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_date_replaces_workers_that_are_older() {
    let world = workers(2, 1, 0).await;
    world.run_open(10, is_up).await;
    let before = uids(&world, "worker");
    world.run_for(Arc::new(Open), 600).await;
    let after = world.clock.now_seconds().to_string();
    change_deployment(&world, serde_json::json!({"rollout": {"after": after}})).await;
    let replaced = |world: &World| {
        let now = uids(world, "worker");
        is_up(world) && now.iter().all(|uid| !before.contains(uid))
    };
    world.run_open(60, replaced).await;
    assert!(world.extension.calls("updatemachine").is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_only_control_plane_machine_is_replaced_through_a_second_one() {
    let world = workers(1, 0, 1).await;
    world.run_open(10, is_up).await;
    let before = uids(&world, "control plane");
    world.set_version("KubeadmControlPlane", "edge-1", NEW).await;
    let done = |world: &World| is_up(world) && uids(world, "control plane") != before;
    world.run_open(60, done).await;
    let after = uids(&world, "control plane");
    assert_eq!(after.len(), 1);
    assert!(!before.contains(&after[0]));
    assert!(world.extension.calls("updatemachine").is_empty());
}
