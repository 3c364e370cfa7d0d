//! Has the only Machine of a control plane updated in place, or pauses a control plane that would replace it.
//!
//! The update is an UpgradeTask: it keeps the control plane paused until the Machine is what it requests, so that Cluster
//! API never sees an outdated Machine (`docs/adr/0010-a-task-updates-the-only-machine.md`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{Api, Resource as _, ResourceExt as _, api::PostParams};
use refit_cluster_api::kinds::{Cluster, KubeadmControlPlane, Machine};
use refit_core::{
    change::Policy,
    hold::{Only, Step, TaskSeen, may_be_outdated},
    task::{Paused, Refused},
};
use refit_kinds::{
    keys,
    refit::{Admission, HeldKind, Stage, TaskPhase, UpgradeTask, UpgradeTaskSpec, Via, hash_json},
};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType, reference},
    queue::Action,
};
use serde_json::{Value, json};

use super::{WORKERS, group_key, held, is_maintained, next, policy_of, read};
use crate::{
    context::Context,
    groups::{Group, control_plane_group, machines_of},
    indexes::TASKS_BY_GROUP,
    metrics::measured,
    upgrade_task::{has_ended, is_current_member, is_race, refused_by_api, request_of_plane},
};

/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// Requeue delay after the API server has refused a read or a write: a person has to change that.
const AFTER_REFUSAL: Duration = Duration::from_mins(5);

/// A control plane with one Machine.
struct OnlyMachine {
    cluster: Arc<Cluster>,
    plane: Arc<KubeadmControlPlane>,
    machine: Arc<Machine>,
    group: Group,
}

/// Looks at control planes until the future is dropped.
pub(super) async fn run(ctx: &Arc<Context>) {
    for plane in ctx.stores.control_planes.list() {
        wake(ctx, &ObjectKey::of(plane.as_ref()));
    }
    let reconcile = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "only-machine", Box::pin(reconcile(&ctx, &key))).await }
    };
    ctx.queues.only_machines.work("only-machine", WORKERS, reconcile).await;
}

/// Wakes the control planes of a namespace.
pub(super) fn wake_namespace(ctx: &Context, namespace: &str) {
    for plane in ctx.stores.control_planes.list_in(namespace) {
        wake(ctx, &ObjectKey::of(plane.as_ref()));
    }
}

/// Wakes a control plane, if its only Machine may have to be updated or held.
pub(super) fn wake(ctx: &Context, key: &ObjectKey) {
    if concerns(ctx, key) {
        ctx.queues.only_machines.add(key.clone());
    }
}

/// Whether a control plane has one Machine that Cluster API may want to replace, or is paused because it would.
fn concerns(ctx: &Context, key: &ObjectKey) -> bool {
    let Some(plane) = ctx.stores.control_planes.get(key) else { return false };
    let may_be_replaced = |one: OnlyMachine| {
        may_be_outdated(&one.plane, &one.machine)
            && (ctx.holds_replacements(&key.namespace) || one.policy(ctx).single_replica_in_place)
    };
    Paused::of(plane.annotations()) == Paused::ByHold
        || is_maintained(ctx, &key.namespace)
            && OnlyMachine::of(ctx, key).is_some_and(may_be_replaced)
}

async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    if !concerns(ctx, key) {
        return Ok(Action::Done);
    }
    match advance(ctx, key).await {
        Ok(again) => Ok(again),
        Err(error) if is_race(&error) => Ok(Action::RequeueAfter(AFTER_CONFLICT)),
        Err(error) => {
            let why = refused_by_api(error)?;
            if let Some(one) = OnlyMachine::of(ctx, key) {
                one.announce_refusal(ctx, &why).await;
            }
            Ok(Action::RequeueAfter(AFTER_REFUSAL))
        }
    }
}

async fn advance(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    // What may disturb or pause is decided on the objects as they are now.
    read(ctx, HeldKind::KubeadmControlPlane, key).await?;
    let Some(plane) = ctx.stores.control_planes.get(key) else { return Ok(Action::Done) };
    let held = held(ctx, HeldKind::KubeadmControlPlane, key);
    let is_held = ctx.holds_replacements(&key.namespace)
        && held.entry.as_ref().is_some_and(|entry| entry.create == Admission::Refused);
    if let Some(one) = OnlyMachine::of(ctx, key) {
        let in_place = one.policy(ctx).single_replica_in_place
            && held.entry.is_some()
            && ctx.opted_in(&key.namespace);
        let only = Only {
            is_outdated: one.is_outdated(ctx).await?,
            is_held,
            in_place,
            paused: Paused::of(plane.annotations()),
            task: one.task(ctx),
        };
        match only.next() {
            Step::Nothing => {}
            Step::Pause => one.pause(ctx, &only).await?,
            Step::Release => release(ctx, &plane).await?,
            Step::Update => one.update(ctx).await?,
            Step::Abort(name) => one.abort(ctx, &name).await?,
        }
    } else if Paused::of(plane.annotations()) == Paused::ByHold {
        if is_held {
            announce_second(ctx, &plane).await;
        } else {
            release(ctx, &plane).await?;
        }
    }
    Ok(next(ctx, held.again))
}

