//! The controller of ClusterUpgradePlans: requests a ClusterUpgrade for each Cluster of a fleet, wave by wave.
//!
//! Each reconcile reads the caches, calls `refit_core::managed::fleet`, shows the result, and then makes the requests. The
//! Clusters are looked through only when a wave needs some.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt as _, api::PostParams};
use refit_cluster_api::kinds::Cluster;
use refit_core::{
    managed::fleet::{Candidate, FleetSeen, Member, MemberState, decide_fleet, requester, selects},
    task::status::READY,
};
use refit_kinds::{
    conditions, keys,
    refit::{
        ClusterUpgrade, ClusterUpgradePlan, ClusterUpgradePlanStatus, ClusterUpgradeSpec, PlanPhase,
    },
};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType, reference},
    lease,
    queue::Action as Next,
};
use serde_json::json;

use crate::{
    api_error::cause,
    cluster_upgrade::{at_the_latest, has_ended},
    context::Context,
    indexes::{TASKS_BY_CLUSTER, UPGRADES_BY_PLAN},
    metrics::measured,
};

/// After how many requests a plan is read again.
const READ_AGAIN_AFTER: usize = 20;
/// How long the events of a change are collected before a plan is looked at.
const COLLECT: Duration = Duration::from_secs(1);
/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// Requeue delay after a request was refused.
const AFTER_REFUSAL: Duration = Duration::from_secs(15);
/// How many plans are worked on at once.
const WORKERS: usize = 4;

/// Reconciles ClusterUpgradePlans until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    for plan in ctx.stores.cluster_upgrade_plans.list() {
        ctx.queues.cluster_upgrade_plans.add(ObjectKey::of(plan.as_ref()));
    }
    let reconcile = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "cluster-upgrade-plan", reconcile(&ctx, &key)).await }
    };
    ctx.queues.cluster_upgrade_plans.work("cluster-upgrade-plan", WORKERS, reconcile).await;
    Ok(())
}

/// Wakes the plans that have not ended: there are few, and one may wait for a ClusterUpgrade that is not its own.
pub(crate) fn wake(ctx: &Context) {
    for plan in ctx.stores.cluster_upgrade_plans.list() {
        let phase = plan.status.as_ref().map(|status| status.phase).unwrap_or_default();
        let counts = plan.status.as_ref().map(|status| status.counts).unwrap_or_default();
        if phase != PlanPhase::Completed || counts.completed < counts.requested {
            ctx.queues.cluster_upgrade_plans.add_after(ObjectKey::of(plan.as_ref()), COLLECT);
        }
    }
}

async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Next> {
    let Some(plan) = ctx.stores.cluster_upgrade_plans.get(key) else { return Ok(Next::Done) };
    let mut seen = seen(ctx, plan);
    let mut known = BTreeMap::new();
    let mut decision = decide_fleet(&seen);
    if decision.needs_candidates {
        let (found, upgrades) = candidates(ctx, &seen.plan);
        (seen.candidates, known) = (Some(found), upgrades);
        decision = decide_fleet(&seen);
    }
    let Some(written) = write_status(ctx, &seen.plan, &decision.status).await? else {
        return Ok(Next::RequeueAfter(AFTER_CONFLICT));
    };
    if decision.requests.is_empty() {
        let is_completed = decision.status.phase == PlanPhase::Completed;
        return Ok(if is_completed { Next::Done } else { at_the_latest(ctx, decision.again) });
    }
    let wave = decision.status.waves.len().saturating_sub(1);
    let mut refused = None;
    for (at, (namespace, name)) in decision.requests.iter().enumerate() {
        if at % READ_AGAIN_AFTER == 0 && !is_unchanged(ctx, &written).await? {
            return Ok(Next::RequeueAfter(AFTER_CONFLICT));
        }
        let cluster = ObjectKey::new(namespace, name);
        match request(ctx, &written, (&cluster, known.get(&cluster)), wave).await {
            Ok(()) => {}
            // An operator was faster.
            Err(error) if apply::is_conflict(&error) || is_there(&error) => {}
            Err(error) if lease::is_fenced(&error) => return Err(error.into()),
            Err(error) => {
                let why = format!("ClusterUpgrade {cluster}: {}", cause(&error));
                refused.get_or_insert(why);
            }
        }
    }
    let is_refused = refused.is_some();
    if refused != seen.refused {
        let shown = FleetSeen { plan: written, refused, ..seen };
        write_status(ctx, &shown.plan, &decide_fleet(&shown).status).await?;
    }
    Ok(Next::RequeueAfter(if is_refused { AFTER_REFUSAL } else { COLLECT }))
}

