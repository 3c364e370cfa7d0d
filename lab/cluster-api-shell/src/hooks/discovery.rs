//! Validates a Discovery response (`docs/facts/hooks.md#discovery`).

use std::collections::BTreeSet;

use refit_cluster_api::kinds::DiscoveredHandler;
use refit_kinds::hooks::{API_VERSION, RequestHook};
use serde_json::Value;

/// Every hook of the Runtime SDK's catalog. A handler of any other hook invalidates the whole
/// response.
const CATALOG: [&str; 16] = [
    "AfterClusterUpgrade",
    "AfterControlPlaneInitialized",
    "AfterControlPlaneUpgrade",
    "AfterWorkersUpgrade",
    "BeforeClusterCreate",
    "BeforeClusterDelete",
    "BeforeClusterUpgrade",
    "BeforeControlPlaneUpgrade",
    "BeforeWorkersUpgrade",
    "CanUpdateMachine",
    "CanUpdateMachineSet",
    "DiscoverVariables",
    "GeneratePatches",
    "GenerateUpgradePlan",
    "UpdateMachine",
    "ValidateTopology",
];
/// Default timeout of a handler.
const DEFAULT_TIMEOUT_SECONDS: i64 = 10;
/// Maximum timeout of a handler.
const MAX_TIMEOUT_SECONDS: i64 = 30;

/// Sets defaults and validates a Discovery response. All errors are returned in one text; a single
/// error rejects all handlers.
pub(crate) fn validate(extension: &str, answer: &Value) -> Result<Vec<DiscoveredHandler>, String> {
    let mut errors = Vec::new();
    if extension.contains('.') {
        errors.push(format!(
            "ExtensionConfig name {extension} is not valid: it must not contain a dot"
        ));
    }
    let no_handlers = Vec::new();
    let handlers = answer["handlers"].as_array().unwrap_or(&no_handlers);
    let mut names = BTreeSet::new();
    let mut discovered = Vec::new();
    for handler in handlers {
        let name = handler["name"].as_str().unwrap_or_default();
        if !names.insert(name) {
            errors.push(format!("duplicate name for handler {name} found"));
        }
        discovered.push(check(extension, name, handler, &mut errors));
    }
    match errors.as_slice() {
        [] => Ok(discovered),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn check(
    extension: &str,
    name: &str,
    handler: &Value,
    errors: &mut Vec<String>,
) -> DiscoveredHandler {
    if !is_dns_label(name) {
        errors.push(format!("handler name {name} is not valid"));
    }
    let timeout = match handler["timeoutSeconds"].as_i64() {
        None | Some(0) => DEFAULT_TIMEOUT_SECONDS,
        Some(seconds) => seconds,
    };
    if !(0..=MAX_TIMEOUT_SECONDS).contains(&timeout) {
        errors.push(format!(
            "handler {name} timeoutSeconds {timeout} must be between 0 and {MAX_TIMEOUT_SECONDS}"
        ));
    }
    let policy = match handler["failurePolicy"].as_str() {
        None | Some("") => "Fail",
        Some(policy) => policy,
    };
    if !["Fail", "Ignore"].contains(&policy) {
        errors.push(format!(
            "handler {name} failurePolicy {policy} must equal \"Ignore\" or \"Fail\""
        ));
    }
    let text = |key: &str| handler["requestHook"][key].as_str().unwrap_or_default();
    let (api_version, hook) = (text("apiVersion"), text("hook"));
    if api_version.split('/').count() > 2 {
        errors.push(format!("handler {name} requestHook apiVersion {api_version} is not valid"));
    } else if api_version != API_VERSION || !CATALOG.contains(&hook) {
        errors.push(format!(
            "handler {name} requestHook {api_version}/{hook} is not in the Runtime SDK catalog"
        ));
    }
    DiscoveredHandler {
        name: format!("{name}.{extension}"),
        request_hook: RequestHook { api_version: api_version.to_owned(), hook: hook.to_owned() },
        timeout_seconds: i32::try_from(timeout).ok(),
        failure_policy: Some(policy.to_owned()),
    }
}

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
        && bytes.first().is_some_and(|byte| inner(*byte))
        && bytes.last().is_some_and(|byte| inner(*byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn handler(name: &str, hook: &str) -> Value {
        json!({"name": name, "requestHook": {"apiVersion": API_VERSION, "hook": hook}})
    }

    fn refused(handlers: &[Value]) -> String {
        validate("refit", &json!({"handlers": handlers})).unwrap_err()
    }

    #[test]
    fn defaults_are_filled_in_and_names_carry_the_extension() {
        let answer = json!({"handlers": [handler("update-machine", "UpdateMachine")]});
        let handlers = validate("refit", &answer).unwrap();
        assert_eq!(handlers[0].name, "update-machine.refit");
        assert_eq!(handlers[0].timeout_seconds, Some(10));
        assert_eq!(handlers[0].failure_policy.as_deref(), Some("Fail"));
    }

    #[test]
    fn each_error_has_its_text() {
        let with = |key: &str, value: Value| {
            let mut handler = handler("h", "UpdateMachine");
            handler[key] = value;
            handler
        };
        let cases: [(Value, &str); 7] = [
            (handler("a.b", "UpdateMachine"), "handler name a.b is not valid"),
            (handler("", "UpdateMachine"), "handler name  is not valid"),
            (
                with("timeoutSeconds", json!(31)),
                "handler h timeoutSeconds 31 must be between 0 and 30",
            ),
            (
                with("timeoutSeconds", json!(-1)),
                "handler h timeoutSeconds -1 must be between 0 and 30",
            ),
            (
                with("failurePolicy", json!("Maybe")),
                "handler h failurePolicy Maybe must equal \"Ignore\" or \"Fail\"",
            ),
            (
                handler("h", "FlyMachine"),
                "handler h requestHook hooks.runtime.cluster.x-k8s.io/v1alpha1/FlyMachine is not \
                 in the Runtime SDK catalog",
            ),
            (
                with("requestHook", json!({"apiVersion": "a/b/c", "hook": "UpdateMachine"})),
                "handler h requestHook apiVersion a/b/c is not valid",
            ),
        ];
        for (handler, want) in cases {
            assert_eq!(refused(&[handler]), want);
        }
    }

    #[test]
    fn all_errors_are_in_one_text_and_nothing_is_registered() {
        let text = refused(&[
            handler("h", "UpdateMachine"),
            handler("h", "CanUpdateMachine"),
            handler("x", "FlyMachine"),
        ]);
        assert!(text.starts_with("[duplicate name for handler h found, handler x requestHook"));
    }

    #[test]
    fn an_extension_name_with_a_dot_is_ambiguous() {
        assert!(validate("a.b", &json!({})).is_err());
        assert_eq!(validate("a-b", &json!({})).unwrap(), []);
    }

    #[test]
    fn a_timeout_of_zero_is_the_default() {
        let mut zero = handler("h", "UpdateMachine");
        zero["timeoutSeconds"] = json!(0);
        let handlers = validate("refit", &json!({"handlers": [zero]})).unwrap();
        assert_eq!(handlers[0].timeout_seconds, Some(10));
    }
}
