//! Requests of real Cluster API to Refit's hooks, recorded on the test bed: each request is sent
//! again over the wire, and must get the recorded response.

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::{
    Cluster, KubeadmControlPlane, Machine, MachineDeployment, MachineSet,
};
use refit_kinds::{
    hooks::path,
    json::{annotation, text},
    keys,
    refit::{HostPlan, NodeUpdate, Phase},
};
use serde_json::{Value, json};

use super::fleet::node_info;
use crate::common::{
    objects::{install_kinds, made, made_in, owner, status},
    site::{Running, Site, settle},
};

/// The hooks, and Refit's handler of each.
const HOOKS: [(&str, Option<&str>); 4] = [
    ("Discovery", None),
    ("CanUpdateMachine", Some("can-update-machine")),
    ("CanUpdateMachineSet", Some("can-update-machineset")),
    ("UpdateMachine", Some("update-machine")),
];

/// A recorded call.
struct Call {
    file: String,
    path: String,
    request: Value,
    response: Value,
}

/// Every call of every recorded flow, for every minor version of Cluster API.
fn calls() -> Vec<Call> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/testbed/fixtures/hooks");
    let mut calls = Vec::new();
    for line in fs::read_dir(directory).unwrap() {
        for file in fs::read_dir(line.unwrap().path()).unwrap() {
            let file = file.unwrap().path();
            let all: Vec<Value> =
                serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
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
fn calls_of(hook: &str) -> Vec<Call> {
    let kind = format!("{hook}Request");
    let mut calls = calls();
    calls.retain(|call| call.request["kind"] == kind);
    assert!(!calls.is_empty(), "no call of {hook} was recorded");
    calls
}

impl Call {
    /// Whether the response follows from the request alone, not from other objects at that time.
    fn is_about_the_change(&self) -> bool {
        self.response["status"] == "Success"
            || text(&self.response, "/message").contains("no updater")
    }

    async fn ask(&self, site: &Site) -> Value {
        site.post(&self.path, &self.request).await
    }

    fn assert_same(&self, answer: &Value) {
        assert_eq!(*answer, self.response, "{} {}", self.file, self.path);
    }
}

/// The management cluster for one side of a request, at rest: its owner, which requests the desired side,
/// its Machine with a fresh report, and a control plane that blocks nothing.
async fn around(side: &Value, desired: &Value) -> (Site, Running, Client) {
    let site = Site::new();
    install_kinds(&site.client()).await;
    let object =
        if side["machineSet"].is_object() { &side["machineSet"] } else { &side["machine"] };
    let namespace = text(object, "/metadata/namespace");
    let labels = json!({keys::IN_PLACE: keys::OPTED_IN});
    let body = json!({"metadata": {"name": namespace, "labels": labels}});
    let _: Namespace = made_in(&Api::all(site.client()), body).await;
    let client = Client::new(site.management.clone(), namespace);
    let spec = object.pointer("/spec/template/spec").unwrap_or(&object["spec"]);
    let cluster = text(spec, "/clusterName");
    let owner = owners(&client, object, cluster, desired).await;
    site.connect(&client, cluster).await;
    let controller = site.start(None);
    settle().await;
    if side["machine"].is_object() {
        machine(&site, &client, object, owner).await;
    }
    settle().await;
    (site, controller, client)
}

/// Creates the Cluster and the owners of a recorded object; returns the reference to its Machines'
/// owner.
async fn owners(client: &Client, object: &Value, cluster: &str, desired: &Value) -> Value {
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    let named: Cluster = made(client, json!({"metadata": {"name": cluster}, "spec": {}})).await;
    let initialised = json!({"initialization": {"controlPlaneInitialized": true}});
    status(client, &named, initialised).await;
    let control_plane: KubeadmControlPlane =
        made(client, json!({"metadata": {"name": cluster}, "spec": control_plane_spec(desired)}))
            .await;
    if label(keys::CONTROL_PLANE).is_some() {
        return owner(&control_plane);
    }
    let template = desired.pointer("/machineSet/spec/template").cloned();
    let template = template.unwrap_or_else(|| json!({"spec": desired["machine"]["spec"]}));
    let workers = json!({
        "clusterName": cluster, "replicas": 1, "selector": {}, "template": template,
    });
    let deployment = label(keys::DEPLOYMENT_NAME).unwrap();
    let mut metadata = json!({"name": deployment});
    if deployment.ends_with("-free") {
        // The policy that the flow set on its owner.
        metadata["annotations"] = json!({keys::ON_UNCOVERED: "Replace"});
    }
    let deployment: MachineDeployment =
        made(client, json!({"metadata": metadata, "spec": workers})).await;
    let name = text(object, "/metadata/name");
    let metadata = json!({"name": name, "ownerReferences": [owner(&deployment)]});
    let set: MachineSet = made(client, json!({"metadata": metadata, "spec": workers})).await;
    owner(&set)
}

/// The spec of a control plane that requests these objects, or blocks nothing.
fn control_plane_spec(desired: &Value) -> Value {
    let template = annotation(&desired["infrastructureMachine"], keys::CLONED_FROM_NAME);
    let version = desired.pointer("/machine/spec/version").cloned();
    let reference = json!({"apiGroup": "i", "kind": "T", "name": template.unwrap_or_default()});
    json!({
        "replicas": 1,
        "version": version.unwrap_or_else(|| "v1.34.2".into()),
        "machineTemplate": {"spec": {"infrastructureRef": reference}},
    })
}

/// Creates a recorded Machine that runs its desired version, and a fresh report of its agent.
async fn machine(site: &Site, client: &Client, recorded: &Value, owner: Value) {
    let mut body = recorded.clone();
    body["metadata"]["ownerReferences"] = json!([owner]);
    let machine: Machine = made(client, body).await;
    let name = machine.name_any();
    let version = text(recorded, "/spec/version");
    let known = json!({"nodeRef": {"name": name}, "nodeInfo": node_info(version)});
    status(client, &machine, known).await;
    let agent = Client::new(site.workload.clone(), keys::HOST_PLAN_NAMESPACE);
    let plan: HostPlan = made(&agent, json!({"metadata": {"name": name}, "spec": {}})).await;
    status(&agent, &plan, json!({"reportedAt": site.clock.now_seconds()})).await;
}

#[test]
fn every_recorded_call_is_at_the_path_of_its_hook() {
    for (hook, handler) in HOOKS {
        for call in calls_of(hook) {
            let asked = call.path.split('?').next().unwrap();
            assert_eq!(asked, path(hook, handler), "{}", call.file);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn discovery_matches_the_recorded_response() {
    let site = Site::new();
    let _controller = site.start(None);
    for call in calls_of("Discovery") {
        call.assert_same(&call.ask(&site).await);
    }
}

#[tokio::test(start_paused = true)]
async fn verdicts_match_the_recorded_ones() {
    for call in ["CanUpdateMachine", "CanUpdateMachineSet"].into_iter().flat_map(calls_of) {
        if call.is_about_the_change() {
            let Value::Object(sides) = &call.request else { panic!("{}", call.request) };
            let (site, _controller, _) = around(&sides["current"], &sides["desired"]).await;
            call.assert_same(&call.ask(&site).await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorded_update_ends_with_its_one_node_update() {
    for call in calls_of("UpdateMachine") {
        let desired = &call.request["desired"];
        let (site, _controller, client) = around(desired, desired).await;
        let answer = call.ask(&site).await;
        assert_ne!(answer["retryAfterSeconds"], 0, "{} {answer}", call.file);
        let updates: Api<NodeUpdate> = Api::default_namespaced(client.clone());
        let made = updates.list(&ListParams::default()).await.unwrap().items;
        let wanted = text(&call.request, "/desired/machine/spec/version");
        assert_eq!(
            made[0].spec.goal.kubernetes_version.as_ref().unwrap().to_string(),
            wanted,
            "{}",
            call.file
        );
        status(&client, &made[0], json!({"phase": Phase::Succeeded})).await;
        settle().await;
        let answer = call.ask(&site).await;
        assert_eq!(answer["retryAfterSeconds"], 0, "{} {answer}", call.file);
        let made = updates.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(made.len(), 1, "{}", call.file);
        if call.response["retryAfterSeconds"] == 0 {
            call.assert_same(&answer);
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
