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
    fn conditions_are_list_maps_in_every_kind_that_has_them() {
        for crd in refit_crds() {
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
    fn our_specs_are_guarded_by_rules() {
        for crd in refit_crds() {
            let text = serde_json::to_string(&crd).unwrap();
            let name = crd.metadata.name.unwrap();
            if name != "hostplans.refit.dev" {
                assert!(text.contains("x-kubernetes-validations"), "{name}");
            }
        }
    }

    #[test]
    fn no_integer_format_is_one_that_the_api_server_does_not_know() {
        for crd in refit_crds() {
            assert!(!serde_json::to_string(&crd).unwrap().contains("uint"));
        }
    }
}
