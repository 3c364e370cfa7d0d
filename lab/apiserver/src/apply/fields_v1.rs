//! `fieldsV1`: a set of paths as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::path_set::PathSet;

/// Encodes a set: an own path without children is `{}`, one with children has the member `"."`.
pub(crate) fn encode(set: &PathSet) -> Value {
    let mut fields = Map::new();
    for (element, child) in &set.children {
        let mut value = encode(child);
        if child.own
            && !child.children.is_empty()
            && let Value::Object(fields) = &mut value
        {
            fields.insert(".".to_owned(), Value::Object(Map::new()));
        }
        fields.insert(element.clone(), value);
    }
    Value::Object(fields)
}

/// Decodes a set; `None` if it is not `fieldsV1`.
pub(crate) fn decode(value: &Value) -> Option<PathSet> {
    let mut set = decode_children(value)?;
    set.own = false;
    Some(set)
}

fn decode_children(value: &Value) -> Option<PathSet> {
    let fields = value.as_object()?;
    let mut set = PathSet { own: fields.is_empty(), children: BTreeMap::new() };
    for (element, value) in fields {
        if element == "." {
            set.own = true;
            continue;
        }
        set.children.insert(canonical(element)?, decode_children(value)?);
    }
    Some(set)
}

/// An element in canonical form: keys sorted, no spaces.
fn canonical(element: &str) -> Option<String> {
    let (kind, text) = element.split_at_checked(2)?;
    match kind {
        "f:" | "i:" => Some(element.to_owned()),
        "k:" => {
            let keys: BTreeMap<String, Value> = serde_json::from_str(text).ok()?;
            Some(format!("k:{}", serde_json::to_string(&keys).ok()?))
        }
        "v:" => Some(format!("v:{}", serde_json::from_str::<Value>(text).ok()?)),
        _ => None,
    }
}