fn is_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// Whether a plan is still what it was: it may have been paused since it was cached.
async fn is_unchanged(ctx: &Context, plan: &ClusterUpgradePlan) -> kube::Result<bool> {
    let live = plans(ctx).get_opt(&plan.name_any()).await?;
    let request = |plan: &ClusterUpgradePlan| (plan.uid(), plan.metadata.generation);
    Ok(live.is_some_and(|live| request(&live) == request(plan)))
}

fn seen(ctx: &Context, plan: Arc<ClusterUpgradePlan>) -> FleetSeen {
    let all = ctx.stores.cluster_upgrades.listed(&UPGRADES_BY_PLAN, &ObjectKey::of(plan.as_ref()));
    let (of_version, others): (Vec<_>, Vec<_>) =
        all.iter().partition(|upgrade| upgrade.spec.version == plan.spec.version);
    let exists = |key: &ObjectKey| ctx.stores.clusters.get(key).is_some();
    let member = |upgrade: &&Arc<ClusterUpgrade>| {
        let key = ObjectKey::of(upgrade.as_ref());
        let tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, &key);
        exists(&key).then_some(())?;
        Some(Member {
            wave: upgrade.annotations().get(keys::WAVE)?.parse().ok()?,
            state: MemberState::of(upgrade, &tasks, ctx.clock.now_seconds()),
            cluster: (key.namespace, key.name),
        })
    };
    let is_under_way = |upgrade: &&&Arc<ClusterUpgrade>| {
        member(upgrade).is_some_and(|member| member.state.ended().is_none())
    };
    FleetSeen {
        members: of_version.iter().copied().filter_map(|upgrade| member(&upgrade)).collect(),
        others_under_way: others.iter().filter(is_under_way).count(),
        refused: plan
            .status
            .as_ref()
            .map(|status| status.refused.clone())
            .filter(|why| !why.is_empty()),
        candidates: None,
        receivers: ctx.settings.receivers(),
        now: ctx.clock.now_seconds(),
        plan,
    }
}

type Upgrades = BTreeMap<ObjectKey, Arc<ClusterUpgrade>>;

/// The other Clusters that the plan selects, by namespace and name, and their ClusterUpgrades.
fn candidates(ctx: &Context, plan: &ClusterUpgradePlan) -> (Vec<Candidate>, Upgrades) {
    // One that this plan, or another one, has requested for the version.
    let is_requested = |upgrade: &ClusterUpgrade| {
        let by = upgrade.labels().get(keys::PLAN);
        let by = by.and_then(|by| ctx.stores.cluster_upgrade_plans.get(&ObjectKey::new("", by)));
        by.is_some_and(|by| by.spec.version == plan.spec.version)
            && upgrade.annotations().contains_key(keys::WAVE)
            && upgrade.spec.version == plan.spec.version
    };
    let mut upgrades = BTreeMap::new();
    let mut candidate = |cluster: &Arc<Cluster>| {
        let key = ObjectKey::of(cluster.as_ref());
        let selected = selects(plan, &key.namespace, cluster.labels()).unwrap_or_default();
        let is_deleting = cluster.metadata.deletion_timestamp.is_some();
        let upgrade = ctx.stores.cluster_upgrades.get(&key);
        let is_candidate = selected
            && !is_deleting
            && ctx.opted_in(&key.namespace)
            && !upgrade.as_deref().is_some_and(is_requested);
        is_candidate.then_some(())?;
        let is_busy = upgrade.as_ref().is_some_and(|upgrade| !has_ended(upgrade));
        upgrades.extend(upgrade.map(|upgrade| (key.clone(), upgrade)));
        let (labels, cluster) = (cluster.labels().clone(), (key.namespace, key.name));
        Some(Candidate { is_busy, labels, cluster })
    };
    let mut found: Vec<Candidate> =
        ctx.stores.clusters.list().iter().filter_map(&mut candidate).collect();
    found.sort_by(|a, b| a.cluster.cmp(&b.cluster));
    (found, upgrades)
}

