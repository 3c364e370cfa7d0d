//! The hooks over filled stores and a fake API.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use refit_cluster_api::kinds::Machine;
use refit_core::change::{Verdict, request::Answer};
use refit_kinds::{
    conditions, keys,
    refit::{NodeUpdate, NodeUpdateStatus, Phase, Stage},
};
use refit_runtime::ObjectKey;
use serde_json::{Value, json};

use super::{can_update, update_machine::update_machine};
use crate::{
    context::Context,
    sabotage::Safeguard,
    testing::{FakeApi, context, context_without, epoch, fill, fleet, machine, reported},
};

fn objects(kind: &str, name: &str, version: &str, infrastructure: &Value) -> [Value; 3] {
    let meta = json!({"name": name, "namespace": "default"});
    [
        json!({"kind": kind, "metadata": meta, "spec": {"version": version, "clusterName": "edge-1"}}),
        json!({"kind": "DockerMachine", "metadata": meta, "spec": infrastructure}),
        json!({"kind": "KubeadmConfig", "metadata": meta, "spec": {}}),
    ]
}

fn machine_side(name: &str, version: &str, infrastructure: &Value) -> Value {
    let [machine, infra, bootstrap] = objects("Machine", name, version, infrastructure);
    json!({"machine": machine, "infrastructureMachine": infra, "bootstrapConfig": bootstrap})
}

async fn can_update(ctx: &Context, name: &str, to: &str, infra: (&Value, &Value)) -> Verdict {
    let request = json!({
        "current": machine_side(name, "v1.34.2", infra.0),
        "desired": machine_side(name, to, infra.1),
    });
    can_update::machine(ctx, request.to_string().as_bytes()).await
}

async fn can_bump(ctx: &Context, name: &str) -> Verdict {
    let same = json!({"cpus": 2});
    can_update(ctx, name, "v1.35.0", (&same, &same)).await
}

async fn can_update_set(ctx: &Context, set: &str) -> Verdict {
    let side = |version: &str, name: &str| {
        let template = |kind: &str, spec: Value| {
            json!({"kind": kind, "metadata": {"name": name, "namespace": "default"},
                "spec": {"template": {"spec": spec}}})
        };
        json!({
            "machineSet": template("MachineSet", json!({"version": version})),
            "infrastructureMachineTemplate": template("DockerMachineTemplate", json!({})),
            "bootstrapConfigTemplate": template("KubeadmConfigTemplate", json!({})),
        })
    };
    let request = json!({"current": side("v1.34.2", set), "desired": side("v1.35.0", "new")});
    can_update::machine_set(ctx, request.to_string().as_bytes()).await
}

async fn update(ctx: &Context, name: &str, version: &str) -> Answer {
    let request = json!({"desired": machine_side(name, version, &json!({"cpus": 2}))});
    update_machine(ctx, request.to_string().as_bytes()).await.unwrap()
}

/// What the watch would bring.
fn sync(ctx: &Context, api: &FakeApi) {
    for update in api.node_updates() {
        ctx.stores.node_updates.insert(update);
    }
    for group in api.update_groups() {
        ctx.stores.update_groups.insert(group);
    }
}

fn put(ctx: &Context, api: &FakeApi, change: impl Fn(&mut NodeUpdate)) {
    for mut update in api.node_updates() {
        change(&mut update);
        ctx.stores.node_updates.insert(update);
    }
}

fn phase(phase: Phase) -> impl Fn(&mut NodeUpdate) {
    move |update| {
        update.status = Some(NodeUpdateStatus {
            phase,
            finished_at: phase.is_final().then(|| Time(epoch() - SignedDuration::from_hours(1))),
            ..NodeUpdateStatus::default()
        });
    }
}

fn annotated(ctx: &Context, name: &str, change: impl Fn(&mut Machine)) {
    let key = ObjectKey::new("default", name);
    let mut machine = ctx.stores.machines.get(&key).unwrap().as_ref().clone();
    change(&mut machine);
    ctx.stores.machines.insert(machine);
}

