//! Has the only Machine of a control plane updated in place, or pauses a control plane that would replace it.
//!
//! The update is an UpgradeTask: it keeps the control plane paused until the Machine is what it requests, so that Cluster
//! API never sees an outdated Machine (`docs/adr/0010-a-task-updates-the-only-machine.md`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{Api, Resource as _, ResourceExt as _, api::PostParams};
use refit_cluster_api::kinds::{Cluster, KubeadmControlPlane, Machine};
use refit_core::{
    change::Policy,
    hold::{Only, PausedBy, Step, TaskSeen, may_be_outdated},
    task::Refused,
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

use super::{group_key, held, policy_of};
use crate::{
    context::Context,
    groups::{Group, control_plane_group, machines_of},
    indexes::TASKS_BY_GROUP,
    node_update::live::{list_machines, read_object},
    upgrade_task::{has_ended, is_current_member, is_race, refused_by_api, request_of_plane},
};

/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);
/// Requeue delay after the API server has refused a read or a write.
const AFTER_REFUSAL: Duration = Duration::from_secs(30);

/// A control plane with one Machine.
struct Single {
    cluster: Arc<Cluster>,
    plane: Arc<KubeadmControlPlane>,
    machine: Arc<Machine>,
    group: Group,
}

/// Whether a control plane has one Machine that Cluster API may want to replace, or is paused because it would.
pub(super) fn concerns(ctx: &Context, key: &ObjectKey) -> bool {
    let Some(plane) = ctx.stores.control_planes.get(key) else { return false };
    let may_be_replaced = |single: Single| {
        may_be_outdated(&single.plane, &single.machine)
            && (ctx.holds_replacements(&key.namespace)
                || single.policy(ctx).single_replica_in_place)
    };
    paused_by(&plane) == PausedBy::Hold
        || ctx.opted_in(&key.namespace) && Single::of(ctx, key).is_some_and(may_be_replaced)
}

/// Looks at a control plane.
pub(super) async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    if !concerns(ctx, key) {
        return Ok(Action::Done);
    }
    match advance(ctx, key).await {
        Ok(()) => Ok(Action::Done),
        Err(error) if is_race(&error) => Ok(Action::RequeueAfter(AFTER_CONFLICT)),
        Err(error) => {
            let why = refused_by_api(error)?;
            if let Some(single) = Single::of(ctx, key) {
                single.announce_refusal(ctx, &why).await;
            }
            Ok(Action::RequeueAfter(AFTER_REFUSAL))
        }
    }
}

async fn advance(ctx: &Context, key: &ObjectKey) -> anyhow::Result<()> {
    // What may disturb or pause is decided on the objects as they are now.
    read_object(ctx, &ctx.stores.control_planes, key).await?;
    let Some(plane) = ctx.stores.control_planes.get(key) else { return Ok(()) };
    if let Some(cluster) = plane.labels().get(keys::CLUSTER_NAME) {
        let cluster = ObjectKey::new(&key.namespace, cluster);
        read_object(ctx, &ctx.stores.clusters, &cluster).await?;
        list_machines(ctx, &cluster).await?;
    }
    let single = Single::of(ctx, key).filter(|_| ctx.opted_in(&key.namespace));
    let Some(single) = single else {
        let machines = machines_of(&ctx.stores, &group_key(HeldKind::KubeadmControlPlane, key));
        // Cluster API would delete one of two, and the first of them at that.
        let has_second = plane.spec.replicas.unwrap_or(1) == 1
            && machines.len() > 1
            && plane.metadata.deletion_timestamp.is_none()
            && ctx.opted_in(&key.namespace);
        return match paused_by(&plane) {
            PausedBy::Hold if !has_second => release(ctx, &plane).await,
            PausedBy::Hold | PausedBy::None | PausedBy::Others => Ok(()),
        };
    };
    let entry = held(ctx, HeldKind::KubeadmControlPlane, key).entry;
    let only = Only {
        is_outdated: !is_current_member(ctx, &single.group, &single.machine).await?,
        is_held: ctx.holds_replacements(&key.namespace)
            && entry.as_ref().is_some_and(|entry| entry.create == Admission::Refused),
        in_place: single.policy(ctx).single_replica_in_place && entry.is_some(),
        paused: paused_by(&plane),
        task: single.task(ctx),
    };
    match only.next() {
        Step::Nothing => Ok(()),
        Step::Pause => single.pause(ctx).await,
        Step::Release => release(ctx, &plane).await,
        Step::Update => single.update(ctx).await,
        Step::Abort(name) => single.abort(ctx, &name).await,
    }
}

