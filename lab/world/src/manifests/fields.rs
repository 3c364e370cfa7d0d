//! Checks types and values of fields.

use refit_cluster_api::kinds;
use refit_manifests::{A_VERSION, Manifest, Problem, shown, typed};
use serde_json::Value;

use crate::env::canonical;

/// Maximum number of machines per group: all of them run in this one process.
const MOST_REPLICAS: i64 = 1000;

/// Parses the object as the typed struct that the controllers use.
pub(super) fn wrong_types(manifest: &Manifest, group: &str, kind: &str) -> Vec<Problem> {
    match (group, kind) {
        (kinds::CORE_GROUP, "Cluster") => typed::<kinds::Cluster>(manifest, ""),
        (kinds::CORE_GROUP, "MachineDeployment") => typed::<kinds::MachineDeployment>(manifest, ""),
        (kinds::CORE_GROUP, "MachineSet") => typed::<kinds::MachineSet>(manifest, ""),
        (kinds::CORE_GROUP, "Machine") => typed::<kinds::Machine>(manifest, ""),
        (kinds::CONTROL_PLANE_GROUP, "KubeadmControlPlane") => {
            typed::<kinds::KubeadmControlPlane>(manifest, "")
        }
        (kinds::BOOTSTRAP_GROUP, "KubeadmConfigTemplate") => {
            typed::<kinds::KubeadmConfigTemplate>(manifest, "")
        }
        (kinds::BOOTSTRAP_GROUP, "KubeadmConfig") => typed::<kinds::KubeadmConfig>(manifest, ""),
        (kinds::INFRASTRUCTURE_GROUP, kind) if kind.ends_with("Cluster") => {
            typed::<Option<kinds::Endpoint>>(manifest, "/spec/controlPlaneEndpoint")
        }
        (kinds::INFRASTRUCTURE_GROUP, kind) if kind.ends_with("MachineTemplate") => {
            let pointer = "/spec/template/spec";
            let spec = manifest.object.pointer(pointer);
            (!spec.is_some_and(Value::is_object))
                .then(|| manifest.problem(pointer, shown(spec), "an object"))
                .into_iter()
                .collect()
        }
        _ => Vec::new(),
    }
}

pub(super) fn wrong_values(manifest: &Manifest, group: &str, kind: &str) -> Vec<Problem> {
    let version = match (group, kind) {
        (kinds::CONTROL_PLANE_GROUP, "KubeadmControlPlane" | canonical::CONTROL_PLANE)
        | (kinds::CORE_GROUP, "Machine") => "/spec/version",
        (kinds::CORE_GROUP, "MachineDeployment" | "MachineSet") => "/spec/template/spec/version",
        _ => return Vec::new(),
    };
    let mut problems = Vec::new();
    let value = manifest.object.pointer(version);
    if !value.and_then(Value::as_str).is_some_and(is_version) {
        problems.push(manifest.problem(version, shown(value), A_VERSION));
    }
    let replicas = manifest.object.pointer("/spec/replicas");
    if let Some(replicas) = replicas.and_then(Value::as_i64) {
        let least = i64::from(kind.ends_with("ControlPlane"));
        if !(least..=MOST_REPLICAS).contains(&replicas) {
            let want = format!("a number of machines from {least} to {MOST_REPLICAS}");
            problems.push(manifest.problem("/spec/replicas", replicas.to_string(), want));
        }
    }
    if kind == "KubeadmControlPlane" {
        let replicas = replicas.and_then(Value::as_i64);
        problems.extend(control_plane_rules(manifest, replicas));
    }
    let types: &[&str] = match kind {
        "MachineDeployment" => &["RollingUpdate", "OnDelete"],
        _ => &["RollingUpdate"],
    };
    let pointer = "/spec/rollout/strategy/type";
    if let Some(value) = manifest.object.pointer(pointer)
        && !value.as_str().is_some_and(|value| types.contains(&value))
    {
        problems.push(manifest.problem(pointer, shown(Some(value)), types.join(" or ")));
    }
    if kind == "MachineDeployment" {
        let [group, template] = ["/spec/clusterName", "/spec/template/spec/clusterName"];
        let [group_value, value] = [group, template].map(|p| manifest.object.pointer(p));
        if value != group_value {
            let want = format!("the value of spec.clusterName: {}", shown(group_value));
            problems.push(manifest.problem(template, shown(value), want));
        }
    }
    for field in ["maxSurge", "maxUnavailable"] {
        let pointer = format!("/spec/rollout/strategy/rollingUpdate/{field}");
        if let Some(value) =
            manifest.object.pointer(&pointer).filter(|value| !is_int_or_percent(value))
        {
            let want = "an integer of at least 0, or a percentage such as 25%";
            problems.push(manifest.problem(&pointer, shown(Some(value)), want));
        }
    }
    problems
}

/// The rules of KubeadmControlPlane's own admission (`docs/facts/control-plane.md#admission`).
fn control_plane_rules(manifest: &Manifest, replicas: Option<i64>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(replicas) = replicas.filter(|replicas| replicas % 2 == 0) {
        let want = "an odd number: Cluster API rejects even ones, with which etcd gains nothing";
        problems.push(manifest.problem("/spec/replicas", replicas.to_string(), want));
    }
    let pointer = "/spec/rollout/strategy/rollingUpdate/maxSurge";
    if let Some(surge) = manifest.object.pointer(pointer) {
        let want = match surge.as_i64() {
            Some(0) if replicas.is_some_and(|replicas| replicas < 3) => {
                "1: with fewer than 3 replicas Cluster API rejects maxSurge 0"
            }
            Some(0 | 1) => return problems,
            _ => "0 or 1",
        };
        problems.push(manifest.problem(pointer, shown(Some(surge)), want));
    }
    problems
}

/// Accepts releases only: the simulated hosts support neither release candidates nor vendor builds.
fn is_version(text: &str) -> bool {
    text.parse::<refit_kinds::version::KubernetesVersion>()
        .is_ok_and(|version| version.is_release())
}

fn is_int_or_percent(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_i64().is_some_and(|n| n >= 0),
        Value::String(text) => text.strip_suffix('%').is_some_and(|n| n.parse::<u16>().is_ok()),
        _ => false,
    }
}
