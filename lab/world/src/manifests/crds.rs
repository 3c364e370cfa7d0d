//! CustomResourceDefinitions for kinds that no bundled CRD defines.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use lab_apiserver::Registry;
use refit_cluster_api::kinds;
use refit_kinds::{crds, json::text, keys};
use refit_manifests::is_cluster_scoped_built_in;
use serde_json::{Value, json};

use crate::env::canonical;

/// The CRDs that Refit and Cluster API bring. Generating their schemas is slow.
pub static BUNDLED_CRDS: LazyLock<Vec<CustomResourceDefinition>> =
    LazyLock::new(|| crds::refit_crds().into_iter().chain(refit_cluster_api::crds()).collect());

/// Generates a schemaless CRD with the contract label for each kind of `objects` that neither
/// Kubernetes nor the bundled CRDs define. `XMachineTemplate` also brings `XMachine`, and a control plane of
/// Canonical Kubernetes its bootstrap configurations.
///
/// CRDs that `objects` contains are not generated.
pub fn schemaless_crds(objects: &[Value]) -> Vec<Value> {
    let mut defined: BTreeSet<(String, String)> = BUNDLED_CRDS
        .iter()
        .map(|crd| (crd.spec.group.clone(), crd.spec.names.kind.clone()))
        .collect();
    for object in objects.iter().filter(|o| text(o, "/kind") == "CustomResourceDefinition") {
        let names = (text(object, "/spec/group"), text(object, "/spec/names/kind"));
        defined.insert((names.0.to_owned(), names.1.to_owned()));
    }
    let built_in = Registry::builtin();
    defined.extend(
        built_in.all().map(|resource| (resource.group.to_string(), resource.kind.to_string())),
    );
    let mut wanted: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    let mut want = |group: &str, kind: &str, version: &str| {
        let key = (group.to_owned(), kind.to_owned());
        if !defined.contains(&key) {
            wanted.entry(key).or_default().insert(version.to_owned());
        }
    };
    for object in objects {
        let Some((group, version)) = text(object, "/apiVersion").split_once('/') else {
            continue;
        };
        let kind = text(object, "/kind");
        if kind.is_empty() {
            continue;
        }
        want(group, kind, version);
        if let Some(machine) =
            kind.strip_suffix("Template").filter(|kind| kind.ends_with("Machine"))
        {
            want(group, machine, version);
        }
        if kind == canonical::CONTROL_PLANE
            || kind.strip_suffix("Template") == Some(canonical::CONFIG)
        {
            want(kinds::BOOTSTRAP_GROUP, canonical::CONFIG, "v1beta2");
        }
    }
    wanted.iter().map(|((group, kind), versions)| crd(group, kind, versions)).collect()
}

fn crd(group: &str, kind: &str, versions: &BTreeSet<String>) -> Value {
    let plural = plural(kind);
    let newest = versions.iter().max_by_key(|version| priority(version));
    let served: Vec<Value> = versions
        .iter()
        .map(|version| {
            json!({
                "name": version,
                "served": true,
                "storage": Some(version) == newest,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                } },
                "subresources": { "status": {} },
            })
        })
        .collect();
    let cluster_scoped = is_cluster_scoped_built_in(group, kind);
    let scope = if cluster_scoped { "Cluster" } else { "Namespaced" };
    let provider = group.ends_with(kinds::CORE_GROUP);
    let labels = match newest {
        Some(version) if provider => json!({ keys::CONTRACT_V1BETA2: version }),
        _ => json!({}),
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}"), "labels": labels },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": kind.to_lowercase(),
            },
            "versions": served,
        },
    })
}

/// Sort key of a version in Kubernetes' order: stable before beta before alpha, then by number.
fn priority(version: &str) -> (u8, u32, u32) {
    let digits = |text: &str| text.parse().unwrap_or(0);
    let rest = version.trim_start_matches('v');
    if let Some((major, minor)) = rest.split_once("beta") {
        (1, digits(major), digits(minor))
    } else if let Some((major, minor)) = rest.split_once("alpha") {
        (0, digits(major), digits(minor))
    } else {
        (2, digits(rest), 0)
    }
}

/// The plural that a CRD generator derives from this kind.
fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    let vowel = |c: char| "aeiou".contains(c);
    if let Some(stem) = lower.strip_suffix('y').filter(|stem| !stem.ends_with(vowel)) {
        format!("{stem}ies")
    } else if ["s", "x", "z", "ch", "sh"].iter().any(|end| lower.ends_with(end)) {
        format!("{lower}es")
    } else {
        format!("{lower}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_template_brings_its_machine() {
        let template = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
            "kind": "Metal3MachineTemplate",
        });
        let crds = schemaless_crds(&[template]);
        let names: Vec<_> = crds.iter().map(|crd| text(crd, "/metadata/name")).collect();
        assert_eq!(
            names,
            [
                "metal3machines.infrastructure.cluster.x-k8s.io",
                "metal3machinetemplates.infrastructure.cluster.x-k8s.io"
            ]
        );
        assert_eq!(crds[0]["metadata"]["labels"][keys::CONTRACT_V1BETA2], "v1beta1");
    }

    #[test]
    fn known_kinds_need_no_definition() {
        let objects = [
            json!({ "apiVersion": "apps/v1", "kind": "Deployment" }),
            json!({ "apiVersion": "v1", "kind": "Secret" }),
            json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine" }),
        ];
        assert!(schemaless_crds(&objects).is_empty());
    }

    #[test]
    fn plurals_follow_english() {
        assert_eq!(plural("Policy"), "policies");
        assert_eq!(plural("Gateway"), "gateways");
        assert_eq!(plural("Ingress"), "ingresses");
        assert_eq!(plural("VSphereCluster"), "vsphereclusters");
    }

    #[test]
    fn the_newest_stable_version_is_stored() {
        let objects = ["v1alpha3", "v1beta1", "v1"].map(
            |version| json!({ "apiVersion": format!("example.com/{version}"), "kind": "Thing" }),
        );
        let crd = &schemaless_crds(&objects)[0];
        let stored = crd["spec"]["versions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|version| version["storage"] == true)
            .unwrap();
        assert_eq!(stored["name"], "v1");
    }
}
