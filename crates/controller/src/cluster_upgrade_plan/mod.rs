//! The controller of ClusterUpgradePlans: requests a ClusterUpgrade for each Cluster of a fleet, wave by wave.
//!
//! Each reconcile reads the caches, calls `refit_core::managed::fleet`, shows the result, and then makes the requests. The
//! Clusters are looked through only when a wave needs some.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Cluster;
use refit_core::{
    managed::fleet::{Candidate, FleetSeen, Member, MemberState, decide_fleet, selects},
    task::status::READY,
};
use refit_kinds::{
    conditions, keys,
    refit::{ClusterUpgrade, ClusterUpgradePlan, ClusterUpgradePlanStatus, PlanPhase, Stage},
};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType, reference},
    queue::Action as Next,
};
use serde_json::json;

use crate::{
    cluster_upgrade::has_ended,
    context::Context,
    indexes::{TASKS_BY_CLUSTER, UPGRADES_BY_PLAN},
    metrics::measured,
};

/// Field manager of the ClusterUpgrades that a plan requests.
const MANAGER: &str = "refit-plan";
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
        if phase != PlanPhase::Completed {
            ctx.queues.cluster_upgrade_plans.add_after(ObjectKey::of(plan.as_ref()), COLLECT);
        }
    }
}

async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Next> {
    let Some(plan) = ctx.stores.cluster_upgrade_plans.get(key) else { return Ok(Next::Done) };
    let mut seen = FleetSeen {
        members: members(ctx, &plan),
        candidates: None,
        now: ctx.clock.now_seconds(),
        plan,
    };
    let mut decision = decide_fleet(&seen);
    if decision.needs_candidates {
        seen.candidates = Some(candidates(ctx, &seen.plan));
        decision = decide_fleet(&seen);
    }
    if !write_status(ctx, &seen.plan, &decision.status).await? {
        return Ok(Next::RequeueAfter(AFTER_CONFLICT));
    }
    if !decision.requests.is_empty() {
        // It may have been paused since it was cached.
        let live = plans(ctx).get_opt(&key.name).await?;
        let generation = live.and_then(|live| live.metadata.generation);
        if generation != seen.plan.metadata.generation {
            return Ok(Next::RequeueAfter(AFTER_CONFLICT));
        }
        let wave = decision.status.waves.len().saturating_sub(1);
        let mut are_made = true;
        for (namespace, name) in &decision.requests {
            let cluster = ObjectKey::new(namespace, name);
            if let Err(error) = request(ctx, &seen.plan, &cluster, wave).await {
                tracing::warn!(plan = key.name, %cluster, %error, "cannot request an upgrade");
                are_made = false;
            }
        }
        return Ok(Next::RequeueAfter(if are_made { COLLECT } else { AFTER_REFUSAL }));
    }
    Ok(match decision.again {
        Some(at) => Next::RequeueAfter(at.duration_since(ctx.clock.now()).unsigned_abs()),
        None => Next::Done,
    })
}

/// The Clusters that the plan has requested for its version.
fn members(ctx: &Context, plan: &ClusterUpgradePlan) -> Vec<Member> {
    let all = ctx.stores.cluster_upgrades.listed(&UPGRADES_BY_PLAN, &ObjectKey::of(plan));
    let of_version = all.iter().filter(|upgrade| upgrade.spec.version == plan.spec.version);
    let member = |upgrade: &Arc<ClusterUpgrade>| {
        let key = ObjectKey::of(upgrade.as_ref());
        let tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, &key);
        Some(Member {
            wave: upgrade.annotations().get(keys::WAVE)?.parse().ok()?,
            state: MemberState::of(upgrade, &tasks, ctx.clock.now_seconds()),
            cluster: (key.namespace, key.name),
        })
    };
    of_version.filter_map(member).collect()
}

