//! Plans that the controller signs and the agents verify, in a whole world.

use std::{sync::Arc, time::Duration};

use crate::common::{
    CLUSTER, NEW, OLD, TEST, UPGRADE, example, in_world, picture, up_with, upgraded,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use lab_world::world::{World, WorldOptions};
use refit_controller::Settings;
use refit_kinds::{json::text, keys, refit::HostPlan};
use refit_runtime::plan_signing::{PlanKeys, PlanSigner};
use serde_json::json;

/// The private key file that `openssl genpkey -algorithm ed25519` would create from a seed.
fn private_key(seed: u8) -> String {
    let head = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    let text = BASE64_STANDARD.encode([&head[..], &[seed; 32]].concat());
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}

fn trusted_keys(seed: u8) -> PlanKeys {
    let pair = rcgen::KeyPair::from_pem(&private_key(seed)).unwrap();
    PlanKeys::from_pem(&pair.public_key_pem()).unwrap()
}

/// A world whose controller signs with one key, and whose agents trust the same key or another one.
async fn world(signs: u8, believes: u8) -> World {
    let signer = PlanSigner::from_pem(&private_key(signs)).unwrap();
    let settings = Settings { plan_signer: Some(Arc::new(signer)), ..Settings::default() };
    up_with(WorldOptions {
        settings,
        plan_keys: Some(trusted_keys(believes)),
        ..WorldOptions::new(example())
    })
    .await
}

/// The machine of the first update in a phase.
async fn until_phase(world: &World, phase: &str) -> String {
    let mut found = String::new();
    let looks = |world: &World| {
        let updates = world.node_updates();
        let first = updates.iter().find(|u| text(u, "/status/phase") == phase);
        found = first.map_or_else(String::new, |u| text(u, "/spec/machineRef/name").to_owned());
        !found.is_empty()
    };
    let what = format!("an update is {phase}");
    world
        .until(&what, UPGRADE, looks)
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", picture(world)));
    found
}

/// The update status of a machine, as an operator sees it.
fn update_status(world: &World, machine: &str) -> String {
    let updates = world.node_updates();
    let update = updates.iter().find(|u| text(u, "/spec/machineRef/name") == machine).unwrap();
    update["status"].to_string()
}

#[test]
fn a_modified_plan_is_rejected_and_reported() {
    in_world(async {
        let world = world(1, 1).await;
        world.upgrade(NEW).await.unwrap();
        let machine = until_phase(&world, "Staging").await;
        let client = world.workload_client(CLUSTER, TEST).unwrap();
        let plans: Api<HostPlan> = Api::namespaced(client, keys::HOST_PLAN_NAMESPACE);
        let patch = async |spec: serde_json::Value| {
            let body = json!({ "spec": spec });
            let patch = Patch::Merge(&body);
            let params = PatchParams::default();
            plans.patch(&machine, &params, &patch).await.unwrap()
        };
        // An attacker with write access to the workload cluster makes the host install something
        // else.
        let signed = plans.get(&machine).await.unwrap();
        assert!(signed.metadata.annotations.as_ref().unwrap().contains_key(keys::PLAN_SIGNATURE));
        let mut steps = serde_json::to_value(&signed.spec.steps).unwrap();
        for step in steps.as_array_mut().unwrap() {
            for arguments in step["action"].as_object_mut().unwrap().values_mut() {
                if arguments.get("version").is_some() {
                    arguments["version"] = json!("v1.35.9");
                }
            }
        }
        patch(json!({ "steps": steps })).await;
        let refused = |world: &World| update_status(world, &machine).contains("PlanNotTrusted");
        world.until("the plan is rejected", Duration::from_mins(30), refused).await.unwrap_or_else(
            |error| panic!("{error}\n{}\n{}", update_status(&world, &machine), picture(&world)),
        );
        world.pass(Duration::from_mins(15)).await;
        let version = |world: &World| {
            let found = world.with_host(&machine, |host| host.kubelet_version.clone());
            found.unwrap()
        };
        assert_eq!(version(&world), OLD, "{}", picture(&world));
        assert!(refused(&world), "{}", update_status(&world, &machine));
        // The recovery that docs/agent.md describes: the controller recreates a deleted plan.
        let params = DeleteParams::default();
        plans.delete(&machine, &params).await.unwrap();
        upgraded(&world, NEW).await;
    });
}

#[test]
fn no_agent_runs_plans_signed_with_another_key() {
    in_world(async {
        let world = world(1, 2).await;
        world.upgrade(NEW).await.unwrap();
        let machine = until_phase(&world, "Staging").await;
        let refused = |world: &World| update_status(world, &machine).contains("PlanNotTrusted");
        world.until("the plan is rejected", Duration::from_mins(30), refused).await.unwrap_or_else(
            |error| panic!("{error}\n{}\n{}", update_status(&world, &machine), picture(&world)),
        );
        world.pass(Duration::from_mins(15)).await;
        for machine in world.host_nodes() {
            let runs = world.with_host(&machine, |host| host.runs.clone()).unwrap();
            assert!(runs.is_empty(), "{machine}: {runs:?}");
        }
    });
}
