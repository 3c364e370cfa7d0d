//! Requests and responses in their wire format (`docs/facts/hooks.md`).
//!
//! Requests are parsed by hand: an error names the wrong member without its value, which may be a
//! secret.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use refit_core::change::{Objects, Patch, Patches, Verdict, update_machine::Answer};
use refit_kinds::{
    hooks::{
        API_VERSION, CanUpdateMachineResponse, CanUpdateMachineSetResponse, DiscoveryResponse,
        Handler, HookPatch, PatchType, RequestHook, UpdateMachineResponse, Verdict as Status,
    },
    json::{name, text},
};
use refit_runtime::ObjectKey;
use serde_json::{Value, json};

/// The hooks that the server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Discovery,
    CanUpdateMachine,
    CanUpdateMachineSet,
    UpdateMachine,
}

impl Hook {
    /// Every hook.
    pub(crate) const ALL: [Self; 4] =
        [Self::Discovery, Self::CanUpdateMachine, Self::CanUpdateMachineSet, Self::UpdateMachine];

    /// Name of the hook in the catalog.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Discovery => "Discovery",
            Self::CanUpdateMachine => "CanUpdateMachine",
            Self::CanUpdateMachineSet => "CanUpdateMachineSet",
            Self::UpdateMachine => "UpdateMachine",
        }
    }

    /// Name of Refit's handler; Discovery has none.
    pub(crate) fn handler(self) -> Option<&'static str> {
        match self {
            Self::Discovery => None,
            Self::CanUpdateMachine => Some("can-update-machine"),
            Self::CanUpdateMachineSet => Some("can-update-machineset"),
            Self::UpdateMachine => Some("update-machine"),
        }
    }
}

/// Why a request cannot be served. It contains no value of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// The body is not JSON.
    #[error("the body is not JSON (line {line}, column {column})")]
    NotJson {
        /// The line of the error, from 1.
        line: usize,
        /// The column of the error.
        column: usize,
    },
    /// The body has too many values.
    #[error("the body has more than {MAX_VALUES} values")]
    TooManyValues,
    /// A member is missing or has another type.
    #[error("{path} is missing or not {want}")]
    Member {
        /// Path of the member in the request.
        path: String,
        /// What the member must be.
        want: &'static str,
    },
}

/// How many values a body may have. Parsed, a value takes up to 700 bytes. A request of Cluster API
/// has about 2,000 values, and long texts are single ones.
pub const MAX_VALUES: usize = 100_000;

/// Parses a body, which must be one JSON object.
pub fn parse(body: &[u8]) -> Result<Value, BadRequest> {
    if more_values_than(MAX_VALUES, body) {
        return Err(BadRequest::TooManyValues);
    }
    let value: Value = serde_json::from_slice(body)
        .map_err(|e| BadRequest::NotJson { line: e.line(), column: e.column() })?;
    if value.is_object() { Ok(value) } else { Err(missing("the request", "an object")) }
}

/// Whether a JSON text has more values than this: each one follows an opening bracket or a comma
/// outside of strings.
fn more_values_than(most: usize, text: &[u8]) -> bool {
    let (mut in_string, mut escaped) = (false, false);
    let starts = text.iter().filter(|byte| {
        let quoted = in_string;
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ => {}
        }
        !quoted && matches!(byte, b'{' | b'[' | b',')
    });
    starts.take(most + 1).count() > most
}

/// The error for a member that is missing or has another type.
pub(crate) fn missing(path: &str, want: &'static str) -> BadRequest {
    BadRequest::Member { path: path.to_owned(), want }
}

/// Names of the three members of one side of a request.
#[derive(Clone, Copy, Debug)]
pub struct Members {
    owner: &'static str,
    infrastructure: &'static str,
    bootstrap: &'static str,
}

/// Members of CanUpdateMachine and UpdateMachine.
pub const MACHINE: Members = Members {
    owner: "machine",
    infrastructure: "infrastructureMachine",
    bootstrap: "bootstrapConfig",
};

/// Members of CanUpdateMachineSet.
pub const MACHINE_SET: Members = Members {
    owner: "machineSet",
    infrastructure: "infrastructureMachineTemplate",
    bootstrap: "bootstrapConfigTemplate",
};

