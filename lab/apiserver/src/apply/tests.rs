//! Server-side apply, rule by rule.

use serde_json::{Value, json};

use super::{ApplyError, ApplyRequest, Conflict, apply, track_update, update_last_applied};
use crate::schema::Schema;

/// A CRD with every kind of list and map.
pub(super) fn schema() -> Schema {
    let text = json!({"type": "string"});
    let item = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": text, "value": text, "other": text},
    });
    Schema::from_open_api(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer"},
            "paused": {"type": "boolean"},
            "labels": {"type": "object", "additionalProperties": text},
            "selector": {"type": "object", "additionalProperties": text,
                "x-kubernetes-map-type": "atomic"},
            "args": {"type": "array", "items": text},
            "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
            "items": {"type": "array", "items": item, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"]},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"},
                    "protocol": {"type": "string", "default": "TCP"},
                    "name": text}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {
            "phase": text,
            "conditions": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type"],
                    "properties": {"type": text, "status": text}}},
        }},
    }}))
    .unwrap()
}

/// A default request that the tests modify.
pub(super) fn request<'a>(
    live: Option<&'a Value>,
    config: &'a Value,
    manager: &'a str,
    schema: &'a Schema,
) -> ApplyRequest<'a> {
    ApplyRequest {
        live,
        config,
        manager,
        force: false,
        subresource: "",
        api_version: "example.com/v1",
        now: at(0),
        schema,
    }
}

pub(super) fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub(super) fn object(spec: &Value) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec,
    })
}

pub(super) fn applied(live: Option<&Value>, manager: &str, spec: &Value) -> Value {
    apply(request(live, &object(spec), manager, &schema())).unwrap()
}

pub(super) fn forced(live: &Value, manager: &str, spec: &Value) -> Value {
    let config = object(spec);
    apply(ApplyRequest { force: true, ..request(Some(live), &config, manager, &schema()) }).unwrap()
}

pub(super) fn refused(live: &Value, manager: &str, spec: &Value) -> ApplyError {
    apply(request(Some(live), &object(spec), manager, &schema())).unwrap_err()
}

pub(super) fn conflicts(live: &Value, manager: &str, spec: &Value) -> Vec<Conflict> {
    match refused(live, manager, spec) {
        ApplyError::Conflicts(conflicts) => conflicts,
        ApplyError::Invalid(message) => panic!("{message}"),
    }
}

/// The object after a plain write by a manager.
pub(super) fn updated(old: Option<&Value>, mut new: Value, manager: &str) -> Value {
    track_update(old, &mut new, manager, "example.com/v1", "", at(5), &schema());
    new
}

pub(super) fn entry<'a>(object: &'a Value, manager: &str, operation: &str) -> Option<&'a Value> {
    let entries = object.pointer("/metadata/managedFields")?.as_array()?;
    entries.iter().find(|entry| entry["manager"] == manager && entry["operation"] == operation)
}

