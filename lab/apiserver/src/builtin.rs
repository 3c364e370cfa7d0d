//! Special handling of single built-in kinds: defaults, status on creation, validation.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::admission;
use crate::crd;
use crate::error::{cause, invalid_value, required};
use crate::object::{member, meta_mut, meta_text, text};
use crate::resources::Resource;
use crate::schema::Cause;

fn spec_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value["spec"].is_object() {
        value["spec"] = json!({});
    }
    value["spec"].as_object_mut().expect("converted to an object above")
}

/// Prepares a new object: sets its initial status as Kubernetes does, then defaults.
pub(crate) fn prepare_create(resource: &Resource, value: &mut Value, now: jiff::Timestamp) {
    if resource.has_status && &*resource.id != "nodes" {
        // Kubelets register Nodes with a status; for other kinds it is dropped.
        if let Some(map) = value.as_object_mut() {
            map.remove("status");
        }
    }
    match &*resource.id {
        "pods" => value["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"}),
        "namespaces" => value["status"] = json!({"phase": "Active"}),
        "persistentvolumeclaims" => value["status"] = json!({"phase": "Pending"}),
        "services" => value["status"] = json!({"loadBalancer": {}}),
        _ if resource.has_status && !resource.custom && &*resource.id != "nodes" => {
            value["status"] = json!({});
        }
        _ => {}
    }
    prepare(resource, value);
    if &*resource.id == crd::CRDS {
        crd::establish(value, now);
    }
}

/// Prepares an update: keeps a namespace's finalizers, then sets the same defaults as on creation.
pub(crate) fn prepare_update(
    resource: &Resource,
    old: &Value,
    value: &mut Value,
    now: jiff::Timestamp,
) {
    if &*resource.id == "namespaces"
        && let Some(finalizers) = member(old, &["spec", "finalizers"]).cloned()
    {
        spec_mut(value).insert("finalizers".to_owned(), finalizers);
    }
    prepare(resource, value);
    if &*resource.id == crd::CRDS {
        crd::establish(value, now);
    }
}

fn prepare(resource: &Resource, value: &mut Value) {
    match &*resource.id {
        "pods" => {
            let spec = spec_mut(value);
            spec.entry("restartPolicy").or_insert_with(|| json!("Always"));
            spec.entry("terminationGracePeriodSeconds").or_insert_with(|| json!(30));
            spec.entry("dnsPolicy").or_insert_with(|| json!("ClusterFirst"));
            spec.entry("schedulerName").or_insert_with(|| json!("default-scheduler"));
        }
        "deployments.apps" | "replicasets.apps" | "statefulsets.apps" => {
            spec_mut(value).entry("replicas").or_insert_with(|| json!(1));
        }
        "namespaces" => {
            spec_mut(value).entry("finalizers").or_insert_with(|| json!(["kubernetes"]));
            let name = meta_text(value, "name").to_owned();
            let labels = meta_mut(value).entry("labels").or_insert_with(|| json!({}));
            if let Some(labels) = labels.as_object_mut() {
                labels.insert("kubernetes.io/metadata.name".to_owned(), json!(name));
            }
        }
        "secrets" => encode_secret(value),
        crd::CRDS => crd::default(value),
        _ => {}
    }
}

/// Moves `stringData` into `data`, as the real server does.
fn encode_secret(value: &mut Value) {
    let Some(map) = value.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(plain)) = map.remove("stringData") {
        let data = map.entry("data").or_insert_with(|| json!({}));
        if let Some(data) = data.as_object_mut() {
            for (key, text) in plain {
                let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
                data.insert(key, json!(encoded));
            }
        }
    }
    map.entry("type").or_insert_with(|| json!("Opaque"));
}

/// Validation errors of a built-in object beyond its metadata.
pub(crate) fn validate(resource: &Resource, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    match &*resource.id {
        crd::CRDS => crd::validate(value, old),
        admission::POLICIES => admission::validate(value),
        "events" => validate_event(value),
        "secrets" => {
            let mut causes = validate_base64(value, "data");
            causes.extend(validate_immutable(value, old, &["data"]));
            let before = old.map(|old| text(old, &["type"])).filter(|before| !before.is_empty());
            let kind = text(value, &["type"]);
            if before.is_some_and(|before| before != kind) {
                causes.push(invalid_value("type", kind, "field is immutable"));
            }
            causes
        }
        "configmaps" => {
            let mut causes = validate_base64(value, "binaryData");
            causes.extend(validate_immutable(value, old, &["data", "binaryData"]));
            causes
        }
        "pods" => {
            let before = old.map_or("", |old| text(old, &["spec", "nodeName"]));
            let node = text(value, &["spec", "nodeName"]);
            let mut causes = Vec::new();
            if !before.is_empty() && before != node {
                causes.push(invalid_value("spec.nodeName", node, "field is immutable"));
            }
            if member(value, &["spec", "containers"])
                .and_then(Value::as_array)
                .is_none_or(Vec::is_empty)
            {
                causes.push(required("spec.containers", ""));
            }
            causes
        }
        "poddisruptionbudgets.policy" => {
            let has = |key| member(value, &["spec", key]).is_some_and(|item| !item.is_null());
            if has("minAvailable") && has("maxUnavailable") {
                let why = "Invalid value: minAvailable and maxUnavailable cannot be both set";
                return vec![cause("FieldValueInvalid", "spec", why)];
            }
            Vec::new()
        }
        _ => Vec::new(),
    }
}

fn validate_event(value: &Value) -> Vec<Cause> {
    let home = meta_text(value, "namespace");
    let about = text(value, &["involvedObject", "namespace"]);
    let fits =
        if about.is_empty() { matches!(home, "default" | "kube-system") } else { about == home };
    if fits {
        return Vec::new();
    }
    vec![invalid_value("involvedObject.namespace", about, "does not match event.namespace")]
}

fn validate_base64(value: &Value, field: &str) -> Vec<Cause> {
    let map = value.get(field).and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .filter(|(_, item)| {
            !item.is_null() && item.as_str().is_none_or(|item| STANDARD.decode(item).is_err())
        })
        .map(|(key, _)| {
            let message = "Invalid value: illegal base64 data";
            cause("FieldValueInvalid", format!("{field}[{key}]"), message)
        })
        .collect()
}

fn validate_immutable(value: &Value, old: Option<&Value>, fields: &[&str]) -> Vec<Cause> {
    let Some(old) = old.filter(|old| old["immutable"] == true) else {
        return Vec::new();
    };
    let why = "Forbidden: field is immutable when `immutable` is set";
    let changed = fields.iter().copied().filter(|field| old.get(*field) != value.get(*field));
    let unlocked = (value["immutable"] != true).then_some("immutable");
    changed.chain(unlocked).map(|field| cause("FieldValueForbidden", field, why)).collect()
}
