//! Requests what the annotations of an owner of Machines ask for, by an UpgradeTask, and shows on it how far that is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _, api::DynamicObject};
use refit_cluster_api::kinds::{CONTRACT_VERSION, Machine};
use refit_core::annotation::{self, OwnedMachine, OwnerAnnounced, OwnerRequest, OwnerSeen};
use refit_kinds::{
    canonical::Keys,
    keys,
    refit::{
        ClusterRef, GoalOption, GroupOwner, Owner, Stage, UpdateGroupSpec, UpgradeTask,
        UpgradeTaskSpec, Via, hash_json,
    },
};
use refit_runtime::{apply, queue::Action};
use serde_json::json;

use super::{
    AFTER_CONFLICT,
    machine::{has_k8sd, is_requested_by},
    may_be_served_by_others, served,
};
use crate::{
    context::Context,
    groups::{Group, group_of, lacks_machines, machines_of, owner_object, owner_reference},
    indexes::{SETS_BY_GROUP, TASKS_BY_GROUP},
    node_update::announced,
    owner::{LiveOwner, OwnerId},
    upgrade_task::{has_ended, refused_by_api},
};

/// Requeue delay after the API server has not let Refit create a task.
const AFTER_REFUSAL: Duration = Duration::from_secs(30);

/// An owner, and the objects that its annotations are decided on.
struct Look {
    group: Group,
    owner: LiveOwner,
    annotations: BTreeMap<String, String>,
    machines: Vec<Arc<Machine>>,
}

pub(super) async fn reconcile(ctx: &Context, id: &OwnerId) -> anyhow::Result<Action> {
    if !ctx.opted_in(&id.key.namespace) {
        return Ok(Action::Done);
    }
    let Some(look) = Look::of(ctx, id) else { return Ok(Action::Done) };
    let mut all = Vec::new();
    for keys in served(ctx) {
        all.push(of_prefix(ctx, id, &look, keys).await);
    }
    let mut soonest = None;
    for next in all {
        if let Action::RequeueAfter(delay) = next? {
            soonest = Some(soonest.map_or(delay, |known: Duration| known.min(delay)));
        }
    }
    Ok(soonest.map_or(Action::Done, Action::RequeueAfter))
}

impl Look {
    /// `None` for an owner that is not known, is being deleted, or has no Machines yet although it requests some: a
    /// rollout of another version may have left them nowhere for a moment.
    fn of(ctx: &Context, id: &OwnerId) -> Option<Self> {
        let group = group_of_owner(ctx, id)?;
        let owner = LiveOwner::of(&ctx.stores, &group).filter(|owner| !owner.is_deleting())?;
        let machines = machines_of(&ctx.stores, &group.key);
        let annotations = owner.annotations();
        Some(Self { group, owner, annotations, machines })
    }

    /// Whether the Machines of the owner are known: of a MachineDeployment, the MachineSets show them.
    fn has_machines_to_upgrade(&self, ctx: &Context) -> bool {
        let stores = &ctx.stores;
        let has_sets = match self.group.spec.owner.owner() {
            Owner::Deployment => {
                !stores.machine_sets.listed(&SETS_BY_GROUP, &self.group.key).is_empty()
            }
            Owner::ControlPlane | Owner::Set => true,
        };
        has_sets && !(self.machines.is_empty() && lacks_machines(stores, &self.group))
    }

