//! Detects manifests that cannot run in the sandbox.

use refit_cluster_api::kinds;
use refit_kinds::json::text;
use refit_manifests::{Manifest, Problem, group_of, shown};
use serde_json::Value;

use super::{BUNDLED_CRDS, fields, refs};
use crate::env::canonical;

/// Kinds of Cluster API's groups that the sandbox stores but does not act on.
pub(super) const UNSUPPORTED_KINDS: [&str; 4] =
    ["ClusterResourceSet", "ClusterResourceSetBinding", "MachineHealthCheck", "MachinePool"];

/// Checks field types and values, and that every reference resolves. `unread` holds the texts of
/// documents that are not valid YAML.
pub(super) fn contents(manifests: &[Manifest], unread: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for manifest in manifests.iter().filter(|manifest| manifest.is_identified()) {
        let (group, kind) = (group_of(&manifest.object), text(&manifest.object, "/kind"));
        if let Some(problem) = unfit(manifest, manifests, group, kind) {
            problems.push(problem);
            continue;
        }
        let faults = fields::wrong_types(manifest, group, kind)
            .into_iter()
            .chain(fields::wrong_values(manifest, group, kind))
            .chain(refs::dangling(manifest, manifests, unread, group, kind))
            .chain(refs::shared_endpoint(manifest, manifests));
        let mut first_faults: Vec<Problem> = Vec::new();
        for fault in faults {
            // Report only the first problem of a field: problems of its parent or child fields have
            // the same cause.
            let same = |other: &Problem| {
                fault.field.starts_with(&other.field) || other.field.starts_with(&fault.field)
            };
            if !first_faults.iter().any(same) {
                first_faults.push(fault);
            }
        }
        problems.extend(first_faults);
    }
    problems
}

/// Why an object of this kind or version cannot run at all.
fn unfit(manifest: &Manifest, all: &[Manifest], group: &str, kind: &str) -> Option<Problem> {
    let object = &manifest.object;
    let has_topology = object.pointer("/spec/topology").is_some_and(|t| !t.is_null());
    if group == kinds::CORE_GROUP && (kind == "ClusterClass" || kind == "Cluster" && has_topology) {
        return Some(topology(manifest));
    }
    let old = text(object, "/apiVersion").rsplit('/').next() != Some(kinds::CONTRACT_VERSION);
    let is_cluster_api = kind.starts_with("Kubeadm") || group == kinds::CORE_GROUP;
    if old && is_cluster_api && group.ends_with(kinds::CORE_GROUP) {
        return Some(old_version(manifest, group, kind));
    }
    let got = shown(object.pointer("/kind"));
    let crds_of_group = || BUNDLED_CRDS.iter().filter(|crd| crd.spec.group == group);
    if let Some(crd) = crds_of_group().find(|crd| crd.spec.names.kind == kind) {
        let version = text(object, "/apiVersion").rsplit('/').next();
        if !crd.spec.versions.iter().any(|v| Some(v.name.as_str()) == version) {
            return Some(old_version(manifest, group, kind));
        }
    } else if [kinds::CORE_GROUP, kinds::CONTROL_PLANE_GROUP, refit_kinds::refit::GROUP]
        .contains(&group)
    {
        if group != kinds::CONTROL_PLANE_GROUP && UNSUPPORTED_KINDS.contains(&kind) {
            return None;
        }
        if group == kinds::CONTROL_PLANE_GROUP && kind == canonical::CONTROL_PLANE {
            return None;
        }
        let mut kinds: Vec<_> = crds_of_group().map(|crd| crd.spec.names.kind.as_str()).collect();
        if group == kinds::CONTROL_PLANE_GROUP {
            kinds.push(canonical::CONTROL_PLANE);
        }
        let want = format!("a kind of {group} that the sandbox runs: {}", kinds.join(", "));
        return Some(manifest.problem("/kind", got, want));
    }
    if group == kinds::CORE_GROUP && ["MachineSet", "Machine"].contains(&kind) {
        let want = "a MachineDeployment: Cluster API does not roll out the changes of a MachineSet \
                    or a Machine that stands alone, so there is nothing to upgrade";
        return Some(manifest.problem("/kind", got, want));
    }
    let paused = object.pointer("/spec/paused") == Some(&Value::Bool(true));
    if group == kinds::CORE_GROUP && kind == "Cluster" && paused {
        let want = "false: Cluster API does nothing with a paused cluster";
        return Some(manifest.problem("/spec/paused", "true".to_owned(), want));
    }
    made_here(manifest, all, group, kind)
}

/// Rejects Secrets that the sandbox itself creates for a cluster.
fn made_here(manifest: &Manifest, all: &[Manifest], group: &str, kind: &str) -> Option<Problem> {
    let name = text(&manifest.object, "/metadata/name");
    let cluster = name.strip_suffix("-kubeconfig")?;
    let is_cluster = |other: &Manifest| {
        text(&other.object, "/kind") == "Cluster"
            && text(&other.object, "/metadata/name") == cluster
    };
    (group.is_empty() && kind == "Secret" && all.iter().any(is_cluster)).then(|| {
        let want = "no such Secret: the sandbox creates the kubeconfig of its simulated cluster";
        manifest.problem("/metadata/name", shown(manifest.object.pointer("/metadata/name")), want)
    })
}

fn topology(manifest: &Manifest) -> Problem {
    let pointer =
        if text(&manifest.object, "/kind") == "Cluster" { "/spec/topology" } else { "/kind" };
    manifest.problem(
        pointer,
        shown(manifest.object.pointer(pointer)),
        "a Cluster with its own KubeadmControlPlane and MachineDeployments: the sandbox has no \
         topology controller to create them from a ClusterClass. Take them from a running cluster \
         (kubectl get cluster,kubeadmcontrolplane,machinedeployment -o yaml) and remove \
         spec.topology",
    )
}

fn old_version(manifest: &Manifest, group: &str, kind: &str) -> Problem {
    let got = shown(manifest.object.pointer("/apiVersion"));
    let plural = format!("{}s", kind.to_lowercase());
    let want = format!(
        "{group}/{new}: Cluster API 1.11 or newer converts it, apply the file there and read it back \
         with `kubectl get {plural}.{new}.{group} {} -o yaml`",
        text(&manifest.object, "/metadata/name"),
        new = kinds::CONTRACT_VERSION,
    );
    manifest.problem("/apiVersion", got, want)
}

/// Requires a Cluster, so that there is something to upgrade.
pub(super) fn no_cluster(file: &str, manifests: &[Manifest]) -> Option<Problem> {
    let has = |kind: &str| manifests.iter().any(|m| text(&m.object, "/kind") == kind);
    (!has("Cluster")).then(|| Problem {
        file: file.to_owned(),
        line: 1,
        object: "manifests".to_owned(),
        field: "kind".to_owned(),
        got: "no Cluster".to_owned(),
        want:
            "the output of `clusterctl generate cluster`: a Cluster, its KubeadmControlPlane and \
               MachineDeployments"
                .to_owned(),
    })
}
