//! Cluster API's desired objects: Machines, their bootstrap configs and infrastructure machines,
//! and MachineSets, as full intents for server-side apply.
//!
//! Owners are read as JSON, because an intent carries fields that no struct of Refit knows. The
//! caller does the reads and writes.
//!
//! | module | builds intents of |
//! |---|---|
//! | [`control_plane`] | a KubeadmControlPlane: Machines and their bootstrap and infrastructure
//! objects |
//! | [`machine_set`] | a MachineSet: Machines |
//! | [`machine_deployment`] | a MachineDeployment: MachineSets |

pub mod control_plane;
pub mod machine_deployment;
pub mod machine_set;

use std::collections::BTreeMap;

use kube::{Resource, discovery::ApiResource};
use refit_kinds::{
    json::{name, pairs, text},
    keys,
};
use serde_json::{Map, Value, json};

use crate::kinds::ContractRef;

/// Labels or annotations.
pub type Pairs = BTreeMap<String, String>;

/// A stored template and the reference to it.
#[derive(Clone, Debug)]
pub struct Template {
    /// The reference to the template.
    pub reference: ContractRef,
    /// The whole template object, with apiVersion and kind.
    pub json: Value,
}

impl Template {
    /// Builds the full intent for an object cloned from this template: the template's labels and
    /// annotations, the given ones, and the clone annotations.
    pub fn instance(
        &self,
        namespace: &str,
        name: &str,
        labels: &Pairs,
        annotations: &Pairs,
    ) -> Value {
        let mut all_labels = self.pairs("labels");
        all_labels.extend(labels.clone());
        let mut all_annotations = self.pairs("annotations");
        all_annotations.extend(annotations.clone());
        all_annotations.extend(cloned_from(&self.reference));
        let spec = self.json.pointer("/spec/template/spec").cloned();
        json!({
            "metadata": {
                "namespace": namespace,
                "name": name,
                "labels": all_labels,
                "annotations": all_annotations,
            },
            "spec": spec.unwrap_or_else(|| Value::Object(Map::new())),
        })
    }

    fn pairs(&self, what: &str) -> Pairs {
        pairs(self.json.pointer(&format!("/spec/template/metadata/{what}")))
    }
}

/// Returns the reference to an object cloned from a template: kind `XMachine` for
/// `XMachineTemplate`.
pub fn made_of(template: &ContractRef, name: &str) -> ContractRef {
    let kind = template.kind.strip_suffix("Template");
    ContractRef {
        api_group: template.api_group.clone(),
        kind: kind.unwrap_or(&template.kind).to_owned(),
        name: name.to_owned(),
    }
}

/// Returns the annotations that name the template that an object was cloned from.
fn cloned_from(template: &ContractRef) -> Pairs {
    Pairs::from([
        (keys::CLONED_FROM_NAME.to_owned(), template.name.clone()),
        (keys::CLONED_FROM_GROUPKIND.to_owned(), group_kind(template)),
    ])
}

/// Reports whether an object with these annotations was cloned from a template. Missing annotations
/// count as a match (`docs/facts/control-plane.md#differences`).
pub fn is_clone_of(annotations: &Pairs, template: &ContractRef) -> bool {
    let source =
        (annotations.get(keys::CLONED_FROM_NAME), annotations.get(keys::CLONED_FROM_GROUPKIND));
    match source {
        (Some(name), Some(kind)) => *name == template.name && *kind == group_kind(template),
        (None, _) | (_, None) => true,
    }
}

/// Returns the intent for an object of a Machine as Cluster API writes it in an update in place: its labels and other
/// annotations have another field manager (`docs/facts/control-plane.md#starting-an-update`).
pub fn in_update(mut intent: Value) -> Value {
    if let Some(metadata) = intent["metadata"].as_object_mut() {
        metadata.remove("labels");
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            let of_clone = [keys::CLONED_FROM_NAME, keys::CLONED_FROM_GROUPKIND];
            annotations.retain(|key, _| of_clone.contains(&key.as_str()));
        }
        metadata.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
    }
    intent
}

/// Returns `Kind.group`, in Cluster API's notation.
fn group_kind(reference: &ContractRef) -> String {
    format!("{}.{}", reference.kind, reference.api_group)
}

/// Builds an owner reference as JSON.
pub fn owner(resource: &ApiResource, name: &str, uid: &str, controller: bool) -> Value {
    let mut owner = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": name,
        "uid": uid,
    });
    if controller {
        owner["controller"] = json!(true);
        owner["blockOwnerDeletion"] = json!(true);
    }
    owner
}

/// Builds a controller owner reference to an object.
fn controlled_by<K: Resource<DynamicType = ()>>(object: &Value) -> Value {
    owner(&ApiResource::erase::<K>(&()), name(object), text(object, "/metadata/uid"), true)
}

/// Copies each field from `from`, or removes it if `from` does not have it.
fn keep(into: &mut Value, from: &Value, fields: &[&str]) {
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(map) = into.as_object_mut() else {
        return;
    };
    for field in fields {
        match from.get(field) {
            Some(value) => map.insert((*field).to_owned(), value.clone()),
            None => map.remove(*field),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        Template {
            reference: ContractRef {
                api_group: "infrastructure.cluster.x-k8s.io".to_owned(),
                kind: "DockerMachineTemplate".to_owned(),
                name: "edge-1-worker".to_owned(),
            },
            json: json!({
                "metadata": {"name": "edge-1-worker", "labels": {"not": "passed on"}},
                "spec": {"template": {
                    "metadata": {"labels": {"zone": "a", "tier": "template"}},
                    "spec": {"customImage": "x"},
                }},
            }),
        }
    }

    #[test]
    fn an_instance_carries_the_spec_and_where_it_was_cloned_from() {
        let labels = Pairs::from([("tier".to_owned(), "worker".to_owned())]);
        let object = template().instance("default", "m-1", &labels, &Pairs::new());
        assert_eq!(object["spec"], json!({"customImage": "x"}));
        assert_eq!(object["metadata"]["labels"], json!({"zone": "a", "tier": "worker"}));
        assert_eq!(
            object["metadata"]["annotations"],
            json!({
                "cluster.x-k8s.io/cloned-from-name": "edge-1-worker",
                "cluster.x-k8s.io/cloned-from-groupkind":
                    "DockerMachineTemplate.infrastructure.cluster.x-k8s.io",
            })
        );
    }

    #[test]
    fn an_instance_is_a_clone_of_its_own_template_alone() {
        let object = template().instance("default", "m-1", &Pairs::new(), &Pairs::new());
        let annotations = refit_kinds::json::annotations(&object);
        let mut other = template().reference;
        assert!(is_clone_of(&annotations, &other));
        other.name.push('x');
        assert!(!is_clone_of(&annotations, &other));
        assert!(is_clone_of(&Pairs::new(), &other));
    }

    #[test]
    fn the_kind_of_an_instance_is_the_templates_without_its_ending() {
        let made = made_of(&template().reference, "m-1");
        assert_eq!((made.kind.as_str(), made.name.as_str()), ("DockerMachine", "m-1"));
    }

    #[test]
    fn an_empty_template_makes_an_empty_spec() {
        let mut template = template();
        template.json = json!({});
        let object = template.instance("d", "m", &Pairs::new(), &Pairs::new());
        assert_eq!(object["spec"], json!({}));
    }
}
