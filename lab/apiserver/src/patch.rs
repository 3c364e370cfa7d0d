//! Patches: parses them by content type, and applies JSON and merge patches.

use bytes::Bytes;
use json_patch::PatchOperation;
use serde_json::Value;

use crate::error::{ApiError, cause};
use crate::object::{MOST_DEPTH, depth};
use crate::resources::Resource;

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Maximum number of operations in a JSON patch, as in Kubernetes.
const MOST_OPERATIONS: usize = 10_000;

/// Maximum number of bytes that the copies of one JSON patch may add.
const MOST_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// The content types of the patches that a resource accepts.
pub(crate) fn media_types(resource: &Resource) -> impl Iterator<Item = &'static str> {
    let strategic = (!resource.custom).then_some(STRATEGIC_PATCH);
    [JSON_PATCH, MERGE_PATCH, APPLY_PATCH].into_iter().chain(strategic)
}

/// A parsed patch that is not applied yet.
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

impl Patch {
    /// Parses a patch.
    pub(crate) fn read(
        content_type: &str,
        body: &Bytes,
        resource: &Resource,
    ) -> Result<Self, ApiError> {
        let bad = |error: serde_json::Error| {
            ApiError::bad_request(format!("error decoding patch: {error}"))
        };
        match content_type {
            JSON_PATCH => {
                let patch: json_patch::Patch = serde_json::from_slice(body).map_err(bad)?;
                if patch.0.len() > MOST_OPERATIONS {
                    return Err(ApiError::new(
                        413,
                        "RequestEntityTooLarge",
                        format!(
                            "Request entity too large: The allowed maximum operations in a JSON \
                             patch is {MOST_OPERATIONS}, got {}",
                            patch.0.len()
                        ),
                    ));
                }
                Ok(Self::Json(patch))
            }
            MERGE_PATCH => Ok(Self::Merge(serde_json::from_slice(body).map_err(bad)?)),
            APPLY_PATCH => match serde_json::from_slice(body) {
                Ok(config) => Ok(Self::Apply(config)),
                Err(json) => {
                    let text = std::str::from_utf8(body)
                        .map_err(|_| ApiError::bad_request("error decoding patch: not UTF-8"))?;
                    let config = serde_saphyr::from_str(text).map_err(|yaml| {
                        ApiError::bad_request(format!(
                            "error decoding patch: neither JSON ({json}) nor YAML ({yaml})"
                        ))
                    })?;
                    Ok(Self::Apply(config))
                }
            },
            STRATEGIC_PATCH if !resource.custom => {
                Ok(Self::Strategic(serde_json::from_slice(body).map_err(bad)?))
            }
            _ => {
                let accepted: Vec<&str> = media_types(resource).collect();
                Err(ApiError::unsupported_media_type(&accepted.join(", ")))
            }
        }
    }

    /// Applies the patch and returns the new object.
    pub(crate) fn apply_to(
        &self,
        resource: &Resource,
        name: &str,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let mut new = old.clone();
        match self {
            Self::Json(patch) => apply_operations(&mut new, patch).map_err(|error| {
                let why = format!(
                    "the server rejected our request due to an error in our request: {error}"
                );
                ApiError::invalid(resource, name, &[cause("FieldValueInvalid", "", why)])
            })?,
            Self::Merge(patch) => {
                if !patch.is_object() {
                    return Err(ApiError::bad_request("error decoding patch: not an object"));
                }
                json_patch::merge(&mut new, patch);
            }
            Self::Strategic(patch) => crate::strategic::merge(&resource.kind, &mut new, patch)
                .map_err(|why| ApiError::bad_request(format!("error decoding patch: {why}")))?,
            // An apply is merged by its own rules, not into the live object here.
            Self::Apply(config) => new = config.clone(),
        }
        Ok(new)
    }
}

/// Applies the operations one by one, to bound the size of copies of copies.
fn apply_operations(object: &mut Value, patch: &json_patch::Patch) -> Result<(), String> {
    let mut copied = 0;
    for operation in &patch.0 {
        let place = operation.path().as_str().matches('/').count();
        let brought = match operation {
            PatchOperation::Add(add) => depth(&add.value),
            PatchOperation::Replace(replace) => depth(&replace.value),
            PatchOperation::Move(from) => object.pointer(from.from.as_str()).map_or(0, depth),
            PatchOperation::Copy(from) => {
                let source = object.pointer(from.from.as_str());
                copied += source.map_or(0, |source| source.to_string().len());
                source.map_or(0, depth)
            }
            PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
        };
        if place + brought > MOST_DEPTH {
            return Err(format!("the object would nest more than {MOST_DEPTH} levels deep"));
        }
        if copied > MOST_COPIED_BYTES {
            return Err(format!("the copies of the patch exceed {MOST_COPIED_BYTES} bytes"));
        }
        json_patch::patch(object, std::slice::from_ref(operation))
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}
