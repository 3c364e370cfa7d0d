//! Executes the decisions of [`refit_cluster_api::rollout::remediation`].

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::{
    kinds::{Machine, MachineStatus},
    rollout::remediation::{IN_PROGRESS, Remediation, Situation, Step, decide},
};
use refit_kinds::conditions::OWNER_REMEDIATED;
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::json;

use super::{PREFLIGHT_WAIT, Plane};
use crate::{
    conditions::{DesiredCondition, merged, without},
    context::Context,
    error::Error,
    live::Live,
};

/// Advances remediation by one step; `None` if no machine needs any and the reconcile may continue.
pub(super) async fn run(context: &Arc<Context>, plane: &Plane) -> Result<Option<Action>, Error> {
    let machines = plane.machines(context);
    let json = machines.iter().map(|machine| machine.json());
    let situation = Situation::of(plane.desired(), json, context.now());
    match decide(&situation) {
        Step::Nothing => Ok(None),
        Step::Forget(name) => {
            if let Some(machine) = find(context, plane, &name) {
                let list = without(conditions_of(&machine), OWNER_REMEDIATED);
                let status = json!({ "conditions": list });
                context.merge_status(&context.machines, &machine, &status).await?;
            }
            Ok(None)
        }
        Step::Close => {
            note(context, plane, None).await?;
            Ok(None)
        }
        Step::Defer(name, message) => {
            set_condition(context, plane, &name, "RemediationDeferred", &message).await?;
            // The rest of the reconcile performs the deletion or creation that it waits for.
            Ok(None)
        }
        Step::Cannot(name, message) => {
            set_condition(context, plane, &name, "CannotBeRemediated", &message).await?;
            Ok(None)
        }
        Step::Delete(remediation) => {
            delete(context, plane, &situation, &remediation).await.map(Some)
        }
    }
}

/// Records the remediation first, then sets the Machine's condition, then deletes it: after a crash
/// in between, the next reconcile continues.
async fn delete(
    context: &Arc<Context>,
    plane: &Plane,
    situation: &Situation,
    remediation: &Remediation,
) -> Result<Action, Error> {
    let name = &remediation.machine;
    if situation.in_progress.as_ref() != Some(remediation) {
        note(context, plane, Some(remediation)).await?;
    }
    let message = "Machine is being deleted";
    set_condition(context, plane, name, "MachineDeleting", message).await?;
    if let Some(machine) = find(context, plane, name) {
        tracing::info!(machine = name, "deleting unhealthy control plane Machine");
        context.delete(&context.machines, &machine).await?;
    }
    Ok(Action::RequeueAfter(PREFLIGHT_WAIT))
}

/// The remediation recorded in the control plane's annotation.
pub(super) fn noted(plane: &Plane) -> Option<&String> {
    plane.object.annotations().get(IN_PROGRESS)
}

async fn note(
    context: &Context,
    plane: &Plane,
    remediation: Option<&Remediation>,
) -> Result<(), Error> {
    let text = remediation.map(|remediation| {
        serde_json::to_string(remediation).expect("names, times and numbers are JSON")
    });
    let body = json!({"metadata": {"annotations": {IN_PROGRESS: text}}});
    context.merge(&context.control_planes, &plane.object, &body).await?;
    Ok(())
}

fn find(context: &Context, plane: &Plane, name: &str) -> Option<Arc<Live<Machine>>> {
    context.machines.get(&ObjectKey::new(&plane.namespace, name))
}

fn conditions_of(
    machine: &Machine,
) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
    let status = machine.status.as_ref();
    status.map_or(&[][..], |status| &status.conditions)
}

async fn set_condition(
    context: &Context,
    plane: &Plane,
    name: &str,
    reason: &str,
    message: &str,
) -> Result<(), Error> {
    let Some(machine) = find(context, plane, name) else {
        return Ok(());
    };
    let existing: MachineStatus = machine.status.clone().unwrap_or_default();
    let condition = DesiredCondition::new(OWNER_REMEDIATED, false, reason, message);
    let generation = machine.metadata.generation;
    let list = merged(&existing.conditions, context.now(), generation, &[condition]);
    let status = json!({ "conditions": list });
    context.merge_status(&context.machines, &machine, &status).await?;
    Ok(())
}
