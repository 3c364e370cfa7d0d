//! Stand-ins for Cluster API's CustomResourceDefinitions.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::crd::CustomResourceExt as _;
use refit_kinds::keys;

use crate::kinds::{
    CONTRACT_VERSION, Cluster, ExtensionConfig, KubeadmConfig, KubeadmConfigTemplate,
    KubeadmControlPlane, Machine, MachineDeployment, MachineDrainRule, MachineHealthCheck,
    MachineSet,
};

/// Generating their schemas is slow.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(generate);

/// Returns stand-in CRDs with Cluster API's contract labels, for clusters without Cluster API.
pub fn crds() -> Vec<CustomResourceDefinition> {
    CRDS.clone()
}

fn generate() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        Cluster::crd(),
        ExtensionConfig::crd(),
        KubeadmConfig::crd(),
        KubeadmConfigTemplate::crd(),
        KubeadmControlPlane::crd(),
        Machine::crd(),
        MachineDeployment::crd(),
        MachineDrainRule::crd(),
        MachineHealthCheck::crd(),
        MachineSet::crd(),
    ];
    for crd in &mut crds {
        crd.metadata
            .labels
            .get_or_insert_default()
            .insert(keys::CONTRACT_V1BETA2.to_owned(), CONTRACT_VERSION.to_owned());
    }
    crds
}

#[cfg(test)]
mod tests {
    use refit_kinds::crds::refit_crds;

    use super::*;

    #[test]
    fn conditions_are_list_maps_in_every_kind_that_has_them() {
        for crd in crds().into_iter().chain(refit_crds()) {
            let text = serde_json::to_value(&crd).unwrap();
            let schema = &text["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let conditions = &schema["properties"]["status"]["properties"]["conditions"];
            if conditions.is_object() {
                assert_eq!(conditions["x-kubernetes-list-type"], "map", "{text:?}");
                assert_eq!(conditions["x-kubernetes-list-map-keys"][0], "type");
            }
        }
    }

    #[test]
    fn no_integer_format_is_one_that_the_api_server_does_not_know() {
        for crd in crds().into_iter().chain(refit_crds()) {
            assert!(!serde_json::to_string(&crd).unwrap().contains("uint"));
        }
    }

    #[test]
    fn cluster_apis_kinds_keep_fields_that_we_do_not_read() {
        for crd in crds() {
            let name = crd.metadata.name.clone().unwrap();
            if name.starts_with("extensionconfigs") || name.starts_with("kubeadmconfigtemplates") {
                continue;
            }
            let value = serde_json::to_value(&crd).unwrap();
            let spec =
                value.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
            assert_eq!(spec["x-kubernetes-preserve-unknown-fields"], true, "{name}");
        }
    }
}
