//! Fields that are read: their types, and values that cannot be.

use refit_cluster_api::kinds;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Manifest, Problem, shown};

/// What a version field wants.
const A_VERSION: &str = "a version vX.Y.Z such as v1.34.2";
/// Most machines of one group: all of them run in this one process.
const MOST_REPLICAS: i64 = 1000;
/// More problems of one object than this help nobody.
const MOST_PROBLEMS: usize = 50;

/// Reads the object as the typed struct that the controllers read.
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

/// Every field below `base` that has another type than `K` wants.
///
/// Reading stops at the first fault. So each faulty field of a copy gets a value that can be read,
/// and the copy is read again, until nothing is left to tell.
pub(super) fn typed<K: DeserializeOwned>(manifest: &Manifest, base: &str) -> Vec<Problem> {
    let Some(mut copy) = manifest.object.pointer(base).cloned() else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut fault = fault_of::<K>(&copy);
    while let Some((pointer, message)) = fault.take() {
        problems.push(type_problem(manifest, &format!("{base}{pointer}"), &message));
        if problems.len() == MOST_PROBLEMS {
            break;
        }
        let fixes = [None, Some(json!("")), Some(json!(0)), Some(json!(false))];
        let fixes = fixes.into_iter().chain([json!("v1.0.0"), json!([]), json!({})].map(Some));
        for fix in fixes {
            let mut attempt = copy.clone();
            set(&mut attempt, &pointer, fix);
            let next = fault_of::<K>(&attempt);
            if next.as_ref().is_none_or(|(at, _)| *at != pointer) {
                (copy, fault) = (attempt, next);
                break;
            }
        }
    }
    problems
}

/// Where and why a value cannot be read as `K`.
fn fault_of<K: DeserializeOwned>(value: &Value) -> Option<(String, String)> {
    let error = serde_path_to_error::deserialize::<_, K>(value).err()?;
    let mut pointer = String::new();
    for segment in error.path() {
        match segment {
            serde_path_to_error::Segment::Seq { index } => {
                pointer.extend(["/", &index.to_string()]);
            }
            serde_path_to_error::Segment::Map { key } => {
                pointer.extend(["/", &escaped(key)]);
            }
            _ => {}
        }
    }
    let message = error.inner().to_string();
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    if let Some(field) = missing {
        pointer.extend(["/", &escaped(field)]);
    }
    Some((pointer, message))
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Sets the field at `pointer`, or takes it away.
fn set(value: &mut Value, pointer: &str, to: Option<Value>) {
    let Some((parent, key)) = pointer.rsplit_once('/') else {
        *value = to.unwrap_or_default();
        return;
    };
    let key = key.replace("~1", "/").replace("~0", "~");
    match (value.pointer_mut(parent), to) {
        (Some(Value::Object(map)), Some(to)) => {
            map.insert(key, to);
        }
        (Some(Value::Object(map)), None) => {
            map.remove(&key);
        }
        (Some(Value::Array(items)), to) => {
            if let Some(item) = key.parse::<usize>().ok().and_then(|i| items.get_mut(i)) {
                *item = to.unwrap_or_default();
            }
        }
        _ => {}
    }
}

fn type_problem(manifest: &Manifest, pointer: &str, message: &str) -> Problem {
    let got = shown(manifest.object.pointer(pointer));
    let want = if pointer.ends_with("/version") {
        A_VERSION.to_owned()
    } else if message.starts_with("missing field") {
        "a value: the field is required".to_owned()
    } else {
        wanted(message)
    };
    manifest.problem(pointer, got, want)
}

/// What serde expected, in the words of a manifest.
fn wanted(message: &str) -> String {
    let expected = message.split(", expected ").nth(1).unwrap_or(message);
    let expected = expected.split(" at line").next().unwrap_or(expected);
    match expected {
        "i32" | "i64" | "u32" | "u64" => "an integer".to_owned(),
        "a string" | "a boolean" => expected.to_owned(),
        "a sequence" => "a list".to_owned(),
        text if text.starts_with("a map") || text.starts_with("struct ") => "an object".to_owned(),
        text if text.contains("IntOrPercent") => {
            "an integer or a percentage such as 25%".to_owned()
        }
        text => text.to_owned(),
    }
}

pub(super) fn wrong_values(manifest: &Manifest, group: &str, kind: &str) -> Vec<Problem> {
    let version = match (group, kind) {
        (kinds::CONTROL_PLANE_GROUP, "KubeadmControlPlane") | (kinds::CORE_GROUP, "Machine") => {
            "/spec/version"
        }
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
        let least = i64::from(kind == "KubeadmControlPlane");
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
            let want = format!("what spec.clusterName says: {}", shown(group_value));
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

/// The rules of KubeadmControlPlane's own admission (`spec/capi.md 2.2`).
fn control_plane_rules(manifest: &Manifest, replicas: Option<i64>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(replicas) = replicas.filter(|replicas| replicas % 2 == 0) {
        let want = "an odd number: etcd gains nothing from an even one, and Cluster API refuses it";
        problems.push(manifest.problem("/spec/replicas", replicas.to_string(), want));
    }
    let pointer = "/spec/rollout/strategy/rollingUpdate/maxSurge";
    if let Some(surge) = manifest.object.pointer(pointer) {
        let want = match surge.as_i64() {
            Some(0) if replicas.is_some_and(|replicas| replicas < 3) => {
                "1: with fewer than 3 replicas Cluster API refuses maxSurge 0"
            }
            Some(0 | 1) => return problems,
            _ => "0 or 1",
        };
        problems.push(manifest.problem(pointer, shown(Some(surge)), want));
    }
    problems
}

/// Releases only: the hosts of the sandbox know no release candidates and no vendor's builds.
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
