//! The controllers against an API server, a fake environment and a fake extension.

use std::sync::{Arc, atomic::Ordering};

use crate::common::{Switch, World, manifests};
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
    let is_worker = |machine: &&Value| {
        let label = &machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"];
        label.is_null() == (role == "worker")
    };
    machines.iter().filter(is_worker).map(|machine| machine["metadata"]["uid"].clone()).collect()
}

/// Changes only the workers' version: for new machines their minor may not be newer than the
/// control plane's, so surge tests stay within one minor.
async fn change_workers(world: &World, version: &str) {
    world.set_version("MachineDeployment", "edge-1-md-0", version).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_comes_up() {
    let world = workers(3, 0, 1).await;
    world.run_open(10, is_up).await;
    assert_eq!(uids(&world, "worker").len(), 3);
    assert_eq!(uids(&world, "control plane").len(), 1);
    for machine in world.machines() {
        let status = &machine["status"];
        assert_eq!(status["phase"], "Running", "{machine}");
        assert_eq!(status["nodeRef"]["name"], machine["metadata"]["name"]);
        assert_eq!(status["nodeInfo"]["kubeletVersion"], OLD);
        assert!(machine["spec"]["bootstrap"]["dataSecretName"].is_string());
    }
    let status = world.control_plane()["status"].clone();
    assert_eq!(status["initialization"]["controlPlaneInitialized"], true);
    assert_eq!(status["version"], OLD);
    let configs = world.list("bootstrap.cluster.x-k8s.io", "kubeadmconfigs");
    for config in configs {
        let owners = config["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!(owners[0]["kind"], "Machine");
    }
}

#[tokio::test(start_paused = true)]
async fn a_world_at_rest_is_not_written_to() {
    let world = workers(2, 0, 1).await;
    world.run_open(10, is_up).await;
    world.run_for(Arc::new(Open), 60).await;
    // A restart finds nothing to do either.
    let switch = Arc::new(Switch::default());
    world.run_for(switch.clone(), 3600).await;
    assert_eq!(*switch.log.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn workers_are_updated_in_place_one_at_a_time() {
    let world = workers(3, 0, 1).await;
    world.run_open(10, is_up).await;
    let before = uids(&world, "worker");
    change_workers(&world, NEW).await;
    world.run_open(30, is_up).await;
    assert_eq!(uids(&world, "worker"), before);
    for machine in world.machines() {
        let label = &machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"];
        let version = if label.is_null() { NEW } else { OLD };
        assert_eq!(machine["spec"]["version"], version);
        assert_eq!(machine["status"]["nodeInfo"]["kubeletVersion"], version);
        let annotations = machine["metadata"]["annotations"].as_object();
        assert!(annotations.is_none_or(serde_json::Map::is_empty), "{machine}");
    }
    let extension = &world.extension;
    // The result for a pair of MachineSets is cached.
    assert_eq!(extension.calls("canupdatemachineset").len(), 1);
    assert_eq!(extension.calls("updatemachine").len(), 6);
    let seen = extension.seen.lock().unwrap();
    assert_eq!((seen.most_at_once, seen.content_types), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_update_shows_in_the_machines_conditions() {
    let world = workers(2, 0, 1).await;
    world.run_open(10, is_up).await;
    change_workers(&world, NEW).await;
    let updating = |machine: &Value| {
        let conditions = machine["status"]["conditions"].as_array().unwrap();
        let find = |type_: &str| {
            let found = conditions.iter().find(|one| one["type"] == type_);
            found.cloned().unwrap_or_default()
        };
        let message = "In-place update in progress: draining";
        find("Updating")["message"] == message
            && find("Updating")["reason"] == "InPlaceUpdating"
            && find("UpToDate")["message"] == format!("* {message}")
            && find("UpToDate")["reason"] == "Updating"
            && find("Available")["status"] == "False"
            && find("Ready")["message"] == format!("* Updating: {message}")
            && machine["status"]["phase"] == "Updating"
    };
    world.run_open(10, |world| world.machines().iter().any(updating)).await;
}

#[tokio::test(start_paused = true)]
async fn surge_replaces_one_worker_and_keeps_the_others() {
    let world = workers(3, 1, 0).await;
    world.run_open(10, is_up).await;
    let before = uids(&world, "worker");
    change_workers(&world, "v1.34.9").await;
    world.run_open(60, is_up).await;
    let after = uids(&world, "worker");
    assert_eq!(after.len(), 3);
    let kept = after.iter().filter(|uid| before.contains(uid)).count();
    assert_eq!(kept, 2);
    // The provider objects and the Node of the replaced machine are gone.
    let hosts = world.list("infrastructure.cluster.x-k8s.io", "dockermachines");
    assert_eq!(hosts.len(), 4);
    let configs = world.list("bootstrap.cluster.x-k8s.io", "kubeadmconfigs");
    assert_eq!(configs.len(), 4);
    assert_eq!(world.nodes().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_change_no_extension_covers_replaces_every_worker() {
    let world = workers(2, 1, 0).await;
    world.extension.covers.store(false, Ordering::SeqCst);
    world.run_open(10, is_up).await;
    let before = uids(&world, "worker");
    change_workers(&world, "v1.34.9").await;
    world.run_open(60, is_up).await;
    let after = uids(&world, "worker");
    assert!(after.iter().all(|uid| !before.contains(uid)));
    assert!(world.extension.calls("updatemachine").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failure_stops_the_rollout_and_replaces_nothing() {
    let world = workers(2, 0, 1).await;
    world.run_open(10, is_up).await;
    let before = uids(&world, "worker");
    world.extension.fails.store(true, Ordering::SeqCst);
    change_workers(&world, NEW).await;
    world.run_for(Arc::new(Open), 1200).await;
    assert_eq!(uids(&world, "worker"), before);
    assert!(world.machines().iter().all(|one| one["spec"]["version"] == OLD));
    // The failure was not cached: once the response changes, the rollout continues.
    world.extension.fails.store(false, Ordering::SeqCst);
    world.run_open(30, is_up).await;
    assert_eq!(uids(&world, "worker"), before);
}

#[tokio::test(start_paused = true)]
async fn control_planes_are_updated_in_place_one_at_a_time() {
    let world = World::new(&[
        manifests::extension_config(),
        manifests::control_plane(3, 0),
        manifests::deployment(1, 0, 1),
    ])
    .await;
    world.run_open(20, is_up).await;
    let before = uids(&world, "control plane");
    assert_eq!(before.len(), 3);
    world.set_version("KubeadmControlPlane", "edge-1", NEW).await;
    world.run_open(60, is_up).await;
    assert_eq!(uids(&world, "control plane"), before);
    assert_eq!(world.control_plane()["status"]["version"], NEW);
    let map = world
        .workload
        .list_values("", "configmaps", Some("kube-system"))
        .into_iter()
        .find(|map| map["metadata"]["name"] == "kubeadm-config")
        .unwrap();
    let text = map["data"]["ClusterConfiguration"].as_str().unwrap();
    assert!(text.contains("kubernetesVersion: v1.35.0"), "{text}");
    // The config that initialised the cluster is now a joining one.
    for config in world.list("bootstrap.cluster.x-k8s.io", "kubeadmconfigs") {
        assert!(config["spec"]["initConfiguration"].is_null(), "{config}");
    }
    assert_eq!(world.extension.calls("canupdatemachine").len(), 3);
    assert_eq!(world.extension.seen.lock().unwrap().most_at_once, 1);
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_with_surge_replaces_one_machine() {
    let world = World::new(&[
        manifests::extension_config(),
        manifests::control_plane(3, 1),
        manifests::deployment(1, 0, 1),
    ])
    .await;
    world.run_open(20, is_up).await;
    let before = uids(&world, "control plane");
    world.set_version("KubeadmControlPlane", "edge-1", NEW).await;
    world.run_open(60, is_up).await;
    let after = uids(&world, "control plane");
    assert_eq!(after.len(), 3);
    let kept = after.iter().filter(|uid| before.contains(uid)).count();
    assert_eq!(kept, 2);
}

#[tokio::test(start_paused = true)]
async fn it_does_not_start_next_to_the_real_cluster_api() {
    let world = workers(1, 0, 1).await;
    crate::common::create(
        &world.admin,
        &serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": "default", "name": "controller-leader-election-capi"},
            "spec": {},
        }),
    )
    .await;
    let error = lab_cluster_api_shell::run(world.options(Arc::new(Open))).await.unwrap_err();
    assert!(error.downcast_ref::<lab_cluster_api_shell::RealClusterApi>().is_some());
    assert!(
        error.to_string().starts_with("Lease default/controller-leader-election-capi belongs to")
    );
}

#[tokio::test(start_paused = true)]
async fn a_machine_waits_for_its_pre_drain_hooks() {
    use kube::api::{DeleteParams, Patch, PatchParams};
    use serde_json::json;

    let world = workers(2, 0, 1).await;
    world.run_open(10, is_up).await;
    let machines = world.machines();
    let worker = machines
        .iter()
        .find(|one| one["metadata"]["labels"]["cluster.x-k8s.io/set-name"].is_string());
    let name = worker.unwrap()["metadata"]["name"].as_str().unwrap();
    let api = crate::common::api(&world.admin, "cluster.x-k8s.io/v1beta2", "Machine");
    let hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/test";
    let body = |value: Value| json!({"metadata": {"annotations": {hook: value}}});
    let params = PatchParams::default();
    api.patch(name, &params, &Patch::Merge(&body(json!("")))).await.unwrap();
    api.delete(name, &DeleteParams::default()).await.unwrap();
    world.run_for(Arc::new(Open), 600).await;
    let machine = world.one("cluster.x-k8s.io", "machines", name);
    assert_eq!(machine["status"]["phase"], "Deleting");
    assert_eq!(world.nodes().len(), 3);
    api.patch(name, &params, &Patch::Merge(&body(Value::Null))).await.unwrap();
    let gone =
        |world: &World| world.one("cluster.x-k8s.io", "machines", name).is_null() && is_up(world);
    world.run_open(20, gone).await;
    assert_eq!(world.nodes().len(), 3);
}

/// The only Machine of a MachineDeployment.
fn only_worker(world: &World) -> Value {
    let machines = world.machines();
    let found = machines
        .iter()
        .find(|one| one["metadata"]["labels"]["cluster.x-k8s.io/set-name"].is_string());
    found.cloned().unwrap_or_default()
}

fn condition(object: &Value, type_: &str) -> Value {
    whole_condition(object, type_).cloned().unwrap_or_default()
}

const MARK: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";

/// Brings up one worker and starts an update that never finishes.
async fn hanging_update() -> World {
    let world = workers(1, 0, 1).await;
    world.run_open(10, is_up).await;
    world.extension.hangs.store(true, Ordering::SeqCst);
    change_workers(&world, NEW).await;
    let running = |world: &World| {
        let updating = condition(&only_worker(world), "Updating");
        updating["message"] == "In-place update in progress: draining"
    };
    world.run_open(10, running).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_failed_hook_shows_a_fixed_message_and_is_retried() {
    let world = hanging_update().await;
    let before = only_worker(&world)["metadata"]["uid"].clone();
    world.extension.fails.store(true, Ordering::SeqCst);
    let failed = |world: &World| {
        let updating = condition(&only_worker(world), "Updating");
        updating["status"] == "True" && updating["reason"] == "InPlaceUpdateFailed"
    };
    world.run_open(10, failed).await;
    assert_eq!(
        condition(&only_worker(&world), "Updating")["message"],
        "UpdateMachine hook failed: please check controller logs for errors"
    );
    world.extension.fails.store(false, Ordering::SeqCst);
    world.extension.hangs.store(false, Ordering::SeqCst);
    world.run_open(20, is_up).await;
    assert_eq!(only_worker(&world)["metadata"]["uid"], before);
}

#[tokio::test(start_paused = true)]
async fn removing_the_annotation_abandons_an_update() {
    use kube::api::{Patch, PatchParams};
    use serde_json::json;

    let world = hanging_update().await;
    let machine = only_worker(&world);
    let name = machine["metadata"]["name"].as_str().unwrap();
    let body = json!({"metadata": {"annotations": {MARK: null}}});
    crate::common::api(&world.admin, "cluster.x-k8s.io/v1beta2", "Machine")
        .patch(name, &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
    let given_up = |world: &World| {
        let machine = only_worker(world);
        let annotations = machine["metadata"]["annotations"].as_object();
        annotations.is_none_or(serde_json::Map::is_empty)
            && condition(&machine, "Updating")["status"] == "False"
    };
    world.run_open(10, given_up).await;
    for (group, plural) in [
        ("infrastructure.cluster.x-k8s.io", "dockermachines"),
        ("bootstrap.cluster.x-k8s.io", "kubeadmconfigs"),
    ] {
        let object = world.one(group, plural, name);
        assert!(object["metadata"]["annotations"][MARK].is_null());
    }
    // The spec has the target version, and the Node shows that nothing was updated.
    let machine = only_worker(&world);
    assert_eq!(machine["spec"]["version"], NEW);
    assert_eq!(
        condition(&machine, "UpToDate")["message"],
        "* Node.status.nodeInfo.kubeletVersion v1.34.2, v1.35.0 required"
    );
}

#[tokio::test(start_paused = true)]
async fn an_immutable_infrastructure_machine_is_replaced() {
    use kube::api::{Patch, PatchParams};
    use serde_json::json;

    let world = World::new(&[
        manifests::extension_config(),
        manifests::control_plane(3, 0),
        manifests::deployment(1, 0, 1),
    ])
    .await;
    world.run_open(20, is_up).await;
    let before = uids(&world, "control plane");
    let schema = json!({
        "type": "object",
        "properties": {"spec": {
            "type": "object",
            "properties": {"customImage": {
                "type": "string",
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}],
            }},
            "x-kubernetes-preserve-unknown-fields": true,
        }},
        "x-kubernetes-preserve-unknown-fields": true,
    });
    let crd = json!({"spec": {"versions": [{
        "name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }]}});
    let crds = kube::Api::<kube::api::DynamicObject>::all_with(
        world.admin.clone(),
        &crate::common::resource("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    );
    crds.patch(
        "dockermachines.infrastructure.cluster.x-k8s.io",
        &PatchParams::default(),
        &Patch::Merge(&crd),
    )
    .await
    .unwrap();
    let group = "infrastructure.cluster.x-k8s.io/v1beta2";
    let template = json!({
        "apiVersion": group, "kind": "DockerMachineTemplate",
        "metadata": {"namespace": "default", "name": "edge-2"},
        "spec": {"template": {"spec": {"customImage": "another"}}},
    });
    crate::common::create(&world.admin, &template).await;
    let body = json!({"spec": {"machineTemplate": {"spec": {
        "infrastructureRef": {"name": "edge-2"},
    }}}});
    let group = "controlplane.cluster.x-k8s.io/v1beta2";
    crate::common::api(&world.admin, group, "KubeadmControlPlane")
        .patch("edge-1", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
    world.run_open(60, is_up).await;
    let after = uids(&world, "control plane");
    assert!(after.iter().all(|uid| !before.contains(uid)));
    // The extension was not even called.
    assert!(world.extension.calls("canupdatemachine").is_empty());
}

/// The objects that are created and changed while the process is killed.
#[derive(Clone, Copy)]
struct Scenario {
    control_planes: i64,
    workers: i64,
    max_surge: i64,
    kind: &'static str,
    version: &'static str,
}

/// Kills the process before or after an effect and restarts it; returns the end state, and whether
/// the kill took place.
async fn killed(scenario: Scenario, at: usize, after: bool) -> (Vec<String>, bool) {
    let Scenario { control_planes, workers, max_surge, .. } = scenario;
    let world = World::new(&[
        manifests::extension_config(),
        manifests::control_plane(control_planes, max_surge),
        manifests::deployment(workers, max_surge, 1 - max_surge),
    ])
    .await;
    let switch = Arc::new(Switch::killing(at, after));
    let phase = |world: &World, switch: &Switch| is_up(world) || switch.is_dead();
    world.run(switch.clone(), 20, |world| phase(world, &switch)).await;
    if switch.is_dead() {
        world.run_open(20, is_up).await;
    }
    let name = if scenario.kind == "MachineDeployment" { "edge-1-md-0" } else { "edge-1" };
    world.set_version(scenario.kind, name, scenario.version).await;
    if !switch.is_dead() {
        world.run(switch.clone(), 60, |world| phase(world, &switch)).await;
    }
    world.run_open(60, is_up).await;
    world.run_for(Arc::new(Open), 60).await;
    (world.end_state(), switch.is_dead())
}

/// Kills at every `step`-th effect until no kill takes place; each end state must equal the
/// undisturbed one.
async fn sweep(scenario: Scenario, step: usize, at_least: usize) {
    let (undisturbed, _) = killed(scenario, usize::MAX, false).await;
    let mut fired = 0;
    for at in (0..).step_by(step) {
        let mut took_place = false;
        for after in [false, true] {
            let (end, dead) = killed(scenario, at, after).await;
            assert_eq!(end, undisturbed, "killed at effect {at}, after: {after}");
            took_place |= dead;
            fired += usize::from(dead);
        }
        if !took_place {
            break;
        }
    }
    assert!(fired >= at_least, "only {fired} kills took place");
}

#[tokio::test(start_paused = true)]
async fn a_worker_update_survives_a_kill() {
    let scenario = Scenario {
        control_planes: 1,
        workers: 2,
        max_surge: 0,
        kind: "MachineDeployment",
        version: NEW,
    };
    sweep(scenario, 37, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_replacement_survives_a_kill() {
    let scenario = Scenario {
        control_planes: 1,
        workers: 2,
        max_surge: 1,
        kind: "MachineDeployment",
        version: "v1.34.9",
    };
    sweep(scenario, 41, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_update_survives_a_kill() {
    let scenario = Scenario {
        control_planes: 3,
        workers: 1,
        max_surge: 0,
        kind: "KubeadmControlPlane",
        version: NEW,
    };
    sweep(scenario, 53, 4).await;
}
