//! Discovery documents: which groups, versions and resources there are.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::resources::{Registry, Resource};

/// The document at a discovery path, if there is one.
pub(crate) fn document(registry: &Registry, segments: &[String]) -> Option<Value> {
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })),
        ["api", version] => resources(registry, "", version),
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
        ["apis", group, version] => resources(registry, group, version),
        _ => None,
    }
}

/// How Kubernetes ranks versions: GA before beta before alpha, newer first.
fn rank(version: &str) -> (u8, u32, u32) {
    let rest = version.strip_prefix('v').unwrap_or(version);
    let digits = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(rest.len());
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
    for resource in registry.all().filter(|resource| !resource.group.is_empty()) {
        let versions = groups.entry(resource.group.to_string()).or_default();
        if !versions
            .iter()
            .any(|version| **version == *resource.version)
        {
            versions.push(resource.version.to_string());
        }
    }
    groups.insert("authorization.k8s.io".to_owned(), vec!["v1".to_owned()]);
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

fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut list: Vec<Value> = Vec::new();
    for resource in registry.all() {
        if *resource.group == *group && *resource.version == *version {
            list.push(entry(resource));
            if resource.has_status {
                list.push(subresource(
                    resource,
                    "status",
                    &resource.kind,
                    &["get", "patch", "update"],
                ));
            }
            if &*resource.id == "pods" {
                let mut eviction = subresource(resource, "eviction", "Eviction", &["create"]);
                eviction["group"] = json!("policy");
                eviction["version"] = json!("v1");
                list.push(eviction);
            }
        }
    }
    if group == "authorization.k8s.io" && version == "v1" {
        list.push(json!({
            "name": "selfsubjectaccessreviews",
            "singularName": "selfsubjectaccessreview",
            "namespaced": false,
            "kind": "SelfSubjectAccessReview",
            "verbs": ["create"],
        }));
    }
    if list.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": list,
    }))
}

fn entry(resource: &Resource) -> Value {
    let mut value = json!({
        "name": &*resource.plural,
        "singularName": &*resource.singular,
        "namespaced": resource.namespaced,
        "kind": &*resource.kind,
        "verbs": [
            "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
        ],
    });
    if !resource.short_names.is_empty() {
        value["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        value["categories"] = json!(resource.categories);
    }
    value
}

fn subresource(resource: &Resource, name: &str, kind: &str, verbs: &[&str]) -> Value {
    json!({
        "name": format!("{}/{name}", resource.plural),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": kind,
        "verbs": verbs,
    })
}

/// The answer of `/version`.
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
