//! The rules for every write: types, identity, preconditions, the fields of each endpoint, and the
//! fields that only the server sets.

use serde_json::{Value, json};

use crate::apply::ApplyError;
use crate::error::{ApiError, cause};
use crate::object::{
    check_shape, content_differs, finalizers, member, meta_mut, meta_text, set_meta,
};
use crate::resources::Resource;
use crate::schema::Cause;
use crate::store::Entry;

/// Metadata that only the server writes.
pub(crate) const SYSTEM: [&str; 5] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"];

/// Checks apiVersion and kind of a body, and adds them if a built-in kind omits them.
pub(crate) fn check_type(resource: &Resource, body: &mut Value) -> Result<(), ApiError> {
    check_shape(body).map_err(|why| {
        ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {why}",
            resource.kind, &*resource.version, resource.kind
        ))
    })?;
    let wanted = resource.api_version();
    for (key, wanted) in [("apiVersion", &*wanted), ("kind", &*resource.kind)] {
        let found = body.get(key).and_then(Value::as_str).unwrap_or_default();
        if found.is_empty() {
            if resource.custom {
                return Err(ApiError::bad_request(format!(
                    "Object '{}' is missing in the request body",
                    if key == "kind" { "Kind" } else { "apiVersion" }
                )));
            }
            body[key] = json!(wanted);
        } else if found != wanted {
            let what = if key == "kind" { "kind" } else { "API version" };
            return Err(ApiError::bad_request(format!(
                "the {what} in the data ({found}) does not match the expected {what} ({wanted})"
            )));
        }
    }
    Ok(())
}

pub(crate) fn check_namespace(
    resource: &Resource,
    namespace: &str,
    body: &mut Value,
) -> Result<(), ApiError> {
    if !resource.namespaced {
        meta_mut(body).remove("namespace");
        return Ok(());
    }
    let found = meta_text(body, "namespace");
    if found.is_empty() {
        set_meta(body, "namespace", namespace);
    } else if found != namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the \
             request ({found} does not match {namespace})"
        )));
    }
    Ok(())
}

/// uid and resourceVersion of an apply are preconditions.
pub(crate) fn check_identity(
    resource: &Resource,
    name: &str,
    config: &Value,
    entry: Option<&Entry>,
) -> Result<(), ApiError> {
    let uid = meta_text(config, "uid");
    let version = meta_text(config, "resourceVersion");
    match entry {
        None if !uid.is_empty() => {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object \
                 was found"
            );
            Err(ApiError::conflict(resource, name, &why))
        }
        None if !version.is_empty() && version != "0" => Err(ApiError::modified(resource, name)),
        Some(entry) if !uid.is_empty() && *uid != *entry.uid => {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                entry.uid
            );
            Err(ApiError::conflict(resource, name, &why))
        }
        Some(entry) if !version.is_empty() && version != entry.revision.to_string() => {
            Err(ApiError::modified(resource, name))
        }
        _ => Ok(()),
    }
}

/// Removes the fields from an apply that its endpoint does not own.
pub(crate) fn reset_fields(resource: &Resource, config: &mut Value, subresource: &str) {
    let Some(map) = config.as_object_mut() else {
        return;
    };
    if subresource == "status" {
        map.retain(|key, _| matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
        if resource.custom
            && let Some(meta) = map.get_mut("metadata").and_then(Value::as_object_mut)
        {
            meta.retain(|key, _| {
                matches!(key.as_str(), "name" | "namespace" | "uid" | "resourceVersion")
            });
        }
    } else if resource.has_status {
        map.remove("status");
    }
}

pub(crate) fn apply_error(resource: &Resource, name: &str, error: ApplyError) -> ApiError {
    let message = error.to_string();
    match error {
        ApplyError::Conflicts(conflicts) => {
            let causes: Vec<Value> = conflicts
                .iter()
                .map(|conflict| {
                    json!({
                        "reason": "FieldManagerConflict",
                        "message": conflict.message,
                        "field": conflict.field,
                    })
                })
                .collect();
            let mut error = ApiError::new(409, "Conflict", message);
            error.details = json!({"causes": causes});
            error
        }
        ApplyError::Invalid(why) => ApiError::invalid(
            resource,
            name,
            &[cause("FieldValueInvalid", "", format!("failed to apply: {why}"))],
        ),
    }
}

pub(crate) fn check_name_in_url(name: &str, object: &Value) -> Result<(), ApiError> {
    let found = meta_text(object, "name");
    if found == name {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the name of the object ({found}) does not match the name on the URL ({name})"
    )))
}

