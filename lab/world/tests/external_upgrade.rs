//! Upgrades that another client than Cluster API requests.

use std::time::Duration;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use lab_world::world::{World, WorldOptions};
use refit_cluster_api::kinds::MachineDeployment;
use refit_controller::Settings;
use refit_kinds::{
    external_upgrade::{REQUEST, path},
    json::{name, text},
    refit::{TaskPhase, UpgradeTask},
};
use serde_json::{Value, json};

use crate::common::{
    TEST, assert_clean, assert_same_machines, example, in_world, up_with, who, workers,
};

const OWNER: &str = "edge-1-md-0";
const NEXT: &str = "v1.34.3";

/// The example, whose MachineDeployment requests [`NEXT`] and is paused: another client is to bring its Machines there.
async fn requesting() -> World {
    let settings = Settings {
        external_upgrade_clients: [lab_world::pki::CLUSTER_API.to_owned()].into(),
        ..Settings::default()
    };
    let world = up_with(WorldOptions { settings, ..WorldOptions::new(example()) }).await;
    pause_and_request(&world).await;
    world
}

/// Another client pauses the MachineDeployment and requests [`NEXT`] of it.
pub async fn pause_and_request(world: &World) {
    change(
        world,
        json!({
            "metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}},
            "spec": {"template": {"spec": {"version": NEXT}}},
        }),
    )
    .await;
}

async fn change(world: &World, body: Value) {
    let api = deployments(world);
    api.patch(OWNER, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    world.pass(Duration::from_secs(5)).await;
}

fn deployments(world: &World) -> Api<MachineDeployment> {
    Api::namespaced(world.client(TEST).unwrap(), "default")
}

/// A request for these Machines of the MachineDeployment, as its controller would make it.
pub async fn request(world: &World, machines: &[String]) -> Value {
    let deployment = deployments(world).get(OWNER).await.unwrap();
    let read = |group: &str, plural: &str, name: &str| {
        world.management().get_value(group, plural, "default", name).unwrap()
    };
    let template = &deployment.spec.template.spec;
    let config = &template.bootstrap.config_ref.as_ref().unwrap().name;
    let config = read("bootstrap.cluster.x-k8s.io", "kubeadmconfigtemplates", config);
    let infrastructure = &template.infrastructure_ref.name;
    let infrastructure =
        read("infrastructure.cluster.x-k8s.io", "sandboxmachinetemplates", infrastructure);
    let all = world.machines();
    let machine = all.iter().find(|one| name(one) == workers(world)[0]).unwrap();
    let mut machine = machine["spec"].clone();
    machine["version"] = json!(NEXT);
    json!({
        "cluster": {"namespace": "default", "name": "edge-1"},
        "owner": {
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": OWNER,
            "uid": deployment.metadata.uid,
        },
        "machines": machines,
        "machine": machine,
        "bootstrapConfig": config["spec"]["template"]["spec"],
        "infrastructureMachine": infrastructure["spec"]["template"]["spec"],
    })
}

async fn send(world: &World, request: &Value) -> (u16, Value) {
    let answer = world.call_hook_server(&path(REQUEST), request).await.unwrap();
    world.pass(Duration::from_secs(5)).await;
    answer
}

/// The name of the task that works on an accepted request.
pub async fn accepted(world: &World, request: &Value) -> String {
    let (status, answer) = send(world, request).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(true)), "{answer}");
    text(&answer, "/task").to_owned()
}

async fn phase(world: &World, task: &str) -> (TaskPhase, String) {
    let api: Api<UpgradeTask> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let status = api.get(task).await.unwrap().status.unwrap_or_default();
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    (status.phase, ready.map(|ready| ready.message.clone()).unwrap_or_default())
}

#[test]
fn an_accepted_request_is_worked_through_once() {
    in_world(async {
        let world = requesting().await;
        let before = who(&world).await;
        let request = request(&world, &workers(&world)).await;
        let task = accepted(&world, &request).await;
        assert_eq!(accepted(&world, &request).await, task, "a repeat finds the task");
        world.pass(Duration::from_hours(2)).await;
        assert_eq!(phase(&world, &task).await.0, TaskPhase::Complete);
        let is_next = |machine: &&Value| text(machine, "/spec/version") == NEXT;
        let machines = world.machines();
        assert_eq!(
            machines.iter().map(AsRef::as_ref).filter(is_next).count(),
            workers(&world).len()
        );
        // Its client has paused the owner, and lets it go on: Cluster API replaces no Machine.
        change(&world, json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": null}}}))
            .await;
        world.pass(Duration::from_hours(1)).await;
        assert_same_machines(&before, &who(&world).await);
        assert_clean(&world);
        assert_ne!(
            accepted(&world, &request).await,
            task,
            "after its end, a repeat makes a new task"
        );
    });
}

#[test]
fn a_request_for_other_specs_is_declined_after_the_ongoing_task_was_stopped() {
    in_world(async {
        let world = requesting().await;
        let mut request = request(&world, &[]).await;
        let task = accepted(&world, &request).await;
        world.pass(Duration::from_secs(30)).await;
        assert_eq!(phase(&world, &task).await.0, TaskPhase::Ongoing);
        request["machine"]["version"] = json!("v1.34.9");
        request["infrastructureMachine"]["cpus"] = json!(64);
        let (status, answer) = send(&world, &request).await;
        assert_eq!((status, &answer["accepted"]), (200, &json!(false)));
        let reason = text(&answer, "/reason");
        assert!(reason.contains("at infrastructureMachine.cpus, machine.version:"), "{reason}");
        world.pass(Duration::from_hours(1)).await;
        assert_eq!(phase(&world, &task).await.0, TaskPhase::Aborted);
        assert_clean(&world);
    });
}

#[test]
fn a_request_whose_owner_is_edited_meanwhile_goes_no_further() {
    in_world(async {
        let world = requesting().await;
        let request = request(&world, &[]).await;
        let task = accepted(&world, &request).await;
        change(&world, json!({"spec": {"template": {"spec": {"version": "v1.34.4"}}}})).await;
        world.pass(Duration::from_hours(1)).await;
        let (phase, message) = phase(&world, &task).await;
        assert_eq!(phase, TaskPhase::Failed, "{message}");
        assert!(message.contains("edited since the task began"), "{message}");
        let updates = world.node_updates();
        let begun = updates.iter().filter(|update| text(update, "/status/phase") == "Succeeded");
        assert!(begun.count() < workers(&world).len(), "what had not begun was stopped");
        let newer = |update: &Value| text(update, "/spec/goal/kubernetesVersion") == "v1.34.4";
        assert!(!updates.iter().any(|update| newer(update)));
    });
}
