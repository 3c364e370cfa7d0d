//! What real Cluster API asked our hooks, recorded on the test bed: each request is read, decided
//! and answered as it was then.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use kube::{ResourceExt as _, api::ObjectMeta};
use refit_cluster_api::kinds::{
    Cluster, KubeadmControlPlane, Machine, MachineDeployment, MachineSet, MachineStatus, NodeInfo,
    NodeRef,
};
use refit_kinds::{
    hooks::path,
    json::text,
    keys,
    refit::{NodeUpdateStatus, Phase},
};
use refit_runtime::ObjectKey;
use serde_json::Value;

use super::{
    can_update,
    update_machine::update_machine,
    wire::{self, Hook},
};
use crate::{
    context::Context,
    testing::{FakeApi, context, owner, reported},
    workload_watch::ClusterView,
};

/// A call that was recorded.
struct Call {
    file: String,
    path: String,
    request: Value,
    response: Value,
}

/// Every call of every recorded flow, on every line of Cluster API.
fn calls() -> Vec<Call> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/testbed/fixtures/hooks");
    let mut calls = Vec::new();
    for line in std::fs::read_dir(folder).unwrap() {
        for file in std::fs::read_dir(line.unwrap().path()).unwrap() {
            let file = file.unwrap().path();
            let text = std::fs::read_to_string(&file).unwrap();
            let all: Vec<Value> = serde_json::from_str(&text).unwrap();
            calls.extend(all.into_iter().map(|mut call| Call {
                file: file.display().to_string(),
                path: call["path"].as_str().unwrap().to_owned(),
                request: call["request"].take(),
                response: call["response"].take(),
            }));
        }
    }
    calls
}

/// The recorded calls of one hook.
fn calls_of(hook: Hook) -> Vec<Call> {
    let kind = format!("{}Request", hook.name());
    let mut calls = calls();
    calls.retain(|call| call.request["kind"] == kind);
    assert!(!calls.is_empty(), "no call of {} was recorded", hook.name());
    calls
}

/// The management cluster that a request speaks of, at rest: its owner, its Machines with fresh
/// reports, and a control plane that has the version that workers ask for.
fn around(api: &FakeApi, side: &Value) -> Arc<Context> {
    let ctx = context(api);
    let stores = &ctx.stores;
    let object =
        if side["machineSet"].is_object() { &side["machineSet"] } else { &side["machine"] };
    let namespace = text(object, "/metadata/namespace").to_owned();
    let spec = object.pointer("/spec/template/spec").unwrap_or(&object["spec"]);
    let cluster = text(spec, "/clusterName").to_owned();
    let version = text(spec, "/version").to_owned();
    let labels: BTreeMap<String, String> =
        serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default();
    let put = |meta: &mut ObjectMeta, uid: &str| {
        meta.namespace = Some(namespace.clone());
        meta.uid = Some(uid.to_owned());
    };
    let mut found = Cluster::new(&cluster, <_>::default());
    put(&mut found.metadata, "uid-cluster");
    stores.clusters.insert(found);
    let mut found = KubeadmControlPlane::new(&cluster, <_>::default());
    put(&mut found.metadata, "uid-kcp");
    stores.control_planes.insert(found);
    let deployment = labels.get(keys::DEPLOYMENT_NAME).cloned().unwrap_or_default();
    let mut found = MachineDeployment::new(&deployment, <_>::default());
    put(&mut found.metadata, "uid-md");
    if deployment.ends_with("-free") {
        // As the flow said it of its owner.
        found.annotations_mut().insert(keys::ON_UNCOVERED.into(), "Replace".into());
    }
    stores.machine_deployments.insert(found);
    let group = "cluster.x-k8s.io/v1beta2";
    if side["machineSet"].is_object() {
        let mut found = MachineSet::new(text(object, "/metadata/name"), <_>::default());
        put(&mut found.metadata, "uid-ms");
        found.spec.cluster_name.clone_from(&cluster);
        found.metadata.owner_references =
            Some(vec![owner(group, "MachineDeployment", &deployment, "uid-md")]);
        stores.machine_sets.insert(found);
    }
    let view = ClusterView::default();
    if side["machine"].is_object() {
        let mut found: Machine = serde_json::from_value(object.clone()).unwrap();
        let name = found.name_any();
        put(&mut found.metadata, "uid-machine");
        let by = if labels.contains_key(keys::CONTROL_PLANE) {
            let version = "controlplane.cluster.x-k8s.io/v1beta2";
            owner(version, "KubeadmControlPlane", &cluster, "uid-kcp")
        } else {
            owner(group, "MachineSet", "set", "uid-ms")
        };
        found.metadata.owner_references = Some(vec![by]);
        found.status = Some(MachineStatus {
            node_ref: Some(NodeRef { name: name.clone() }),
            node_info: Some(NodeInfo { kubelet_version: version, boot_id: "b".into() }),
            ..MachineStatus::default()
        });
        view.host_plans.insert(reported(&name, ctx.clock.now()));
        stores.machines.insert(found);
    }
    view.host_plans.mark_ready();
    view.nodes.mark_ready();
    view.static_pods.mark_ready();
    ctx.workload_index.insert(ObjectKey::new(&namespace, &cluster), view);
    stores.mark_ready();
    ctx
}

