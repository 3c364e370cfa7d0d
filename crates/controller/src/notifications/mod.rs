//! Delivers the notifications that stand in the status of upgrades and plans.
//!
//! Each receiver has a queue of its own, apart from those of the upgrades: one that does not answer keeps neither an upgrade
//! nor the other receiver waiting. A notification is posted and then marked in the status, so it is delivered at least once.
//! What was posted and could not be marked yet is remembered: only the mark is tried again.

mod receivers;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use jiff::Timestamp;
use kube::{Api, Resource, ResourceExt as _};
use refit_core::managed::notifications::{
    delivery::{Attempt, Next, expired, mark, next},
    messages::{Entry, Outbox},
};
use refit_kinds::refit::{ClusterUpgrade, ClusterUpgradePlan, DeliveryState, Receiver};
use refit_runtime::{
    ObjectKey, Store, apply,
    events::{Announcement, EventType, reference},
    queue::{Action, Queue},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use strum::VariantArray as _;

pub(crate) use self::receivers::Receivers;
use crate::{cluster_upgrade::at_the_latest, context::Context, metrics::measured};

/// How many notifications are posted to a receiver at once.
fn workers(receiver: Receiver) -> usize {
    match receiver {
        Receiver::CloudEvents => 8,
        // It takes one message per second.
        Receiver::Slack => 1,
    }
}

/// When an object is looked at again whose copy in the cache is behind.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);

/// An object with notifications.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Upgrade(ObjectKey),
    Plan(ObjectKey),
}

/// The objects with notifications for each receiver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    cloud_events: Queue<Subject>,
    slack: Queue<Subject>,
}

impl Queues {
    fn of(&self, receiver: Receiver) -> &Queue<Subject> {
        match receiver {
            Receiver::CloudEvents => &self.cloud_events,
            Receiver::Slack => &self.slack,
        }
    }

    /// How many objects wait or are in progress.
    pub(crate) fn depth(&self) -> usize {
        self.cloud_events.depth() + self.slack.depth()
    }
}

/// Delivers until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    for upgrade in ctx.stores.cluster_upgrades.list() {
        upgrade_changed(&ctx, &upgrade);
    }
    for plan in ctx.stores.cluster_upgrade_plans.list() {
        plan_changed(&ctx, &plan);
    }
    let configured = Receiver::VARIANTS.iter().filter(|one| ctx.receivers.has(**one));
    join_all(configured.map(|receiver| {
        let ctx = &ctx;
        ctx.metrics.notifications_to(*receiver);
        let deliver = move |subject: Subject| async move {
            let delivering = Box::pin(deliver(ctx, *receiver, subject));
            measured(ctx, "notification", delivering).await
        };
        ctx.queues.notifications.of(*receiver).work("notification", workers(*receiver), deliver)
    }))
    .await;
    Ok(())
}

/// Wakes the delivery of the notifications of an upgrade.
pub(crate) fn upgrade_changed(ctx: &Context, upgrade: &ClusterUpgrade) {
    wake(ctx, upgrade, || Subject::Upgrade(ObjectKey::of(upgrade)));
}

/// Wakes the delivery of the notifications of a plan.
pub(crate) fn plan_changed(ctx: &Context, plan: &ClusterUpgradePlan) {
    wake(ctx, plan, || Subject::Plan(ObjectKey::of(plan)));
}

fn wake(ctx: &Context, object: &impl Outbox, subject: impl Fn() -> Subject) {
    for receiver in Receiver::VARIANTS {
        if ctx.receivers.has(*receiver) && object.waiting(*receiver) > 0 {
            ctx.queues.notifications.of(*receiver).add(subject());
        }
    }
}

async fn deliver(ctx: &Context, receiver: Receiver, subject: Subject) -> anyhow::Result<Action> {
    let to = (receiver, subject);
    match &to.1 {
        Subject::Upgrade(key) => {
            let api = Api::namespaced(ctx.client.clone(), &key.namespace);
            deliver_next(ctx, &to, (&ctx.stores.cluster_upgrades, &api, key)).await
        }
        Subject::Plan(key) => {
            let api = Api::all(ctx.client.clone());
            deliver_next(ctx, &to, (&ctx.stores.cluster_upgrade_plans, &api, key)).await
        }
    }
}

/// Delivers the first notification of an object that waits for a receiver.
async fn deliver_next<K>(
    ctx: &Context,
    to: &(Receiver, Subject),
    at: (&Store<K>, &Api<K>, &ObjectKey),
) -> anyhow::Result<Action>
where
    K: Outbox + HasStatus,
{
    let receiver = to.0;
    let (store, _, key) = at;
    let Some(object) = store.get(key) else {
        ctx.receivers.unmarked.forget(to);
        return Ok(Action::Done);
    };
    if let Some((id, attempt)) = ctx.receivers.unmarked.get(to) {
        return write(ctx, to, at, (&id, &attempt)).await;
    }
    let now = ctx.clock.now_seconds();
    let (entry, attempt) = match next(&object.entries(), receiver, now) {
        Next::Nothing => return Ok(Action::Done),
        Next::At(time) => return Ok(at_the_latest(ctx, Some(time))),
        Next::Expired(entry) => {
            let delivery = entry.deliveries().iter().find(|one| one.receiver == receiver);
            (entry, delivery.map(expired))
        }
        Next::Due(entry) => {
            if let Some(wait) = ctx.receivers.spared_for(receiver) {
                return Ok(Action::RequeueAfter(wait));
            }
            (entry, Some(ctx.receivers.post(receiver, &entry, &ctx.clock).await?))
        }
    };
    let Some(attempt) = attempt else { return Ok(Action::Done) };
    let id = entry.id();
    ctx.receivers.unmarked.remember(to, &id, &attempt);
    note(ctx, receiver, object.as_ref(), (&entry, &attempt)).await;
    write(ctx, to, at, (&id, &attempt)).await
}

