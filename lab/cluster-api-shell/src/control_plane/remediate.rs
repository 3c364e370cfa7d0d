//! Carrying out what `remediation` decides.

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::control_plane::REMEDIATION_FOR,
    kinds::{Machine, MachineStatus},
    rollout::control_plane::Component,
};
use refit_kinds::conditions::{self, OWNER_REMEDIATED};
use refit_runtime::{ObjectKey, queue::Action};
use serde::Deserialize as _;
use serde_json::json;

use super::{
    PREFLIGHT_WAIT, Plane,
    remediation::{IN_PROGRESS, Input, Limits, Member, Remediation, Step, decide},
};
use crate::{
    conditions::{Says, merged, without},
    context::Context,
    error::Error,
    live::Live,
    remediation::need,
    snapshot,
};

/// Takes remediation one step on; `None` if no machine needs any and the rest may go on.
pub(super) async fn run(context: &Arc<Context>, plane: &Plane) -> Result<Option<Action>, Error> {
    let input = input(context, plane);
    match decide(&input) {
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
        Step::Delete(remediation) => delete(context, plane, &input, &remediation).await.map(Some),
    }
}

/// Notes the remediation first, then says it on the Machine, then deletes: whoever dies in between
/// leaves what the next look goes on with.
async fn delete(
    context: &Arc<Context>,
    plane: &Plane,
    input: &Input,
    remediation: &Remediation,
) -> Result<Action, Error> {
    let name = &remediation.machine;
    if input.in_progress.as_ref() != Some(remediation) {
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

fn input(context: &Context, plane: &Plane) -> Input {
    let limits = plane.object.at("/spec/remediation");
    let components = plane.desired().components();
    let machines = plane.machines(context);
    let replicas = plane.object.spec.replicas.unwrap_or(1);
    Input {
        replicas: usize::try_from(replicas).unwrap_or(0),
        initialized: plane.is_initialized(),
        managed_etcd: plane.desired().has_managed_etcd(),
        members: machines.iter().map(|machine| member(machine, &components)).collect(),
        in_progress: noted(plane).and_then(|text| serde_json::from_str(text).ok()),
        limits: Limits::deserialize(limits).unwrap_or_default(),
        now: context.now(),
    }
}

fn member(machine: &Live<Machine>, components: &[Component]) -> Member {
    let list = conditions_of(machine);
    let healthy = |etcd: bool| {
        components
            .iter()
            .filter(|one| matches!(one, Component::EtcdPod | Component::EtcdMember) == etcd)
            .all(|one| conditions::is_true(list, one.condition()))
    };
    let made_for = machine.annotations().get(REMEDIATION_FOR);
    Member {
        name: machine.name_any(),
        created_at: snapshot::created_at(machine),
        need: need(machine),
        deleting: machine.is_deleting(),
        has_node: machine.at("/status/nodeRef/name").is_string(),
        etcd_healthy: healthy(true),
        components_healthy: healthy(false),
        made_for: made_for.and_then(|text| serde_json::from_str(text).ok()),
    }
}
