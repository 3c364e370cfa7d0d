//! Carrying out what [`refit_cluster_api::rollout::remediation`] decides.

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
    conditions::{Says, merged, without},
    context::Context,
    error::Error,
    live::Live,
};

/// Takes remediation one step on; `None` if no machine needs any and the rest may go on.
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
            say(context, plane, &name, "RemediationDeferred", &message).await?;
            // A deletion or a new machine that it waits for goes on below.
            Ok(None)
        }
        Step::Cannot(name, message) => {
            say(context, plane, &name, "CannotBeRemediated", &message).await?;
            Ok(None)
        }
        Step::Delete(remediation) => {
            delete(context, plane, &situation, &remediation).await.map(Some)
        }
    }
}

/// Notes the remediation first, then says it on the Machine, then deletes: whoever dies in between
/// leaves what the next look goes on with.
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
    say(context, plane, name, "MachineDeleting", message).await?;
    if let Some(machine) = find(context, plane, name) {
        tracing::info!(machine = name, "an unhealthy control plane Machine is deleted");
        context.delete(&context.machines, &machine).await?;
    }
    Ok(Action::RequeueAfter(PREFLIGHT_WAIT))
}

/// The note of a remediation as it stands on the control plane.
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

async fn say(
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
    let says = Says::new(OWNER_REMEDIATED, false, reason, message);
    let generation = machine.metadata.generation;
    let list = merged(&existing.conditions, context.now(), generation, &[says]);
    let status = json!({ "conditions": list });
    context.merge_status(&context.machines, &machine, &status).await?;
    Ok(())
}
