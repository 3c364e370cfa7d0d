//! Schemas of the built-in kinds, as Kubernetes publishes them, built on first use.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use k8s_openapi::Resource as KubeResource;
use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, coordination::v1 as coordination,
    core::v1 as core, events::v1 as events, networking::v1 as networking, policy::v1 as policy,
    rbac::v1 as rbac, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::schemars::generate::SchemaSettings;
use k8s_openapi::schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use crate::resources::Resource;
use crate::strategic_keys;

/// Name of the schema of `metadata`.
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
/// Name of the schema of a list's `metadata`.
pub(super) const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// Name of the schema of a scale.
pub(super) const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
/// Prefix of a reference to a schema.
const REFERENCE: &str = "#/components/schemas/";

/// Prefix of the names of CRD types.
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";
/// CRD types that accept any JSON type.
const ANYTHING: [&str; 4] =
    ["JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray"];

/// All schemas, by name.
pub(crate) struct Schemas {
    by_name: BTreeMap<String, Value>,
    /// Schema name of each group, version and kind.
    names: BTreeMap<Kind, String>,
}

/// Group, version and kind.
type Kind = [Cow<'static, str>; 3];

struct Maker {
    generator: SchemaGenerator,
    names: BTreeMap<Kind, String>,
}

impl Maker {
    fn kind<T: JsonSchema + KubeResource>(&mut self) {
        self.generator.subschema_for::<T>();
        let name = T::schema_name().into_owned();
        let kind = [T::GROUP, T::VERSION, T::KIND].map(Cow::Borrowed);
        self.names.insert(kind, name);
    }
}

macro_rules! kinds {
    ($maker:ident: $($kind:ty),* $(,)?) => { $($maker.kind::<$kind>();)* };
}

impl Schemas {
    /// The schemas of the built-in kinds.
    pub(crate) fn get() -> &'static Self {
        static SCHEMAS: OnceLock<Schemas> = OnceLock::new();
        SCHEMAS.get_or_init(Self::make)
    }

    fn make() -> Self {
        let mut maker = Maker {
            generator: SchemaSettings::openapi3().into_generator(),
            names: BTreeMap::new(),
        };
        kinds!(maker:
            core::ConfigMap, core::Endpoints, core::LimitRange, core::PersistentVolume, core::PodTemplate,
            core::ReplicationController, core::ResourceQuota, core::Event, core::Namespace, core::Node, core::PersistentVolumeClaim,
            core::Pod, core::Secret, core::Service, core::ServiceAccount,
            admission::ValidatingAdmissionPolicy, admission::ValidatingAdmissionPolicyBinding,
            extensions::CustomResourceDefinition, apps::DaemonSet, apps::Deployment,
            apps::ReplicaSet, apps::StatefulSet, coordination::Lease, events::Event,
            networking::NetworkPolicy, policy::PodDisruptionBudget, rbac::ClusterRole,
            rbac::ClusterRoleBinding, rbac::Role, rbac::RoleBinding, storage::VolumeAttachment,
            k8s_openapi::api::autoscaling::v1::Scale,
        );
        maker.generator.subschema_for::<meta::ListMeta>();
        let definitions = maker.generator.take_definitions(true);
        let mut by_name: BTreeMap<String, Value> = definitions.into_iter().collect();
        for ([group, version, kind], name) in &maker.names {
            if let Some(schema) = by_name.get_mut(name) {
                schema["x-kubernetes-group-version-kind"] =
                    json!([{"group": group, "version": version, "kind": kind}]);
            }
        }
        for name in ANYTHING {
            let name = format!("{EXTENSIONS}.{name}");
            if let Some(schema) = by_name.get_mut(&name).and_then(Value::as_object_mut) {
                schema.remove("type");
            }
        }
        for (of, field, _, rule) in strategic_keys::FIELDS {
            let end = format!(".{of}");
            for (_, schema) in by_name.iter_mut().filter(|(name, _)| name.ends_with(&end)) {
                let Some(field) = schema["properties"].get_mut(*field) else {
                    continue;
                };
                if let Some(strategy) = rule.strategy() {
                    field["x-kubernetes-patch-strategy"] = json!(strategy);
                }
                if let Some(key) = rule.key() {
                    field["x-kubernetes-patch-merge-key"] = json!(key);
                }
            }
        }
        Self { by_name, names: maker.names }
    }

    /// A schema by its name.
    pub(super) fn named(&self, name: &str) -> Option<&Value> {
        self.by_name.get(name)
    }

    /// Schema name of a built-in kind.
    pub(super) fn name_of(&self, resource: &Resource) -> Option<&str> {
        let key = [&resource.group, &resource.version, &resource.kind];
        let key = key.map(|word| Cow::Owned(word.to_string()));
        self.names.get(&key).map(String::as_str)
    }

    /// The schema of a built-in kind.
    pub(super) fn of(&self, resource: &Resource) -> Option<&Value> {
        self.named(self.name_of(resource)?)
    }

    /// Follows a schema's reference, if it is one.
    pub(super) fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = referred(schema).or_else(|| referred(schema["allOf"].get(0)?));
        target.and_then(|name| self.named(name)).unwrap_or(schema)
    }

    /// The named schemas and all schemas that they refer to.
    pub(super) fn closure(&self, names: &BTreeSet<String>) -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        let mut open: Vec<String> = names.iter().cloned().collect();
        while let Some(name) = open.pop() {
            if found.contains_key(&name) {
                continue;
            }
            let Some(schema) = self.named(&name) else {
                continue;
            };
            references(schema, &mut open);
            found.insert(name, schema.clone());
        }
        found
    }
}

