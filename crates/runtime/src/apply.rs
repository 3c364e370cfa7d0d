//! Patches and applies, built as values so that tests need no server.

use std::fmt::Debug;

use kube::{
    Api, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Whether a create made the object or found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// The object was created.
    Created,
    /// The object already existed.
    Found,
}

/// Applies `body` to an object with Refit's field manager, and takes over fields of other managers.
pub async fn apply<K>(api: &Api<K>, manager: &str, name: &str, body: &Value) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(body)).await
}

/// Applies `status` to an object's status with Refit's field manager.
pub async fn apply_status<K>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    status: &impl Serialize,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let body = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "name": name },
        "status": status,
    });
    api.patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(&body)).await
}

/// Merges `status` into an object's status only if it has not changed since it was read: a
/// compare-and-swap by merge patch with the resourceVersion. A conflict returns the API's 409.
///
/// Fields missing from `status` are kept, those of newer versions of the kind included, and `null`
/// removes a field: pass the result of [`merge_diff`].
pub async fn swap_status<K>(
    api: &Api<K>,
    name: &str,
    resource_version: &str,
    status: &Value,
) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let body = json!({ "metadata": { "resourceVersion": resource_version }, "status": status });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&body)).await
}

/// Merges `body` into an object.
pub async fn merge<K>(api: &Api<K>, name: &str, body: &Value) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await
}

/// Sets (`Some`) or removes (`None`) annotations of an object.
pub async fn annotate<K>(
    api: &Api<K>,
    name: &str,
    annotations: &[(&str, Option<&str>)],
) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    merge(api, name, &annotations_patch(annotations)).await
}

/// Builds the merge patch that sets (`Some`) or removes (`None`) annotations.
pub fn annotations_patch(annotations: &[(&str, Option<&str>)]) -> Value {
    let map: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.map_or(Value::Null, Value::from)))
        .collect();
    json!({ "metadata": { "annotations": map } })
}

/// Creates an object, or reads the existing one: the create is the compare-and-swap.
pub async fn create_or_get<K>(api: &Api<K>, object: &K) -> kube::Result<(K, Ensured)>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
{
    match api.create(&PostParams::default(), object).await {
        Ok(created) => Ok((created, Ensured::Created)),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let name = object.meta().name.clone().unwrap_or_default();
            Ok((api.get(&name).await?, Ensured::Found))
        }
        Err(error) => Err(error),
    }
}

/// The merge patch that turns `old` into `new`, with `null` for removed fields; `None` if they are
/// equal. Lists are replaced whole, so send it with a resourceVersion.
pub fn merge_diff(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut patch = serde_json::Map::new();
            for (key, value) in new {
                match old.get(key) {
                    None => {
                        patch.insert(key.clone(), value.clone());
                    }
                    Some(before) => {
                        if let Some(inner) = merge_diff(before, value) {
                            patch.insert(key.clone(), inner);
                        }
                    }
                }
            }
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ if old == new => None,
        _ => Some(new.clone()),
    }
}

/// As [`merge_diff`], for a status. One that is not stored is written whole: the API server knows no field of it.
pub fn status_diff<S: Serialize>(stored: Option<&S>, new: &S) -> Option<Value> {
    merge_diff(&json!(stored), &json!(new))
}

/// Whether the error is the API's 404.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

/// Whether the error is the API's 409: another client wrote first.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

/// Turns a 404 into `None`.
pub fn optional<K>(outcome: kube::Result<K>) -> kube::Result<Option<K>> {
    match outcome {
        Ok(object) => Ok(Some(object)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_diff_contains_only_changes_and_removals() {
        let old = json!({"a": 1, "b": {"c": 1, "d": [1]}, "e": "x"});
        let new = json!({"a": 1, "b": {"c": 2, "d": [1]}});
        assert_eq!(merge_diff(&old, &new), Some(json!({"b": {"c": 2}, "e": null})));
        assert_eq!(merge_diff(&old, &old), None);
    }

    #[test]
    fn a_status_that_is_not_stored_is_written_whole() {
        let next = json!({"counts": {"requested": 1, "failed": 0}});
        let default = json!({"counts": {"requested": 0, "failed": 0}});
        assert_eq!(status_diff(None, &next), Some(next.clone()));
        let changed = json!({"counts": {"requested": 1}});
        assert_eq!(status_diff(Some(&default), &next), Some(changed));
        assert_eq!(status_diff(Some(&next), &next), None);
    }

    #[test]
    fn an_annotation_without_value_is_removed() {
        let patch = annotations_patch(&[("a", Some("1")), ("b", None)]);
        assert_eq!(patch, json!({"metadata": {"annotations": {"a": "1", "b": null}}}));
    }
}
