//! Strategic merge patches of built-in kinds, which kubectl sends for nodes, pods and others.

use serde_json::{Map, Value};

use crate::strategic_keys::{Rule, field};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Merges a strategic patch into an object of a kind.
pub(crate) fn merge(kind: &str, object: &mut Value, patch: &Value) -> Result<(), String> {
    let Value::Object(patch) = patch else {
        return Err("a strategic merge patch must be an object".to_owned());
    };
    merge_map(kind, true, as_map(object), patch)
}

/// The value as a map; any other value is replaced by an empty map.
fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("converted to an object above")
}

fn directive(patch: &Map<String, Value>) -> Result<Option<&str>, String> {
    match patch.get(DIRECTIVE) {
        None => Ok(None),
        Some(Value::String(word)) => match word.as_str() {
            "merge" => Ok(None),
            "replace" | "delete" => Ok(Some(word)),
            other => Err(format!("unknown {DIRECTIVE} {other:?} in a map")),
        },
        Some(other) => Err(format!("{DIRECTIVE} must be a string, got {other}")),
    }
}

/// The type of a field and its merge rule.
fn rule_of(of: &str, whole: bool, name: &str) -> (&'static str, Rule) {
    if whole && name == "metadata" {
        return ("ObjectMeta", Rule::Plain);
    }
    field(of, name)
}

/// Merges into a map; `whole` marks a top-level object with its own metadata.
fn merge_map(
    of: &str,
    whole: bool,
    map: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), String> {
    match directive(patch)? {
        Some("replace") => {
            map.clone_from(patch);
            map.remove(DIRECTIVE);
            return Ok(());
        }
        Some(_) => {
            map.clear();
            return Ok(());
        }
        None => {}
    }
    if let Some(keep) = patch.get(RETAIN) {
        let keep = keep.as_array().ok_or_else(|| format!("{RETAIN} must be a list of names"))?;
        let kept = |key: &str| keep.iter().any(|item| item.as_str() == Some(key));
        if let Some(other) = patch
            .iter()
            .find(|(key, value)| !key.starts_with('$') && !value.is_null() && !kept(key))
        {
            return Err(format!("{RETAIN} does not contain {:?}, which the patch sets", other.0));
        }
        map.retain(|key, _| kept(key));
    }
    // The order of the list before any change.
    let before: Vec<(&str, Vec<Value>)> = patch
        .keys()
        .filter_map(|key| key.strip_prefix(SET_ORDER))
        .filter_map(|name| Some((name, map.get(name)?.as_array()?.clone())))
        .collect();
    for (key, change) in patch {
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            delete_values(map, name, change)?;
        }
    }
    for (key, change) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        merge_field(of, whole, map, key, change)?;
    }
    for (key, order) in patch {
        let Some(name) = key.strip_prefix(SET_ORDER) else {
            continue;
        };
        let order = order.as_array().ok_or_else(|| format!("{key} must be a list"))?;
        let (_, rule) = rule_of(of, whole, name);
        if let Some(Value::Array(list)) = map.get_mut(name) {
            let before = before.iter().find(|(field, _)| *field == name);
            let before = before.map_or(&[][..], |(_, list)| list.as_slice());
            *list = ordered(rule, std::mem::take(list), order, before);
        }
    }
    Ok(())
}

fn delete_values(map: &mut Map<String, Value>, name: &str, gone: &Value) -> Result<(), String> {
    let gone =
        gone.as_array().ok_or_else(|| format!("{DELETE_FROM}{name} must be a list of values"))?;
    if let Some(Value::Array(list)) = map.get_mut(name) {
        list.retain(|item| !gone.contains(item));
    }
    Ok(())
}

fn same(rule: Rule, one: &Value, other: &Value) -> bool {
    match rule.key() {
        Some(key) => one.get(key) == other.get(key),
        None => one == other,
    }
}

