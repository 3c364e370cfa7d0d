//! Fake providers and kubelets: every requested machine is up a second later.

use std::time::Duration;

use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use lab_apiserver::ApiServer;
use refit_kinds::json::name;
use serde_json::{Value, json};

use super::{NAMESPACE, api, create, resource};

const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";

pub struct Environment {
    pub admin: Client,
    pub management: ApiServer,
    pub workload_admin: Client,
    pub workload: ApiServer,
}

impl Environment {
    pub async fn run(self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.bootstrap().await;
            self.infrastructure().await;
            self.hosts().await;
        }
    }

    fn list(&self, group: &str, plural: &str) -> Vec<Value> {
        self.management.list_values(group, plural, Some(NAMESPACE))
    }

    async fn bootstrap(&self) {
        for config in self.list(BOOTSTRAP, "kubeadmconfigs") {
            let owned = config["metadata"]["ownerReferences"][0]["kind"] == "Machine";
            if owned && config["status"]["dataSecretName"].is_null() {
                let status = json!({"status": {
                    "dataSecretName": name(&config),
                    "initialization": {"dataSecretCreated": true},
                }});
                let api = api(&self.admin, &format!("{BOOTSTRAP}/v1beta2"), "KubeadmConfig");
                let params = PatchParams::default();
                api.patch_status(name(&config), &params, &Patch::Merge(&status)).await.unwrap();
            }
        }
    }

    async fn infrastructure(&self) {
        for machine in self.list(INFRASTRUCTURE, "dockermachines") {
            let owned = machine["metadata"]["ownerReferences"][0]["kind"] == "Machine";
            if owned && machine["status"].is_null() {
                let api = api(&self.admin, &format!("{INFRASTRUCTURE}/v1beta2"), "DockerMachine");
                let spec = json!({"spec": {"providerID": format!("sandbox://{}", name(&machine))}});
                let params = PatchParams::default();
                api.patch(name(&machine), &params, &Patch::Merge(&spec)).await.unwrap();
                let status = json!({"status": {"initialization": {"provisioned": true}}});
                api.patch_status(name(&machine), &params, &Patch::Merge(&status)).await.unwrap();
            }
        }
    }

    /// Creates a host for each infrastructure machine: a Node, and static pods on control planes.
    async fn hosts(&self) {
        let hosts = self.list(INFRASTRUCTURE, "dockermachines");
        let nodes = self.workload.list_values("", "nodes", None);
        for machine in self.list(CORE, "machines") {
            let provisioned = &machine["status"]["initialization"]["infrastructureProvisioned"];
            let known = nodes.iter().any(|node| name(node) == name(&machine));
            let host = hosts.iter().any(|host| name(host) == name(&machine));
            if *provisioned == true && host && !known {
                self.boot(&machine).await;
            }
        }
        for node in nodes {
            if !hosts.iter().any(|host| name(host) == name(&node)) {
                self.lose(name(&node)).await;
            }
        }
    }

    async fn boot(&self, machine: &Value) {
        let name = name(machine);
        // A successor may have the name of a machine whose Node Cluster API deleted itself.
        self.lose(name).await;
        create(
            &self.workload_admin,
            &json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name},
                "spec": {"providerID": format!("sandbox://{name}")},
                "status": {
                    "nodeInfo": node_info(machine["spec"]["version"].as_str().unwrap()),
                    "conditions": [{
                        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    }],
                },
            }),
        )
        .await;
        if machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"].is_null() {
            return;
        }
        for component in ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"] {
            create(
                &self.workload_admin,
                &json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {
                        "namespace": "kube-system", "name": format!("{component}-{name}"),
                        "labels": {"component": component, "tier": "control-plane"},
                        "annotations": {"kubernetes.io/config.mirror": "x"},
                    },
                    "spec": {
                        "nodeName": name, "containers": [{"name": component, "image": "i"}],
                    },
                    "status": {
                        "phase": "Running",
                        "conditions": [{"type": "Ready", "status": "True"}],
                    },
                }),
            )
            .await;
        }
    }

    /// Removes the host and its kubelet.
    async fn lose(&self, node: &str) {
        let nodes: Api<DynamicObject> =
            Api::all_with(self.workload_admin.clone(), &resource("v1", "Node"));
        let _ = nodes.delete(node, &DeleteParams::default()).await;
        let system = Api::<DynamicObject>::namespaced_with(
            self.workload_admin.clone(),
            "kube-system",
            &resource("v1", "Pod"),
        );
        for pod in self.workload.list_values("", "pods", Some("kube-system")) {
            if pod["spec"]["nodeName"] == node {
                let params = DeleteParams::default().grace_period(0);
                let _ = system.delete(name(&pod), &params).await;
            }
        }
    }
}

pub fn node_info(version: &str) -> Value {
    let mut info = json!({"kubeletVersion": version, "bootID": "boot-1"});
    for field in [
        "architecture",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ] {
        info[field] = json!("x");
    }
    info
}
