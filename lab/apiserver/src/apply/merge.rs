//! Merges a configuration into an object, and removes fields that are no longer applied.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::ApplyError;
use super::path_set::PathSet;
use crate::schema::{ListType, Node, list_element};

/// How a value is owned: as a whole, or part by part.
pub(crate) enum View<'a> {
    Leaf,
    Map(&'a Map<String, Value>),
    List(&'a [Value]),
}

/// How a value is owned according to its schema node.
pub(crate) fn view<'a>(value: &'a Value, node: &Node) -> View<'a> {
    match value {
        Value::Object(fields) if !node.atomic => View::Map(fields),
        Value::Array(items) if node.list != ListType::Atomic => View::List(items),
        _ => View::Leaf,
    }
}

/// A field's name as a path element.
pub(crate) fn field_element(key: &str) -> String {
    let mut element = String::with_capacity(key.len() + 2);
    element.push_str("f:");
    element.push_str(key);
    element
}

/// The paths that an applied configuration owns.
///
/// Leaves, list items, map keys, and empty containers; not the structs above them.
pub(crate) fn applied_fields(value: &Value, node: &Node) -> PathSet {
    fields_of(value, node, false)
}

/// All paths of a value, including containers and the value itself.
pub(crate) fn all_fields(value: &Value, node: &Node) -> PathSet {
    fields_of(value, node, true)
}

fn fields_of(value: &Value, node: &Node, all: bool) -> PathSet {
    let mut set = PathSet { own: all, children: BTreeMap::new() };
    match view(value, node) {
        View::Leaf => set.own = true,
        View::Map(fields) => {
            for (key, value) in fields {
                let (child, named) = node.child(key);
                let mut below = fields_of(value, child, all);
                below.own |= !named || is_empty(value);
                set.children.insert(field_element(key), below);
            }
            // A struct whose fields own nothing is omitted.
            set.children.retain(|_, below| !below.is_empty());
        }
        View::List(items) => {
            for item in items {
                if let Some(element) = list_element(node, item) {
                    let below = PathSet { own: true, ..fields_of(item, node.item(), all) };
                    set.graft(element, below);
                }
            }
        }
    }
    set
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Merges a configuration into a live object.
pub(crate) fn merge(live: &mut Value, config: &Value, node: &Node) -> Result<(), ApplyError> {
    merge_value(live, config, node, &mut String::new())
}

fn merge_value(
    live: &mut Value,
    config: &Value,
    node: &Node,
    path: &mut String,
) -> Result<(), ApplyError> {
    match view(config, node) {
        View::Leaf => *live = config.clone(),
        View::Map(fields) => {
            if !live.is_object() {
                *live = Value::Object(Map::new());
            }
            let Value::Object(live) = live else {
                return Ok(());
            };
            for (key, value) in fields {
                let (child, _) = node.child(key);
                let length = path.len();
                path.push('.');
                path.push_str(key);
                merge_value(live.entry(key).or_insert(Value::Null), value, child, path)?;
                path.truncate(length);
            }
        }
        View::List(items) => merge_list(live, items, node, path)?,
    }
    Ok(())
}

/// Merges a set or a list with keys: items are in the configuration's order, and other live items
/// keep their positions between them.
fn merge_list(
    live: &mut Value,
    items: &[Value],
    node: &Node,
    path: &mut String,
) -> Result<(), ApplyError> {
    let wanted = elements(items, node, path)?;
    let live_items = match live.take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let is_wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let live_elements: Vec<Option<String>> =
        live_items.iter().map(|item| list_element(node, item)).collect();
    let mut known: BTreeMap<&str, Value> = BTreeMap::new();
    let mut rest = Vec::with_capacity(live_items.len());
    for (item, element) in live_items.into_iter().zip(&live_elements) {
        match element.as_deref().filter(|element| is_wanted.contains(element)) {
            Some(element) => {
                known.entry(element).or_insert(item);
                rest.push((Some(element), Value::Null));
            }
            None => rest.push((None, item)),
        }
    }

    let mut merged = Vec::with_capacity(rest.len() + items.len());
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    let mut rest = rest.into_iter().peekable();
    for (item, element) in items.iter().zip(&wanted) {
        // Live items that this configuration does not apply, up to the next one to be placed.
        while let Some((placed_before, item)) =
            rest.next_if(|(element, _)| element.is_none_or(|element| placed.contains(element)))
        {
            if placed_before.is_none() {
                merged.push(item);
            }
        }
        let length = path.len();
        path.push('[');
        path.push_str(&element[2..]);
        path.push(']');
        let mut value = known.remove(element.as_str()).unwrap_or(Value::Null);
        merge_value(&mut value, item, node.item(), path)?;
        path.truncate(length);
        merged.push(value);
        placed.insert(element);
    }
    merged.extend(rest.filter(|(element, _)| element.is_none()).map(|(_, item)| item));
    *live = Value::Array(merged);
    Ok(())
}

/// The unique identities of a configuration's items.
fn elements(items: &[Value], node: &Node, path: &str) -> Result<Vec<String>, ApplyError> {
    let mut seen = BTreeSet::new();
    let mut elements = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let Some(element) = list_element(node, item) else {
            return Err(ApplyError::Invalid(missing_key(item, node, path, index)));
        };
        if !seen.insert(element.clone()) {
            let identity = &element[2..];
            let message = format!("{path}: duplicate entries for key [{identity}]");
            return Err(ApplyError::Invalid(message));
        }
        elements.push(element);
    }
    Ok(elements)
}

