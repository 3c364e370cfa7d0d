//! Has the only Machine of a control plane updated in place, or pauses a control plane that would replace it.
//!
//! The update is an UpgradeTask: it keeps the control plane paused until the Machine is what it requests, so that Cluster
//! API never sees an outdated Machine (`docs/adr/0010-a-task-updates-the-only-machine.md`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams};
use refit_cluster_api::kinds::{Cluster, KubeadmControlPlane, Machine};
use refit_core::{
    change::Policy,
    group::{RolloutKey, exception_of, rollout_number},
    hold::{Only, Step, TaskSeen, may_be_outdated},
    task::{Paused, Refused},
};
use refit_kinds::{
    keys,
    refit::{
        Admission, ExceptionRule, HeldKind, Origin, Stage, UpgradeTask, UpgradeTaskSpec, Via,
        hash_json,
    },
};
use refit_runtime::{
    ObjectKey, apply,
    events::{Announcement, EventType, reference},
    queue::Action,
};
use serde_json::{Value, json};

use super::{WORKERS, cluster_of, group_key, held, is_maintained, next, policy_of, read};
use crate::{
    context::Context,
    groups::{Group, control_plane_group, machines_of},
    indexes::TASKS_BY_GROUP,
    metrics::measured,
    owner::pace_of,
    upgrade_task::{is_current_member, is_race, refused_by_api, request_of_plane},
};

/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// Requeue delay after the API server has refused a read or a write: a person has to change that.
const AFTER_REFUSAL: Duration = Duration::from_mins(5);

/// How often a control plane that waits is looked at: an infrastructure machine or a KubeadmConfig may have been repaired,
/// which nothing else shows.
const WAITS: SignedDuration = SignedDuration::from_mins(30);

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
pub(crate) fn wake(ctx: &Context, key: &ObjectKey) {
    if concerns(ctx, key) {
        ctx.queues.only_machines.add(key.clone());
    }
}

/// Whether a control plane has one Machine that Cluster API may want to replace, or is paused because it would.
fn concerns(ctx: &Context, key: &ObjectKey) -> bool {
    let Some(plane) = ctx.stores.control_planes.get(key) else { return false };
    let may_be_replaced = |one: OnlyMachine| {
        may_be_outdated(&one.plane.spec.version, &one.machine)
            && (ctx.holds_replacements(&key.namespace) || one.policy(ctx).single_replica_in_place)
    };
    match Paused::of(plane.annotations()) {
        Paused::ByHold => true,
        // A task that is under way does all that is to do.
        Paused::ByTask(_) => OnlyMachine::of(ctx, key).is_some_and(|one| match one.task(ctx) {
            TaskSeen::Unfinished => false,
            TaskSeen::Missing | TaskSeen::Stale(_) | TaskSeen::Ended(_) => true,
        }),
        Paused::No | Paused::ByOthers => {
            is_maintained(ctx, &key.namespace)
                && OnlyMachine::of(ctx, key).is_some_and(may_be_replaced)
        }
    }
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
            if let Some(plane) = ctx.stores.control_planes.get(key) {
                announce_refusal(ctx, &plane, &why).await;
            }
            Ok(Action::RequeueAfter(AFTER_REFUSAL))
        }
    }
}

async fn advance(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    // What may disturb or pause is decided on the objects as they are now.
    read(ctx, HeldKind::KubeadmControlPlane, key).await?;
    let Some(plane) = ctx.stores.control_planes.get(key) else { return Ok(Action::Done) };
    let paused = Paused::of(plane.annotations());
    let held = held(ctx, HeldKind::KubeadmControlPlane, key);
    let create = held.entry.as_ref().map(|entry| entry.create);
    let is_held = ctx.holds_replacements(&key.namespace) && create == Some(Admission::Refused);
    let mut again = held.again;
    if let Some(one) = OnlyMachine::of(ctx, key) {
        let in_place = one.policy(ctx).single_replica_in_place
            && create.is_some()
            && ctx.opted_in(&key.namespace)
            && !one.is_skipped(ctx);
        let is_outdated = one.is_outdated(ctx).await?;
        let only = Only { is_outdated, is_held, in_place, paused, task: one.task(ctx) };
        match only.next() {
            Step::Nothing => {
                let later = ctx.clock.now().checked_add(WAITS).ok();
                again = again.into_iter().chain(later).min();
            }
            Step::Pause => one.pause(ctx, &only).await?,
            Step::Release => release(ctx, &plane).await?,
            Step::Update => one.update(ctx).await?,
            Step::Abort(name) => one.abort(ctx, &name).await?,
        }
    } else if paused == Paused::ByHold && !(is_held && has_second(ctx, &plane).await) {
        release(ctx, &plane).await?;
    }
    Ok(next(ctx, again))
}

