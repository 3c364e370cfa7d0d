//! Fields of objects: find them, set them, and compute the merge patch.

use serde_json::{Map, Value};

use super::{
    command::{Wrong, wrong},
    names::Names,
};

/// Maximum array index: a larger one is an error.
const MOST_ITEMS: usize = 1000;

/// A path into an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// The path as written.
    pub(super) text: String,
    path: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Item(usize),
}

impl Field {
    /// Reads `spec.replicas`, `metadata.annotations."refit.dev/retry"`, `spec.taints[0].effect`.
    pub(super) fn parse(text: &str) -> Result<Self, Wrong> {
        let bad = || {
            let want = "names with dots between them, such as spec.replicas; quotes around a name \
                        with dots, [0] for the first of a list";
            wrong("field", text, want)
        };
        let mut path = Vec::new();
        let mut rest = text;
        loop {
            let key;
            if let Some(quoted) = rest.strip_prefix('"') {
                let (name, after) = quoted.split_once('"').ok_or_else(bad)?;
                (key, rest) = (name, after);
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                (key, rest) = rest.split_at(end);
            }
            if key.is_empty() {
                return Err(bad());
            }
            path.push(Step::Key(key.to_owned()));
            while let Some(item) = rest.strip_prefix('[') {
                let (number, after) = item.split_once(']').ok_or_else(bad)?;
                let number: usize = number.parse().map_err(|_| bad())?;
                if number > MOST_ITEMS {
                    return Err(bad());
                }
                path.push(Step::Item(number));
                rest = after;
            }
            match rest.strip_prefix('.') {
                Some(after) => rest = after,
                None if rest.is_empty() => break,
                None => return Err(bad()),
            }
        }
        Ok(Self { text: text.to_owned(), path })
    }

    /// Whether the field is in the status of an object.
    pub(super) fn in_status(&self) -> bool {
        self.path.first() == Some(&Step::Key("status".to_owned()))
    }

    /// The value of the field.
    pub(super) fn of<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.path.iter().try_fold(object, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Item(index) => value.get(index),
        })
    }

    /// The value of the field as text.
    pub(super) fn shown(&self, object: &Value) -> String {
        self.of(object).map_or_else(|| "-".to_owned(), shown)
    }

    /// Sets the field, or removes it with `None`. Returns whether that was possible.
    fn set(&self, object: &mut Value, value: Option<Value>) -> bool {
        let Some((last, path)) = self.path.split_last() else {
            return false;
        };
        let mut at = object;
        for step in path {
            let Some(next) = enter(at, step, value.is_some()) else {
                // Nothing to remove.
                return value.is_none();
            };
            at = next;
        }
        match (last, value) {
            (step, Some(value)) => match enter(at, step, true) {
                Some(place) => {
                    *place = value;
                    true
                }
                None => false,
            },
            (Step::Key(key), None) => {
                if let Some(map) = at.as_object_mut() {
                    map.remove(key);
                }
                true
            }
            (Step::Item(index), None) => {
                if let Some(list) = at.as_array_mut().filter(|list| *index < list.len()) {
                    list.remove(*index);
                }
                true
            }
        }
    }
}

/// The value at a step; creates it if it is absent and `make` is set.
fn enter<'a>(value: &'a mut Value, step: &Step, make: bool) -> Option<&'a mut Value> {
    match step {
        Step::Key(key) => {
            if make && value.is_null() {
                *value = Value::Object(Map::new());
            }
            let map = value.as_object_mut()?;
            if make {
                Some(map.entry(key.clone()).or_insert(Value::Null))
            } else {
                map.get_mut(key)
            }
        }
        Step::Item(index) => {
            if make && value.is_null() {
                *value = Value::Array(Vec::new());
            }
            let list = value.as_array_mut()?;
            if make && *index == list.len() {
                list.push(Value::Null);
            }
            list.get_mut(*index)
        }
    }
}

/// A field and its desired value.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The field.
    pub(super) field: Field,
    /// The desired value; `None` for an absent field.
    pub(super) value: Option<Value>,
}

