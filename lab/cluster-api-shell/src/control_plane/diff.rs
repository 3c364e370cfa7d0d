//! Comparing KubeadmConfigs as Cluster API does: what it changes by itself does not count
//! (`spec/capi.md 2.3`).

use serde_json::{Map, Value, json};

/// Prepares two KubeadmConfig specs for a comparison. With `init_to_join` a current config that
/// initialised the cluster is brought into the form of one that joins.
pub(super) fn prepare(desired: &mut Value, current: &mut Value, init_to_join: bool) {
    if init_to_join && is_set(&current["initConfiguration"]) {
        convert(desired, current);
    }
    for field in ["controlPlaneEndpoint", "dns"] {
        take_over(desired, current, field);
    }
    for spec in [desired, current] {
        previous_defaults(spec);
        for configuration in ["initConfiguration", "joinConfiguration"] {
            let Some(map) = object(spec, configuration) else {
                continue;
            };
            map.remove("discovery");
            if let Some(Value::Object(timeouts)) = map.get_mut("timeouts") {
                timeouts.remove("controlPlaneComponentHealthCheckSeconds");
            }
        }
        drop_omittable(spec, "");
        if spec.is_null() {
            *spec = json!({});
        }
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

fn object<'a>(spec: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    spec.get_mut(key)?.as_object_mut()
}

fn convert(desired: &Value, current: &mut Value) {
    let init = current["initConfiguration"].take();
    let mut join = Map::new();
    for field in ["timeouts", "patches", "skipPhases", "nodeRegistration"] {
        if let Some(value) = init.get(field) {
            join.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(endpoint) = init.get("localAPIEndpoint") {
        let control_plane = json!({"localAPIEndpoint": endpoint});
        join.insert("controlPlane".to_owned(), control_plane);
    }
    if let Some(path) = desired.pointer("/joinConfiguration/caCertPath") {
        join.insert("caCertPath".to_owned(), path.clone());
    }
    current["joinConfiguration"] = Value::Object(join);
}

/// Makes a field of the current cluster configuration what is desired: it is not compared.
fn take_over(desired: &Value, current: &mut Value, field: &str) {
    let wanted = desired
        .pointer("/clusterConfiguration")
        .and_then(|configuration| configuration.get(field))
        .filter(|value| is_set(value))
        .cloned();
    if !current["clusterConfiguration"].is_object() {
        if wanted.is_none() || !current.is_object() {
            return;
        }
        current["clusterConfiguration"] = json!({});
    }
    if let Some(map) = object(current, "clusterConfiguration") {
        match wanted {
            Some(value) => map.insert(field.to_owned(), value),
            None => map.remove(field),
        };
    }
}

/// Defaults that older releases of Cluster API wrote down and newer ones leave out.
fn previous_defaults(spec: &mut Value) {
    let Some(map) = spec.as_object_mut() else {
        return;
    };
    let format = map.entry("format").or_insert(Value::Null);
    if format.as_str().unwrap_or_default().is_empty() {
        *format = json!("cloud-config");
    }
    for configuration in ["initConfiguration", "joinConfiguration"] {
        let Some(Value::Object(configuration)) = map.get_mut(configuration) else {
            continue;
        };
        if configuration.is_empty() {
            continue;
        }
        let registration = configuration.entry("nodeRegistration").or_insert(json!({}));
        if registration["imagePullPolicy"].is_null() && registration.is_object() {
            registration["imagePullPolicy"] = json!("IfNotPresent");
        }
    }
}

/// Drops what is the same as absent: empty lists, maps and texts. An empty list of taints is not:
/// it means no taints, where none at all means the default ones.
fn drop_omittable(value: &mut Value, key: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                drop_omittable(value, key);
            }
            map.retain(|_, value| !value.is_null());
            if map.is_empty() {
                *value = Value::Null;
            }
        }
        Value::Array(items) => {
            for item in items.iter_mut() {
                let before = item.clone();
                drop_omittable(item, "");
                if item.is_null() {
                    *item = before;
                }
            }
            if items.is_empty() && key != "taints" {
                *value = Value::Null;
            }
        }
        Value::String(text) if text.is_empty() => *value = Value::Null,
        _ => {}
    }
}