/// Requests the upgrade of a Cluster, as a part of a wave. The request replaces all of an earlier one, unless that was made
/// meanwhile.
async fn request(
    ctx: &Context,
    plan: &ClusterUpgradePlan,
    (cluster, known): (&ObjectKey, Option<&Arc<ClusterUpgrade>>),
    wave: usize,
) -> kube::Result<()> {
    let (spec, name) = (&plan.spec, plan.name_any());
    let api: Api<ClusterUpgrade> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let wanted = ClusterUpgradeSpec {
        start_at: Some(Time(ctx.clock.now_seconds())),
        start_within_minutes: spec.start_within_minutes,
        hops: spec.hops.clone(),
        channel: spec.channel.clone(),
        accepted_risks: spec.accepted_risks.clone(),
        via: spec.via,
        ignored_checks: spec.ignored_checks.clone(),
        silences: spec.silences.clone(),
        extra_capacity: spec.extra_capacity.clone(),
        requested_by: Some(requester(&name)),
        ..ClusterUpgradeSpec::to(spec.version.clone())
    };
    let labels = BTreeMap::from([(keys::PLAN.to_owned(), name.clone())]);
    let annotations = BTreeMap::from([(keys::WAVE.to_owned(), wave.to_string())]);
    let requested = if let Some(known) = known {
        let spec = apply::merge_diff(&json!(known.spec), &json!(wanted));
        let body = json!({
            "metadata": {
                "resourceVersion": known.resource_version(),
                "labels": labels,
                "annotations": annotations,
            },
            "spec": spec.unwrap_or_else(|| json!({})),
        });
        apply::merge(&api, &cluster.name, &body).await?
    } else {
        let mut upgrade = ClusterUpgrade::new(&cluster.name, wanted);
        upgrade.metadata.labels = Some(labels);
        upgrade.metadata.annotations = Some(annotations);
        api.create(&PostParams::default(), &upgrade).await?
    };
    ctx.stores.cluster_upgrades.insert(requested);
    tracing::info!(plan = name, %cluster, wave, version = %spec.version, "requested an upgrade");
    Ok(())
}

fn plans(ctx: &Context) -> Api<ClusterUpgradePlan> {
    Api::all(ctx.client.clone())
}

/// Writes a changed status, and an event if the plan shows another reason. Returns the object then; `None` if it changed
/// meanwhile, or is gone.
async fn write_status(
    ctx: &Context,
    plan: &Arc<ClusterUpgradePlan>,
    next: &ClusterUpgradePlanStatus,
) -> anyhow::Result<Option<Arc<ClusterUpgradePlan>>> {
    let old = plan.status.clone().unwrap_or_default();
    let Some(patch) = apply::status_diff(plan.status.as_ref(), next) else {
        return Ok(Some(plan.clone()));
    };
    let (name, version) = (plan.name_any(), plan.resource_version().unwrap_or_default());
    // Before the status: after a crash between the two, the event would be lost.
    announce(ctx, plan, &old, next).await;
    match apply::swap_status(&plans(ctx), &name, &version, &patch).await {
        Ok(written) => {
            ctx.stores.cluster_upgrade_plans.insert(written.clone());
            Ok(Some(Arc::new(written)))
        }
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn announce(
    ctx: &Context,
    plan: &ClusterUpgradePlan,
    old: &ClusterUpgradePlanStatus,
    next: &ClusterUpgradePlanStatus,
) {
    let Some(ready) = conditions::get(&next.conditions, READY) else { return };
    let before = conditions::get(&old.conditions, READY);
    let began_wave = next.waves.len() > old.waves.len();
    if before.is_some_and(|before| before.reason == ready.reason) && !began_wave {
        return;
    }
    let stops = next.phase == PlanPhase::Stopped && ready.reason != "Paused";
    // What a mark of a notification does not change.
    let generation = plan.metadata.generation.unwrap_or_default();
    let reason_before = before.map_or("", |before| &*before.reason);
    let occurrence = format!("{generation}/{}/{reason_before}", old.waves.len());
    ctx.recorder
        .announce(&Announcement {
            about: reference(plan),
            type_: if stops { EventType::Warning } else { EventType::Normal },
            reason: ready.reason.clone(),
            message: ready.message.clone(),
            occurrence,
        })
        .await;
}