pub(super) fn owned(object: &Value, manager: &str) -> Value {
    entry(object, manager, "Apply").map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

pub(super) fn owned_by_update(object: &Value, manager: &str) -> Value {
    entry(object, manager, "Update").map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

#[test]
fn the_first_apply_creates_the_object_and_owns_its_fields() {
    let object = applied(None, "a", &json!({"replicas": 3}));
    assert_eq!(object["spec"], json!({"replicas": 3}));
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{
            "manager": "a", "operation": "Apply", "apiVersion": "example.com/v1",
            "time": "2027-01-15T08:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }])
    );
}

#[test]
fn an_apply_that_changes_nothing_returns_the_live_object_with_its_times() {
    let live = applied(None, "a", &json!({"replicas": 3, "set": ["x"]}));
    let config = object(&json!({"replicas": 3, "set": ["x"]}));
    let again =
        apply(ApplyRequest { now: at(60), ..request(Some(&live), &config, "a", &schema()) });
    assert_eq!(again.unwrap(), live);
}

#[test]
fn a_changing_apply_moves_the_time_of_its_own_entry_only() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let live = applied(Some(&live), "b", &json!({"paused": true}));
    let config = object(&json!({"replicas": 4}));
    let live = apply(ApplyRequest { now: at(60), ..request(Some(&live), &config, "a", &schema()) });
    let live = live.unwrap();
    assert_eq!(entry(&live, "a", "Apply").unwrap()["time"], "2027-01-15T08:01:00Z");
    assert_eq!(entry(&live, "b", "Apply").unwrap()["time"], "2027-01-15T08:00:00Z");
}

#[test]
fn a_field_that_the_manager_no_longer_applies_is_removed() {
    let live = applied(None, "a", &json!({"replicas": 3, "paused": true}));
    let live = applied(Some(&live), "a", &json!({"paused": true}));
    assert_eq!(live["spec"], json!({"paused": true}));
    assert_eq!(owned(&live, "a"), json!({"f:spec": {"f:paused": {}}}));
}

#[test]
fn an_abandoned_field_that_another_manager_applies_stays() {
    let live = applied(None, "a", &json!({"replicas": 3, "paused": true}));
    let live = applied(Some(&live), "b", &json!({"replicas": 3}));
    let live = applied(Some(&live), "a", &json!({"paused": true}));
    assert_eq!(live["spec"], json!({"replicas": 3, "paused": true}));
    assert_eq!(owned(&live, "b"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn a_field_without_an_owner_survives_an_apply() {
    let mut live = applied(None, "a", &json!({"replicas": 3}));
    live["spec"]["paused"] = json!(false);
    let live = applied(Some(&live), "a", &json!({"replicas": 4}));
    assert_eq!(live["spec"], json!({"replicas": 4, "paused": false}));
}

#[test]
fn a_struct_left_empty_by_an_abandoned_field_is_removed() {
    let live = applied(None, "a", &json!({"labels": {"x": "1"}, "replicas": 1}));
    let live = applied(Some(&live), "a", &json!({"replicas": 1}));
    assert_eq!(live["spec"], json!({"replicas": 1}));
}

#[test]
fn equal_values_are_owned_together() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let live = applied(Some(&live), "b", &json!({"replicas": 3}));
    assert_eq!(owned(&live, "a"), owned(&live, "b"));
}

#[test]
fn another_managers_value_is_a_conflict_that_names_manager_and_field() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let conflicts = conflicts(&live, "b", &json!({"replicas": 4}));
    let message = "conflict with \"a\"".to_owned();
    let expected = Conflict { manager: "a".into(), field: ".spec.replicas".into(), message };
    assert_eq!(conflicts, [expected]);
    let error = refused(&live, "b", &json!({"replicas": 4}));
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas"
    );
}

#[test]
fn several_conflicts_are_listed_by_manager() {
    let live = applied(None, "a", &json!({"replicas": 3, "paused": true}));
    let live = updated(Some(&live), with(&live, "/spec/args", json!(["x"])), "u");
    let error = refused(&live, "b", &json!({"replicas": 4, "paused": false, "args": []}));
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .spec.paused\n- .spec.replicas\n\
         conflicts with \"u\" using example.com/v1:\n- .spec.args"
    );
}

#[test]
fn force_takes_the_field_from_its_owner() {
    let live = applied(None, "a", &json!({"replicas": 3, "paused": true}));
    let live = forced(&live, "b", &json!({"replicas": 4}));
    assert_eq!(live["spec"], json!({"replicas": 4, "paused": true}));
    assert_eq!(owned(&live, "a"), json!({"f:spec": {"f:paused": {}}}));
    assert_eq!(owned(&live, "b"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn a_manager_without_fields_is_removed() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let live = forced(&live, "b", &json!({"replicas": 4}));
    assert!(entry(&live, "a", "Apply").is_none());
}

#[test]
fn the_fields_of_an_update_conflict_with_an_apply() {
    let live = updated(None, object(&json!({"replicas": 3})), "kubectl");
    let conflicts = conflicts(&live, "a", &json!({"replicas": 4}));
    assert_eq!(conflicts[0].message, "conflict with \"kubectl\" using example.com/v1");
    assert_eq!(conflicts[0].field, ".spec.replicas");
}

#[test]
fn identity_and_server_fields_have_no_owner() {
    let config = json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "x", "namespace": "n", "uid": "u", "resourceVersion": "1",
            "generation": 1, "creationTimestamp": null, "labels": {"a": "b"}},
    });
    let live = apply(request(None, &config, "a", &schema())).unwrap();
    assert_eq!(owned(&live, "a"), json!({"f:metadata": {"f:labels": {"f:a": {}}}}));
    let live = updated(None, config, "u");
    let expected = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}});
    assert_eq!(owned_by_update(&live, "u"), expected);
}

#[test]
fn the_servers_metadata_survives_an_apply_that_names_it() {
    let mut live = applied(None, "a", &json!({"replicas": 1}));
    live["metadata"]["resourceVersion"] = json!("7");
    let mut config = object(&json!({"replicas": 2}));
    config["metadata"]["resourceVersion"] = json!("5");
    let live = apply(request(Some(&live), &config, "a", &schema())).unwrap();
    assert_eq!(live["metadata"]["resourceVersion"], "7");
}

