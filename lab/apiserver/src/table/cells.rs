//! Helpers shared by several printers.

use jiff::Timestamp;
use serde_json::Value;

use super::age::age;
use crate::object::{member, text};

/// The text for an empty value.
pub(super) const NONE: &str = "<none>";
/// The text for an unset value.
pub(super) const UNSET: &str = "<unset>";

/// The age of an object.
pub(super) fn age_of(object: &Value, now: Timestamp) -> Value {
    Value::from(age(&object["metadata"]["creationTimestamp"], now))
}

/// A string at a path, `<none>` if it is empty.
pub(super) fn text_or_placeholder(object: &Value, path: &[&str]) -> Value {
    Value::from(match text(object, path) {
        "" => NONE,
        text => text,
    })
}

/// A string at a path.
pub(super) fn words(object: &Value, path: &[&str]) -> Value {
    Value::from(text(object, path))
}

/// An integer at a path, 0 if it is missing.
pub(super) fn number(object: &Value, path: &[&str]) -> i64 {
    member(object, path).and_then(Value::as_i64).unwrap_or(0)
}

/// The list at a path.
pub(super) fn list<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    member(object, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// How many members a map or list at a path has.
pub(super) fn size(object: &Value, path: &[&str]) -> usize {
    match member(object, path) {
        Some(Value::Object(map)) => map.len(),
        Some(Value::Array(list)) => list.len(),
        _ => 0,
    }
}

/// The condition of a type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, &["status", "conditions"]).iter().find(|condition| condition["type"] == kind)
}

/// A scalar as text: strings without quotes.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: &Value) -> String {
    let Some(map) = map.as_object().filter(|map| !map.is_empty()) else {
        return NONE.to_owned();
    };
    let pairs: Vec<String> =
        map.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
    pairs.join(",")
}

/// A label selector object in query format.
pub(super) fn selector(selector: &Value) -> String {
    let mut parts: Vec<String> = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", plain(value)))
        .collect();
    for rule in list(selector, &["matchExpressions"]) {
        let key = text(rule, &["key"]);
        let values: Vec<String> = list(rule, &["values"]).iter().map(plain).collect();
        let values = values.join(",");
        parts.push(match text(rule, &["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    if parts.is_empty() {
        return NONE.to_owned();
    }
    parts.join(",")
}

/// Names and images of the containers in a pod template.
pub(super) fn containers(template: &Value) -> [Value; 2] {
    let containers = list(template, &["spec", "containers"]);
    let join = |key: &str| {
        let all: Vec<&str> = containers.iter().map(|item| text(item, &[key])).collect();
        Value::from(all.join(","))
    };
    [join("name"), join("image")]
}
