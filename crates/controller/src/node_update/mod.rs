//! The controller of NodeUpdates: brings one Machine to one goal.
//!
//! Each reconcile reads the caches, calls `refit_core::node::decide`, and makes the one write of
//! the decision. If the write disturbs a machine, it first brings the caches up to the present and
//! decides again. Nothing is remembered between reconciles.

mod act;
mod k8sd;
pub(crate) mod live;
pub(crate) mod look;
mod updater;

use std::{sync::Arc, time::Duration};

use kube::{Api, Client, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    node::{
        Decision, Seen, Snapshot, Write, awaits_budget, awaits_configuration, awaits_gates,
        requires_gates,
    },
    report::Refusal,
};
use refit_kinds::refit::{MachineUid, Phase};
use refit_runtime::{ObjectKey, client::too_large, queue::Action};

pub(crate) use act::{about_machine, announced, swap_group};

use self::{
    act::{Done, perform},
    live::Needs,
    look::{Look, WorkloadCluster},
};
use crate::{
    api_error::{ReadError, is_silence, unreadable},
    cluster_view::ClusterView,
    context::Context,
    drain::{self, DrainTarget},
    host_plan::cluster_key,
    metrics::of_request,
    watches::wake_update,
};

/// Requeue delay after a Machine was found that the cache lacked, or more must be read.
const AFTER_FIND: Duration = Duration::from_millis(100);
/// Requeue delay after a refused write: its cause must be removed first.
const AFTER_REFUSAL: Duration = Duration::from_secs(30);

/// How many NodeUpdates are woken before other work has its turn.
const WAKES_WITHOUT_PAUSE: usize = 500;

/// Reconciles NodeUpdates until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    wake_all(&ctx).await;
    let queue = &ctx.queues.node_updates;
    // Limited per cluster, and per client: with one limit for all, some slow clusters would take all
    // of it.
    queue.work("node-update", usize::MAX, |key| measured(ctx.clone(), key)).await;
    Ok(())
}

/// Wakes every NodeUpdate that has not ended or has left something to do. Before the caches were
/// complete, it was not known which have.
async fn wake_all(ctx: &Context) {
    for (number, update) in ctx.stores.node_updates.list().iter().enumerate() {
        if number % WAKES_WITHOUT_PAUSE == WAKES_WITHOUT_PAUSE - 1 {
            tokio::task::yield_now().await;
        }
        wake_update(ctx, update);
    }
}

async fn measured(ctx: Arc<Context>, key: ObjectKey) -> anyhow::Result<Action> {
    let view = view_of(&ctx, &key);
    let _turn = match &view {
        Some(view) => Some(view.turn().await),
        None => None,
    };
    // Boxed, so that waiting for a turn takes little memory.
    crate::metrics::measured(&ctx, "node-update", Box::pin(reconcile(&ctx, &key))).await
}

/// The caches of the cluster of a NodeUpdate.
fn view_of(ctx: &Context, key: &ObjectKey) -> Option<Arc<ClusterView>> {
    let machine = ctx.stores.node_updates.get(key)?.spec.machine_ref.name.clone();
    let machine = ctx.stores.machines.get(&ObjectKey::new(&key.namespace, machine))?;
    ctx.workload_index.view(&cluster_key(&machine))
}

pub(crate) async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    let Some(update) = ctx.stores.node_updates.get(key) else {
        return Ok(Action::Done);
    };
    let mut look = Look::read(ctx, update);
    let outcome = attempt(ctx, key, &mut look).await;
    if let Err(error) = &outcome {
        show_error(ctx, &mut look, error).await;
    }
    outcome
}

