//! The cost of an event and of a reconcile does not grow with the fleet: neither lists a cache.

use std::sync::Arc;

use refit_cluster_api::kinds::Machine;
use refit_kinds::{keys, refit::NodeUpdate};
use refit_runtime::{
    Clock, ObjectKey,
    client::ClientStack,
    gate::Open,
    net::{Dialer, MemoryNetwork},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    Settings,
    context::{Context, Stores},
    hooks::can_update,
    node_update::reconcile as reconcile_update,
    update_group::reconcile as reconcile_group,
    watches::{cluster_changed, group_changed, machine_changed, update_changed},
    workload_watch::{wake_all, wake_node},
};

const NAMESPACE: &str = "fleet";
/// Machines of each group, each with a finished NodeUpdate and an unfinished one.
const MACHINES: u32 = 5;

/// A process with empty caches whose API servers cannot be reached.
pub(crate) fn unconnected() -> Context {
    let dialer = Dialer::Memory(MemoryNetwork::default(), Arc::new(Open));
    let stack = ClientStack::new(dialer, Arc::new(Open), "refit-controller/test");
    let config = kube::Config::new("http://management.test:80".parse().unwrap());
    let client = stack.client(&config).unwrap();
    Context::new(client, stack, Clock::real(), Settings::default())
}

fn context() -> Context {
    let ctx = unconnected();
    fill(&ctx.stores);
    ctx
}

fn object<K: DeserializeOwned>(name: &str, mut body: Value) -> K {
    body["metadata"]["namespace"] = NAMESPACE.into();
    body["metadata"]["name"] = name.into();
    body["metadata"]["uid"] = format!("uid-{name}").into();
    body["metadata"]["resourceVersion"] = "1".into();
    serde_json::from_value(body).unwrap()
}

fn owned_by(api_version: &str, kind: &str, name: &str) -> Value {
    json!([{
        "apiVersion": api_version, "kind": kind, "name": name, "uid": format!("uid-{name}"),
        "controller": true,
    }])
}

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2";

fn template() -> Value {
    json!({
        "clusterName": "edge-1", "version": "v1.35.0",
        "bootstrap": {"configRef": {"apiGroup": "a", "kind": "A", "name": "a"}},
        "infrastructureRef": {"apiGroup": "a", "kind": "A", "name": "a"},
    })
}

fn finished(machine: &str, ordinal: u32) -> NodeUpdate {
    node_update(machine, ordinal, "Succeeded")
}

fn node_update(machine: &str, ordinal: u32, phase: &str) -> NodeUpdate {
    object(
        &format!("{machine}-{ordinal}"),
        json!({
            "spec": {
                "machineRef": {"name": machine, "uid": format!("uid-{machine}")},
                "origin": "Hook", "goalHash": "", "goal": {"kubernetesVersion": "v1.35.0"},
            },
            "status": {"phase": phase},
        }),
    )
}

fn fill(stores: &Stores) {
    let opted_in = json!({"metadata": {
        "name": NAMESPACE, "labels": {keys::IN_PLACE: keys::OPTED_IN},
    }});
    stores.namespaces.insert(serde_json::from_value(opted_in).unwrap());
    stores.clusters.insert(object(
        "edge-1",
        json!({
            "spec": {}, "status": {"initialization": {"controlPlaneInitialized": true}},
        }),
    ));
    stores.control_planes.insert(object(
        "cp",
        json!({
            "spec": {"replicas": 3, "version": "v1.35.0", "machineTemplate": {"spec": {
                "infrastructureRef": {"apiGroup": "a", "kind": "A", "name": "a"},
            }}, "kubeadmConfigSpec": {}},
        }),
    ));
    stores.machine_deployments.insert(object(
        "md",
        json!({
            "spec": {"clusterName": "edge-1", "replicas": MACHINES, "selector": {},
                     "template": {"spec": template()}},
        }),
    ));
    stores.machine_sets.insert(object(
        "md-1",
        json!({
            "metadata": {"ownerReferences": owned_by(CORE, "MachineDeployment", "md")},
            "spec": {"clusterName": "edge-1", "replicas": MACHINES, "selector": {},
                     "template": {"spec": template()}},
        }),
    ));
    let owners = [
        ("cp", owned_by(CONTROL_PLANE, "KubeadmControlPlane", "cp")),
        ("md-1", owned_by(CORE, "MachineSet", "md-1")),
    ];
    for (prefix, owner) in owners {
        for number in 0..MACHINES {
            let name = format!("{prefix}-{number}");
            let labels = if prefix == "cp" { json!({keys::CONTROL_PLANE: ""}) } else { json!({}) };
            stores.machines.insert(object(
                &name,
                json!({
                    "metadata": {"ownerReferences": owner, "labels": labels},
                    "spec": template(),
                    "status": {"nodeRef": {"name": format!("node-{name}")}},
                }),
            ));
            stores.node_updates.insert(finished(&name, 1));
            stores.node_updates.insert(node_update(&name, 2, "Pending"));
        }
    }
    for (name, kind, owner) in [
        ("kubeadmcontrolplane-cp", "KubeadmControlPlane", "cp"),
        ("machinedeployment-md", "MachineDeployment", "md"),
    ] {
        stores.update_groups.insert(object(
            name,
            json!({
                "spec": {
                    "clusterName": "edge-1", "controlPlane": owner == "cp",
                    "owner": {"apiVersion": "v1", "kind": kind, "name": owner},
                },
            }),
        ));
    }
    mark_ready(stores);
}

