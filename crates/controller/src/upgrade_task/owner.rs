//! Pauses the owner of a task's Machines, sets its version, writes its MachineSets, lets it go on.

use std::collections::BTreeSet;

use kube::{ResourceExt as _, api::DynamicObject};
use refit_cluster_api::{
    desired::machine_deployment::{Step, machine_set, new_name},
    kinds::{CORE_GROUP, MachineSet},
    rollout::{Decisions, IntentInput, RolloutIntent, intend_unmoved},
};
use refit_core::task::{Action, Obstacle, Paused, SetWrite, actions};
use refit_kinds::{
    json::{annotations, text},
    keys,
    refit::{Owner, UpdateGroupStatus},
    version::KubernetesVersion,
};
use refit_runtime::{apply, foreign::ForeignObject};
use serde_json::{Value, json};

use super::{
    advance::all_are_to_be_replaced,
    has_ended,
    look::{Look, deployment_snapshot, set_snapshot},
    objects,
};
use crate::{
    context::Context,
    groups::{Group, ensure_group},
    indexes::TASKS_BY_GROUP,
    node_update::{
        live::{list_machines, read_object},
        swap_group,
    },
    owner::LiveOwner,
    update_group::bundle_of_tasks,
};

/// Pauses the owner, unless another client has. The pause of a hold becomes the task's own.
pub(super) async fn pause(ctx: &Context, look: &Look) -> anyhow::Result<()> {
    let owner = objects::owner(ctx, &look.group).await?;
    if Paused::of(&annotations(&owner)) == Paused::ByOthers {
        return Ok(());
    }
    let task = look.task.name_any();
    let body = json!({"metadata": {
        "resourceVersion": owner["metadata"]["resourceVersion"],
        "annotations": {keys::PAUSED: keys::TASK, keys::TASK: task},
    }});
    merge(ctx, look, &owner, &body).await?;
    tracing::info!(owner = %look.group.key, task, "paused an owner");
    Ok(())
}

/// Sets the owner's version. An owner that is not paused would replace its Machines.
pub(super) async fn set_version(
    ctx: &Context,
    look: &Look,
    version: &KubernetesVersion,
) -> anyhow::Result<()> {
    let owner = objects::owner(ctx, &look.group).await?;
    let pauses = look.task.spec.via == refit_kinds::refit::Via::Machines
        && look.group.spec.owner.owner() != Owner::Set;
    if pauses && !annotations(&owner).contains_key(keys::PAUSED) {
        return Ok(());
    }
    let path = look.group.spec.owner.owner().version_path();
    let mut body = json!({"metadata": {"resourceVersion": owner["metadata"]["resourceVersion"]}});
    let mut at = &mut body;
    for key in path.split('/').skip(1) {
        at = &mut at[key];
    }
    *at = json!(version);
    merge(ctx, look, &owner, &body).await?;
    tracing::info!(owner = %look.group.key, %version, "set the version of an owner");
    Ok(())
}

/// Notes on the UpdateGroup which bundle its tasks ask for: a replica that serves hooks reads it there live, while its view
/// of tasks may lag.
pub(super) async fn note_bundle(ctx: &Context, look: &Look) -> anyhow::Result<()> {
    let wanted = bundle_of_tasks(&ctx.stores, &look.group).map(Box::new);
    let may_ever_work = look.owner.is_some() && look.obstacle().is_none_or(Obstacle::leaves_group);
    if look.task.spec.bundle.is_none() || wanted.is_none() || !may_ever_work {
        return Ok(());
    }
    let object = ensure_group(ctx, &look.group).await?;
    let status = object.status.clone().unwrap_or_default();
    let next = UpdateGroupStatus { bundle: wanted, ..status.clone() };
    Ok(swap_group(ctx, &object, &status, &next).await?)
}

/// Lets Cluster API go on with the owner, if the objects as they are now show that it would replace no Machine.
pub(super) async fn unpause(ctx: &Context, look: &Look) -> anyhow::Result<()> {
    read_group(ctx, &look.group).await?;
    let live = Look::read(ctx, look.task.clone()).await?;
    let seen = live.seen(ctx);
    if !actions(&seen).contains(&Action::Unpause) {
        return Ok(());
    }
    if seen.goes_on_by_policy()
        && (has_other_task(ctx, look) || !all_are_to_be_replaced(ctx, &live).await?)
    {
        return Ok(());
    }
    let owner = objects::owner(ctx, &look.group).await?;
    if !Paused::of(&annotations(&owner)).is_by(&look.task.name_any()) {
        return Ok(());
    }
    let body = json!({"metadata": {
        "resourceVersion": owner["metadata"]["resourceVersion"],
        "annotations": {keys::PAUSED: null, keys::TASK: null},
    }});
    merge(ctx, look, &owner, &body).await?;
    tracing::info!(owner = %look.group.key, "Cluster API goes on with an owner");
    Ok(())
}