/// A control plane of one Machine that Refit has paused has another one: Cluster API, going on, would delete the first.
async fn announce_second(ctx: &Context, plane: &KubeadmControlPlane) {
    let key = ObjectKey::of(plane);
    let machines = machines_of(&ctx.stores, &group_key(HeldKind::KubeadmControlPlane, &key));
    let names: Vec<String> = machines.iter().map(|machine| machine.name_any()).collect();
    let message = format!(
        "The control plane asks for one Machine and has {}: it stays paused, because Cluster API would delete the one that \
         differs from what is requested. Delete the Machine that is not to stay; then Cluster API goes on",
        names.join(", ")
    );
    let occurrence = plane.metadata.generation.unwrap_or_default().to_string();
    announce(ctx, plane, EventType::Warning, ("SecondMachine", message), occurrence).await;
}

/// Lets Cluster API go on with a control plane.
async fn release(ctx: &Context, plane: &KubeadmControlPlane) -> anyhow::Result<()> {
    let message = "Refit no longer pauses the control plane: Cluster API goes on".to_owned();
    announce_change(ctx, plane, EventType::Normal, ("ReplacementNotHeld", message)).await;
    annotate(ctx, plane, json!({keys::PAUSED: null})).await
}

async fn annotate(
    ctx: &Context,
    plane: &KubeadmControlPlane,
    annotations: Value,
) -> anyhow::Result<()> {
    let namespace = plane.namespace().unwrap_or_default();
    let body = json!({"metadata": {
        "resourceVersion": plane.resource_version(), "annotations": annotations,
    }});
    let api: Api<KubeadmControlPlane> = Api::namespaced(ctx.client.clone(), &namespace);
    let written = apply::merge(&api, &plane.name_any(), &body).await?;
    tracing::info!(owner = %ObjectKey::of(plane), %annotations, "annotated a control plane of one Machine");
    ctx.stores.control_planes.insert(written);
    Ok(())
}

/// Announces a change of a control plane as it is now.
async fn announce_change(
    ctx: &Context,
    plane: &KubeadmControlPlane,
    type_: EventType,
    text: (&str, String),
) {
    let occurrence = plane.resource_version().unwrap_or_default();
    announce(ctx, plane, type_, text, occurrence).await;
}

/// Announces a state once for all looks of the same `occurrence`.
async fn announce(
    ctx: &Context,
    plane: &KubeadmControlPlane,
    type_: EventType,
    (reason, message): (&str, String),
    occurrence: String,
) {
    let about = reference(plane);
    let announcement =
        Announcement { about, type_, reason: reason.to_owned(), message, occurrence };
    ctx.recorder.announce(&announcement).await;
}

impl OnlyMachine {
    /// `None` for a control plane that has, or wants, another number of Machines, or whose Machine is being deleted.
    fn of(ctx: &Context, key: &ObjectKey) -> Option<Self> {
        let plane = ctx.stores.control_planes.get(key)?;
        let cluster = plane.labels().get(keys::CLUSTER_NAME)?;
        let cluster = ctx.stores.clusters.get(&ObjectKey::new(&key.namespace, cluster))?;
        let group = control_plane_group(&cluster)?;
        if group.owner_key() != *key || plane.spec.replicas.unwrap_or(1) != 1 {
            return None;
        }
        let mut machines = machines_of(&ctx.stores, &group.key);
        let machine = machines.pop().filter(|_| machines.is_empty())?;
        let leaves = machine.metadata.deletion_timestamp.is_some()
            || plane.metadata.deletion_timestamp.is_some();
        (!leaves).then_some(Self { cluster, plane, machine, group })
    }

    fn policy(&self, ctx: &Context) -> Policy {
        policy_of(ctx, self.plane.annotations(), Some(&self.cluster))
    }

    /// Whether Cluster API would replace the Machine.
    async fn is_outdated(&self, ctx: &Context) -> anyhow::Result<bool> {
        // Objects that cannot be read must not hide another version.
        Ok(self.machine.spec.version != self.plane.spec.version
            || !is_current_member(ctx, &self.group, &self.machine).await?)
    }