    /// The tasks that annotations of a prefix have requested for this owner, not for an earlier one of its name.
    fn tasks(&self, ctx: &Context, keys: Keys) -> Vec<Arc<UpgradeTask>> {
        let uid = self.owner.uid();
        let mut tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &self.group.key);
        tasks.retain(|task| {
            let mut owners = task.owner_references().iter();
            is_requested_by(task.as_ref(), keys)
                && owners.any(|owner| Some(&owner.uid) == uid.as_ref())
        });
        tasks
    }

    fn seen<'a>(
        &'a self,
        ctx: &Context,
        keys: Keys,
        task: Option<&'a UpgradeTask>,
    ) -> OwnerSeen<'a> {
        let may_have_k8sd =
            self.machines.is_empty() || self.machines.iter().any(|machine| has_k8sd(machine));
        let machines = self.machines.iter().map(|machine| OwnedMachine {
            name: machine.metadata.name.as_deref().unwrap_or_default(),
            created: machine.metadata.creation_timestamp.as_ref().map(|time| time.0),
            deleting: machine.metadata.deletion_timestamp.is_some(),
            annotations: machine.annotations(),
            version: machine.spec.version.version(),
            has_k8sd: has_k8sd(machine),
        });
        OwnerSeen {
            keys,
            compat: ctx.settings.canonical_compat,
            annotations: &self.annotations,
            task,
            machines: machines.collect(),
            is_served_by_others: may_have_k8sd && may_be_served_by_others(ctx, keys),
        }
    }

    /// A task of the owner. Its name follows from what is known, so that only one of several attempts creates it.
    fn task(
        &self,
        ctx: &Context,
        (keys, ordinal): (Keys, u64),
        option: &GoalOption,
        machines: Option<Vec<String>>,
    ) -> UpgradeTask {
        let owner = self.group.spec.owner.clone();
        let hash = hash_json(&json!([keys.upgrade_to, owner.kind, owner.name, self.owner.uid()]));
        let spec = UpgradeTaskSpec {
            stage: Stage::Ongoing,
            cluster_ref: ClusterRef { name: self.group.spec.cluster_name.clone() },
            owner_ref: Some(owner),
            version: None,
            hops: None,
            machines,
            updater_ref: None,
            request_ref: None,
            option: Some(option.clone()),
            via: Via::Machines,
        };
        let mut task = UpgradeTask::new(&format!("annotated-{}-{ordinal}", &hash[..16]), spec);
        task.metadata.namespace = Some(self.group.key.namespace.clone());
        task.metadata.annotations =
            Some(BTreeMap::from([(keys::REQUESTED_BY.to_owned(), keys.upgrade_to.to_owned())]));
        task.metadata.owner_references =
            owner_reference(&ctx.stores, &self.group).map(|owner| vec![owner]);
        task
    }
}

/// The group of an owner. Its Machines name the version in which it is served.
fn group_of_owner(ctx: &Context, id: &OwnerId) -> Option<Group> {
    let stores = &ctx.stores;
    let machines = machines_of(stores, &id.group_key());
    if let Some(group) = machines.first().and_then(|machine| group_of(stores, machine)) {
        return Some(group);
    }
    let version = stores.foreign_planes.resource(&id.api_group, &id.kind);
    let version = version.map_or_else(|| CONTRACT_VERSION.to_owned(), |resource| resource.version);
    let owner = GroupOwner {
        api_version: format!("{}/{version}", id.api_group),
        kind: id.kind.clone(),
        name: id.key.name.clone(),
    };
    let is_control_plane = owner.owner() == Owner::ControlPlane;
    let group = Group::of(&id.key.namespace, "", owner, is_control_plane);
    let labels = LiveOwner::of(stores, &group)?.labels();
    let cluster = labels.get(keys::CLUSTER_NAME)?.clone();
    Some(Group { spec: UpdateGroupSpec { cluster_name: cluster, ..group.spec }, ..group })
}