/// Counts and logs an attempt. One that is given up gets an event, before the status shows it.
async fn note<K: Resource<DynamicType = ()>>(
    ctx: &Context,
    receiver: Receiver,
    object: &K,
    (entry, attempt): (&Entry<'_>, &Attempt),
) {
    let event = entry.event();
    let about = ObjectKey::of(object);
    ctx.metrics.notification(receiver, attempt);
    match attempt {
        Attempt::Delivered => tracing::info!(%receiver, %about, event, "delivered a notification"),
        Attempt::Failed { why, .. } | Attempt::Limited { why, .. } => {
            tracing::warn!(%receiver, %about, event, error = why, "cannot deliver a notification");
        }
        Attempt::GivenUp { why } => {
            tracing::warn!(%receiver, %about, event, error = why, "gave up a notification");
            let message =
                format!("the notification {event} was not delivered to {receiver}: {why}");
            let failed = Announcement {
                about: reference(object),
                type_: EventType::Warning,
                reason: "NotificationFailed".to_owned(),
                message,
                occurrence: entry.id(),
            };
            ctx.recorder.announce(&failed).await;
        }
    }
}

/// Marks a delivery in the status. If that fails, or if another change came first, it is tried again.
async fn write<K>(
    ctx: &Context,
    to: &(Receiver, Subject),
    (store, api, key): (&Store<K>, &Api<K>, &ObjectKey),
    (id, attempt): (&str, &Attempt),
) -> anyhow::Result<Action>
where
    K: Outbox + HasStatus,
{
    let now = ctx.clock.now_seconds();
    let object = store.get(key);
    let patch = object.as_ref().and_then(|object| marked(&**object, to.0, (id, attempt), now));
    let Some((object, patch)) = object.as_ref().zip(patch) else {
        // It was marked before, or is gone.
        ctx.receivers.unmarked.forget(to);
        return Ok(Action::RequeueAfter(AFTER_CONFLICT));
    };
    let version = object.resource_version().unwrap_or_default();
    match apply::swap_status(api, &key.name, &version, &patch).await {
        Ok(written) => {
            store.insert(written);
            ctx.receivers.unmarked.forget(to);
            Ok(Action::RequeueAfter(Duration::ZERO))
        }
        // The cache shows soon what has changed meanwhile.
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => {
            Ok(Action::RequeueAfter(AFTER_CONFLICT))
        }
        Err(error) => Err(error.into()),
    }
}

/// The patch that marks a delivery; `None` if the notification is gone, or is not to be delivered any more.
fn marked<K: Outbox + HasStatus>(
    object: &K,
    receiver: Receiver,
    (id, attempt): (&str, &Attempt),
    now: Timestamp,
) -> Option<serde_json::Value> {
    let mut next = object.clone();
    let mut deliveries = next.deliveries_mut(id)?.iter_mut();
    let delivery = deliveries.find(|one| {
        one.receiver == receiver
            && match one.state {
                DeliveryState::Waiting => true,
                DeliveryState::Sent | DeliveryState::Failed => false,
            }
    })?;
    mark(delivery, attempt, now);
    apply::merge_diff(&object.shown(), &next.shown())
}

/// An object whose status is written.
trait HasStatus:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize + Send + Sync
{
    /// Its status.
    fn shown(&self) -> serde_json::Value;
}

impl HasStatus for ClusterUpgrade {
    fn shown(&self) -> serde_json::Value {
        json!(self.status)
    }
}

impl HasStatus for ClusterUpgradePlan {
    fn shown(&self) -> serde_json::Value {
        json!(self.status)
    }
}

#[cfg(test)]
mod tests {
    use refit_core::managed::notifications::delivery::Attempt;

    use super::*;

    #[test]
    fn only_what_waits_is_marked() {
        let upgrade = |state: &str| -> ClusterUpgrade {
            let notification = json!({
                "event": "Started", "time": "2026-03-02T08:00:00Z", "phase": "Upgrading",
                "reason": "", "message": "It is so.", "generation": 1,
                "deliveries": [{"receiver": "Slack", "state": state}],
            });
            serde_json::from_value(json!({
                "apiVersion": "refit.dev/v1alpha1",
                "kind": "ClusterUpgrade",
                "metadata": {"name": "edge-1", "namespace": "edge", "uid": "u1"},
                "spec": {"version": "v1.36.0"},
                "status": {"history": [{
                    "version": "v1.36.0", "phase": "Upgrading",
                    "requestedTime": "2026-03-02T08:00:00Z", "notifications": [notification],
                }]},
            }))
            .unwrap()
        };
        for (state, receiver, id, is_marked) in [
            ("Waiting", Receiver::Slack, "u1/v1.36.0/Started/1", true),
            ("Sent", Receiver::Slack, "u1/v1.36.0/Started/1", false),
            ("Failed", Receiver::Slack, "u1/v1.36.0/Started/1", false),
            ("Waiting", Receiver::CloudEvents, "u1/v1.36.0/Started/1", false),
            ("Waiting", Receiver::Slack, "u2/v1.36.0/Started/1", false),
        ] {
            let what = (id, &Attempt::Delivered);
            let patch = marked(&upgrade(state), receiver, what, Timestamp::UNIX_EPOCH);
            assert_eq!(patch.is_some(), is_marked, "{state} {receiver} {id}");
        }
    }
}
