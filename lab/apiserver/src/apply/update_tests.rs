//! Ownership through creates, updates and patches.

use serde_json::{Value, json};

use super::tests::{
    applied, at, entry, forced, object, owned, owned_by_update, schema, updated, with,
};
use super::track_update;

#[test]
fn a_create_owns_every_field_and_container() {
    let live = updated(None, object(&json!({"items": [{"name": "x"}], "args": ["a"]})), "u");
    let expected = json!({"f:spec": {".": {}, "f:args": {}, "f:items": {".": {},
        "k:{\"name\":\"x\"}": {".": {}, "f:name": {}}}}});
    assert_eq!(owned_by_update(&live, "u"), expected);
}

#[test]
fn an_update_takes_ownership_of_changed_fields() {
    let live = applied(None, "a", &json!({"replicas": 3, "paused": true}));
    let new = updated(Some(&live), with(&live, "/spec/replicas", json!(4)), "u");
    assert_eq!(owned_by_update(&new, "u"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owned(&new, "a"), json!({"f:spec": {"f:paused": {}}}));
    assert_eq!(entry(&new, "u", "Update").unwrap()["time"], "2027-01-15T08:00:05Z");
}

#[test]
fn a_removed_field_leaves_every_entry() {
    let live = applied(None, "a", &json!({"replicas": 3, "paused": true}));
    let live = applied(Some(&live), "b", &json!({"replicas": 3}));
    let mut new = live.clone();
    new["spec"].as_object_mut().unwrap().remove("replicas");
    let new = updated(Some(&live), new, "u");
    assert_eq!(owned(&new, "a"), json!({"f:spec": {"f:paused": {}}}));
    assert_eq!(owned(&new, "b"), Value::Null);
    assert_eq!(owned_by_update(&new, "u"), Value::Null);
}

#[test]
fn an_update_that_changes_nothing_leaves_the_entries_alone() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    assert_eq!(updated(Some(&live), live.clone(), "u"), live);
    let mut without = live.clone();
    without["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!(updated(Some(&live), without, "u"), live, "entries that are not sent along stay");
}

#[test]
fn entries_are_cleared_by_an_empty_one() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let new = updated(Some(&live), with(&live, "/metadata/managedFields", json!([{}])), "u");
    assert_eq!(new["metadata"].get("managedFields"), None);
}

#[test]
fn an_update_of_status_owns_status_alone() {
    let live = applied(None, "a", &json!({"replicas": 3}));
    let mut new = live.clone();
    new["status"] = json!({"phase": "Ready"});
    new["metadata"]["labels"] = json!({"x": "y"});
    track_update(Some(&live), &mut new, "u", "example.com/v1", "status", at(1), &schema());
    let entry = entry(&new, "u", "Update").unwrap();
    assert_eq!(entry["fieldsV1"], json!({"f:status": {".": {}, "f:phase": {}}}));
    assert_eq!(entry["subresource"], "status");
}

#[test]
fn a_second_update_adds_to_the_same_entry() {
    let live = updated(None, object(&json!({"replicas": 3})), "u");
    let live = updated(Some(&live), with(&live, "/spec/paused", json!(true)), "u");
    assert_eq!(live["metadata"]["managedFields"].as_array().unwrap().len(), 1);
    let expected = json!({"f:spec": {".": {}, "f:paused": {}, "f:replicas": {}}});
    assert_eq!(owned_by_update(&live, "u"), expected);
}

#[test]
fn the_oldest_updates_are_folded_into_one_entry() {
    let mut live = updated(None, object(&json!({})), "first");
    for number in 0..20 {
        let mut new = live.clone();
        let key = format!("k{number}");
        new["spec"]["labels"][&key] = json!("v");
        let now = at(number);
        let manager = format!("m{number}");
        track_update(Some(&live), &mut new, &manager, "example.com/v1", "", now, &schema());
        live = new;
    }
    assert_eq!(live["metadata"]["managedFields"].as_array().unwrap().len(), 10);
    let ancient = owned_by_update(&live, "ancient-changes");
    assert!(ancient["f:spec"]["f:labels"].get("f:k0").is_some(), "{ancient}");
    assert!(entry(&live, "m19", "Update").is_some());
}

#[test]
fn a_force_over_an_update_leaves_the_updater_the_rest() {
    let live = updated(None, object(&json!({"replicas": 3, "paused": true})), "u");
    let live = forced(&live, "a", &json!({"replicas": 4}));
    assert_eq!(owned_by_update(&live, "u"), json!({"f:spec": {".": {}, "f:paused": {}}}));
}

#[test]
fn a_value_that_changes_its_type_changes_its_owner() {
    let live = updated(None, object(&json!({"free": {"a": {"b": 1}}})), "u");
    let live = updated(Some(&live), with(&live, "/spec/free/a", json!("text")), "v");
    assert_eq!(owned_by_update(&live, "v"), json!({"f:spec": {"f:free": {"f:a": {}}}}));
    assert_eq!(owned_by_update(&live, "u"), json!({"f:spec": {".": {}, "f:free": {}}}));
}

#[test]
fn three_thousand_creates_of_four_kib_are_tracked_in_a_moment() {
    let labels: Value = (0..60)
        .map(|n| (format!("label-{n:02}"), Value::from("x".repeat(48))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let object = object(&json!({"labels": labels, "items": [{"name": "x", "value": "1"}]}));
    let schema = schema();
    for _ in 0..3000 {
        let mut new = object.clone();
        track_update(None, &mut new, "u", "example.com/v1", "", at(0), &schema);
    }
}
