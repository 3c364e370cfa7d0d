//! Reads and writes the members of an object that the server itself uses.

use serde_json::{Map, Value};

use crate::error::{cause, invalid_value, required};
use crate::schema::Cause;

/// The string at a path of members, or `""`.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    member(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The value at a path of members.
pub(crate) fn member<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// One string of `metadata`.
pub(crate) fn meta_text<'a>(value: &'a Value, key: &str) -> &'a str {
    text(value, &["metadata", key])
}

/// `metadata` as a map, created if it is missing; any other value is replaced.
pub(crate) fn meta_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let map = value.as_object_mut().expect("converted to an object above");
    let meta = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !meta.is_object() {
        *meta = Value::Object(Map::new());
    }
    meta.as_object_mut().expect("converted to an object above")
}

/// Sets one member of `metadata`.
pub(crate) fn set_meta(value: &mut Value, key: &str, to: impl Into<Value>) {
    meta_mut(value).insert(key.to_owned(), to.into());
}

/// `metadata.finalizers`.
pub(crate) fn finalizers(value: &Value) -> Vec<&str> {
    member(value, &["metadata", "finalizers"])
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// Maximum nesting of objects: their managedFields nest a little deeper, and both must stay within
/// the JSON parser's limit.
pub(crate) const MOST_DEPTH: usize = 100;

/// The nesting depth of a value; a scalar has depth 0.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Adds a finalizer unless it is already present.
pub(crate) fn add_finalizer(value: &mut Value, name: &str) {
    if finalizers(value).contains(&name) {
        return;
    }
    let meta = meta_mut(value);
    let list = meta.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.push(Value::from(name));
    }
}

/// Removes a finalizer; returns whether it was present.
pub(crate) fn remove_finalizer(value: &mut Value, name: &str) -> bool {
    let meta = meta_mut(value);
    let Some(list) = meta.get_mut("finalizers").and_then(Value::as_array_mut) else {
        return false;
    };
    let before = list.len();
    list.retain(|item| item.as_str() != Some(name));
    let removed = list.len() != before;
    if list.is_empty() {
        meta.remove("finalizers");
    }
    removed
}

/// Normalises `metadata` as Kubernetes returns it: no nulls, no empty collections.
pub(crate) fn normalise_meta(value: &mut Value) {
    let meta = meta_mut(value);
    meta.remove("selfLink");
    for map in ["labels", "annotations"] {
        if let Some(map) = meta.get_mut(map).and_then(Value::as_object_mut) {
            for item in map.values_mut().filter(|item| item.is_null()) {
                *item = Value::from("");
            }
        }
    }
    meta.retain(|key, item| match item {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => {
            !text.is_empty() || !matches!(key.as_str(), "generateName" | "uid" | "namespace")
        }
        _ => true,
    });
}

/// Rejects metadata with wrong types, as a typed decoder would.
pub(crate) fn check_shape(value: &Value) -> Result<(), String> {
    let Some(map) = value.as_object() else {
        return Err("the request body is not a JSON object".to_owned());
    };
    for key in ["apiVersion", "kind"] {
        if map.get(key).is_some_and(|item| !item.is_string() && !item.is_null()) {
            return Err(format!("cannot decode {key}: it is not a string"));
        }
    }
    let Some(meta) = map.get("metadata") else {
        return Ok(());
    };
    let meta = match meta {
        Value::Null => return Ok(()),
        Value::Object(meta) => meta,
        _ => return Err("cannot decode metadata: it is not an object".to_owned()),
    };
    for (key, item) in meta {
        let fits = match key.as_str() {
            "name" | "namespace" | "generateName" | "uid" | "resourceVersion"
            | "creationTimestamp" | "deletionTimestamp" | "selfLink" => {
                item.is_string() || item.is_null()
            }
            "generation" | "deletionGracePeriodSeconds" => item.is_i64() || item.is_null(),
            "labels" | "annotations" => match item {
                Value::Object(map) => map.values().all(|item| item.is_string() || item.is_null()),
                other => other.is_null(),
            },
            "finalizers" => match item {
                Value::Array(list) => list.iter().all(Value::is_string),
                other => other.is_null(),
            },
            "ownerReferences" => match item {
                Value::Array(list) => list.iter().all(owner_fits),
                other => other.is_null(),
            },
            "managedFields" => item.is_array() || item.is_null(),
            _ => true,
        };
        if !fits {
            return Err(format!("cannot decode metadata.{key}: it has the wrong type"));
        }
    }
    Ok(())
}

fn owner_fits(owner: &Value) -> bool {
    owner.as_object().is_some_and(|owner| {
        owner.iter().all(|(key, item)| match key.as_str() {
            "controller" | "blockOwnerDeletion" => item.is_boolean() || item.is_null(),
            _ => item.is_string(),
        })
    })
}

/// The validation rule for the names of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// RFC 1123 subdomain: most kinds.
    Subdomain,
    /// RFC 1123 label: namespaces.
    Label,
    /// RFC 1035 label: services.
    Service,
    /// Any valid path segment: RBAC.
    PathSegment,
}

