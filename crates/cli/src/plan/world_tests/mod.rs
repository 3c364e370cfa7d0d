//! Compares plans with the outcome of the change in simulated worlds.

use std::{collections::BTreeSet, sync::OnceLock, time::Duration};

mod causes;
mod drains;
mod timeline;

use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    discovery,
};
use lab_world::{
    manifests,
    snapshot::Snapshot,
    world::{MachineFacts, World, WorldOptions, facts, runtime},
};
use refit_cluster_api::kinds::Machine;
use refit_core::invariants::Invariant;
use refit_kinds::{
    keys,
    refit::{Disruption, HostPlan},
};
use refit_predict::{CauseReason, Counts, GroupPrediction, Input, PredictedOutcome, predict};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{
    gather::{Change, gather},
    reader::{Access, Reader},
};
use crate::client::Cluster;

/// A version of the control plane's own minor: workers need not wait for it.
const PATCH: &str = "v1.34.3";
const MINOR: &str = "v1.35.0";

/// The example with fewer workers and, if requested, one control plane machine.
fn objects(control_planes: i64, workers: i64) -> Vec<Value> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.yaml");
    let loaded = manifests::load(&[file]).unwrap();
    let mut objects: Vec<Value> = loaded.into_iter().map(|m| m.object).collect();
    for object in &mut objects {
        match object["kind"].as_str() {
            Some("KubeadmControlPlane") => {
                object["spec"]["replicas"] = json!(control_planes);
                if control_planes < 3 {
                    object["spec"]["rollout"]["strategy"]["rollingUpdate"]["maxSurge"] = json!(1);
                }
            }
            Some("MachineDeployment") => object["spec"]["replicas"] = json!(workers),
            _ => {}
        }
    }
    objects
}

async fn come_up(objects: Vec<Value>) -> World {
    let world = World::new(WorldOptions::new(objects)).await.unwrap();
    world
        .until("every machine is available", Duration::from_mins(30), World::is_ready)
        .await
        .unwrap();
    world.pass(Duration::from_secs(40)).await;
    world
}

/// Three control plane machines and three workers, brought up once for all tests.
fn up() -> World {
    static UP: OnceLock<Snapshot> = OnceLock::new();
    let bring_up = || {
        let thread = std::thread::spawn(|| {
            runtime().unwrap().block_on(async { come_up(objects(3, 3)).await.snapshot() })
        });
        thread.join().unwrap()
    };
    let snapshot = UP.get_or_init(bring_up);
    World::restore(snapshot, &WorldOptions::new(Vec::new())).unwrap()
}

fn in_world<F: Future<Output = ()>>(test: F) {
    runtime().unwrap().block_on(test);
}

fn reader(world: &World) -> Reader {
    let cluster = Cluster {
        client: world.client("plan-test").unwrap(),
        namespace: "default".into(),
        url: "https://sandbox".into(),
        clock: world.clock(),
    };
    let workload = world.workload_client("default/edge-1", "plan-test").unwrap();
    Reader::with(cluster, Access::Given([("edge-1".to_owned(), workload)].into()))
}

/// Merges a patch into an object, or creates the object.
async fn write(world: &World, api_version: &str, kind: &str, name: &str, body: &Value) {
    let client = world.client("plan-test").unwrap();
    let (group, _) = api_version.split_once('/').unwrap();
    let group = discovery::group(&client, group).await.unwrap();
    let (resource, _) = group.recommended_kind(kind).unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    if api.get_opt(name).await.unwrap().is_some() {
        let patch = Patch::Merge(body);
        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    } else {
        let object = serde_json::from_value(body.clone()).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

async fn apply(world: &World, object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).unwrap().as_str().unwrap();
    write(world, text("/apiVersion"), text("/kind"), text("/metadata/name"), object).await;
}

fn plane(spec: &Value) -> Value {
    json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
        "metadata": {"name": "edge-1", "namespace": "default"}, "spec": spec})
}

fn workers(spec: &Value) -> Value {
    json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {"name": "edge-1-md-0", "namespace": "default"}, "spec": spec})
}

