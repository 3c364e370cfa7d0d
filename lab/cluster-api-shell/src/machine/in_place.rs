//! In-place update of a Machine: polls the UpdateMachine hook until it is done
//! (`docs/facts/machine.md#in-place-update`; the numbers in comments are its steps).

use std::{sync::Arc, time::Duration};

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, update_hook_pending};
use refit_kinds::keys;
use refit_runtime::ObjectKey;
use serde_json::{Value, json};

use super::{Part, Parts, up_to_date::UPDATING};
use crate::{
    context::{Context, lock, namespace_of},
    error::Error,
    hooks::{HookError, for_hooks, only_one},
    live::{Live, Typed},
};

const HOOK: &str = keys::UPDATE_MACHINE_HOOK;
/// The message of a Machine whose hook failed; the reason is only in the log (step 11).
const FAILED: &str = "UpdateMachine hook failed: please check controller logs for errors";

/// The result of one reconcile of a Machine's update.
#[derive(Debug, Default)]
pub(super) struct Update {
    /// Reason and message of the condition `Updating`, if they differ from the default.
    pub(super) condition: Option<(&'static str, String)>,
    /// When to reconcile again.
    pub(super) requeue: Option<Duration>,
    /// The error, returned after status is written.
    pub(super) error: Option<Error>,
}

impl Update {
    fn failed(message: &str, error: impl Into<Error>) -> Self {
        Self {
            condition: Some(("InPlaceUpdateFailed", message.to_owned())),
            requeue: None,
            error: Some(error.into()),
        }
    }

