use std::sync::Mutex;

use serde_json::json;

use super::*;
use crate::write::WriteOptions;

fn store() -> Mutex<Store> {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut store = Store::new(1, 100, now, "v1.35.0".to_owned());
    let crds = store.registry.stored(CRDS).unwrap().clone();
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": "things"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "description": "A thing.",
                    "properties": {"spec": {"type": "object", "properties": {
                        "replicas": {"type": "integer", "description": "How many."}}}}}},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas"}},
            }],
        },
    });
    store.create(&crds, "", crd, &WriteOptions::default()).map(|_| ()).unwrap();
    Mutex::new(store)
}

fn read(store: &Mutex<Store>, path: &str) -> Value {
    serde_json::from_slice(&document(store, &Cache::default(), path).unwrap()).unwrap()
}

#[test]
fn the_index_names_each_group_version_with_a_hash() {
    let store = store();
    let index = read(&store, "");
    let url = |index: &Value, path: &str| {
        index["paths"][path]["serverRelativeURL"].as_str().unwrap().to_owned()
    };
    let before = url(&index, "apis/example.com/v1alpha1");
    assert!(before.starts_with("/openapi/v3/apis/example.com/v1alpha1?hash="));
    let core = url(&index, "api/v1");
    let mut held = store.lock().unwrap();
    let crds = held.registry.stored(CRDS).unwrap().clone();
    let key: Arc<str> = key_of("", "things.example.com").into();
    let mut crd = held.get(CRDS, &key).unwrap().value();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = json!("Another.");
    held.update(&crds, &key, crd, "", &WriteOptions::default()).map(|_| ()).unwrap();
    drop(held);
    let index = read(&store, "");
    assert_ne!(url(&index, "apis/example.com/v1alpha1"), before);
    assert_eq!(url(&index, "api/v1"), core);
}

#[test]
fn a_custom_kind_is_described_with_what_every_object_has() {
    let document = read(&store(), "apis/example.com/v1alpha1");
    let schemas = &document["components"]["schemas"];
    let thing = &schemas["com.example.v1alpha1.Thing"];
    assert_eq!(thing["description"], "A thing.");
    assert_eq!(
        thing["x-kubernetes-group-version-kind"],
        json!([{"group": "example.com", "version": "v1alpha1", "kind": "Thing"}])
    );
    assert_eq!(thing["properties"]["spec"]["properties"]["replicas"]["type"], "integer");
    let meta = format!("#/components/schemas/{OBJECT_META}");
    assert_eq!(thing["properties"]["metadata"]["allOf"][0]["$ref"], json!(meta));
    assert!(schemas[OBJECT_META]["properties"]["labels"].is_object());
    let path = "/apis/example.com/v1alpha1/namespaces/{namespace}/things/{name}";
    let patch = &document["paths"][path]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Thing");
    let named = |name: &str| {
        let parameters = patch["parameters"].as_array().unwrap();
        parameters.iter().any(|parameter| parameter["name"] == name)
    };
    assert!(named("dryRun") && named("fieldValidation"));
    let bodies = patch["requestBody"]["content"].as_object().unwrap();
    assert!(!bodies.contains_key("application/strategic-merge-patch+json"));
    assert!(document["paths"][format!("{path}/scale")]["put"].is_object());
}

#[test]
fn built_in_kinds_carry_the_rules_of_strategic_patches() {
    let document = read(&store(), "apis/apps/v1");
    let schemas = &document["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert!(schemas["io.k8s.api.core.v1.Node"].is_null(), "another group's kinds stay out");
    let path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
    let bodies = &document["paths"][path]["patch"]["requestBody"]["content"];
    assert!(bodies["application/strategic-merge-patch+json"].is_object());
}

#[test]
fn an_unknown_group_version_has_no_document() {
    assert!(document(&store(), &Cache::default(), "apis/nowhere/v1").is_none());
}

#[test]
fn a_document_is_made_once() {
    let store = store();
    let cache = Cache::default();
    let first = document(&store, &cache, "api/v1").unwrap();
    let second = document(&store, &cache, "api/v1").unwrap();
    assert_eq!(first.as_ptr(), second.as_ptr());
}
