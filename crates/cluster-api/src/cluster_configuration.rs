//! The ConfigMap `kube-system/kubeadm-config`: Cluster API updates it to the target before it changes any
//! machine, and lets kubeadm's administrators in (`docs/facts/control-plane.md#kubeadm-config`).

use refit_kinds::version::KubernetesVersion;
use serde_json::{Value, json};

/// Name of the ConfigMap, in `kube-system`.
pub const NAME: &str = "kubeadm-config";
/// The key that holds the configuration.
pub const KEY: &str = "ClusterConfiguration";
/// Name of the ClusterRoleBinding of kubeadm's administrators, and of their group.
pub const ADMINS: &str = "kubeadm:cluster-admins";
/// The first minor version of Kubernetes 1 whose kubeadm needs [`ADMINS`].
const ADMINS_SINCE: u64 = 29;
/// Fields of a control plane's cluster configuration that are copied to the ConfigMap.
const FIELDS: [&str; 6] = [
    "imageRepository",
    "featureGates",
    "apiServer",
    "controllerManager",
    "scheduler",
    "encryptionAlgorithm",
];

/// Why a configuration cannot be updated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{KEY} is invalid: {0}")]
pub struct BadConfiguration(String);

/// Returns the ClusterRoleBinding that kubeadm of this version needs, if it needs one.
pub fn admins_binding(version: &KubernetesVersion) -> Option<Value> {
    let needed = (version.major(), version.minor()) >= (1, ADMINS_SINCE);
    needed.then(|| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ADMINS},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
            },
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": ADMINS,
            }],
        })
    })
}

/// Returns the configuration that a control plane wants, `None` if nothing changes.
pub fn updated(text: &str, control_plane: &Value) -> Result<Option<String>, BadConfiguration> {
    let wrong = BadConfiguration;
    let before: Value = if text.trim().is_empty() {
        json!({})
    } else {
        serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?
    };
    let mut after = before.clone();
    if !after.is_object() {
        return Err(wrong("it is not a map".to_owned()));
    }
    after["kubernetesVersion"] = control_plane["spec"]["version"].clone();
    let wanted = &control_plane["spec"]["kubeadmConfigSpec"]["clusterConfiguration"];
    for field in FIELDS {
        if let Some(value) = wanted.get(field).filter(|value| !value.is_null()) {
            after[field] = value.clone();
        }
    }
    if let Some(days) = wanted["certificateValidityPeriodDays"].as_i64() {
        after["certificateValidityPeriod"] = json!(format!("{}h0m0s", days.saturating_mul(24)));
    }
    for kind in ["local", "external"] {
        let etcd = &wanted["etcd"][kind];
        if etcd.is_object() {
            if !after["etcd"].is_null() && !after["etcd"].is_object() {
                return Err(wrong("its etcd is not a map".to_owned()));
            }
            after["etcd"][kind] = merge(&after["etcd"][kind], etcd);
        }
    }
    if after == before {
        return Ok(None);
    }
    let text = serde_saphyr::to_string(&after).map_err(|error| wrong(error.to_string()))?;
    Ok(Some(text))
}

fn merge(known: &Value, wanted: &Value) -> Value {
    let mut merged = known.clone();
    json_patch::merge(&mut merged, wanted);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "apiServer: {}\napiVersion: kubeadm.k8s.io/v1beta4\n\
        controlPlaneEndpoint: edge-1.refit.sandbox:6443\netcd:\n  local:\n    dataDir: /var/lib/etcd\n\
        kind: ClusterConfiguration\nkubernetesVersion: v1.34.2\n";

    fn control_plane(configuration: &Value) -> Value {
        json!({"spec": {
            "version": "v1.35.0",
            "kubeadmConfigSpec": {"clusterConfiguration": configuration},
        }})
    }

    fn read(text: &str) -> Value {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn the_version_is_updated_and_the_rest_is_kept() {
        let text = updated(TEXT, &control_plane(&json!({}))).unwrap().unwrap();
        let after = read(&text);
        assert_eq!(after["kubernetesVersion"], "v1.35.0");
        assert_eq!(after["etcd"]["local"]["dataDir"], "/var/lib/etcd");
        assert_eq!(after["controlPlaneEndpoint"], "edge-1.refit.sandbox:6443");
        assert!(text.lines().any(|line| line == "kubernetesVersion: v1.35.0"), "{text}");
    }

    #[test]
    fn a_configuration_at_the_target_is_not_written() {
        let text = updated(TEXT, &control_plane(&json!({}))).unwrap().unwrap();
        assert_eq!(updated(&text, &control_plane(&json!({}))).unwrap(), None);
    }

    #[test]
    fn component_settings_follow_the_control_plane() {
        let configuration = json!({
            "imageRepository": "registry.example.com/k8s",
            "featureGates": {"ControlPlaneKubeletLocalMode": true},
            "certificateValidityPeriodDays": 365,
            "etcd": {"local": {"imageTag": "3.6.5-0"}},
        });
        let text = updated(TEXT, &control_plane(&configuration)).unwrap().unwrap();
        let after = read(&text);
        assert_eq!(after["imageRepository"], "registry.example.com/k8s");
        assert_eq!(after["featureGates"]["ControlPlaneKubeletLocalMode"], true);
        assert_eq!(after["certificateValidityPeriod"], "8760h0m0s");
        assert_eq!(
            after["etcd"]["local"],
            json!({"dataDir": "/var/lib/etcd", "imageTag": "3.6.5-0"})
        );
    }

    #[test]
    fn an_invalid_configuration_is_an_error() {
        assert!(updated("[1, 2]", &control_plane(&json!({}))).is_err());
        assert!(updated("a: [", &control_plane(&json!({}))).is_err());
        let etcd = control_plane(&json!({"etcd": {"local": {"dataDir": "/var/lib/etcd"}}}));
        assert!(updated("etcd: none", &etcd).is_err());
        assert!(updated("etcd:", &etcd).unwrap().is_some());
    }

    #[test]
    fn only_newer_kubeadm_needs_its_administrators() {
        let binding = |version: &str| admins_binding(&version.parse().unwrap());
        assert_eq!(binding("v1.28.9"), None);
        assert_eq!(binding("v1.29.0").unwrap()["subjects"][0]["name"], ADMINS);
    }
}