/// The other Clusters that the plan selects, by namespace and name.
fn candidates(ctx: &Context, plan: &ClusterUpgradePlan) -> Vec<Candidate> {
    let is_member = |upgrade: &ClusterUpgrade| {
        upgrade.labels().get(keys::PLAN) == Some(&plan.name_any())
            && upgrade.annotations().contains_key(keys::WAVE)
            && upgrade.spec.version == plan.spec.version
    };
    let candidate = |cluster: &Arc<Cluster>| {
        let key = ObjectKey::of(cluster.as_ref());
        let selected = selects(plan, &key.namespace, cluster.labels()).unwrap_or_default();
        let is_deleting = cluster.metadata.deletion_timestamp.is_some();
        let upgrade = ctx.stores.cluster_upgrades.get(&key);
        let is_candidate = selected
            && !is_deleting
            && ctx.opted_in(&key.namespace)
            && !upgrade.as_deref().is_some_and(is_member);
        is_candidate.then(|| Candidate {
            is_busy: upgrade.is_some_and(|upgrade| !has_ended(&upgrade)),
            labels: cluster.labels().clone(),
            cluster: (key.namespace, key.name),
        })
    };
    let mut found: Vec<Candidate> =
        ctx.stores.clusters.list().iter().filter_map(candidate).collect();
    found.sort_by(|a, b| a.cluster.cmp(&b.cluster));
    found
}

/// Requests the upgrade of a Cluster, as a part of a wave.
async fn request(
    ctx: &Context,
    plan: &ClusterUpgradePlan,
    cluster: &ObjectKey,
    wave: usize,
) -> kube::Result<()> {
    let (spec, name) = (&plan.spec, plan.name_any());
    let mut upgrade = json!({
        "version": spec.version,
        "stage": Stage::Ongoing,
        "startWithinMinutes": spec.start_within_minutes,
        "requestedBy": format!("ClusterUpgradePlan {name}"),
    });
    let optional = [
        ("hops", spec.hops.as_ref().map(|hops| json!(hops))),
        ("via", spec.via.map(|via| json!(via))),
        (
            "ignoredChecks",
            Some(json!(spec.ignored_checks)).filter(|_| !spec.ignored_checks.is_empty()),
        ),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            upgrade[field] = value;
        }
    }
    let body = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "ClusterUpgrade",
        "metadata": {
            "name": cluster.name,
            "labels": {keys::PLAN: name},
            "annotations": {keys::WAVE: wave.to_string()},
        },
        "spec": upgrade,
    });
    let api: Api<ClusterUpgrade> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let applied = apply::apply(&api, MANAGER, &cluster.name, &body).await?;
    ctx.stores.cluster_upgrades.insert(applied);
    tracing::info!(plan = name, %cluster, wave, version = %spec.version, "requested an upgrade");
    Ok(())
}

fn plans(ctx: &Context) -> Api<ClusterUpgradePlan> {
    Api::all(ctx.client.clone())
}

/// Writes a changed status, and an event if the plan shows another reason. Returns whether it was written.
async fn write_status(
    ctx: &Context,
    plan: &ClusterUpgradePlan,
    next: &ClusterUpgradePlanStatus,
) -> anyhow::Result<bool> {
    let old = plan.status.clone().unwrap_or_default();
    let Some(patch) = apply::merge_diff(&json!(old), &json!(next)) else { return Ok(true) };
    let (name, version) = (plan.name_any(), plan.resource_version().unwrap_or_default());
    // Before the status: after a crash between the two, the event would be lost.
    announce(ctx, plan, &old, next).await;
    match apply::swap_status(&plans(ctx), &name, &version, &patch).await {
        Ok(written) => {
            ctx.stores.cluster_upgrade_plans.insert(written);
            Ok(true)
        }
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => Ok(false),
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
    ctx.recorder
        .announce(&Announcement {
            about: reference(plan),
            type_: if stops { EventType::Warning } else { EventType::Normal },
            reason: ready.reason.clone(),
            message: ready.message.clone(),
            occurrence: plan.resource_version().unwrap_or_default(),
        })
        .await;
}