#[tokio::test(start_paused = true)]
async fn a_version_bump_of_a_control_plane_machine_is_covered() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    let verdict = can_bump(&ctx, "edge-1-cp-0").await;
    assert_eq!(verdict.reason(), "Covered");
    let group = &api.update_groups()[0];
    assert_eq!(group.name_any(), "kubeadmcontrolplane-edge-1");
    assert_eq!(group.owner_references()[0].uid, "uid-kcp");
    let status = group.status.as_ref().unwrap();
    assert!(conditions::is_true(&status.conditions, refit_core::group::COVERED));
    assert_eq!(api.event_reasons(), ["Covered"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_decision_is_written_once() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    can_bump(&ctx, "edge-1-cp-0").await;
    sync(&ctx, &api);
    let writes = api.writes();
    can_bump(&ctx, "edge-1-cp-0").await;
    can_bump(&ctx, "edge-1-cp-1").await;
    assert_eq!(api.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn another_unfinished_machine_of_the_control_plane_is_named() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    update(&ctx, "edge-1-cp-1", "v1.35.0").await;
    sync(&ctx, &api);
    let verdict = can_bump(&ctx, "edge-1-cp-0").await;
    assert_eq!(verdict.reason(), "AnotherMachineUpdating");
    assert!(verdict.message().contains("edge-1-cp-1 "), "{}", verdict.message());
    assert_eq!(can_bump(&ctx, "edge-1-cp-1").await.reason(), "Covered");
    put(&ctx, &api, phase(Phase::Succeeded));
    assert_eq!(can_bump(&ctx, "edge-1-cp-0").await.reason(), "Covered");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cluster_api_still_marks_holds_the_others_back() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    annotated(&ctx, "edge-1-cp-2", |machine| {
        machine.annotations_mut().insert(keys::UPDATE_IN_PROGRESS.into(), String::new());
    });
    assert_eq!(can_bump(&ctx, "edge-1-cp-0").await.reason(), "AnotherMachineUpdating");
    assert_eq!(can_bump(&ctx, "edge-1-cp-2").await.reason(), "Covered");
}

#[tokio::test(start_paused = true)]
async fn a_host_without_a_fresh_report_is_named() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    let view = ctx.workload_index.view(&ObjectKey::new("default", "edge-1")).unwrap();
    view.host_plans.insert(reported("edge-1-cp-0", epoch() - SignedDuration::from_secs(901)));
    let verdict = can_bump(&ctx, "edge-1-cp-0").await;
    assert_eq!(verdict.reason(), "NoFreshReport");
    assert!(verdict.message().contains("Node edge-1-cp-0"), "{}", verdict.message());
    assert_eq!(can_bump(&ctx, "edge-1-cp-1").await.reason(), "Covered");
}

#[tokio::test(start_paused = true)]
async fn an_uncovered_change_is_preserved_and_its_paths_are_in_the_group() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    let infra = (&json!({"cpus": 2}), &json!({"cpus": 4}));
    let verdict = can_update(&ctx, "edge-1-cp-0", "v1.35.0", infra).await;
    assert_eq!(verdict.reason(), "UncoveredPreserve");
    let status = api.update_groups()[0].status.clone().unwrap();
    assert_eq!(status.uncovered, ["DockerMachine/edge-1-cp-0 spec.cpus: 2 -> 4 (no updater)"]);
    assert_eq!(api.event_reasons(), ["UncoveredPreserve"]);
    sync(&ctx, &api);
    assert_eq!(can_bump(&ctx, "edge-1-cp-0").await.reason(), "Covered");
    assert!(api.update_groups()[0].status.clone().unwrap().uncovered.is_empty());
}

