//! Deletion: preconditions, propagation, graceful termination of pods.

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::gc::{FOREGROUND, NAMESPACES, ORPHAN, mark_deleting, namespace_finalizers};
use crate::history::ChangeKind;
use crate::object::{
    add_finalizer, finalizers, member, meta_text, remove_finalizer, set_meta, text, unchanged,
};
use crate::resources::Resource;
use crate::store::{Entry, Store, name_of, time_text};

/// What happens to the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They are deleted after it.
    Background,
    /// It is deleted after them.
    Foreground,
    /// They are kept.
    Orphan,
}

/// `metav1.DeleteOptions`, from body and query.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// Reads the options from a body; missing fields keep the values from the query.
    pub(crate) fn merge(mut self, body: &Value) -> Result<Self, ApiError> {
        if let Some(grace) = body.get("gracePeriodSeconds").and_then(Value::as_i64) {
            self.grace = Some(grace);
        }
        if let Some(policy) = body.get("propagationPolicy").and_then(Value::as_str) {
            self.propagation = Some(parse_propagation(policy)?);
        }
        if self.propagation.is_none()
            && body.get("orphanDependents").and_then(Value::as_bool) == Some(true)
        {
            self.propagation = Some(Propagation::Orphan);
        }
        if let Some(conditions) = body.get("preconditions") {
            let read = |key: &str| conditions.get(key).and_then(Value::as_str).map(str::to_owned);
            self.uid = read("uid").or(self.uid);
            self.resource_version = read("resourceVersion").or(self.resource_version);
        }
        if body.get("dryRun").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
            self.dry_run = true;
        }
        Ok(self)
    }
}

/// Reads a propagation policy.
pub(crate) fn parse_propagation(text: &str) -> Result<Propagation, ApiError> {
    match text {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => Err(ApiError::bad_request(format!(
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \
             {other:?}: supported values: \"Background\", \"Foreground\", \"Orphan\""
        ))),
    }
}

/// The result of a deletion.
#[derive(Debug)]
pub(crate) enum Deletion {
    /// The object was removed; its last state.
    Gone(Value),
    /// The object waits for finalizers or its kubelet; its current state.
    Waits(Value),
}

impl Store {
    /// Deletes one object, or marks it as being deleted.
    pub(crate) fn delete_entry(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        options: &DeleteOptions,
    ) -> Result<Deletion, ApiError> {
        let name = name_of(key);
        let entry =
            self.get(&resource.id, key).ok_or_else(|| ApiError::not_found(resource, name))?;
        check_preconditions(resource, name, &entry, options)?;
        let old = entry.value();
        let mut new = old.clone();
        match options.propagation {
            Some(Propagation::Background) => {
                remove_finalizer(&mut new, FOREGROUND);
                remove_finalizer(&mut new, ORPHAN);
            }
            Some(Propagation::Foreground) => {
                remove_finalizer(&mut new, ORPHAN);
                add_finalizer(&mut new, FOREGROUND);
            }
            Some(Propagation::Orphan) => {
                remove_finalizer(&mut new, FOREGROUND);
                add_finalizer(&mut new, ORPHAN);
            }
            None => {}
        }
        let grace = grace_of(resource, &old, options);
        let held = !finalizers(&new).is_empty()
            || (&*resource.id == NAMESPACES && !namespace_finalizers(&new).is_empty());
        if grace == 0 && !held {
            if !options.dry_run {
                self.commit(resource, key, ChangeKind::Deleted, new.clone());
            }
            return Ok(Deletion::Gone(new));
        }
        self.mark(resource, &entry, &old, &mut new, grace);
        if unchanged(&old, &new) {
            return Ok(Deletion::Waits(old));
        }
        if options.dry_run {
            return Ok(Deletion::Waits(new));
        }
        let entry = self.commit(resource, key, ChangeKind::Modified, new);
        Ok(Deletion::Waits(entry.value()))
    }

    fn mark(&self, resource: &Resource, entry: &Entry, old: &Value, new: &mut Value, grace: i64) {
        if entry.deleting {
            let before = member(old, &["metadata", "deletionGracePeriodSeconds"]);
            let before = before.and_then(Value::as_i64).unwrap_or(0);
            if grace < before {
                // A second delete may only shorten the grace period.
                let end: Option<jiff::Timestamp> = meta_text(old, "deletionTimestamp").parse().ok();
                let end = end.unwrap_or(self.now) - SignedDuration::from_secs(before - grace);
                mark_deleting(new, &time_text(end), grace);
            }
            return;
        }
        let end = self.now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(self.now);
        mark_deleting(new, &time_text(end), grace);
        let generation = member(old, &["metadata", "generation"]).and_then(Value::as_i64);
        if let Some(generation) = generation.filter(|generation| *generation > 0) {
            set_meta(new, "generation", generation + 1);
        }
        if &*resource.id == NAMESPACES {
            Self::mark_terminating(new);
        }
    }
}

fn check_preconditions(
    resource: &Resource,
    name: &str,
    entry: &Entry,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != &*entry.uid) {
        let found = &entry.uid;
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(ApiError::conflict(resource, name, &why));
    }
    let found = entry.revision.to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != found) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in \
             object meta: {found}"
        );
        return Err(ApiError::conflict(resource, name, &why));
    }
    Ok(())
}

/// Ten years: longer than any grace period, and far from timestamp overflow.
const LONGEST_GRACE_SECONDS: i64 = 315_360_000;

/// Grace period in seconds: non-zero only for pods on a node, which have a kubelet to end them.
fn grace_of(resource: &Resource, value: &Value, options: &DeleteOptions) -> i64 {
    if &*resource.id != "pods" {
        return 0;
    }
    let ended = matches!(text(value, &["status", "phase"]), "Succeeded" | "Failed");
    if ended || text(value, &["spec", "nodeName"]).is_empty() {
        return 0;
    }
    let from_spec =
        member(value, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
    let current =
        member(value, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    let wanted = options.grace.filter(|grace| *grace >= 0).or(current).or(from_spec).unwrap_or(30);
    current.map_or(wanted, |current| wanted.min(current)).clamp(0, LONGEST_GRACE_SECONDS)
}

/// The `Status` response for a completed deletion.
pub(crate) fn success(resource: &Resource, value: &Value) -> Value {
    let mut details = json!({
        "name": meta_text(value, "name"),
        "kind": &*resource.plural,
        "uid": meta_text(value, "uid"),
    });
    if !resource.group.is_empty() {
        details["group"] = json!(&*resource.group);
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}