fn paused_by(plane: &KubeadmControlPlane) -> PausedBy {
    let annotations = plane.annotations();
    match (annotations.contains_key(keys::PAUSED), annotations.contains_key(keys::HELD)) {
        (true, true) => PausedBy::Hold,
        (true, false) => PausedBy::Others,
        // The mark may be left by a client that removed the pause alone.
        (false, _) => PausedBy::None,
    }
}

/// Lets Cluster API go on with a control plane.
async fn release(ctx: &Context, plane: &KubeadmControlPlane) -> anyhow::Result<()> {
    let message = "Refit no longer pauses the control plane: Cluster API goes on".to_owned();
    announce(ctx, plane, EventType::Normal, ("ReplacementNotHeld", message)).await;
    annotate(ctx, plane, json!({keys::PAUSED: null, keys::HELD: null})).await
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

async fn announce(
    ctx: &Context,
    plane: &KubeadmControlPlane,
    type_: EventType,
    (reason, message): (&str, String),
) {
    let announcement = Announcement {
        about: reference(plane),
        type_,
        reason: reason.to_owned(),
        message,
        occurrence: plane.metadata.generation.unwrap_or_default().to_string(),
    };
    ctx.recorder.announce(&announcement).await;
}

impl Single {
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

    /// The task of the control plane that counts.
    fn task(&self, ctx: &Context) -> TaskSeen {
        let tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &self.group.key);
        let request = request_of_plane(&self.plane);
        let requested = |task: &UpgradeTask| task.annotations().get(keys::SINGLE_REPLICA).cloned();
        if let Some(task) = tasks.iter().find(|task| !has_ended(task)) {
            let is_stale = requested(task).is_some_and(|of| of != request);
            return if is_stale && task.spec.stage != Stage::Abort {
                TaskSeen::Stale(task.name_any())
            } else {
                TaskSeen::Unfinished
            };
        }
        let is_ours = |task: &&Arc<UpgradeTask>| requested(task).as_ref() == Some(&request);
        let created = |task: &&Arc<UpgradeTask>| task.creation_timestamp().map(|at| at.0);
        let Some(newest) = tasks.iter().filter(is_ours).max_by_key(created) else {
            return TaskSeen::Missing;
        };
        let is_aborted =
            newest.status.as_ref().is_some_and(|status| status.phase == TaskPhase::Aborted);
        if is_aborted || newest.name_any() == self.task_name() {
            TaskSeen::Ended
        } else {
            TaskSeen::Missing
        }
    }

    /// Name of the task for what the control plane requests now.
    fn task_name(&self) -> String {
        let hash = hash_json(&json!([self.plane.uid(), self.plane.metadata.generation]));
        format!("single-{}", &hash[..16])
    }

    async fn pause(&self, ctx: &Context) -> anyhow::Result<()> {
        let (plane, machine) = (self.plane.name_any(), self.machine.name_any());
        let message = format!(
            "Cluster API would replace Machine {machine}, the only one of the control plane, which differs from what the \
             control plane requests: Refit has paused the control plane. To update the Machine in place, annotate \
             KubeadmControlPlane {plane} or its Cluster with {}=InPlace; to keep it as it is, set the spec of the \
             control plane back; to let Cluster API replace it, annotate with {}=Replace",
            keys::SINGLE_REPLICA,
            keys::ON_UNCOVERED,
        );
        announce(ctx, &self.plane, EventType::Warning, ("ReplacementHeld", message)).await;
        annotate(ctx, &self.plane, json!({keys::PAUSED: "", keys::HELD: machine})).await
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
        announce(ctx, &self.plane, EventType::Warning, ("ReplacementNotPrevented", message)).await;
    }
}
