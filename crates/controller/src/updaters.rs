//! The controller of Updaters: shows whether each one is valid. And the Updaters for a group's machines.

use std::sync::Arc;

use kube::{Api, ResourceExt as _};
use refit_core::change::{
    Updater,
    updaters::{ACCEPTED, Selected, show_accepted, updaters_for},
};
use refit_kinds::{conditions, refit};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType, reference},
    queue::Action,
};
use serde_json::json;

use crate::{context::Context, groups::Group, metrics::measured};

/// Reconciles Updaters until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    let reconcile = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "updater", reconcile(&ctx, &key)).await }
    };
    ctx.queues.updaters.work("updater", 1, reconcile).await;
    Ok(())
}

async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    let Some(updater) = ctx.stores.updaters.get(key) else {
        return Ok(Action::Done);
    };
    let next = show_accepted(&updater, ctx.clock.now_seconds());
    let (old, new) = (json!(updater.status), json!(next));
    if let Some(patch) = apply::merge_diff(&old, &new) {
        let api: Api<refit::Updater> = Api::all(ctx.client.clone());
        let version = updater.resource_version().unwrap_or_default();
        announce_refusal(ctx, &updater, &next).await;
        let written = apply::swap_status(&api, &key.name, &version, &patch).await;
        match written {
            // It changed meanwhile, and is queued again.
            Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => {}
            outcome => ctx.stores.updaters.insert(outcome?),
        }
    }
    Ok(Action::Done)
}

/// Emits an event for an Updater that is not used, once per reason.
async fn announce_refusal(ctx: &Context, updater: &refit::Updater, next: &refit::UpdaterStatus) {
    let Some(refused) = conditions::get(&next.conditions, ACCEPTED).filter(|c| c.status == "False")
    else {
        return;
    };
    ctx.recorder
        .announce(&Announcement {
            about: reference(updater),
            type_: EventType::Warning,
            reason: refused.reason.clone(),
            message: format!("Updater {} is not used: {}.", updater.name_any(), refused.message),
            occurrence: format!("generation {}", updater.metadata.generation.unwrap_or_default()),
        })
        .await;
}

/// The valid Updaters for a Machine of a group, in the order in which they claim.
pub(crate) fn updaters_of(ctx: &Context, group: &Group, infrastructure_kind: &str) -> Vec<Updater> {
    let key = ObjectKey::new(&group.key.namespace, &group.spec.cluster_name);
    let Some(cluster) = ctx.stores.clusters.get(&key) else {
        return Vec::new();
    };
    let selected = Selected {
        cluster_labels: cluster.labels(),
        owner: group.spec.owner.owner(),
        infrastructure_kind,
    };
    let all = ctx.stores.updaters.list();
    updaters_for(all.iter().map(AsRef::as_ref), selected)
}
