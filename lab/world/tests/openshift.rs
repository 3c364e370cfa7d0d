//! Whole upgrades of a simulated OpenShift cluster.

use std::time::Duration;

use jiff::SignedDuration;
use lab_world::{
    openshift::{Kill, World, WorldOptions},
    world::{Side, runtime},
};
use refit_openshift::config::Platform;
use serde_json::Value;

const VERSION: &str = "4.16.4";

/// Waits for a phase of the upgrade.
async fn until(world: &World, phase: &str, within: Duration) {
    let end = world.now() + SignedDuration::try_from(within).unwrap();
    while world.phase() != phase {
        assert!(world.now() < end, "not {phase}: {:#}", world.upgrade().unwrap_or_default());
        world.pass(Duration::from_secs(10)).await;
    }
}

fn nodes(world: &World) -> Vec<Value> {
    world.server().list_values("", "nodes", None)
}

/// The cluster runs the version and looks as before.
fn assert_upgraded(world: &World, before: &[Value]) {
    let after = nodes(world);
    let names = |nodes: &[Value]| -> Vec<Value> {
        nodes.iter().map(|node| node["metadata"]["uid"].clone()).collect()
    };
    assert_eq!(names(&after), names(before), "the extra node is gone, the others are the same");
    for node in &after {
        assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.29.4", "{node:#}");
        assert_ne!(node["spec"]["unschedulable"], true, "{node:#}");
    }
}

#[test]
fn a_policy_of_ocm_upgrades_a_cluster_while_the_program_is_killed() {
    runtime().unwrap().block_on(async {
        let world = World::new(WorldOptions::new(Platform::Osd)).await.unwrap();
        let before = nodes(&world);
        world.schedule("p-1", VERSION, SignedDuration::from_mins(20));
        world.arm(Kill { index: 12, side: Side::After });
        until(&world, "Pending", Duration::from_mins(10)).await;
        until(&world, "Upgrading", Duration::from_mins(30)).await;
        world.pass(Duration::from_mins(30)).await;
        world.kill(SignedDuration::from_mins(5));
        until(&world, "Upgraded", Duration::from_hours(4)).await;
        assert!(world.has_fired());
        assert_eq!(world.starts(), 3);
        assert_upgraded(&world, &before);
        assert_eq!(world.ocm().policy("p-1").unwrap().state, "completed");
        let logs = world.ocm().logs();
        let logs: Vec<&str> = logs.iter().map(|log| log["summary"].as_str().unwrap()).collect();
        let wanted = [
            "Cluster is starting with control and worker plane upgrade",
            "Cluster has finished control plane upgrade",
            "Cluster has finished with worker plane upgrade",
        ];
        assert_eq!(logs, wanted);
    });
}

#[test]
fn an_upgrade_config_upgrades_a_cluster_of_aro() {
    runtime().unwrap().block_on(async {
        let world = World::new(WorldOptions::new(Platform::Aro)).await.unwrap();
        let before = nodes(&world);
        world.request(VERSION, SignedDuration::from_mins(5)).await.unwrap();
        until(&world, "Upgraded", Duration::from_hours(4)).await;
        assert_eq!(world.starts(), 1);
        assert_upgraded(&world, &before);
    });
}

#[test]
fn a_kill_at_a_write_changes_nothing_in_the_end() {
    let report = lab_world::openshift::sweep::sweep(Some(6), 2, |_, _, _| {}).unwrap();
    assert!(report.writes > 20, "{report:#?}");
    assert_eq!(report.points, 6);
    assert!(report.failures.is_empty(), "{report:#?}");
}
