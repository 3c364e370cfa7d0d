//! The controller of ClusterUpgrades: begins the upgrade of a whole Cluster at its time, if the Cluster is fit for it, and
//! keeps its history.
//!
//! Each reconcile reads the caches, calls `refit_core::managed`, makes the writes that follow, and shows the result. The
//! UpgradeTask that it creates does the work. Nothing is remembered between reconciles.

mod capacity;
mod look;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams};
use refit_core::{
    gates::GatedCluster,
    managed::capacity::CapacityWrite,
    managed::cluster::{Decision, EXTRA_CAPACITY, Hindrance, Known, Write, decide},
    managed::silences::{SilenceOutcome, SilenceWrite},
    task::{Paused, Refused, status::READY},
};
use refit_kinds::{
    conditions,
    refit::{
        CapacityState, ClusterUpgrade, ClusterUpgradeStatus, Stage, UpgradePhase, UpgradeRecord,
        UpgradeTask, UpgradeTaskSpec, Via,
    },
    version::KubernetesVersion,
};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType, reference},
    lease,
    queue::Action as Next,
};
use serde_json::json;

use self::look::{Look, Needs};
use crate::{
    api_error::cause,
    context::Context,
    metrics::measured,
    owner::LiveOwner,
    upgrade_task::{cluster::groups_of, hooks_reach},
};

/// How long the events of a change are collected before an upgrade is looked at.
const COLLECT: Duration = Duration::from_secs(1);
/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// How often what has not ended is looked at, whatever wakes it.
const LOOK: Duration = Duration::from_mins(5);
/// Requeue delay after a write was refused.
const AFTER_REFUSAL: Duration = Duration::from_secs(15);
/// How often extra Machines of an upgrade that has ended are looked at while they are deleted.
const WHILE_REMOVED: Duration = Duration::from_secs(30);
/// How many upgrades are worked on at once.
const WORKERS: usize = 64;

/// Reconciles ClusterUpgrades until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    for upgrade in ctx.stores.cluster_upgrades.list() {
        ctx.queues.cluster_upgrades.add(ObjectKey::of(upgrade.as_ref()));
    }
    let reconcile = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "cluster-upgrade", Box::pin(reconcile(&ctx, &key))).await }
    };
    ctx.queues.cluster_upgrades.work("cluster-upgrade", WORKERS, reconcile).await;
    Ok(())
}

/// Wakes the upgrade of a Cluster, unless it has ended.
pub(crate) fn wake(ctx: &Context, cluster: &ObjectKey) {
    let known = ctx.stores.cluster_upgrades.get(cluster);
    if known.is_some_and(|upgrade| !has_ended(&upgrade)) {
        ctx.queues.cluster_upgrades.add_after(cluster.clone(), COLLECT);
    }
}

/// Whether nothing but another request makes a difference.
pub(crate) fn has_ended(upgrade: &ClusterUpgrade) -> bool {
    upgrade.status.as_ref().is_some_and(|status| {
        let newest = status.history.first();
        status.phase.has_ended()
            && status.observed_generation == upgrade.metadata.generation
            && newest.is_some_and(|record| record.version == upgrade.spec.version)
    })
}

async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Next> {
    let Some(look) = Look::read(ctx, key) else { return Ok(Next::Done) };
    let mut known = look.with_servers(ctx, look.known(ctx), false).await;
    let mut decision = decide(&known);
    let mut read = None;
    while let Some(needs) = needs(&known, &decision).filter(|needs| needs.exceed(read)) {
        // The caches may show the Cluster as it was before an outage, and the request as it was before a change.
        if let Err(error) = look.read_live(ctx, needs).await {
            known.hindrance = Some(Hindrance::Passing(error.to_string()));
            decision = decide(&known);
            break;
        }
        let Some(live) = Look::read(ctx, key) else { return Ok(Next::Done) };
        known = live.with_servers(ctx, live.known(ctx), true).await;
        decision = decide(&known);
        read = Some(needs);
    }
    if read.is_none() && known.hindrance.is_none() && completes(&known.upgrade, &decision) {
        known = look.with_servers(ctx, look.known(ctx), true).await;
        decision = decide(&known);
    }
    if silence(ctx, &mut known, &decision).await {
        decision = decide(&known);
    }
    if let Some(hindrance) = resolve(ctx, &known.upgrade, &mut decision.writes).await? {
        known.hindrance = Some(hindrance);
        decision = decide(&known);
    }
    // Before its writes: what they begin is known after a crash, and a request that changed meanwhile begins nothing.
    let Some(written) = write_status(ctx, &known.upgrade, &decision.status).await? else {
        return Ok(Next::RequeueAfter(AFTER_CONFLICT));
    };
    for write in &decision.writes {
        let hindrance = match perform(ctx, &written, write).await {
            Ok(None) => continue,
            Ok(Some(hindrance)) => hindrance,
            Err(error) => hindrance(error)?,
        };
        known = Known { upgrade: written, hindrance: Some(hindrance), ..known };
        decision = decide(&known);
        write_status(ctx, &known.upgrade, &decision.status).await?;
        return Ok(Next::RequeueAfter(AFTER_REFUSAL));
    }
    let is_silenced = !known.silenced.iter().any(|(_, outcome)| has_failed(outcome));
    if known.hindrance.is_some() || !is_silenced {
        return Ok(Next::RequeueAfter(AFTER_REFUSAL));
    }
    Ok(next_look(ctx, &known, &decision))
}

