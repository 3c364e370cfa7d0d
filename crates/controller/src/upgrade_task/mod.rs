//! The controller of UpgradeTasks: works through the Machines of a group, where Cluster API does not.
//!
//! Each reconcile reads the caches, calls `refit_core::task`, makes the writes that follow, and shows the result.
//! Nothing is remembered between reconciles.
//!
//! | module | does |
//! |---|---|
//! | `look` | what a task is decided on |
//! | `advance` | requests a NodeUpdate for a Machine, or writes what it has reached |
//! | `objects` | what a Machine and its objects are, and what their owner wants |
//! | `owner` | pauses an owner, sets its version, lets it go on |
//! | `cluster` | a task for a whole Cluster: makes the tasks of its groups |
//! | `option`, `lock` | a task that installs an option by annotation; the lock of a control plane |
//! | `external` | ExternalUpgrade: a request that makes a task |
//! | `obstacle` | what stands in the way of a task |
//! | `hooks_reach` | whether Cluster API calls Refit for a group, before its spec is changed |
//! | `prepare` | the cluster's kubeadm configuration, before its first control plane machine |

mod advance;
pub(crate) mod cluster;
pub(crate) mod external;
pub(crate) mod hooks_reach;
mod lock;
mod look;
mod objects;
pub(crate) mod obstacle;
mod option;
mod owner;
mod prepare;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::task::{Action, Refused, actions, status, status::OWNER_PAUSED, unread};
use refit_kinds::{
    conditions, keys,
    refit::{NodeUpdate, Stage, TaskPhase, UpgradeTask, UpgradeTaskStatus, Via},
};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType, reference},
    queue::Action as Next,
};
use serde_json::{Value, json};

use self::look::Look;
pub(crate) use self::{
    advance::refused_by_api,
    look::{TOPOLOGY_OWNED, group_of_task, is_current_member, request_of_plane},
};
use crate::{
    context::Context,
    indexes::{TASKS_BY_CLUSTER, TASKS_BY_GROUP},
    machine_condition,
    metrics::measured,
};

/// Field manager of the marks on Machines: applying nothing with it removes them.
const MARKS: &str = "refit-task";
/// How long the events of a change are collected before a task is looked at.
const COLLECT: Duration = Duration::from_secs(1);
/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// Requeue delay after a Machine could not be advanced.
const AFTER_REFUSAL: Duration = Duration::from_secs(15);
/// How many tasks are worked on at once.
const WORKERS: usize = 16;

/// Reconciles UpgradeTasks until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    for task in ctx.stores.upgrade_tasks.list() {
        ctx.queues.upgrade_tasks.add(ObjectKey::of(task.as_ref()));
    }
    let reconcile = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "upgrade-task", Box::pin(reconcile(&ctx, &key))).await }
    };
    ctx.queues.upgrade_tasks.work("upgrade-task", WORKERS, reconcile).await;
    Ok(())
}

/// Wakes the tasks of a group.
pub(crate) fn wake(ctx: &Context, group: &ObjectKey) {
    wake_all(ctx, &ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, group));
}

/// Wakes the tasks of a Cluster and of its groups.
pub(crate) fn wake_of_cluster(ctx: &Context, cluster: &ObjectKey) {
    wake_all(ctx, &ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, cluster));
}

/// Wakes the tasks for a whole Cluster.
pub(crate) fn wake_whole(ctx: &Context, cluster: &ObjectKey) {
    let mut tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, cluster);
    tasks.retain(|task| task.spec.owner_ref.is_none());
    wake_all(ctx, &tasks);
}

fn wake_all(ctx: &Context, tasks: &[Arc<UpgradeTask>]) {
    for task in tasks.iter().filter(|task| may_have_work_left(task)) {
        ctx.queues.upgrade_tasks.add_after(ObjectKey::of(task.as_ref()), COLLECT);
    }
}

