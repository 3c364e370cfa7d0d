//! MachineHealthCheck: finds unhealthy Machines. It never deletes: it marks a Machine, and the
//! Machine's owner remediates it.
//!
//! | module | decides |
//! |---|---|
//! | `judge` | whether one Machine is healthy |
//! | `budget` | whether the number of unhealthy Machines permits remediation |
//!
//! Not implemented, because no test or sandbox needs it: external remediation templates. A Machine
//! under such a check is marked as unhealthy, and no controller remediates it.

mod budget;
mod judge;

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Cluster, Machine, MachineHealthCheck, MachineHealthCheckStatus};
use refit_kinds::{
    conditions::{self, HEALTH_CHECK_SUCCEEDED, OWNER_REMEDIATED},
    keys,
};
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::json;

use self::{
    budget::{Allowed, allowed},
    judge::{CheckedMachine, ObservedNode, Verdict, judge},
};
use crate::{
    conditions::{DesiredCondition, merged},
    context::{Context, is_paused, namespace_of},
    error::Error,
    hooks::selects,
    live::Live,
    snapshot,
    workload::{self, Reached},
};

/// How long to wait for an unreachable workload cluster.
const REACH_WAIT: Duration = Duration::from_secs(5);

/// Checks the Machines of a MachineHealthCheck.
pub(crate) async fn reconcile(context: &Arc<Context>, key: &ObjectKey) -> Result<Action, Error> {
    let Some(check) = context.health_checks.get(key) else {
        return Ok(Action::Done);
    };
    let cluster = context.cluster(&key.namespace, &check.spec.cluster_name);
    let Some(cluster) = cluster else {
        return Ok(Action::Done);
    };
    if check.is_deleting() || is_paused(&cluster, check.as_ref()) {
        return Ok(Action::Done);
    }
    let machines = targets(context, &check);
    let reached = match workload::reach(context, &cluster).await {
        Ok(reached) => reached.filter(|reached| reached.is_ready()),
        Err(error) => {
            tracing::debug!(%error, "failed to reach the workload cluster");
            None
        }
    };
    let has_node = |machine: &Arc<Live<Machine>>| machine.at("/status/nodeRef/name").is_string();
    if reached.is_none() && machines.iter().any(has_node) {
        // No Node is known, so no Machine can be judged.
        return Ok(Action::RequeueAfter(REACH_WAIT));
    }
    let now = context.now();
    let verdicts: Vec<Verdict> = machines
        .iter()
        .map(|machine| {
            let observed = observe(machine, &cluster, reached.as_deref());
            judge(&check.spec.checks, &observed, now)
        })
        .collect();
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let healthy = verdicts.iter().filter(|verdict| **verdict == Verdict::Healthy).count();
    let trigger = check.spec.remediation.trigger_if.clone();
    let permission = allowed(&trigger.unwrap_or_default(), count(machines.len()), count(healthy));
    write_status(context, &check, &machines, count(healthy), &permission).await?;
    let hand_over =
        matches!(permission, Allowed::Yes(_)) && check.spec.remediation.template_ref.is_none();
    for (machine, verdict) in machines.iter().zip(&verdicts) {
        mark(context, &check, machine, verdict, hand_over).await?;
    }
    Ok(next_requeue(&verdicts, now))
}

/// When the next Machine may exceed its timeout.
fn next_requeue(verdicts: &[Verdict], now: jiff::Timestamp) -> Action {
    let due = verdicts
        .iter()
        .filter_map(|verdict| match verdict {
            Verdict::Waiting(next) => *next,
            _ => None,
        })
        .min()
        .and_then(|next| Duration::try_from(next.duration_since(now)).ok());
    match due {
        Some(wait) => Action::RequeueAfter(wait.max(Duration::from_secs(1))),
        None => Action::Done,
    }
}

/// The Machines under a check, ordered by name. Paused Machines and those with
/// `cluster.x-k8s.io/skip-remediation` are excluded.
fn targets(context: &Context, check: &Live<MachineHealthCheck>) -> Vec<Arc<Live<Machine>>> {
    let mut machines = context.machines.list_in(&namespace_of(check));
    machines.retain(|machine| {
        machine.spec.cluster_name == check.spec.cluster_name
            && selects(Some(&check.spec.selector), machine.labels())
            && !machine.annotations().contains_key(keys::SKIP_REMEDIATION)
            && !machine.annotations().contains_key(keys::PAUSED)
    });
    machines
}

/// Whether a Machine is under a check, or was before its annotations changed.
pub(crate) fn concerns(check: &Live<MachineHealthCheck>, machine: &Live<Machine>) -> bool {
    machine.spec.cluster_name == check.spec.cluster_name
        && selects(Some(&check.spec.selector), machine.labels())
}

fn conditions_of(machine: &Machine) -> &[Condition] {
    let status = machine.status.as_ref();
    status.map_or(&[][..], |status| &status.conditions)
}

