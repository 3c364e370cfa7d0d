//! Accessors for untyped objects over [`serde_json::Value`].
//!
//! Objects of kinds for which Refit has no type (templates, other providers' machines) stay JSON.
//! Missing values read as empty: these functions read and do not validate.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

/// Namespace of objects that do not set one.
const DEFAULT_NAMESPACE: &str = "default";

/// The value at a JSON pointer. Unlike [`Value::pointer`] it allocates only if the pointer has
/// escapes: a simulated fleet is read some thousand times per pass.
pub fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    if pointer.contains('~') {
        return object.pointer(pointer);
    }
    pointer.split('/').skip(1).try_fold(object, |value, key| match value {
        Value::Object(map) => map.get(key),
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// Text at a JSON pointer; empty if absent.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Kind of an object.
pub fn kind(object: &Value) -> &str {
    text(object, "/kind")
}

/// Name of an object.
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Namespace of an object; `default` if it sets none.
pub fn namespace(object: &Value) -> &str {
    match text(object, "/metadata/namespace") {
        "" => DEFAULT_NAMESPACE,
        namespace => namespace,
    }
}

/// Annotations of an object, without values that are not strings.
pub fn annotations(object: &Value) -> BTreeMap<String, String> {
    pairs(object.pointer("/metadata/annotations"))
}

/// Labels of an object, without values that are not strings.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    pairs(object.pointer("/metadata/labels"))
}

/// An annotation of an object.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(key)?.as_str()
}

/// A label of an object.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/labels")?.get(key)?.as_str()
}

/// The string values of a map.
pub fn pairs(value: Option<&Value>) -> BTreeMap<String, String> {
    let map = value.and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Whether the value at a JSON pointer is `true`.
pub fn flag(object: &Value, pointer: &str) -> bool {
    at(object, pointer) == Some(&Value::Bool(true))
}

/// The timestamp at a JSON pointer.
pub fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

/// When an object was created; the Unix epoch if unknown.
pub fn created_at(object: &Value) -> Timestamp {
    time(object, "/metadata/creationTimestamp").unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Whether the object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Kind and name of the controlling owner.
pub fn controller(object: &Value) -> Option<(&str, &str)> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((owner["kind"].as_str()?, owner["name"].as_str()?))
}

/// A condition with all its fields.
pub fn whole_condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_)
}

/// Status of a condition.
pub fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a str> {
    whole_condition(object, type_)?["status"].as_str()
}

/// Whether a condition is `True`.
pub fn is_true(object: &Value, type_: &str) -> bool {
    condition(object, type_) == Some("True")
}