const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character \
    (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_TEXT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
    characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  \
    or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SERVICE_TEXT: &str = "a DNS-1035 label must consist of lower case alphanumeric characters \
    or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. \
    'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

fn is_label(text: &str) -> bool {
    let edge = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    edge(text.bytes().next())
        && edge(text.bytes().last())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// The validation error of a name, if there is one.
pub(crate) fn check_name(rule: NameRule, name: &str) -> Option<Cause> {
    let field = "metadata.name";
    let (fits, limit, why) = match rule {
        NameRule::Subdomain => (is_subdomain(name), 253, SUBDOMAIN_TEXT),
        NameRule::Label => (is_label(name), 63, LABEL_TEXT),
        NameRule::Service => {
            let letter = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
            (is_label(name) && letter, 63, SERVICE_TEXT)
        }
        NameRule::PathSegment => {
            let fits =
                !name.is_empty() && !matches!(name, "." | "..") && !name.contains(['/', '%']);
            (fits, 253, "may not contain '/' or '%', or be '.' or '..'")
        }
    };
    if name.len() > limit {
        return Some(invalid_value(field, name, &format!("must be no more than {limit} bytes")));
    }
    (!fits).then(|| invalid_value(field, name, why))
}

fn is_qualified(key: &str) -> bool {
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            if prefix.len() > 253 || !is_subdomain(prefix) {
                return false;
            }
            name
        }
        None => key,
    };
    name.len() <= 63 && is_label_word(name) && !name.is_empty()
}

fn is_label_word(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    edge(text.bytes().next())
        && edge(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

const QUALIFIED_TEXT: &str = "name part must consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  \
    or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_TEXT: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
    'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Maximum total size of an object's annotations, in bytes.
const ANNOTATION_LIMIT: usize = 256 * 1024;

/// Validation errors of labels, annotations, finalizers and owner references.
pub(crate) fn check_meta(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let empty = Map::new();
    let meta = value.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    for (key, item) in meta.get("labels").and_then(Value::as_object).unwrap_or(&empty) {
        if !is_qualified(key) {
            causes.push(invalid_value("metadata.labels", key, QUALIFIED_TEXT));
        }
        let item = item.as_str().unwrap_or_default();
        if item.len() > 63 {
            causes.push(invalid_value("metadata.labels", item, "must be no more than 63 bytes"));
        } else if !is_label_word(item) {
            causes.push(invalid_value("metadata.labels", item, VALUE_TEXT));
        }
    }
    let mut bytes = 0;
    for (key, item) in meta.get("annotations").and_then(Value::as_object).unwrap_or(&empty) {
        if !is_qualified(&key.to_ascii_lowercase()) {
            causes.push(invalid_value("metadata.annotations", key, QUALIFIED_TEXT));
        }
        bytes += key.len() + item.as_str().map_or(0, str::len);
    }
    if bytes > ANNOTATION_LIMIT {
        let message = format!("Too long: may not be more than {ANNOTATION_LIMIT} bytes");
        causes.push(cause("FieldValueTooLong", "metadata.annotations", message));
    }
    for name in finalizers(value) {
        if !is_qualified(name) {
            causes.push(invalid_value("metadata.finalizers", name, QUALIFIED_TEXT));
        }
    }
    causes.extend(check_owners(meta));
    causes
}

fn check_owners(meta: &Map<String, Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut controllers = 0;
    let owners = meta.get("ownerReferences").and_then(Value::as_array);
    for (index, owner) in owners.into_iter().flatten().enumerate() {
        for key in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &[key]).is_empty() {
                let field = format!("metadata.ownerReferences[{index}].{key}");
                causes.push(required(field, "must not be empty"));
            }
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            controllers += 1;
        }
    }
    if controllers > 1 {
        causes.push(cause(
            "FieldValueInvalid",
            "metadata.ownerReferences",
            "Invalid value: Only one reference can have Controller set to true",
        ));
    }
    causes
}

/// Whether two states of one object are equal except for `resourceVersion` and the times of
/// managedFields: such a write changes nothing.
pub(crate) fn unchanged(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else {
        return old == new;
    };
    same_members(old, new, |key, old, new| match key {
        "metadata" => match (old.as_object(), new.as_object()) {
            (Some(old), Some(new)) => same_members(old, new, |key, old, new| match key {
                "resourceVersion" => true,
                "managedFields" => same_managers(old, new),
                _ => old == new,
            }),
            _ => old == new,
        },
        _ => old == new,
    })
}

fn same_members(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    same: impl Fn(&str, &Value, &Value) -> bool,
) -> bool {
    let null = Value::Null;
    old.iter().all(|(key, item)| same(key, item, new.get(key).unwrap_or(&null)))
        && new.iter().all(|(key, item)| old.contains_key(key) || same(key, &null, item))
}

fn same_managers(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_array(), new.as_array()) else {
        return old == new;
    };
    old.len() == new.len()
        && old.iter().zip(new).all(|(old, new)| match (old.as_object(), new.as_object()) {
            (Some(old), Some(new)) => {
                same_members(old, new, |key, old, new| key == "time" || old == new)
            }
            _ => old == new,
        })
}

/// Whether anything except `apiVersion`, `kind`, `metadata` and the named members differs.
pub(crate) fn content_differs(old: &Value, new: &Value, except: &[&str]) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else {
        return old != new;
    };
    let skip =
        |key: &str| matches!(key, "apiVersion" | "kind" | "metadata") || except.contains(&key);
    !same_members(old, new, |key, old, new| skip(key) || old == new)
}
