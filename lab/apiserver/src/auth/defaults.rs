//! Objects that a control plane creates by itself: default roles, aggregated roles,
//! ServiceAccounts.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::RBAC;
use crate::resources::{Resource, resource_id};
use crate::selector::LabelSelector;
use crate::store::{Store, key_of, name_of};
use crate::write::WriteOptions;

const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// One entry of the defaults file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    kind: String,
    name: String,
    /// The roles that this role is aggregated to.
    labels: Vec<String>,
    /// The label by which this role aggregates other roles.
    aggregates: String,
    rules: Vec<Value>,
    role: String,
    group: String,
}

impl Entry {
    fn object(&self) -> Value {
        let mut labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
        for role in &self.labels {
            labels[format!("{AGGREGATE}{role}")] = json!("true");
        }
        let metadata = json!({
            "name": self.name,
            "labels": labels,
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        });
        if self.kind == "ClusterRoleBinding" {
            return json!({
                "metadata": metadata,
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": self.role},
                "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": self.group}],
            });
        }
        let mut role = json!({"metadata": metadata, "rules": self.rules});
        if !self.aggregates.is_empty() {
            let label = format!("{AGGREGATE}{}", self.aggregates);
            role["aggregationRule"] = json!({"clusterRoleSelectors": [
                {"matchLabels": {label: "true"}},
            ]});
        }
        role
    }
}

fn options() -> WriteOptions {
    WriteOptions { manager: "kube-apiserver".to_owned(), ..WriteOptions::default() }
}

fn resource(store: &Store, id: &str) -> Arc<Resource> {
    let found = store.registry.stored(id).cloned();
    found.expect("the kinds of RBAC and ServiceAccounts are built in")
}

/// Creates missing default roles and bindings, aggregates, and creates ServiceAccounts.
pub(super) fn bootstrap(store: &mut Store) {
    let all: Vec<Entry> = serde_saphyr::from_str(include_str!("defaults.yaml"))
        .expect("the file with the defaults is tested");
    for default in all {
        let plural =
            if default.kind == "ClusterRole" { "clusterroles" } else { "clusterrolebindings" };
        let resource = resource(store, &resource_id(RBAC, plural));
        create(store, &resource, "", &default.name, default.object());
    }
    aggregate(store);
    ensure_accounts(store);
}

fn create(store: &mut Store, resource: &Arc<Resource>, namespace: &str, name: &str, body: Value) {
    if store.get(&resource.id, &key_of(namespace, name)).is_some() {
        return;
    }
    if let Err(error) = store.create(resource, namespace, body, &options()) {
        tracing::warn!(%namespace, %name, %error, "default object rejected");
    }
}

/// Creates the `default` ServiceAccount of each namespace.
pub(super) fn ensure_accounts(store: &mut Store) {
    let accounts = resource(store, "serviceaccounts");
    let table = store.table(crate::gc::NAMESPACES).cloned();
    let table = table.unwrap_or_default();
    for (key, _) in table.iter().filter(|(_, entry)| !entry.deleting) {
        let body = json!({"metadata": {"name": "default"}});
        create(store, &accounts, name_of(key), "default", body);
    }
}

/// Sets the rules of aggregated roles. A role may aggregate aggregated roles, so this repeats until
/// nothing changes.
pub(super) fn aggregate(store: &mut Store) {
    let roles = resource(store, &resource_id(RBAC, "clusterroles"));
    let table = store.table(&roles.id).cloned().unwrap_or_default();
    let most_rounds = table.len() + 1;
    for _ in 0..most_rounds {
        let table = store.table(&roles.id).cloned().unwrap_or_default();
        let mut changed = false;
        for (key, entry) in table.iter() {
            let mut role = entry.value();
            let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
            let Some(selectors) = selectors.cloned() else {
                continue;
            };
            let mut rules: Vec<Value> = Vec::new();
            for (_, candidate) in table.iter().filter(|(other, _)| *other != key) {
                let fits = selectors.iter().any(|selector| {
                    LabelSelector::from_object(selector)
                        .is_some_and(|selector| selector.matches(|label| candidate.label(label)))
                });
                if fits {
                    let more = candidate.value()["rules"].as_array().cloned();
                    for rule in more.unwrap_or_default() {
                        if !rules.contains(&rule) {
                            rules.push(rule);
                        }
                    }
                }
            }
            if role["rules"] == json!(rules) {
                continue;
            }
            role["rules"] = json!(rules);
            match store.update(&roles, key, role, "", &options()) {
                Ok(_) => changed = true,
                Err(error) => tracing::warn!(role = name_of(key), %error, "no aggregation"),
            }
        }
        if !changed {
            return;
        }
    }
}
