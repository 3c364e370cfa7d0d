//! Errors of the API; each is a `metav1.Status` on the wire.

use serde_json::{Value, json};

use crate::resources::Resource;
use crate::schema::Cause;

/// A rejected request, with the content of its `Status`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, as `metav1.StatusReason`; empty if Kubernetes omits it.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
    /// `Status.details`, or null.
    pub details: Value,
    /// `Status.metadata`, or null.
    pub metadata: Value,
}

impl ApiError {
    /// An error from its parts, without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, metadata: Value::Null }
    }

    fn about(
        resource: &Resource,
        name: &str,
        code: u16,
        reason: &'static str,
        message: String,
    ) -> Self {
        let mut details = json!({"name": name, "kind": &*resource.plural});
        if !resource.group.is_empty() {
            details["group"] = json!(&*resource.group);
        }
        Self { code, reason, message, details, metadata: Value::Null }
    }

    /// 404 for an object.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.id);
        Self::about(resource, name, 404, "NotFound", message)
    }

    /// 404 for an unknown path inside the API groups.
    pub fn no_such_resource() -> Self {
        let mut error =
            Self::new(404, "NotFound", "the server could not find the requested resource");
        error.details = json!({});
        error
    }

    /// 409 for a name that already exists.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.id);
        Self::about(resource, name, 409, "AlreadyExists", message)
    }

    /// 409 for a failed precondition.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.id);
        Self::about(resource, name, 409, "Conflict", message)
    }

    /// 409 for a stale resourceVersion.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and \
             try again",
        )
    }

    /// 403.
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", resource.id);
        Self::about(resource, name, 403, "Forbidden", message)
    }

    /// 422 for an invalid object; `causes` name the fields.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(&resource.group, &resource.kind, name, causes)
    }

    /// 422 for an invalid object that is not a stored resource (options of a request).
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let mut lines: Vec<String> = Vec::new();
        for cause in causes {
            let line = if cause.field.is_empty() {
                cause.message.clone()
            } else {
                format!("{}: {}", cause.field, cause.message)
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let text =
            if lines.len() == 1 { lines.remove(0) } else { format!("[{}]", lines.join(", ")) };
        let mut details = json!({
            "name": name,
            "kind": kind,
            "causes": causes.iter().map(|cause| json!({
                "reason": cause.reason,
                "message": cause.message,
                "field": cause.field,
            })).collect::<Vec<_>>(),
        });
        if !group.is_empty() {
            details["group"] = json!(group);
        }
        let message = format!("{qualified} \"{name}\" is invalid: {text}");
        Self { code: 422, reason: "Invalid", message, details, metadata: Value::Null }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 405 for a verb that the resource does not support.
    pub fn method_not_allowed() -> Self {
        let mut error = Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        error.details = json!({});
        error
    }

    /// 406 for an `Accept` header that excludes JSON.
    pub fn not_acceptable() -> Self {
        Self::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        )
    }

    /// 415 for a body in a format that the verb does not accept.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types \
                 include: {accepted}"
            ),
        )
    }

    /// 410 for a resourceVersion that is no longer in the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413 for a request beyond the body limit.
    pub fn too_large(limit: usize) -> Self {
        Self::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// An error with only a code, as the fault layer returns it.
    pub fn of_code(code: u16) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server rejected our request for an unknown reason"),
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden: the fault layer rejects this request"),
            404 => ("NotFound", "the server could not find the requested resource"),
            409 => (
                "Conflict",
                "Operation cannot be fulfilled: the object has been modified; please apply your \
                 changes to the latest version and try again",
            ),
            410 => ("Expired", "The resourceVersion for the provided list is too old."),
            429 => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later",
            ),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "Timeout: request did not complete within requested timeout"),
            _ => ("InternalError", "Internal error occurred: injected fault"),
        };
        Self::new(code, reason, message)
    }

    /// The `metav1.Status` object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.metadata.is_null() {
            status["metadata"] = self.metadata.clone();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

/// One cause, worded like Kubernetes' field errors.
pub(crate) fn cause(
    reason: &'static str,
    field: impl Into<String>,
    message: impl Into<String>,
) -> Cause {
    Cause { reason, field: field.into(), message: message.into() }
}

/// `FieldValueInvalid`, with the value quoted as Kubernetes does.
pub(crate) fn invalid_value(field: impl Into<String>, value: &str, why: &str) -> Cause {
    cause("FieldValueInvalid", field, format!("Invalid value: {}: {why}", json!(value)))
}

/// `FieldValueRequired`.
pub(crate) fn required(field: impl Into<String>, why: &str) -> Cause {
    let message =
        if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
    cause("FieldValueRequired", field, message)
}
