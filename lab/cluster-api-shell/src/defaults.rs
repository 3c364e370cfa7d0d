//! The defaults of Cluster API's webhooks, for objects that passed no webhook
//! (`docs/facts/machine.md#webhook-defaults`).

use refit_cluster_api::kinds;
use refit_kinds::keys;
use serde_json::{Map, Value, json};

/// Default timeout of a Node's deletion, in seconds.
const NODE_DELETION_TIMEOUT_SECONDS: i64 = 10;
/// Default time that a Machine may be without a Node under a MachineHealthCheck, in seconds.
const NODE_STARTUP_TIMEOUT_SECONDS: i64 = 600;

/// Sets the defaults of Cluster API's webhooks for `Cluster`, `MachineDeployment`, `MachineSet`,
/// `Machine`, `MachineHealthCheck`, `KubeadmControlPlane` and `ExtensionConfig`. Other kinds, and
/// fields that are already set, are not changed.
///
/// ```
/// let mut object = serde_json::json!({
///     "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
///     "metadata": {"name": "edge-1"}, "spec": {"version": "v1.34.2"},
/// });
/// lab_cluster_api_shell::defaults::default_object(&mut object);
/// assert_eq!(object["spec"]["replicas"], 1);
/// assert_eq!(object["spec"]["rollout"]["strategy"]["rollingUpdate"]["maxSurge"], 1);
/// ```
pub fn default_object(object: &mut Value) {
    let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let api_version = text(object, "apiVersion");
    let group = api_version.split('/').next().unwrap_or_default();
    if !object.is_object() {
        return;
    }
    match (group, text(object, "kind").as_str()) {
        (kinds::CORE_GROUP, "MachineDeployment") => machine_deployment(object),
        (kinds::CORE_GROUP, "MachineSet") => machine_set(object),
        (kinds::CORE_GROUP, "Machine") => machine(object),
        (kinds::CORE_GROUP, "MachineHealthCheck") => machine_health_check(object),
        (kinds::CONTROL_PLANE_GROUP, "KubeadmControlPlane") => control_plane(object),
        ("runtime.cluster.x-k8s.io", "ExtensionConfig") => extension_config(object),
        _ => {}
    }
}

/// The object at a path, created if missing; `None` if the path holds another type of value.
fn at<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    let mut current = object;
    for key in path {
        let map = current.as_object_mut()?;
        let next = map.entry(*key).or_insert(Value::Null);
        if next.is_null() {
            *next = json!({});
        }
        current = next;
    }
    current.as_object_mut()
}

fn set(object: &mut Value, path: &[&str], key: &str, value: Value) {
    if let Some(map) = at(object, path) {
        let field = map.entry(key).or_insert(Value::Null);
        if field.is_null() {
            *field = value;
        }
    }
}

fn version(object: &mut Value, path: &[&str]) {
    let Some(map) = at(object, path) else { return };
    if let Some(Value::String(version)) = map.get_mut("version")
        && !version.is_empty()
        && !version.starts_with('v')
    {
        version.insert(0, 'v');
    }
}

