//! Checks references between objects.

use refit_cluster_api::kinds;
use refit_kinds::json::text;
use refit_manifests::{Manifest, Problem, shown};
use serde_json::Value;

use crate::env::canonical;

/// Detects clusters that share an API endpoint.
pub(super) fn shared_endpoint(manifest: &Manifest, all: &[Manifest]) -> Option<Problem> {
    let pointer = "/spec/controlPlaneEndpoint";
    let endpoint = manifest.object.pointer(pointer)?;
    let kind = text(&manifest.object, "/kind");
    let place = |manifest: &Manifest| (manifest.file.clone(), manifest.line());
    let first = all.iter().find(|other| {
        text(&other.object, "/kind") == kind && other.object.pointer(pointer) == Some(endpoint)
    })?;
    let has_host = !text(endpoint, "/host").is_empty();
    (has_host && kind.ends_with("Cluster") && place(first) != place(manifest)).then(|| {
        let (file, line) = place(first);
        let want =
            format!("a unique endpoint: {} at {file}:{line} has the same one", first.title());
        manifest.problem(pointer, shown(Some(endpoint)), want)
    })
}

/// Detects references to objects that do not exist.
///
/// A reference may mean an invalid object or a document that is not valid YAML (`unread`), so only
/// a target that is certainly missing is reported.
pub(super) fn dangling(
    manifest: &Manifest,
    all: &[Manifest],
    unread: &[String],
    group: &str,
    kind: &str,
) -> Vec<Problem> {
    let references: &[&str] = match (group, kind) {
        (kinds::CORE_GROUP, "Cluster") => &["/spec/controlPlaneRef", "/spec/infrastructureRef"],
        (kinds::CONTROL_PLANE_GROUP, "KubeadmControlPlane") => {
            &["/spec/machineTemplate/spec/infrastructureRef"]
        }
        (kinds::CONTROL_PLANE_GROUP, canonical::CONTROL_PLANE) => {
            &["/spec/machineTemplate/infrastructureTemplate"]
        }
        (kinds::CORE_GROUP, "MachineDeployment" | "MachineSet") => {
            &["/spec/template/spec/bootstrap/configRef", "/spec/template/spec/infrastructureRef"]
        }
        _ => return Vec::new(),
    };
    let namespace = text(&manifest.object, "/metadata/namespace");
    let exists = |group: &str, kind: &str, name: &str| {
        let unusable = |other: &Manifest| {
            !other.is_identified()
                && (text(&other.object, "/kind") == kind
                    || text(&other.object, "/metadata/name") == name)
        };
        let is_it = |other: &Manifest| {
            text(&other.object, "/kind") == kind
                && text(&other.object, "/metadata/name") == name
                && text(&other.object, "/metadata/namespace") == namespace
                && text(&other.object, "/apiVersion")
                    .split_once('/')
                    .is_some_and(|(g, _)| g == group)
        };
        all.iter().any(|other| unusable(other) || is_it(other))
            || unread.iter().any(|text| text.contains(kind) && text.contains(name))
    };
    let mut problems = Vec::new();
    for pointer in references {
        let reference = manifest.object.pointer(pointer);
        let part = |name: &str| {
            reference.and_then(|r| r.get(name)).and_then(Value::as_str).unwrap_or_default()
        };
        // A reference of an older contract has an apiVersion.
        let group_of_version = || part("apiVersion").split('/').next().unwrap_or_default();
        let group = Some(part("apiGroup")).filter(|group| !group.is_empty());
        if !exists(group.unwrap_or_else(group_of_version), part("kind"), part("name")) {
            let got = match reference {
                Some(Value::Object(_)) => format!(
                    "{}/{} of {}",
                    part("kind"),
                    part("name"),
                    shown(reference.and_then(|r| r.get("apiGroup")))
                ),
                other => shown(other),
            };
            let want = format!("an object of namespace {namespace} in the manifests");
            problems.push(manifest.problem(pointer, got, want));
        }
    }
    if kind != "Cluster" && group == kinds::CORE_GROUP {
        let pointer = "/spec/clusterName";
        let name = text(&manifest.object, pointer);
        if !exists(kinds::CORE_GROUP, "Cluster", name) {
            let want = format!("a Cluster of namespace {namespace} in the manifests");
            problems.push(manifest.problem(pointer, shown(manifest.object.pointer(pointer)), want));
        }
    }
    problems
}
