//! Every write of this process: sent only if it changes something, and its response stored in the
//! cache at once.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use refit_runtime::{
    ObjectKey,
    apply::is_not_found,
    events::{Announcement, EventType},
};
use serde_json::{Value, json};

use crate::{
    cache::Cache,
    context::Context,
    error::Error,
    intent::would_change,
    live::{Live, Typed},
};

/// The field manager of Cluster API's merge patches.
const MANAGER: &str = "manager";

impl Context {
    /// Applies the full intent of `manager`, unless `live` already matches it.
    ///
    /// If `live` is given, its uid is sent too, so that a deleted object is not created again
    /// (`docs/facts/control-plane.md#starting-an-update`).
    pub(crate) async fn apply<K: Typed>(
        &self,
        cache: &Cache<K>,
        manager: &str,
        live: Option<&Live<K>>,
        mut intent: Value,
    ) -> Result<Arc<Live<K>>, Error> {
        let resource = cache.resource();
        drop_empty(&mut intent);
        if let Some(live) = live
            && !would_change(live.json(), &intent, manager)
        {
            return Ok(Arc::new(live.clone()));
        }
        intent["apiVersion"] = json!(resource.api_version);
        intent["kind"] = json!(resource.kind);
        if let Some(live) = live {
            intent["metadata"]["uid"] = json!(live.uid_text());
        }
        let key = key_of(&intent);
        let api = cache.api(&self.client, &key.namespace);
        let params = PatchParams::apply(manager).force();
        let outcome = api.patch(&key.name, &params, &Patch::Apply(&intent)).await;
        let attempt = format!("apply {} {key}", resource.kind);
        Ok(keep(cache, outcome.map_err(Error::api(attempt))?))
    }

    /// The result of applying `intent` to an object, with the server's defaulting and validation.
    pub(crate) async fn dry_run<K: Typed>(
        &self,
        cache: &Cache<K>,
        manager: &str,
        mut intent: Value,
    ) -> kube::Result<Value> {
        let resource = cache.resource();
        intent["apiVersion"] = json!(resource.api_version);
        intent["kind"] = json!(resource.kind);
        let key = key_of(&intent);
        let api = cache.api(&self.client, &key.namespace);
        let mut params = PatchParams::apply(manager).force();
        params.dry_run = true;
        let object = api.patch(&key.name, &params, &Patch::Apply(&intent)).await?;
        Ok(object.json().clone())
    }

    /// Merges `body` into an object.
    pub(crate) async fn merge<K: Typed>(
        &self,
        cache: &Cache<K>,
        live: &Live<K>,
        body: &Value,
    ) -> Result<Arc<Live<K>>, Error> {
        let key = ObjectKey::of(live);
        let api = cache.api(&self.client, &key.namespace);
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let outcome = api.patch(&key.name, &params, &Patch::Merge(body)).await;
        let attempt = format!("patch {} {key}", cache.resource().kind);
        Ok(keep(cache, outcome.map_err(Error::api(attempt))?))
    }