/// Whether a task has not ended, or its owner still waits for it.
fn may_have_work_left(task: &UpgradeTask) -> bool {
    task.metadata.deletion_timestamp.is_some()
        || task.status.as_ref().is_none_or(|status| {
            !status.phase.has_ended() || conditions::is_true(&status.conditions, OWNER_PAUSED)
        })
}

async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Next> {
    let Some(task) = ctx.stores.upgrade_tasks.get(key) else {
        return Ok(Next::Done);
    };
    if task.spec.owner_ref.is_none() {
        let (next, outcome) = cluster::work(ctx, &task).await?;
        return settle(ctx, &task, &next, outcome).await;
    }
    if let Some(option) = &task.spec.option {
        return option::work(ctx, &task, option).await;
    }
    let read = async {
        let mut look = Look::read(ctx, task.clone()).await?;
        // A task that stops begins nothing: it must not wait for a Secret that is gone.
        if !look.seen(ctx).stops() && !has_ended(&task) {
            look.accepted = external::accepted_specs(ctx, &task).await?;
        }
        anyhow::Ok(look)
    };
    let look = match read.await {
        Ok(look) => look,
        Err(error) => {
            let why = advance::unreadable(error)?;
            let next = unread(&task, &why, ctx.clock.now_seconds());
            write_status(ctx, &task, &next).await?;
            return Ok(Next::RequeueAfter(AFTER_REFUSAL));
        }
    };
    let seen = look.seen(ctx);
    let owner = &look.group.spec.owner;
    let owner = || format!("{} {}", owner.kind, owner.name);
    let mut outcome = Outcome::default();
    // Before the owner's spec requests the version of the bundle.
    let noted = owner::note_bundle(ctx, &look).await.map(|()| None);
    if outcome.goes_on(noted, owner)? {
        for action in actions(&seen) {
            let done = perform(ctx, &look, &action).await;
            if !outcome.goes_on(done, owner)? {
                break;
            }
        }
    }
    let mut next = status(&seen, &outcome.refused);
    let ends = |phase| matches!(phase, TaskPhase::Complete | TaskPhase::Aborted);
    if ends(next.phase) && !has_ended(&task) {
        // The caches may show the owner as it was before the task, and what this look has requested is not in it.
        owner::read_group(ctx, &look.group).await?;
        let live = Look::read(ctx, task.clone()).await?;
        if outcome.refused.values().any(|why| why.is_to_be_replaced)
            && !advance::all_are_to_be_replaced(ctx, &live).await?
        {
            outcome.refused.values_mut().for_each(|why| why.is_to_be_replaced = false);
        }
        next = status(&live.seen(ctx), &outcome.refused);
    }
    settle(ctx, &task, &next, outcome).await
}

/// Whether a task has reached a phase that it does not leave.
pub(crate) fn has_ended(task: &UpgradeTask) -> bool {
    task.status.as_ref().is_some_and(|status| status.phase.has_ended())
}

/// What became of the writes of a task.
#[derive(Debug, Default)]
struct Outcome {
    refused: BTreeMap<String, Refused>,
    /// Another write was faster.
    conflict: bool,
}

impl Outcome {
    /// Takes the outcome of a write; whether the next one may follow. `object` is what the write is about.
    fn goes_on(
        &mut self,
        done: anyhow::Result<Option<(String, Refused)>>,
        object: impl FnOnce() -> String,
    ) -> anyhow::Result<bool> {
        match done {
            Ok(None) => Ok(true),
            Ok(Some((object, why))) => {
                self.refused.insert(object, why);
                Ok(true)
            }
            Err(error) if is_race(&error) => {
                self.conflict = true;
                Ok(false)
            }
            Err(error) => {
                self.refused.insert(object(), advance::refused_by_api(error)?);
                Ok(false)
            }
        }
    }
}

/// Shows the result, and when the next look is due.
async fn settle(
    ctx: &Context,
    task: &UpgradeTask,
    next: &UpgradeTaskStatus,
    outcome: Outcome,
) -> anyhow::Result<Next> {
    let is_written = write_status(ctx, task, next).await?;
    Ok(if outcome.conflict || !is_written {
        Next::RequeueAfter(AFTER_CONFLICT)
    } else if outcome.refused.is_empty() {
        Next::Done
    } else {
        Next::RequeueAfter(AFTER_REFUSAL)
    })
}

