//! Sets of field paths.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::SERVER_METADATA;

/// A set of paths as a tree; a node represents the path from the root to it.
///
/// Elements are written as in `fieldsV1`: `f:replicas`, `k:{"name":"x"}`, `v:"x"`. A child is never
/// empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PathSet {
    /// Whether this path itself is a member.
    pub(crate) own: bool,
    pub(crate) children: BTreeMap<String, Self>,
}

impl PathSet {
    /// Whether no path is a member.
    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.children.is_empty()
    }

    /// Inserts a set under an element; an empty set inserts nothing.
    pub(crate) fn graft(&mut self, element: impl Into<String>, set: Self) {
        if !set.is_empty() {
            self.children.entry(element.into()).or_default().merge(set);
        }
    }

    /// Adds every path of another set.
    pub(crate) fn merge(&mut self, other: Self) {
        self.own |= other.own;
        if self.children.is_empty() {
            self.children = other.children;
            return;
        }
        for (element, set) in other.children {
            self.children.entry(element).or_default().merge(set);
        }
    }

    /// Removes every path of another set.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.own &= !other.own;
        for (element, set) in &other.children {
            if let Some(mine) = self.children.get_mut(element) {
                mine.subtract(set);
                if mine.is_empty() {
                    self.children.remove(element);
                }
            }
        }
    }

    /// The paths that are in both sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self { own: self.own && other.own, children: BTreeMap::new() };
        for (element, set) in &self.children {
            if let Some(other) = other.children.get(element) {
                both.graft(element.as_str(), set.intersection(other));
            }
        }
        both
    }

    /// Removes the paths that have no owner: the object's identity and server-written fields.
    pub(crate) fn strip_unowned(&mut self) {
        self.own = false;
        self.children.remove("f:apiVersion");
        self.children.remove("f:kind");
        if let Some(metadata) = self.children.get_mut("f:metadata") {
            metadata.own = false;
            for key in SERVER_METADATA.into_iter().chain(["name", "namespace"]) {
                metadata.children.remove(&format!("f:{key}"));
            }
            if metadata.is_empty() {
                self.children.remove("f:metadata");
            }
        }
    }

    /// All paths in message format: `.spec.items[name="x"].value`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(&mut String::new(), &mut paths);
        paths
    }

    fn collect(&self, path: &mut String, paths: &mut Vec<String>) {
        if self.own {
            paths.push(path.clone());
        }
        for (element, set) in &self.children {
            let length = path.len();
            push_element(path, element);
            set.collect(path, paths);
            path.truncate(length);
        }
    }
}

fn push_element(path: &mut String, element: &str) {
    let (kind, text) = element.split_at_checked(2).unwrap_or(("", element));
    match kind {
        "f:" => {
            path.push('.');
            path.push_str(text);
        }
        "k:" => {
            let keys: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
            path.push('[');
            for (index, (key, value)) in keys.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                write!(path, "{comma}{key}={value}").expect("writing to a String cannot fail");
            }
            path.push(']');
        }
        "v:" => write!(path, "[={text}]").expect("writing to a String cannot fail"),
        _ => write!(path, "[{text}]").expect("writing to a String cannot fail"),
    }
}
