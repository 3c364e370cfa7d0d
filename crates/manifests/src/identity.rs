//! Identity of a manifest's object: version, kind, name and namespace.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use refit_kinds::{
    crds,
    json::{kind, name, text},
};
use serde_json::Value;

use super::{Manifest, Problem, group_of, shown, typed};

/// Kinds of Kubernetes itself that are cluster-scoped, by group.
const CLUSTER_SCOPED: [(&str, &[&str]); 12] = [
    ("", &["ComponentStatus", "Namespace", "Node", "PersistentVolume"]),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io", &["APIService"]),
    ("certificates.k8s.io", &["CertificateSigningRequest", "ClusterTrustBundle"]),
    ("flowcontrol.apiserver.k8s.io", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("networking.k8s.io", &["IPAddress", "IngressClass", "ServiceCIDR"]),
    ("node.k8s.io", &["RuntimeClass"]),
    ("rbac.authorization.k8s.io", &["ClusterRole", "ClusterRoleBinding"]),
    ("resource.k8s.io", &["DeviceClass", "ResourceSlice"]),
    ("scheduling.k8s.io", &["PriorityClass"]),
    (
        "storage.k8s.io",
        &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"],
    ),
];

/// Whether this is a cluster-scoped kind of Kubernetes itself.
pub fn is_cluster_scoped_built_in(group: &str, kind: &str) -> bool {
    CLUSTER_SCOPED.iter().any(|(of, kinds)| *of == group && kinds.contains(&kind))
}

/// Fills in namespaces, and checks that each object has an identity and is unique. Objects with a
/// valid identity are marked.
pub(super) fn check(manifests: &mut [Manifest]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<[String; 4], (String, u64)> = BTreeMap::new();
    let cluster_scoped = cluster_scoped(manifests);
    for manifest in manifests {
        let faults = identity_problems(manifest);
        manifest.identified = faults.is_empty();
        problems.extend(faults);
        if !manifest.identified {
            continue;
        }
        fill_namespace(&mut manifest.object, &cluster_scoped);
        let object = &manifest.object;
        let key =
            [group_of(object), kind(object), text(object, "/metadata/namespace"), name(object)]
                .map(str::to_owned);
        let line = manifest.line();
        if let Some((file, first)) = seen.get(&key) {
            let want = format!("each object once; the first is at {file}:{first}");
            problems.push(manifest.problem(
                "/metadata/name",
                shown(object.pointer("/metadata/name")),
                want,
            ));
        } else {
            seen.insert(key, (manifest.file.clone(), line));
        }
    }
    problems
}

/// Why the identity of an object is invalid.
fn identity_problems(manifest: &Manifest) -> Vec<Problem> {
    let object = &manifest.object;
    if !object.is_object() {
        return vec![manifest.problem("", shown(Some(object)), "a Kubernetes object")];
    }
    let mut problems = Vec::new();
    let version = ("/apiVersion", "an API version such as cluster.x-k8s.io/v1beta2");
    let kind = ("/kind", "a kind such as Cluster");
    for ((pointer, want), legal) in [(version, is_api_version as fn(&str) -> bool), (kind, is_kind)]
    {
        if !legal(text(object, pointer)) {
            problems.push(manifest.problem(pointer, shown(object.pointer(pointer)), want));
        }
    }
    match object.get("metadata") {
        Some(metadata) if !metadata.is_object() && !metadata.is_null() => {
            problems.push(manifest.problem("/metadata", shown(Some(metadata)), "an object"));
        }
        _ if name(object).is_empty() => {
            let got = shown(object.pointer("/metadata/name"));
            problems.push(manifest.problem("/metadata/name", got, "a name"));
        }
        _ => {
            problems.extend(name_problem(manifest));
            problems.extend(typed::<ObjectMeta>(manifest, "/metadata"));
            problems.extend(namespace_problem(manifest));
        }
    }
    problems
}

fn is_label(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(legal)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_api_version(text: &str) -> bool {
    match text.split_once('/') {
        Some((group, version)) => group.split('.').all(is_label) && is_label(version),
        None => is_label(text),
    }
}

fn is_kind(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn namespace_problem(manifest: &Manifest) -> Option<Problem> {
    let value = manifest.object.pointer("/metadata/namespace")?;
    let wrong = value.as_str().is_some_and(|text| !is_label(text));
    wrong.then(|| {
        let want = "a namespace: lower case letters, digits and '-', at most 63";
        manifest.problem("/metadata/namespace", shown(Some(value)), want)
    })
}

fn name_problem(manifest: &Manifest) -> Option<Problem> {
    let name = name(&manifest.object);
    let legal = name.len() <= 253
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:".contains(&b))
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.']);
    (!legal).then(|| {
        let want = "lower case letters, digits, '-' and '.', at most 253";
        manifest.problem("/metadata/name", shown(manifest.object.pointer("/metadata/name")), want)
    })
}

/// Group and kind of all cluster-scoped custom resources.
fn cluster_scoped(manifests: &[Manifest]) -> BTreeSet<(String, String)> {
    let known = refit_cluster_api::crds().into_iter().chain(crds::refit_crds());
    let known = known.filter(|crd| crd.spec.scope != "Namespaced");
    let in_manifests = manifests.iter().map(|manifest| &manifest.object).filter(|object| {
        kind(object) == "CustomResourceDefinition" && text(object, "/spec/scope") == "Cluster"
    });
    let in_manifests = in_manifests
        .map(|crd| (text(crd, "/spec/group").to_owned(), text(crd, "/spec/names/kind").to_owned()));
    known.map(|crd| (crd.spec.group, crd.spec.names.kind)).chain(in_manifests).collect()
}

fn fill_namespace(object: &mut Value, cluster_scoped: &BTreeSet<(String, String)>) {
    let key = (group_of(object).to_owned(), kind(object).to_owned());
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if is_cluster_scoped_built_in(&key.0, &key.1) || cluster_scoped.contains(&key) {
        metadata.remove("namespace");
    } else if metadata.get("namespace").is_none_or(Value::is_null) {
        metadata.insert("namespace".to_owned(), Value::from("default"));
    }
}
