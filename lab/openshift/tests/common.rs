//! A cluster that runs, and what tests ask of it.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use lab_apiserver::{ApiServer, Options};
use lab_openshift::{Blueprint, Cluster};
use refit_kinds::json::condition;
use refit_runtime::Clock;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub const MACHINES: &str = "openshift-machine-api";

pub struct Lab {
    pub cluster: Cluster,
    pub client: Client,
    pub clock: Clock,
    pub server: ApiServer,
    run: JoinHandle<std::convert::Infallible>,
}

impl Lab {
    pub async fn start(blueprint: &Blueprint) -> Self {
        let clock = Clock::simulated("2026-03-02T08:00:00Z".parse().unwrap());
        let server = ApiServer::new(Options::new(Arc::new(move || clock.now())));
        let client = Client::new(server.clone(), "default");
        let cluster = Cluster::new(client.clone());
        cluster.create(blueprint, clock.now_seconds()).await.unwrap();
        let run = tokio::spawn(Cluster::run(client.clone(), clock));
        let lab = Self { cluster, client, clock, server, run };
        lab.minutes(5).await;
        lab
    }

    /// Ends the simulation and starts it again.
    pub fn restart(&mut self) {
        self.run.abort();
        self.run = tokio::spawn(Cluster::run(self.client.clone(), self.clock));
    }

    pub async fn minutes(&self, minutes: u64) {
        tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
    }

    /// Waits until a condition holds; returns after how many minutes.
    pub async fn until(
        &self,
        within_minutes: i64,
        what: &str,
        holds: impl AsyncFn(&Self) -> bool,
    ) -> i64 {
        let start = self.clock.now();
        while !holds(self).await {
            let elapsed = self.clock.now().duration_since(start);
            assert!(
                elapsed < SignedDuration::from_mins(within_minutes),
                "{what}: not within {within_minutes} minutes"
            );
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        self.clock.now().duration_since(start).as_mins()
    }

    fn api(&self, version: &str, kind: &str, plural: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }
    }

    pub fn cluster_versions(&self) -> Api<DynamicObject> {
        self.api("config.openshift.io/v1", "ClusterVersion", "clusterversions", "")
    }

    pub fn operators(&self) -> Api<DynamicObject> {
        self.api("config.openshift.io/v1", "ClusterOperator", "clusteroperators", "")
    }

    pub fn pools(&self) -> Api<DynamicObject> {
        let version = "machineconfiguration.openshift.io/v1";
        self.api(version, "MachineConfigPool", "machineconfigpools", "")
    }

    pub fn machine_sets(&self) -> Api<DynamicObject> {
        self.api("machine.openshift.io/v1beta1", "MachineSet", "machinesets", MACHINES)
    }

    pub fn machines(&self) -> Api<DynamicObject> {
        self.api("machine.openshift.io/v1beta1", "Machine", "machines", MACHINES)
    }

    pub fn budgets(&self) -> Api<DynamicObject> {
        self.api("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", "shop")
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "shop")
    }

    /// The ClusterVersion.
    pub async fn version(&self) -> Value {
        read(&self.cluster_versions(), "version").await
    }

    pub async fn version_condition(&self, type_: &str) -> (String, String) {
        shown(&self.version().await, type_)
    }

    pub async fn patch_version(&self, patch: Value) {
        merge(&self.cluster_versions(), "version", patch).await;
    }

    pub async fn is_completed(&self, version: &str) -> bool {
        let entry = self.version().await["status"]["history"][0].clone();
        entry["version"] == version && entry["state"] == "Completed"
    }

    /// Whether all nodes of a pool are updated, and have been since the pool's target is this version.
    pub async fn pool_has(&self, pool: &str, version: &str) -> bool {
        let status = read(&self.pools(), pool).await["status"].clone();
        status["configuration"]["name"] == format!("rendered-{pool}-{version}")
            && status["machineCount"] == status["updatedMachineCount"]
    }

    pub async fn cordoned(&self) -> Vec<String> {
        let nodes = self.nodes().list(&ListParams::default()).await.unwrap();
        let is_cordoned =
            |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        nodes.items.iter().filter(|node| is_cordoned(node)).map(Node::name_any).collect()
    }

    pub async fn delete_pod(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }
}

pub async fn read(api: &Api<DynamicObject>, name: &str) -> Value {
    json!(api.get(name).await.unwrap())
}

pub async fn list(api: &Api<DynamicObject>) -> Vec<Value> {
    api.list(&ListParams::default()).await.unwrap().items.iter().map(|one| json!(one)).collect()
}

pub async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) {
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// Status and reason of a condition.
pub fn shown(object: &Value, type_: &str) -> (String, String) {
    let reason = refit_kinds::json::whole_condition(object, type_).map(|one| one["reason"].clone());
    let reason = reason.and_then(|reason| reason.as_str().map(str::to_owned)).unwrap_or_default();
    (condition(object, type_).unwrap_or_default().to_owned(), reason)
}
