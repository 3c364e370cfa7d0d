//! Field ownership: server-side apply, and the tracking of every other write.
//!
//! Objects are whole JSON values with their `metadata.managedFields`. Nothing here reads a clock or
//! a store; the caller compares the result with the old object to detect a write that changes
//! nothing.

mod diff;
mod fields_v1;
mod managers;
mod merge;
mod path_set;
mod update;

#[cfg(test)]
mod list_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod update_tests;

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::schema::{Schema, drop_nulls};
use managers::{Entry, Managers, Operation, Writer};
use path_set::PathSet;

pub use update::track_update;

/// The manager of all fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The default manager of kubectl's server-side apply.
const KUBECTL: &str = "kubectl";

/// The annotation in which kubectl's client-side apply stores the applied configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const LAST_APPLIED_POINTER: &str =
    "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration";

/// Fields of `metadata` that the server writes: they have no owner, and an apply cannot set them.
const SERVER_METADATA: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// One apply: the live object, the configuration, and the manager.
#[derive(Debug, Clone, Copy)]
pub struct ApplyRequest<'a> {
    /// The stored object; `None` creates it.
    pub live: Option<&'a Value>,
    /// The applied configuration.
    pub config: &'a Value,
    /// The field manager.
    pub manager: &'a str,
    /// Whether to take over fields that other managers own.
    pub force: bool,
    /// Empty, or `status`.
    pub subresource: &'a str,
    /// The API version of the request.
    pub api_version: &'a str,
    /// The time of the request.
    pub now: jiff::Timestamp,
    /// The kind's schema.
    pub schema: &'a Schema,
}

/// Another manager's field that the configuration would change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The other manager's name.
    pub manager: String,
    /// The field, for example `.spec.replicas`.
    pub field: String,
    /// The message of a Status cause: `conflict with "name" using v1`.
    pub message: String,
}

/// Why an apply is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields that the configuration would change, sorted by manager and field.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// The configuration cannot be merged.
    #[error("{0}")]
    Invalid(String),
}

/// Merges a configuration into the live object and returns it with its `managedFields`.
///
/// Fields that the manager applied before and no longer applies are removed unless another manager
/// owns them. Metadata that the server writes is ignored in the configuration. If nothing changes,
/// the result equals the live object, times included. The caller sets defaults and validates
/// afterwards.
pub fn apply(r: ApplyRequest<'_>) -> Result<Value, ApplyError> {
    let node = r.schema.root();
    let config = prepare_config(&r)?;
    let applied = owned_by_request(merge::applied_fields(&config, node), r.subresource);
    let before = Managers::of_object(r.live);
    let mut managers = before.clone();
    if let Some(live) = r.live.filter(|_| managers.is_empty()) {
        remember_before_first_apply(&mut managers, live, &r);
    }
    let me = Writer::apply(r.manager, r.subresource);
    let last = managers.set_of(&me).cloned().unwrap_or_default();
    managers.insert(
        me.clone(),
        Entry { api_version: r.api_version.to_owned(), time: managers.time_of(&me), set: applied },
    );

    let mut merged = r.live.cloned().unwrap_or_else(|| Value::Object(Map::new()));
    managers::take_managed_fields(&mut merged);
    merge::merge(&mut merged, &config, node)?;
    if !last.is_empty() {
        merge::remove_abandoned(&mut merged, node, &last, &managers.union());
    }

    let mut changes = diff::diff(r.live, &merged, node);
    let mut touched = std::mem::take(&mut changes.modified);
    touched.merge(changes.added);
    touched.strip_unowned();
    let mut disputed = touched.clone();
    disputed.subtract(&client_side(&r));
    let conflicts = managers.conflicts(&me, &disputed);
    if !conflicts.is_empty() && !r.force {
        return Err(ApplyError::Conflicts(conflicts));
    }
    managers.take_from_others(&me, &touched);
    managers.take_from_others(&me, &changes.removed);
    managers.drop_empty();

    if let Some(live) = r.live
        && managers == before
        && managers::without_managed_fields(live) == merged
    {
        return Ok(live.clone());
    }
    managers.stamp(&me, r.now);
    managers.write_to(&mut merged);
    Ok(merged)
}

