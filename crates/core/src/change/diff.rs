//! Which paths of two JSON values differ.

use std::collections::BTreeSet;

use serde_json::Value;

use super::path::{Path, Segment};

/// One differing path, as specific as possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path.
    pub path: Path,
    /// Current value; `None` if absent, which differs from null.
    pub from: Option<Value>,
    /// Desired value.
    pub to: Option<Value>,
}

/// More differing paths than this are not listed: it bounds the time and the size of a response to a
/// hook.
pub const MAX_CHANGES: usize = 2_000;
/// An object with a longer key, in bytes, differs as a whole: each listed path repeats its keys. Keys of
/// labels and annotations are at most 317 bytes long.
const MAX_KEY: usize = 317;

/// Every path at which the two values differ, in order. Absent, null, `{}` and `[]` are all
/// different. The list ends after one path more than [`MAX_CHANGES`].
///
/// Objects are compared member by member, arrays of equal length element by element; arrays of
/// different lengths differ as a whole.
pub fn changes(at: &Path, from: Option<&Value>, to: Option<&Value>) -> Vec<Change> {
    let mut found = Vec::new();
    walk(&mut at.clone(), from, to, &mut found);
    found
}

fn walk(at: &mut Path, from: Option<&Value>, to: Option<&Value>, found: &mut Vec<Change>) {
    if found.len() > MAX_CHANGES {
        return;
    }
    match (from, to) {
        (Some(Value::Object(a)), Some(Value::Object(b)))
            if a.keys().chain(b.keys()).all(|key| key.len() <= MAX_KEY) =>
        {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let further = |at: &mut Path| walk(at, a.get(key), b.get(key), found);
                at.step(Segment::Key(key.clone()), further);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                at.step(Segment::Index(index), |at| walk(at, Some(a), Some(b), found));
            }
        }
        _ if from == to => {}
        _ => found.push(Change { path: at.clone(), from: from.cloned(), to: to.cloned() }),
    }
}

impl Change {
    /// Sets the desired value at this path.
    pub fn apply(&self, value: &mut Value) {
        self.path.put(value, self.to.clone());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::change::testing::any_json;

    fn paths(from: &Value, to: &Value) -> Vec<String> {
        changes(&Path::default(), Some(from), Some(to)).iter().map(|c| c.path.to_string()).collect()
    }

    #[test]
    fn equal_values_have_no_changes() {
        let value = json!({"a": [1, {"b": null}], "c": {}});
        assert!(paths(&value, &value).is_empty());
    }

    #[test]
    fn absent_null_empty_object_and_empty_array_differ() {
        let forms = [json!({}), json!({"a": null}), json!({"a": {}}), json!({"a": []})];
        for (i, a) in forms.iter().enumerate() {
            for (j, b) in forms.iter().enumerate() {
                assert_eq!(paths(a, b).len(), usize::from(i != j), "{a} {b}");
            }
        }
    }

    #[test]
    fn whole_numbers_and_floats_differ() {
        assert_eq!(paths(&json!({"a": 1}), &json!({"a": 1.0})), ["a"]);
    }

    #[test]
    fn arrays_of_equal_length_are_compared_by_element() {
        let from = json!({"a": [{"x": 1}, 2]});
        assert_eq!(paths(&from, &json!({"a": [{"x": 3}, 2]})), ["a[0].x"]);
        assert_eq!(paths(&from, &json!({"a": [2]})), ["a"]);
    }

    #[test]
    fn an_object_with_an_overlong_key_differs_as_a_whole() {
        let long = "k".repeat(MAX_KEY + 1);
        let value = |inner: i32| json!({"a": {&long: [inner, inner]}});
        assert_eq!(paths(&value(1), &value(2)), ["a"]);
        assert!(paths(&value(1), &value(1)).is_empty());
    }

    #[test]
    fn the_list_ends_after_one_path_too_many() {
        let values = |value: i32| json!(vec![value; 3 * MAX_CHANGES]);
        assert_eq!(paths(&values(1), &values(2)).len(), MAX_CHANGES + 1);
    }

    proptest! {
        #[test]
        fn applying_every_change_gives_the_other_value(a in any_json(), b in any_json()) {
            let mut value = a.clone();
            for change in changes(&Path::default(), Some(&a), Some(&b)) {
                change.apply(&mut value);
            }
            prop_assert_eq!(value, b);
        }
    }
}
