//! A current kubectl against the API server: one cluster for all tests, a namespace for each.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]
#![allow(clippy::needless_pass_by_value, reason = "the objects are built for one call")]

mod apply;
mod discover;
mod get;
mod nodes;
mod write;

use std::path::PathBuf;
use std::sync::OnceLock;

use lab_kubectl_suite::{Cluster, Kubectl};
use serde_json::{Value, json};

/// kubectl for the cluster of all tests, with the project's CRDs installed.
pub(crate) struct Suite {
    pub(crate) kubectl: Kubectl,
}

pub(crate) fn suite() -> &'static Suite {
    static SUITE: OnceLock<Suite> = OnceLock::new();
    SUITE.get_or_init(|| {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("kubectl-suite-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let cluster = Cluster::start(&directory).unwrap();
        let kubectl = match Kubectl::new(cluster.kubeconfig(), &directory) {
            Ok(kubectl) => kubectl,
            Err(missing) => panic!("{missing}"),
        };
        let crds: Vec<Value> = refit_kinds::crds::refit_crds()
            .into_iter()
            .chain(refit_cluster_api::crds())
            .map(|crd| serde_json::to_value(crd).unwrap())
            .collect();
        kubectl.feed("create -f -", &list(crds)).ok();
        kubectl.run("wait crd --all --for=condition=Established --timeout=20s").ok();
        Suite { kubectl }
    })
}

/// kubectl in a new namespace.
pub(crate) fn namespace(name: &str) -> Kubectl {
    let suite = suite();
    suite.kubectl.run(&format!("create namespace {name}")).ok();
    suite.kubectl.with(&format!("--namespace={name}"))
}

/// Several objects in one document.
pub(crate) fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// Asserts that a text contains all of these parts.
#[track_caller]
pub(crate) fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

/// The words of the line whose first word is `first`.
#[track_caller]
pub(crate) fn row<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.first() == Some(&first))
        .unwrap_or_else(|| panic!("no row {first:?} in:\n{text}"))
}

pub(crate) fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub(crate) fn machine(name: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "edge-1"}},
        "spec": {
            "clusterName": "edge-1",
            "version": "v1.34.2",
            "bootstrap": {"dataSecretName": "x"},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "SandboxMachine", "name": name},
        },
    })
}

pub(crate) fn machine_deployment(name: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineDeployment",
        "metadata": {"name": name},
        "spec": {
            "clusterName": "edge-1",
            "replicas": 3,
            "selector": {"matchLabels": {"pool": "a"}},
            "template": {"metadata": {"labels": {"pool": "a"}}, "spec": {
                "clusterName": "edge-1",
                "version": "v1.34.2",
                "bootstrap": {"dataSecretName": "x"},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "SandboxMachineTemplate", "name": name},
            }},
        },
    })
}

pub(crate) fn deployment(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "containers": [{"name": "main", "image": image,
                    "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]}],
            }},
        },
    })
}

pub(crate) fn pod(name: &str, node: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example.com/app:1"}]},
    })
}

pub(crate) const READY: &str = r#"{"status":{"phase":"Running","podIP":"10.0.0.7","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"main","ready":true,"restartCount":0,"state":{"running":{}}}]}}"#;
