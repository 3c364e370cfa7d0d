//! Prevents privilege escalation: a user cannot grant permissions they lack, unless a rule allows
//! `escalate` or `bind`.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde::Deserialize;
use serde_json::Value;

use super::rbac::{Policy, RoleRef, Rule};
use super::{Access, Attributes, Identity, MASTERS, RBAC};
use crate::error::ApiError;
use crate::resources::Resource;
use crate::store::Store;

/// Rejects a write of a role or binding that would grant more than the writer holds. `new` is the
/// object after the write, `old` before it.
pub(super) fn check(
    access: &Access,
    store: &Mutex<Store>,
    identity: &Identity,
    resource: &Resource,
    (namespace, name): (&str, &str),
    (old, new): (Option<&Value>, &Value),
) -> Result<(), ApiError> {
    if access.required().is_none() || &*resource.group != RBAC || identity.is_in(MASTERS) {
        return Ok(());
    }
    let part = |value: &Value, key: &str| value.get(key).cloned().unwrap_or(Value::Null);
    let gathers = |value: &Value| {
        let selectors = value.pointer("/aggregationRule/clusterRoleSelectors");
        let selectors = selectors.and_then(Value::as_array);
        selectors.is_some_and(|selectors| !selectors.is_empty())
    };
    // By its labels a role contributes its rules to aggregated roles.
    let labels = |value: &Value| value.pointer("/metadata/labels").cloned();
    let is_cluster_role = &*resource.plural == "clusterroles";
    if old.is_some_and(|old| {
        ["rules", "subjects", "roleRef", "aggregationRule"]
            .iter()
            .all(|key| part(old, key) == part(new, key))
            && (!is_cluster_role || labels(old) == labels(new))
    }) {
        return Ok(());
    }
    let policy = access.policy(store);
    let (free, rules) = given_away(&policy, resource, (namespace, name), new);
    if policy.decide(identity, &free).is_ok() {
        return access
            .authorize(store, identity, &free)
            .map_err(|why| free.refused(identity, &why));
    }
    let rules = rules?;
    let held = policy.rules_for(identity, namespace);
    let mut missing = BTreeSet::new();
    for atom in rules.iter().flat_map(|rule| atoms(rule, namespace)) {
        // A permission for all names needs a rule without names; `allows` ensures this.
        if held.iter().any(|rule| rule.allows(&atom)) {
            // The recorder records this permission like any other that was needed.
            let _ = access.authorize(store, identity, &atom);
        } else {
            missing.insert(shown(&atom));
        }
    }
    if missing.is_empty() {
        let takes_all = is_cluster_role && (gathers(new) || old.is_some_and(gathers));
        if takes_all && !holds_everything(&held) {
            let why = "must have cluster-admin privileges to use aggregationRule";
            return Err(ApiError::forbidden(resource, name, why));
        }
        return Ok(());
    }
    let missing: Vec<String> = missing.into_iter().collect();
    let why = format!(
        "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        identity.user,
        identity.groups,
        missing.join("\n"),
    );
    Err(ApiError::forbidden(resource, name, &why))
}

/// Whether these are the permissions of a cluster administrator: an aggregated role may come to
/// hold any permission.
fn holds_everything(held: &[&Rule]) -> bool {
    let all = || "*".to_owned();
    let anything =
        Attributes { verb: all(), group: all(), resource: all(), ..Attributes::default() };
    let anywhere = Attributes { verb: all(), path: all(), ..Attributes::default() };
    let allowed = |asked: &Attributes| held.iter().any(|rule| rule.allows(asked));
    allowed(&anything) && allowed(&anywhere)
}

/// The permission that allows a write to grant anything, and the rules that it grants. Rules that
/// cannot be determined are an error, not an empty list.
fn given_away(
    policy: &Policy,
    resource: &Resource,
    (namespace, name): (&str, &str),
    new: &Value,
) -> (Attributes, Result<Vec<Rule>, ApiError>) {
    let part = |key: &str| new.get(key).cloned().unwrap_or(Value::Null);
    let ask = |verb: &str, plural: &str, name: &str| Attributes {
        verb: verb.to_owned(),
        group: RBAC.to_owned(),
        resource: plural.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Attributes::default()
    };
    if matches!(&*resource.plural, "roles" | "clusterroles") {
        let rules = Option::<Vec<Rule>>::deserialize(part("rules"))
            .map(Option::unwrap_or_default)
            .map_err(|error| ApiError::bad_request(format!("cannot decode rules: {error}")));
        return (ask("escalate", &resource.plural, name), rules);
    }
    let role = RoleRef::deserialize(part("roleRef")).unwrap_or_default();
    let plural = if role.kind == "Role" { "roles" } else { "clusterroles" };
    let rules = policy.rules_of(namespace, &role).0.map(<[Rule]>::to_vec);
    let rules = rules.ok_or_else(|| {
        let why = format!("{plural}.{RBAC} {:?} not found", role.name);
        ApiError::new(404, "NotFound", why)
    });
    (ask("bind", plural, &role.name), rules)
}

/// Splits a rule into single permissions.
fn atoms(rule: &Rule, namespace: &str) -> Vec<Attributes> {
    let none = [String::new()];
    let names = if rule.resource_names.is_empty() { &none[..] } else { &rule.resource_names };
    let mut all = Vec::new();
    for verb in &rule.verbs {
        for path in &rule.non_resource_urls {
            all.push(Attributes {
                verb: verb.clone(),
                path: path.clone(),
                ..Attributes::default()
            });
        }
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let (plural, sub) = resource.split_once('/').unwrap_or((resource, ""));
                for name in names {
                    all.push(Attributes {
                        verb: verb.clone(),
                        group: group.clone(),
                        resource: plural.to_owned(),
                        subresource: sub.to_owned(),
                        namespace: namespace.to_owned(),
                        name: name.clone(),
                        path: String::new(),
                    });
                }
            }
        }
    }
    all
}

fn shown(atom: &Attributes) -> String {
    if atom.resource.is_empty() {
        return format!("{{NonResourceURLs:[{:?}], Verbs:[{:?}]}}", atom.path, atom.verb);
    }
    let names = if atom.name.is_empty() {
        String::new()
    } else {
        format!(", ResourceNames:[{:?}]", atom.name)
    };
    format!(
        "{{APIGroups:[{:?}], Resources:[{:?}]{names}, Verbs:[{:?}]}}",
        atom.group,
        atom.combined(),
        atom.verb
    )
}
