//! Selects the extension to call for a hook and a namespace
//! (`docs/facts/hooks.md#extensionconfig`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};
use refit_cluster_api::kinds::ExtensionConfig;
use refit_kinds::conditions;
use refit_runtime::ObjectKey;
use serde_json::{Value, json};

use super::{
    HookError,
    client::{Refusal, Target},
};
use crate::{context::Context, live::Live};

/// A registered handler of a hook.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// `<handler>.<ExtensionConfig>`.
    pub(crate) name: String,
    timeout_seconds: i32,
    ignore_failures: bool,
    settings: BTreeMap<String, String>,
    target: Target,
}

/// The handlers of a hook for objects in a namespace, ordered by name.
///
/// An ExtensionConfig that selects the namespace and is not discovered yet is an error: ignoring it
/// would replace machines.
fn registrations(
    context: &Context,
    hook: &str,
    namespace: &str,
) -> Result<Vec<Registration>, HookError> {
    let key = ObjectKey::new("", namespace);
    let mut found = Vec::new();
    for extension in context.extensions.list() {
        let known = context.namespaces.get(&key);
        let labels = known.as_ref().map(|namespace| namespace.labels());
        if !is_for(&extension, namespace, labels)? {
            continue;
        }
        if !is_discovered(&extension) {
            return Err(HookError::NotDiscovered(extension.name_any()));
        }
        found.extend(handlers_of(&extension, hook)?);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The only handler of a hook, if there is one; more than one is an error.
pub(crate) fn only_one(
    context: &Context,
    hook: &'static str,
    namespace: &str,
) -> Result<Option<Registration>, HookError> {
    let mut found = registrations(context, hook, namespace)?;
    if found.len() > 1 {
        let names: Vec<_> = found.iter().map(|found| found.name.as_str()).collect();
        return Err(HookError::Multiple { hook, handlers: names.join(",") });
    }
    Ok(found.pop())
}

/// Whether an ExtensionConfig selects a namespace with these labels. As in Cluster API, an invalid
/// selector and an unknown namespace are errors.
fn is_for(
    extension: &Live<ExtensionConfig>,
    namespace: &str,
    labels: Option<&BTreeMap<String, String>>,
) -> Result<bool, HookError> {
    let wrong = |reason: String| HookError::Config { name: extension.name_any(), reason };
    let Some(selector) = &extension.spec.namespace_selector else {
        return Ok(false);
    };
    let selector = Selector::try_from(selector.clone())
        .map_err(|error| wrong(format!("invalid spec.namespaceSelector: {error}")))?;
    let labels = labels.ok_or_else(|| wrong(format!("Namespace {namespace} is not known")))?;
    Ok(selector.matches(labels))
}

fn is_discovered(extension: &Live<ExtensionConfig>) -> bool {
    let status = extension.status.as_ref();
    let discovered = status.and_then(|status| conditions::get(&status.conditions, "Discovered"));
    discovered.is_some_and(|condition| {
        condition.status == "True" && condition.observed_generation == extension.metadata.generation
    })
}

fn handlers_of(
    extension: &Live<ExtensionConfig>,
    hook: &str,
) -> Result<Vec<Registration>, HookError> {
    let status = extension.status.as_ref();
    let handlers = status.map(|status| status.handlers.as_slice());
    let matching =
        handlers.unwrap_or_default().iter().filter(|handler| handler.request_hook.hook == hook);
    matching
        .map(|handler| {
            let config = |reason| HookError::Config { name: extension.name_any(), reason };
            Ok(Registration {
                name: handler.name.clone(),
                timeout_seconds: handler.timeout_seconds.unwrap_or(10),
                ignore_failures: handler.failure_policy.as_deref() == Some("Ignore"),
                settings: extension.spec.settings.clone(),
                target: Target::of(&extension.spec.client_config).map_err(config)?,
            })
        })
        .collect()
}

/// Whether a selector matches labels. A missing selector matches nothing.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    selector
        .and_then(|selector| Selector::try_from(selector.clone()).ok())
        .is_some_and(|selector| selector.matches(labels))
}

impl Registration {
    /// Calls the handler. `request` gets apiVersion, kind and settings.
    ///
    /// With failurePolicy Ignore a failed call counts as an empty Success
    /// (`docs/facts/hooks.md#failure-policy`).
    pub(crate) async fn call(
        &self,
        context: &Context,
        hook: &str,
        mut request: Value,
    ) -> Result<Value, HookError> {
        request["apiVersion"] = json!(refit_kinds::hooks::API_VERSION);
        request["kind"] = json!(format!("{hook}Request"));
        if !self.settings.is_empty() {
            request["settings"] = json!(self.settings);
        }
        let handler = self.name.split('.').next().unwrap_or_default();
        let call = (hook, Some(handler));
        let outcome = context.hooks.call(&self.target, call, &request, self.timeout_seconds).await;
        match outcome {
            Ok(answer) => Ok(answer),
            Err(Refusal::Call(reason)) if self.ignore_failures => {
                tracing::info!(handler = self.name, reason, "ignoring failed hook call");
                Ok(json!({"status": "Success"}))
            }
            Err(refusal) => {
                Err(HookError::Call { handler: self.name.clone(), reason: refusal.into_reason() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn selector(value: Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn no_selector_selects_nothing_and_an_empty_one_everything() {
        assert!(!selects(None, &labels(&[])));
        assert!(selects(Some(&selector(json!({}))), &labels(&[])));
    }

    #[test]
    fn only_namespaces_that_opted_in_are_selected() {
        let opted_in = selector(json!({"matchLabels": {"refit.dev/in-place": "enabled"}}));
        assert!(selects(
            Some(&opted_in),
            &labels(&[("refit.dev/in-place", "enabled"), ("a", "b")])
        ));
        assert!(!selects(Some(&opted_in), &labels(&[("a", "b")])));
    }

    #[test]
    fn an_undecidable_match_is_an_error() {
        let extension = |selector: Value| {
            Live::<ExtensionConfig>::read(json!({
                "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
                "metadata": {"name": "refit"},
                "spec": {"clientConfig": {}, "namespaceSelector": selector},
            }))
            .unwrap()
        };
        let none = labels(&[]);
        let everything = extension(json!({}));
        assert!(is_for(&everything, "d", Some(&none)).unwrap());
        assert!(is_for(&everything, "d", None).is_err());
        let unreadable = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
        assert!(is_for(&extension(unreadable), "d", Some(&none)).is_err());
    }

    #[test]
    fn only_the_discovery_of_the_present_generation_counts() {
        let extension = |generation: i64, status: &str| {
            Live::<ExtensionConfig>::read(json!({
                "metadata": {"name": "refit", "generation": 3},
                "spec": {"clientConfig": {}},
                "status": {"conditions": [{
                    "type": "Discovered", "status": status, "reason": "R", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "observedGeneration": generation,
                }]},
            }))
            .unwrap()
        };
        assert!(is_discovered(&extension(3, "True")));
        assert!(!is_discovered(&extension(2, "True")));
        assert!(!is_discovered(&extension(3, "False")));
    }
}
