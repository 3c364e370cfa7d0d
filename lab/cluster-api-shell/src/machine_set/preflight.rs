//! Checks before a MachineSet creates Machines: whether they could join.

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{BOOTSTRAP_GROUP, KubeadmControlPlane, MachineSet};
use refit_runtime::ObjectKey;

use crate::{
    context::{Context, namespace_of},
    live::Live,
};

/// Why Machines should not be created now; none of the reasons is an error.
pub(super) fn failures(context: &Context, set: &Live<MachineSet>) -> Vec<String> {
    let cluster = context.cluster(&namespace_of(set), &set.spec.cluster_name);
    let reference = cluster.as_ref().and_then(|cluster| cluster.spec.control_plane_ref.as_ref());
    let Some(reference) = reference.filter(|reference| reference.kind == "KubeadmControlPlane")
    else {
        return Vec::new();
    };
    let key = ObjectKey::new(namespace_of(set), &reference.name);
    match context.control_planes.get(&key) {
        Some(control_plane) => check(&control_plane, set),
        None => vec![format!("KubeadmControlPlane {} does not exist", key.name)],
    }
}

fn check(control_plane: &Live<KubeadmControlPlane>, set: &Live<MachineSet>) -> Vec<String> {
    let name = control_plane.name_any();
    let wanted = control_plane.spec.version.version();
    let status = control_plane.status.as_ref();
    let Some(reported) = status.map(|status| &status.version).filter(|it| !it.is_absent()) else {
        return vec![format!(
            "KubeadmControlPlane {name} is provisioning (\"ControlPlaneIsStable\" preflight check failed)"
        )];
    };
    let mut failures = Vec::new();
    if wanted.is_some() && wanted > reported.version() {
        failures.push(format!(
            "KubeadmControlPlane {name} is upgrading (\"ControlPlaneIsStable\" preflight check failed)"
        ));
    }
    let (Some(set_version), Some(wanted)) = (set.spec.template.spec.version.version(), wanted)
    else {
        return failures;
    };
    if set_version.check_kubelet_of(wanted).is_err() {
        failures.push(format!(
            "MachineSet version and control plane version {} do not conform to the Kubernetes \
             version skew policy (\"KubernetesVersionSkew\" preflight check failed)",
            control_plane.spec.version
        ));
    }
    let bootstrap = set.spec.template.spec.bootstrap.config_ref.as_ref();
    let kubeadm = bootstrap.is_some_and(|reference| reference.api_group == BOOTSTRAP_GROUP);
    if kubeadm && set_version.minor() != wanted.minor() {
        failures.push(format!(
            "MachineSet version and control plane version {} do not conform to the kubeadm version \
             skew policy (\"KubeadmVersionSkew\" preflight check failed)",
            control_plane.spec.version
        ));
    }
    failures
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn control_plane(wanted: &str, reported: Option<&str>) -> Live<KubeadmControlPlane> {
        Live::read(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
            "metadata": {"name": "k"}, "spec": {"version": wanted},
            "status": {"version": reported},
        }))
        .unwrap()
    }

    fn set(version: &str) -> Live<MachineSet> {
        Live::read(json!({
            "metadata": {"name": "ms"},
            "spec": {"clusterName": "c", "template": {"spec": {
                "clusterName": "c", "version": version,
                "bootstrap": {"configRef": {
                    "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfigTemplate",
                    "name": "t",
                }},
            }}},
        }))
        .unwrap()
    }

    #[test]
    fn machines_are_created_once_they_could_join() {
        let cases = [
            ("v1.34.2", Some("v1.34.2"), "v1.34.2", vec![]),
            ("v1.34.2", None, "v1.34.2", vec!["provisioning"]),
            ("v1.35.0", Some("v1.34.2"), "v1.35.0", vec!["upgrading"]),
            ("v1.35.0", Some("v1.35.0"), "v1.34.2", vec!["kubeadm version"]),
            ("v1.34.2", Some("v1.34.2"), "v1.35.0", vec!["Kubernetes version", "kubeadm version"]),
            ("v1.35.0", Some("v1.35.0"), "v1.31.0", vec!["Kubernetes version", "kubeadm version"]),
        ];
        for (wanted, reported, set_version, want) in cases {
            let failures = check(&control_plane(wanted, reported), &set(set_version));
            assert_eq!(failures.len(), want.len(), "{failures:?}");
            for (failure, want) in failures.iter().zip(want) {
                assert!(failure.contains(want), "{failure}");
            }
        }
    }
}