/// Whether another write was faster, or the object is gone: the next look shows what happened.
pub(crate) fn is_race(error: &anyhow::Error) -> bool {
    let error: Option<&kube::Error> = error.downcast_ref();
    error.is_some_and(|error| {
        let exists = matches!(error, kube::Error::Api(status) if status.is_already_exists());
        exists || apply::is_conflict(error) || apply::is_not_found(error)
    })
}

async fn perform(
    ctx: &Context,
    look: &Look,
    action: &Action,
) -> anyhow::Result<Option<(String, Refused)>> {
    match action {
        Action::AddFinalizer => finalizers(ctx, &look.task, &[keys::TASK_FINALIZER]).await?,
        Action::RemoveFinalizer => finalizers(ctx, &look.task, &[]).await?,
        Action::Pause => owner::pause(ctx, look).await?,
        Action::SetVersion(version) => match replaced(ctx, look).await? {
            Some(refused) => return Ok(Some(refused)),
            None => owner::set_version(ctx, look, version).await?,
        },
        Action::Unpause => match replaced(ctx, look).await? {
            Some(refused) => return Ok(Some(refused)),
            None => owner::unpause(ctx, look).await?,
        },
        Action::Sets(write) => owner::write_set(ctx, look, write).await?,
        Action::Mark(machine) => mark(ctx, look, machine).await?,
        Action::Unmark(machine) => unmark(ctx, look, machine).await?,
        Action::Stop(name) => stop(ctx, &look.task, name).await?,
        Action::Advance { machine, may_hand_over, may_request } => {
            let may = (*may_hand_over, *may_request);
            let refused = advance::advance(ctx, look, machine, may).await?;
            return Ok(refused.map(|why| (format!("Machine {machine}"), why)));
        }
    }
    Ok(None)
}

/// Why Cluster API would replace the Machines of a task that leaves them to it, and that is not to stop.
async fn replaced(ctx: &Context, look: &Look) -> anyhow::Result<Option<(String, Refused)>> {
    if look.task.spec.via != Via::Spec || look.seen(ctx).stops() || has_ended(&look.task) {
        return Ok(None);
    }
    let owner = &look.group.spec.owner;
    let why = hooks_reach::refusal(ctx, &look.group).await?;
    Ok(why.map(|why| (format!("{} {}", owner.kind, owner.name), why)))
}

async fn finalizers(ctx: &Context, task: &UpgradeTask, wanted: &[&str]) -> kube::Result<()> {
    let body = json!({"metadata": {
        "resourceVersion": task.resource_version(), "finalizers": wanted,
    }});
    let written = apply::merge(&tasks(ctx, task), &task.name_any(), &body).await?;
    if !wanted.is_empty() {
        ctx.stores.upgrade_tasks.insert(written);
    }
    Ok(())
}

async fn stop(ctx: &Context, task: &UpgradeTask, update: &str) -> kube::Result<()> {
    let api: Api<NodeUpdate> =
        Api::namespaced(ctx.client.clone(), &task.namespace().unwrap_or_default());
    let body = json!({"spec": {"stage": Stage::Abort}});
    ctx.stores.node_updates.insert(apply::merge(&api, update, &body).await?);
    tracing::info!(task = task.name_any(), update, "aborted NodeUpdate of a task");
    Ok(())
}