fn observe<'a>(
    machine: &'a Live<Machine>,
    cluster: &'a Live<Cluster>,
    reached: Option<&Reached>,
) -> CheckedMachine<'a> {
    let cluster_status = cluster.status.as_ref();
    CheckedMachine {
        marked: machine.annotations().contains_key(keys::REMEDIATE_MACHINE),
        conditions: conditions_of(machine),
        cluster_conditions: cluster_status.map_or(&[][..], |status| &status.conditions),
        created_at: snapshot::created_at(machine),
        deleting: machine.is_deleting(),
        node: node_of(machine, reached),
    }
}

fn node_of(machine: &Live<Machine>, reached: Option<&Reached>) -> ObservedNode {
    let node_ref = machine.at("/status/nodeRef/name").as_str();
    let (Some(name), Some(reached)) = (node_ref, reached) else {
        return ObservedNode::Awaited;
    };
    match reached.nodes.get(&ObjectKey::new("", name)) {
        None => ObservedNode::Gone(name.to_owned()),
        Some(node) => ObservedNode::Known(node_conditions(&node)),
    }
}

fn node_conditions(node: &Node) -> Vec<(String, String, jiff::Timestamp)> {
    let status = node.status.as_ref();
    let list = status.and_then(|status| status.conditions.as_ref());
    list.into_iter()
        .flatten()
        .filter_map(|one| {
            let since = one.last_transition_time.as_ref()?.0;
            Some((one.type_.clone(), one.status.clone(), since))
        })
        .collect()
}

async fn write_status(
    context: &Context,
    check: &Live<MachineHealthCheck>,
    machines: &[Arc<Live<Machine>>],
    healthy: i32,
    permission: &Allowed,
) -> Result<(), Error> {
    let existing: MachineHealthCheckStatus = check.status.clone().unwrap_or_default();
    let generation = check.metadata.generation;
    let type_ = "RemediationAllowed";
    let (condition, left) = match permission {
        Allowed::Yes(left) => (DesiredCondition::new(type_, true, "RemediationAllowed", ""), *left),
        Allowed::No(message) => {
            (DesiredCondition::new(type_, false, "TooManyUnhealthy", message), 0)
        }
    };
    let names: Vec<String> = machines.iter().map(|machine| machine.name_any()).collect();
    let status = json!({
        "expectedMachines": machines.len(),
        "currentHealthy": healthy,
        "remediationsAllowed": left,
        "targets": names,
        "observedGeneration": generation,
        "conditions": merged(&existing.conditions, context.now(), generation, &[condition]),
    });
    context.merge_status(&context.health_checks, check, &status).await?;
    Ok(())
}

/// Writes the result into the Machine's conditions if it changed.
///
/// `OwnerRemediated` is set once and then belongs to the owner until it has remediated.
async fn mark(
    context: &Context,
    check: &Live<MachineHealthCheck>,
    machine: &Live<Machine>,
    verdict: &Verdict,
    hand_over: bool,
) -> Result<(), Error> {
    let existing = conditions_of(machine);
    let mut desired = Vec::new();
    match verdict {
        Verdict::Waiting(_) => return Ok(()),
        Verdict::Healthy => {
            desired.push(DesiredCondition::new(
                HEALTH_CHECK_SUCCEEDED,
                true,
                "HealthCheckSucceeded",
                "",
            ));
        }
        Verdict::Unhealthy { reason, message } => {
            desired.push(DesiredCondition::new(HEALTH_CHECK_SUCCEEDED, false, reason, message));
            let handed_over = conditions::get(existing, OWNER_REMEDIATED)
                .is_some_and(|condition| condition.status != "True");
            if hand_over && !handed_over && !machine.is_deleting() {
                let text = "Waiting for remediation";
                desired.push(DesiredCondition::new(
                    OWNER_REMEDIATED,
                    false,
                    "WaitingForRemediation",
                    text,
                ));
                announce(context, check, machine, message).await;
            }
        }
    }
    let generation = machine.metadata.generation;
    let list = merged(existing, context.now(), generation, &desired);
    let status = json!({ "conditions": list });
    context.merge_status(&context.machines, machine, &status).await?;
    Ok(())
}

/// Emits an event for a Machine that its owner must remediate. The occurrence is derived from
/// stored state.
async fn announce(
    context: &Context,
    check: &Live<MachineHealthCheck>,
    machine: &Live<Machine>,
    message: &str,
) {
    let before = conditions::get(conditions_of(machine), HEALTH_CHECK_SUCCEEDED);
    let occurrence = before.map_or_else(
        || "first".to_owned(),
        |before| format!("{} {}", before.status, before.last_transition_time.0),
    );
    let text = format!(
        "Machine {} has been marked as unhealthy by MachineHealthCheck {}: {message}",
        machine.name_any(),
        check.name_any()
    );
    context
        .announce(&context.machines, machine, ("MachineMarkedUnhealthy", text), occurrence)
        .await;
}
