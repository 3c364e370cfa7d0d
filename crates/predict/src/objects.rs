//! Current or desired objects, by kind, namespace and name.

use std::collections::BTreeMap;

use refit_kinds::json::{kind, name, namespace};
use serde_json::{Map, Value};

/// A set of objects. Kinds are identified by name alone: Cluster API's contract has only one kind
/// of each name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    by_key: BTreeMap<(String, String, String), Value>,
}

impl Objects {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces an object.
    pub fn insert(&mut self, object: Value) {
        let key =
            (kind(&object).to_owned(), namespace(&object).to_owned(), name(&object).to_owned());
        self.by_key.insert(key, object);
    }

    /// Returns one object.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.by_key.get(&key)
    }

    /// All objects of a kind, ordered by namespace and name.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        let start = (kind.to_owned(), String::new(), String::new());
        self.by_key
            .range(start..)
            .take_while(move |((found, _, _), _)| found == kind)
            .map(|(_, object)| object)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.by_key.values()
    }
}

impl Extend<Value> for Objects {
    fn extend<T: IntoIterator<Item = Value>>(&mut self, objects: T) {
        for object in objects {
            self.insert(object);
        }
    }
}

impl FromIterator<Value> for Objects {
    fn from_iter<T: IntoIterator<Item = Value>>(objects: T) -> Self {
        let mut all = Self::new();
        all.extend(objects);
        all
    }
}

/// The result of applying `wanted` to `live`: members in `last` but not in `wanted` are removed,
/// members of `wanted` are set, and everything else is kept. Lists are replaced as a whole.
pub fn apply(live: &Value, last: Option<&Value>, wanted: &Value) -> Value {
    let (Value::Object(there), Value::Object(asked)) = (live, wanted) else {
        return wanted.clone();
    };
    let before = last.and_then(Value::as_object);
    let mut result: Map<String, Value> = there
        .iter()
        .filter(|(key, _)| {
            let gone = before.is_some_and(|before| before.contains_key(*key));
            asked.contains_key(*key) || !gone
        })
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    for (key, value) in asked {
        let last = before.and_then(|before| before.get(key));
        let next = match result.get(key) {
            Some(live) => apply(live, last, value),
            None => value.clone(),
        };
        result.insert(key.clone(), next);
    }
    Value::Object(result)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn apply_sets_keeps_and_removes_members() {
        let live = json!({"a": 1, "b": {"x": 1, "server": true}, "list": [1, 2], "gone": 1});
        let last = json!({"a": 0, "gone": 1, "b": {"x": 0, "y": 0}});
        let wanted = json!({"a": 2, "b": {"z": 3}, "list": [3]});
        assert_eq!(
            apply(&live, Some(&last), &wanted),
            json!({"a": 2, "b": {"server": true, "z": 3}, "list": [3]})
        );
        assert_eq!(
            apply(&live, None, &wanted),
            json!({"a": 2, "b": {"x": 1, "server": true, "z": 3}, "list": [3], "gone": 1})
        );
        assert_eq!(apply(&live, None, &live), live);
    }

    #[test]
    fn kinds_with_a_common_prefix_stay_separate() {
        let object = |kind: &str, name: &str| json!({"kind": kind, "metadata": {"name": name}});
        let all: Objects =
            [object("Machine", "b"), object("Machine", "a"), object("MachineSet", "c")]
                .into_iter()
                .collect();
        let names: Vec<&str> = all.of_kind("Machine").map(name).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(all.get("MachineSet", "default", "c").is_some());
        assert_eq!(all.iter().count(), 3);
    }
}