fn missing_key(item: &Value, node: &Node, path: &str, index: usize) -> String {
    let key = match &node.list {
        ListType::Map(keys) => keys.iter().find(|key| {
            let default = node.item().properties.get(*key).and_then(|key| key.default.as_ref());
            item.get(*key).is_none() && default.is_none()
        }),
        _ => None,
    };
    let key = key.map_or("", String::as_str);
    format!(
        "{path}: element {index}: associative list with keys has an element that omits key field \
         {key:?} (and doesn't have default value)"
    )
}

/// Removes the fields in `last` that have no owner any more.
///
/// `managed` holds all fields owned now. Fields that never had an owner (defaults) stay, unless
/// their item or map key is removed.
pub(crate) fn remove_abandoned(object: &mut Value, node: &Node, last: &PathSet, managed: &PathSet) {
    remove(object, node, last, managed, &[]);
}

/// Removes such fields; returns whether the value is a container that is now empty.
fn remove(
    value: &mut Value,
    node: &Node,
    last: &PathSet,
    managed: &PathSet,
    keys: &[String],
) -> bool {
    match value {
        Value::Object(fields) if !node.atomic => {
            remove_fields(fields, node, last, managed, keys);
            fields.is_empty()
        }
        Value::Array(items) if node.list != ListType::Atomic => {
            remove_items(items, node, last, managed);
            items.is_empty()
        }
        _ => false,
    }
}

fn remove_fields(
    fields: &mut Map<String, Value>,
    node: &Node,
    last: &PathSet,
    managed: &PathSet,
    keys: &[String],
) {
    let unmanaged = PathSet::default();
    for (element, last) in &last.children {
        let Some(key) = element.strip_prefix("f:") else {
            continue;
        };
        if keys.iter().any(|identity| identity == key) {
            continue;
        }
        let Some(value) = fields.get_mut(key) else {
            continue;
        };
        let managed = managed.children.get(element);
        let gone = if managed.is_none() && last.own {
            true
        } else {
            let (child, _) = node.child(key);
            let managed = managed.unwrap_or(&unmanaged);
            let empty_before = is_empty(value);
            remove(value, child, last, managed, &[]) && !empty_before && !managed.own
        };
        if gone {
            fields.remove(key);
        }
    }
}

fn remove_items(items: &mut Vec<Value>, node: &Node, last: &PathSet, managed: &PathSet) {
    let unmanaged = PathSet::default();
    let keys = match &node.list {
        ListType::Map(keys) => keys.as_slice(),
        _ => &[],
    };
    items.retain_mut(|item| {
        let Some(element) = list_element(node, item) else {
            return true;
        };
        let Some(last) = last.children.get(&element) else {
            return true;
        };
        let managed = managed.children.get(&element).unwrap_or(&unmanaged);
        if last.own && !managed.own {
            return false;
        }
        remove(item, node.item(), last, managed, keys);
        true
    });
}
