//! Delivers the notifications that stand in the status of upgrades and plans.
//!
//! Each receiver has a queue of its own, apart from those of the upgrades: one that does not answer keeps neither an upgrade
//! nor the other receiver waiting. A notification is posted and then marked in the status, so it is delivered at least once.

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
const WORKERS: usize = 8;
/// How often a delivery is marked again after a conflict.
const MARKS: usize = 5;
/// Requeue delay after a delivery that was marked before.
const CATCH_UP: Duration = Duration::from_secs(1);

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
        ctx.queues.notifications.of(*receiver).work("notification", WORKERS, deliver)
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
    match subject {
        Subject::Upgrade(key) => {
            let api = Api::namespaced(ctx.client.clone(), &key.namespace);
            deliver_next(ctx, receiver, (&ctx.stores.cluster_upgrades, &api, &key)).await
        }
        Subject::Plan(key) => {
            let api = Api::all(ctx.client.clone());
            deliver_next(ctx, receiver, (&ctx.stores.cluster_upgrade_plans, &api, &key)).await
        }
    }
}

/// Delivers the first notification of an object that waits for a receiver.
async fn deliver_next<K>(
    ctx: &Context,
    receiver: Receiver,
    at: (&Store<K>, &Api<K>, &ObjectKey),
) -> anyhow::Result<Action>
where
    K: Outbox + HasStatus,
{
    let (store, _, key) = at;
    let Some(object) = store.get(key) else { return Ok(Action::Done) };
    let now = ctx.clock.now_seconds();
    let (entry, attempt) = match next(&object.entries(), receiver, now) {
        Next::Nothing => return Ok(Action::Done),
        Next::At(time) => return Ok(at_the_latest(ctx, Some(time))),
        Next::Expired(entry) => {
            let delivery = entry.deliveries().iter().find(|one| one.receiver == receiver);
            (entry, delivery.map(expired))
        }
        Next::Due(entry) => {
            if let Some(until) = ctx.receivers.spared_until(receiver, now) {
                return Ok(at_the_latest(ctx, Some(until)));
            }
            (entry, Some(ctx.receivers.post(receiver, &entry, &ctx.clock).await?))
        }
    };
    let Some(attempt) = attempt else { return Ok(Action::Done) };
    note(ctx, receiver, object.as_ref(), (&entry, &attempt)).await;
    let is_marked = write(ctx, receiver, at, (&entry.id(), &attempt)).await?;
    // What was marked before is in the cache soon.
    Ok(Action::RequeueAfter(if is_marked { Duration::ZERO } else { CATCH_UP }))
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
        Attempt::Failed { why, .. } => {
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

/// Marks a delivery in the status; returns whether it was to be marked. After a conflict, the object is read again: its own
/// controller writes there, too.
async fn write<K>(
    ctx: &Context,
    receiver: Receiver,
    (store, api, key): (&Store<K>, &Api<K>, &ObjectKey),
    (id, attempt): (&str, &Attempt),
) -> anyhow::Result<bool>
where
    K: Outbox + HasStatus,
{
    let Some(mut object) = store.get(key).map(|object| object.as_ref().clone()) else {
        return Ok(false);
    };
    let mut conflict = None;
    for _ in 0..MARKS {
        let now = ctx.clock.now_seconds();
        let Some(patch) = marked(&object, receiver, (id, attempt), now) else { return Ok(false) };
        let version = object.resource_version().unwrap_or_default();
        match apply::swap_status(api, &key.name, &version, &patch).await {
            Ok(written) => {
                store.insert(written);
                return Ok(true);
            }
            Err(error) if apply::is_not_found(&error) => return Ok(false),
            Err(error) if apply::is_conflict(&error) => conflict = Some(error),
            Err(error) => return Err(error.into()),
        }
        let Some(live) = api.get_opt(&key.name).await? else { return Ok(false) };
        // The cache may be behind: without this, what is marked already would be posted again.
        store.insert(live.clone());
        object = live;
    }
    conflict.map_or(Ok(false), |error| Err(error.into()))
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
