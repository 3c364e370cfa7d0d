//! Strategic merge patches of built-in kinds: what kubectl sends for nodes, pods and the like.

use serde_json::{Map, Value};

/// How a list of a built-in kind merges, by the name of its field.
enum ListMerge {
    /// Items are objects, told apart by this member.
    ByKey(&'static str),
    /// Items are plain values, a set.
    AsSet,
    /// The patch's list takes the place of the old one.
    Replace,
}

fn list_merge(field: &str) -> ListMerge {
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets" => ListMerge::ByKey("name"),
        "conditions" | "addresses" => ListMerge::ByKey("type"),
        "ports" => ListMerge::ByKey("containerPort"),
        "volumeMounts" => ListMerge::ByKey("mountPath"),
        "volumeDevices" => ListMerge::ByKey("devicePath"),
        "taints" => ListMerge::ByKey("key"),
        "ownerReferences" => ListMerge::ByKey("uid"),
        "hostAliases" => ListMerge::ByKey("ip"),
        "topologySpreadConstraints" => ListMerge::ByKey("topologyKey"),
        "finalizers" | "podCIDRs" => ListMerge::AsSet,
        _ => ListMerge::Replace,
    }
}

/// Merges a strategic patch into an object.
pub(crate) fn merge(object: &mut Value, patch: &Value) -> Result<(), String> {
    let Value::Object(patch) = patch else {
        return Err("a strategic merge patch is an object".to_owned());
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let map = object.as_object_mut().expect("made an object above");
    merge_map(map, patch)
}

fn merge_map(map: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), String> {
    match patch.get("$patch").and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            map.clone_from(patch);
            map.remove("$patch");
            return Ok(());
        }
        Some("delete") => {
            map.clear();
            return Ok(());
        }
        Some(other) => return Err(format!("unknown patch type {other:?}")),
    }
    if let Some(keep) = patch.get("$retainKeys").and_then(Value::as_array) {
        map.retain(|key, _| keep.iter().any(|item| item.as_str() == Some(key)));
    }
    for (key, change) in patch {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = change
                .as_array()
                .ok_or("a list of values to delete is a list")?;
            if let Some(Value::Array(list)) = map.get_mut(field) {
                list.retain(|item| !gone.contains(item));
            }
        } else if !key.starts_with('$') {
            merge_field(map, key, change)?;
        }
    }
    for (key, order) in patch {
        let Some(field) = key.strip_prefix("$setElementOrder/") else {
            continue;
        };
        if let (Some(Value::Array(list)), Value::Array(order)) = (map.get_mut(field), order) {
            let place = |item: &Value| order.iter().position(|wanted| same(field, wanted, item));
            list.sort_by_key(|item| place(item).unwrap_or(usize::MAX));
        }
    }
    Ok(())
}

fn same(field: &str, wanted: &Value, item: &Value) -> bool {
    match list_merge(field) {
        ListMerge::ByKey(key) => wanted.get(key) == item.get(key),
        ListMerge::AsSet | ListMerge::Replace => wanted == item,
    }
}

fn merge_field(map: &mut Map<String, Value>, key: &str, change: &Value) -> Result<(), String> {
    match change {
        Value::Null => {
            map.remove(key);
        }
        Value::Object(change) => {
            let field = map
                .entry(key.to_owned())
                .or_insert_with(|| Value::Object(Map::new()));
            if !field.is_object() {
                *field = Value::Object(Map::new());
            }
            merge_map(field.as_object_mut().expect("made an object above"), change)?;
        }
        Value::Array(change) => {
            let list = map
                .entry(key.to_owned())
                .or_insert_with(|| Value::Array(Vec::new()));
            if !list.is_array() {
                *list = Value::Array(Vec::new());
            }
            merge_list(list.as_array_mut().expect("made a list above"), key, change)?;
        }
        plain => {
            map.insert(key.to_owned(), plain.clone());
        }
    }
    Ok(())
}

fn merge_list(list: &mut Vec<Value>, field: &str, change: &[Value]) -> Result<(), String> {
    let directive = |item: &Value| {
        item.get("$patch")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    if change
        .iter()
        .any(|item| directive(item).as_deref() == Some("replace"))
    {
        *list = change
            .iter()
            .filter(|item| directive(item).is_none())
            .cloned()
            .collect();
        return Ok(());
    }
    match list_merge(field) {
        ListMerge::Replace => *list = change.to_vec(),
        ListMerge::AsSet => {
            for item in change {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        }
        ListMerge::ByKey(key) => {
            for item in change {
                let id = item
                    .get(key)
                    .ok_or_else(|| format!("an item of {field} does not have its key {key}"))?;
                let place = list.iter().position(|found| found.get(key) == Some(id));
                match (directive(item).as_deref(), place) {
                    (Some("delete"), Some(place)) => {
                        list.remove(place);
                    }
                    (Some("delete"), None) => {}
                    (_, Some(place)) => merge(&mut list[place], item)?,
                    (_, None) => {
                        let mut new = Value::Object(Map::new());
                        merge(&mut new, item)?;
                        list.push(new);
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(mut object: Value, patch: &Value) -> Value {
        merge(&mut object, patch).unwrap();
        object
    }

    #[test]
    fn lists_with_keys_merge_item_by_item() {
        let object = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
        let patch = json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"},
            {"key": "a", "effect": "NoExecute"}]}});
        assert_eq!(
            merged(object, &patch),
            json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"},
                {"key": "b", "effect": "NoExecute"}]}})
        );
    }

    #[test]
    fn directives_delete_replace_and_order() {
        let object = json!({"taints": [{"key": "a"}, {"key": "b"}], "finalizers": ["x", "y"],
            "args": ["1"], "map": {"a": 1}});
        let patch = json!({
            "$setElementOrder/taints": [{"key": "c"}, {"key": "b"}],
            "taints": [{"key": "a", "$patch": "delete"}, {"key": "c"}],
            "$deleteFromPrimitiveList/finalizers": ["x"],
            "args": ["2"],
            "map": {"$patch": "replace", "b": 2},
        });
        assert_eq!(
            merged(object, &patch),
            json!({"taints": [{"key": "c"}, {"key": "b"}], "finalizers": ["y"],
                "args": ["2"], "map": {"b": 2}})
        );
    }

    #[test]
    fn null_removes_and_a_missing_key_is_an_error() {
        assert_eq!(
            merged(json!({"a": 1, "b": 2}), &json!({"a": null})),
            json!({"b": 2})
        );
        assert!(merge(&mut json!({}), &json!({"taints": [{"effect": "x"}]})).is_err());
        assert!(merge(&mut json!({}), &json!([])).is_err());
    }
}