/// Decides, and makes the write that follows.
async fn attempt(ctx: &Context, key: &ObjectKey, look: &mut Look) -> anyhow::Result<Action> {
    if look.machine_is_missing() && find_machine(ctx, look).await? {
        return Ok(Action::RequeueAfter(AFTER_FIND));
    }
    if let Err(failure) = look_ahead(ctx, look).await {
        look.note(&failure)?;
    }
    if look.snapshot.update.status.as_ref().is_some_and(awaits_gates) {
        look.check_gates_unless_known(ctx).await;
    }
    let mut decision = look.decide(ctx);
    let target = decision.write.as_ref().map_or("a live read", Write::target);
    target.clone_into(&mut look.request);
    let needs = Needs::of(ctx, look, &decision);
    let begins = |look: &Look, decision: &Decision| {
        requires_gates(&look.snapshot, decision, ctx.clock.now())
    };
    if begins(look, &decision) && look.check_gates(ctx).await {
        // The other reads are needless.
        decision = look.decide(ctx);
        if Needs::of(ctx, look, &decision) != Needs::default() || begins(look, &decision) {
            return Ok(Action::RequeueAfter(AFTER_REFUSAL));
        }
    } else if needs != Needs::default() {
        if let Err(failure) = Box::pin(read(ctx, look, needs)).await {
            if look.note(&failure).is_err() {
                return Err(failure.into());
            }
            // A refused read prevents the write: so it stays shown until the write succeeds.
            if let (Some(Refusal::ApiRefused { what, message }), Some(write)) =
                (&mut look.snapshot.refused, &decision.write)
            {
                *message = format!("{what}: {message}");
                write.target().clone_into(what);
            }
            let decision = show(ctx, look).await?;
            return Ok(Action::RequeueAfter(decision.requeue.unwrap_or(AFTER_REFUSAL)));
        }
        if !look.read_again(ctx, key) {
            return Ok(Action::Done);
        }
        decision = look.decide(ctx);
        // What is decided now may rest on more than what was read.
        if Needs::of(ctx, look, &decision).exceeds(needs) || begins(look, &decision) {
            return Ok(Action::RequeueAfter(AFTER_FIND));
        }
    }
    let Some(write) = decision.write.clone() else {
        return Ok(wait(&decision));
    };
    write.target().clone_into(&mut look.request);
    match perform(ctx, look, &decision, &write).await? {
        Done::Again(after) => Ok(Action::RequeueAfter(after)),
        Done::Evicted(refused) => {
            if let Some(seen) = look.seen_mut() {
                seen.evictions = Some(refused);
            }
            let decision = show(ctx, look).await?;
            Ok(wait(&decision))
        }
        Done::Refused(refused) => {
            tracing::warn!(node_update = %key, why = refused.sentence(), "write rejected");
            ctx.metrics.reconcile_error("node-update", "Refused");
            look.snapshot.refused = Some(refused);
            show(ctx, look).await?;
            Ok(Action::RequeueAfter(AFTER_REFUSAL))
        }
    }
}

/// Makes the reads that a write needs.
async fn read(ctx: &Context, look: &mut Look, needs: Needs) -> Result<(), ReadError> {
    live::read(ctx, look, needs).await?;
    if needs.configuration {
        look.snapshot.configuration = live::read_configuration(ctx, look).await?;
    }
    if needs.drain_ahead {
        look_ahead_of_drain(ctx, look).await?;
    }
    Ok(())
}

/// Shows the error of a request that is tried again: without it, the status would not show why it waits.
async fn show_error(ctx: &Context, look: &mut Look, error: &anyhow::Error) {
    let read = error.downcast_ref().and_then(ReadError::what);
    let Some(error) = error.chain().find_map(of_request) else { return };
    // An API server that does not answer takes no status either.
    let message = if let Some(why) = unreadable(error) {
        format!("its response cannot be read: {why}")
    } else if let Some(what) = too_large(error) {
        what.to_string()
    } else if let kube::Error::Api(status) = error
        && !is_silence(error)
    {
        status.message.clone()
    } else {
        return;
    };
    // A read fails for the write that rests on it: shown as another request, it would not stay shown.
    let message = read.map_or_else(|| message.clone(), |what| format!("{what}: {message}"));
    look.snapshot.refused = Some(Refusal::ApiErrors { what: look.request.clone(), message });
    if let Err(error) = show(ctx, look).await {
        tracing::debug!(%error, "cannot show the error of a request");
    }
}