pub(crate) fn check_update_target(
    resource: &Resource,
    name: &str,
    old: &Value,
    new: &Value,
) -> Result<(), ApiError> {
    check_name_in_url(name, new)?;
    let (wanted, uid) = (meta_text(new, "uid"), meta_text(old, "uid"));
    if !wanted.is_empty() && wanted != uid {
        let why = format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
        );
        return Err(ApiError::conflict(resource, name, &why));
    }
    let wanted = meta_text(new, "resourceVersion");
    if !wanted.is_empty() && wanted != "0" && wanted != meta_text(old, "resourceVersion") {
        return Err(ApiError::modified(resource, name));
    }
    Ok(())
}

fn set_or_remove(value: &mut Value, key: &str, to: Option<&Value>) {
    let Some(map) = value.as_object_mut() else {
        return;
    };
    match to {
        Some(to) => map.insert(key.to_owned(), to.clone()),
        None => map.remove(key),
    };
}

/// Restricts each endpoint to its own fields.
pub(crate) fn separate_status(
    resource: &Resource,
    subresource: &str,
    old: &Value,
    new: &mut Value,
) {
    if subresource != "status" {
        if resource.has_status {
            set_or_remove(new, "status", old.get("status"));
        }
        return;
    }
    let status = new.get("status").cloned();
    let mut meta = new["metadata"].take();
    let managed = meta.get("managedFields").cloned();
    let resource_version = meta.get("resourceVersion").cloned();
    *new = old.clone();
    set_or_remove(new, "status", status.as_ref());
    if resource.custom {
        meta = old["metadata"].clone();
    } else {
        // Labels and annotations of built-in kinds may be written through their status.
        for key in ["ownerReferences", "finalizers"] {
            set_or_remove(&mut meta, key, member(old, &["metadata", key]));
        }
    }
    set_or_remove(&mut meta, "managedFields", managed.as_ref());
    set_or_remove(&mut meta, "resourceVersion", resource_version.as_ref());
    new["metadata"] = meta;
}

/// Keeps the system's metadata; returns a cause for each field that the client tried to change.
pub(crate) fn carry_system_metadata(old: &Value, new: &mut Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for key in SYSTEM {
        let before = member(old, &["metadata", key]).cloned();
        let meta = meta_mut(new);
        let sent = meta.get(key).filter(|sent| !sent.is_null()).cloned();
        if key != "generation" && sent.is_some() && sent != before {
            let sent = sent.unwrap_or_default();
            causes.push(cause(
                "FieldValueInvalid",
                format!("metadata.{key}"),
                format!("Invalid value: {sent}: field is immutable"),
            ));
        }
        match before {
            Some(before) => meta.insert(key.to_owned(), before),
            None => meta.remove(key),
        };
    }
    causes
}

pub(crate) fn new_finalizers(old: &Value, new: &Value) -> Option<Cause> {
    if meta_text(old, "deletionTimestamp").is_empty() {
        return None;
    }
    let before = finalizers(old);
    let added: Vec<&str> =
        finalizers(new).into_iter().filter(|item| !before.contains(item)).collect();
    let list = added.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(", ");
    (!added.is_empty()).then(|| {
        cause(
            "FieldValueForbidden",
            "metadata.finalizers",
            format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found \
                 new finalizers []string{{{list}}}"
            ),
        )
    })
}

pub(crate) fn bump_generation(resource: &Resource, old: &Value, new: &mut Value) {
    if !resource.has_generation {
        return;
    }
    let except: &[&str] = if resource.has_status { &["status"] } else { &[] };
    if content_differs(old, new, except) {
        let before = member(old, &["metadata", "generation"]).and_then(Value::as_i64);
        set_meta(new, "generation", before.unwrap_or(0) + 1);
    }
}