#[tokio::test(start_paused = true)]
async fn policy_is_read_from_the_live_owner_and_cluster() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    let infra = (&json!({"cpus": 2}), &json!({"cpus": 4}));
    let key = ObjectKey::new("default", "edge-1");
    let mut cluster = ctx.stores.clusters.get(&key).unwrap().as_ref().clone();
    cluster.annotations_mut().insert(keys::ON_UNCOVERED.into(), "Replace".into());
    ctx.stores.clusters.insert(cluster);
    let verdict = can_update(&ctx, "edge-1-cp-0", "v1.35.0", infra).await;
    assert_eq!(verdict.reason(), "UncoveredReplace");
    let mut owner = ctx.stores.control_planes.get(&key).unwrap().as_ref().clone();
    owner.annotations_mut().insert(keys::IN_PLACE.into(), "Disabled".into());
    ctx.stores.control_planes.insert(owner);
    assert_eq!(can_bump(&ctx, "edge-1-cp-0").await, Verdict::Disabled);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_is_never_an_empty_success() {
    let api = FakeApi::default();
    let ctx = context(&api);
    assert_eq!(can_bump(&ctx, "edge-1-cp-0").await.reason(), "NotSynced");
    fill(&ctx);
    assert_eq!(can_bump(&ctx, "edge-1-cp-9").await.reason(), "ObjectUnknown");
    assert_eq!(can_update_set(&ctx, "other").await.reason(), "ObjectUnknown");
    annotated(&ctx, "edge-1-cp-0", |m| m.metadata.owner_references = None);
    assert_eq!(can_bump(&ctx, "edge-1-cp-0").await.reason(), "OwnerUnknown");
    annotated(&ctx, "edge-1-cp-1", |m| {
        m.metadata.deletion_timestamp = Some(Time(epoch()));
    });
    assert_eq!(can_bump(&ctx, "edge-1-cp-1").await.reason(), "Deleting");
    assert_eq!(can_update::machine(&ctx, b"{}").await.reason(), "BadRequest");
    assert!(api.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_changes_no_verdict() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    api.set_down(true);
    assert_eq!(can_bump(&ctx, "edge-1-cp-0").await.reason(), "Covered");
}

#[tokio::test(start_paused = true)]
async fn workers_wait_for_the_control_plane() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    let verdict = can_update_set(&ctx, "edge-1-md-0-a").await;
    assert_eq!(verdict.reason(), "ControlPlaneBehind");
    assert!(verdict.message().contains("edge-1-cp-0 runs v1.34.2"), "{}", verdict.message());
    for name in ["edge-1-cp-0", "edge-1-cp-1", "edge-1-cp-2"] {
        ctx.stores.machines.insert(machine(name, "v1.35.0"));
    }
    assert_eq!(can_update_set(&ctx, "edge-1-md-0-a").await.reason(), "Covered");
    let names: Vec<_> = api.update_groups().iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["machinedeployment-edge-1-md-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_report_holds_its_set_back() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    for name in ["edge-1-cp-0", "edge-1-cp-1", "edge-1-cp-2"] {
        ctx.stores.machines.insert(machine(name, "v1.35.0"));
    }
    annotated(&ctx, "edge-1-w-1", |m| {
        m.status.as_mut().unwrap().node_ref = None;
    });
    let verdict = can_update_set(&ctx, "edge-1-md-0-a").await;
    assert_eq!(verdict.reason(), "NoFreshReport");
    assert!(verdict.message().contains("Machine edge-1-w-1"), "{}", verdict.message());
}