/// Takes one side (`current` or `desired`) out of a request.
pub fn side(request: &mut Value, side: &str, members: Members) -> Result<Objects, BadRequest> {
    let mut object = |member: &str| {
        let value = request.get_mut(side).and_then(|s| s.get_mut(member));
        match value.map(Value::take) {
            None | Some(Value::Null) => Ok(None),
            Some(value) if value.is_object() => Ok(Some(value)),
            Some(_) => Err(missing(&format!("{side}.{member}"), "an object")),
        }
    };
    let (owner, infrastructure) = (object(members.owner)?, object(members.infrastructure)?);
    let bootstrap = object(members.bootstrap)?;
    let wanted = |value: Option<Value>, member: &str| {
        value.ok_or_else(|| missing(&format!("{side}.{member}"), "an object"))
    };
    let objects = Objects {
        owner: wanted(owner, members.owner)?,
        infrastructure: wanted(infrastructure, members.infrastructure)?,
        bootstrap,
    };
    key_of(&objects.owner).ok_or_else(|| {
        missing(&format!("{side}.{}.metadata.name and namespace", members.owner), "text")
    })?;
    Ok(objects)
}

/// Namespace and name of an object in a request.
pub(crate) fn key_of(object: &Value) -> Option<ObjectKey> {
    let (namespace, name) = (text(object, "/metadata/namespace"), name(object));
    (!namespace.is_empty() && !name.is_empty()).then(|| ObjectKey::new(namespace, name))
}

/// The response to Discovery: fixed, and independent of any cluster
/// (`docs/facts/hooks.md#discovery` and `docs/facts/hooks.md#manager-startup`).
pub(crate) fn discovery() -> DiscoveryResponse {
    let handlers = Hook::ALL.iter().filter_map(|hook| {
        Some(Handler {
            name: hook.handler()?.to_owned(),
            request_hook: RequestHook {
                api_version: API_VERSION.to_owned(),
                hook: hook.name().to_owned(),
            },
            timeout_seconds: 10,
            failure_policy: "Fail".to_owned(),
        })
    });
    DiscoveryResponse {
        api_version: API_VERSION.to_owned(),
        kind: "DiscoveryResponse".to_owned(),
        status: Status::Success,
        message: String::new(),
        handlers: handlers.collect(),
    }
}

/// The response status of a verdict: only a definite decision is a Success.
fn status_of(verdict: &Verdict) -> (Status, String, Patches, bool) {
    match verdict {
        Verdict::Cover { patches, affects_availability } => {
            (Status::Success, String::new(), patches.clone(), *affects_availability)
        }
        Verdict::Replace { .. } | Verdict::Disabled => {
            (Status::Success, verdict.message(), Patches::default(), true)
        }
        Verdict::Preserve { .. } | Verdict::NotReady(_) => {
            (Status::Failure, verdict.message(), Patches::default(), true)
        }
    }
}

/// The response to CanUpdateMachine.
pub fn can_update_machine(verdict: &Verdict) -> CanUpdateMachineResponse {
    let (status, message, patches, affects_availability) = status_of(verdict);
    CanUpdateMachineResponse {
        api_version: API_VERSION.to_owned(),
        kind: "CanUpdateMachineResponse".to_owned(),
        status,
        message,
        affects_availability,
        machine_patch: patches.owner.as_ref().map(encode),
        infrastructure_machine_patch: patches.infrastructure.as_ref().map(encode),
        bootstrap_config_patch: patches.bootstrap.as_ref().map(encode),
    }
}

/// The response to CanUpdateMachineSet.
pub fn can_update_machine_set(verdict: &Verdict) -> CanUpdateMachineSetResponse {
    let (status, message, patches, affects_availability) = status_of(verdict);
    CanUpdateMachineSetResponse {
        api_version: API_VERSION.to_owned(),
        kind: "CanUpdateMachineSetResponse".to_owned(),
        status,
        message,
        affects_availability,
        machine_set_patch: patches.owner.as_ref().map(encode),
        infrastructure_machine_template_patch: patches.infrastructure.as_ref().map(encode),
        bootstrap_config_template_patch: patches.bootstrap.as_ref().map(encode),
    }
}

