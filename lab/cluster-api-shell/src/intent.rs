//! Whether a server-side apply would change anything: a write without effect is not sent.

use serde_json::{Map, Value};

/// Lists whose items are owned individually. Every other list is replaced as a whole.
const SET_LISTS: [&str; 2] = ["finalizers", "ownerReferences"];

/// Whether applying `intent` as `manager` would change `live`: a value differs, the manager owns
/// nothing yet, or it owns a field that is no longer in the intent (this is how a MachineSet loses
/// its move annotations, `docs/facts/machine-deployment.md#machineset-intents`).
pub(crate) fn would_change(live: &Value, intent: &Value, manager: &str) -> bool {
    let Some(owned) = owned_fields(live, manager) else {
        return true;
    };
    !contains(live, intent, "") || abandons(owned, intent, "")
}

/// Whether a value of `intent` is missing from `live`, regardless of its owner.
pub(crate) fn lacks(live: &Value, intent: &Value) -> bool {
    !contains(live, intent, "")
}

/// The fields that a manager owns by apply, as `fieldsV1`.
fn owned_fields<'a>(live: &'a Value, manager: &str) -> Option<&'a Value> {
    let entries = live.pointer("/metadata/managedFields")?.as_array()?;
    let applied = entries.iter().find(|entry| {
        let subresource = entry["subresource"].as_str().unwrap_or_default();
        entry["manager"] == manager && entry["operation"] == "Apply" && subresource.is_empty()
    })?;
    Some(&applied["fieldsV1"])
}

fn contains(live: &Value, intent: &Value, key: &str) -> bool {
    match (live, intent) {
        (Value::Object(live), Value::Object(intent)) => intent
            .iter()
            .all(|(key, wanted)| live.get(key).is_some_and(|live| contains(live, wanted, key))),
        (Value::Array(live), Value::Array(intent)) if SET_LISTS.contains(&key) => {
            intent.iter().all(|wanted| live.iter().any(|item| contains(item, wanted, "")))
        }
        (live, intent) => live == intent,
    }
}

fn abandons(owned: &Value, intent: &Value, key: &str) -> bool {
    let Some(owned) = owned.as_object() else {
        return false;
    };
    owned.iter().any(|(field, below)| {
        if let Some(name) = field.strip_prefix("f:") {
            match intent.get(name) {
                None => true,
                Some(value) => abandons(below, value, name),
            }
        } else if let Some(keys) = field.strip_prefix("k:") {
            item_with(keys, intent).is_none_or(|item| abandons(below, item, ""))
        } else if let Some(value) = field.strip_prefix("v:") {
            let value: Option<Value> = serde_json::from_str(value).ok();
            let items = intent.as_array();
            SET_LISTS.contains(&key)
                && value.is_some_and(|value| items.is_none_or(|items| !items.contains(&value)))
        } else {
            false
        }
    })
}

fn item_with<'a>(keys: &str, intent: &'a Value) -> Option<&'a Value> {
    let keys: Map<String, Value> = serde_json::from_str(keys).ok()?;
    let matches = |item: &&Value| keys.iter().all(|(key, value)| item.get(key) == Some(value));
    intent.as_array()?.iter().find(matches)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn live(owned: Value) -> Value {
        json!({
            "metadata": {
                "name": "ms",
                "labels": {"a": "1"},
                "annotations": {"move": "x", "foreign": "y"},
                "finalizers": ["keep", "theirs"],
                "ownerReferences": [{"uid": "u", "name": "md", "controller": true}],
                "managedFields": [{
                    "manager": "m", "operation": "Apply", "fieldsType": "FieldsV1",
                    "fieldsV1": owned,
                }],
            },
            "spec": {"replicas": 3, "list": [1, 2], "defaulted": true},
        })
    }

    fn owned() -> Value {
        json!({
            "f:metadata": {
                "f:annotations": {"f:move": {}},
                "f:labels": {"f:a": {}},
                "f:finalizers": {"v:\"keep\"": {}},
                "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}},
            },
            "f:spec": {"f:replicas": {}, "f:list": {}},
        })
    }

    fn intent() -> Value {
        json!({
            "metadata": {
                "labels": {"a": "1"},
                "annotations": {"move": "x"},
                "finalizers": ["keep"],
                "ownerReferences": [{"uid": "u", "name": "md", "controller": true}],
            },
            "spec": {"replicas": 3, "list": [1, 2]},
        })
    }

    #[test]
    fn an_equal_owned_value_needs_no_apply() {
        assert!(!would_change(&live(owned()), &intent(), "m"));
    }

    #[test]
    fn a_manager_that_owns_nothing_applies_once() {
        assert!(would_change(&live(owned()), &intent(), "other"));
    }

    #[test]
    fn each_difference_needs_an_apply() {
        let cases: [(&str, Value); 6] = [
            ("/spec/replicas", json!(2)),
            ("/spec/list", json!([1])),
            ("/metadata/labels/a", json!("2")),
            ("/metadata/finalizers", json!(["keep", "another"])),
            ("/metadata/ownerReferences/0/controller", json!(false)),
            ("/metadata/annotations", json!({"move": "x", "new": ""})),
        ];
        for (pointer, value) in cases {
            let mut intent = intent();
            *intent.pointer_mut(pointer).unwrap() = value;
            assert!(would_change(&live(owned()), &intent, "m"), "{pointer}");
        }
    }

    #[test]
    fn a_field_that_is_no_longer_wanted_needs_an_apply() {
        for pointer in ["annotations", "labels", "finalizers", "ownerReferences"] {
            let mut intent = intent();
            intent["metadata"].as_object_mut().unwrap().remove(pointer);
            assert!(would_change(&live(owned()), &intent, "m"), "{pointer}");
        }
        let mut shorter = intent();
        shorter["metadata"]["annotations"] = json!({});
        assert!(would_change(&live(owned()), &shorter, "m"));
    }

    #[test]
    fn fields_of_others_do_not_count() {
        let mut object = live(owned());
        object["metadata"]["annotations"]["foreign"] = json!("changed");
        object["status"] = json!({"replicas": 1});
        assert!(!would_change(&object, &intent(), "m"));
    }
}
