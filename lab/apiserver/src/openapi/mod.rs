//! OpenAPI v3: one document per group version, which kubectl uses for `explain`, for patches, and
//! before a dry run. Documents are built on request and cached until a CRD changes.

mod builtin;
mod check;
mod paths;
mod v2;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::crd::CRDS;
use crate::object::member;
use crate::resources::Resource;
use crate::store::{Entry, Store, hash, key_of};
use crate::write::to_bytes;
use builtin::{LIST_META, OBJECT_META, SCALE, Schemas, reference};

pub(crate) use check::check;
pub(crate) use v2::{V2_PROTOBUF_NAME, document as document_v2};

/// Cached documents, each with its hash.
#[derive(Default)]
pub(crate) struct Cache(Mutex<BTreeMap<String, (String, Bytes)>>);

/// The inputs of one group version's document, read under the store's lock.
struct Part {
    resources: Vec<Arc<Resource>>,
    /// The CRDs of its custom resources, by name.
    crds: BTreeMap<Arc<str>, Arc<Entry>>,
}

impl Part {
    /// A hash that changes whenever the document would.
    fn hash(&self, git_version: &str) -> String {
        let mut words = vec![env!("CARGO_PKG_VERSION").to_owned(), git_version.to_owned()];
        for (name, entry) in &self.crds {
            words.push(format!("{name}/{}/{}", entry.uid, entry.revision));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        format!("{:016X}", hash(0, &words))
    }
}

/// The path of a group version below `/openapi/v3/`.
fn path_of(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    }
}

fn parts(store: &Store) -> BTreeMap<String, Part> {
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for resource in store.registry.all() {
        let part = parts
            .entry(path_of(resource))
            .or_insert_with(|| Part { resources: Vec::new(), crds: BTreeMap::new() });
        if resource.custom
            && let Some(crd) = store.get(CRDS, &key_of("", &resource.id))
        {
            part.crds.insert(resource.id.clone(), crd);
        }
        part.resources.push(resource.clone());
    }
    parts
}

/// The document at a path below `/openapi/v3`; an empty path returns the index.
pub(crate) fn document(store: &Mutex<Store>, cache: &Cache, path: &str) -> Option<Bytes> {
    let (mut parts, git_version) = {
        let store = store.lock().unwrap_or_else(PoisonError::into_inner);
        (parts(&store), store.git_version.clone())
    };
    if path.is_empty() {
        let paths: Map<String, Value> = parts
            .iter()
            .map(|(path, part)| {
                let url = format!("/openapi/v3/{path}?hash={}", part.hash(&git_version));
                (path.clone(), json!({"serverRelativeURL": url}))
            })
            .collect();
        return Some(to_bytes(&json!({"paths": paths})));
    }
    let part = parts.remove(path)?;
    let hash = part.hash(&git_version);
    let kept = cache.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, bytes)) = kept.get(path).filter(|(known, _)| *known == hash) {
        return Some(bytes.clone());
    }
    drop(kept);
    let bytes = to_bytes(&make(&part, &git_version));
    let mut kept = cache.0.lock().unwrap_or_else(PoisonError::into_inner);
    kept.insert(path.to_owned(), (hash, bytes.clone()));
    Some(bytes)
}

fn make(part: &Part, git_version: &str) -> Value {
    let builtin = Schemas::get();
    let mut wanted = BTreeSet::from([LIST_META.to_owned(), OBJECT_META.to_owned()]);
    let mut schemas = BTreeMap::new();
    let mut paths = Map::new();
    for resource in &part.resources {
        let name = if resource.custom {
            let name = custom_name(resource);
            let crd = part.crds.get(&resource.id).map(|entry| entry.value());
            let schema = crd.as_ref().and_then(|crd| custom_schema(resource, crd));
            schemas.insert(name.clone(), schema.unwrap_or_else(|| json!({"type": "object"})));
            name
        } else {
            let Some(name) = builtin.name_of(resource) else {
                continue;
            };
            wanted.insert(name.to_owned());
            name.to_owned()
        };
        schemas.insert(format!("{name}List"), list_schema(resource, &name));
        if resource.scale.is_some() {
            wanted.insert(SCALE.to_owned());
        }
        paths::add(resource, &name, &mut paths);
    }
    for (name, schema) in builtin.closure(&wanted) {
        schemas.insert(name, schema);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": git_version},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// `dev.refit.v1alpha1.NodeUpdate`, as Kubernetes names the schemas of custom kinds.
fn custom_name(resource: &Resource) -> String {
    let mut words: Vec<&str> = resource.group.split('.').rev().collect();
    words.push(&resource.version);
    words.push(&resource.kind);
    words.join(".")
}

fn described(reference: &Value, help: &str) -> Value {
    json!({"description": help, "allOf": [reference], "default": {}})
}

const API_VERSION_HELP: &str = "APIVersion defines the versioned schema of this representation of \
    an object. Servers should convert recognized schemas to the latest internal value, and may \
    reject unrecognized values.";
const KIND_HELP: &str = "Kind is a string value representing the REST resource this object \
    represents. Servers may infer this from the endpoint the client submits requests to. Cannot be \
    updated. In CamelCase.";
const METADATA_HELP: &str = "Standard object's metadata.";

fn own_kind(resource: &Resource, kind: &str) -> Value {
    json!([{"group": &*resource.group, "version": &*resource.version, "kind": kind}])
}

fn add_type_fields(properties: &mut Map<String, Value>) {
    properties.insert(
        "apiVersion".to_owned(),
        json!({"type": "string", "description": API_VERSION_HELP}),
    );
    properties.insert("kind".to_owned(), json!({"type": "string", "description": KIND_HELP}));
}

/// The schema of a custom kind: the CRD's schema plus the fields of every object.
fn custom_schema(resource: &Resource, crd: &Value) -> Option<Value> {
    let versions = member(crd, &["spec", "versions"])?.as_array()?;
    let version = versions.iter().find(|version| version["name"] == *resource.version)?;
    let mut schema = member(version, &["schema", "openAPIV3Schema"])?.clone();
    schema["x-kubernetes-group-version-kind"] = own_kind(resource, &resource.kind);
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    let properties = schema["properties"].as_object_mut()?;
    add_type_fields(properties);
    properties.insert("metadata".to_owned(), described(&reference(OBJECT_META), METADATA_HELP));
    Some(schema)
}

fn list_schema(resource: &Resource, item: &str) -> Value {
    let mut schema = json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {
                "description": format!("List of {}.", resource.plural),
                "type": "array",
                "items": described(&reference(item), ""),
            },
            "metadata": described(&reference(LIST_META), "Standard list metadata."),
        },
        "x-kubernetes-group-version-kind": own_kind(resource, &resource.list_kind),
    });
    if let Some(properties) = schema["properties"].as_object_mut() {
        add_type_fields(properties);
    }
    schema
}
