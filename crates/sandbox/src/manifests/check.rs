//! What makes manifests impossible to run.

use std::collections::BTreeMap;

use refit_api::capi;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Manifest, Problem, shown, text};

/// Kinds of Cluster API's groups that the sandbox keeps but does not act on.
pub(super) const UNSUPPORTED_KINDS: [&str; 5] = [
    "ClusterResourceSet",
    "ClusterResourceSetBinding",
    "MachineDrainRule",
    "MachineHealthCheck",
    "MachinePool",
];

/// What a version field wants.
const A_VERSION: &str = "a version vX.Y.Z such as v1.34.2";

/// Fills in namespaces and checks that each object says what it is, and is there once.
pub(super) fn identities(manifests: &mut [Manifest]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<[String; 4], (String, u64)> = BTreeMap::new();
    for manifest in manifests {
        let before = problems.len();
        for (pointer, want) in [
            (
                "/apiVersion",
                "an API version such as cluster.x-k8s.io/v1beta2",
            ),
            ("/kind", "a kind such as Cluster"),
            ("/metadata/name", "a name"),
        ] {
            if text(&manifest.object, pointer).is_empty() {
                let got = shown(manifest.object.pointer(pointer));
                problems.push(manifest.problem(pointer, got, want));
            }
        }
        if problems.len() > before {
            continue;
        }
        if let Some(problem) = name_problem(manifest) {
            problems.push(problem);
            continue;
        }
        fill_namespace(&mut manifest.object);
        let object = &manifest.object;
        let group = text(object, "/apiVersion")
            .split_once('/')
            .map_or("", |(group, _)| group);
        let key = [
            group,
            text(object, "/kind"),
            text(object, "/metadata/namespace"),
            text(object, "/metadata/name"),
        ]
        .map(str::to_owned);
        let line = manifest.lines.of("");
        if let Some((file, first)) = seen.get(&key) {
            let want = format!("each object once: it stands at {file}:{first} already");
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

fn name_problem(manifest: &Manifest) -> Option<Problem> {
    let name = text(&manifest.object, "/metadata/name");
    let legal = name.len() <= 253
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:".contains(&b))
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.']);
    (!legal).then(|| {
        let want = "lower case letters, digits, '-' and '.', at most 253";
        manifest.problem(
            "/metadata/name",
            shown(manifest.object.pointer("/metadata/name")),
            want,
        )
    })
}

fn fill_namespace(object: &mut Value) {
    let cluster_scoped = [
        "ClusterRole",
        "ClusterRoleBinding",
        "CSIDriver",
        "CustomResourceDefinition",
        "ExtensionConfig",
        "MutatingWebhookConfiguration",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PriorityClass",
        "StorageClass",
        "ValidatingWebhookConfiguration",
    ];
    if cluster_scoped.contains(&text(object, "/kind")) {
        return;
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata
            .entry("namespace")
            .or_insert_with(|| Value::from("default"));
    }
}

/// Checks the fields that are read, and that every reference leads somewhere.
pub(super) fn contents(manifests: &[Manifest]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for manifest in manifests {
        let object = &manifest.object;
        let (group, version) = text(object, "/apiVersion")
            .split_once('/')
            .unwrap_or_default();
        let kind = text(object, "/kind");
        if kind == "ClusterClass"
            || object
                .pointer("/spec/topology")
                .is_some_and(|t| kind == "Cluster" && !t.is_null())
        {
            problems.push(topology(manifest));
            continue;
        }
        let ours = [capi::CORE_GROUP, capi::CONTROL_PLANE_GROUP];
        if ours.contains(&group)
            && version != capi::CONTRACT_VERSION
            && !UNSUPPORTED_KINDS.contains(&kind)
        {
            problems.push(old_version(manifest, group, kind));
            continue;
        }
        let before = problems.len();
        problems.extend(wrong_type(manifest, group, kind));
        if problems.len() == before {
            problems.extend(wrong_values(manifest, group, kind));
            problems.extend(dangling(manifest, manifests, group, kind));
        }
    }
    if problems.is_empty() {
        problems.extend(no_control_plane(manifests));
    }
    problems
}

fn topology(manifest: &Manifest) -> Problem {
    let pointer = if text(&manifest.object, "/kind") == "Cluster" {
        "/spec/topology"
    } else {
        "/kind"
    };
    manifest.problem(
        pointer,
        shown(manifest.object.pointer(pointer)),
        "a Cluster with its own KubeadmControlPlane and MachineDeployments: the sandbox has no \
         topology controller to make them of a ClusterClass. Take them from a running cluster \
         (kubectl get cluster,kubeadmcontrolplane,machinedeployment -o yaml) and drop spec.topology",
    )
}

fn old_version(manifest: &Manifest, group: &str, kind: &str) -> Problem {
    let got = shown(manifest.object.pointer("/apiVersion"));
    let plural = format!("{}s", kind.to_lowercase());
    let want = format!(
        "{group}/{new}: Cluster API 1.11 or newer converts it, apply the file there and read it back \
         with `kubectl get {plural}.{new}.{group} {} -o yaml`",
        text(&manifest.object, "/metadata/name"),
        new = capi::CONTRACT_VERSION,
    );
    manifest.problem("/apiVersion", got, want)
}

/// Reads the object as the typed struct that the controllers read.
fn wrong_type(manifest: &Manifest, group: &str, kind: &str) -> Option<Problem> {
    match (group, kind) {
        (capi::CORE_GROUP, "Cluster") => typed::<capi::Cluster>(manifest),
        (capi::CORE_GROUP, "MachineDeployment") => typed::<capi::MachineDeployment>(manifest),
        (capi::CORE_GROUP, "MachineSet") => typed::<capi::MachineSet>(manifest),
        (capi::CORE_GROUP, "Machine") => typed::<capi::Machine>(manifest),
        (capi::CONTROL_PLANE_GROUP, "KubeadmControlPlane") => {
            typed::<capi::KubeadmControlPlane>(manifest)
        }
        (capi::BOOTSTRAP_GROUP, "KubeadmConfigTemplate") => {
            typed::<capi::KubeadmConfigTemplate>(manifest)
        }
        (capi::BOOTSTRAP_GROUP, "KubeadmConfig") => typed::<capi::KubeadmConfig>(manifest),
        (capi::INFRASTRUCTURE_GROUP, kind) if kind.ends_with("MachineTemplate") => {
            let pointer = "/spec/template/spec";
            let spec = manifest.object.pointer(pointer);
            (!spec.is_some_and(Value::is_object))
                .then(|| manifest.problem(pointer, shown(spec), "an object"))
        }
        _ => None,
    }
}

fn typed<K: DeserializeOwned>(manifest: &Manifest) -> Option<Problem> {
    let error = serde_path_to_error::deserialize::<_, K>(&manifest.object).err()?;
    let mut pointer = String::new();
    for segment in error.path().iter() {
        match segment {
            serde_path_to_error::Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            serde_path_to_error::Segment::Map { key } => {
                pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1")));
            }
            _ => {}
        }
    }
    let message = error.inner().to_string();
    if let Some(field) = message
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split('`').next())
    {
        let pointer = format!("{pointer}/{field}");
        return Some(manifest.problem(&pointer, "nothing".to_owned(), "this field"));
    }
    let got = shown(manifest.object.pointer(&pointer));
    let want = if pointer.ends_with("/version") {
        A_VERSION.to_owned()
    } else {
        wanted(&message)
    };
    Some(manifest.problem(&pointer, got, want))
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

fn wrong_values(manifest: &Manifest, group: &str, kind: &str) -> Vec<Problem> {
    let version = match (group, kind) {
        (capi::CONTROL_PLANE_GROUP, "KubeadmControlPlane") | (capi::CORE_GROUP, "Machine") => {
            "/spec/version"
        }
        (capi::CORE_GROUP, "MachineDeployment" | "MachineSet") => "/spec/template/spec/version",
        _ => return Vec::new(),
    };
    let mut problems = Vec::new();
    let value = manifest.object.pointer(version);
    if !value.and_then(Value::as_str).is_some_and(is_version) {
        problems.push(manifest.problem(version, shown(value), A_VERSION));
    }
    if let Some(replicas) = manifest
        .object
        .pointer("/spec/replicas")
        .and_then(Value::as_i64)
    {
        let least = i64::from(kind == "KubeadmControlPlane");
        if replicas < least {
            let want = format!("a number of machines, at least {least}");
            problems.push(manifest.problem("/spec/replicas", replicas.to_string(), want));
        }
        problems.extend(control_plane_rules(manifest, kind, replicas));
    }
    for field in ["maxSurge", "maxUnavailable"] {
        let pointer = format!("/spec/rollout/strategy/rollingUpdate/{field}");
        if let Some(value) = manifest
            .object
            .pointer(&pointer)
            .filter(|value| !is_int_or_percent(value))
        {
            let want = "an integer of at least 0, or a percentage such as 25%";
            problems.push(manifest.problem(&pointer, shown(Some(value)), want));
        }
    }
    problems
}

/// The rules of KubeadmControlPlane's own admission (`spec/capi.md 2.2`).
fn control_plane_rules(manifest: &Manifest, kind: &str, replicas: i64) -> Option<Problem> {
    if kind != "KubeadmControlPlane" {
        return None;
    }
    if replicas % 2 == 0 {
        let want = "an odd number: etcd gains nothing from an even one, and Cluster API refuses it";
        return Some(manifest.problem("/spec/replicas", replicas.to_string(), want));
    }
    let pointer = "/spec/rollout/strategy/rollingUpdate/maxSurge";
    let surge = manifest.object.pointer(pointer)?;
    if surge.as_i64() == Some(0) && replicas < 3 {
        let want = "1: with fewer than 3 replicas Cluster API refuses maxSurge 0";
        return Some(manifest.problem(pointer, shown(Some(surge)), want));
    }
    (!matches!(surge.as_i64(), Some(0 | 1)))
        .then(|| manifest.problem(pointer, shown(Some(surge)), "0 or 1"))
}

fn is_version(text: &str) -> bool {
    text.parse::<refit_core::version::KubernetesVersion>()
        .is_ok()
}

fn is_int_or_percent(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_i64().is_some_and(|n| n >= 0),
        Value::String(text) => text
            .strip_suffix('%')
            .is_some_and(|n| n.parse::<u16>().is_ok()),
        _ => false,
    }
}

/// References that lead nowhere.
fn dangling(manifest: &Manifest, all: &[Manifest], group: &str, kind: &str) -> Vec<Problem> {
    let references: &[&str] = match (group, kind) {
        (capi::CORE_GROUP, "Cluster") => &["/spec/controlPlaneRef", "/spec/infrastructureRef"],
        (capi::CONTROL_PLANE_GROUP, "KubeadmControlPlane") => {
            &["/spec/machineTemplate/spec/infrastructureRef"]
        }
        (capi::CORE_GROUP, "MachineDeployment" | "MachineSet") => &[
            "/spec/template/spec/bootstrap/configRef",
            "/spec/template/spec/infrastructureRef",
        ],
        _ => return Vec::new(),
    };
    let namespace = text(&manifest.object, "/metadata/namespace");
    let exists = |group: &str, kind: &str, name: &str| {
        all.iter().any(|other| {
            text(&other.object, "/kind") == kind
                && text(&other.object, "/metadata/name") == name
                && text(&other.object, "/metadata/namespace") == namespace
                && text(&other.object, "/apiVersion")
                    .split_once('/')
                    .is_some_and(|(g, _)| g == group)
        })
    };
    let mut problems = Vec::new();
    for pointer in references {
        let reference = manifest.object.pointer(pointer);
        let part = |name: &str| {
            reference
                .and_then(|r| r.get(name))
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        if !exists(part("apiGroup"), part("kind"), part("name")) {
            let got = match reference {
                Some(_) => format!(
                    "{}/{} of {}",
                    part("kind"),
                    part("name"),
                    shown(reference.and_then(|r| r.get("apiGroup")))
                ),
                None => "nothing".to_owned(),
            };
            let want = format!("an object of namespace {namespace} that is among the manifests");
            problems.push(manifest.problem(pointer, got, want));
        }
    }
    if kind != "Cluster" && group == capi::CORE_GROUP {
        let pointer = "/spec/clusterName";
        let name = text(&manifest.object, pointer);
        if !exists(capi::CORE_GROUP, "Cluster", name) {
            let want = format!("a Cluster of namespace {namespace} that is among the manifests");
            problems.push(manifest.problem(pointer, shown(manifest.object.pointer(pointer)), want));
        }
    }
    problems
}

/// There must be something to upgrade.
fn no_control_plane(manifests: &[Manifest]) -> Option<Problem> {
    let cluster = manifests
        .iter()
        .any(|m| text(&m.object, "/kind") == "Cluster");
    (!cluster).then(|| Problem {
        file: manifests
            .first()
            .map_or_else(|| "(no file)".to_owned(), |m| m.file.clone()),
        line: 1,
        object: "manifests".to_owned(),
        field: "kind".to_owned(),
        got: "no Cluster".to_owned(),
        want: "what `clusterctl generate cluster` prints: a Cluster, its KubeadmControlPlane and \
               MachineDeployments"
            .to_owned(),
    })
}
