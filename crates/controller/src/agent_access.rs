//! The rights of agents in their workload cluster: each may write its own HostPlan, and nothing
//! else.
//!
//! An agent has the identity of its node (`system:node:NAME`, the kubelet's certificate). The
//! controller gives each Node a Role and a RoleBinding in the namespace of the HostPlans; the Node
//! owns both, so that they are deleted with it. RBAC cannot restrict the name of a created object,
//! so agents create their HostPlan by an apply, whose URL contains the name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::Node,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::ListParams,
    core::{NamespaceResourceScope, Resource},
};
use refit_kinds::keys;
use refit_runtime::{Store, apply};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{context::Context, workload_objects::NodeRecord};

/// Delay before a failed grant is retried.
const RETRY: Duration = Duration::from_secs(5);
const SELECTOR: &str =
    "app.kubernetes.io/managed-by=refit-controller,app.kubernetes.io/component=agent";
const RBAC: &str = "rbac.authorization.k8s.io";

/// The Nodes of one cluster whose agents have their rights.
#[derive(Debug, Default)]
pub(crate) struct AgentAccess {
    /// uid of the Node, by its name.
    granted: Mutex<BTreeMap<String, String>>,
    changed: Notify,
}

impl AgentAccess {
    /// Records that a Node was added or changed.
    pub(crate) fn saw(&self, node: &ObjectMeta) {
        if self.lacks(node) {
            self.changed.notify_one();
        }
    }

    fn lacks(&self, node: &ObjectMeta) -> bool {
        self.lock().get(name(node)).map(String::as_str) != node.uid.as_deref()
    }

    fn note(&self, node: &ObjectMeta) {
        self.lock().insert(name(node).to_owned(), node.uid.clone().unwrap_or_default());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants each Node its rights while this process is the leader, until the future is dropped.
    pub(crate) async fn keep(&self, ctx: &Context, client: &Client, nodes: &Store<NodeRecord>) {
        nodes.ready().await;
        // Rights from before this watch may have been removed since.
        self.lock().clear();
        let mut looked = false;
        loop {
            ctx.leadership.held().await;
            match self.pass(client, nodes, &mut looked).await {
                Ok(()) => self.changed.notified().await,
                Err(error) => {
                    tracing::debug!(%error, "cannot grant the agents their rights yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn pass(
        &self,
        client: &Client,
        nodes: &Store<NodeRecord>,
        looked: &mut bool,
    ) -> kube::Result<()> {
        let nodes_now = nodes.list();
        let names: BTreeSet<String> = nodes_now.iter().map(|node| node.name_any()).collect();
        self.lock().retain(|name, _| names.contains(name));
        if !nodes_now.iter().any(|node| self.lacks(node.meta())) {
            return Ok(());
        }
        let roles: Api<Role> = Api::namespaced(client.clone(), keys::HOST_PLAN_NAMESPACE);
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), keys::HOST_PLAN_NAMESPACE);
        if !*looked {
            self.look(&roles, &bindings, nodes).await?;
            *looked = true;
        }
        for node in nodes.list() {
            let node = node.meta();
            if !self.lacks(node) {
                continue;
            }
            let name = name_of(node);
            apply::apply(&roles, keys::MANAGER, &name, &role(node)).await?;
            apply::apply(&bindings, keys::MANAGER, &name, &binding(node)).await?;
            self.note(node);
        }
        Ok(())
    }

    /// Finds the Nodes that have their rights already, so that a restart writes nothing.
    async fn look(
        &self,
        roles: &Api<Role>,
        bindings: &Api<RoleBinding>,
        nodes: &Store<NodeRecord>,
    ) -> kube::Result<()> {
        let (roles, bindings) = (found(roles).await?, found(bindings).await?);
        for node in nodes.list() {
            let node = node.meta();
            let name = name_of(node);
            let as_wanted = |found: &BTreeMap<String, Value>, wanted: &Value| {
                found.get(&name).is_some_and(|existing| holds(existing, wanted))
            };
            if as_wanted(&roles, &role(node)) && as_wanted(&bindings, &binding(node)) {
                self.note(node);
            }
        }
        Ok(())
    }
}

async fn found<K>(api: &Api<K>) -> kube::Result<BTreeMap<String, Value>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug,
{
    let list = api.list(&ListParams::default().labels(SELECTOR)).await?;
    let entry = |object: &K| {
        let value = serde_json::to_value(object).unwrap_or_default();
        (object.name_any(), value)
    };
    Ok(list.items.iter().map(entry).collect())
}

/// Whether an object contains all wanted fields.
pub(crate) fn holds(existing: &Value, wanted: &Value) -> bool {
    match (existing, wanted) {
        (Value::Object(existing), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            // The items of a list do not have these fields.
            matches!(key.as_str(), "apiVersion" | "kind")
                || existing.get(key).is_some_and(|existing| holds(existing, wanted))
        }),
        (Value::Array(existing), Value::Array(wanted)) => {
            existing.len() == wanted.len()
                && existing.iter().zip(wanted).all(|(existing, wanted)| holds(existing, wanted))
        }
        _ => existing == wanted,
    }
}

fn name(node: &ObjectMeta) -> &str {
    node.name.as_deref().unwrap_or_default()
}

fn name_of(node: &ObjectMeta) -> String {
    format!("refit-agent-{}", name(node))
}

fn metadata(node: &ObjectMeta) -> Value {
    json!({
        "name": name_of(node),
        "namespace": keys::HOST_PLAN_NAMESPACE,
        "labels": {
            "app.kubernetes.io/name": "refit",
            "app.kubernetes.io/component": "agent",
            "app.kubernetes.io/managed-by": "refit-controller",
        },
        "ownerReferences": [{
            "apiVersion": "v1",
            "kind": "Node",
            "name": name(node),
            "uid": node.uid.as_deref().unwrap_or_default(),
        }],
    })
}

/// Role and RoleBinding of a Node's agent.
pub fn rights(node: &Node) -> [Value; 2] {
    [role(&node.metadata), binding(&node.metadata)]
}

fn role(node: &ObjectMeta) -> Value {
    let own = [name(node)];
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "Role",
        "metadata": metadata(node),
        "rules": [
            {
                "apiGroups": ["refit.dev"],
                "resources": ["hostplans"],
                "resourceNames": own,
                "verbs": ["create", "list", "patch", "watch"],
            },
            {
                "apiGroups": ["refit.dev"],
                "resources": ["hostplans/status"],
                "resourceNames": own,
                "verbs": ["patch"],
            },
        ],
    })
}

