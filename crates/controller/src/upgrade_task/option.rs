//! A task that installs an option, such as a channel: asks one Machine after the other, by annotation.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_core::{
    annotation::machine_begins,
    group::{RolloutKey, exception_of, rollout_number},
    node::newest,
    task::{
        Obstacle,
        option::{
            Lock, OptionAction, OptionMember, OptionOwner, OptionSeen, option_actions,
            option_status,
        },
    },
};
use refit_kinds::{
    canonical::{CANONICAL, Keys, REFIT},
    keys,
    refit::{
        GoalOption, MachineUid, NodeUpdate, Origin, Owner, Pacing, UpgradeTask, UpgradeTaskStatus,
    },
};
use refit_runtime::{apply, queue::Action as Next};
use serde_json::{Value, json};

use super::{
    Outcome, finalizers, group_of_task, has_ended, lock, obstacle, owner::read_group, settle,
};
use crate::{
    annotations::is_requested_by,
    context::Context,
    groups::{Group, machines_of, node_updates_of, owner_object},
    node_update::announced,
    owner::{LiveOwner, limits_of, pace_of},
};

/// A task with an option, and the objects that it is decided on.
struct Look {
    task: Arc<UpgradeTask>,
    option: GoalOption,
    keys: Keys,
    group: Group,
    owner: Option<LiveOwner>,
    cluster: Option<Arc<Cluster>>,
    machines: Vec<Arc<Machine>>,
    uids: Vec<MachineUid>,
    updates: Vec<Vec<Arc<NodeUpdate>>>,
    obstacle: Option<Obstacle>,
    lock: Lock,
    lock_uid: Option<String>,
}

/// Requeue delay while a lock is held, which is not watched.
const LOCK_RECHECK: Duration = Duration::from_secs(5);

/// Does the next writes of a task, and shows the result.
pub(super) async fn work(
    ctx: &Context,
    task: &Arc<UpgradeTask>,
    option: &GoalOption,
) -> anyhow::Result<Next> {
    let (next, outcome, recheck) = advance(ctx, task, option).await?;
    Ok(match settle(ctx, task, &next, outcome).await? {
        Next::Done => recheck.map_or(Next::Done, Next::RequeueAfter),
        sooner @ Next::RequeueAfter(_) => sooner,
    })
}

async fn advance(
    ctx: &Context,
    task: &Arc<UpgradeTask>,
    option: &GoalOption,
) -> anyhow::Result<(UpgradeTaskStatus, Outcome, Option<Duration>)> {
    let look = Look::read(ctx, task.clone(), option).await?;
    let seen = look.seen(ctx);
    let mut outcome = Outcome::default();
    for action in option_actions(&seen) {
        let done = look.perform(ctx, &action).await.map(|()| None);
        let owner = &look.group.spec.owner;
        if !outcome.goes_on(done, || format!("{} {}", owner.kind, owner.name))? {
            break;
        }
    }
    let next = option_status(&seen, &outcome.refused);
    if next.phase.has_ended() && !has_ended(task) {
        // The caches may show the Machines as they were.
        read_group(ctx, &look.group).await?;
        let live = Look::read(ctx, task.clone(), option).await?;
        let next = option_status(&live.seen(ctx), &outcome.refused);
        return Ok((next, outcome, recheck(&live.lock)));
    }
    Ok((next, outcome, recheck(&look.lock)))
}

fn recheck(lock: &Lock) -> Option<Duration> {
    match lock {
        Lock::Unused | Lock::Free => None,
        Lock::Held(_) | Lock::Unreadable(_) => Some(LOCK_RECHECK),
    }
}

impl Look {
    async fn read(
        ctx: &Context,
        task: Arc<UpgradeTask>,
        option: &GoalOption,
    ) -> anyhow::Result<Self> {
        let stores = &ctx.stores;
        let keys =
            if is_requested_by(task.as_ref(), CANONICAL.upgrade_to) { CANONICAL } else { REFIT };
        let group = group_of_task(&task);
        let owner = LiveOwner::of(stores, &group);
        let machines = machines_of(stores, &group.key);
        let is_locked = keys == CANONICAL && group.spec.owner.owner() == Owner::ControlPlane;
        let (lock, lock_uid) = if is_locked && !has_ended(&task) {
            lock::read(ctx, &group.cluster_key()).await?
        } else {
            (Lock::Unused, None)
        };
        Ok(Self {
            obstacle: obstacle::of_option(ctx, &task, (&group, owner.as_ref()), keys),
            option: option.clone(),
            keys,
            owner,
            cluster: stores.clusters.get(&group.cluster_key()),
            uids: machines.iter().map(|machine| MachineUid::of(&machine.metadata)).collect(),
            updates: node_updates_of(stores, &machines),
            machines,
            group,
            lock,
            lock_uid,
            task,
        })
    }