/// Chooses who works through the Machines, where the request leaves that open.
async fn resolve(
    ctx: &Context,
    upgrade: &ClusterUpgrade,
    writes: &mut [Write],
) -> anyhow::Result<Option<Hindrance>> {
    for write in writes {
        let Write::Commence { via: via @ None, .. } = write else { continue };
        match reaching(ctx, upgrade).await {
            Ok(Ok(reaching)) => *via = Some(reaching),
            Ok(Err(refused)) => return Ok(Some(Hindrance::Refused(refused.message))),
            Err(error) => return hindrance(error).map(Some),
        }
    }
    Ok(None)
}

/// What an error of the API means for an upgrade. Nothing, if this process is not the leader any more.
fn hindrance(error: anyhow::Error) -> anyhow::Result<Hindrance> {
    match error.downcast_ref::<kube::Error>() {
        Some(error) if lease::is_fenced(error) => {}
        Some(error) => {
            let message = cause(error);
            let is_refused =
                matches!(error, kube::Error::Api(status) if [403, 422].contains(&status.code));
            return Ok(if is_refused {
                Hindrance::Refused(message)
            } else {
                Hindrance::Passing(message)
            });
        }
        None => {}
    }
    Err(error)
}

/// When an upgrade is looked at again, apart from changes.
fn next_look(ctx: &Context, known: &Known, decision: &Decision) -> Next {
    let upgrade = &known.upgrade;
    if decision.status.phase.has_ended() {
        // No change wakes an upgrade that has ended.
        if capacity_writes(decision).next().is_some() {
            return Next::RequeueAfter(COLLECT);
        }
        if known.capacity.remains() {
            return Next::RequeueAfter(WHILE_REMOVED);
        }
        // Another version may have waited for its end.
        let newest = decision.status.history.first().map(|record| &record.version);
        let is_last = newest == Some(&upgrade.spec.version);
        return if is_last { Next::Done } else { Next::RequeueAfter(COLLECT) };
    }
    at_the_latest(ctx, decision.again)
}

/// A look at this time, if there is one, and after five minutes at the latest: a clock may be stepped meanwhile.
pub(crate) fn at_the_latest(ctx: &Context, again: Option<Timestamp>) -> Next {
    let wait = again.map(|at| Duration::try_from(at.duration_since(ctx.clock.now())));
    match wait {
        Some(Ok(wait)) => Next::RequeueAfter(wait.min(LOOK)),
        // It is due.
        Some(Err(_)) => Next::RequeueAfter(COLLECT),
        None => Next::RequeueAfter(LOOK),
    }
}

/// Whether an upgrade succeeds with this decision.
fn completes(upgrade: &ClusterUpgrade, decision: &Decision) -> bool {
    let before = upgrade.status.as_ref().map(|status| status.phase);
    decision.status.phase == UpgradePhase::Completed && before != Some(UpgradePhase::Completed)
}

/// Whether an upgrade begins with this decision: its alerts are silenced, or its task is created.
fn begins(known: &Known, decision: &Decision) -> bool {
    decision.writes.iter().any(|write| match write {
        Write::Commence { .. } => true,
        Write::Silence(SilenceWrite::Set(_)) => !known.is_commenced(),
        Write::Silence(SilenceWrite::Remove { .. })
        | Write::Abort(_)
        | Write::Capacity(_)
        | Write::RollBack { .. } => false,
    })
}

/// What must be read live before the writes of a decision, if anything.
fn needs(known: &Known, decision: &Decision) -> Option<Needs> {
    let begins = begins(known, decision);
    let needs = Needs {
        health: begins || capacity_writes(decision).any(CapacityWrite::adds_machines),
        capacity: begins && known.asks_for_capacity()
            || capacity_writes(decision).any(CapacityWrite::rests_on_live_read),
    };
    (needs.health || needs.capacity).then_some(needs)
}

