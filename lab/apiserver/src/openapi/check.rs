//! Checks objects of built-in kinds as a typed decoder would: unknown fields and values of the
//! wrong type.

use serde_json::Value;

use super::builtin::Schemas;
use crate::resources::Resource;

/// The errors in an object of a built-in kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Paths of fields that the kind does not have.
    pub(crate) unknown: Vec<String>,
    /// The first value of the wrong type.
    pub(crate) mistyped: Option<String>,
}

/// Checks an object of a built-in kind and, with `remove`, removes unknown fields.
pub(crate) fn check(resource: &Resource, object: &mut Value, remove: bool) -> Findings {
    let schemas = Schemas::get();
    let mut findings = Findings::default();
    if let Some(schema) = schemas.of(resource) {
        let mut walk = Walk { schemas, findings: &mut findings, remove };
        walk.value(schema, object, "");
    }
    findings
}

struct Walk<'a> {
    schemas: &'a Schemas,
    findings: &'a mut Findings,
    remove: bool,
}

impl Walk<'_> {
    fn value(&mut self, schema: &Value, value: &mut Value, path: &str) {
        let schema = self.schemas.resolve(schema);
        if value.is_null() || schema["x-kubernetes-int-or-string"] == true {
            return;
        }
        if let Some(wanted) = mismatch(schema, value) {
            if self.findings.mistyped.is_none() {
                self.findings.mistyped = Some(format!(
                    "json: cannot unmarshal {} into Go struct field {} of type {wanted}",
                    type_name(value),
                    path.trim_start_matches('.'),
                ));
            }
            return;
        }
        match value {
            Value::Object(map) => {
                let properties = schema["properties"].as_object();
                let rest = &schema["additionalProperties"];
                let mut unknown = Vec::new();
                for (key, item) in map.iter_mut() {
                    let path = format!("{path}.{key}");
                    if let Some(schema) = properties.and_then(|known| known.get(key)) {
                        self.value(schema, item, &path);
                    } else if rest.is_object() {
                        self.value(rest, item, &path);
                    } else if properties.is_some() {
                        unknown.push(key.clone());
                        self.findings.unknown.push(path.trim_start_matches('.').to_owned());
                    }
                }
                if self.remove {
                    map.retain(|key, _| !unknown.contains(key));
                }
            }
            Value::Array(list) if schema["items"].is_object() => {
                for (index, item) in list.iter_mut().enumerate() {
                    self.value(&schema["items"], item, &format!("{path}[{index}]"));
                }
            }
            _ => {}
        }
    }
}

/// The type that a schema requires, if the value has another.
fn mismatch<'a>(schema: &'a Value, value: &Value) -> Option<&'a str> {
    let wanted = schema["type"].as_str()?;
    let fits = match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        // Only quantities may be written as numbers.
        "string" => value.is_string() || (value.is_number() && is_quantity(schema)),
        _ => true,
    };
    (!fits).then_some(wanted)
}

fn is_quantity(schema: &Value) -> bool {
    let text = schema["description"].as_str().unwrap_or_default();
    text.starts_with("Quantity is a fixed-point representation")
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::Registry;

    fn findings(group: &str, plural: &str, object: &Value, remove: bool) -> (Findings, Value) {
        let registry = Registry::builtin();
        let resource = registry.find(group, "v1", plural).unwrap();
        let mut object = object.clone();
        let findings = check(resource, &mut object, remove);
        (findings, object)
    }

    #[test]
    fn unknown_fields_are_named_and_taken_out() {
        let object = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "a", "labels": {"any": "thing"}, "lables": {}},
            "spec": {"replica": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {
                "containers": [{"name": "a", "imagee": "x",
                    "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"port": "http"}}}],
            }}},
        });
        let (found, object) = findings("apps", "deployments", &object, true);
        assert_eq!(
            found.unknown,
            ["metadata.lables", "spec.replica", "spec.template.spec.containers[0].imagee"]
        );
        assert_eq!(found.mistyped, None);
        assert_eq!(object["metadata"]["lables"], Value::Null);
        assert_eq!(object["metadata"]["labels"]["any"], "thing");
        assert_eq!(object["spec"]["replica"], Value::Null);
    }

    #[test]
    fn a_value_of_another_type_is_found() {
        let object = json!({"spec": {"replicas": "three"}});
        let (found, _) = findings("apps", "deployments", &object, false);
        assert_eq!(
            found.mistyped.as_deref(),
            Some(
                "json: cannot unmarshal string into Go struct field spec.replicas of type integer"
            )
        );
        let (found, _) = findings("", "configmaps", &json!({"data": {"a": 1}}), false);
        assert!(found.mistyped.unwrap().contains("data.a of type string"));
    }

    #[test]
    fn open_places_take_everything() {
        let crd = json!({"spec": {"group": "a.b", "versions": [{"name": "v1",
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields":
                true, "properties": {"a": {"type": "string", "default": "x"},
                "b": {"type": "integer", "default": 1, "enum": [1], "items": [{}]}}}}}]}});
        let (found, _) = findings("apiextensions.k8s.io", "customresourcedefinitions", &crd, false);
        assert_eq!(found, Findings::default());
        let role = json!({"metadata": {"managedFields": [{"fieldsV1": {"f:rules": {}}}]},
            "rules": [{"apiGroups": [""], "verbs": ["get"]}]});
        let (found, _) = findings("rbac.authorization.k8s.io", "roles", &role, false);
        assert_eq!(found, Findings::default());
    }
}