fn mark_ready(stores: &Stores) {
    let Stores {
        machines,
        machine_sets,
        machine_deployments,
        control_planes,
        foreign_planes: _,
        clusters,
        namespaces,
        node_updates,
        update_groups,
        drain_rules: _,
        host_plans: _,
        host_settings,
        disruption_policies,
        replacement_holds,
        updaters,
        upgrade_tasks,
        cluster_upgrades,
        cluster_upgrade_plans,
    } = stores;
    cluster_upgrades.mark_ready();
    cluster_upgrade_plans.mark_ready();
    machines.mark_ready();
    machine_sets.mark_ready();
    machine_deployments.mark_ready();
    control_planes.mark_ready();
    clusters.mark_ready();
    namespaces.mark_ready();
    node_updates.mark_ready();
    update_groups.mark_ready();
    host_settings.mark_ready();
    disruption_policies.mark_ready();
    replacement_holds.mark_ready();
    updaters.mark_ready();
    upgrade_tasks.mark_ready();
}

fn scans(stores: &Stores) -> u64 {
    stores.machines.scans()
        + stores.machine_sets.scans()
        + stores.machine_deployments.scans()
        + stores.control_planes.scans()
        + stores.clusters.scans()
        + stores.namespaces.scans()
        + stores.node_updates.scans()
        + stores.update_groups.scans()
        + stores.upgrade_tasks.scans()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, name)
}

/// How many NodeUpdates are queued.
fn queued(ctx: &Context) -> usize {
    ctx.queues.node_updates.depth()
}

/// What it is about, the event, and how many NodeUpdates it wakes.
type Event = (&'static str, Box<dyn Fn(&Context)>, usize);

#[test]
fn an_event_wakes_its_node_updates_without_a_scan() {
    let of_group = usize::try_from(MACHINES).unwrap();
    let events: [Event; 6] = [
        (
            "Machine",
            Box::new(|ctx| {
                let machine = ctx.stores.machines.get(&key("md-1-3")).unwrap();
                machine_changed(ctx, &machine);
            }),
            1,
        ),
        (
            "NodeUpdate",
            Box::new(|ctx| {
                let update = ctx.stores.node_updates.get(&key("md-1-3-2")).unwrap();
                update_changed(ctx, &update);
            }),
            1,
        ),
        (
            "UpdateGroup",
            Box::new(|ctx| {
                let group = ctx.stores.update_groups.get(&key("machinedeployment-md")).unwrap();
                group_changed(ctx, &group);
            }),
            of_group,
        ),
        (
            "Cluster",
            Box::new(|ctx| {
                let cluster = ctx.stores.clusters.get(&key("edge-1")).unwrap();
                cluster_changed(ctx, &cluster);
            }),
            2 * of_group,
        ),
        ("Node or HostPlan", Box::new(|ctx| wake_node(ctx, &key("edge-1"), "node-cp-0")), 1),
        ("outage", Box::new(|ctx| wake_all(ctx, &key("edge-1"))), 2 * of_group),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    for (what, event, woken) in events {
        let ctx = context();
        event(&ctx);
        assert_eq!(queued(&ctx), woken, "{what}");
        assert_eq!(scans(&ctx.stores), 0, "an event of a {what}");
    }
}

#[tokio::test]
async fn finished_work_is_not_queued_unless_something_is_left() {
    let ctx = context();
    let condition = json!({
        "type": "MachineUpToDate", "status": "True", "reason": "UpToDate",
        "message": "the machine runs v1.35.0", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let put = |version: u32, conditions: Value| {
        let body = json!({
            "metadata": {"ownerReferences": owned_by(CORE, "MachineSet", "md-1")},
            "spec": template(),
            "status": {"nodeRef": {"name": "node-md-1-9"}, "conditions": conditions},
        });
        let mut machine: Machine = object("md-1-9", body);
        machine.metadata.resource_version = Some(version.to_string());
        ctx.stores.machines.insert(machine);
        ctx.stores.machines.get(&key("md-1-9")).unwrap()
    };
    ctx.stores.node_updates.insert(finished("md-1-9", 1));
    let done = put(1, json!([condition]));
    for _ in 0..2 {
        machine_changed(&ctx, &done);
        update_changed(&ctx, &finished("md-1-9", 1));
        wake_node(&ctx, &key("edge-1"), "node-md-1-9");
        assert_eq!(queued(&ctx), 0);
    }
    machine_changed(&ctx, &put(2, json!([])));
    assert_eq!(queued(&ctx), 1, "its condition is gone");
}

#[tokio::test]
async fn a_reconcile_does_not_scan() {
    let ctx = context();
    // Writes fail, because no API server answers.
    for update in ["md-1-0-1", "md-1-0-2", "cp-0-1", "cp-0-2"] {
        let _ = reconcile_update(&ctx, &key(update)).await;
        assert_eq!(scans(&ctx.stores), 0, "NodeUpdate {update}");
    }
    for group in ["machinedeployment-md", "kubeadmcontrolplane-cp", "machinedeployment-unknown"] {
        let _ = reconcile_group(&ctx, &key(group)).await;
        assert_eq!(scans(&ctx.stores), 0, "UpdateGroup {group}");
    }
}

#[tokio::test]
async fn a_hook_does_not_scan() {
    let ctx = context();
    let body = |member: &str, name: &str| {
        let objects = json!({
            member: {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": template()},
            "infrastructureMachine": {}, "infrastructureMachineTemplate": {},
        });
        json!({"current": objects, "desired": objects}).to_string()
    };
    for name in ["md-1-0", "cp-0"] {
        let verdict = can_update::machine(&ctx, body("machine", name).as_bytes()).await;
        assert!(!verdict.message().contains("invalid"), "{}", verdict.message());
        assert_eq!(scans(&ctx.stores), 0, "CanUpdateMachine for {name}");
    }
    can_update::machine_set(&ctx, body("machineSet", "md-1").as_bytes()).await;
    assert_eq!(scans(&ctx.stores), 0, "CanUpdateMachineSet");
}