fn binding(node: &ObjectMeta) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata(node),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name_of(node)},
        "subjects": [{
            "apiGroup": RBAC,
            "kind": "User",
            "name": format!("system:node:{}", name(node)),
        }],
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    fn node(uid: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some("n1".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn a_role_names_one_host_plan_only() {
        for rule in role(&node("u"))["rules"].as_array().unwrap() {
            assert_eq!(rule["resourceNames"], json!(["n1"]));
        }
    }

    #[tokio::test]
    async fn nodes_that_are_gone_are_forgotten() {
        let (access, nodes) = (AgentAccess::default(), Store::default());
        for name in ["n1", "n2"] {
            access.lock().insert(name.to_owned(), "u".to_owned());
        }
        let kept = Node { metadata: node("u"), ..Node::default() };
        nodes.insert(NodeRecord::from(kept));
        let client = crate::scan_tests::unconnected().client;
        access.pass(&client, &nodes, &mut false).await.unwrap();
        assert_eq!(access.lock().keys().collect::<Vec<_>>(), ["n1"]);
    }

    #[test]
    fn a_recreated_node_needs_new_rights() {
        let access = AgentAccess::default();
        access.lock().insert("n1".to_owned(), "u".to_owned());
        assert!(!access.lacks(&node("u")));
        assert!(access.lacks(&node("v")));
        let typed: Role = serde_json::from_value(role(&node("u"))).unwrap();
        let existing = serde_json::to_value(typed).unwrap();
        assert!(holds(&existing, &role(&node("u"))));
        assert!(!holds(&existing, &role(&node("v"))));
    }
}
