//! Removes unknown fields.

use serde_json::{Map, Value};

use super::Node;

/// Prunes a whole object and returns the paths of the removed fields.
pub(super) fn prune(root: &Node, object: &mut Value) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), removed: Vec::new() };
    if let Value::Object(fields) = object {
        pruner.fields(root, fields, true);
    }
    pruner.removed
}

/// The fields of an object that a schema does not describe.
pub(super) fn is_type_or_object_meta(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind" | "metadata")
}

/// Appends a field's name to a path and returns the length to truncate to afterwards.
pub(super) fn push_field(path: &mut String, key: &str) -> usize {
    let length = path.len();
    if length > 0 {
        path.push('.');
    }
    path.push_str(key);
    length
}

/// Appends an index to a path and returns the length to truncate to afterwards.
pub(super) fn push_index(path: &mut String, index: usize) -> usize {
    let length = path.len();
    path.push('[');
    path.push_str(&index.to_string());
    path.push(']');
    length
}

struct Pruner {
    path: String,
    removed: Vec<String>,
}

impl Pruner {
    fn value(&mut self, node: &Node, value: &mut Value) {
        match value {
            Value::Object(fields) => self.fields(node, fields, node.embedded),
            Value::Array(items) => {
                let Some(item_node) = &node.items else { return };
                for (index, item) in items.iter_mut().enumerate() {
                    let length = push_index(&mut self.path, index);
                    self.value(item_node, item);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, node: &Node, fields: &mut Map<String, Value>, whole_object: bool) {
        fields.retain(|key, value| {
            if whole_object && is_type_or_object_meta(key) {
                return true;
            }
            let known = node.properties.get(key).or(node.additional.as_ref());
            let length = push_field(&mut self.path, key);
            match known {
                Some(child) => self.value(child, value),
                None if !node.preserve => self.removed.push(self.path.clone()),
                None => {}
            }
            self.path.truncate(length);
            known.is_some() || node.preserve
        });
    }
}
