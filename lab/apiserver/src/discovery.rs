//! Discovery documents of groups, versions and resources: one per group version, or a single one if
//! the caller accepts the aggregated form.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::auth::VIRTUAL_RESOURCES;
use crate::resources::{Registry, Resource, join_version};

/// Content type of the aggregated form.
pub(crate) const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The verbs of a stored resource.
const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// One resource or subresource of a group version.
struct ApiResource<'a> {
    name: String,
    singular: &'a str,
    namespaced: bool,
    /// Group, version and kind of the objects that it accepts.
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    verbs: &'a [&'static str],
    short_names: &'a [String],
    categories: &'a [String],
}

/// The document at a discovery path, if there is one.
pub(crate) fn document(registry: &Registry, segments: &[String]) -> Option<Value> {
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })),
        ["api", version] => resource_list(registry, "", version),
        ["apis"] => {
            let groups: Vec<Value> = groups(registry)
                .iter()
                .map(|(group, versions)| group_value(group, versions))
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group] => {
            let groups = groups(registry);
            let versions = groups.get(*group)?;
            let mut value = group_value(group, versions);
            value["kind"] = json!("APIGroup");
            value["apiVersion"] = json!("v1");
            Some(value)
        }
        ["apis", group, version] => resource_list(registry, group, version),
        _ => None,
    }
}

/// The aggregated document of `/api` or `/apis`; `None` for other paths.
pub(crate) fn aggregated(registry: &Registry, segments: &[String]) -> Option<Value> {
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    let groups = match words.as_slice() {
        ["api"] => BTreeMap::from([(String::new(), vec!["v1".to_owned()])]),
        ["apis"] => groups(registry),
        _ => return None,
    };
    let items: Vec<Value> = groups
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    json!({
                        "version": version,
                        "freshness": "Current",
                        "resources": aggregated_resources(registry, group, version),
                    })
                })
                .collect();
            let meta = if group.is_empty() {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            json!({"metadata": meta, "versions": versions})
        })
        .collect();
    Some(json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }))
}

fn aggregated_resources(registry: &Registry, group: &str, version: &str) -> Vec<Value> {
    let mut list: Vec<Value> = Vec::new();
    for resource in resources(registry, group, version) {
        let kind = json!({
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        });
        if let Some((parent, name)) = resource.name.split_once('/') {
            let entry = json!({
                "subresource": name,
                "responseKind": kind,
                "verbs": resource.verbs,
            });
            let parent = list.iter_mut().find(|entry| entry["resource"] == parent);
            if let Some(parent) = parent {
                match parent["subresources"].as_array_mut() {
                    Some(subresources) => subresources.push(entry),
                    None => parent["subresources"] = json!([entry]),
                }
            }
            continue;
        }
        let mut entry = json!({
            "resource": resource.name,
            "responseKind": kind,
            "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": resource.singular,
            "verbs": resource.verbs,
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        list.push(entry);
    }
    list
}

/// Kubernetes' order of versions: GA before beta before alpha, newer first.
fn rank(version: &str) -> (u8, u32, u32) {
    let rest = version.strip_prefix('v').unwrap_or(version);
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..digits].parse().unwrap_or(0);
    let (stage, minor) = match &rest[digits..] {
        "" => (2, ""),
        tail => match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
            (Some(minor), _) => (1, minor),
            (_, Some(minor)) => (0, minor),
            _ => (0, ""),
        },
    };
    (stage, major, minor.parse().unwrap_or(0))
}

fn groups(registry: &Registry) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let stored = registry.all().map(|resource| (&*resource.group, &*resource.version));
    let virtual_ones = VIRTUAL_RESOURCES.iter().map(|one| (one.group, "v1"));
    for (group, version) in stored.chain(virtual_ones) {
        if group.is_empty() {
            continue;
        }
        let versions = groups.entry(group.to_owned()).or_default();
        if !versions.iter().any(|known| known == version) {
            versions.push(version.to_owned());
        }
    }
    for versions in groups.values_mut() {
        versions.sort_by_key(|version| std::cmp::Reverse(rank(version)));
    }
    groups
}

fn group_value(group: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({
        "name": group,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

/// All resources of a group version, each before its subresources.
fn resources<'a>(registry: &'a Registry, group: &str, version: &str) -> Vec<ApiResource<'a>> {
    let mut list = Vec::new();
    let here = |resource: &&'a std::sync::Arc<Resource>| {
        *resource.group == *group && *resource.version == *version
    };
    for resource in registry.all().filter(here) {
        list.push(ApiResource {
            name: resource.plural.to_string(),
            singular: &resource.singular,
            namespaced: resource.namespaced,
            group: &resource.group,
            version: &resource.version,
            kind: &resource.kind,
            verbs: &VERBS,
            short_names: &resource.short_names,
            categories: &resource.categories,
        });
        add_subresources(resource, &mut list);
    }
    if version != "v1" {
        return list;
    }
    for one in VIRTUAL_RESOURCES.iter().filter(|one| one.group == group) {
        list.push(ApiResource {
            name: one.name.to_owned(),
            singular: one.singular,
            namespaced: one.namespaced,
            group: one.kind_group,
            version: "v1",
            kind: one.kind,
            verbs: &["create"],
            short_names: &[],
            categories: &[],
        });
    }
    list
}

fn add_subresources<'a>(resource: &'a Resource, list: &mut Vec<ApiResource<'a>>) {
    let mut add = |name: &str, group: &'a str, version: &'a str, kind: &'a str, verbs| {
        list.push(ApiResource {
            name: format!("{}/{name}", resource.plural),
            singular: "",
            namespaced: resource.namespaced,
            group,
            version,
            kind,
            verbs,
            short_names: &[],
            categories: &[],
        });
    };
    let write: &'static [&'static str] = &["get", "patch", "update"];
    if &*resource.id == "pods" {
        add("eviction", "policy", "v1", "Eviction", &["create"]);
        add("log", "", "v1", "Pod", &["get"]);
    }
    if resource.scale.is_some() {
        add("scale", "autoscaling", "v1", "Scale", write);
    }
    if resource.has_status {
        add("status", &resource.group, &resource.version, &resource.kind, write);
    }
}

fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let list: Vec<Value> = resources(registry, group, version)
        .iter()
        .map(|resource| entry(resource, group, version))
        .collect();
    if list.is_empty() {
        return None;
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": join_version(group, version),
        "resources": list,
    }))
}

fn entry(resource: &ApiResource<'_>, group: &str, version: &str) -> Value {
    let mut value = json!({
        "name": resource.name,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs,
    });
    if (resource.group, resource.version) != (group, version) {
        value["group"] = json!(resource.group);
        value["version"] = json!(resource.version);
    }
    if !resource.short_names.is_empty() {
        value["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        value["categories"] = json!(resource.categories);
    }
    value
}

/// The response of `/version`.
pub(crate) fn version(git_version: &str) -> Value {
    let mut numbers = git_version.trim_start_matches('v').split(['.', '-', '+']);
    json!({
        "major": numbers.next().unwrap_or_default(),
        "minor": numbers.next().unwrap_or_default(),
        "gitVersion": git_version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    })
}