/// Decides again with the result of the last write, and writes the status.
async fn show(ctx: &Context, look: &mut Look) -> anyhow::Result<Decision> {
    let decision = look.decide(ctx);
    if decision.write == Some(Write::STATUS) {
        perform(ctx, look, &decision, &Write::STATUS).await?;
    }
    Ok(decision)
}

/// Reads a Machine that the cache lacks from the API server; returns whether it exists.
async fn find_machine(ctx: &Context, look: &Look) -> kube::Result<bool> {
    let update = &look.snapshot.update;
    let namespace = update.namespace().unwrap_or_default();
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), &namespace);
    let wanted = &update.spec.machine_ref;
    let found = api.get_opt(&wanted.name).await?;
    let found = found.filter(|machine| MachineUid::of(&machine.metadata) == wanted.uid);
    let is_there = found.is_some();
    if let Some(machine) = found {
        ctx.stores.machines.insert(machine);
    }
    Ok(is_there)
}

fn wait(decision: &Decision) -> Action {
    decision.requeue.map_or(Action::Done, Action::RequeueAfter)
}

/// Reads what no cache has, as far as the update waits for it.
async fn look_ahead(ctx: &Context, look: &mut Look) -> Result<(), ReadError> {
    if look.snapshot.update.status.as_ref().is_some_and(awaits_configuration) {
        "its KubeadmConfig".clone_into(&mut look.request);
        look.snapshot.configuration = live::read_configuration(ctx, look).await?;
    }
    "the list of its Node's pods".clone_into(&mut look.request);
    look_at_pods(ctx, look).await
}

/// Reads the pods and volumes of a node that is being drained, or whose drain waits for a budget. Nothing
/// else needs them.
async fn look_at_pods(ctx: &Context, look: &mut Look) -> Result<(), ReadError> {
    let status = look.snapshot.update.status.as_ref();
    if status.is_some_and(awaits_budget) {
        return look_ahead_of_drain(ctx, look).await;
    }
    let is_draining = status.is_some_and(|status| status.phase == Phase::Draining);
    let node = look.seen().and_then(Seen::node);
    if !is_draining || node.is_none_or(|node| !node.unschedulable) {
        return Ok(());
    }
    let found =
        with_node(ctx, look, async |client, target| drain::look(ctx, &client, target).await);
    let found = found.await?;
    if let Some(seen) = look.seen_mut() {
        seen.drain = found;
    }
    Ok(())
}

/// Reads what the drain of the node would find.
async fn look_ahead_of_drain(ctx: &Context, look: &mut Look) -> Result<(), ReadError> {
    let found =
        with_node(ctx, look, async |client, target| drain::look_ahead(ctx, &client, target).await);
    let found = found.await?;
    if let Some(seen) = look.seen_mut() {
        seen.ahead = found;
    }
    Ok(())
}

/// Reads something about the node; `None` if it does not exist, or its cluster is not reachable.
async fn with_node<T>(
    ctx: &Context,
    look: &Look,
    read: impl AsyncFnOnce(Client, DrainTarget<'_>) -> Result<T, ReadError>,
) -> Result<Option<T>, ReadError> {
    let Snapshot { machine, drain: choice, .. } = &look.snapshot;
    let (Some(WorkloadCluster { key, view }), Some(machine), Some(seen)) =
        (&look.cluster, machine.as_deref(), look.seen())
    else {
        return Ok(None);
    };
    let Some(node) = seen.node().filter(|_| !view.is_unreachable()) else {
        return Ok(None);
    };
    let Ok(client) = ctx.workloads.client(&key.namespace, &key.name).await else {
        view.mark_unreachable();
        return Ok(None);
    };
    let target = DrainTarget {
        machine,
        node: &seen.node_name,
        node_ready: node.ready,
        policy: &choice.policy,
    };
    read(client, target).await.map(Some)
}
