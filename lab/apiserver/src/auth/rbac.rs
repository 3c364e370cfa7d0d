//! RBAC: evaluates the stored roles and bindings for a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::{Attributes, Grant, Identity};
use crate::store::{Table, name_of, namespace_of};

/// `null` counts as missing: Go clients write empty lists as `null`.
fn or_null<'de, D, T>(value: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(value).map(Option::unwrap_or_default)
}

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Rule {
    #[serde(deserialize_with = "or_null")]
    pub(super) verbs: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    pub(super) api_groups: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    pub(super) resources: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    pub(super) resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "or_null")]
    pub(super) non_resource_urls: Vec<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    /// Whether the rule allows a request.
    pub(super) fn allows(&self, asked: &Attributes) -> bool {
        if !has(&self.verbs, &asked.verb) {
            return false;
        }
        if asked.resource.is_empty() {
            return self.covers_path(&asked.path);
        }
        has(&self.api_groups, &asked.group)
            && self.covers_resource(&asked.combined(), &asked.subresource)
            && (self.resource_names.is_empty() || self.resource_names.contains(&asked.name))
    }

    pub(super) fn covers_resource(&self, combined: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| {
            rule == "*"
                || rule == combined
                || (!subresource.is_empty() && rule.strip_prefix("*/") == Some(subresource))
        })
    }

    pub(super) fn covers_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|rule| {
            rule == path || rule.strip_suffix('*').is_some_and(|start| path.starts_with(start))
        })
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

impl Subject {
    fn is(&self, identity: &Identity, home: &str) -> bool {
        match self.kind.as_str() {
            "User" => identity.user == self.name,
            "Group" => identity.is_in(&self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { home } else { &self.namespace };
                identity
                    .user
                    .strip_prefix("system:serviceaccount:")
                    .and_then(|rest| rest.split_once(':'))
                    == Some((namespace, self.name.as_str()))
            }
            _ => false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct RoleRef {
    pub(super) kind: String,
    pub(super) name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BindingBody {
    #[serde(deserialize_with = "or_null")]
    subjects: Vec<Subject>,
    role_ref: RoleRef,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RoleBody {
    #[serde(deserialize_with = "or_null")]
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Binding {
    namespace: String,
    name: String,
    body: BindingBody,
}

impl Binding {
    fn binds(&self, identity: &Identity) -> bool {
        self.body.subjects.iter().any(|subject| subject.is(identity, &self.namespace))
    }

    fn label(&self) -> String {
        if self.namespace.is_empty() {
            format!("ClusterRoleBinding/{}", self.name)
        } else {
            format!("RoleBinding/{}/{}", self.namespace, self.name)
        }
    }
}

/// All roles and bindings.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    cluster_bindings: Vec<Binding>,
    bindings: BTreeMap<String, Vec<Binding>>,
    cluster_roles: BTreeMap<String, Vec<Rule>>,
    roles: BTreeMap<(String, String), Vec<Rule>>,
}

fn read<T: DeserializeOwned>(
    tables: &BTreeMap<Arc<str>, Arc<Table>>,
    plural: &str,
) -> Vec<(String, String, T)> {
    let id = crate::resources::resource_id(super::RBAC, plural);
    let entries = tables.get(&id).into_iter().flat_map(|table| table.iter());
    entries
        .filter_map(|(key, entry)| {
            let body = serde_json::from_slice(&entry.bytes).ok()?;
            Some((namespace_of(key).to_owned(), name_of(key).to_owned(), body))
        })
        .collect()
}

impl Policy {
    /// Reads the tables of a store.
    pub(super) fn read(tables: &BTreeMap<Arc<str>, Arc<Table>>) -> Self {
        let mut policy = Self::default();
        for (_, name, body) in read::<RoleBody>(tables, "clusterroles") {
            policy.cluster_roles.insert(name, body.rules);
        }
        for (namespace, name, body) in read::<RoleBody>(tables, "roles") {
            policy.roles.insert((namespace, name), body.rules);
        }
        for (namespace, name, body) in read::<BindingBody>(tables, "clusterrolebindings") {
            policy.cluster_bindings.push(Binding { namespace, name, body });
        }
        for (namespace, name, body) in read::<BindingBody>(tables, "rolebindings") {
            let home = policy.bindings.entry(namespace.clone()).or_default();
            home.push(Binding { namespace, name, body });
        }
        policy
    }

    /// The rules of a role, and its name for messages.
    pub(super) fn rules_of(&self, namespace: &str, role: &RoleRef) -> (Option<&[Rule]>, String) {
        if role.kind == "Role" {
            let key = (namespace.to_owned(), role.name.clone());
            let label = format!("Role/{namespace}/{}", role.name);
            return (self.roles.get(&key).map(Vec::as_slice), label);
        }
        let label = format!("ClusterRole/{}", role.name);
        (self.cluster_roles.get(&role.name).map(Vec::as_slice), label)
    }

    /// The bindings of an identity that apply in a namespace, or in the whole cluster.
    fn bindings_of<'a>(
        &'a self,
        identity: &'a Identity,
        namespace: &str,
    ) -> impl Iterator<Item = &'a Binding> + use<'a> {
        let local = self.bindings.get(namespace).map_or(&[][..], Vec::as_slice);
        self.cluster_bindings.iter().chain(local).filter(move |binding| binding.binds(identity))
    }

    /// All rules that an identity holds in a namespace.
    pub(super) fn rules_for(&self, identity: &Identity, namespace: &str) -> Vec<&Rule> {
        self.bindings_of(identity, namespace)
            .filter_map(|binding| self.rules_of(&binding.namespace, &binding.body.role_ref).0)
            .flatten()
            .collect()
    }

    /// The rule that allows a request; otherwise what is wrong with the caller's bindings.
    pub(super) fn decide(&self, identity: &Identity, asked: &Attributes) -> Result<Grant, String> {
        let mut broken = Vec::new();
        for binding in self.bindings_of(identity, &asked.namespace) {
            let (rules, role) = self.rules_of(&binding.namespace, &binding.body.role_ref);
            let Some(rules) = rules else {
                broken.push(missing(&binding.body.role_ref));
                continue;
            };
            if let Some(rule) = rules.iter().position(|rule| rule.allows(asked)) {
                return Ok(Grant { binding: binding.label(), role, rule });
            }
        }
        Err(match broken.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            all => format!("RBAC: [{}]", all.join(", ")),
        })
    }
}

fn missing(role: &RoleRef) -> String {
    let kind = role.kind.to_ascii_lowercase();
    format!("{kind}.{} {:?} not found", super::RBAC, role.name)
}
