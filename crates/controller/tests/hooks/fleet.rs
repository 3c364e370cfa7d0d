//! Cluster edge-1: three control plane machines and a MachineDeployment of two, all at v1.34.2,
//! with fresh reports of their agents. Tests call the hooks as Cluster API does.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Event};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams},
};
use refit_cluster_api::kinds::{
    Cluster, KubeadmControlPlane, Machine, MachineDeployment, MachineSet,
};
use refit_controller::sabotage::Safeguard;
use refit_core::group::COVERED;
use refit_kinds::{
    conditions,
    hooks::path,
    keys,
    refit::{HostPlan, NodeUpdate, Phase, UpdateGroup},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::common::{
    objects::{install_kinds, made, made_in, owner, status, update_asked},
    site::{Running, Site, settle},
};

pub(crate) const OLD: &str = "v1.34.2";
pub(crate) const NEW: &str = "v1.35.0";
pub(crate) const CONTROL_PLANE: [&str; 3] = ["edge-1-cp-0", "edge-1-cp-1", "edge-1-cp-2"];
pub(crate) const WORKERS: [&str; 2] = ["edge-1-w-0", "edge-1-w-1"];

pub(crate) struct Fleet {
    pub(crate) site: Site,
    without: Option<Safeguard>,
    controller: Running,
}

impl Fleet {
    /// The cluster at rest, and a controller that has read it.
    pub(crate) async fn new() -> Self {
        Self::of(None).await
    }

    /// The same with a controller that lacks a safeguard.
    pub(crate) async fn without(safeguard: Safeguard) -> Self {
        Self::of(Some(safeguard)).await
    }

    async fn of(without: Option<Safeguard>) -> Self {
        let site = Site::new();
        let client = site.client();
        install_kinds(&client).await;
        cluster(&client).await;
        site.connect(&client, "edge-1").await;
        let fleet = Self { controller: site.start(without), site, without };
        // Agents report once the controller has installed their namespace and CRD.
        settle().await;
        for name in CONTROL_PLANE.iter().chain(&WORKERS) {
            let metadata = json!({"name": name});
            let _: HostPlan =
                made_in(&fleet.host_plans(), json!({"metadata": metadata, "spec": {}})).await;
            fleet.report(name, fleet.site.clock.now_seconds()).await;
        }
        settle().await;
        fleet
    }

    /// Stops the controller immediately and starts another one.
    pub(crate) async fn restart(&mut self) {
        self.controller.shutdown().await;
        self.controller = self.site.start(self.without);
        settle().await;
    }

    pub(crate) fn client(&self) -> Client {
        self.site.client()
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::default_namespaced(self.client())
    }

    fn host_plans(&self) -> Api<HostPlan> {
        Api::namespaced(self.site.workload_client(), keys::HOST_PLAN_NAMESPACE)
    }

    /// Sets the time of the last report of a host's agent.
    pub(crate) async fn report(&self, name: &str, at: Timestamp) {
        let body = json!({"status": {"agentVersion": "0.1.0", "reportedAt": at}});
        let patch = Patch::Merge(&body);
        self.host_plans().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Changes an object as a user or Cluster API would.
    pub(crate) async fn patch<K>(&self, name: &str, body: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let patch = Patch::Merge(&body);
        self.api::<K>().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn annotate<K>(&self, name: &str, key: &str, value: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        self.patch::<K>(name, json!({"metadata": {"annotations": {key: value}}})).await;
    }

    pub(crate) async fn machine_status(&self, name: &str, body: Value) {
        let machine = self.api::<Machine>().get(name).await.unwrap();
        status(&self.client(), &machine, body).await;
    }

    /// Sets the kubelet version in a Machine's status.
    pub(crate) async fn kubelet(&self, name: &str, version: &str) {
        self.machine_status(name, json!({"nodeInfo": node_info(version)})).await;
    }

    /// Ends every NodeUpdate with this phase, an hour ago.
    pub(crate) async fn end_updates(&self, phase: Phase) {
        let ended = self.site.clock.now_seconds() - jiff::SignedDuration::from_hours(1);
        for update in self.updates().await {
            status(&self.client(), &update, json!({"phase": phase, "finishedAt": ended})).await;
        }
        settle().await;
    }

    pub(crate) async fn updates(&self) -> Vec<NodeUpdate> {
        self.api().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn groups(&self) -> Vec<UpdateGroup> {
        self.api().list(&ListParams::default()).await.unwrap().items
    }

    /// The reason of the Covered condition of the only group.
    pub(crate) async fn reason(&self) -> String {
        let groups = self.groups().await;
        assert_eq!(groups.len(), 1);
        let status = groups[0].status.as_ref().unwrap();
        conditions::get(&status.conditions, COVERED).unwrap().reason.clone()
    }

    /// Reasons of the events about an object.
    pub(crate) async fn event_reasons(&self, about: &str) -> Vec<String> {
        let events = self.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        let about = events.into_iter().filter(|e| e.involved_object.name.as_deref() == Some(about));
        about.filter_map(|event| event.reason).collect()
    }

    /// Asserts that a scrape contains this line, after the common prefix.
    pub(crate) async fn assert_metric(&self, line: &str) {
        let text = self.site.metrics().await;
        assert!(text.lines().any(|l| l.strip_prefix("refit_") == Some(line)), "{line} in {text}");
    }

    /// Asserts that one call of a hook had this verdict.
    pub(crate) async fn assert_counted(&self, hook: &str, verdict: &str) {
        let labels = format!("hook=\"{hook}\",verdict=\"{verdict}\"");
        self.assert_metric(&format!("hook_duration_seconds_count{{{labels}}} 1")).await;
    }

    pub(crate) async fn can_update(&self, name: &str, to: &str, cpus: (u8, u8)) -> Answer {
        let body = json!({
            "current": machine_side(name, OLD, cpus.0),
            "desired": machine_side(name, to, cpus.1),
        });
        self.ask("CanUpdateMachine", "can-update-machine", &body).await
    }

    pub(crate) async fn can_bump(&self, name: &str) -> Answer {
        self.can_update(name, NEW, (2, 2)).await
    }

    pub(crate) async fn can_bump_set(&self, name: &str) -> Answer {
        self.can_update_set(name, (2, 2)).await
    }

    pub(crate) async fn can_update_set(&self, name: &str, cpus: (u8, u8)) -> Answer {
        let body = json!({
            "current": set_side(name, OLD, cpus.0),
            "desired": set_side("new", NEW, cpus.1),
        });
        self.ask("CanUpdateMachineSet", "can-update-machineset", &body).await
    }

    /// Marks the Machine as Cluster API does, and calls UpdateMachine.
    pub(crate) async fn update(&self, name: &str, version: &str) -> Answer {
        self.patch::<Machine>(name, update_asked(version)).await;
        self.call_update(name, version).await
    }

    /// Calls UpdateMachine as anyone can.
    pub(crate) async fn call_update(&self, name: &str, version: &str) -> Answer {
        let body = json!({"desired": machine_side(name, version, 2)});
        self.ask("UpdateMachine", "update-machine", &body).await
    }

    pub(crate) async fn ask(&self, hook: &str, handler: &str, body: &Value) -> Answer {
        let path = path(hook, Some(handler));
        Answer(self.site.post(&format!("{path}?timeout=10s"), body).await)
    }
}

/// The response of a hook.
#[derive(Debug)]
pub(crate) struct Answer(Value);

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        self.0["status"] == "Success"
    }

    /// Whether the change is made in place.
    pub(crate) fn is_covered(&self) -> bool {
        let patch = ["machinePatch", "machineSetPatch"].map(|patch| self.0[patch].is_object());
        self.is_success() && patch.contains(&true)
    }

    /// Whether the rollout is left to Cluster API, for this reason.
    pub(crate) fn leaves_it(&self, why: &str) -> bool {
        self.is_success() && !self.is_covered() && self.message().contains(why)
    }

    /// Whether the change is refused, for this reason.
    pub(crate) fn refuses(&self, why: &str) -> bool {
        self.0["status"] == "Failure" && self.message().contains(why)
    }

    /// Whether the update is done.
    pub(crate) fn is_done(&self) -> bool {
        self.is_success() && self.0["retryAfterSeconds"] == 0
    }

    /// Whether a retry is requested, for this reason.
    pub(crate) fn waits(&self, why: &str) -> bool {
        self.is_success() && !self.is_done() && self.message().contains(why)
    }

    pub(crate) fn retry_after_seconds(&self) -> Option<i64> {
        self.0["retryAfterSeconds"].as_i64()
    }

    pub(crate) fn message(&self) -> &str {
        self.0["message"].as_str().unwrap_or_default()
    }
}

pub(crate) fn machine_side(name: &str, version: &str, cpus: u8) -> Value {
    let meta = json!({"name": name, "namespace": "default"});
    let spec = json!({"version": version, "clusterName": "edge-1"});
    json!({
        "machine": {"kind": "Machine", "metadata": meta, "spec": spec},
        "infrastructureMachine":
            {"kind": "DockerMachine", "metadata": meta, "spec": {"cpus": cpus}},
        "bootstrapConfig": {"kind": "KubeadmConfig", "metadata": meta, "spec": {}},
    })
}

pub(crate) fn set_side(name: &str, version: &str, cpus: u8) -> Value {
    let template = |kind: &str, spec: Value| {
        json!({
            "kind": kind,
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"template": {"spec": spec}},
        })
    };
    json!({
        "machineSet": template("MachineSet", json!({"version": version})),
        "infrastructureMachineTemplate": template("DockerMachineTemplate", json!({"cpus": cpus})),
        "bootstrapConfigTemplate": template("KubeadmConfigTemplate", json!({})),
    })
}

pub(crate) fn node_info(version: &str) -> Value {
    json!({"kubeletVersion": version, "bootID": "b"})
}

async fn cluster(client: &Client) {
    let named = json!({"metadata": {"name": "edge-1"}, "spec": {}});
    let cluster: Cluster = made(client, named).await;
    let initialised = json!({"initialization": {"controlPlaneInitialized": true}});
    status(client, &cluster, initialised).await;
    let control_plane: KubeadmControlPlane = made(
        client,
        json!({"metadata": {"name": "edge-1"}, "spec": {"replicas": 3, "version": NEW}}),
    )
    .await;
    let workers = json!({
        "clusterName": "edge-1", "replicas": 2, "selector": {},
        "template": {"spec": {"clusterName": "edge-1", "version": NEW}},
    });
    let deployment: MachineDeployment =
        made(client, json!({"metadata": {"name": "edge-1-md-0"}, "spec": workers})).await;
    let metadata = json!({"name": "edge-1-md-0-a", "ownerReferences": [owner(&deployment)]});
    let set: MachineSet = made(client, json!({"metadata": metadata, "spec": workers})).await;
    for name in CONTROL_PLANE {
        machine(client, name, &json!({keys::CONTROL_PLANE: ""}), owner(&control_plane)).await;
    }
    for name in WORKERS {
        machine(client, name, &json!({}), owner(&set)).await;
    }
}

async fn machine(client: &Client, name: &str, labels: &Value, owner: Value) {
    let body = json!({
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"clusterName": "edge-1", "version": OLD},
    });
    let machine: Machine = made(client, body).await;
    let known = json!({"nodeRef": {"name": name}, "nodeInfo": node_info(OLD)});
    status(client, &machine, known).await;
}