#[tokio::test(start_paused = true)]
async fn the_first_update_machine_makes_ordinal_one_owned_by_its_machine() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    let answer = update(&ctx, "edge-1-w-0", "v1.35.0").await;
    assert_eq!((answer.message.as_str(), answer.retry_after_seconds), ("pending", 2));
    let made = &api.node_updates()[0];
    assert_eq!(made.name_any(), "edge-1-w-0-1");
    assert_eq!(made.owner_references()[0].uid, "uid-edge-1-w-0");
    assert_eq!(made.labels()[keys::MACHINE_NAME], "edge-1-w-0");
    assert_eq!(made.spec.goal_hash, made.spec.goal.hash());
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_behind_never_makes_a_second_one() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    for _ in 0..3 {
        let answer = update(&ctx, "edge-1-w-0", "v1.35.0").await;
        assert_eq!(answer.message, "pending");
    }
    assert_eq!(api.node_updates().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_the_ordinal_a_restart_makes_a_second_one() {
    let api = FakeApi::default();
    let started = || {
        let ctx = context_without(&api, Safeguard::Ordinal);
        fill(&ctx);
        sync(&ctx, &api);
        ctx
    };
    let ctx = started();
    for _ in 0..3 {
        update(&ctx, "edge-1-w-0", "v1.35.0").await;
        sync(&ctx, &api);
    }
    assert_eq!(api.node_updates().len(), 1);
    update(&started(), "edge-1-w-0", "v1.35.0").await;
    assert_eq!(api.node_updates().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn done_comes_with_success_and_the_live_version() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    update(&ctx, "edge-1-w-0", "v1.35.0").await;
    put(&ctx, &api, phase(Phase::Succeeded));
    ctx.stores.machines.insert(machine("edge-1-w-0", "v1.35.0"));
    assert!(update(&ctx, "edge-1-w-0", "v1.35.0").await.is_done());
    // Somebody put the old version back since: the work is done again.
    ctx.stores.machines.insert(machine("edge-1-w-0", "v1.34.2"));
    assert_eq!(update(&ctx, "edge-1-w-0", "v1.35.0").await.message, "pending");
    assert_eq!(api.node_updates().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_newer_one_that_the_cache_lacks_keeps_it_from_being_done() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    update(&ctx, "edge-1-w-0", "v1.35.0").await;
    put(&ctx, &api, phase(Phase::Succeeded));
    ctx.stores.machines.insert(machine("edge-1-w-0", "v1.35.0"));
    // Another replica makes ordinal 2 for another goal.
    let other = fleet(&api);
    for mut update in api.node_updates() {
        phase(Phase::Succeeded)(&mut update);
        other.stores.node_updates.insert(update);
    }
    update(&other, "edge-1-w-0", "v1.35.1").await;
    assert_eq!(api.node_updates().len(), 2);
    let answer = update(&ctx, "edge-1-w-0", "v1.35.0").await;
    assert!(!answer.is_done());
    assert!(answer.message.starts_with("stopping NodeUpdate edge-1-w-0-2"), "{}", answer.message);
}

#[tokio::test(start_paused = true)]
async fn another_goal_aborts_the_one_that_waits_and_then_goes_on() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    update(&ctx, "edge-1-w-0", "v1.35.0").await;
    sync(&ctx, &api);
    update(&ctx, "edge-1-w-0", "v1.35.1").await;
    assert_eq!(api.node_updates()[0].spec.stage, Stage::Abort);
    put(&ctx, &api, phase(Phase::Stopped));
    update(&ctx, "edge-1-w-0", "v1.35.1").await;
    let made = api.node_updates();
    assert_eq!(made[1].name_any(), "edge-1-w-0-2");
    assert_eq!(made[1].spec.goal.kubernetes_version, "v1.35.1");
}

#[tokio::test(start_paused = true)]
async fn a_failure_waits_for_the_retry_annotation() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    update(&ctx, "edge-1-w-0", "v1.35.0").await;
    put(&ctx, &api, phase(Phase::Failed));
    let answer = update(&ctx, "edge-1-w-0", "v1.35.0").await;
    assert!(answer.message.starts_with("failed: "), "{}", answer.message);
    assert_eq!(api.node_updates().len(), 1);
    annotated(&ctx, "edge-1-w-0", |machine| {
        machine.annotations_mut().insert(keys::RETRY.into(), "edge-1-w-0-1".into());
    });
    for _ in 0..2 {
        update(&ctx, "edge-1-w-0", "v1.35.0").await;
    }
    assert_eq!(api.node_updates().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_is_a_retry_and_no_failure() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    api.set_down(true);
    let answer = update(&ctx, "edge-1-w-0", "v1.35.0").await;
    assert!(!answer.is_done() && answer.message.contains("did not answer"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_served_is_a_failure_without_values() {
    let api = FakeApi::default();
    let ctx = fleet(&api);
    let nobody = json!({"desired": machine_side("nobody", "v1.35.0", &json!({}))}).to_string();
    let unversioned =
        json!({"desired": machine_side("edge-1-w-0", "latest", &json!({}))}).to_string();
    let table = [
        (nobody.as_str(), "ObjectUnknown"),
        (unversioned.as_str(), "BadGoal"),
        ("{", "BadRequest"),
        ("{\"desired\": \"hunter2\"}", "BadRequest"),
    ];
    for (body, reason) in table {
        let error = update_machine(&ctx, body.as_bytes()).await.unwrap_err();
        assert_eq!(error.reason(), reason);
        assert!(!error.to_string().contains("hunter2"));
    }
}