/// The response to UpdateMachine.
pub(crate) fn update_machine(answer: &Answer) -> UpdateMachineResponse {
    UpdateMachineResponse {
        api_version: API_VERSION.to_owned(),
        kind: "UpdateMachineResponse".to_owned(),
        status: Status::Success,
        message: answer.message.clone(),
        retry_after_seconds: answer.retry_after_seconds,
    }
}

/// The response to a request that is not served.
pub(crate) fn failure(hook: Hook, message: &str) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": format!("{}Response", hook.name()),
        "status": Status::Failure,
        "message": message,
    })
}

/// A patch in the format that Go decodes: the JSON text as base64
/// (`docs/facts/hooks.md#canupdate-hooks`).
fn encode(patch: &Patch) -> HookPatch {
    HookPatch {
        patch_type: match patch {
            Patch::Merge(_) => PatchType::JSONMergePatch,
            Patch::Json(_) => PatchType::JSONPatch,
        },
        patch: STANDARD.encode(patch.body().to_string()),
    }
}

/// Parses `timeout` in a query: a Go duration such as `10s`, `1m0s` or `1.5s`.
pub fn timeout_of(query: Option<&str>) -> Option<Duration> {
    let value = query?.split('&').find_map(|pair| pair.strip_prefix("timeout="))?;
    go_duration(value)
}

fn go_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = rest.get(..letters)?;
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number * factor;
        rest = rest.get(letters..)?;
    }
    (seconds > 0.0).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_names_three_handlers_that_fail_closed() {
        let response = discovery();
        assert_eq!(response.handlers.len(), 3);
        for handler in &response.handlers {
            assert_eq!(handler.failure_policy, "Fail");
            assert_eq!(handler.timeout_seconds, 10);
            assert!(handler.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
            assert_eq!(handler.request_hook.api_version, API_VERSION);
        }
    }

    #[test]
    fn timeouts_are_go_durations() {
        let table = [
            ("timeout=10s", Some(10_000)),
            ("a=b&timeout=1m0s", Some(60_000)),
            ("timeout=1.5s", Some(1_500)),
            ("timeout=500ms", Some(500)),
            ("timeout=1h", Some(3_600_000)),
            ("timeout=", None),
            ("timeout=10", None),
            ("timeout=s", None),
            ("timeout=10x", None),
            ("timeout=-5s", None),
            ("timeout=0s", None),
            ("timeout=1..2s", None),
            ("", None),
        ];
        for (query, millis) in table {
            assert_eq!(timeout_of(Some(query)), millis.map(Duration::from_millis), "{query}");
        }
        assert_eq!(timeout_of(None), None);
    }

    #[test]
    fn an_error_names_the_field_without_its_value() {
        let mut request = json!({"desired": {"machine": "hunter2", "infrastructureMachine": {}}});
        let error = side(&mut request, "desired", MACHINE).unwrap_err();
        assert_eq!(error.to_string(), "desired.machine is missing or not an object");
        let error = parse(br#"{"desired": "hunter2" x"#).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
        assert!(parse(b"[]").is_err() && parse(b"").is_err());
    }

    #[test]
    fn a_request_needs_a_name_and_a_namespace() {
        let mut request = json!({"desired": {
            "machine": {"metadata": {"name": "m"}}, "infrastructureMachine": {}}});
        let error = side(&mut request, "desired", MACHINE).unwrap_err();
        assert!(error.to_string().contains("desired.machine.metadata"), "{error}");
    }

    #[test]
    fn a_bootstrap_config_may_be_absent() {
        let mut request = json!({"current": {"machine": {"metadata":
            {"name": "m", "namespace": "n"}}, "infrastructureMachine": {}}});
        assert_eq!(side(&mut request, "current", MACHINE).unwrap().bootstrap, None);
    }

    #[test]
    fn patches_are_base64_of_their_json() {
        let patch = encode(&Patch::Merge(json!({"spec": {"version": "v1.35.0"}})));
        let text = STANDARD.decode(&patch.patch).unwrap();
        assert_eq!(text, br#"{"spec":{"version":"v1.35.0"}}"#);
        assert_eq!(patch.patch_type, PatchType::JSONMergePatch);
    }
}