/// Sorts the items in `order`; other items keep their positions between them, as far as `before`
/// determines these.
fn ordered(rule: Rule, list: Vec<Value>, order: &[Value], before: &[Value]) -> Vec<Value> {
    let place =
        |places: &[Value], item: &Value| places.iter().position(|other| same(rule, other, item));
    let (mut named, mut rest): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    rest.sort_by_key(|item| place(before, item).unwrap_or(usize::MAX));
    let mut rest = rest.into_iter().peekable();
    let mut all = Vec::new();
    for item in named {
        let here = place(before, &item);
        while let Some(other) = rest.next_if(|other| {
            matches!((place(before, other), here), (Some(other), Some(here)) if other < here)
        }) {
            all.push(other);
        }
        all.push(item);
    }
    all.extend(rest);
    all
}

fn merge_field(
    of: &str,
    whole: bool,
    map: &mut Map<String, Value>,
    key: &str,
    change: &Value,
) -> Result<(), String> {
    let (child, rule) = rule_of(of, whole, key);
    match change {
        Value::Null => {
            map.remove(key);
        }
        Value::Object(change) if rule != Rule::Replace => {
            let empty = || Value::Object(Map::new());
            let value = map.entry(key.to_owned()).or_insert_with(empty);
            merge_map(child, false, as_map(value), change)?;
        }
        Value::Array(change) => {
            let value = map.entry(key.to_owned()).or_insert_with(|| Value::Array(Vec::new()));
            if !value.is_array() {
                *value = Value::Array(Vec::new());
            }
            let list = value.as_array_mut().expect("converted to a list above");
            let before = list.clone();
            merge_list(child, rule, list, key, change)?;
            if rule == Rule::Set || rule.key().is_some() {
                *list = ordered(rule, std::mem::take(list), change, &before);
            }
        }
        plain => {
            let mut plain = plain.clone();
            if let Value::Object(plain) = &mut plain {
                plain.remove(DIRECTIVE);
            }
            map.insert(key.to_owned(), plain);
        }
    }
    Ok(())
}

