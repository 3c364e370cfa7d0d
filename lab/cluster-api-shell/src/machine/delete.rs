//! Deletion of a Machine: hooks, drain, infrastructure, bootstrap, Node, finalizer.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _, api::DeleteParams};
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_kinds::keys;
use refit_runtime::{apply::is_not_found, queue::Action};
use serde_json::{Map, Value, json};

use super::{Part, Parts, REACH_WAIT, drain, status};
use crate::{
    context::{Context, controller_uid, namespace_of},
    error::Error,
    live::Live,
    workload,
};

/// How often a drain checks whether its pods are gone.
const DRAIN_WAIT: Duration = Duration::from_secs(5);
/// Annotation of a Machine whose Node is not drained.
const EXCLUDE_DRAIN: &str = "machine.cluster.x-k8s.io/exclude-node-draining";

/// Advances the deletion of a Machine by one step.
pub(super) async fn reconcile(
    context: &Arc<Context>,
    cluster: &Live<Cluster>,
    machine: &Live<Machine>,
    parts: &Parts,
) -> Result<Action, Error> {
    let wait_for =
        |reason, message: String| Wait { reason, message, requeue: None, extra: Map::new() };
    let hooks = hooks_of(machine, keys::PRE_DRAIN_HOOK_PREFIX);
    let wait = if hooks.is_empty() {
        None
    } else {
        let message = format!("Waiting for pre-drain hooks to succeed (hooks: {hooks})");
        Some(wait_for("WaitingForPreDrainHook", message))
    };
    let wait = match wait {
        Some(wait) => Some(wait),
        None => drained(context, cluster, machine).await?,
    };
    if let Some(wait) = wait {
        return hold(context, machine, parts, wait).await;
    }
    let hooks = hooks_of(machine, keys::PRE_TERMINATE_HOOK_PREFIX);
    if !hooks.is_empty() {
        let message = format!("Waiting for pre-terminate hooks to succeed (hooks: {hooks})");
        let wait = wait_for("WaitingForPreTerminateHook", message);
        return hold(context, machine, parts, wait).await;
    }
    let in_order = [
        (Some(&parts.infrastructure), "WaitingForInfrastructureDeletion"),
        (parts.bootstrap.as_ref(), "WaitingForBootstrapDeletion"),
    ];
    for (part, reason) in in_order {
        if let Some(part) = part
            && let Some(object) = &part.object
        {
            let wait = wait_for(reason, still_there(part));
            hold(context, machine, parts, wait).await?;
            context.delete(&part.cache, object).await?;
            // If this Machine owns the object, its deletion triggers a reconcile. A Machine that
            // was deleted before it adopted its parts gets no such trigger.
            return Ok(if controller_uid(object.as_ref()) == Some(machine.uid_text()) {
                Action::Done
            } else {
                Action::RequeueAfter(REACH_WAIT)
            });
        }
    }
    delete_node(context, cluster, machine).await?;
    remove_finalizer(context, machine).await?;
    Ok(Action::Done)
}

/// Why a deletion waits.
struct Wait {
    reason: &'static str,
    message: String,
    requeue: Option<Duration>,
    extra: Map<String, Value>,
}

async fn hold(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    parts: &Parts,
    wait: Wait,
) -> Result<Action, Error> {
    let condition = (wait.reason, wait.message.as_str());
    status::write_deleting(context, machine, parts, condition, wait.extra).await?;
    Ok(wait.requeue.map_or(Action::Done, Action::RequeueAfter))
}

