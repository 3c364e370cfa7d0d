//! Resolves the API version of a provider's kind from the labels of its CRD.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _, api::ListParams, core::gvk::GroupVersionKind, discovery::ApiResource,
};
use refit_cluster_api::kinds::ContractRef;
use refit_kinds::keys;
use refit_runtime::apply::optional;

use crate::{
    context::{Context, lock},
    error::Error,
};

/// Resolves the API resource of the objects that `reference` points to.
pub(crate) async fn resolve(
    context: &Context,
    reference: &ContractRef,
) -> Result<ApiResource, Error> {
    let kind = (reference.api_group.clone(), reference.kind.clone());
    let known = lock(&context.resources).get(&kind).cloned();
    if let Some(resource) = known {
        return Ok(resource);
    }
    let resource = look_up(context, reference).await?;
    lock(&context.resources).insert(kind, resource.clone());
    Ok(resource)
}

async fn look_up(context: &Context, reference: &ContractRef) -> Result<ApiResource, Error> {
    let api: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    let gvk = GroupVersionKind::gvk(&reference.api_group, "", &reference.kind);
    let guess = format!("{}.{}", ApiResource::from_gvk(&gvk).plural, reference.api_group);
    let attempt = format!("read CustomResourceDefinition {guess}");
    let guessed = optional(api.get(&guess).await).map_err(Error::api(attempt))?;
    if let Some(resource) = guessed.as_ref().and_then(|crd| resource_of(crd, reference)) {
        return Ok(resource);
    }
    // The plural differs from the one derived from the kind: search all CRDs.
    let all = api.list(&ListParams::default()).await;
    let all = all.map_err(Error::api("list CustomResourceDefinitions"))?;
    let found = all.items.iter().find_map(|crd| resource_of(crd, reference));
    found.ok_or_else(|| Error::NoContract {
        kind: reference.kind.clone(),
        group: reference.api_group.clone(),
    })
}

fn resource_of(crd: &CustomResourceDefinition, reference: &ContractRef) -> Option<ApiResource> {
    if crd.spec.group != reference.api_group || crd.spec.names.kind != reference.kind {
        return None;
    }
    let served = |version: &str| {
        let mut versions = crd.spec.versions.iter();
        versions.any(|known| known.name == version && known.served)
    };
    let label = crd.labels().get(keys::CONTRACT_V1BETA2)?;
    let version = newest(label.split('_').filter(|version| served(version)))?;
    let gvk = GroupVersionKind::gvk(&crd.spec.group, version, &crd.spec.names.kind);
    Some(ApiResource::from_gvk_with_plural(&gvk, &crd.spec.names.plural))
}

/// The newest API version: stable before beta before alpha, then by number.
fn newest<'a>(versions: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    versions.max_by_key(|version| {
        let text = version.trim_start_matches('v');
        let (major, rest) = split_number(text);
        let stage = match rest.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "" => 2,
            "beta" => 1,
            _ => 0,
        };
        let (minor, _) = split_number(rest.trim_start_matches(char::is_alphabetic));
        (stage, major, minor)
    })
}

fn split_number(text: &str) -> (u32, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].parse().unwrap_or(0), &text[end..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(label: Option<&str>) -> CustomResourceDefinition {
        let mut crd: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": {"name": "vspheremachines.infrastructure.cluster.x-k8s.io"},
            "spec": {
                "group": "infrastructure.cluster.x-k8s.io", "scope": "Namespaced",
                "names": {"kind": "VSphereMachine", "plural": "vspheremachines"},
                "versions": [
                    {"name": "v1alpha4", "served": false, "storage": false},
                    {"name": "v1beta1", "served": true, "storage": false},
                    {"name": "v1beta2", "served": true, "storage": true},
                ],
            },
        }))
        .unwrap();
        if let Some(label) = label {
            let labels = crd.metadata.labels.get_or_insert_default();
            labels.insert(keys::CONTRACT_V1BETA2.to_owned(), label.to_owned());
        }
        crd
    }

    fn reference(kind: &str) -> ContractRef {
        ContractRef {
            api_group: "infrastructure.cluster.x-k8s.io".to_owned(),
            kind: kind.to_owned(),
            name: String::new(),
        }
    }

    #[test]
    fn the_newest_served_version_of_the_label_is_used() {
        let resource = resource_of(&crd(Some("v1beta1_v1beta2_v1")), &reference("VSphereMachine"));
        let resource = resource.unwrap();
        assert_eq!(resource.api_version, "infrastructure.cluster.x-k8s.io/v1beta2");
        assert_eq!(resource.plural, "vspheremachines");
        let resource = resource_of(&crd(Some("v1alpha4_v1beta1")), &reference("VSphereMachine"));
        assert_eq!(resource.unwrap().version, "v1beta1");
    }

    #[test]
    fn a_crd_without_the_label_or_of_another_kind_is_not_used() {
        assert!(resource_of(&crd(None), &reference("VSphereMachine")).is_none());
        assert!(resource_of(&crd(Some("v1beta2")), &reference("VSphereCluster")).is_none());
    }

    #[test]
    fn stable_is_newer_than_beta_and_beta_than_alpha() {
        assert_eq!(newest(["v1beta2", "v1", "v1alpha9"].into_iter()), Some("v1"));
        assert_eq!(newest(["v1beta2", "v1beta10"].into_iter()), Some("v1beta10"));
        assert_eq!(newest(["v2alpha1", "v1beta1"].into_iter()), Some("v1beta1"));
    }
}
