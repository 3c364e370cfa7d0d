//! The `scale` subresource: desired and current replicas of a kind, read from its own fields.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{ApiError, invalid_value};
use crate::jsonpath::JsonPath;
use crate::object::{member, meta_text};
use crate::patch::Patch;
use crate::resources::Resource;
use crate::selector::LabelSelector;
use crate::store::{Store, name_of};
use crate::write::{WriteOptions, Written, to_bytes, value_as};

/// The paths of a kind's replicas and selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScalePaths {
    spec: Vec<String>,
    status: Vec<String>,
    /// The selector: text in custom kinds, an object in built-in ones.
    selector: Vec<String>,
}

impl ScalePaths {
    /// The paths of a built-in kind.
    pub(crate) fn builtin(group: &str, kind: &str) -> Option<Self> {
        let scales = group == "apps" && matches!(kind, "Deployment" | "ReplicaSet" | "StatefulSet");
        let path = |path: [&str; 2]| path.map(str::to_owned).to_vec();
        scales.then(|| Self {
            spec: path(["spec", "replicas"]),
            status: path(["status", "replicas"]),
            selector: path(["spec", "selector"]),
        })
    }

    /// Reads `subresources.scale` of a CRD's version.
    pub(crate) fn read(scale: &Value) -> Option<Self> {
        let path = |key: &str| {
            let path = JsonPath::parse(scale[key].as_str().unwrap_or_default()).ok()?;
            let names = path.names()?;
            Some(names.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let full = |key: &str| path(key).filter(|names| names.len() > 1);
        Some(Self {
            spec: full("specReplicasPath")?,
            status: full("statusReplicasPath")?,
            selector: path("labelSelectorPath").unwrap_or_default(),
        })
    }

    fn scale(&self, object: &Value) -> Value {
        let number = |path: &[String]| at(object, path).and_then(Value::as_i64).unwrap_or(0);
        let mut meta = json!({});
        for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = member(object, &["metadata", key]) {
                meta[key] = value.clone();
            }
        }
        let mut status = json!({"replicas": number(&self.status)});
        let selector = if self.selector.is_empty() {
            None
        } else {
            at(object, &self.selector).and_then(selector_text)
        };
        if let Some(selector) = selector {
            status["selector"] = json!(selector);
        }
        json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": meta,
            "spec": {"replicas": number(&self.spec)},
            "status": status,
        })
    }
}

fn at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, key| value.get(key))
}

fn set(object: &mut Value, path: &[String], to: i64) {
    let mut place = object;
    for key in path {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[key.as_str()];
    }
    *place = json!(to);
}

fn selector_text(selector: &Value) -> Option<String> {
    if let Some(text) = selector.as_str() {
        return Some(text.to_owned());
    }
    // A ReplicationController's selector is a plain map.
    let plain = selector.get("matchLabels").is_none() && selector.get("matchExpressions").is_none();
    let labels = if plain { selector } else { &selector["matchLabels"] };
    let whole = if plain { json!({"matchLabels": selector}) } else { selector.clone() };
    LabelSelector::from_object(&whole)?;
    let mut parts: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for rule in whole["matchExpressions"].as_array().into_iter().flatten() {
        let key = rule["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            rule["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let values = values.join(",");
        parts.push(match rule["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    Some(parts.join(","))
}

/// The content of a write to a scale.
pub(crate) enum ScaleChange {
    /// A whole `Scale`.
    Put(Value),
    /// A patch of the `Scale`.
    Patch(Patch),
}

impl Store {
    /// The scale of an object.
    pub(crate) fn scale(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Value, ApiError> {
        let paths = paths(resource)?;
        let entry = self.read(resource, namespace, name)?;
        Ok(paths.scale(&value_as(&entry, resource)))
    }

    /// Changes the replicas of an object and returns its scale.
    pub(crate) fn set_scale(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        change: ScaleChange,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let name = name_of(key);
        let paths = paths(resource)?.clone();
        let entry =
            self.get(&resource.id, key).ok_or_else(|| ApiError::not_found(resource, name))?;
        let old = value_as(&entry, resource);
        let before = paths.scale(&old);
        let wanted = match change {
            ScaleChange::Put(scale) => scale,
            ScaleChange::Patch(Patch::Apply(_)) => {
                return Err(ApiError::unsupported_media_type(
                    "application/json-patch+json, application/merge-patch+json",
                ));
            }
            ScaleChange::Patch(patch) => patch.apply_to(resource, name, &before)?,
        };
        let kind = wanted["kind"].as_str().unwrap_or("Scale");
        if kind != "Scale" {
            return Err(ApiError::bad_request(format!(
                "the kind in the data ({kind}) does not match the expected kind (Scale)"
            )));
        }
        let version = meta_text(&wanted, "resourceVersion");
        if !version.is_empty() && version != "0" && version != meta_text(&old, "resourceVersion") {
            return Err(ApiError::modified(resource, name));
        }
        let replicas = match &wanted["spec"]["replicas"] {
            Value::Null => 0,
            number => number.as_i64().ok_or_else(|| {
                ApiError::bad_request(format!(
                    "Scale in version \"v1\" cannot be handled as a Scale: spec.replicas is not a \
                     whole number: {number}"
                ))
            })?,
        };
        if replicas < 0 || replicas > i64::from(i32::MAX) {
            let why = "must be greater than or equal to 0 and fit into 32 bits";
            let fault = invalid_value("spec.replicas", &replicas.to_string(), why);
            return Err(ApiError::invalid_kind("autoscaling", "Scale", name, &[fault]));
        }
        let mut new = old;
        set(&mut new, &paths.spec, replicas);
        let mut written = self.update(resource, key, new, "scale", options)?;
        let object: Value = serde_json::from_slice(&written.bytes)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        written.bytes = to_bytes(&paths.scale(&object));
        Ok(written)
    }
}

fn paths(resource: &Resource) -> Result<&ScalePaths, ApiError> {
    resource.scale.as_ref().ok_or_else(ApiError::no_such_resource)
}