    /// The task of the control plane that counts.
    fn task(&self, ctx: &Context) -> TaskSeen {
        let tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &self.group.key);
        let request = request_of_plane(&self.plane);
        let requested = |task: &UpgradeTask| task.annotations().get(keys::SINGLE_REPLICA).cloned();
        let is_stale = |task: &&Arc<UpgradeTask>| {
            task.spec.stage != Stage::Abort && requested(task).is_some_and(|of| of != request)
        };
        let mut unfinished = tasks.iter().filter(|task| !has_ended(task));
        if let Some(task) = unfinished.clone().find(is_stale) {
            return TaskSeen::Stale(task.name_any());
        }
        if unfinished.next().is_some() {
            return TaskSeen::Unfinished;
        }
        // What ended before the newest one was about another request, even if that has come back.
        let created = |task: &&Arc<UpgradeTask>| task.creation_timestamp().map(|at| at.0);
        let own = tasks.iter().filter(|task| requested(task).is_some());
        let Some(newest) = own.max_by_key(created) else { return TaskSeen::Missing };
        let is_aborted =
            newest.status.as_ref().is_some_and(|status| status.phase == TaskPhase::Aborted);
        let by_operator = is_aborted && !newest.annotations().contains_key(keys::GOAL_CHANGED);
        if by_operator && requested(newest).as_ref() == Some(&request)
            || newest.name_any() == self.task_name()
        {
            TaskSeen::Ended(newest.name_any())
        } else {
            TaskSeen::Missing
        }
    }

    /// Name of the task for what the control plane requests now.
    fn task_name(&self) -> String {
        let hash = hash_json(&json!([self.plane.uid(), self.plane.metadata.generation]));
        format!("single-{}", &hash[..16])
    }

    async fn pause(&self, ctx: &Context, only: &Only) -> anyhow::Result<()> {
        let updates = only.in_place || only.task == TaskSeen::Unfinished;
        let (type_, next) = match &only.task {
            TaskSeen::Missing | TaskSeen::Unfinished | TaskSeen::Stale(_) if updates => {
                (EventType::Normal, "until an UpgradeTask has updated it in place".to_owned())
            }
            TaskSeen::Missing | TaskSeen::Unfinished | TaskSeen::Stale(_) | TaskSeen::Ended(_) => {
                (EventType::Warning, self.ways_out(ctx, &only.task))
            }
        };
        let message = format!(
            "Cluster API would replace Machine {}, the only one of the control plane, which differs from what the control \
             plane requests: Refit pauses the control plane {next}",
            self.machine.name_any()
        );
        announce_change(ctx, &self.plane, type_, ("ReplacementHeld", message)).await;
        annotate(ctx, &self.plane, json!({keys::PAUSED: keys::HELD, keys::TASK: null})).await
    }

    /// How a control plane goes on that is paused, and whose Machine no UpgradeTask is to update.
    fn ways_out(&self, ctx: &Context, task: &TaskSeen) -> String {
        let plane = self.plane.name_any();
        let update = match task {
            TaskSeen::Ended(task) => {
                format!(
                    "UpgradeTask {task} has ended; `refit resume kcp/{plane}` creates another one"
                )
            }
            TaskSeen::Missing | TaskSeen::Unfinished | TaskSeen::Stale(_) => {
                let namespace = &self.group.key.namespace;
                let opt_in = if ctx.opted_in(namespace) {
                    String::new()
                } else {
                    format!("label Namespace {namespace} with {}=enabled, and ", keys::IN_PLACE)
                };
                format!(
                    "{opt_in}annotate KubeadmControlPlane {plane} or its Cluster with {}=InPlace",
                    keys::SINGLE_REPLICA
                )
            }
        };
        format!(
            "until you decide. To update the Machine in place, {update}; to keep it as it is, set the spec of the control \
             plane back; to let Cluster API replace it, annotate with {}=Replace",
            keys::ON_UNCOVERED
        )
    }

    /// Requests the update. Only one of several attempts creates the task, because its name follows from what is known.
    async fn update(&self, ctx: &Context) -> anyhow::Result<()> {
        let plane = self.plane.as_ref();
        let spec = UpgradeTaskSpec {
            owner_ref: Some(self.group.spec.owner.clone()),
            ..UpgradeTaskSpec::of(&self.group.spec.cluster_name, Via::Machines)
        };
        let mut task = UpgradeTask::new(&self.task_name(), spec);
        task.metadata.namespace = Some(self.group.key.namespace.clone());
        task.metadata.annotations =
            Some(BTreeMap::from([(keys::SINGLE_REPLICA.to_owned(), request_of_plane(plane))]));
        task.metadata.owner_references = plane.owner_ref(&()).map(|owner| vec![owner]);
        let made = self.tasks(ctx).create(&PostParams::default(), &task).await?;
        tracing::info!(owner = %self.group.key, task = made.name_any(), "requested UpgradeTask");
        ctx.stores.upgrade_tasks.insert(made);
        Ok(())
    }

    /// Aborts a task for what was requested before.
    async fn abort(&self, ctx: &Context, name: &str) -> anyhow::Result<()> {
        let body = json!({
            "metadata": {"annotations": {keys::GOAL_CHANGED: ""}}, "spec": {"stage": Stage::Abort},
        });
        ctx.stores.upgrade_tasks.insert(apply::merge(&self.tasks(ctx), name, &body).await?);
        Ok(())
    }

    fn tasks(&self, ctx: &Context) -> Api<UpgradeTask> {
        Api::namespaced(ctx.client.clone(), &self.group.key.namespace)
    }

    async fn announce_refusal(&self, ctx: &Context, why: &Refused) {
        let message = format!(
            "Machine {} differs from what the control plane requests, and Refit can neither update it nor pause the \
             control plane: {}",
            self.machine.name_any(),
            why.message
        );
        // The same as long as the spec is.
        let occurrence = self.plane.metadata.generation.unwrap_or_default().to_string();
        let text = ("ReplacementNotPrevented", message);
        announce(ctx, &self.plane, EventType::Warning, text, occurrence).await;
    }
}
