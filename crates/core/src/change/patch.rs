//! The patch that makes one JSON object exactly another.

use serde_json::{Map, Value, json};

use super::path::Path;

/// A patch from one object to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 7386 merge patch. It cannot set a null.
    Merge(Value),
    /// RFC 6902 JSON patch, used if a null must be set. Arrays are replaced as a whole.
    Json(Value),
}

impl Patch {
    /// The patch from `current` to `target`; `None` if they are equal.
    ///
    /// Nulls inside arrays also require a JSON patch: Cluster API's library drops them from merge
    /// patches.
    pub fn between(current: &Value, target: &Value) -> Option<Self> {
        if current == target {
            return None;
        }
        if let Some(patch) = merge(current, target) {
            return Some(Self::Merge(patch));
        }
        let mut operations = Vec::new();
        operate(&Path::default(), current, target, &mut operations);
        Some(Self::Json(Value::Array(operations)))
    }

    /// The patch as JSON.
    pub fn body(&self) -> &Value {
        match self {
            Self::Merge(body) | Self::Json(body) => body,
        }
    }
}

/// A merge patch, or `None` if only a JSON patch can express the change.
fn merge(current: &Value, target: &Value) -> Option<Value> {
    let (Value::Object(a), Value::Object(b)) = (current, target) else {
        return (!sets_null(target)).then(|| target.clone());
    };
    let mut patch = Map::new();
    for key in a.keys().filter(|key| !b.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, wanted) in b {
        match a.get(key) {
            Some(there) if there == wanted => {}
            // A value that replaces a non-object is used unchanged.
            Some(there) => {
                patch.insert(key.clone(), merge(there, wanted)?);
            }
            None if sets_null(wanted) => return None,
            None => {
                patch.insert(key.clone(), wanted.clone());
            }
        }
    }
    Some(Value::Object(patch))
}

fn sets_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(sets_null),
        Value::Object(map) => map.values().any(sets_null),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn operate(at: &Path, current: &Value, target: &Value, operations: &mut Vec<Value>) {
    match (current, target) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().filter(|key| !b.contains_key(*key)) {
                operations.push(json!({"op": "remove", "path": at.key(key).pointer()}));
            }
            for (key, wanted) in b {
                let path = at.key(key);
                match a.get(key) {
                    Some(there) if there == wanted => {}
                    Some(there) => operate(&path, there, wanted, operations),
                    None => operations.push(add(&path, wanted)),
                }
            }
        }
        // `add` also replaces an existing member and, unlike `replace`, does not require one.
        _ => operations.push(add(at, target)),
    }
}

fn add(path: &Path, value: &Value) -> Value {
    json!({"op": "add", "path": path.pointer(), "value": value})
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::change::testing::any_object;

    /// Applies the patch with a third-party implementation.
    fn apply(patch: Option<&Patch>, current: &Value) -> Value {
        let mut value = current.clone();
        match patch {
            None => {}
            Some(Patch::Merge(body)) => json_patch::merge(&mut value, body),
            Some(Patch::Json(body)) => {
                let patch: json_patch::Patch = serde_json::from_value(body.clone()).unwrap();
                json_patch::patch(&mut value, &patch).unwrap();
            }
        }
        value
    }

    #[test]
    fn equal_objects_need_no_patch() {
        assert_eq!(Patch::between(&json!({"a": null}), &json!({"a": null})), None);
    }

    #[test]
    fn a_removed_member_is_a_null_in_a_merge_patch() {
        let patch = Patch::between(&json!({"a": 1, "b": 2}), &json!({"b": 2}));
        assert_eq!(patch, Some(Patch::Merge(json!({"a": null}))));
    }

    #[test]
    fn setting_a_null_requires_a_json_patch() {
        for target in [json!({"a": null}), json!({"a": [null]}), json!({"a": [{"b": null}]})] {
            let patch = Patch::between(&json!({"a": 1}), &target).unwrap();
            assert!(matches!(patch, Patch::Json(_)), "{target}");
            assert_eq!(apply(Some(&patch), &json!({"a": 1})), target);
        }
    }

    #[test]
    fn unchanged_nulls_do_not_matter() {
        let (a, b) = (json!({"n": null, "v": 1}), json!({"n": null, "v": 2}));
        assert_eq!(Patch::between(&a, &b), Some(Patch::Merge(json!({"v": 2}))));
    }

    #[test]
    fn an_emptied_object_stays_an_object() {
        let (a, b) = (json!({"a": {"b": 1}}), json!({"a": {}}));
        let patch = Patch::between(&a, &b);
        assert_eq!(patch, Some(Patch::Merge(json!({"a": {"b": null}}))));
        assert_eq!(apply(patch.as_ref(), &a), b);
    }

    #[test]
    fn empties_of_different_kinds_replace_each_other() {
        let forms =
            [json!({}), json!({"a": {}}), json!({"a": []}), json!({"a": ""}), json!({"a": null})];
        for a in &forms {
            for b in &forms {
                assert_eq!(apply(Patch::between(a, b).as_ref(), a), *b, "{a} -> {b}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

        #[test]
        fn the_patched_object_is_exactly_the_target(a in any_object(), b in any_object()) {
            prop_assert_eq!(apply(Patch::between(&a, &b).as_ref(), &a), b);
        }

        #[test]
        fn nulls_in_a_merge_patch_only_remove_members(a in any_object(), b in any_object()) {
            if let Some(Patch::Merge(body)) = Patch::between(&a, &b) {
                let nulls_in_arrays = |v: &Value| matches!(v, Value::Array(_)) && sets_null(v);
                let mut stack = vec![body];
                while let Some(value) = stack.pop() {
                    prop_assert!(!nulls_in_arrays(&value));
                    if let Value::Object(map) = value {
                        stack.extend(map.into_iter().map(|(_, v)| v));
                    }
                }
            }
        }
    }
}