fn strategy(surge: i64, unavailable: i64) -> Value {
    workers(&json!({"rollout": {"strategy": {"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}}))
}

fn version_of_workers(version: &str) -> Value {
    workers(&json!({"template": {"spec": {"version": version}}}))
}

fn machine_template(name: &str, cpus: i64, memory: i64) -> Value {
    json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "SandboxMachineTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": {"cpus": cpus, "memoryMiB": memory}}}})
}

/// Returns what distinguishes a machine with the change from one without.
async fn changed(world: &World) -> BTreeSet<(String, String)> {
    let machines = world.machines();
    let infrastructure =
        world.management().list_values("infrastructure.cluster.x-k8s.io", "sandboxmachines", None);
    let mut state = BTreeSet::new();
    for fact in facts(world).await.unwrap() {
        let machine =
            machines.iter().find(|machine| machine["metadata"]["uid"] == fact.uid).unwrap();
        let reference = machine["spec"]["infrastructureRef"]["name"].as_str().unwrap();
        let made_of = infrastructure
            .iter()
            .find(|object| object["metadata"]["name"] == reference)
            .map(|object| {
                object["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-name"].to_string()
            });
        let what = format!("{} {}", fact.kubelet_version, made_of.unwrap_or_default());
        state.insert((fact.uid, what));
    }
    state
}

fn of_group<'a>(facts: &'a [MachineFacts], owner: &str) -> BTreeSet<&'a str> {
    let of_owner = facts.iter().filter(|fact| fact.owner == owner);
    of_owner.map(|fact| fact.uid.as_str()).collect()
}

/// Plans a change, makes it, waits, and compares. Returns the prediction.
async fn comes_true(world: &World, objects: &[Value]) -> Vec<GroupPrediction> {
    let make = async || {
        for object in objects {
            apply(world, object).await;
        }
    };
    compared(world, objects, |_| {}, make).await
}

/// The same for a change that is made in its own way, and a plan that sees more than there is.
async fn compared(
    world: &World,
    objects: &[Value],
    see: impl FnOnce(&mut Input),
    make: impl AsyncFnOnce(),
) -> Vec<GroupPrediction> {
    let mut input = gather(&mut reader(world), &Change::Objects(objects)).await.unwrap();
    see(&mut input);
    let predicted = predict(&input);
    let (before, marks) = (facts(world).await.unwrap(), changed(world).await);
    make().await;
    world.pass(Duration::from_mins(30)).await;
    let (after, marks_after) = (facts(world).await.unwrap(), changed(world).await);
    for group in &predicted.groups {
        let owner = format!("{}/{}", group.kind, group.name);
        let (old, new) = (of_group(&before, &owner), of_group(&after, &owner));
        let moved = |uid: &&&str| {
            let mark = |marks: &BTreeSet<(String, String)>| {
                marks.iter().find(|(known, _)| known == **uid).cloned()
            };
            mark(&marks) != mark(&marks_after)
        };
        let count = |number: usize| i64::try_from(number).unwrap();
        let happened = Counts {
            now: count(old.len()),
            in_place: count(old.intersection(&new).filter(moved).count()),
            new: count(new.difference(&old).count()),
            deleted: count(old.difference(&new).count()),
        };
        assert_eq!(group.machines, happened, "{owner}: {group:#?}");
    }
    let replaces = predicted.groups.iter().any(|group| group.machines.deleted > 0);
    let mut violations = world.violations_at_rest();
    // Whether a deletion was predicted is compared above.
    violations.retain(|one| !replaces || one.what.invariant != Invariant::NoReplacement);
    assert!(violations.is_empty(), "{violations:#?}");
    predicted.groups
}

/// How the last plans of the workers, or of the control plane, have disturbed their hosts.
fn disruptions(world: &World, workers: bool) -> BTreeSet<Disruption> {
    let plans = world.workload("default/edge-1").unwrap();
    let plans = plans.list_values(refit_kinds::refit::GROUP, "hostplans", None);
    let plans = plans.iter().map(|plan| HostPlan::deserialize(plan).unwrap());
    plans
        .filter(|plan| !plan.spec.node_update.is_empty())
        .filter(|plan| plan.name_any().starts_with("edge-1-md-0") == workers)
        .map(|plan| plan.spec.disruption)
        .collect()
}