fn merge_list(
    child: &str,
    rule: Rule,
    list: &mut Vec<Value>,
    name: &str,
    change: &[Value],
) -> Result<(), String> {
    let word = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    if change.iter().any(|item| word(item).as_deref() == Some("replace")) {
        let kept = change.iter().filter(|item| word(item).is_none());
        *list = kept.cloned().collect();
        return Ok(());
    }
    let Some(key) = rule.key() else {
        if rule == Rule::Set {
            for item in change {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        } else {
            *list = change.to_vec();
        }
        return Ok(());
    };
    for item in change {
        let Value::Object(patch) = item else {
            return Err(format!("an item of {name} is not an object"));
        };
        let id = patch
            .get(key)
            .ok_or_else(|| format!("an item of {name} does not have its key {key}"))?;
        let found = list.iter().position(|found| found.get(key) == Some(id));
        match (directive(patch)?, found) {
            (Some(_), Some(place)) => {
                list.remove(place);
            }
            (Some(_), None) => {}
            (None, Some(place)) => {
                if let Some(found) = list.get_mut(place) {
                    merge_map(child, false, as_map(found), patch)?;
                }
            }
            (None, None) => {
                let mut new = Map::new();
                merge_map(child, false, &mut new, patch)?;
                list.push(Value::Object(new));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(kind: &str, mut object: Value, patch: &Value) -> Value {
        merge(kind, &mut object, patch).unwrap();
        object
    }

    #[test]
    fn lists_merge_by_the_key_of_their_type() {
        let object = json!({"spec": {"ports": [{"port": 80, "name": "a"}]}});
        let patch = json!({"spec": {"ports": [{"port": 443}, {"port": 80, "name": "b"}]}});
        assert_eq!(
            merged("Service", object, &patch),
            json!({"spec": {"ports": [{"port": 443}, {"port": 80, "name": "b"}]}})
        );
        let template = |env: Value| json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "env": env}]}}}});
        let object = template(json!([{"name": "A", "value": "1"}]));
        let patch = template(json!([{"name": "B", "value": "2"}]));
        assert_eq!(
            merged("Deployment", object, &patch),
            template(json!([{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]))
        );
    }

    #[test]
    fn taints_and_tolerations_are_replaced_as_in_kubernetes() {
        let object = json!({"spec": {"taints": [{"key": "a"}], "podCIDRs": ["10.0.0.0/24"]}});
        let patch = json!({"spec": {"taints": [{"key": "b"}], "podCIDRs": ["10.0.1.0/24"]}});
        assert_eq!(
            merged("Node", object, &patch),
            json!({"spec": {"taints": [{"key": "b"}],
                "podCIDRs": ["10.0.1.0/24", "10.0.0.0/24"]}})
        );
    }

    #[test]
    fn conditions_of_a_status_merge_by_type() {
        let object = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let patch = json!({"status": {
            "$setElementOrder/conditions": [{"type": "DiskPressure"}, {"type": "Ready"}],
            "conditions": [{"type": "DiskPressure", "status": "False"}],
        }});
        assert_eq!(
            merged("Node", object, &patch),
            json!({"status": {"conditions": [
                {"type": "DiskPressure", "status": "False"},
                {"type": "Ready", "status": "True"},
            ]}})
        );
    }

    #[test]
    fn directives_delete_and_replace() {
        let object = json!({
            "metadata": {"finalizers": ["x", "y"], "labels": {"a": "1"}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"k": "v"}},
        });
        let patch = json!({
            "metadata": {"$deleteFromPrimitiveList/finalizers": ["x"],
                "labels": {"$patch": "replace", "b": "2"}},
            "spec": {"containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}],
                "nodeSelector": {"$patch": "delete"}},
        });
        assert_eq!(
            merged("Pod", object, &patch),
            json!({
                "metadata": {"finalizers": ["y"], "labels": {"b": "2"}},
                "spec": {"containers": [{"name": "c"}, {"name": "b"}], "nodeSelector": {}},
            })
        );
        let object = json!({"spec": {"containers": [{"name": "a"}]}});
        let patch = json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}});
        assert_eq!(merged("Pod", object, &patch), json!({"spec": {"containers": [{"name": "z"}]}}));
    }

    #[test]
    fn items_missing_from_the_order_keep_their_places() {
        let names = |list: &[&str]| -> Vec<Value> {
            list.iter().map(|name| json!({"name": name})).collect()
        };
        let object = json!({"spec": {"containers": names(&["a", "s", "b", "t"])}});
        let patch = json!({"spec": {
            "$setElementOrder/containers": names(&["b", "n", "a"]),
            "containers": names(&["n"]),
        }});
        assert_eq!(
            merged("Pod", object, &patch),
            json!({"spec": {"containers": names(&["s", "b", "n", "a", "t"])}})
        );
    }

    #[test]
    fn retained_keys_push_out_the_others() {
        let object = json!({"spec": {"strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1}}}});
        let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
        assert_eq!(
            merged("Deployment", object.clone(), &patch),
            json!({"spec": {"strategy": {"type": "Recreate"}}})
        );
        let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "other": 1}}});
        assert!(merge("Deployment", &mut object.clone(), &patch).is_err());
    }

    #[test]
    fn null_removes_and_broken_patches_are_refused() {
        assert_eq!(merged("Node", json!({"a": 1, "b": 2}), &json!({"a": null})), json!({"b": 2}));
        for patch in [
            json!([]),
            json!({"spec": {"containers": [{"image": "x"}]}}),
            json!({"spec": {"containers": ["x"]}}),
            json!({"spec": {"$patch": "twist"}}),
            json!({"spec": {"$patch": 1}}),
        ] {
            assert!(merge("Pod", &mut json!({}), &patch).is_err(), "{patch}");
        }
    }
}