/// Whether a KubeadmConfig is what the control plane wants; `join` and `init` are the desired specs
/// of a machine that joins and of one that initialises.
pub(super) fn is_up_to_date(current: &Value, join: &Value, init: &Value) -> bool {
    let equal = |desired: &Value, init_to_join: bool| {
        let (mut desired, mut current) = (desired.clone(), current.clone());
        prepare(&mut desired, &mut current, init_to_join);
        desired == current
    };
    equal(join, true) || (is_set(&current["initConfiguration"]) && equal(init, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(mut desired: Value, mut current: Value) -> (Value, Value) {
        prepare(&mut desired, &mut current, true);
        (desired, current)
    }

    fn same(desired: Value, current: Value) -> bool {
        let (desired, current) = prepared(desired, current);
        desired == current
    }

    fn join(registration: Value) -> Value {
        json!({"joinConfiguration": {"nodeRegistration": registration}})
    }

    #[test]
    fn an_init_config_is_compared_as_a_join_config() {
        let desired = json!({"joinConfiguration": {
            "caCertPath": "/ca", "nodeRegistration": {"criSocket": "s"},
            "controlPlane": {"localAPIEndpoint": {"bindPort": 6443}},
        }});
        let current = json!({"initConfiguration": {
            "nodeRegistration": {"criSocket": "s"}, "localAPIEndpoint": {"bindPort": 6443},
            "bootstrapTokens": [{"token": "secret"}],
        }});
        let (desired, current) = prepared(desired, current);
        assert_eq!(desired, current);
        assert!(current.get("initConfiguration").is_none());
    }

    #[test]
    fn what_cluster_api_fills_in_does_not_count() {
        let registration = json!({"criSocket": "s"});
        let desired = join(registration.clone());
        let mut current = desired.clone();
        current["joinConfiguration"]["discovery"] = json!({"bootstrapToken": {"token": "t"}});
        current["joinConfiguration"]["timeouts"] =
            json!({"controlPlaneComponentHealthCheckSeconds": 240});
        current["clusterConfiguration"] = json!({"controlPlaneEndpoint": "10.0.0.10:6443"});
        current["joinConfiguration"]["nodeRegistration"]["imagePullPolicy"] = json!("IfNotPresent");
        current["format"] = json!("cloud-config");
        assert!(same(desired, current));
    }

    #[test]
    fn dns_is_not_compared() {
        let desired =
            json!({"clusterConfiguration": {"dns": {"imageTag": "a"}, "apiServer": {"x": 1}}});
        let current =
            json!({"clusterConfiguration": {"dns": {"imageTag": "b"}, "apiServer": {"x": 1}}});
        assert!(same(desired.clone(), current));
        assert!(!same(desired, json!({"clusterConfiguration": {"apiServer": {"x": 2}}})));
    }

    #[test]
    fn empty_is_absent_but_for_taints() {
        let cases = [
            (json!({"files": []}), json!({}), true),
            (json!({"clusterConfiguration": {"apiServer": {"extraArgs": []}}}), json!({}), true),
            (
                json!({"files": [{"path": "/a", "owner": ""}]}),
                json!({"files": [{"path": "/a"}]}),
                true,
            ),
            (join(json!({"taints": []})), join(json!({})), false),
            (join(json!({"taints": []})), join(json!({"taints": []})), true),
            (json!({"files": [{"path": "/a"}]}), json!({}), false),
            (json!({"preKubeadmCommands": ["a"]}), json!({"preKubeadmCommands": ["b"]}), false),
        ];
        for (desired, current, want) in cases {
            assert_eq!(same(desired.clone(), current.clone()), want, "{desired} {current}");
        }
    }

    #[test]
    fn a_machine_that_initialised_the_cluster_may_match_either_form() {
        let init = json!({"initConfiguration": {"nodeRegistration": {"name": "i"}}});
        let join = json!({"joinConfiguration": {"nodeRegistration": {"name": "j"}}});
        assert!(is_up_to_date(&init, &join, &init));
        assert!(is_up_to_date(&join, &join, &init));
        let other = json!({"initConfiguration": {"nodeRegistration": {"name": "x"}}});
        assert!(!is_up_to_date(&other, &join, &init));
        let as_join = json!({"initConfiguration": {"nodeRegistration": {"name": "j"}}});
        assert!(is_up_to_date(&as_join, &join, &init));
    }

    #[test]
    fn empty_specs_are_equal() {
        assert!(same(json!({}), json!({})));
        assert!(is_up_to_date(&json!({}), &json!({"files": []}), &json!({})));
    }
}
