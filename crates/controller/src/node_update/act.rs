//! Makes the write of a decision.

use std::{fmt::Debug, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{Api, Client, Resource, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    node::{
        Announcement, Decision, EvictionRefusal, GroupState, ManagementWrite, Severity, Snapshot,
        WorkloadWrite, Write,
    },
    report::Refusal,
};
use refit_kinds::{
    keys,
    refit::{
        HostPlan, HostPlanSpec, NodeUpdate, NodeUpdateSpec, PartStatus, PlanId, UpdateGroup,
        UpdateGroupStatus,
    },
};
use refit_runtime::{
    ObjectKey, apply, events,
    plan_signing::{Claims, claims_of},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    look::{Look, WorkloadCluster},
    updater,
};
use crate::{
    PlanLocation,
    api_error::{is_silence, refusal},
    context::Context,
    drain, machine_condition,
    providers::{self, Ordered},
    requests::{NewNodeUpdate, node_update},
};

/// Requeue delay after a write; the watch event of the write wakes the NodeUpdate as well.
const AFTER_WRITE: Duration = Duration::from_millis(100);
/// Requeue delay after a write conflict: the event of the other write must arrive first.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// Requeue delay after a call to a workload cluster that got no response.
const AFTER_SILENCE: Duration = Duration::from_secs(5);

/// Result of a write.
#[derive(Debug)]
pub(super) enum Done {
    /// The write was made, or it conflicted with another one: requeue after this delay.
    Again(Duration),
    /// Evictions were requested; these were refused.
    Evicted(Vec<EvictionRefusal>),
    /// The API server refused the write, and will refuse it until its cause is removed.
    Refused(Refusal),
}

/// Emits the events of the decision, then makes its write.
pub(super) async fn perform(
    ctx: &Context,
    look: &Look,
    decision: &Decision,
    write: &Write,
) -> anyhow::Result<Done> {
    for announcement in &decision.announce {
        ctx.recorder.announce(&event(look, announcement)).await;
    }
    match write {
        Write::Management(in_management) => {
            settled(management(ctx, look, decision, in_management).await, write)
        }
        Write::HostPlan(spec) => match ctx.settings.plan_location {
            PlanLocation::Management => settled(plan_in_management(ctx, look, spec).await, write),
            PlanLocation::Workload => {
                let made = async |client: &Client, _: &WorkloadCluster| {
                    let api = Api::namespaced(client.clone(), keys::HOST_PLAN_NAMESPACE);
                    host_plan(ctx, &api, look, spec, json!({})).await?;
                    Ok(None)
                };
                in_workload(ctx, look, write, made).await
            }
        },
        Write::Provider(order) => {
            let Snapshot { update, providers, .. } = &look.snapshot;
            ordered(providers::order(ctx, update, providers, order).await, write)
        }
        Write::OlderProvider(name, spec) => {
            let Snapshot { update, siblings, providers, .. } = &look.snapshot;
            let of_machine = (update.as_ref(), siblings.as_slice());
            ordered(providers::order_older(ctx, of_machine, providers, name, spec).await, write)
        }
        Write::AskUpdater(name) => {
            let next = updater::asked(ctx, look, name).await;
            settled(part(ctx, look, decision, next).await, write)
        }
        Write::Updater(name) => {
            let next = updater::advanced(ctx, look, name).await;
            settled(part(ctx, look, decision, next).await, write)
        }
        Write::Workload(in_cluster) => {
            let made = async |client: &Client, cluster: &WorkloadCluster| {
                workload(client, cluster, look, in_cluster).await
            };
            in_workload(ctx, look, write, made).await
        }
    }
}

async fn management(
    ctx: &Context,
    look: &Look,
    decision: &Decision,
    write: &ManagementWrite,
) -> kube::Result<()> {
    match write {
        ManagementWrite::Status => status(ctx, look, decision).await,
        ManagementWrite::ClaimSlot(next) | ManagementWrite::ReleaseSlot(next) => {
            slots(ctx, look, next).await
        }
        ManagementWrite::Guard(changes) | ManagementWrite::Unguard(changes) => {
            let changes: serde_json::Map<String, Value> = changes
                .iter()
                .map(|(key, value)| (key.clone(), value.clone().map_or(Value::Null, Value::from)))
                .collect();
            guard(ctx, look, changes).await
        }
        ManagementWrite::Withdraw => {
            let mark = keys::UPDATE_IN_PROGRESS.to_owned();
            guard(ctx, look, serde_json::Map::from_iter([(mark, Value::Null)])).await
        }
        ManagementWrite::WithdrawForMember => {
            let note = look.snapshot.update.name_any().into();
            let changes = [
                (keys::UPDATE_IN_PROGRESS.to_owned(), Value::Null),
                (keys::WITHDRAWN_FOR_MEMBER.to_owned(), note),
            ];
            guard(ctx, look, serde_json::Map::from_iter(changes)).await
        }
        ManagementWrite::Again { ordinal, spec } => again(ctx, look, *ordinal, spec).await,
        ManagementWrite::MachineCondition(condition) => match &look.snapshot.machine {
            Some(machine) => machine_condition::write(ctx, machine, condition.as_ref()).await,
            None => Ok(()),
        },
    }
}

/// A conflict or a vanished object is not an error: the next reconcile sees what happened.
fn settled(outcome: kube::Result<()>, write: &Write) -> anyhow::Result<Done> {
    match outcome {
        Ok(()) => Ok(Done::Again(AFTER_WRITE)),
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => {
            Ok(Done::Again(AFTER_CONFLICT))
        }
        Err(error) => match refusal(write.target(), &error) {
            // A refused status write cannot be reported in that status.
            Some(refused) if *write != Write::STATUS => Ok(Done::Refused(refused)),
            _ => Err(error.into()),
        },
    }
}

fn ordered(outcome: kube::Result<Ordered>, write: &Write) -> anyhow::Result<Done> {
    match outcome {
        Ok(Ordered::InTheWay(refused)) => Ok(Done::Refused(refused)),
        Ok(Ordered::Written) => settled(Ok(()), write),
        Err(error) => settled(Err(error), write),
    }
}

async fn status(ctx: &Context, look: &Look, decision: &Decision) -> kube::Result<()> {
    let update = &look.snapshot.update;
    let api: Api<NodeUpdate> = api_of(&ctx.client, update.as_ref());
    let old = update.status.as_ref().map_or(Value::Null, value_of);
    let Some(patch) = apply::merge_diff(&old, &value_of(&decision.status)) else {
        return Ok(());
    };
    let version = update.resource_version().unwrap_or_default();
    let written = apply::swap_status(&api, &update.name_any(), &version, &patch).await?;
    ctx.stores.node_updates.insert(written);
    Ok(())
}

/// Lets an Updater do its part, and writes how far it is.
async fn part(
    ctx: &Context,
    look: &Look,
    decision: &Decision,
    next: kube::Result<PartStatus>,
) -> kube::Result<()> {
    let next = next?;
    let mut decision = decision.clone();
    let mut parts = decision.status.parts.iter_mut();
    if let Some(part) = parts.find(|part| part.updater == next.updater) {
        *part = next;
    }
    status(ctx, look, &decision).await
}

async fn slots(ctx: &Context, look: &Look, next: &UpdateGroupStatus) -> kube::Result<()> {
    let (GroupState::Present(group), Some(object)) = (&look.snapshot.group, &look.group) else {
        return Ok(());
    };
    #[cfg(feature = "sabotage")]
    if ctx.sabotage.keep_slot(&look.snapshot.update.spec.machine_ref.uid, next) {
        return Ok(());
    }
    swap_group(ctx, object, &group.status, next).await
}

/// Writes a group's status if the group has not changed since it was read.
pub(crate) async fn swap_group(
    ctx: &Context,
    object: &UpdateGroup,
    status: &UpdateGroupStatus,
    next: &UpdateGroupStatus,
) -> kube::Result<()> {
    let api: Api<UpdateGroup> = api_of(&ctx.client, object);
    let old = object.status.as_ref().map_or(Value::Null, |_| value_of(status));
    let Some(patch) = apply::merge_diff(&old, &value_of(next)) else {
        return Ok(());
    };
    let version = object.resource_version().unwrap_or_default();
    let written = apply::swap_status(&api, &object.name_any(), &version, &patch).await?;
    ctx.stores.update_groups.insert(written);
    Ok(())
}

async fn guard(
    ctx: &Context,
    look: &Look,
    changes: serde_json::Map<String, Value>,
) -> kube::Result<()> {
    let Some(machine) = &look.snapshot.machine else {
        return Ok(());
    };
    let api: Api<Machine> = api_of(&ctx.client, machine.as_ref());
    let body = json!({ "metadata": {
        "resourceVersion": machine.resource_version(),
        "annotations": changes,
    }});
    let written = apply::merge(&api, &machine.name_any(), &body).await?;
    ctx.stores.machines.insert(written);
    Ok(())
}

/// Creates the next NodeUpdate of the Machine, unless another replica has.
async fn again(
    ctx: &Context,
    look: &Look,
    ordinal: u32,
    spec: &NodeUpdateSpec,
) -> kube::Result<()> {
    let update = &look.snapshot.update;
    let new = NewNodeUpdate {
        namespace: update.namespace().unwrap_or_default(),
        machine: spec.machine_ref.clone(),
        origin: spec.origin,
        annotation: None,
        until: spec.until,
        goal: spec.goal.clone(),
        parts: spec.parts.clone(),
        bundle: spec.bundle.clone(),
    };
    let api: Api<NodeUpdate> = api_of(&ctx.client, update.as_ref());
    let (found, _) = apply::create_or_get(&api, &node_update(&new, ordinal)).await?;
    ctx.stores.node_updates.insert(found);
    Ok(())
}

/// Makes a write to the workload cluster, if the cluster responds.
async fn in_workload(
    ctx: &Context,
    look: &Look,
    write: &Write,
    made: impl AsyncFnOnce(&Client, &WorkloadCluster) -> kube::Result<Option<Vec<EvictionRefusal>>>,
) -> anyhow::Result<Done> {
    let Some(cluster) = &look.cluster else {
        return Ok(Done::Again(AFTER_SILENCE));
    };
    let client = match ctx.workloads.client(&cluster.key.namespace, &cluster.key.name).await {
        Ok(client) => client,
        Err(error) => {
            tracing::debug!(cluster = %cluster.key, %error, "cannot create a client for the \
                workload cluster");
            cluster.view.mark_unreachable();
            return Ok(Done::Again(AFTER_CONFLICT));
        }
    };
    match made(&client, cluster).await {
        Ok(Some(refused)) => Ok(Done::Evicted(refused)),
        Err(error) if is_silence(&error) => {
            tracing::debug!(cluster = %cluster.key, %error, "workload cluster unreachable");
            cluster.view.mark_unreachable();
            Ok(Done::Again(AFTER_CONFLICT))
        }
        outcome => settled(outcome.map(|_| ()), write),
    }
}

/// The refusals of evictions; `None` for any other write.
async fn workload(
    client: &Client,
    cluster: &WorkloadCluster,
    look: &Look,
    write: &WorkloadWrite,
) -> kube::Result<Option<Vec<EvictionRefusal>>> {
    let name = look.snapshot.update.name_any();
    let body = match write {
        WorkloadWrite::Cordon => json!({
            "metadata": { "annotations": { keys::CORDONED_BY: name } },
            "spec": { "unschedulable": true },
        }),
        WorkloadWrite::Uncordon => json!({
            "metadata": { "annotations": { keys::CORDONED_BY: null } },
            "spec": { "unschedulable": null },
        }),
        WorkloadWrite::Exclude => json!({ "metadata": {
            "annotations": { keys::EXCLUDED_BY: name },
            "labels": { keys::EXCLUDE_FROM_LOAD_BALANCERS: "" },
        }}),
        WorkloadWrite::Include => json!({ "metadata": {
            "annotations": { keys::EXCLUDED_BY: null },
            "labels": { keys::EXCLUDE_FROM_LOAD_BALANCERS: null },
        }}),
        WorkloadWrite::Evict(removals) => return drain::remove(client, removals).await.map(Some),
    };
    node(client, cluster, look, body).await?;
    Ok(None)
}

/// Writes the HostPlan next to its Machine. The Machine owns it, so that both are deleted together.
async fn plan_in_management(ctx: &Context, look: &Look, spec: &HostPlanSpec) -> kube::Result<()> {
    let Some(machine) = &look.snapshot.machine else {
        return Ok(());
    };
    let metadata = json!({ "ownerReferences": [{
        "apiVersion": Machine::api_version(&()),
        "kind": Machine::kind(&()),
        "name": machine.name_any(),
        "uid": machine.uid().unwrap_or_default(),
    }]});
    let api = Api::namespaced(ctx.client.clone(), &machine.namespace().unwrap_or_default());
    host_plan(ctx, &api, look, spec, metadata).await
}

async fn host_plan(
    ctx: &Context,
    api: &Api<HostPlan>,
    look: &Look,
    spec: &HostPlanSpec,
    mut metadata: Value,
) -> kube::Result<()> {
    let Some(cluster) = &look.cluster else {
        return Ok(());
    };
    let Some(plan) = look.seen().and_then(|seen| seen.host_plan.as_deref()) else {
        return Ok(());
    };
    let changes = apply::merge_diff(&value_of(&plan.spec), &value_of(spec));
    let signature = signature(ctx, look, plan, spec);
    if changes.is_none() && signature.is_none() {
        return Ok(());
    }
    // In one write: a plan never exists without its signature.
    if let Some(signature) = signature {
        metadata["annotations"] = json!({ keys::PLAN_SIGNATURE: signature });
    }
    metadata["resourceVersion"] = plan.resource_version().into();
    let body = json!({ "metadata": metadata, "spec": changes.unwrap_or_else(|| json!({})) });
    let written = apply::merge(api, &plan.name_any(), &body).await?;
    cluster.view.host_plans.insert(written);
    Ok(())
}

/// The signature to add to a plan with this spec.
fn signature(ctx: &Context, look: &Look, plan: &HostPlan, spec: &HostPlanSpec) -> Option<String> {
    let signer = ctx.settings.plan_signer.as_deref()?;
    // Only the start of a plan creates a new spec; any other spec is the existing one, advanced. A
    // plan that Refit has not signed may come from another writer, and is not signed here.
    let moved_on = spec.plan_id == plan.spec.plan_id;
    if spec.plan_id.is_empty() || *spec == plan.spec || (moved_on && !signer.has_signed(plan)) {
        return None;
    }
    let update = &look.snapshot.update;
    let new_claims = || {
        let made = update.metadata.creation_timestamp.as_ref();
        Claims {
            goal_hash: update.spec.goal_hash.clone(),
            issued_at: made.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        }
    };
    // A plan of another NodeUpdate is only stopped, and stays that NodeUpdate's plan.
    let foreign = PlanId::of(&update.metadata) != spec.plan_id;
    let claims = claims_of(plan).filter(|_| foreign).unwrap_or_else(new_claims);
    Some(signer.sign(plan, spec, &claims))
}

async fn node(
    client: &Client,
    cluster: &WorkloadCluster,
    look: &Look,
    mut body: Value,
) -> kube::Result<()> {
    let Some(name) = look.seen().map(|seen| &*seen.node_name) else {
        return Ok(());
    };
    let key = ObjectKey::new("", name);
    let Some(known) = cluster.view.nodes.get(&key) else {
        return Ok(());
    };
    // A cordon or uncordon since the node was read must not be overwritten.
    body["metadata"]["resourceVersion"] = known.resource_version().into();
    let api: Api<Node> = Api::all(client.clone());
    let written = apply::merge(&api, name, &body).await?;
    cluster.view.nodes.insert(written.into());
    Ok(())
}

fn event(look: &Look, announcement: &Announcement) -> events::Announcement {
    let update = &look.snapshot.update;
    let about = match &look.snapshot.machine {
        Some(machine) => events::reference(machine.as_ref()),
        None => events::reference(update.as_ref()),
    };
    announced(about, announcement, &update.name_any())
}

/// An event about a Machine. `occurrence` distinguishes it from an earlier one with the same text.
pub(crate) fn about_machine(
    machine: &Machine,
    announcement: &Announcement,
    occurrence: &str,
) -> events::Announcement {
    announced(events::reference(machine), announcement, occurrence)
}

/// An event about an object.
pub(crate) fn announced(
    about: ObjectReference,
    announcement: &Announcement,
    occurrence: &str,
) -> events::Announcement {
    events::Announcement {
        about,
        type_: match announcement.severity {
            Severity::Normal => events::EventType::Normal,
            Severity::Warning => events::EventType::Warning,
        },
        reason: announcement.reason.to_owned(),
        message: announcement.message.clone(),
        occurrence: occurrence.to_owned(),
    }
}

fn api_of<K>(client: &Client, object: &K) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    Api::namespaced(client.clone(), &object.namespace().unwrap_or_default())
}

fn value_of(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).expect("the map keys of our types are strings")
}
