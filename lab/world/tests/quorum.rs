//! The API of a workload cluster is up while its control plane allows it, and recovers by itself.

use std::time::Duration;

use crate::common::{
    CLUSTER, NEW, TEST, assert_same_machines, control_planes, example, in_world, up, up_with,
    upgraded, who,
};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use lab_world::world::{World, WorldOptions};
use serde_json::{Value, json};

/// Whether the API accepts a new connection.
async fn answers(world: &World) -> bool {
    let client = world.workload_client(CLUSTER, TEST).unwrap();
    let nodes: Api<Node> = Api::all(client);
    nodes.list(&ListParams::default()).await.is_ok()
}

/// The example with one control plane machine.
fn single() -> Vec<Value> {
    let mut objects = example();
    for object in &mut objects {
        if object["kind"] == "KubeadmControlPlane" {
            object["spec"]["replicas"] = json!(1);
        }
        if object["kind"] == "MachineDeployment" {
            object["spec"]["replicas"] = json!(1);
        }
    }
    objects
}

#[test]
fn an_api_survives_the_loss_of_one_of_three_hosts_only() {
    in_world(async {
        let world = up().await;
        let machines = control_planes(&world);
        assert!(answers(&world).await);
        let switch = |machine: &str, on: bool| {
            let now = world.now();
            let node = machine.to_owned();
            world.with_host(&node, |host| {
                if on {
                    host.power_on(now);
                } else {
                    host.power_off(now);
                }
            });
        };
        switch(&machines[0], false);
        world.pass(Duration::from_secs(2)).await;
        assert!(answers(&world).await);
        switch(&machines[1], false);
        world.pass(Duration::from_secs(2)).await;
        assert!(!answers(&world).await);
        switch(&machines[1], true);
        world.pass(Duration::from_mins(1)).await;
        assert!(answers(&world).await);
    });
}

#[test]
fn a_single_control_planes_api_fails_while_kubeadm_restarts_it() {
    in_world(async {
        let world = up_with(WorldOptions::new(single())).await;
        let before = who(&world).await;
        world.upgrade(NEW).await.unwrap();
        let mut outages = 0;
        let mut was_up = true;
        for _ in 0..1200 {
            let is_up = answers(&world).await;
            outages += usize::from(was_up && !is_up);
            was_up = is_up;
            if world.is_updated(NEW) {
                break;
            }
            world.pass(Duration::from_secs(1)).await;
        }
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
        assert_eq!(outages, 1);
    });
}