fn only(groups: Vec<GroupPrediction>) -> GroupPrediction {
    assert_eq!(groups.len(), 1);
    groups.into_iter().next().unwrap()
}

fn reasons(group: &GroupPrediction) -> Vec<CauseReason> {
    group.causes.iter().map(|cause| cause.reason).collect()
}

#[test]
fn without_surge_every_machine_stays() {
    in_world(async {
        let world = up();
        let target = "cluster/edge-1".parse().unwrap();
        let to = MINOR.parse().unwrap();
        let input = gather(&mut reader(&world), &Change::Version(&target, &to)).await;
        let by_version = predict(&input.unwrap());
        assert_eq!(by_version.outcome, PredictedOutcome::InPlace, "{by_version:#?}");
        let objects = [plane(&json!({"version": MINOR})), version_of_workers(MINOR)];
        let by_file = comes_true(&world, &objects).await;
        assert_eq!(by_version.groups, by_file);
        assert_eq!(by_file[0].machines.in_place, 3);
        assert_eq!(by_file[1].machines.in_place, 3);
        // The prediction of the next change includes its duration.
        let to = "v1.35.1".parse().unwrap();
        let input = gather(&mut reader(&world), &Change::Version(&target, &to)).await;
        let next = predict(&input.unwrap());
        assert!(next.groups.iter().all(|group| group.seconds.is_some()), "{next:#?}");
    });
}