async fn of_prefix(ctx: &Context, id: &OwnerId, look: &Look, keys: Keys) -> anyhow::Result<Action> {
    let tasks = look.tasks(ctx, keys);
    let newest = tasks.iter().max_by_key(|task| ordinal_of(&task.name_any()));
    let is_newest =
        |task: &Arc<UpgradeTask>| newest.is_some_and(|newest| Arc::ptr_eq(newest, task));
    // There is one task at a time; an older one is left from what is forgotten.
    for task in tasks.iter().filter(|task| !has_ended(task) && !is_newest(task)) {
        stop(ctx, id, &task.name_any()).await?;
    }
    let seen = look.seen(ctx, keys, newest.map(AsRef::as_ref));
    let decided = annotation::owner(&seen);
    if !decided.changes.is_empty() {
        return show(ctx, id, look, &decided).await;
    }
    if let Some((event, seconds)) = &decided.repeated {
        let (about, now) = (owner_object(&ctx.stores, &look.group), ctx.clock.now().to_string());
        ctx.recorder.announce(&announced(about, event, &now)).await;
        return Ok(Action::RequeueAfter(Duration::from_secs(*seconds)));
    }
    match decided.request {
        OwnerRequest::None => Ok(Action::Done),
        OwnerRequest::Stop(task) => {
            stop(ctx, id, &task).await?;
            Ok(Action::Done)
        }
        // Its first Machine wakes it.
        OwnerRequest::Ask { .. } if !look.has_machines_to_upgrade(ctx) => Ok(Action::Done),
        OwnerRequest::Ask { option, machines } => {
            let shown = look.annotations.get(keys.shown).map_or(0, |name| ordinal_of(name));
            let known = newest.map_or(0, |task| ordinal_of(&task.name_any()));
            let task = look.task(ctx, (keys, known.max(shown) + 1), &option, machines);
            match apply::create_or_get(&tasks_in(ctx, id), &task).await {
                Ok((found, outcome)) => {
                    let name = found.name_any();
                    tracing::info!(owner = %look.group.key, task = name, ?outcome, "requested UpgradeTask");
                    ctx.stores.upgrade_tasks.insert(found);
                    Ok(Action::Done)
                }
                Err(error) => {
                    let why = refused_by_api(error.into())?.message;
                    let decided = seen.not_permitted(&option, &why);
                    if decided.changes.is_empty() {
                        return Ok(Action::RequeueAfter(AFTER_REFUSAL));
                    }
                    show(ctx, id, look, &decided).await
                }
            }
        }
    }
}

async fn stop(ctx: &Context, id: &OwnerId, task: &str) -> anyhow::Result<()> {
    let body = json!({"spec": {"stage": Stage::Abort}});
    match apply::merge(&tasks_in(ctx, id), task, &body).await {
        Ok(written) => ctx.stores.upgrade_tasks.insert(written),
        Err(error) if apply::is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn tasks_in(ctx: &Context, id: &OwnerId) -> Api<UpgradeTask> {
    Api::namespaced(ctx.client.clone(), &id.key.namespace)
}

/// The number at the end of a task's name.
fn ordinal_of(name: &str) -> u64 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Writes the annotations, after the events that announce it. A request that was made meanwhile is not overwritten.
async fn show(
    ctx: &Context,
    id: &OwnerId,
    look: &Look,
    decided: &OwnerAnnounced,
) -> anyhow::Result<Action> {
    let shown = decided.changes.values().flatten().cloned().collect::<Vec<_>>().join(" ");
    for event in &decided.events {
        let about = owner_object(&ctx.stores, &look.group);
        ctx.recorder.announce(&announced(about, event, &shown)).await;
    }
    let body = json!({ "metadata": {
        "annotations": decided.changes,
        "resourceVersion": look.owner.resource_version(),
    }});
    let object = id.object();
    let api = ctx.foreign.api(&ctx.client, &object).await?;
    let written: kube::Result<DynamicObject> = apply::merge(&api, &object.name, &body).await;
    match written {
        // The next look must not rest on the owner as it was.
        Ok(_) => LiveOwner::read(ctx, &look.group).await?,
        Err(error) if apply::is_conflict(&error) => LiveOwner::read(ctx, &look.group).await?,
        Err(error) if apply::is_not_found(&error) => return Ok(Action::Done),
        Err(error) => return Err(error.into()),
    }
    Ok(Action::RequeueAfter(AFTER_CONFLICT))
}