fn capacity_writes(decision: &Decision) -> impl Iterator<Item = &CapacityWrite> {
    decision.writes.iter().filter_map(|write| match write {
        Write::Capacity(write) => Some(write),
        Write::Commence { .. } | Write::Silence(_) | Write::Abort(_) | Write::RollBack { .. } => {
            None
        }
    })
}

/// Makes the writes to Alertmanager, one after the other. Returns whether there were any.
async fn silence(ctx: &Context, known: &mut Known, decision: &Decision) -> bool {
    let key = ObjectKey::of(known.upgrade.as_ref());
    let cluster = GatedCluster { namespace: &key.namespace, name: &key.name };
    for write in &decision.writes {
        let Write::Silence(write) = write else { continue };
        let outcome = ctx.alertmanager.write(&cluster, write).await;
        tracing::debug!(cluster = %key, silence = write.name(), ?outcome, "wrote to Alertmanager");
        known.silenced.push((write.clone(), outcome));
    }
    !known.silenced.is_empty()
}

fn has_failed(outcome: &SilenceOutcome) -> bool {
    matches!(outcome, SilenceOutcome::Failed(_))
}

async fn perform(
    ctx: &Context,
    upgrade: &ClusterUpgrade,
    write: &Write,
) -> anyhow::Result<Option<Hindrance>> {
    match write {
        Write::Commence { task, version, hops, via } => {
            commence(ctx, upgrade, (task, version, hops), via.unwrap_or(Via::Machines)).await
        }
        Write::Abort(task) => {
            let on_abort = upgrade.spec.on_abort;
            let body = json!({"spec": {"stage": Stage::Abort, "onAbort": on_abort}});
            let aborted = apply::merge(&tasks(ctx, upgrade), task, &body).await?;
            ctx.stores.upgrade_tasks.insert(aborted);
            tracing::info!(cluster = upgrade.name_any(), task, "aborted the task of an upgrade");
            Ok(None)
        }
        Write::Capacity(write) => capacity::perform(ctx, upgrade, write).await,
        Write::RollBack { task, to } => {
            let spec = UpgradeTaskSpec {
                owner_ref: Some(to.owner.clone()),
                version: Some(to.version.clone()),
                roll_back: true,
                ..UpgradeTaskSpec::of(&upgrade.name_any(), Via::Machines)
            };
            create(ctx, upgrade, task, spec).await
        }
        // It was made before.
        Write::Silence(_) => Ok(None),
    }
}

/// Who brings the version to all Machines of the Cluster: Cluster API only if it calls Refit for each group.
async fn reaching(ctx: &Context, upgrade: &ClusterUpgrade) -> anyhow::Result<Result<Via, Refused>> {
    let Some(cluster) = ctx.stores.clusters.get(&ObjectKey::of(upgrade)) else {
        return Ok(Ok(Via::Machines));
    };
    let mut reaching = Via::Spec;
    for group in groups_of(ctx, &cluster) {
        let owner = LiveOwner::of(&ctx.stores, &group);
        if owner.is_some_and(|owner| Paused::of(&owner.annotations()).task().is_some()) {
            // A task that was stopped has left it paused: the next one takes it over.
            reaching = Via::Machines;
            continue;
        }
        match hooks_reach::via(ctx, &group).await? {
            Ok(Via::Spec) => {}
            Ok(Via::Machines) => reaching = Via::Machines,
            Err(refused) => return Ok(Err(refused)),
        }
    }
    Ok(Ok(reaching))
}

async fn commence(
    ctx: &Context,
    upgrade: &ClusterUpgrade,
    (name, version, hops): (&str, &KubernetesVersion, &[KubernetesVersion]),
    via: Via,
) -> anyhow::Result<Option<Hindrance>> {
    let spec = UpgradeTaskSpec {
        version: Some(version.clone()),
        hops: Some(hops.to_vec()).filter(|hops| !hops.is_empty()),
        ..UpgradeTaskSpec::of(&upgrade.name_any(), via)
    };
    create(ctx, upgrade, name, spec).await
}

