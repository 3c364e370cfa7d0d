//! The Deployments of a Cluster API installation, so that its version and feature gates are read
//! here as in a real management cluster. Nothing runs them: Refit's stand-in does their work.

use refit_kinds::{hooks::CLIENT_FLAGS, keys};
use serde_json::{Value, json};

use crate::direct::{Call, Direct, DirectError};

/// The Cluster API release that the stand-in implements.
const VERSION: &str = "v1.12.11";
/// Its feature gates, as the manager's argument.
const GATES: &str =
    "--feature-gates=MachinePool=false,ClusterTopology=false,RuntimeSDK=true,InPlaceUpdates=true";

/// Namespace, Deployment, provider label and image of each manager.
const MANAGERS: [(&str, &str, &str, &str); 3] = [
    ("capi-system", "capi-controller-manager", "cluster-api", "cluster-api-controller"),
    (
        "capi-kubeadm-bootstrap-system",
        "capi-kubeadm-bootstrap-controller-manager",
        "bootstrap-kubeadm",
        "kubeadm-bootstrap-controller",
    ),
    (
        "capi-kubeadm-control-plane-system",
        "capi-kubeadm-control-plane-controller-manager",
        "control-plane-kubeadm",
        "kubeadm-control-plane-controller",
    ),
];

/// Creates the Deployments and their Namespaces.
pub(crate) async fn describe(api: &Direct) -> Result<(), DirectError> {
    for (namespace, name, provider, image) in MANAGERS {
        let labels = json!({"cluster.x-k8s.io/provider": provider});
        let body = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": labels},
        });
        match api.send(Call::create("/api/v1/namespaces", body)).await {
            // The manifests may contain it already.
            Err(error) if error.code() == Some(409) => {}
            outcome => {
                outcome?;
            }
        }
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        let body = deployment(namespace, name, provider, image);
        api.send(Call::create(path, body)).await?;
    }
    Ok(())
}

fn deployment(namespace: &str, name: &str, provider: &str, image: &str) -> Value {
    let labels = json!({
        "cluster.x-k8s.io/provider": provider,
        "control-plane": "controller-manager",
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {keys::STAND_IN: "true"},
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": name.replace("-controller-manager", "-manager"), "containers": [{
                    "name": "manager",
                    "image": format!("registry.k8s.io/cluster-api/{image}:{VERSION}"),
                    "command": ["/manager"],
                    "args": args(provider),
                }]},
            },
        },
    })
}

/// The arguments of a manager: those that call hooks present a client certificate.
fn args(provider: &str) -> Vec<String> {
    let mut args = vec!["--leader-elect".to_owned(), GATES.to_owned()];
    if provider != "bootstrap-kubeadm" {
        let files = ["tls.crt", "tls.key"];
        args.extend(
            CLIENT_FLAGS
                .iter()
                .zip(files)
                .map(|(flag, file)| format!("{flag}=/etc/{}/{file}", keys::HOOK_CLIENT)),
        );
    }
    args
}

#[cfg(test)]
mod tests {
    use refit_predict::{Manager, managers};

    use super::*;

    #[test]
    fn the_described_installation_supports_in_place_updates() {
        let read: Vec<Manager> = MANAGERS
            .iter()
            .map(|(namespace, name, provider, image)| deployment(namespace, name, provider, image))
            .filter_map(|json| Manager::of(&serde_json::from_value(json).unwrap()))
            .collect();
        assert_eq!(read.len(), 2);
        let users: Vec<&str> = read.iter().map(|manager| manager.user.as_str()).collect();
        assert_eq!(users, refit_controller::HOLD_CALLERS);
        for manager in read {
            assert!(manager.version.as_ref() >= Some(&managers::first_version()));
            assert!(manager.provider.gates().iter().all(|gate| manager.gate(gate)));
        }
    }
}