#[test]
fn finalizers_are_a_set_and_owners_merge_by_uid() {
    let metadata = |metadata: Value| json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata});
    let config = metadata(json!({"name": "x", "finalizers": ["a/f"],
        "ownerReferences": [{"uid": "1", "name": "o"}]}));
    let live = apply(request(None, &config, "a", &schema())).unwrap();
    let config = metadata(json!({"name": "x", "finalizers": ["b/f"],
        "ownerReferences": [{"uid": "2", "name": "p"}]}));
    let live = apply(request(Some(&live), &config, "b", &schema())).unwrap();
    assert_eq!(live["metadata"]["finalizers"], json!(["a/f", "b/f"]));
    let owners = json!([{"uid": "1", "name": "o"}, {"uid": "2", "name": "p"}]);
    assert_eq!(live["metadata"]["ownerReferences"], owners);
    let config = metadata(json!({"name": "x"}));
    let live = apply(request(Some(&live), &config, "a", &schema())).unwrap();
    assert_eq!(live["metadata"]["finalizers"], json!(["b/f"]));
}

#[test]
fn an_apply_to_status_touches_nothing_else() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let mut config = object(&json!({"replicas": 4}));
    config["metadata"]["labels"] = json!({"x": "y"});
    config["status"] = json!({"phase": "Ready"});
    let schema = schema();
    let to_status =
        ApplyRequest { subresource: "status", ..request(Some(&live), &config, "a", &schema) };
    let live = apply(to_status).unwrap();
    assert_eq!(live["spec"], json!({"replicas": 3}));
    assert_eq!(live["status"], json!({"phase": "Ready"}));
    assert_eq!(live["metadata"].get("labels"), None);
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 2, "an entry per subresource");
    assert_eq!(entries[1]["subresource"], "status");
    assert_eq!(entries[1]["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}

#[test]
fn nulls_of_go_clients_are_not_applied() {
    let live = applied(None, "a", &json!({"replicas": null, "paused": true}));
    assert_eq!(live["spec"], json!({"paused": true}));
}

#[test]
fn a_configuration_with_managed_fields_is_refused() {
    let mut config = object(&json!({}));
    config["metadata"]["managedFields"] = json!([{"manager": "a"}]);
    let error = apply(request(None, &config, "a", &schema())).unwrap_err();
    assert_eq!(error.to_string(), "metadata.managedFields must be nil");
}

#[test]
fn fields_before_the_first_apply_have_a_separate_manager() {
    let live = object(&json!({"replicas": 3, "paused": true}));
    let conflicts = conflicts(&live, "a", &json!({"replicas": 4}));
    assert_eq!(conflicts[0].manager, "before-first-apply");
    let live = applied(Some(&live), "a", &json!({"replicas": 3}));
    assert_eq!(owned(&live, "a"), json!({"f:spec": {"f:replicas": {}}}));
    assert!(entry(&live, "before-first-apply", "Update").is_some());
}

#[test]
fn an_applier_keeps_its_entry_across_versions() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let config = object(&json!({"paused": true}));
    let schema = schema();
    let request = ApplyRequest {
        api_version: "example.com/v2",
        ..request(Some(&live), &config, "a", &schema)
    };
    let live = apply(request).unwrap();
    assert_eq!(live["spec"], json!({"paused": true}));
    assert_eq!(live["metadata"]["managedFields"].as_array().unwrap().len(), 1);
    assert_eq!(live["metadata"]["managedFields"][0]["apiVersion"], "example.com/v2");
}

/// A copy with one value set.
pub(super) fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut object = object.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

#[test]
fn kubectl_takes_over_its_unchanged_client_side_fields() {
    let schema = schema();
    let last = r#"{"spec":{"replicas":1,"paused":true}}"#;
    let note = "kubectl.kubernetes.io/last-applied-configuration";
    let mut live = json!({"apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "a", "annotations": {note: last}},
        "spec": {"replicas": 1, "paused": false}});
    let manager = "kubectl-client-side-apply";
    track_update(None, &mut live, manager, "example.com/v1", "", at(0), &schema);
    let config = |spec: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"},
            "spec": spec})
    };
    let wanted = config(json!({"replicas": 3}));
    let mut merged = apply(request(Some(&live), &wanted, "kubectl", &schema)).unwrap();
    assert_eq!(merged["spec"], json!({"replicas": 3, "paused": false}));
    update_last_applied("kubectl", &wanted, &mut merged);
    let kept = merged["metadata"]["annotations"][note].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(kept).unwrap(), wanted);
    // The field was changed since, or another manager applies: a conflict as usual.
    let wanted = config(json!({"paused": true}));
    assert!(apply(request(Some(&live), &wanted, "kubectl", &schema)).is_err());
    let wanted = config(json!({"replicas": 3}));
    assert!(apply(request(Some(&live), &wanted, "other", &schema)).is_err());
}