/// Whether an answer follows from the request, and not from what others were doing then.
fn is_about_the_change(response: &Value) -> bool {
    response["status"] == "Success" || text(response, "/message").contains("no updater")
}

fn same(call: &Call, answer: impl serde::Serialize) {
    let answer = serde_json::to_value(answer).unwrap();
    assert_eq!(answer, call.response, "{} {}", call.file, call.path);
}

#[test]
fn every_recorded_call_is_at_the_path_of_its_hook() {
    for hook in Hook::ALL {
        for call in calls_of(hook) {
            let asked = call.path.split('?').next().unwrap();
            assert_eq!(asked, path(hook.name(), hook.handler()), "{}", call.file);
        }
    }
}

#[test]
fn discovery_is_answered_as_when_it_was_recorded() {
    for call in calls_of(Hook::Discovery) {
        same(&call, wire::discovery());
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_judged_as_when_it_was_recorded() {
    for call in calls_of(Hook::CanUpdateMachine) {
        if !is_about_the_change(&call.response) {
            continue;
        }
        let ctx = around(&FakeApi::default(), &call.request["current"]);
        let verdict = can_update::machine(&ctx, call.request.to_string().as_bytes()).await;
        same(&call, wire::can_update_machine(&verdict));
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_set_is_judged_as_when_it_was_recorded() {
    for call in calls_of(Hook::CanUpdateMachineSet) {
        if !is_about_the_change(&call.response) {
            continue;
        }
        let ctx = around(&FakeApi::default(), &call.request["current"]);
        let verdict = can_update::machine_set(&ctx, call.request.to_string().as_bytes()).await;
        same(&call, wire::can_update_machine_set(&verdict));
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorded_update_makes_one_node_update_with_its_goal_and_ends_when_that_does() {
    for call in calls_of(Hook::UpdateMachine) {
        let api = FakeApi::default();
        let ctx = around(&api, &call.request["desired"]);
        let body = call.request.to_string();
        let answer = update_machine(&ctx, body.as_bytes()).await.unwrap();
        assert!(!answer.is_done(), "{} {}", call.file, answer.message);
        let mut update = api.node_updates().remove(0);
        let wanted = text(&call.request, "/desired/machine/spec/version");
        let goal = update.spec.goal.kubernetes_version.as_str();
        assert_eq!(goal, wanted, "{}", call.file);
        update.status =
            Some(NodeUpdateStatus { phase: Phase::Succeeded, ..NodeUpdateStatus::default() });
        ctx.stores.node_updates.insert(update);
        let answer = update_machine(&ctx, body.as_bytes()).await.unwrap();
        assert!(answer.is_done(), "{} {}", call.file, answer.message);
        assert_eq!(api.node_updates().len(), 1, "{}", call.file);
        if call.response["retryAfterSeconds"] == 0 {
            same(&call, wire::update_machine(&answer));
        }
    }
}

#[test]
fn no_recorded_call_holds_a_secret() {
    fn look(file: &str, value: &Value) {
        let Some(members) = value.as_object() else {
            for item in value.as_array().into_iter().flatten() {
                look(file, item);
            }
            return;
        };
        for (key, member) in members {
            let secret = ["token", "content", "passwd", "certificateKey", "caCertHashes"];
            if secret.contains(&key.as_str()) {
                assert_eq!(member, "(stripped)", "{file}: {key}");
            }
            look(file, member);
        }
    }
    for call in calls() {
        look(&call.file, &call.request);
    }
}