/// Writes on a Machine that the task is for it. An owner reference is added only next to another owner: deleting a task
/// never deletes a Machine.
async fn mark(ctx: &Context, look: &Look, machine: &str) -> kube::Result<()> {
    let Some(known) = look.machine(machine) else { return Ok(()) };
    let task = look.task.as_ref();
    let mut metadata = json!({"annotations": {keys::TASK: task.name_any()}});
    if !known.owner_references().is_empty() {
        metadata["ownerReferences"] = json!([{
            "apiVersion": "refit.dev/v1alpha1", "kind": "UpgradeTask",
            "name": task.name_any(), "uid": task.uid(),
            "controller": false, "blockOwnerDeletion": false,
        }]);
    }
    apply_marks(ctx, known, metadata).await?;
    if look.speaks_for_itself(known) {
        return Ok(());
    }
    let message = conditions::disturbs_nothing_yet(&look.target());
    let mut shown = known.status.as_ref().map_or_else(Vec::new, |status| {
        conditions::get(&status.conditions, conditions::MACHINE_UP_TO_DATE)
            .cloned()
            .into_iter()
            .collect()
    });
    let what = (conditions::MACHINE_UP_TO_DATE, "Unknown", conditions::REASON_WAITING, &*message);
    conditions::set(&mut shown, ctx.clock.now_seconds(), None, what);
    machine_condition::write(ctx, known, shown.first()).await
}

/// Removes what the task has written on a Machine. A NodeUpdate that speaks for it writes its condition.
async fn unmark(ctx: &Context, look: &Look, machine: &str) -> kube::Result<()> {
    let Some(known) = look.machine(machine) else { return Ok(()) };
    if !look.speaks_for_itself(known) {
        machine_condition::write(ctx, known, None).await?;
    }
    apply_marks(ctx, known, json!({})).await
}

async fn apply_marks(ctx: &Context, machine: &Machine, mut metadata: Value) -> kube::Result<()> {
    metadata["name"] = json!(machine.name_any());
    // A Machine that is gone is not created again.
    metadata["uid"] = json!(machine.uid());
    let body = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
    });
    let api = machines(ctx, machine);
    ctx.stores.machines.insert(apply::apply(&api, MARKS, &machine.name_any(), &body).await?);
    Ok(())
}

/// The tasks of a task's namespace.
fn tasks(ctx: &Context, task: &UpgradeTask) -> Api<UpgradeTask> {
    Api::namespaced(ctx.client.clone(), &task.namespace().unwrap_or_default())
}

fn machines(ctx: &Context, machine: &Machine) -> Api<Machine> {
    Api::namespaced(ctx.client.clone(), &machine.namespace().unwrap_or_default())
}

/// Writes a changed status, and an event on its task for a changed phase. Returns whether it was written.
async fn write_status(
    ctx: &Context,
    task: &UpgradeTask,
    next: &UpgradeTaskStatus,
) -> anyhow::Result<bool> {
    let key = ObjectKey::of(task);
    // A write of this reconcile may have changed its metadata.
    let Some(task) = ctx.stores.upgrade_tasks.get(&key) else { return Ok(true) };
    let old = task.status.clone().unwrap_or_default();
    let Some(patch) = apply::status_diff(task.status.as_ref(), next) else {
        return Ok(true);
    };
    if old.phase != next.phase {
        announce(ctx, &task, next).await;
    }
    let version = task.resource_version().unwrap_or_default();
    match apply::swap_status(&tasks(ctx, &task), &key.name, &version, &patch).await {
        Ok(written) => {
            ctx.stores.upgrade_tasks.insert(written);
            Ok(true)
        }
        Err(error) if apply::is_not_found(&error) => Ok(true),
        Err(error) if apply::is_conflict(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn announce(ctx: &Context, task: &UpgradeTask, next: &UpgradeTaskStatus) {
    let ready = conditions::get(&next.conditions, refit_core::task::status::READY);
    let type_ = match next.phase {
        TaskPhase::Failed => EventType::Warning,
        TaskPhase::Pending | TaskPhase::Ongoing | TaskPhase::Complete | TaskPhase::Aborted => {
            EventType::Normal
        }
    };
    let announcement = Announcement {
        about: reference(task),
        type_,
        reason: format!("Task{}", next.phase),
        message: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
        occurrence: task.resource_version().unwrap_or_default(),
    };
    ctx.recorder.announce(&announcement).await;
}
