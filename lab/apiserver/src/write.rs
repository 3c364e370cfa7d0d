//! Create, update and patch: the rules for metadata, status, generation and no-op writes.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::admission::{Operation, WriteRequest};
use crate::apply::{ApplyRequest, apply, track_update, update_last_applied};
use crate::builtin;
use crate::error::{ApiError, cause, required};
use crate::gc::NAMESPACES;
use crate::history::ChangeKind;
use crate::object::{
    MOST_DEPTH, check_meta, check_name, depth, member, meta_mut, meta_text, normalise_meta,
    set_meta, unchanged,
};
use crate::patch::Patch;
use crate::resources::Resource;
use crate::rules::{
    SYSTEM, apply_error, bump_generation, carry_system_metadata, check_identity, check_name_in_url,
    check_namespace, check_type, check_update_target, new_finalizers, reset_fields,
    separate_status,
};
use crate::schema::Cause;
use crate::store::{Entry, Store, key_of, name_of, namespace_of, time_text};

/// The options of a mutating request.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    pub(crate) validation: FieldValidation,
    pub(crate) force: bool,
}

/// What happens to unknown fields; all variants except `Strict` drop them.
///
/// Built-in kinds are checked only for `Warn` or `Strict`, which kubectl sends: the check needs
/// their published schemas, which simulations avoid building.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Not set: custom kinds warn.
    #[default]
    Unset,
    /// Unknown fields are dropped silently.
    Ignore,
    /// Unknown fields are dropped with a warning.
    Warn,
    /// Unknown fields are rejected.
    Strict,
}

/// The object after a write.
pub(crate) struct Written {
    pub(crate) bytes: Bytes,
    pub(crate) created: bool,
    /// Warnings for the caller.
    pub(crate) warnings: Vec<String>,
}

/// The object of an entry, in the version of the request.
pub(crate) fn value_as(entry: &Entry, resource: &Resource) -> Value {
    let mut value = entry.value();
    let wanted = resource.api_version();
    if *wanted != *entry.api_version {
        value["apiVersion"] = json!(wanted);
    }
    value
}

/// The bytes of an entry, in the version of the request.
pub(crate) fn bytes_as(entry: &Entry, api_version: &str) -> Bytes {
    if *api_version == *entry.api_version {
        return entry.bytes.clone();
    }
    let mut value = entry.value();
    value["apiVersion"] = json!(api_version);
    to_bytes(&value)
}

/// Drops unknown fields and returns a warning for each; a strict request is rejected instead.
fn drop_unknown(
    resource: &Resource,
    object: &mut Value,
    options: &WriteOptions,
) -> Result<Vec<String>, ApiError> {
    use FieldValidation::{Ignore, Strict, Unset, Warn};
    let mut unknown = resource.schema.prune(object);
    let (kind, version) = (&resource.kind, &resource.version);
    let refused = |why: String| {
        let version = &**version;
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        ))
    };
    if !resource.custom && matches!(options.validation, Warn | Strict) {
        let findings = crate::openapi::check(resource, object, true);
        if let Some(why) = findings.mistyped {
            return Err(refused(why));
        }
        unknown.extend(findings.unknown);
    }
    let list: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
    match options.validation {
        Strict if !list.is_empty() => {
            let why = format!("strict decoding error: {}", list.join(", "));
            Err(if resource.custom { ApiError::bad_request(why) } else { refused(why) })
        }
        Unset | Warn => Ok(list),
        Ignore | Strict => Ok(Vec::new()),
    }
}

pub(crate) fn to_bytes(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("a JSON value has no keys but strings"))
}

