//! Which requests a policy and a binding are for.

use k8s_openapi::api::admissionregistration::v1::{MatchResources, NamedRuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Selector;
use serde_json::Value;

use crate::object::member;
use crate::selector::LabelSelector;

use super::WriteRequest;

/// Whether a request is one of those that are described. `home` is its namespace. `is_served` is true for a resource that
/// exists in a version, by its group, version and plural.
pub(super) fn constraints_fit(
    constraints: &MatchResources,
    write: &WriteRequest<'_>,
    home: Option<&Value>,
    is_served: impl Fn(&str, &str, &str) -> bool,
) -> bool {
    let is_exact = constraints.match_policy.as_deref() == Some("Exact");
    let matches = |rules: Option<&Vec<NamedRuleWithOperations>>| {
        rules.into_iter().flatten().any(|rule| {
            rule_fits(rule, write, |version| {
                !is_exact && is_served(&write.resource.group, version, &write.resource.plural)
            })
        })
    };
    let has_rules = constraints.resource_rules.as_ref().is_some_and(|rules| !rules.is_empty());
    (!has_rules || matches(constraints.resource_rules.as_ref()))
        && !matches(constraints.exclude_resource_rules.as_ref())
        && namespace_fits(constraints.namespace_selector.as_ref(), write, home)
        && [write.object, write.old]
            .into_iter()
            .flatten()
            .any(|object| selects(constraints.object_selector.as_ref(), object))
}

fn rule_fits(
    rule: &NamedRuleWithOperations,
    write: &WriteRequest<'_>,
    is_other_version: impl Fn(&str) -> bool,
) -> bool {
    let has = |list: Option<&Vec<String>>, wanted: &str| {
        list.into_iter().flatten().any(|one| one == "*" || one == wanted)
    };
    let resource = write.resource;
    let versions = rule.api_versions.as_ref();
    let scope = match rule.scope.as_deref() {
        None | Some("*") => true,
        Some(scope) => (scope == "Namespaced") == resource.namespaced,
    };
    let names = rule.resource_names.as_ref().filter(|names| !names.is_empty());
    has(rule.api_groups.as_ref(), &resource.group)
        && (has(versions, &resource.version)
            || versions.into_iter().flatten().any(|one| is_other_version(one)))
        && has(rule.operations.as_ref(), write.operation.name())
        && rule.resources.iter().flatten().any(|one| resource_fits(one, write))
        && scope
        && names.is_none_or(|names| names.iter().any(|name| name == write.name))
}

/// `pods`, `pods/status`, `pods/*`, `*`, `*/status` or `*/*`.
fn resource_fits(rule: &str, write: &WriteRequest<'_>) -> bool {
    let (plural, subresource) = rule.split_once('/').unwrap_or((rule, ""));
    (plural == "*" || plural == &*write.resource.plural)
        && (subresource == "*" || subresource == write.subresource)
}

fn namespace_fits(
    selector: Option<&Selector>,
    write: &WriteRequest<'_>,
    home: Option<&Value>,
) -> bool {
    if &*write.resource.id == "namespaces" {
        return write.object.or(write.old).is_some_and(|object| selects(selector, object));
    }
    !write.resource.namespaced || home.is_some_and(|home| selects(selector, home))
}

fn selects(selector: Option<&Selector>, object: &Value) -> bool {
    let Some(selector) = selector else { return true };
    let selector = serde_json::to_value(selector).unwrap_or_default();
    let labels = member(object, &["metadata", "labels"]);
    LabelSelector::from_object(&selector)
        .is_some_and(|selector| selector.matches(|key| labels?.get(key)?.as_str()))
}
