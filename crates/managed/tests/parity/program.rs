//! Rows of the program as a whole: it runs in the process of the test, against an embedded API server.

mod world;

use refit_managed::Compat;
use refit_openshift::kinds::{ClusterVersion, MachineConfigPool};
use serde_json::json;

use self::world::{World, in_world};
use crate::Row;

pub(crate) const ROWS: &[Row] = &[Row {
    number: 109,
    name: "an upgrade waits for its time, and runs through",
    test: an_upgrade_waits_for_its_time_and_runs_through,
}];

/// The cluster-version operator upgrades the control plane, then the machine-config operator the workers.
async fn operate(world: &World) {
    let release = |state: &str, version: &str| {
        let end = (state == "Completed").then(|| world.clock.now_seconds());
        json!({
            "state": state, "version": version, "image": "i",
            "startedTime": world.clock.now_seconds(), "completionTime": end,
        })
    };
    let old = release("Completed", "4.16.3");
    let history = json!({"history": [release("Partial", "4.16.4"), old]});
    world.status::<ClusterVersion>("version", history).await;
    world.pass(30 * 60).await;
    let history = json!({"history": [release("Completed", "4.16.4"), old]});
    world.status::<ClusterVersion>("version", history).await;
    for updated in 0..=2 {
        let count = json!({"machineCount": 2, "updatedMachineCount": updated});
        world.status::<MachineConfigPool>("worker", count).await;
        world.pass(10 * 60).await;
    }
}

fn an_upgrade_waits_for_its_time_and_runs_through() {
    in_world(async {
        let world = World::new().await;
        let program = world.start(Compat::Repaired);
        world.request(10).await;
        world.pass(120).await;
        assert_eq!(world.shown().await, "Pending");
        world.pass(9 * 60).await;
        println!("{}", serde_json::to_string_pretty(&world.upgrade().await.status).unwrap());
        let cluster: ClusterVersion =
            kube::Api::all(world.client.clone()).get("version").await.unwrap();
        assert_eq!(cluster.spec.desired_update.unwrap().version, "4.16.4");
        operate(&world).await;
        println!("{}", world.shown().await);
        println!("{}", serde_json::to_string_pretty(&world.upgrade().await.status).unwrap());
        println!("{:?}", world.alertmanager.silences(world.clock.now_seconds()));
        println!("{}", world.get(8383, "/metrics").await.unwrap());
        println!("{}", world.get(8089, "/metrics").await.unwrap());
        println!("{}", world.get(8081, "/readyz").await.unwrap());
        program.abort();
    });
}
