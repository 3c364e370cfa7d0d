//! The objects that `kubeadm init` leaves in a new cluster, and an application that runs on it.

use serde_json::{Value, json};

use super::text;
use crate::direct::{Call, Direct, DirectError};

/// Replicas of the application.
pub(crate) const WEB_REPLICAS: u32 = 8;
/// How many of them may be unavailable, by the application's PodDisruptionBudget.
pub(crate) const WEB_MAX_UNAVAILABLE: u32 = 2;
/// Termination grace period of the application's pods, in seconds.
const WEB_GRACE_SECONDS: u32 = 5;
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets";

/// Creates the objects of a new workload cluster. Idempotent.
pub(crate) async fn fill(
    api: &Direct,
    cluster: &str,
    endpoint: &str,
    version: &str,
) -> Result<(), DirectError> {
    let config_maps = "/api/v1/namespaces/kube-system/configmaps";
    ensure(api, config_maps, kubeadm_config(cluster, endpoint, version)).await?;
    ensure(api, DAEMON_SETS, kube_proxy(version)).await?;
    application(api).await
}

/// Creates the objects of a new workload cluster of Canonical Kubernetes. Idempotent.
pub(crate) async fn fill_of_canonical(api: &Direct) -> Result<(), DirectError> {
    ensure(api, DAEMON_SETS, k8sd_proxy()).await?;
    application(api).await
}

async fn application(api: &Direct) -> Result<(), DirectError> {
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = ensure(api, deployments, web_deployment()).await?;
    let replica_sets = "/apis/apps/v1/namespaces/default/replicasets";
    ensure(api, replica_sets, web_replica_set(&deployment)).await?;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    ensure(api, budgets, web_budget()).await?;
    Ok(())
}

/// Creates an object, or reads the existing one.
async fn ensure(api: &Direct, collection: &str, body: Value) -> Result<Value, DirectError> {
    let path = format!("{collection}/{}", text(&body, "/metadata/name"));
    match api.send(Call::create(collection, body)).await {
        Err(error) if error.code() == Some(409) => {
            let get = Call { method: http::Method::GET, path, body: Value::Null };
            api.send(get).await
        }
        outcome => outcome,
    }
}

fn kubeadm_config(cluster: &str, endpoint: &str, version: &str) -> Value {
    let configuration = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\n\
         clusterName: {cluster}\n\
         controlPlaneEndpoint: {endpoint}\n\
         etcd:\n  local:\n    dataDir: /var/lib/etcd\n\
         imageRepository: registry.k8s.io\n\
         kind: ClusterConfiguration\n\
         kubernetesVersion: {version}\n"
    );
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
        "data": {"ClusterConfiguration": configuration},
    })
}

fn kube_proxy(version: &str) -> Value {
    let labels = json!({"k8s-app": "kube-proxy"});
    daemon_set("kube-proxy", &labels, &format!("registry.k8s.io/kube-proxy:{version}"))
}

/// The pods through which k8sd is reached (`docs/facts/k8sd.md`).
fn k8sd_proxy() -> Value {
    daemon_set("k8sd-proxy", &json!({"app": "k8sd-proxy"}), "ghcr.io/canonical/k8s/k8sd-proxy:1.0")
}

fn daemon_set(name: &str, labels: &Value, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": true,
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": name, "image": image}],
                },
            },
        },
    })
}

fn web_template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "terminationGracePeriodSeconds": WEB_GRACE_SECONDS,
            "containers": [{"name": "web", "image": "registry.k8s.io/echoserver:1.10"}],
        },
    })
}

fn web_deployment() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "replicas": WEB_REPLICAS,
            "selector": {"matchLabels": {"app": "web"}},
            "template": web_template(),
        },
    })
}

fn web_replica_set(deployment: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": "web-7d4c9",
            "namespace": "default",
            "labels": {"app": "web"},
            "ownerReferences": [{
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": "web",
                "uid": text(deployment, "/metadata/uid"),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": WEB_REPLICAS,
            "selector": {"matchLabels": {"app": "web"}},
            "template": web_template(),
        },
    })
}

fn web_budget() -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "maxUnavailable": WEB_MAX_UNAVAILABLE,
            "selector": {"matchLabels": {"app": "web"}},
        },
    })
}
