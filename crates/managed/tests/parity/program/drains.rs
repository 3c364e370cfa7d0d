//! Drains of nodes whose pods a budget protects, and the notice of them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use lab_openshift::wire::Trouble;
use refit_managed::Compat;
use refit_openshift::{kinds::MachineConfigPool, upgrade_config::Phase};
use serde_json::json;

use super::{
    rights::{guarded_pod, install},
    world::{Program, VERSION, World, by_ocm, in_world},
};

/// An upgrade that drains all workers at once, two of which have a pod whose budget allows no eviction.
async fn draining() -> (World, Program) {
    let world = World::new().await;
    world.configure(&by_ocm()).await;
    let pools: Api<MachineConfigPool> = Api::all(world.client.clone());
    let patch = Patch::Merge(json!({"spec": {"maxUnavailable": 3}}));
    pools.patch("worker", &PatchParams::default(), &patch).await.unwrap();
    for (node, pod) in world.workers().await.iter().zip(["guarded-a", "guarded-b"]) {
        install(&world, &guarded_pod(node, pod)).await;
    }
    world.ocm.schedule("p-1", VERSION, world.at(10));
    let program = world.start(Compat::Repaired);
    world.until(Phase::Upgrading, 30).await;
    for _ in 0..240 {
        if world.upgrade().await.entry().unwrap().is_done("WorkersMaintenanceWindowCreated") {
            return (world, program);
        }
        world.minutes(1).await;
    }
    panic!("the workers are not drained: {:#?}", world.upgrade().await.status);
}

async fn guarded(world: &World) -> usize {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let pods = pods.list(&<_>::default()).await.unwrap().items;
    let names = pods.iter().filter_map(|pod| pod.metadata.name.as_deref());
    names.filter(|name| name.starts_with("guarded")).count()
}

/// When the first node with a guarded pod was cordoned.
async fn cordoned(world: &World) -> Timestamp {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let nodes = nodes.list(&<_>::default()).await.unwrap().items;
    let taints = nodes.into_iter().filter_map(|node| node.spec?.taints).flatten();
    taints.filter_map(|taint| taint.time_added).map(|at| at.0).min().unwrap()
}

pub(super) fn a_drain_goes_on_without_ocm() {
    in_world(async {
        let (world, _program) = draining().await;
        world.close_ocm();
        // PDBForceDrainTimeout and the expected time, from the first cordon.
        let due = cordoned(&world).await + SignedDuration::from_mins(60 + 8);
        let left = due.duration_since(world.clock.now_seconds());
        world.seconds(u64::try_from(left.as_secs()).unwrap()).await;
        assert_eq!(guarded(&world).await, 2);
        // The next look, and the time that the notice has: the requests to OCM are repeated for longer.
        world.seconds(60 + 20 + 2).await;
        assert!(guarded(&world).await < 2, "the notice keeps the drain waiting");
    });
}

pub(super) fn drains_at_once_send_one_notice() {
    in_world(async {
        let (world, _program) = draining().await;
        let sent = || {
            let asked = world.ocm.troubles().asked();
            asked.iter().filter(|line| line.starts_with("PATCH ")).count()
        };
        let before = sent();
        // Both looks have begun when the first one has sent it.
        world.ocm.troubles().set(Some(Trouble::Slow(Duration::from_secs(3))));
        while guarded(&world).await > 0 {
            world.seconds(10).await;
        }
        assert_eq!(sent() - before, 1);
        assert_eq!(world.ocm.policy("p-1").unwrap().state, "delayed");
    });
}