    fn running(message: &str, wait: Duration) -> Self {
        let text =
            if message.is_empty() { UPDATING.to_owned() } else { format!("{UPDATING}: {message}") };
        Self { condition: Some(("InPlaceUpdating", text)), requeue: Some(wait), error: None }
    }
}

impl From<Result<(), Error>> for Update {
    fn from(outcome: Result<(), Error>) -> Self {
        Self { error: outcome.err(), ..Self::default() }
    }
}

/// Advances a Machine's update by one step.
pub(super) async fn reconcile(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    parts: &Parts,
) -> Update {
    match stage(machine, parts) {
        Stage::None => Update::default(),
        Stage::Orphaned => {
            tracing::info!(
                machine = machine.name_any(),
                "In-place update annotation removed but UpdateMachine hook still pending, cleaning \
                 up orphaned hook and annotations"
            );
            complete(context, machine, parts).await.into()
        }
        Stage::Waiting(reason) => {
            tracing::debug!(machine = machine.name_any(), reason);
            Update::default()
        }
        Stage::NoInfrastructure => {
            let message = "In-place update not possible: InfraMachine not found";
            let missing = Error::Missing {
                kind: parts.infrastructure.reference.kind.clone(),
                name: parts.infrastructure.reference.name.clone(),
            };
            Update::failed(message, missing)
        }
        Stage::Call => call(context, machine, parts).await,
    }
}

/// The stage of a Machine's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    None,
    /// The annotation was removed, which abandons an update.
    Orphaned,
    /// Waiting for another controller.
    Waiting(&'static str),
    /// The infrastructure machine is gone.
    NoInfrastructure,
    Call,
}

fn stage(machine: &Live<Machine>, parts: &Parts) -> Stage {
    let pending = update_hook_pending(machine.annotations());
    let marked = machine.annotations().contains_key(keys::UPDATE_IN_PROGRESS);
    // 2 and 3
    match (marked, pending) {
        (false, false) => return Stage::None,
        (false, true) => return Stage::Orphaned,
        (true, false) => {
            return Stage::Waiting(
                "Machine marked for in-place update, waiting for owning controller to mark \
                 UpdateMachine hook as pending",
            );
        }
        (true, true) => {}
    }
    // 4
    let status = machine.status.clone().unwrap_or_default();
    let reached = status.initialization.unwrap_or_default();
    let provisioned = reached.infrastructure_provisioned == Some(true);
    let bootstrapped = reached.bootstrap_data_secret_created == Some(true)
        || machine.spec.bootstrap.config_ref.is_none();
    if !provisioned || !bootstrapped || status.node_ref.is_none() {
        return Stage::Waiting("the Machine is not fully provisioned yet");
    }
    // 5
    if parts.infrastructure.object.is_none() {
        return Stage::NoInfrastructure;
    }
    // 6
    let is_marked = |part: &Part| {
        part.object
            .as_ref()
            .is_some_and(|object| object.annotations().contains_key(keys::UPDATE_IN_PROGRESS))
    };
    if !parts.all().all(is_marked) {
        return Stage::Waiting(
            "Waiting for InfraMachine and BootstrapConfig to be marked for in-place update",
        );
    }
    Stage::Call
}

async fn call(context: &Arc<Context>, machine: &Live<Machine>, parts: &Parts) -> Update {
    // 7
    let extension = match only_one(context, HOOK, &namespace_of(machine)) {
        Ok(Some(extension)) => extension,
        Ok(None) => return Update::failed(FAILED, HookError::NoExtension(HOOK)),
        Err(error) => return Update::failed(FAILED, error),
    };
    // 8
    let key = ObjectKey::of(machine);
    let wait = lock(&context.calls).wait(&key, context.clock.now());
    if let Some((rest, message)) = wait {
        let rest = Duration::try_from(rest).unwrap_or_default();
        return Update::running(&message, rest);
    }
    // 9 and 10
    let request = json!({ "desired": desired(context, machine, parts) });
    let answer = match extension.call(context, HOOK, request).await {
        Ok(answer) => answer,
        Err(error) => return Update::failed(FAILED, error),
    };
    let seconds = match retry_after_seconds(&answer) {
        Ok(seconds) => seconds,
        Err(reason) => {
            let handler = extension.name.clone();
            return Update::failed(FAILED, HookError::Call { handler, reason });
        }
    };
    let message = answer["message"].as_str().unwrap_or_default();
    // 12: a negative number counts as done, as in Cluster API.
    if seconds > 0 {
        let now = context.clock.now();
        lock(&context.calls).put(key, now, seconds, message.to_owned());
        let wait = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        return Update::running(message, wait);
    }
    // 13
    tracing::info!(machine = machine.name_any(), "In-place update completed");
    lock(&context.calls).forget(&key);
    complete(context, machine, parts).await.into()
}

/// When the extension wants another call. A value that Go cannot decode is an error: as 0 it would
/// end an unfinished update.
fn retry_after_seconds(answer: &Value) -> Result<i32, String> {
    let value = &answer["retryAfterSeconds"];
    if value.is_null() {
        return Ok(0);
    }
    let seconds = value.as_i64().and_then(|value| i32::try_from(value).ok());
    seconds.ok_or_else(|| {
        format!("failed to decode response: retryAfterSeconds {value} is not a 32-bit number")
    })
}

fn desired(context: &Context, machine: &Live<Machine>, parts: &Parts) -> Value {
    fn of_resource<K: Typed>(resource: &kube::discovery::ApiResource, object: &Live<K>) -> Value {
        let mut json = for_hooks(object.json());
        json["apiVersion"] = json!(resource.api_version);
        json["kind"] = json!(resource.kind);
        json
    }
    let mut desired = json!({ "machine": of_resource(context.machines.resource(), machine) });
    for (key, part) in [
        ("infrastructureMachine", Some(&parts.infrastructure)),
        ("bootstrapConfig", parts.bootstrap.as_ref()),
    ] {
        if let Some(part) = part
            && let Some(object) = &part.object
        {
            desired[key] = of_resource(part.cache.resource(), object);
        }
    }
    desired
}

/// Completes an update: removes the annotation from the Machine, then from its parts, and finally
/// clears the pending hook. Completed steps are skipped, so a retry is safe.
async fn complete(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    parts: &Parts,
) -> Result<(), Error> {
    unmark(context, &context.machines, machine).await?;
    for part in parts.all() {
        if let Some(object) = &part.object {
            unmark(context, &part.cache, object).await?;
        }
    }
    let hooks = machine.annotations().get(keys::PENDING_HOOKS);
    let left: Vec<&str> = hooks
        .map(|hooks| hooks.split(',').filter(|hook| *hook != HOOK).collect())
        .unwrap_or_default();
    let value = match left.as_slice() {
        [] => Value::Null,
        left => json!(left.join(",")),
    };
    let body = json!({"metadata": {"annotations": {keys::PENDING_HOOKS: value}}});
    context.merge(&context.machines, machine, &body).await?;
    Ok(())
}

async fn unmark<K: Typed>(
    context: &Context,
    cache: &crate::cache::Cache<K>,
    object: &Live<K>,
) -> Result<(), Error> {
    if object.annotations().contains_key(keys::UPDATE_IN_PROGRESS) {
        let body = json!({"metadata": {"annotations": {keys::UPDATE_IN_PROGRESS: null}}});
        context.merge(cache, object, &body).await?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "in_place_tests.rs"]
mod tests;
