//! The objects of the test world.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use refit_runtime::tls::KeyAndCert;
use serde_json::{Value, json};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// CRDs of Cluster API's kinds and of one infrastructure provider.
pub fn crds() -> Vec<Value> {
    let mut crds: Vec<Value> = refit_cluster_api::crds()
        .iter()
        .map(|crd| {
            let mut crd = serde_json::to_value(crd).unwrap();
            crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
            crd["kind"] = json!("CustomResourceDefinition");
            crd
        })
        .collect();
    for (kind, plural) in
        [("DockerMachine", "dockermachines"), ("DockerMachineTemplate", "dockermachinetemplates")]
    {
        crds.push(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{plural}.{INFRASTRUCTURE}"),
                "labels": {"cluster.x-k8s.io/v1beta2": "v1beta2"},
            },
            "spec": {
                "group": INFRASTRUCTURE, "scope": "Namespaced",
                "names": {
                    "kind": kind, "plural": plural, "singular": kind.to_lowercase(),
                    "listKind": format!("{kind}List"),
                },
                "versions": [{
                    "name": "v1beta2", "served": true, "storage": true,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    }},
                }],
            },
        }));
    }
    crds
}

/// The objects that every test needs: Cluster, kubeconfig, templates, extension.
pub fn base(ca: &KeyAndCert, kubeconfig: &str) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "refit-system"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": "refit-system", "name": "refit-webhook-cert"},
            "data": {"ca.crt": STANDARD.encode(&ca.cert_pem)},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": "default", "name": "edge-1-kubeconfig"},
            "data": {"value": STANDARD.encode(kubeconfig)},
        }),
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"namespace": "default", "name": "edge-1"},
            "spec": {
                "controlPlaneEndpoint": {"host": super::WORKLOAD, "port": 6443},
                "controlPlaneRef": {
                    "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane",
                    "name": "edge-1",
                },
            },
            "status": {"initialization": {"infrastructureProvisioned": true}},
        }),
        json!({
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "DockerMachineTemplate",
            "metadata": {"namespace": "default", "name": "edge-1"},
            "spec": {"template": {"spec": {"customImage": "node"}}},
        }),
        json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfigTemplate",
            "metadata": {"namespace": "default", "name": "edge-1"},
            "spec": {"template": {"spec": {"joinConfiguration": {
                "nodeRegistration": {"kubeletExtraArgs": []},
            }}}},
        }),
    ]
}

/// Registers the fake extension.
pub fn extension_config() -> Value {
    json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
        "metadata": {
            "name": "refit",
            "annotations": {
                "runtime.cluster.x-k8s.io/inject-ca-from-secret": "refit-system/refit-webhook-cert",
            },
        },
        "spec": {
            "clientConfig": {"service": {"namespace": "refit-system", "name": "refit-webhook"}},
            "settings": {"mode": "test"},
        },
    })
}

fn infrastructure_ref() -> Value {
    json!({"apiGroup": INFRASTRUCTURE, "kind": "DockerMachineTemplate", "name": "edge-1"})
}

/// A MachineDeployment.
pub fn deployment(replicas: i64, max_surge: i64, max_unavailable: i64) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {"namespace": "default", "name": "edge-1-md-0"},
        "spec": {
            "clusterName": "edge-1",
            "replicas": replicas,
            "selector": {"matchLabels": {}},
            "rollout": {"strategy": {"rollingUpdate": {
                "maxSurge": max_surge, "maxUnavailable": max_unavailable,
            }}},
            "template": {"spec": {
                "clusterName": "edge-1",
                "version": "v1.34.2",
                "bootstrap": {"configRef": {
                    "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfigTemplate",
                    "name": "edge-1",
                }},
                "infrastructureRef": infrastructure_ref(),
            }},
        },
    })
}

/// A KubeadmControlPlane.
pub fn control_plane(replicas: i64, max_surge: i64) -> Value {
    json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
        "metadata": {"namespace": "default", "name": "edge-1"},
        "spec": {
            "replicas": replicas,
            "version": "v1.34.2",
            "rollout": {"strategy": {"rollingUpdate": {"maxSurge": max_surge}}},
            "machineTemplate": {"spec": {"infrastructureRef": infrastructure_ref()}},
            "kubeadmConfigSpec": {
                "clusterConfiguration": {"apiServer": {"extraArgs": []}},
                "initConfiguration": {"nodeRegistration": {"name": "{{ local_hostname }}"}},
                "joinConfiguration": {"nodeRegistration": {"name": "{{ local_hostname }}"}},
            },
        },
    })
}

/// The ConfigMap that kubeadm leaves in the workload cluster.
pub fn kubeadm_config() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "kube-system", "name": "kubeadm-config"},
        "data": {"ClusterConfiguration":
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
             kubernetesVersion: v1.34.2\n"},
    })
}
