//! Which paths of two JSON values differ.

use std::collections::BTreeSet;

use serde_json::Value;

use super::path::Path;

/// One differing path, as specific as possible.
#[derive(Clone, Debug, PartialEq)]
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

/// Every path at which the two values differ, in order. Absent, null, `{}` and `[]` are all
/// different. The list ends after one path more than [`MAX_CHANGES`].
///
/// Objects are compared member by member, arrays of equal length element by element; arrays of
/// different lengths differ as a whole.
pub fn changes(at: &Path, from: Option<&Value>, to: Option<&Value>) -> Vec<Change> {
    let mut found = Vec::new();
    walk(at, from, to, &mut found);
    found
}

fn walk(at: &Path, from: Option<&Value>, to: Option<&Value>, found: &mut Vec<Change>) {
    if found.len() > MAX_CHANGES {
        return;
    }
    match (from, to) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                walk(&at.key(key), a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                walk(&at.index(index), Some(a), Some(b), found);
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
