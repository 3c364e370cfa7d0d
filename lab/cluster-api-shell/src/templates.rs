//! Cloning templates: what an infrastructure machine or bootstrap config is made of.

use std::collections::BTreeMap;

use kube::{Api, api::DynamicObject, discovery::ApiResource};
use refit_cluster_api::kinds::ContractRef;
use refit_kinds::keys;
use refit_runtime::apply::is_not_found;
use serde_json::{Map, Value, json};

use crate::{context::Context, contract, error::Error};

/// Labels or annotations.
pub(crate) type Pairs = BTreeMap<String, String>;

/// A template as it is stored, with the reference that led to it.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// What refers to it.
    pub(crate) reference: ContractRef,
    /// The whole object, with apiVersion and kind.
    pub(crate) json: Value,
}

/// Reads a template.
pub(crate) async fn fetch(
    context: &Context,
    namespace: &str,
    reference: &ContractRef,
) -> Result<Template, Error> {
    let resource: ApiResource = contract::resolve(context, reference).await?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &resource);
    let object = api.get(&reference.name).await.map_err(|error| {
        let name = format!("{namespace}/{}", reference.name);
        if is_not_found(&error) {
            Error::Missing { kind: reference.kind.clone(), name }
        } else {
            Error::api(format!("read {} {name}", reference.kind))(error)
        }
    })?;
    let data = serde_json::to_value(&object);
    let mut json = data.map_err(|error| Error::Invalid(error.to_string()))?;
    json["apiVersion"] = json!(resource.api_version);
    json["kind"] = json!(resource.kind);
    Ok(Template { reference: reference.clone(), json })
}

/// The kind of what is made of a template: `XMachine` of `XMachineTemplate`.
pub(crate) fn made_of(template: &ContractRef, name: &str) -> ContractRef {
    let kind = template.kind.strip_suffix("Template");
    ContractRef {
        api_group: template.api_group.clone(),
        kind: kind.unwrap_or(&template.kind).to_owned(),
        name: name.to_owned(),
    }
}

/// The annotations that say which template an object was made of.
pub(crate) fn cloned_from(template: &ContractRef) -> Pairs {
    Pairs::from([
        (keys::CLONED_FROM_NAME.to_owned(), template.name.clone()),
        (keys::CLONED_FROM_GROUPKIND.to_owned(), group_kind(template)),
    ])
}

/// `Kind.group`, as Cluster API writes it.
pub(crate) fn group_kind(reference: &ContractRef) -> String {
    format!("{}.{}", reference.kind, reference.api_group)
}

impl Template {
    /// The full intent for an object made of this template: the template's labels and annotations,
    /// then the given ones, then where it was cloned from.
    pub(crate) fn instance(
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

/// Reads a JSON map of texts; anything else in it is left out.
pub(crate) fn pairs(value: Option<&Value>) -> Pairs {
    let map = value.and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    map.into_iter().flatten().filter_map(text).collect()
}

/// An owner reference as JSON.
pub(crate) fn owner(resource: &ApiResource, name: &str, uid: &str, controller: bool) -> Value {
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
