//! Merging of lists and maps.

use serde_json::{Value, json};

use super::tests::{applied, conflicts, object, owned, refused, request};
use super::{ApplyError, ApplyRequest, apply};
use crate::schema::Schema;

#[test]
fn an_item_of_a_list_map_is_merged_by_its_key() {
    let live = applied(None, "a", &json!({"items": [{"name": "x", "value": "1"}]}));
    let live = applied(Some(&live), "b", &json!({"items": [{"name": "x", "other": "2"}]}));
    assert_eq!(live["spec"]["items"], json!([{"name": "x", "value": "1", "other": "2"}]));
    let expected = json!({"f:spec": {"f:items": {
        "k:{\"name\":\"x\"}": {".": {}, "f:name": {}, "f:other": {}},
    }}});
    assert_eq!(owned(&live, "b"), expected);
}

#[test]
fn a_field_of_a_list_map_item_conflicts_by_its_key() {
    let live = applied(None, "a", &json!({"items": [{"name": "x", "value": "1"}]}));
    let conflicts = conflicts(&live, "b", &json!({"items": [{"name": "x", "value": "2"}]}));
    assert_eq!(conflicts[0].field, ".spec.items[name=\"x\"].value");
}

#[test]
fn an_abandoned_item_of_a_list_map_is_removed() {
    let live = applied(None, "a", &json!({"items": [{"name": "x"}, {"name": "y"}]}));
    let live = applied(Some(&live), "a", &json!({"items": [{"name": "y"}]}));
    assert_eq!(live["spec"]["items"], json!([{"name": "y"}]));
}

#[test]
fn an_abandoned_item_that_another_manager_applies_keeps_its_part_and_its_key() {
    let live = applied(None, "a", &json!({"items": [{"name": "x", "value": "1"}]}));
    let live = applied(Some(&live), "b", &json!({"items": [{"name": "x", "other": "2"}]}));
    let live = applied(Some(&live), "a", &json!({"replicas": 1}));
    assert_eq!(live["spec"]["items"], json!([{"name": "x", "other": "2"}]));
}

#[test]
fn items_keep_their_places_between_applies() {
    let live = applied(None, "a", &json!({"items": [{"name": "a"}, {"name": "c"}]}));
    let live = applied(Some(&live), "b", &json!({"items": [{"name": "b"}]}));
    let config = json!({"items": [{"name": "c"}, {"name": "d"}, {"name": "a"}]});
    let live = applied(Some(&live), "a", &config);
    let names: Vec<&Value> =
        live["spec"]["items"].as_array().unwrap().iter().map(|item| &item["name"]).collect();
    assert_eq!(names, ["c", "d", "a", "b"]);
    assert_eq!(applied(Some(&live), "a", &config), live);
}

#[test]
fn a_key_with_a_default_may_be_left_out() {
    let live = applied(None, "a", &json!({"ports": [{"port": 80, "protocol": "TCP"}]}));
    let live = applied(Some(&live), "b", &json!({"ports": [{"port": 80, "name": "http"}]}));
    let expected = json!([{"port": 80, "protocol": "TCP", "name": "http"}]);
    assert_eq!(live["spec"]["ports"], expected);
}

#[test]
fn an_item_without_its_key_is_refused() {
    let live = applied(None, "a", &json!({}));
    let error = refused(&live, "a", &json!({"items": [{"name": "x"}, {"value": "1"}]}));
    assert_eq!(
        error.to_string(),
        ".spec.items: element 1: associative list with keys has an element that omits key field \
         \"name\" (and doesn't have default value)"
    );
}

#[test]
fn a_duplicate_item_is_rejected() {
    let live = applied(None, "a", &json!({}));
    let error = refused(&live, "a", &json!({"items": [{"name": "x"}, {"name": "x"}]}));
    assert_eq!(error.to_string(), ".spec.items: duplicate entries for key [{\"name\":\"x\"}]");
}

#[test]
fn a_set_is_merged_item_by_item() {
    let live = applied(None, "a", &json!({"set": ["x", "y"]}));
    let live = applied(Some(&live), "b", &json!({"set": ["y", "z"]}));
    assert_eq!(live["spec"]["set"], json!(["x", "y", "z"]));
    let live = applied(Some(&live), "a", &json!({"set": ["x"]}));
    assert_eq!(live["spec"]["set"], json!(["x", "y", "z"]));
    let live = applied(Some(&live), "b", &json!({"set": ["z"]}));
    assert_eq!(live["spec"]["set"], json!(["x", "z"]));
}