    /// Merges `status` into an object's status.
    ///
    /// A merge patch replaces lists, and other controllers have conditions in the same list: a
    /// patch that changes conditions is conditional on the resourceVersion.
    pub(crate) async fn merge_status<K: Typed>(
        &self,
        cache: &Cache<K>,
        live: &Live<K>,
        status: &Value,
    ) -> Result<Arc<Live<K>>, Error> {
        let patch = difference(live.at("/status"), status);
        if patch.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok(Arc::new(live.clone()));
        }
        let key = ObjectKey::of(live);
        let mut body = json!({ "status": patch });
        if patch.get("conditions").is_some() {
            body["metadata"] = json!({"resourceVersion": live.resource_version()});
        }
        let api = cache.api(&self.client, &key.namespace);
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let outcome = api.patch_status(&key.name, &params, &Patch::Merge(&body)).await;
        let attempt = format!("patch the status of {} {key}", cache.resource().kind);
        Ok(keep(cache, outcome.map_err(Error::api(attempt))?))
    }

    /// Requests an object's deletion, unless it is already being deleted. A missing object is fine.
    pub(crate) async fn delete<K: Typed>(
        &self,
        cache: &Cache<K>,
        live: &Live<K>,
    ) -> Result<(), Error> {
        if live.is_deleting() {
            return Ok(());
        }
        let key = ObjectKey::of(live);
        let api = cache.api(&self.client, &key.namespace);
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: live.metadata().uid.clone(),
            resource_version: None,
        });
        match api.delete(&key.name, &params).await {
            Ok(outcome) => {
                match outcome.left() {
                    Some(object) => drop(keep(cache, object)),
                    None => cache.remove(live),
                }
                Ok(())
            }
            Err(error) if is_not_found(&error) => {
                cache.remove(live);
                Ok(())
            }
            Err(error) => {
                let attempt = format!("delete {} {key}", cache.resource().kind);
                Err(Error::api(attempt)(error))
            }
        }
    }

    /// Emits an event about an object. `occurrence` distinguishes it from an earlier event with the
    /// same text; it must be derived from stored state.
    pub(crate) async fn announce<K: Typed>(
        &self,
        cache: &Cache<K>,
        about: &Live<K>,
        (reason, message): (&str, String),
        occurrence: impl Into<String>,
    ) {
        let resource = cache.resource();
        let about = ObjectReference {
            api_version: Some(resource.api_version.clone()),
            kind: Some(resource.kind.clone()),
            namespace: about.namespace(),
            name: Some(about.name_any()),
            uid: about.uid(),
            ..ObjectReference::default()
        };
        self.recorder
            .announce(&Announcement {
                about,
                type_: EventType::Normal,
                reason: reason.to_owned(),
                message,
                occurrence: occurrence.into(),
            })
            .await;
    }
}

/// Stores a response in the cache. An object without its last finalizer no longer exists.
fn keep<K: Typed>(cache: &Cache<K>, object: Live<K>) -> Arc<Live<K>> {
    let over = object.is_deleting() && object.finalizers().is_empty();
    if over {
        cache.remove(&object);
    } else {
        cache.insert(object.clone());
    }
    Arc::new(object)
}

/// Empty labels and annotations are not stored, so they do not belong in an intent either.
fn drop_empty(intent: &mut Value) {
    if let Some(metadata) = intent["metadata"].as_object_mut() {
        metadata.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
    }
}

fn key_of(object: &Value) -> ObjectKey {
    let text = |pointer: &str| {
        let value = object.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_default()
    };
    ObjectKey::new(text("/metadata/namespace"), text("/metadata/name"))
}

/// The merge patch that writes the fields of `wanted` into `live`; fields missing from `wanted` are
/// kept. `null` in `wanted` removes a field.
fn difference(live: &Value, wanted: &Value) -> Value {
    let (Value::Object(live), Value::Object(wanted)) = (live, wanted) else {
        return wanted.clone();
    };
    let mut patch = serde_json::Map::new();
    for (key, value) in wanted {
        match live.get(key) {
            None if value.is_null() => {}
            Some(known) if known == value => {}
            Some(known) if known.is_object() && value.is_object() => {
                let below = difference(known, value);
                if below.as_object().is_some_and(|map| !map.is_empty()) {
                    patch.insert(key.clone(), below);
                }
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_patch_carries_only_differences() {
        let live = json!({"replicas": 3, "ready": 1, "initialization": {"a": true}});
        let wanted = json!({
            "replicas": 3, "ready": 2, "initialization": {"a": true, "b": true}, "gone": null,
        });
        assert_eq!(difference(&live, &wanted), json!({"ready": 2, "initialization": {"b": true}}));
    }

    #[test]
    fn an_equal_status_needs_no_patch() {
        let live = json!({"replicas": 3, "conditions": [{"type": "A"}], "other": 1});
        let wanted = json!({"replicas": 3, "conditions": [{"type": "A"}]});
        assert_eq!(difference(&live, &wanted), json!({}));
    }

    #[test]
    fn no_annotations_are_no_intent() {
        let mut intent =
            json!({"metadata": {"name": "m", "labels": {"a": "b"}, "annotations": {}}});
        drop_empty(&mut intent);
        assert_eq!(intent, json!({"metadata": {"name": "m", "labels": {"a": "b"}}}));
    }

    #[test]
    fn the_first_status_is_written_whole() {
        let wanted = json!({"replicas": 3});
        assert_eq!(difference(&Value::Null, &wanted), wanted);
        assert_eq!(
            difference(&json!({"phase": "Running"}), &json!({"phase": null})),
            json!({"phase": null})
        );
    }
}
