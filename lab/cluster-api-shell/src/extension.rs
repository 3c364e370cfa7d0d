//! ExtensionConfig: CA injection and discovery (`docs/facts/hooks.md#discovery` and
//! `docs/facts/hooks.md#extensionconfig`).

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::{DiscoveredHandler, ExtensionConfig, ExtensionConfigStatus};
use refit_kinds::{hooks::API_VERSION, keys};
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::json;

use crate::{
    conditions::{DesiredCondition, merged},
    context::Context,
    error::Error,
    hooks::{HookError, Target, validate},
    live::Live,
    wiring,
};

/// Timeout of a discovery call, in seconds.
const TIMEOUT_SECONDS: i32 = 10;

/// Injects the CA bundle and discovers an extension's handlers. As in Cluster API, this runs when
/// the ExtensionConfig or its CA Secret changes, and when the process starts.
pub(crate) async fn reconcile(context: &Arc<Context>, key: &ObjectKey) -> Result<Action, Error> {
    let Some(extension) = context.extensions.get(key) else {
        return Ok(Action::Done);
    };
    if extension.is_deleting() || extension.annotations().contains_key(keys::PAUSED) {
        return Ok(Action::Done);
    }
    let extension = inject_ca(context, &extension).await?;
    let outcome = discover(context, &extension).await;
    write_status(context, &extension, &outcome).await?;
    outcome.map(|_| Action::Done).map_err(|reason| {
        let name = extension.name_any();
        HookError::Config { name, reason }.into()
    })
}

/// Copies the CA bundle from the Secret named by an annotation.
async fn inject_ca(
    context: &Arc<Context>,
    extension: &Arc<Live<ExtensionConfig>>,
) -> Result<Arc<Live<ExtensionConfig>>, Error> {
    let Some(reference) = extension.annotations().get(keys::INJECT_CA_FROM_SECRET) else {
        return Ok(extension.clone());
    };
    let wrong = |reason: String| HookError::Config { name: extension.name_any(), reason };
    let Some((namespace, name)) = reference.split_once('/') else {
        let key = keys::INJECT_CA_FROM_SECRET;
        let reason = format!("annotation {key}: got {reference:?}, want NAMESPACE/NAME");
        return Err(wrong(reason).into());
    };
    wiring::watch_ca_secret(context, &ObjectKey::new(namespace, name));
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let secret = api.get(name).await;
    let secret = secret.map_err(Error::api(format!("read Secret {reference}")))?;
    let bundle = secret.data.as_ref().and_then(|data| data.get("ca.crt"));
    let Some(bundle) = bundle else {
        return Err(wrong(format!("Secret {reference} has no key ca.crt")).into());
    };
    let bundle = STANDARD.encode(&bundle.0);
    if extension.spec.client_config.ca_bundle.as_deref() == Some(bundle.as_str()) {
        return Ok(extension.clone());
    }
    let body = json!({"spec": {"clientConfig": {"caBundle": bundle}}});
    context.merge(&context.extensions, extension, &body).await
}

async fn discover(
    context: &Context,
    extension: &Live<ExtensionConfig>,
) -> Result<Vec<DiscoveredHandler>, String> {
    let target = Target::of(&extension.spec.client_config)?;
    let request = json!({"apiVersion": API_VERSION, "kind": "DiscoveryRequest"});
    let call = ("Discovery", None);
    let answer = context
        .hooks
        .call(&target, call, &request, TIMEOUT_SECONDS)
        .await
        .map_err(crate::hooks::Refusal::into_reason)?;
    validate(&extension.name_any(), &answer)
}

async fn write_status(
    context: &Context,
    extension: &Live<ExtensionConfig>,
    outcome: &Result<Vec<DiscoveredHandler>, String>,
) -> Result<(), Error> {
    let existing: ExtensionConfigStatus = extension.status.clone().unwrap_or_default();
    let (condition, handlers) = match outcome {
        Ok(handlers) => {
            (DesiredCondition::new("Discovered", true, "Discovered", ""), handlers.clone())
        }
        Err(reason) => {
            let message = format!("Error in discovery: {reason}");
            let condition = DesiredCondition::new("Discovered", false, "NotDiscovered", message);
            (condition, existing.handlers.clone())
        }
    };
    let generation = extension.metadata.generation;
    let conditions = merged(&existing.conditions, context.now(), generation, &[condition]);
    let status = json!({"conditions": conditions, "handlers": handlers});
    context.merge_status(&context.extensions, extension, &status).await?;
    Ok(())
}