/// The configuration without the fields that an apply cannot set: nulls of non-nullable fields, the
/// server's metadata, and fields of another endpoint.
fn prepare_config(r: &ApplyRequest<'_>) -> Result<Value, ApplyError> {
    let Value::Object(fields) = r.config else {
        return Err(ApplyError::Invalid("the applied configuration must be an object".to_owned()));
    };
    let managed = r.config.pointer("/metadata/managedFields").and_then(Value::as_array);
    if managed.is_some_and(|entries| !entries.is_empty()) {
        return Err(ApplyError::Invalid("metadata.managedFields must be nil".to_owned()));
    }
    let of_status = |key: &str| matches!(key, "apiVersion" | "kind" | "status");
    let mut config: Map<String, Value> = fields
        .iter()
        .filter(|(key, _)| r.subresource != "status" || of_status(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if let Some(Value::Object(metadata)) = config.get_mut("metadata") {
        for key in SERVER_METADATA {
            metadata.remove(key);
        }
    }
    let mut config = Value::Object(config);
    drop_nulls(r.schema.root(), &mut config);
    Ok(config)
}

/// The unchanged fields of kubectl's client-side apply: its server-side apply takes them over
/// without a conflict.
fn client_side(r: &ApplyRequest<'_>) -> PathSet {
    let last = r
        .live
        .filter(|_| r.manager == KUBECTL)
        .and_then(|live| live.pointer(LAST_APPLIED_POINTER)?.as_str())
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let (Some(live), Some(last)) = (r.live, last) else {
        return PathSet::default();
    };
    let node = r.schema.root();
    let mut fields = merge::applied_fields(&last, node);
    fields.subtract(&diff::diff(Some(live), &last, node).modified);
    fields
}

/// Updates the annotation of kubectl's client-side apply after its server-side apply.
pub(crate) fn update_last_applied(manager: &str, config: &Value, merged: &mut Value) {
    if manager != KUBECTL {
        return;
    }
    if let Some(annotation) = merged.pointer_mut(LAST_APPLIED_POINTER) {
        let mut config = config.clone();
        if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
            annotations.remove(LAST_APPLIED);
        }
        *annotation = Value::from(format!("{config}\n"));
    }
}

/// The part of a set that a request through this endpoint may own.
fn owned_by_request(mut set: PathSet, subresource: &str) -> PathSet {
    set.strip_unowned();
    if subresource == "status" {
        set.children.retain(|element, _| element == "f:status");
    }
    set
}

/// Assigns an object without any entries to a separate manager, so that the first apply does not
/// silently take it over.
fn remember_before_first_apply(managers: &mut Managers, live: &Value, r: &ApplyRequest<'_>) {
    let mut set = merge::all_fields(live, r.schema.root());
    set.strip_unowned();
    let writer = Writer {
        operation: Operation::Update,
        manager: BEFORE_FIRST_APPLY.to_owned(),
        api_version: r.api_version.to_owned(),
        subresource: String::new(),
    };
    let entry =
        Entry { api_version: r.api_version.to_owned(), time: Some(managers::time(r.now)), set };
    managers.insert(writer, entry);
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [conflict] = conflicts {
        return format!("Apply failed with 1 conflict: {}: {}", conflict.message, conflict.field);
    }
    let mut text = format!("Apply failed with {} conflicts: ", conflicts.len());
    let mut last = "";
    for conflict in conflicts {
        if conflict.message != last {
            let separator = if last.is_empty() { "" } else { "\n" };
            let rest = conflict.message.strip_prefix("conflict").unwrap_or(&conflict.message);
            write!(text, "{separator}conflicts{rest}:").expect("writing to a String cannot fail");
            last = &conflict.message;
        }
        write!(text, "\n- {}", conflict.field).expect("writing to a String cannot fail");
    }
    text
}