/// Whether a control plane of one Machine that Refit has paused has another one: Cluster API, going on, would delete the
/// first. A Machine that is being deleted needs Cluster API to go on.
async fn has_second(ctx: &Context, plane: &KubeadmControlPlane) -> bool {
    let key = ObjectKey::of(plane);
    let mut machines = machines_of(&ctx.stores, &group_key(HeldKind::KubeadmControlPlane, &key));
    machines.retain(|machine| machine.metadata.deletion_timestamp.is_none());
    if machines.len() < 2 {
        return false;
    }
    let names: Vec<String> = machines.iter().map(|machine| machine.name_any()).collect();
    let message = format!(
        "The control plane asks for one Machine and has {}: it stays paused, because Cluster API would delete the one that \
         differs from what is requested. Delete the Machine that is not to stay; then Cluster API goes on",
        names.join(", ")
    );
    announce(ctx, plane, EventType::Warning, ("SecondMachine", message)).await;
    true
}

/// Lets Cluster API go on with a control plane.
async fn release(ctx: &Context, plane: &KubeadmControlPlane) -> anyhow::Result<()> {
    let message =
        "Nothing is left to hold: Refit lets Cluster API go on with the control plane".to_owned();
    annotate(ctx, plane, json!({keys::PAUSED: null, keys::TASK: null})).await?;
    announce(ctx, plane, EventType::Normal, ("ReplacementNotHeld", message)).await;
    Ok(())
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

async fn announce_refusal(ctx: &Context, plane: &KubeadmControlPlane, why: &Refused) {
    let message = match Paused::of(plane.annotations()) {
        Paused::ByHold | Paused::ByTask(_) => format!(
            "The control plane stays paused: Refit can neither compare its Machine with what it requests nor let Cluster API \
             go on: {}",
            why.message
        ),
        Paused::No | Paused::ByOthers => format!(
            "The Machine of the control plane may differ from what it requests, and Refit can neither update it nor pause \
             the control plane: {}",
            why.message
        ),
    };
    announce(ctx, plane, EventType::Warning, ("ReplacementNotPrevented", message)).await;
}

/// Announces something once for a control plane as a person has left it. Its status does not count.
async fn announce(
    ctx: &Context,
    plane: &KubeadmControlPlane,
    type_: EventType,
    (reason, message): (&str, String),
) {
    let occurrence = hash_json(&json!([plane.metadata.generation, plane.annotations()]));
    let about = reference(plane);
    let announcement =
        Announcement { about, type_, reason: reason.to_owned(), message, occurrence };
    ctx.recorder.announce(&announcement).await;
}

impl OnlyMachine {
    /// `None` for a control plane that has, or wants, another number of Machines, or whose Machine is being deleted.
    fn of(ctx: &Context, key: &ObjectKey) -> Option<Self> {
        let plane = ctx.stores.control_planes.get(key)?;
        let cluster = cluster_of(ctx, HeldKind::KubeadmControlPlane, key)?;
        let cluster = ctx.stores.clusters.get(&cluster)?;
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

    /// Whether the Machine is skipped: a task would leave it as it is.
    fn is_skipped(&self, ctx: &Context) -> bool {
        let object = ctx.stores.update_groups.get(&self.group.key);
        let (pacing, status) = object.map_or_else(Default::default, |object| {
            (object.spec.pacing.clone(), object.status.clone().unwrap_or_default())
        });
        let pacing = pace_of(&ctx.stores, &self.group, &pacing).pacing;
        let target = self.plane.spec.version.to_string();
        let rollout = rollout_number(&status, &RolloutKey { origin: Origin::Task, target });
        exception_of(&self.machine, &pacing, rollout)
            .is_some_and(|exception| exception.rule == ExceptionRule::Skip)
    }

    /// The task of the control plane that counts.
    fn task(&self, ctx: &Context) -> TaskSeen {
        let tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &self.group.key);
        TaskSeen::of(&tasks, &request_of_plane(&self.plane), &self.task_name())
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
        let pause = json!({keys::PAUSED: keys::HELD, keys::TASK: null});
        annotate(ctx, &self.plane, pause).await?;
        announce(ctx, &self.plane, type_, ("ReplacementHeld", message)).await;
        Ok(())
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
                self.opt_in(ctx).join(", and ")
            }
        };
        format!(
            "until you decide. To update the Machine in place, {update}; to keep it as it is, set the spec of the control \
             plane back; to let Cluster API replace it, annotate the control plane or its Cluster with {}=Replace",
            keys::ON_UNCOVERED
        )
    }

    /// What is missing for an update in place.
    fn opt_in(&self, ctx: &Context) -> Vec<String> {
        let Self { plane, machine, group, .. } = self;
        let namespace = &group.key.namespace;
        let mut missing = Vec::new();
        if !ctx.opted_in(namespace) {
            missing.push(format!("label Namespace {namespace} with {}=enabled", keys::IN_PLACE));
        }
        if self.is_skipped(ctx) {
            missing.push(format!("`refit release {}`, which is skipped", machine.name_any()));
        }
        if !self.policy(ctx).single_replica_in_place {
            missing.push(format!(
                "annotate KubeadmControlPlane {} or its Cluster with {}=InPlace",
                plane.name_any(),
                keys::SINGLE_REPLICA
            ));
        }
        missing
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
}
