//! The controller of upgrades by annotation (`docs/annotations.md`).
//!
//! | module | does |
//! |---|---|
//! | `machine` | requests what the annotations of a Machine ask for, and shows on it how far that is |
//! | `certificates` | the same for the certificates of a Machine that k8sd issues |
//! | `renewal` | the same for those that kubeadm renews |
//! | `expiry` | shows when these expire |
//! | `by_task` | the same by an UpgradeTask, for an owner of Machines, and for a Machine that asks for a version |

mod by_task;
mod certificates;
mod expiry;
mod machine;
mod renewal;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{Resource as _, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    canonical::{CANONICAL, Keys, REFIT},
    keys,
    refit::UpgradeTask,
};
use refit_runtime::ObjectKey;

pub(crate) use self::machine::is_requested_by;
use crate::{
    Canonical,
    context::Context,
    groups::group_of,
    indexes::TASKS_BY_GROUP,
    metrics::measured,
    owner::{LiveOwner, OwnerId},
    upgrade_task::{group_of_task, has_ended},
};

/// How many objects are looked at at once.
const WORKERS: usize = 16;
/// Requeue delay after a write conflict: the event of the other write must arrive first.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);

/// Reconciles annotated Machines and owners until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    for machine in ctx.stores.machines.list() {
        wake(&ctx, &machine);
    }
    for task in ctx.stores.upgrade_tasks.list() {
        wake_owner_of(&ctx, &task);
    }
    let of_machine = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "annotation", Box::pin(machine::reconcile(&ctx, &key))).await }
    };
    let certificates_of = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move {
            measured(&ctx, "certificates", Box::pin(certificates::reconcile(&ctx, &key))).await
        }
    };
    let expiries_of = |cluster: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "expiry", Box::pin(expiry::reconcile(&ctx, &cluster))).await }
    };
    let of_owner = |id: OwnerId| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "owner-annotation", Box::pin(by_task::reconcile(&ctx, &id))).await }
    };
    futures::join!(
        ctx.queues.annotations.work("annotation", WORKERS, of_machine),
        ctx.queues.certificates.work("certificates", WORKERS, certificates_of),
        ctx.queues.expiries.work("expiry", WORKERS, expiries_of),
        ctx.queues.owner_annotations.work("owner-annotation", WORKERS, of_owner),
    );
    Ok(())
}

/// The prefixes that are served.
fn served(ctx: &Context) -> impl Iterator<Item = Keys> + use<> {
    let canonical = match ctx.settings.canonical {
        Canonical::Off => None,
        Canonical::On | Canonical::ControllersAbsent => Some(CANONICAL),
    };
    [canonical, Some(REFIT)].into_iter().flatten()
}

/// Whether Refit serves a prefix, and does so alone.
pub(crate) fn is_served(ctx: &Context, keys: Keys) -> bool {
    served(ctx).any(|known| known == keys) && !may_be_served_by_others(ctx, keys)
}

/// Whether Canonical's controllers may serve a prefix as well.
fn may_be_served_by_others(ctx: &Context, keys: Keys) -> bool {
    keys == CANONICAL && ctx.settings.canonical != Canonical::ControllersAbsent
}

/// Wakes a Machine whose annotations ask for something or show it, and its owner.
pub(crate) fn wake(ctx: &Context, machine: &Machine) {
    machine::wake(ctx, machine);
    certificates::wake(ctx, machine);
    if let Some(group) = group_of(&ctx.stores, machine)
        && let Some(owner) = LiveOwner::of(&ctx.stores, &group)
    {
        wake_owner(ctx, OwnerId::of_group(&group), &owner.annotations());
    }
}

/// Wakes the Machines of a namespace that has opted in, and their owners.
pub(crate) fn wake_namespace(ctx: &Context, namespace: &str) {
    for machine in ctx.stores.machines.list_in(namespace) {
        wake(ctx, &machine);
    }
}

/// Wakes an owner whose annotations ask for something or show it, or have requested a task that has not ended.
pub(crate) fn wake_owner(ctx: &Context, owner: OwnerId, annotations: &BTreeMap<String, String>) {
    let concerns = |keys: Keys| {
        let all = [keys.upgrade_to, keys.release, keys.noted];
        all.iter().any(|key| annotations.contains_key(*key))
    };
    let has_task = || {
        let tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &owner.group_key());
        let mut unfinished = tasks.iter().filter(|task| !has_ended(task));
        unfinished.any(|task| task.annotations().contains_key(keys::REQUESTED_BY))
    };
    if served(ctx).any(concerns) || has_task() {
        // What its Machines show changes often.
        ctx.queues.owner_annotations.add_after(owner, AFTER_CONFLICT);
    }
}

/// Wakes the owner or the Machine whose annotations have requested a task.
pub(crate) fn wake_owner_of(ctx: &Context, task: &UpgradeTask) {
    if task.annotations().contains_key(keys::REQUESTED_BY) {
        let mut owners = task.owner_references().iter();
        if let Some(machine) = owners.find(|owner| owner.kind == Machine::kind(&())) {
            let namespace = task.namespace().unwrap_or_default();
            ctx.queues.annotations.add(ObjectKey::new(namespace, &machine.name));
            return;
        }
        let owner = OwnerId::of_group(&group_of_task(task));
        ctx.queues.owner_annotations.add(owner);
    }
}