/// The hooks with this prefix that block a Machine, sorted.
fn hooks_of(machine: &Live<Machine>, prefix: &str) -> String {
    let annotations = machine.annotations().keys();
    let hooks: Vec<&str> = annotations
        .filter(|key| {
            let rest = key.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
        .map(String::as_str)
        .collect();
    hooks.join(", ")
}

fn still_there(part: &Part) -> String {
    format!("{} {} is being deleted", part.reference.kind, part.reference.name)
}

/// Drains the Node; `None` if it is drained or needs no drain.
async fn drained(
    context: &Arc<Context>,
    cluster: &Live<Cluster>,
    machine: &Live<Machine>,
) -> Result<Option<Wait>, Error> {
    let Some(node) = node_to_delete(context, cluster, machine) else {
        return Ok(None);
    };
    if machine.annotations().contains_key(EXCLUDE_DRAIN) || past_draining(machine) {
        return Ok(None);
    }
    let now = context.now();
    let started = drain_started(machine);
    if drain_is_over(machine, started, now) {
        tracing::warn!(node, "drain timed out, giving up");
        return Ok(None);
    }
    let Some(reached) = workload::reach(context, cluster).await? else {
        return Ok(Some(Wait {
            reason: "DrainingNode",
            message: "The workload cluster cannot be reached".to_owned(),
            requeue: Some(REACH_WAIT),
            extra: Map::new(),
        }));
    };
    let left = drain::drain(&reached.client.0, &node, now).await?;
    if left.is_empty() {
        return Ok(None);
    }
    let since = started.unwrap_or(now);
    let mut extra = Map::new();
    extra.insert("deletion".to_owned(), json!({"nodeDrainStartTime": since.to_string()}));
    Ok(Some(Wait {
        reason: "DrainingNode",
        message: format!("Drain not completed yet: waiting for pods {}", left.join(", ")),
        requeue: Some(DRAIN_WAIT),
        extra,
    }))
}

/// Whether the drain has already ended: the Node may be partly deleted by now.
fn past_draining(machine: &Live<Machine>) -> bool {
    let status = machine.status.as_ref();
    let deleting = status
        .and_then(|status| refit_kinds::conditions::get(&status.conditions, "Deleting"))
        .map(|condition| condition.reason.as_str());
    matches!(deleting, Some("WaitingForInfrastructureDeletion" | "WaitingForBootstrapDeletion"))
}

fn drain_started(machine: &Live<Machine>) -> Option<Timestamp> {
    let text = machine.at("/status/deletion/nodeDrainStartTime").as_str()?;
    text.parse().ok()
}

/// Whether a drain exceeded its timeout; without a timeout it never does.
fn drain_is_over(machine: &Live<Machine>, started: Option<Timestamp>, now: Timestamp) -> bool {
    let deletion = machine.spec.deletion.as_ref();
    let timeout = deletion.and_then(|deletion| deletion.node_drain_timeout_seconds);
    let timeout = i64::from(timeout.unwrap_or(0));
    let Some(started) = started.filter(|_| timeout > 0) else {
        return false;
    };
    now.duration_since(started) >= SignedDuration::from_secs(timeout)
}

/// The Node to delete with a Machine. `None` if the whole Cluster is deleted, or with the last
/// control plane machine, because no API server would be left.
fn node_to_delete(
    context: &Context,
    cluster: &Live<Cluster>,
    machine: &Live<Machine>,
) -> Option<String> {
    if cluster.is_deleting() {
        return None;
    }
    let status = machine.status.as_ref()?;
    let node = status.node_ref.as_ref()?.name.clone();
    let others = context.machines.list_in(&namespace_of(machine));
    let control_plane_stays = others.iter().any(|other| {
        other.spec.cluster_name == machine.spec.cluster_name
            && other.labels().contains_key(keys::CONTROL_PLANE)
            && !other.is_deleting()
    });
    control_plane_stays.then_some(node)
}

async fn delete_node(
    context: &Arc<Context>,
    cluster: &Live<Cluster>,
    machine: &Live<Machine>,
) -> Result<(), Error> {
    let Some(node) = node_to_delete(context, cluster, machine) else {
        return Ok(());
    };
    let outcome = delete_node_now(context, cluster, &node).await;
    let deletion = machine.spec.deletion.as_ref();
    let timeout = deletion.and_then(|deletion| deletion.node_deletion_timeout_seconds);
    match outcome {
        // 0 means to retry for ever.
        Err(error) if timeout != Some(0) && !error.is_not_found() => {
            tracing::warn!(node, %error, "failed to delete the Node, leaving it");
            Ok(())
        }
        outcome => outcome,
    }
}

async fn delete_node_now(
    context: &Arc<Context>,
    cluster: &Live<Cluster>,
    node: &str,
) -> Result<(), Error> {
    let Some(reached) = workload::reach(context, cluster).await? else {
        return Ok(());
    };
    let api: Api<Node> = Api::all(reached.client.0.clone());
    match api.delete(node, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(Error::api(format!("delete Node {node}"))(error)),
    }
}

async fn remove_finalizer(context: &Arc<Context>, machine: &Live<Machine>) -> Result<(), Error> {
    let finalizers = machine.finalizers().iter();
    let left: Vec<&String> =
        finalizers.filter(|finalizer| *finalizer != keys::MACHINE_FINALIZER).collect();
    if left.len() == machine.finalizers().len() {
        return Ok(());
    }
    let body = json!({"metadata": {
        "resourceVersion": machine.resource_version(),
        "finalizers": left,
    }});
    match context.merge(&context.machines, machine, &body).await {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(annotations: Value, deletion: Value) -> Live<Machine> {
        Live::read(json!({
            "metadata": {"name": "m", "annotations": annotations},
            "spec": {"clusterName": "c", "deletion": deletion},
        }))
        .unwrap()
    }

    #[test]
    fn every_hook_of_the_kind_holds_a_machine() {
        let machine = machine(
            json!({
                "pre-drain.delete.hook.machine.cluster.x-k8s.io/refit": "",
                "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup": "",
                "pre-terminate.delete.hook.machine.cluster.x-k8s.io/x": "",
                "pre-drain.delete.hook.machine.cluster.x-k8s.ioelse": "",
            }),
            json!({}),
        );
        assert_eq!(
            hooks_of(&machine, keys::PRE_DRAIN_HOOK_PREFIX),
            "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup, \
             pre-drain.delete.hook.machine.cluster.x-k8s.io/refit"
        );
        assert_eq!(
            hooks_of(&machine, keys::PRE_TERMINATE_HOOK_PREFIX),
            "pre-terminate.delete.hook.machine.cluster.x-k8s.io/x"
        );
    }

    #[test]
    fn a_drain_ends_at_its_timeout_and_never_without_one() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let limited = machine(json!({}), json!({"nodeDrainTimeoutSeconds": 60}));
        assert!(!drain_is_over(&limited, None, at(1000)));
        assert!(!drain_is_over(&limited, Some(at(0)), at(59)));
        assert!(drain_is_over(&limited, Some(at(0)), at(60)));
        let unlimited = machine(json!({}), json!({"nodeDrainTimeoutSeconds": 0}));
        assert!(!drain_is_over(&unlimited, Some(at(0)), at(100_000)));
    }
}