/// Name of the schema that a reference points to.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(REFERENCE)
}

/// A reference to a schema.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("{REFERENCE}{name}")})
}

fn references(schema: &Value, into: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(name) = referred(schema) {
                into.push(name.to_owned());
            }
            for value in map.values() {
                references(value, into);
            }
        }
        Value::Array(list) => {
            for value in list {
                references(value, into);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Registry;

    #[test]
    fn every_built_in_kind_has_a_schema_with_its_kind() {
        let schemas = Schemas::get();
        for resource in Registry::builtin().all() {
            let schema = schemas.of(resource).unwrap_or_else(|| panic!("{resource:?}"));
            let kind = &schema["x-kubernetes-group-version-kind"][0]["kind"];
            assert_eq!(kind, &*resource.kind);
            assert!(schema["properties"]["metadata"].is_object(), "{resource:?}");
        }
    }

    #[test]
    fn every_merge_rule_names_a_field_that_exists() {
        let schemas = Schemas::get();
        for (of, field, child, _) in strategic_keys::FIELDS {
            let end = format!(".{of}");
            let found = schemas.by_name.iter().find(|(name, schema)| {
                name.ends_with(&end) && schema["properties"][*field].is_object()
            });
            let (_, schema) = found.unwrap_or_else(|| panic!("{of}.{field}"));
            if child.is_empty() {
                continue;
            }
            let field = &schema["properties"][*field];
            let item = if field["type"] == "array" { &field["items"] } else { field };
            let mut names = Vec::new();
            references(item, &mut names);
            assert!(names[0].ends_with(&format!(".{child}")), "{of} leads to {names:?}");
        }
    }

    #[test]
    fn a_value_of_any_type_has_no_type_in_its_schema() {
        for name in ANYTHING {
            let schema = Schemas::get().named(&format!("{EXTENSIONS}.{name}"));
            assert!(schema.is_some_and(|schema| schema.get("type").is_none()), "{name}");
        }
    }

    #[test]
    fn every_reference_resolves() {
        let schemas = Schemas::get();
        for (name, schema) in &schemas.by_name {
            let mut names = Vec::new();
            references(schema, &mut names);
            for target in names {
                assert!(schemas.named(&target).is_some(), "{name} refers to {target}");
            }
        }
    }
}
