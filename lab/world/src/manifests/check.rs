//! What makes manifests impossible to run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use lab_apiserver::Registry;
use refit_cluster_api::kinds;
use refit_kinds::crds;
use serde_json::Value;

use super::{Manifest, Problem, fields, refs, shown, text};

/// Kinds of Cluster API's groups that the sandbox keeps but does not act on.
pub(super) const UNSUPPORTED_KINDS: [&str; 4] =
    ["ClusterResourceSet", "ClusterResourceSetBinding", "MachineHealthCheck", "MachinePool"];

/// The kinds that our own definitions bring. Making their schemas takes a while.
static KNOWN: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    let known = refit_cluster_api::crds().into_iter().chain(crds::refit_crds());
    known.collect()
});

/// Fills in namespaces and checks that each object says what it is, and is there once. Objects of
/// which that is not known are marked.
pub(super) fn identities(manifests: &mut [Manifest]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<[String; 4], (String, u64)> = BTreeMap::new();
    let cluster_scoped = cluster_scoped(manifests);
    for manifest in manifests {
        let faults = identity_problems(manifest);
        manifest.usable = faults.is_empty();
        problems.extend(faults);
        if !manifest.usable {
            continue;
        }
        fill_namespace(&mut manifest.object, &cluster_scoped);
        let object = &manifest.object;
        let key = [
            group_of(object),
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

/// Why it cannot be said which object this is.
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
        _ if text(object, "/metadata/name").is_empty() => {
            let got = shown(object.pointer("/metadata/name"));
            problems.push(manifest.problem("/metadata/name", got, "a name"));
        }
        _ => {
            problems.extend(name_problem(manifest));
            problems.extend(fields::typed::<ObjectMeta>(manifest, "/metadata"));
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

/// The API group of an object, empty for the core group.
fn group_of(object: &Value) -> &str {
    text(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group)
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
        manifest.problem("/metadata/name", shown(manifest.object.pointer("/metadata/name")), want)
    })
}

/// Group and kind of everything that stands in no namespace.
fn cluster_scoped(manifests: &[Manifest]) -> BTreeSet<(String, String)> {
    let pair = |group: &str, kind: &str| (group.to_owned(), kind.to_owned());
    let built_in = Registry::builtin();
    let built_in = built_in.all().filter(|resource| !resource.namespaced);
    let ours = KNOWN.iter().filter(|crd| crd.spec.scope != "Namespaced");
    let theirs = manifests.iter().map(|manifest| &manifest.object);
    let theirs = theirs.filter(|object| {
        text(object, "/kind") == "CustomResourceDefinition"
            && text(object, "/spec/scope") == "Cluster"
    });
    built_in
        .map(|resource| pair(&resource.group, &resource.kind))
        .chain(ours.map(|crd| pair(&crd.spec.group, &crd.spec.names.kind)))
        .chain(theirs.map(|crd| pair(text(crd, "/spec/group"), text(crd, "/spec/names/kind"))))
        .collect()
}

fn fill_namespace(object: &mut Value, cluster_scoped: &BTreeSet<(String, String)>) {
    let key = (group_of(object).to_owned(), text(object, "/kind").to_owned());
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if cluster_scoped.contains(&key) {
        metadata.remove("namespace");
    } else if metadata.get("namespace").is_none_or(Value::is_null) {
        metadata.insert("namespace".to_owned(), Value::from("default"));
    }
}

/// Checks the fields that are read, and that every reference leads somewhere. `unread` holds the
/// texts of documents that are not YAML.
pub(super) fn contents(manifests: &[Manifest], unread: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for manifest in manifests.iter().filter(|manifest| manifest.usable) {
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
        let mut told: Vec<Problem> = Vec::new();
        for fault in faults {
            // The first word on a field is enough; what is above or below it is the same fault.
            let same = |other: &Problem| {
                fault.field.starts_with(&other.field) || other.field.starts_with(&fault.field)
            };
            if !told.iter().any(same) {
                told.push(fault);
            }
        }
        problems.extend(told);
    }
    problems
}

/// Why an object of this kind or version cannot be run at all.
fn unfit(manifest: &Manifest, all: &[Manifest], group: &str, kind: &str) -> Option<Problem> {
    let object = &manifest.object;
    let has_topology = object.pointer("/spec/topology").is_some_and(|t| !t.is_null());
    if group == kinds::CORE_GROUP && (kind == "ClusterClass" || kind == "Cluster" && has_topology) {
        return Some(topology(manifest));
    }
    let old = text(object, "/apiVersion").rsplit('/').next() != Some(kinds::CONTRACT_VERSION);
    let ours = kind.starts_with("Kubeadm") || group == kinds::CORE_GROUP;
    if old && ours && group.ends_with(kinds::CORE_GROUP) {
        return Some(old_version(manifest, group, kind));
    }
    let got = shown(object.pointer("/kind"));
    let of_group = || KNOWN.iter().filter(|crd| crd.spec.group == group);
    if let Some(crd) = of_group().find(|crd| crd.spec.names.kind == kind) {
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
        let kinds: Vec<_> = of_group().map(|crd| crd.spec.names.kind.as_str()).collect();
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

/// Secrets that the sandbox itself makes for a cluster.
fn made_here(manifest: &Manifest, all: &[Manifest], group: &str, kind: &str) -> Option<Problem> {
    let name = text(&manifest.object, "/metadata/name");
    let cluster = name.strip_suffix("-kubeconfig")?;
    let is_cluster = |other: &Manifest| {
        text(&other.object, "/kind") == "Cluster"
            && text(&other.object, "/metadata/name") == cluster
    };
    (group.is_empty() && kind == "Secret" && all.iter().any(is_cluster)).then(|| {
        let want =
            "no such Secret: the sandbox makes the kubeconfig of its simulated cluster itself";
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
        new = kinds::CONTRACT_VERSION,
    );
    manifest.problem("/apiVersion", got, want)
}

/// There must be something to upgrade.
pub(super) fn no_cluster(file: &str, manifests: &[Manifest]) -> Option<Problem> {
    let has = |kind: &str| manifests.iter().any(|m| text(&m.object, "/kind") == kind);
    (!has("Cluster")).then(|| Problem {
        file: file.to_owned(),
        line: 1,
        object: "manifests".to_owned(),
        field: "kind".to_owned(),
        got: "no Cluster".to_owned(),
        want: "what `clusterctl generate cluster` prints: a Cluster, its KubeadmControlPlane and \
               MachineDeployments"
            .to_owned(),
    })
}