impl Store {
    /// Creates an object.
    pub(crate) fn create(
        &mut self,
        resource: &Arc<Resource>,
        namespace: &str,
        mut body: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        check_type(resource, &mut body)?;
        check_namespace(resource, namespace, &mut body)?;
        normalise_meta(&mut body);
        if !meta_text(&body, "resourceVersion").is_empty() {
            return Err(ApiError::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        self.check_home(resource, namespace, meta_text(&body, "name"))?;
        if let Some(meta) = body["metadata"].as_object_mut() {
            meta.remove("managedFields");
            meta.remove("resourceVersion");
        }
        self.finish_create(resource, namespace, body, options, false)
    }

    /// Checks that the namespace exists and is not terminating.
    fn check_home(&self, resource: &Resource, namespace: &str, name: &str) -> Result<(), ApiError> {
        if !resource.namespaced {
            return Ok(());
        }
        let home = self.registry.stored(NAMESPACES).expect("namespaces are built in");
        match self.get(NAMESPACES, &key_of("", namespace)) {
            None => Err(ApiError::not_found(home, namespace)),
            Some(entry) if entry.deleting => {
                let why = format!(
                    "unable to create new content in namespace {namespace} because it is being \
                     terminated"
                );
                let mut error = ApiError::forbidden(resource, name, &why);
                error.details["causes"] = json!([{
                    "reason": "NamespaceTerminating",
                    "message": format!("namespace {namespace} is being terminated"),
                    "field": "metadata.namespace",
                }]);
                Err(error)
            }
            Some(_) => Ok(()),
        }
    }

    fn finish_create(
        &mut self,
        resource: &Arc<Resource>,
        namespace: &str,
        mut new: Value,
        options: &WriteOptions,
        applied: bool,
    ) -> Result<Written, ApiError> {
        let meta = meta_mut(&mut new);
        for key in SYSTEM {
            meta.remove(key);
        }
        let base = meta_text(&new, "generateName").to_owned();
        let mut name = meta_text(&new, "name").to_owned();
        if name.is_empty() {
            if base.is_empty() {
                let fault = required("metadata.name", "name or generateName is required");
                return Err(ApiError::invalid(resource, "", &[fault]));
            }
            name = self.generate_name(&resource.id, namespace, &base, options.dry_run);
            set_meta(&mut new, "name", name.clone());
        }
        if resource.custom {
            if resource.has_status
                && let Some(map) = new.as_object_mut()
            {
                map.remove("status");
            }
        } else {
            builtin::prepare_create(resource, &mut new, self.now);
        }
        let mut causes: Vec<Cause> = check_name(resource.name_rule, &name).into_iter().collect();
        let (faults, mut warnings) = self.admit(resource, &mut new, None, options)?;
        causes.extend(faults);
        if !causes.is_empty() {
            return Err(ApiError::invalid(resource, &name, &causes));
        }
        let key: Arc<str> = key_of(namespace, &name).into();
        if self.get(&resource.id, &key).is_some() {
            return Err(ApiError::already_exists(resource, &name));
        }
        set_meta(&mut new, "uid", self.new_uid(&resource.id, &key));
        set_meta(&mut new, "creationTimestamp", time_text(self.now));
        if resource.has_generation {
            set_meta(&mut new, "generation", 1);
        }
        if !applied {
            let version = resource.api_version();
            let (manager, now) = (options.manager.as_str(), self.now);
            track_update(None, &mut new, manager, &version, "", now, &resource.schema);
        }
        normalise_meta(&mut new);
        warnings.extend(self.check_policies(&WriteRequest {
            resource,
            namespace,
            name: &name,
            subresource: "",
            operation: Operation::Create,
            object: Some(&new),
            old: None,
            dry_run: options.dry_run,
        })?);
        if options.dry_run {
            return Ok(Written { bytes: to_bytes(&new), created: true, warnings });
        }
        new["apiVersion"] = json!(resource.storage_api_version());
        let entry = self.commit(resource, &key, ChangeKind::Added, new);
        self.settle();
        Ok(Written { bytes: bytes_as(&entry, &resource.api_version()), created: true, warnings })
    }

    /// Prunes, defaults and validates; returns validation errors and warnings. Unknown fields in a
    /// strict request are an immediate error.
    fn admit(
        &self,
        resource: &Resource,
        new: &mut Value,
        old: Option<&Value>,
        options: &WriteOptions,
    ) -> Result<(Vec<Cause>, Vec<String>), ApiError> {
        if depth(new) > MOST_DEPTH {
            return Err(ApiError::bad_request(format!(
                "the object is nested more than {MOST_DEPTH} levels deep"
            )));
        }
        let warnings = drop_unknown(resource, new, options)?;
        resource.schema.default(new);
        if let Some(webhook) = self.webhook.as_ref().filter(|_| resource.custom) {
            webhook(new);
        }
        let mut causes = check_meta(new);
        causes.extend(resource.schema.validate(new, old));
        if !resource.custom {
            causes.extend(builtin::validate(resource, new, old));
        }
        Ok((causes, warnings))
    }

    /// Replaces an object, or its status.
    pub(crate) fn update(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        mut body: Value,
        subresource: &str,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        check_type(resource, &mut body)?;
        check_namespace(resource, namespace_of(key), &mut body)?;
        let entry = self
            .get(&resource.id, key)
            .ok_or_else(|| ApiError::not_found(resource, name_of(key)))?;
        let old = value_as(&entry, resource);
        if meta_text(&body, "name").is_empty() {
            set_meta(&mut body, "name", name_of(key));
        }
        if meta_text(&body, "resourceVersion").is_empty() && !resource.unconditional_update {
            let fault = cause(
                "FieldValueInvalid",
                "metadata.resourceVersion",
                "Invalid value: 0: must be specified for an update",
            );
            return Err(ApiError::invalid(resource, name_of(key), &[fault]));
        }
        self.finish_update(resource, key, &old, body, subresource, options, false)
    }

    /// Patches an object, or its status; an apply may create it.
    pub(crate) fn patch(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        patch: Patch,
        subresource: &str,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let entry = self.get(&resource.id, key);
        if let Patch::Apply(config) = patch {
            return self.apply(resource, key, entry.as_deref(), config, subresource, options);
        }
        let entry = entry.ok_or_else(|| ApiError::not_found(resource, name_of(key)))?;
        let old = value_as(&entry, resource);
        let mut new = patch.apply_to(resource, name_of(key), &old)?;
        check_type(resource, &mut new)?;
        check_namespace(resource, namespace_of(key), &mut new)?;
        self.finish_update(resource, key, &old, new, subresource, options, false)
    }

    fn apply(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        entry: Option<&Entry>,
        mut config: Value,
        subresource: &str,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let name = name_of(key);
        check_type(resource, &mut config)?;
        check_namespace(resource, namespace_of(key), &mut config)?;
        if options.manager.is_empty() {
            let fault = required("fieldManager", "is required for apply patch");
            return Err(ApiError::invalid_kind("meta.k8s.io", "PatchOptions", "", &[fault]));
        }
        if member(&config, &["metadata", "managedFields"]).is_some_and(|m| !m.is_null()) {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        if meta_text(&config, "name").is_empty() {
            set_meta(&mut config, "name", name);
        }
        check_name_in_url(name, &config)?;
        check_identity(resource, name, &config, entry)?;
        reset_fields(resource, &mut config, subresource);
        if depth(&config) > MOST_DEPTH {
            return Err(ApiError::bad_request("the applied configuration is nested too deep"));
        }
        let mut warnings = drop_unknown(resource, &mut config, options)?;
        if entry.is_none() {
            if !subresource.is_empty() {
                return Err(ApiError::not_found(resource, name));
            }
            self.check_home(resource, namespace_of(key), name)?;
        }
        let live = entry.map(|entry| value_as(entry, resource));
        let mut merged = apply(ApplyRequest {
            live: live.as_ref(),
            config: &config,
            manager: &options.manager,
            force: options.force,
            subresource,
            api_version: &resource.api_version(),
            now: self.now,
            schema: &resource.schema,
        })
        .map_err(|error| apply_error(resource, name, error))?;
        update_last_applied(&options.manager, &config, &mut merged);
        let mut written = match live {
            None => {
                let namespace = namespace_of(key).to_owned();
                self.finish_create(resource, &namespace, merged, options, true)?
            }
            Some(old) => {
                self.finish_update(resource, key, &old, merged, subresource, options, true)?
            }
        };
        warnings.append(&mut written.warnings);
        written.warnings = warnings;
        Ok(written)
    }

    #[expect(clippy::too_many_arguments, reason = "all parts of one write")]
    fn finish_update(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        old: &Value,
        mut new: Value,
        subresource: &str,
        options: &WriteOptions,
        applied: bool,
    ) -> Result<Written, ApiError> {
        let name = name_of(key);
        check_update_target(resource, name, old, &new)?;
        normalise_meta(&mut new);
        separate_status(resource, subresource, old, &mut new);
        let mut causes = carry_system_metadata(old, &mut new);
        if !resource.custom {
            builtin::prepare_update(resource, old, &mut new, self.now);
        }
        causes.extend(new_finalizers(old, &new));
        let (faults, mut warnings) = self.admit(resource, &mut new, Some(old), options)?;
        causes.extend(faults);
        if !causes.is_empty() {
            return Err(ApiError::invalid(resource, name, &causes));
        }
        bump_generation(resource, old, &mut new);
        if !applied {
            let version = resource.api_version();
            let (manager, now) = (options.manager.as_str(), self.now);
            let schema = &resource.schema;
            track_update(Some(old), &mut new, manager, &version, subresource, now, schema);
        }
        normalise_meta(&mut new);
        warnings.extend(self.check_policies(&WriteRequest {
            resource,
            namespace: namespace_of(key),
            name,
            subresource,
            operation: Operation::Update,
            object: Some(&new),
            old: Some(old),
            dry_run: options.dry_run,
        })?);
        let version = resource.api_version();
        if unchanged(old, &new) {
            return Ok(Written { bytes: to_bytes(old), created: false, warnings });
        }
        if options.dry_run {
            set_meta(&mut new, "resourceVersion", meta_text(old, "resourceVersion"));
            return Ok(Written { bytes: to_bytes(&new), created: false, warnings });
        }
        new["apiVersion"] = json!(resource.storage_api_version());
        let was_deleting = !meta_text(old, "deletionTimestamp").is_empty();
        let entry = if was_deleting {
            self.commit_or_remove(resource, key, new)
        } else {
            self.commit(resource, key, ChangeKind::Modified, new)
        };
        self.settle();
        Ok(Written { bytes: bytes_as(&entry, &version), created: false, warnings })
    }
}