/// Creates a task of an upgrade.
async fn create(
    ctx: &Context,
    upgrade: &ClusterUpgrade,
    name: &str,
    spec: UpgradeTaskSpec,
) -> anyhow::Result<Option<Hindrance>> {
    let mut task = UpgradeTask::new(name, spec);
    task.metadata.namespace = upgrade.namespace();
    task.metadata.owner_references = upgrade.controller_owner_ref(&()).map(|owner| vec![owner]);
    match tasks(ctx, upgrade).create(&PostParams::default(), &task).await {
        Ok(created) => ctx.stores.upgrade_tasks.insert(created),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            // One of this upgrade is in the cache at the next look.
            let message =
                format!("UpgradeTask {name} exists: delete it if it is not of this upgrade");
            return Ok(Some(Hindrance::Passing(message)));
        }
        Err(error) => return Err(error.into()),
    }
    tracing::info!(cluster = upgrade.name_any(), task = name, "created a task of an upgrade");
    Ok(None)
}

fn tasks(ctx: &Context, upgrade: &ClusterUpgrade) -> Api<UpgradeTask> {
    Api::namespaced(ctx.client.clone(), &upgrade.namespace().unwrap_or_default())
}

/// Writes a changed status, and events for what has changed. Returns the object then; `None` if it changed meanwhile, or is
/// gone.
async fn write_status(
    ctx: &Context,
    upgrade: &Arc<ClusterUpgrade>,
    next: &ClusterUpgradeStatus,
) -> anyhow::Result<Option<Arc<ClusterUpgrade>>> {
    let old = upgrade.status.clone().unwrap_or_default();
    let Some(patch) = apply::status_diff(upgrade.status.as_ref(), next) else {
        return Ok(Some(upgrade.clone()));
    };
    let key = ObjectKey::of(upgrade.as_ref());
    let api: Api<ClusterUpgrade> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let version = upgrade.resource_version().unwrap_or_default();
    // Before the status: after a crash between the two, the events would be lost.
    announce(ctx, upgrade, &old, next).await;
    match apply::swap_status(&api, &key.name, &version, &patch).await {
        Ok(written) => {
            ctx.stores.cluster_upgrades.insert(written.clone());
            Ok(Some(Arc::new(written)))
        }
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes an event for a changed phase, and one for each step that was just done.
async fn announce(
    ctx: &Context,
    upgrade: &ClusterUpgrade,
    old: &ClusterUpgradeStatus,
    next: &ClusterUpgradeStatus,
) {
    let Some(record) = next.history.first() else { return };
    let before = old.history.iter().find(|before| before.version == record.version);
    // What neither a mark of a notification nor another look changes. After a crash, the phase may be written before a step is
    // done again.
    let request = upgrade.metadata.generation.unwrap_or_default().to_string();
    let began = before.map(|before| format!("/{}/{}", before.requested_time.0, before.phase));
    let event = |type_, reason: String, message: String, occurrence: String| Announcement {
        about: reference(upgrade),
        type_,
        reason,
        message,
        occurrence,
    };
    let was_done = |name: &str| {
        let steps = before.iter().flat_map(|before| &before.conditions);
        steps.into_iter().any(|step| step.type_ == name && step.status == "True")
    };
    for step in record.conditions.iter().rev().filter(|step| step.status == "True") {
        if !was_done(&step.type_) {
            let message = format!("upgrade to {}: {}", record.version, step.message);
            let done = event(EventType::Normal, step.type_.clone(), message, request.clone());
            ctx.recorder.announce(&done).await;
        }
    }
    let is_skipped = |record: &UpgradeRecord| record.extra_capacity == Some(CapacityState::Skipped);
    if is_skipped(record) && !before.is_some_and(is_skipped) {
        let shown = conditions::get(&next.conditions, EXTRA_CAPACITY);
        let message = shown.map(|shown| shown.message.clone()).unwrap_or_default();
        let reason = "ExtraCapacitySkipped".to_owned();
        let skipped = event(EventType::Warning, reason, message, request.clone());
        ctx.recorder.announce(&skipped).await;
    }
    if before.map(|before| before.phase) != Some(record.phase) {
        let ready = conditions::get(&next.conditions, READY);
        let shown = || ready.map(|ready| ready.message.clone()).unwrap_or_default();
        let (type_, reason, message) = match record.phase {
            UpgradePhase::New | UpgradePhase::Pending => {
                (EventType::Normal, "UpgradeScheduled", shown())
            }
            UpgradePhase::Upgrading => {
                let message = format!("the upgrade to {} has started", record.version);
                (EventType::Normal, "UpgradeStarted", message)
            }
            UpgradePhase::Completed => (EventType::Normal, "UpgradeCompleted", shown()),
            UpgradePhase::Failed => (EventType::Warning, "UpgradeFailed", shown()),
        };
        let occurrence = request + &began.unwrap_or_default();
        ctx.recorder.announce(&event(type_, reason.to_owned(), message, occurrence)).await;
    }
}
