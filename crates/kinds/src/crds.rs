//! The CustomResourceDefinitions of our kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::crd::CustomResourceExt as _;

use crate::refit;

/// CRDs of our own kinds; these are what an installation applies.
pub fn refit_crds() -> Vec<CustomResourceDefinition> {
    vec![refit::HostPlan::crd(), refit::NodeUpdate::crd(), refit::UpdateGroup::crd()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_specs_are_guarded_by_rules() {
        for crd in refit_crds() {
            let text = serde_json::to_string(&crd).unwrap();
            let name = crd.metadata.name.unwrap();
            if name != "hostplans.refit.dev" {
                assert!(text.contains("x-kubernetes-validations"), "{name}");
            }
        }
    }
}