#[test]
fn surge_of_a_control_plane_replaces_one() {
    in_world(async {
        let world = up();
        let surge = json!({"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}});
        apply(&world, &plane(&surge)).await;
        let group = only(comes_true(&world, &[plane(&json!({"version": PATCH}))]).await);
        assert_eq!((group.machines.in_place, group.machines.new), (2, 1));
        assert_eq!(reasons(&group), [CauseReason::Surge]);
    });
}

#[test]
fn a_control_plane_of_one_is_replaced() {
    in_world(async {
        let world = come_up(objects(1, 1)).await;
        let group = only(comes_true(&world, &[plane(&json!({"version": PATCH}))]).await);
        assert_eq!((group.machines.in_place, group.machines.new), (0, 1));
        assert_eq!(group.outcome, PredictedOutcome::Replaced);
    });
}

#[test]
fn surge_of_workers_is_predicted() {
    in_world(async {
        for (surge, unavailable, in_place, new) in [(1, 0, 2, 1), (1, 1, 3, 0)] {
            let world = up();
            apply(&world, &strategy(surge, unavailable)).await;
            let group = only(comes_true(&world, &[version_of_workers(PATCH)]).await);
            assert_eq!(
                (group.machines.in_place, group.machines.new),
                (in_place, new),
                "{surge}/{unavailable}"
            );
        }
    });
}

#[test]
fn on_delete_does_nothing_by_itself() {
    in_world(async {
        let world = up();
        let on_delete =
            json!({"rollout": {"strategy": {"type": "OnDelete", "rollingUpdate": null}}});
        apply(&world, &workers(&on_delete)).await;
        let group = only(comes_true(&world, &[version_of_workers(PATCH)]).await);
        assert_eq!(group.outcome, PredictedOutcome::Replaced);
        assert_eq!(reasons(&group), [CauseReason::OnDelete]);
    });
}

/// A new template for the workers, and the workers that reference it.
fn rotation(cpus: i64) -> [Value; 2] {
    let reference = json!({"template": {"spec": {"infrastructureRef": {"name": "next"}}}});
    [machine_template("next", cpus, 16384), workers(&reference)]
}

#[test]
fn a_template_of_equal_spec_goes_in_place() {
    in_world(async {
        let world = up();
        let group = only(comes_true(&world, &rotation(8)).await);
        assert_eq!(group.outcome, PredictedOutcome::InPlace, "{group:#?}");
        assert_eq!(group.machines.in_place, 3);
    });
}

#[test]
fn uncovered_changes_stop_under_preserve() {
    in_world(async {
        let world = up();
        let group = only(comes_true(&world, &rotation(16)).await);
        assert_eq!(group.outcome, PredictedOutcome::Blocked);
        assert_eq!(group.blocked_by[0].reason, "UncoveredPreserve");
        let line =
            "SandboxMachineTemplate/edge-1-md-0 spec.template.spec.cpus: 8 -> 16 (no updater)";
        assert_eq!(group.paths[0].line, line);
        // The hook gave the same reason.
        let groups = world.update_groups();
        let stored = groups.iter().find(|g| g["spec"]["owner"]["name"] == "edge-1-md-0").unwrap();
        assert_eq!(stored["status"]["uncovered"], json!([line]));
    });
}

#[test]
fn uncovered_changes_replace_machines_under_replace() {
    in_world(async {
        let world = up();
        let mut objects = rotation(16);
        objects[1]["metadata"]["annotations"] = json!({"refit.dev/on-uncovered": "Replace"});
        let group = only(comes_true(&world, &objects).await);
        assert_eq!(group.outcome, PredictedOutcome::Replaced);
        assert_eq!(group.machines.deleted, 3);
        assert_eq!(reasons(&group), [CauseReason::Uncovered]);
    });
}

#[test]
fn a_changed_configuration_disturbs_machines_as_predicted() {
    in_world(async {
        let world = up();
        let flags = json!({"nodeRegistration": {"kubeletExtraArgs": [
            {"name": "node-labels", "value": "site=edge-1"}, {"name": "v", "value": "4"},
        ]}});
        for (config, disruption) in [
            (json!({"files": [{"path": "/etc/motd", "content": "x"}]}), Disruption::None),
            (json!({"joinConfiguration": flags, "initConfiguration": flags}), Disruption::Restart),
        ] {
            let change = [plane(&json!({"kubeadmConfigSpec": config}))];
            let input = gather(&mut reader(&world), &Change::Objects(&change)).await.unwrap();
            let group = only(predict(&input).groups);
            assert_eq!(group.outcome, PredictedOutcome::InPlace, "{group:#?}");
            assert_eq!((group.machines.in_place, group.disruption), (3, Some(disruption)));
            apply(&world, &change[0]).await;
            world.pass(Duration::from_mins(30)).await;
            assert_eq!(disruptions(&world, false), [disruption].into());
        }
        let group = only(comes_true(&world, &[version_of_workers(PATCH)]).await);
        assert_eq!(group.disruption, Some(Disruption::Drain));
        assert_eq!(disruptions(&world, true), [Disruption::Drain].into());
    });
}

#[test]
fn a_control_plane_template_is_compared_by_content() {
    in_world(async {
        let reference =
            json!({"machineTemplate": {"spec": {"infrastructureRef": {"name": "next"}}}});
        for (cpus, outcome) in [(4, PredictedOutcome::InPlace), (6, PredictedOutcome::Blocked)] {
            let world = up();
            let objects = [machine_template("next", cpus, 8192), plane(&reference)];
            let group = only(comes_true(&world, &objects).await);
            assert_eq!(group.outcome, outcome, "{group:#?}");
        }
    });
}

#[test]
fn workers_that_would_run_ahead_are_blocked() {
    in_world(async {
        let world = up();
        let group = only(comes_true(&world, &[version_of_workers(MINOR)]).await);
        assert_eq!(group.outcome, PredictedOutcome::Blocked);
        assert_eq!(group.blocked_by[0].reason, "ControlPlaneBehind");
    });
}

#[test]
fn in_a_disabled_group_every_machine_is_replaced() {
    in_world(async {
        let world = up();
        let mut object = version_of_workers(PATCH);
        object["metadata"]["annotations"] = json!({"refit.dev/in-place": "Disabled"});
        let group = only(comes_true(&world, &[object]).await);
        assert_eq!(group.machines.deleted, 3, "{group:#?}");
        assert_eq!(reasons(&group), [CauseReason::NotAsked]);
    });
}
