//! Differences between two states of an object, as sets of paths.

use std::collections::BTreeMap;

use serde_json::Value;

use super::merge::{View, all_fields, field_element, view};
use super::path_set::PathSet;
use crate::schema::{Node, list_element};

/// The paths that only one of two objects has, and those whose values differ.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) added: PathSet,
    pub(crate) modified: PathSet,
    pub(crate) removed: PathSet,
}

impl Changes {
    fn graft(&mut self, element: &str, below: Self) {
        self.added.graft(element, below.added);
        self.modified.graft(element, below.modified);
        self.removed.graft(element, below.removed);
    }
}

/// Compares two states of a whole object; added and removed containers count as paths too.
pub(crate) fn diff(old: Option<&Value>, new: &Value, node: &Node) -> Changes {
    let mut changes = Changes::default();
    compare(old, Some(new), node, &mut changes);
    changes
}

fn compare(old: Option<&Value>, new: Option<&Value>, node: &Node, changes: &mut Changes) {
    match (old, new) {
        (None, None) => {}
        (None, Some(new)) => changes.added.merge(all_fields(new, node)),
        (Some(old), None) => changes.removed.merge(all_fields(old, node)),
        (Some(old), Some(new)) => match (view(old, node), view(new, node)) {
            (View::Map(old), View::Map(new)) => {
                for (key, old) in old {
                    let (child, _) = node.child(key);
                    descend(&field_element(key), Some(old), new.get(key), child, changes);
                }
                for (key, value) in new {
                    if !old.contains_key(key) {
                        let (child, _) = node.child(key);
                        descend(&field_element(key), None, Some(value), child, changes);
                    }
                }
            }
            (View::List(old), View::List(new)) => {
                let (old, new) = (by_element(old, node), by_element(new, node));
                for (element, value) in &old {
                    let other = new.get(element).copied();
                    descend(element, Some(value), other, node.item(), changes);
                }
                for (element, value) in &new {
                    if !old.contains_key(element) {
                        descend(element, None, Some(value), node.item(), changes);
                    }
                }
            }
            (View::Leaf, View::Leaf) => changes.modified.own |= old != new,
            _ => replaced(old, new, node, changes),
        },
    }
}

fn descend(
    element: &str,
    old: Option<&Value>,
    new: Option<&Value>,
    node: &Node,
    changes: &mut Changes,
) {
    let mut below = Changes::default();
    compare(old, new, node, &mut below);
    changes.graft(element, below);
}

/// A value of another type at the same path: the path changed, and everything below it was removed
/// and added.
fn replaced(old: &Value, new: &Value, node: &Node, changes: &mut Changes) {
    changes.modified.own = true;
    let below = |value| PathSet { own: false, ..all_fields(value, node) };
    changes.removed.merge(below(old));
    changes.added.merge(below(new));
}

/// A list's items by identity; of duplicates the first counts.
fn by_element<'a>(items: &'a [Value], node: &Node) -> BTreeMap<String, &'a Value> {
    let mut map = BTreeMap::new();
    for item in items {
        if let Some(element) = list_element(node, item) {
            map.entry(element).or_insert(item);
        }
    }
    map
}
