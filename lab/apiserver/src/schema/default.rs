//! Sets a schema's defaults.

use serde_json::Value;

use super::Node;

/// Sets every missing field that has a default, inside other defaults too.
pub(super) fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, child) in &node.properties {
                if let Some(default) = &child.default {
                    match fields.get_mut(key) {
                        None => {
                            fields.insert(key.clone(), default.clone());
                        }
                        Some(value) if value.is_null() && !child.nullable => {
                            *value = default.clone();
                        }
                        Some(_) => {}
                    }
                }
            }
            for (key, value) in fields.iter_mut() {
                if let Some(child) = node.properties.get(key) {
                    fill(child, value);
                } else if let Some(child) = &node.additional {
                    fill_element(child, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = &node.items {
                for item in items {
                    fill_element(child, item);
                }
            }
        }
        _ => {}
    }
}

fn fill_element(node: &Node, value: &mut Value) {
    if value.is_null()
        && !node.nullable
        && let Some(default) = &node.default
    {
        *value = default.clone();
    }
    fill(node, value);
}

/// Drops nulls from fields that are not nullable and have no default.
///
/// Go clients write `creationTimestamp: null` for an unset field.
pub(crate) fn drop_nulls(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|key, value| {
            let (child, named) = node.child(key);
            if value.is_null() {
                return !named || child.nullable || child.default.is_some();
            }
            drop_nulls(child, value);
            true
        }),
        Value::Array(items) => {
            for item in items {
                drop_nulls(node.item(), item);
            }
        }
        _ => {}
    }
}