/// Whether another task of the same owner has not ended: it upgrades the Machines in place.
fn has_other_task(ctx: &Context, look: &Look) -> bool {
    let tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &look.group.key);
    tasks.iter().any(|task| !has_ended(task) && task.metadata.uid != look.task.metadata.uid)
}

/// Brings the owner, its MachineSets and its Machines in the caches up to the present.
pub(super) async fn read_group(ctx: &Context, group: &Group) -> anyhow::Result<()> {
    LiveOwner::read(ctx, group).await?;
    read_object(ctx, &ctx.stores.clusters, &group.cluster_key()).await?;
    Ok(list_machines(ctx, &group.cluster_key()).await?)
}

/// Writes a MachineSet as Cluster API would, with these replicas.
pub(super) async fn write_set(ctx: &Context, look: &Look, write: &SetWrite) -> anyhow::Result<()> {
    let Some(LiveOwner::Deployment(deployment)) = &look.owner else { return Ok(()) };
    if look.lowers(write) {
        // Machines are deleted by it: which, is decided on the objects as they are now.
        read_group(ctx, &look.group).await?;
        let live = Look::read(ctx, look.task.clone()).await?;
        if !actions(&live.seen(ctx)).contains(&Action::Sets(write.clone())) {
            return Ok(());
        }
    }
    let object = objects::owner(ctx, &look.group).await?;
    if !annotations(&object).contains_key(keys::PAUSED) {
        return Ok(());
    }
    let sets: Vec<_> = look.sets.iter().map(|set| set_snapshot(set)).collect();
    let taken: BTreeSet<String> = sets.iter().map(|set| set.name.clone()).collect();
    let (new_name, suffix) = new_name(&object, &taken);
    let plan = intend_unmoved(&IntentInput {
        deployment: &deployment_snapshot(deployment),
        machine_sets: &sets,
        machines: &[],
        in_place_updates: true,
        decisions: &Decisions::new(),
        new_name: &new_name,
        now: ctx.clock.now(),
    });
    let name = write.name.as_ref().unwrap_or(&plan.current);
    let existing = match &write.name {
        Some(name) => Some(read_set(ctx, look, name).await?),
        // Its template is another one since the look.
        None if plan.create.is_none() => return Ok(()),
        None => None,
    };
    let step = step(&plan, name, write);
    let mut intent = machine_set(&object, existing.as_ref(), name, step, &suffix);
    intent["apiVersion"] = json!("cluster.x-k8s.io/v1beta2");
    intent["kind"] = json!(Owner::Set.kind());
    if let Some(existing) = &existing {
        intent["metadata"]["uid"] = existing["metadata"]["uid"].clone();
    }
    let set = set_object(look, name);
    let manager = keys::MANAGER_MACHINE_DEPLOYMENT;
    let written = ctx.foreign.apply(&ctx.client, &set, manager, &intent).await?;
    if let Ok(written) = serde_json::from_value::<MachineSet>(written) {
        ctx.stores.machine_sets.insert(written);
    }
    tracing::info!(
        set = name,
        replicas = write.replicas,
        creates = write.creates,
        "wrote a MachineSet"
    );
    Ok(())
}

fn step(plan: &RolloutIntent, name: &str, write: &SetWrite) -> Step {
    let known = plan.machine_sets.get(name).map(|set| &set.annotations);
    let known = known.or(plan.create.as_ref().map(|new| &new.annotations));
    let mut annotations = known.cloned().unwrap_or_default();
    annotations.insert(keys::DISABLE_MACHINE_CREATE.to_owned(), (!write.creates).to_string());
    Step { replicas: write.replicas, annotations }
}

fn set_object(look: &Look, name: &str) -> ForeignObject {
    objects::of_cluster_api(&look.group, CORE_GROUP, Owner::Set.kind(), name)
}

async fn read_set(ctx: &Context, look: &Look, name: &str) -> kube::Result<Value> {
    ctx.foreign.read(&ctx.client, &set_object(look, name)).await
}

async fn merge(ctx: &Context, look: &Look, owner: &Value, body: &Value) -> anyhow::Result<()> {
    let object = ForeignObject::stored(owner);
    let api = ctx.foreign.api(&ctx.client, &object).await?;
    let _: DynamicObject = apply::merge(&api, text(owner, "/metadata/name"), body).await?;
    // The next look must not rest on the owner as it was.
    LiveOwner::read(ctx, &look.group).await?;
    Ok(())
}
