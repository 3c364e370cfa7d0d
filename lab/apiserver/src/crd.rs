//! CustomResourceDefinitions: defaults, validation, status, and registration of their resources.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{cause, invalid_value, required};
use crate::history::ChangeKind;
use crate::object::{NameRule, add_finalizer, member, meta_text, text};
use crate::resources::{Registry, Resource, resource_id};
use crate::scale::ScalePaths;
use crate::schema::{Cause, Schema};
use crate::store::{Entry, Store, name_of, time_text};
use crate::table::Column;

pub(crate) const CRDS: &str = "customresourcedefinitions.apiextensions.k8s.io";
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

fn versions(crd: &Value) -> &[Value] {
    member(crd, &["spec", "versions"]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets the defaults of a CRD as Kubernetes does.
pub(crate) fn default(crd: &mut Value) {
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        names.entry("singular").or_insert_with(|| json!(kind.to_ascii_lowercase()));
        names.entry("listKind").or_insert_with(|| json!(format!("{kind}List")));
    }
    if meta_text(crd, "deletionTimestamp").is_empty() {
        add_finalizer(crd, CLEANUP);
    }
}

/// Validation errors of a CRD.
pub(crate) fn validate(crd: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let group = text(crd, &["spec", "group"]);
    let plural = text(crd, &["spec", "names", "plural"]);
    for path in
        [["spec", "group"].as_slice(), &["spec", "names", "plural"], &["spec", "names", "kind"]]
    {
        if text(crd, path).is_empty() {
            causes.push(required(path.join("."), ""));
        }
    }
    if meta_text(crd, "name") != format!("{plural}.{group}") {
        let name = meta_text(crd, "name");
        causes.push(invalid_value(
            "metadata.name",
            name,
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    let scope = text(crd, &["spec", "scope"]);
    if !matches!(scope, "Namespaced" | "Cluster") {
        let message =
            format!("Unsupported value: {scope:?}: supported values: \"Cluster\", \"Namespaced\"");
        causes.push(cause("FieldValueNotSupported", "spec.scope", message));
    }
    if let Some(old) = old {
        for path in [["spec", "names", "kind"].as_slice(), &["spec", "scope"]] {
            if text(old, path) != text(crd, path) {
                let value = text(crd, path);
                causes.push(invalid_value(path.join("."), value, "field is immutable"));
            }
        }
    }
    if member(crd, &["spec", "preserveUnknownFields"]) == Some(&Value::Bool(true)) {
        causes.push(cause(
            "FieldValueInvalid",
            "spec.preserveUnknownFields",
            "Invalid value: true: must be set to false, use x-kubernetes-preserve-unknown-fields \
             in the schema",
        ));
    }
    let stored = versions(crd).iter().filter(|version| version["storage"] == true).count();
    if stored != 1 {
        causes.push(cause(
            "FieldValueInvalid",
            "spec.versions",
            "Invalid value: must have exactly one version marked as storage version",
        ));
    }
    for (index, version) in versions(crd).iter().enumerate() {
        causes.extend(validate_version(version, &format!("spec.versions[{index}]")));
        let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
        match member(version, &["schema", "openAPIV3Schema"]) {
            None => causes.push(required(field, "schemas are required")),
            Some(schema) => {
                if let Err(error) = Schema::from_open_api(schema) {
                    causes.push(cause(
                        "FieldValueInvalid",
                        field,
                        format!("Invalid value: {error}"),
                    ));
                }
            }
        }
    }
    causes
}

/// Validation errors of a version's printer columns and scale.
fn validate_version(version: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, column) in columns(version).iter().enumerate() {
        if let Err(why) = Column::read(column) {
            let path = text(column, &["jsonPath"]);
            let field = format!("{field}.additionalPrinterColumns[{index}].jsonPath");
            causes.push(invalid_value(field, path, &format!("the path {why}")));
        }
    }
    if let Some(scale) = member(version, &["subresources", "scale"])
        && ScalePaths::read(scale).is_none()
    {
        let why = "specReplicasPath and statusReplicasPath must be paths of names under .spec and \
                   .status";
        let field = format!("{field}.subresources.scale");
        causes.push(invalid_value(field, &scale.to_string(), why));
    }
    causes
}

fn columns(version: &Value) -> &[Value] {
    member(version, &["additionalPrinterColumns"])
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The table columns of a version; without any, the age.
fn table_columns(version: &Value) -> Arc<[Column]> {
    let declared: Vec<Column> =
        columns(version).iter().filter_map(|column| Column::read(column).ok()).collect();
    if declared.is_empty() {
        return Arc::from([Column::age()]);
    }
    declared.into()
}

/// Writes the status of an established CRD; existing conditions are kept.
pub(crate) fn establish(crd: &mut Value, now: jiff::Timestamp) {
    let names = crd["spec"]["names"].clone();
    let storage = versions(crd)
        .iter()
        .find(|version| version["storage"] == true)
        .map(|version| version["name"].clone());
    let status = &mut crd["status"];
    if !status.is_object() {
        *status = json!({});
    }
    status["acceptedNames"] = names;
    let mut stored = status["storedVersions"].as_array().cloned().unwrap_or_default();
    if let Some(storage) = storage.filter(|storage| !stored.contains(storage)) {
        stored.push(storage);
    }
    status["storedVersions"] = Value::Array(stored);
    if !status["conditions"].is_array() {
        let at = time_text(now);
        status["conditions"] = json!([
            {
                "type": "NamesAccepted",
                "status": "True",
                "reason": "NoConflicts",
                "message": "no conflicts found",
                "lastTransitionTime": at,
            },
            {
                "type": "Established",
                "status": "True",
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
                "lastTransitionTime": at,
            },
        ]);
    }
}

fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

fn resource_of(crd: &Value, version: &Value, storage_version: &str) -> Option<Resource> {
    let group = text(crd, &["spec", "group"]);
    let plural = text(crd, &["spec", "names", "plural"]);
    let schema = Schema::from_open_api(member(version, &["schema", "openAPIV3Schema"])?).ok()?;
    let fields = version.get("selectableFields").and_then(Value::as_array);
    Some(Resource {
        id: resource_id(group, plural),
        group: group.into(),
        version: version["name"].as_str()?.into(),
        storage_version: storage_version.into(),
        kind: text(crd, &["spec", "names", "kind"]).into(),
        list_kind: text(crd, &["spec", "names", "listKind"]).into(),
        plural: plural.into(),
        singular: text(crd, &["spec", "names", "singular"]).into(),
        short_names: strings(member(crd, &["spec", "names", "shortNames"])),
        categories: strings(member(crd, &["spec", "names", "categories"])),
        namespaced: text(crd, &["spec", "scope"]) == "Namespaced",
        has_status: member(version, &["subresources", "status"]).is_some(),
        custom: true,
        has_generation: true,
        unconditional_update: false,
        name_rule: NameRule::Subdomain,
        schema,
        fields: fields
            .into_iter()
            .flatten()
            .filter_map(|field| field["jsonPath"].as_str())
            .map(|path| path.trim_start_matches('.').to_owned())
            .collect(),
        columns: table_columns(version),
        scale: member(version, &["subresources", "scale"]).and_then(ScalePaths::read),
    })
}

/// Serves the versions of a CRD.
pub(crate) fn add_to(registry: &mut Registry, crd: &Value) {
    let id = meta_text(crd, "name");
    registry.remove(id);
    let storage = versions(crd).iter().find(|version| version["storage"] == true);
    let storage = storage.and_then(|version| version["name"].as_str()).unwrap_or_default();
    for version in versions(crd) {
        let Some(resource) = resource_of(crd, version, storage) else {
            continue;
        };
        if version["served"] == true {
            registry.insert(Arc::new(resource));
        } else if version["storage"] == true {
            registry.insert_unserved(Arc::new(resource));
        }
    }
}

/// Updates the registry after a committed write of a CRD.
pub(crate) fn register(
    store: &mut Store,
    key: &str,
    kind: ChangeKind,
    crd: &Value,
    old: Option<&Entry>,
) {
    if kind == ChangeKind::Deleted {
        Arc::make_mut(&mut store.registry).remove(name_of(key));
        store.tables.remove(name_of(key));
        return;
    }
    // Building schemas is expensive, and most writes do not change the spec.
    if old.is_some_and(|old| old.value().get("spec") == crd.get("spec")) {
        return;
    }
    add_to(Arc::make_mut(&mut store.registry), crd);
}