    fn seen(&self, ctx: &Context) -> OptionSeen<'_> {
        let object = ctx.stores.update_groups.get(&self.group.key);
        let pacing = object.as_ref().map(|object| object.spec.pacing.clone()).unwrap_or_default();
        let pacing = pace_of(&ctx.stores, &self.group, &pacing).pacing;
        let limits = limits_of(&ctx.stores, &self.group, || self.machines.len());
        let limits = limits.without_surge().paced(&pacing);
        let is_own = self.keys == REFIT;
        let rollout = object.and_then(|object| object.status.clone()).unwrap_or_default();
        let key = RolloutKey { origin: Origin::Annotation, target: self.option.to_string() };
        OptionSeen {
            task: &self.task,
            option: &self.option,
            keys: self.keys,
            waits_for_status: self.group.spec.owner.owner() != Owner::ControlPlane
                && ctx.settings.canonical_compat.is_strict(self.keys),
            obstacle: self.obstacle.clone(),
            owner: self.owner.as_ref().map(option_owner),
            machines: self.members(&pacing, rollout_number(&rollout, &key)),
            lacks_machines: limits.lacks(self.machines.len()),
            // Canonical's controllers ask one at a time.
            at_once: if is_own { usize::try_from(limits.slots()).unwrap_or(1) } else { 1 },
            order: pacing.order.filter(|_| is_own),
            is_paced_to_a_halt: pacing.paused,
            lock: self.lock.clone(),
            now: ctx.clock.now_seconds(),
        }
    }

    fn members(&self, pacing: &Pacing, rollout: i64) -> Vec<OptionMember<'_>> {
        let all = self.machines.iter().zip(&self.uids).zip(&self.updates);
        let members = all.map(|((machine, uid), updates)| {
            let own = updates.iter().map(AsRef::as_ref);
            let own =
                own.filter(|update: &&NodeUpdate| is_requested_by(*update, self.keys.upgrade_to));
            OptionMember {
                name: machine.metadata.name.as_deref().unwrap_or_default(),
                uid,
                created: machine.metadata.creation_timestamp.as_ref().map(|time| time.0),
                deleting: machine.metadata.deletion_timestamp.is_some(),
                annotations: machine.annotations(),
                update: newest(own, uid),
                exception: exception_of(machine, pacing, rollout).map(|one| one.rule),
            }
        });
        members.collect()
    }

    async fn perform(&self, ctx: &Context, action: &OptionAction) -> anyhow::Result<()> {
        match action {
            OptionAction::AddFinalizer => {
                finalizers(ctx, &self.task, &[keys::TASK_FINALIZER]).await?;
            }
            OptionAction::RemoveFinalizer => finalizers(ctx, &self.task, &[]).await?,
            OptionAction::Lock(machine) => {
                if let Some(cluster) = &self.cluster {
                    lock::take(ctx, cluster, machine).await?;
                }
            }
            OptionAction::Unlock => {
                lock::release(ctx, &self.group.cluster_key(), self.lock_uid.as_deref()).await?;
            }
            OptionAction::Ask(machine) => self.ask(ctx, machine).await?,
            OptionAction::Withdraw(machine) => {
                self.annotate(ctx, machine, json!({self.keys.upgrade_to: null})).await?;
            }
        }
        Ok(())
    }

    /// Asks a Machine for the option, as if it had never been asked for anything.
    async fn ask(&self, ctx: &Context, machine: &str) -> anyhow::Result<()> {
        let Keys { upgrade_to, status, release, change_id, last_failed_attempt_at, .. } = self.keys;
        let mut changes = json!({
            upgrade_to: self.option.to_string(), status: null, release: null,
            last_failed_attempt_at: null,
        });
        if let Some(change_id) = change_id {
            changes[change_id] = Value::Null;
        }
        self.annotate(ctx, machine, changes).await?;
        for event in machine_begins(machine, &self.option) {
            let about = owner_object(&ctx.stores, &self.group);
            ctx.recorder.announce(&announced(about, &event, &self.task.name_any())).await;
        }
        Ok(())
    }

    /// Changes the annotations of a Machine as it was read.
    async fn annotate(&self, ctx: &Context, machine: &str, changes: Value) -> anyhow::Result<()> {
        let is_it = |known: &&Arc<Machine>| known.metadata.name.as_deref() == Some(machine);
        let Some(known) = self.machines.iter().find(is_it) else { return Ok(()) };
        let body = json!({"metadata": {
            "annotations": changes, "resourceVersion": known.resource_version(),
        }});
        let api: Api<Machine> = Api::namespaced(ctx.client.clone(), &self.group.key.namespace);
        ctx.stores.machines.insert(apply::merge(&api, machine, &body).await?);
        tracing::info!(task = self.task.name_any(), machine, "changed what a Machine is asked for");
        Ok(())
    }
}

/// Whether all replicas of an owner are ready: of a control plane, another member may begin only then. Of workers, the
/// slots of their group decide.
fn option_owner(owner: &LiveOwner) -> OptionOwner {
    let is_ready = match owner {
        LiveOwner::ControlPlane(plane) => {
            let ready = plane.status.as_ref().and_then(|status| status.ready_replicas);
            ready.unwrap_or(0) == plane.spec.replicas.unwrap_or(1)
        }
        LiveOwner::Foreign(plane) => {
            let ready = plane.status.as_ref().and_then(|status| status.ready_replicas);
            ready.unwrap_or(0) == plane.spec.replicas.unwrap_or(1)
        }
        LiveOwner::Deployment(_) | LiveOwner::Set(_) => true,
    };
    OptionOwner { deleting: owner.is_deleting(), is_ready }
}
