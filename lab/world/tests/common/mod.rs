//! Helpers shared by the tests of whole worlds.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use lab_world::{
    manifests,
    snapshot::Snapshot,
    world::{MachineFacts, World, WorldOptions, facts, runtime},
};
use refit_kinds::json::{name, text};
use refit_runtime::process::log_filter;
use serde_json::Value;
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// User agent of the tests.
pub const TEST: &str = "test";
/// The initial version of the examples.
pub const OLD: &str = "v1.34.2";
/// The target version of the examples.
pub const NEW: &str = "v1.35.0";
/// Key of the example's workload cluster.
pub const CLUSTER: &str = "default/edge-1";

/// Time limit for a cluster to come up.
pub const COMES_UP: Duration = Duration::from_mins(30);
/// Time limit for an upgrade.
pub const UPGRADE: Duration = Duration::from_hours(2);

/// The example with three control plane machines and five workers.
pub fn example() -> Vec<Value> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    load(&root.join("examples/cluster.yaml"))
}

/// The objects of a manifest file.
pub fn load(file: &std::path::Path) -> Vec<Value> {
    let manifests = manifests::load(&[file]).unwrap();
    manifests.into_iter().map(|manifest| manifest.object).collect()
}

/// Runs a test in a paused runtime.
pub fn in_world<F: Future<Output = ()>>(test: F) {
    // Silent unless RUST_LOG is set.
    let filter = std::env::var("RUST_LOG").unwrap_or_default();
    let lines = tracing_subscriber::fmt::layer().with_test_writer().without_time();
    let _ =
        tracing_subscriber::registry().with(log_filter(&filter).unwrap()).with(lines).try_init();
    runtime().unwrap().block_on(test);
}

/// The example, up and quiet. Brought up once for all tests of a binary.
#[allow(
    clippy::unused_async,
    reason = "a world is only made inside a runtime, as with the others here"
)]
pub async fn up() -> World {
    static UP: OnceLock<Snapshot> = OnceLock::new();
    let bring_up = || {
        // A separate thread, because the caller is already in a runtime.
        let thread = std::thread::spawn(|| {
            let world = async { up_with(WorldOptions::new(example())).await.snapshot() };
            runtime().unwrap().block_on(world)
        });
        thread.join().unwrap()
    };
    let snapshot = UP.get_or_init(bring_up);
    World::restore(snapshot, &WorldOptions::new(Vec::new())).unwrap()
}

/// A world, up and quiet.
pub async fn up_with(options: WorldOptions) -> World {
    let world = World::new(options).await.unwrap();
    world
        .until("every machine is available", COMES_UP, World::is_ready)
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", picture(&world)));
    world.pass(Duration::from_secs(40)).await;
    world
}

/// Waits until everything is upgraded and quiet.
pub async fn upgraded(world: &World, version: &str) {
    world
        .until("the upgrade is complete", UPGRADE, |world| world.is_updated(version))
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", picture(world)));
    assert_clean(world);
}

/// Asserts that no invariant was broken.
pub fn assert_clean(world: &World) {
    let found: Vec<String> = world.violations_at_rest().iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// The facts of all machines.
pub async fn who(world: &World) -> Vec<MachineFacts> {
    facts(world).await.unwrap()
}

/// Asserts that the machines are the same, whatever version they run.
pub fn assert_same_machines(before: &[MachineFacts], after: &[MachineFacts]) {
    let identity = |facts: &[MachineFacts]| -> Vec<(String, String, String, String, String)> {
        facts
            .iter()
            .map(|f| {
                (
                    f.name.clone(),
                    f.uid.clone(),
                    f.provider_id.clone(),
                    f.node_uid.clone(),
                    f.boot_id.clone(),
                )
            })
            .collect()
    };
    assert_eq!(identity(before), identity(after));
}

/// The NodeUpdates of a Machine.
pub fn updates_of(world: &World, machine: &str) -> Vec<Arc<Value>> {
    let mut updates = world.node_updates();
    updates.retain(|update| text(update, "/spec/machineRef/name") == machine);
    updates
}

/// Names of the worker Machines, in order.
pub fn workers(world: &World) -> Vec<String> {
    let machines = world.machines();
    let of_deployment = machines.iter().filter(|machine| {
        machine["metadata"]["labels"].get("cluster.x-k8s.io/deployment-name").is_some()
    });
    of_deployment.map(|machine| name(machine).to_owned()).collect()
}

/// Names of the control plane Machines, in order.
pub fn control_planes(world: &World) -> Vec<String> {
    let workers = workers(world);
    let machines = world.machines();
    let names = machines.iter().map(|machine| name(machine).to_owned());
    names.filter(|name| !workers.contains(name)).collect()
}

/// A description of a stuck world for failure messages.
pub fn picture(world: &World) -> String {
    let mut lines = vec![format!("at {}", world.now())];
    for machine in world.machines() {
        let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let conditions: Vec<String> = conditions
            .iter()
            .map(|c| {
                format!(
                    "{}={} {} {}",
                    text(c, "/type"),
                    text(c, "/status"),
                    text(c, "/reason"),
                    text(c, "/message")
                )
            })
            .collect();
        lines.push(format!(
            "machine {} {} phase {} node {} annotations {}\n    {}",
            name(&machine),
            text(&machine, "/spec/version"),
            text(&machine, "/status/phase"),
            text(&machine, "/status/nodeRef/name"),
            machine["metadata"]["annotations"],
            conditions.join("\n    "),
        ));
    }
    for update in world.node_updates() {
        lines.push(format!("update {} {}", name(&update), update["status"]));
    }
    for group in world.update_groups() {
        lines.push(format!("group {} {}", name(&group), group["status"]));
    }
    for ((_, node), object) in world.nodes() {
        lines.push(format!(
            "node {node} {} unschedulable {}",
            text(&object, "/status/nodeInfo/kubeletVersion"),
            object["spec"]["unschedulable"],
        ));
    }
    for (group, plural) in [
        ("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes"),
        ("cluster.x-k8s.io", "machinedeployments"),
        ("cluster.x-k8s.io", "machinesets"),
        ("cluster.x-k8s.io", "clusters"),
        ("runtime.cluster.x-k8s.io", "extensionconfigs"),
        ("bootstrap.cluster.x-k8s.io", "kubeadmconfigs"),
        ("infrastructure.cluster.x-k8s.io", "sandboxmachines"),
    ] {
        for object in world.management().list_values(group, plural, None) {
            lines.push(format!(
                "{plural} {} {} annotations {}",
                name(&object),
                object["status"],
                object["metadata"]["annotations"]
            ));
        }
    }
    for event in world.management().list_values("", "events", None) {
        lines.push(format!(
            "event {} {} {}",
            text(&event, "/firstTimestamp"),
            text(&event, "/reason"),
            text(&event, "/message")
        ));
    }
    lines.join("\n")
}