fn name_and_cluster(object: &Value) -> (String, String) {
    let text = |pointer: &str| {
        let value = object.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    (text("/metadata/name"), text("/spec/clusterName"))
}

fn machine_deployment(object: &mut Value) {
    let (name, cluster) = name_and_cluster(object);
    set(object, &["spec"], "replicas", json!(1));
    let strategy = ["spec", "rollout", "strategy"];
    set(object, &strategy, "type", json!("RollingUpdate"));
    if at(object, &strategy).is_some_and(|map| map["type"] == "RollingUpdate") {
        let rolling = ["spec", "rollout", "strategy", "rollingUpdate"];
        set(object, &rolling, "maxSurge", json!(1));
        set(object, &rolling, "maxUnavailable", json!(0));
    }
    set(object, &["metadata", "labels"], keys::CLUSTER_NAME, json!(cluster));
    for path in
        [&["spec", "selector", "matchLabels"][..], &["spec", "template", "metadata", "labels"][..]]
    {
        set(object, path, keys::DEPLOYMENT_NAME, json!(name));
        set(object, path, keys::CLUSTER_NAME, json!(cluster));
    }
    machine_template(object);
}

fn machine_set(object: &mut Value) {
    let (name, cluster) = name_and_cluster(object);
    set(object, &["spec"], "replicas", json!(1));
    set(object, &["metadata", "labels"], keys::CLUSTER_NAME, json!(cluster));
    let selector = ["spec", "selector", "matchLabels"];
    if at(object, &selector).is_some_and(|map| map.is_empty()) {
        set(object, &selector, keys::SET_NAME, json!(name));
        let labels = ["spec", "template", "metadata", "labels"];
        set(object, &labels, keys::SET_NAME, json!(name));
    }
    let labels = ["spec", "template", "metadata", "labels"];
    set(object, &labels, keys::CLUSTER_NAME, json!(cluster));
    machine_template(object);
}

fn machine_template(object: &mut Value) {
    let (_, cluster) = name_and_cluster(object);
    let spec = ["spec", "template", "spec"];
    set(object, &spec, "clusterName", json!(cluster));
    set(
        object,
        &["spec", "template", "spec", "deletion"],
        "nodeDeletionTimeoutSeconds",
        json!(NODE_DELETION_TIMEOUT_SECONDS),
    );
    version(object, &spec);
}

fn machine(object: &mut Value) {
    let (_, cluster) = name_and_cluster(object);
    set(object, &["metadata", "labels"], keys::CLUSTER_NAME, json!(cluster));
    set(
        object,
        &["spec", "deletion"],
        "nodeDeletionTimeoutSeconds",
        json!(NODE_DELETION_TIMEOUT_SECONDS),
    );
    version(object, &["spec"]);
}

fn machine_health_check(object: &mut Value) {
    let (_, cluster) = name_and_cluster(object);
    set(object, &["metadata", "labels"], keys::CLUSTER_NAME, json!(cluster));
    set(
        object,
        &["spec", "checks"],
        "nodeStartupTimeoutSeconds",
        json!(NODE_STARTUP_TIMEOUT_SECONDS),
    );
}

fn control_plane(object: &mut Value) {
    set(object, &["spec"], "replicas", json!(1));
    set(object, &["spec", "rollout", "strategy"], "type", json!("RollingUpdate"));
    set(object, &["spec", "rollout", "strategy", "rollingUpdate"], "maxSurge", json!(1));
    set(
        object,
        &["spec", "machineTemplate", "spec", "deletion"],
        "nodeDeletionTimeoutSeconds",
        json!(NODE_DELETION_TIMEOUT_SECONDS),
    );
    version(object, &["spec"]);
}

fn extension_config(object: &mut Value) {
    set(object, &["spec"], "namespaceSelector", json!({}));
    let client = at(object, &["spec", "clientConfig"]);
    if client.is_some_and(|map| map.get("service").is_some_and(Value::is_object)) {
        set(object, &["spec", "clientConfig", "service"], "port", json!(443));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(mut object: Value) -> Value {
        default_object(&mut object);
        object
    }

    fn deployment(spec: Value) -> Value {
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "edge-1-md-0"}, "spec": spec,
        })
    }

    #[test]
    fn a_machine_deployment_surges_by_one_by_default() {
        let object = defaulted(deployment(json!({"clusterName": "edge-1"})));
        let rolling = &object["spec"]["rollout"]["strategy"]["rollingUpdate"];
        assert_eq!(*rolling, json!({"maxSurge": 1, "maxUnavailable": 0}));
        let object = defaulted(deployment(json!({
            "clusterName": "edge-1", "replicas": 5,
            "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
        })));
        let rolling = &object["spec"]["rollout"]["strategy"]["rollingUpdate"];
        assert_eq!(*rolling, json!({"maxSurge": 0, "maxUnavailable": 1}));
        assert_eq!(object["spec"]["replicas"], 5);
    }

    #[test]
    fn on_delete_gets_no_rolling_update() {
        let object = defaulted(deployment(json!({
            "clusterName": "c", "rollout": {"strategy": {"type": "OnDelete"}},
        })));
        let strategy = &object["spec"]["rollout"]["strategy"];
        assert_eq!(*strategy, json!({"type": "OnDelete"}));
    }

    #[test]
    fn an_empty_selector_becomes_unique_and_the_template_matches_it() {
        let object = defaulted(deployment(
            json!({"clusterName": "edge-1", "selector": {"matchLabels": {}}}),
        ));
        let want = json!({
            "cluster.x-k8s.io/cluster-name": "edge-1",
            "cluster.x-k8s.io/deployment-name": "edge-1-md-0",
        });
        assert_eq!(object["spec"]["selector"]["matchLabels"], want);
        assert_eq!(object["spec"]["template"]["metadata"]["labels"], want);
    }

    #[test]
    fn a_timeout_of_zero_stays_zero() {
        let object = defaulted(deployment(json!({
            "clusterName": "c",
            "template": {"spec": {"deletion": {"nodeDeletionTimeoutSeconds": 0}}},
        })));
        let spec = &object["spec"]["template"]["spec"];
        assert_eq!(spec["deletion"]["nodeDeletionTimeoutSeconds"], 0);
        let object = defaulted(deployment(json!({"clusterName": "c"})));
        let spec = &object["spec"]["template"]["spec"];
        assert_eq!(spec["deletion"]["nodeDeletionTimeoutSeconds"], 10);
    }

    #[test]
    fn a_version_gets_a_v_prefix() {
        let object = defaulted(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
            "metadata": {"name": "k"}, "spec": {"version": "1.34.2"},
        }));
        assert_eq!(object["spec"]["version"], "v1.34.2");
    }

    #[test]
    fn an_extension_matches_every_namespace_by_default() {
        let object = defaulted(json!({
            "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
            "metadata": {"name": "refit"},
            "spec": {"clientConfig": {"service": {"namespace": "n", "name": "s"}}},
        }));
        assert_eq!(object["spec"]["namespaceSelector"], json!({}));
        assert_eq!(object["spec"]["clientConfig"]["service"]["port"], 443);
    }

    #[test]
    fn defaulting_twice_is_defaulting_once() {
        let once = defaulted(deployment(
            json!({"clusterName": "edge-1", "template": {"spec": {"version": "1.34.2"}}}),
        ));
        assert_eq!(defaulted(once.clone()), once);
    }

    #[test]
    fn other_kinds_stay_as_they_are() {
        for object in [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}),
            json!({"apiVersion": "example.com/v1", "kind": "MachineDeployment"}),
            json!("text"),
        ] {
            assert_eq!(defaulted(object.clone()), object);
        }
    }
}