impl Setting {
    /// Parses both. The value is JSON, or text if it is not valid JSON; `-` means no value.
    pub(super) fn new(field: &str, value: &str) -> Result<Self, Wrong> {
        let field = Field::parse(field)?;
        let value = (value != "-").then(|| {
            serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()))
        });
        Ok(Self { field, value })
    }

    /// Replaces the value by the real name if it is a name that the script uses.
    pub(super) fn named(&self, names: &Names) -> Self {
        let value = match &self.value {
            Some(Value::String(text)) => Some(Value::String(names.real(text))),
            other => other.clone(),
        };
        Self { field: self.field.clone(), value }
    }

    /// Whether the object has this value.
    pub(super) fn holds(&self, object: &Value) -> bool {
        let found = self.field.of(object).filter(|value| !value.is_null());
        match (&self.value, found) {
            (None, found) => found.is_none(),
            (Some(wanted), Some(found)) => wanted == found || shown(wanted) == shown(found),
            (Some(_), None) => false,
        }
    }

    /// Sets the value in an object. Returns whether that was possible.
    pub(super) fn apply(&self, object: &mut Value) -> bool {
        self.field.set(object, self.value.clone())
    }

    /// The value as text.
    pub(super) fn shown(&self) -> String {
        self.value.as_ref().map_or_else(|| "-".to_owned(), shown)
    }
}

/// Formats a value: strings unquoted, everything else as JSON.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The merge patch from `old` to `new`; `None` if they are equal.
pub(super) fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Some(before), Some(after)) = (old.as_object(), new.as_object()) else {
        return Some(new.clone());
    };
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in after {
        let change = match before.get(key) {
            Some(old) => merge_patch(old, value),
            None => Some(value.clone()),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(field: &str, value: &str, mut object: Value) -> Value {
        let before = object.clone();
        assert!(Setting::new(field, value).unwrap().apply(&mut object), "{field}");
        merge_patch(&before, &object).unwrap_or(Value::Null)
    }

    #[test]
    fn a_change_patches_only_the_named_field() {
        let object = json!({"spec": {"a": 1, "b": [{"c": 1}, 2], "version": "v1"}});
        assert_eq!(set("spec.a", "2", object.clone()), json!({"spec": {"a": 2}}));
        assert_eq!(
            set("spec.version", "v1.35.0", object.clone()),
            json!({"spec": {"version": "v1.35.0"}})
        );
        assert_eq!(set("spec.a", "-", object.clone()), json!({"spec": {"a": null}}));
        assert_eq!(
            set("spec.b[0].c", "x", object.clone()),
            json!({"spec": {"b": [{"c": "x"}, 2]}})
        );
        assert_eq!(set("spec.b[1]", "-", object.clone()), json!({"spec": {"b": [{"c": 1}]}}));
        assert_eq!(set("spec.a", "1", object.clone()), Value::Null);
        assert_eq!(set("metadata.annotations.x", "-", object), Value::Null);
    }

    #[test]
    fn keys_with_dots_are_quoted() {
        let patch = set(r#"metadata.annotations."refit.dev/retry""#, "m-1", json!({}));
        assert_eq!(patch, json!({"metadata": {"annotations": {"refit.dev/retry": "m-1"}}}));
        for bad in ["", ".", "a.", "a..b", "a[", "a[x]", "a[0]b", "\"a", "a[99999]"] {
            assert!(Field::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_field_that_is_absent_has_no_value() {
        let object = json!({"a": {"b": null, "n": 3, "t": ""}});
        for (field, value) in [("a.b", "-"), ("a.x.y", "-"), ("a.n", "3"), ("a.t", "\"\"")] {
            assert!(Setting::new(field, value).unwrap().holds(&object), "{field}");
        }
        assert!(!Setting::new("a.n", "-").unwrap().holds(&object));
        assert!(!Setting::new("a.x", "3").unwrap().holds(&object));
    }

    #[test]
    fn an_impossible_change_is_reported() {
        let setting = Setting::new("a.b", "1").unwrap();
        assert!(!setting.apply(&mut json!({"a": "text"})));
        assert!(!Setting::new("a[5]", "1").unwrap().apply(&mut json!({"a": []})));
    }
}