#[test]
fn an_atomic_list_has_one_owner() {
    let live = applied(None, "a", &json!({"args": ["x"]}));
    assert_eq!(owned(&live, "a"), json!({"f:spec": {"f:args": {}}}));
    assert_eq!(conflicts(&live, "b", &json!({"args": ["x", "y"]}))[0].field, ".spec.args");
}

#[test]
fn an_atomic_map_has_one_owner() {
    let live = applied(None, "a", &json!({"selector": {"x": "1"}}));
    assert_eq!(conflicts(&live, "b", &json!({"selector": {"y": "1"}}))[0].field, ".spec.selector");
    let live = applied(Some(&live), "a", &json!({"selector": {"z": "1"}}));
    assert_eq!(live["spec"]["selector"], json!({"z": "1"}));
}

#[test]
fn a_granular_map_is_merged_key_by_key() {
    let live = applied(None, "a", &json!({"labels": {"x": "1"}}));
    let live = applied(Some(&live), "b", &json!({"labels": {"y": "2"}}));
    assert_eq!(live["spec"]["labels"], json!({"x": "1", "y": "2"}));
    let live = applied(Some(&live), "a", &json!({"labels": {}}));
    assert_eq!(live["spec"]["labels"], json!({"y": "2"}));
}

#[test]
fn undeclared_fields_merge_by_key_and_their_lists_are_atomic() {
    let schema = Schema::schemaless();
    let config = object(&json!({"a": {"x": 1}, "list": [{"name": "n"}]}));
    let live = apply(request(None, &config, "a", &schema)).unwrap();
    let config = object(&json!({"a": {"y": 2}}));
    let live = apply(request(Some(&live), &config, "b", &schema)).unwrap();
    assert_eq!(live["spec"], json!({"a": {"x": 1, "y": 2}, "list": [{"name": "n"}]}));
    let config = object(&json!({"list": [{"name": "n", "v": 1}]}));
    let error = apply(request(Some(&live), &config, "b", &schema)).unwrap_err();
    let ApplyError::Conflicts(conflicts) = error else { panic!("{error}") };
    assert_eq!(conflicts[0].field, ".spec.list");
}

#[test]
fn conditions_of_built_in_kinds_merge_by_type() {
    let schema = Schema::builtin("", "Node");
    let status = |condition: Value| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "status": {"conditions": [condition]}})
    };
    let ready = status(json!({"type": "Ready", "status": "True"}));
    let status_request = |live, config, manager| ApplyRequest {
        subresource: "status",
        api_version: "v1",
        ..request(live, config, manager, &schema)
    };
    let live = apply(status_request(None, &ready, "kubelet")).unwrap();
    let disk = status(json!({"type": "Disk", "status": "False"}));
    let live = apply(status_request(Some(&live), &disk, "other")).unwrap();
    assert_eq!(live["status"]["conditions"].as_array().unwrap().len(), 2);
    let not_ready = status(json!({"type": "Ready", "status": "False"}));
    let error = apply(status_request(Some(&live), &not_ready, "other")).unwrap_err();
    let ApplyError::Conflicts(conflicts) = error else { panic!("{error}") };
    assert_eq!(conflicts[0].field, ".status.conditions[type=\"Ready\"].status");
    assert_eq!(conflicts[0].message, "conflict with \"kubelet\" with subresource \"status\"");
}

#[test]
fn containers_of_a_pod_template_merge_by_name_and_ports_by_number() {
    let schema = Schema::builtin("apps", "Deployment");
    let deployment = |container: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"template": {"spec": {"containers": [container]}}}})
    };
    let first = deployment(json!({"name": "c", "image": "i", "ports": [{"containerPort": 1}]}));
    let live = apply(request(None, &first, "a", &schema)).unwrap();
    let second = deployment(json!({"name": "c", "env": [{"name": "E", "value": "1"}],
        "ports": [{"containerPort": 2}]}));
    let live = apply(request(Some(&live), &second, "b", &schema)).unwrap();
    let container = &live["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "i");
    assert_eq!(container["ports"].as_array().unwrap().len(), 2);
    assert_eq!(container["env"][0]["value"], "1");
}

#[test]
fn a_list_of_ten_thousand_items_merges_in_a_moment() {
    let items: Vec<Value> =
        (0..10_000).map(|n| json!({"name": format!("n{n}"), "value": "x"})).collect();
    let live = applied(None, "a", &json!({"items": items}));
    let live = applied(Some(&live), "b", &json!({"items": [{"name": "n9999", "other": "y"}]}));
    let live = applied(Some(&live), "a", &json!({}));
    assert_eq!(live["spec"]["items"], json!([{"name": "n9999", "other": "y"}]));
}
