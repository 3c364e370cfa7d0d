//! The CustomResourceDefinitions of Refit's kinds.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::crd::CustomResourceExt as _;

use crate::refit;

/// Generating their schemas is slow.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    vec![
        refit::ClusterUpgrade::crd(),
        refit::ClusterUpgradePlan::crd(),
        refit::HostPlan::crd(),
        refit::HostSettings::crd(),
        refit::NodeDisruptionPolicy::crd(),
        refit::NodeUpdate::crd(),
        refit::ReplacementHold::crd(),
        refit::UpdateGroup::crd(),
        refit::Updater::crd(),
        refit::UpgradeTask::crd(),
    ]
});

/// CRDs of Refit's kinds; an installation applies these.
pub fn refit_crds() -> Vec<CustomResourceDefinition> {
    CRDS.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specs_of_refit_have_validation_rules() {
        for crd in refit_crds() {
            let text = serde_json::to_string(&crd).unwrap();
            let name = crd.metadata.name.unwrap();
            if name != "hostplans.refit.dev" {
                assert!(text.contains("x-kubernetes-validations"), "{name}");
            }
        }
    }
}
