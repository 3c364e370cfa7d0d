//! Requests what the annotations of an owner of Machines ask for, and the version that those of a Machine ask for, by an
//! UpgradeTask, and shows how far that is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, PostParams},
};
use refit_cluster_api::kinds::{
    CONTRACT_VERSION, CORE_GROUP, KubeadmControlPlane, Machine, MachineDeployment, MachineSet,
};
use refit_core::{
    annotation::{self, OwnedMachine, OwnerAnnounced, OwnerRequest, OwnerRole, OwnerSeen},
    change::Updater,
    task::Refused,
};
use refit_kinds::{
    canonical::{Keys, Wanted},
    keys,
    refit::{
        GroupOwner, Owner, Stage, UpdateGroupSpec, UpgradeTask, UpgradeTaskSpec, Via, hash_json,
    },
    version::KubernetesVersion,
};
use refit_runtime::{apply, events::reference, queue::Action};
use serde_json::json;

use super::{
    AFTER_CONFLICT,
    machine::{has_k8sd, is_requested_by},
    may_be_served_by_others, served,
};
use crate::{
    api_error::ReadError,
    context::Context,
    groups::{Group, control_plane_group, group_of, lacks_machines, machines_of, owner_object},
    indexes::{SETS_BY_GROUP, TASKS_BY_GROUP},
    node_update::{announced, live::read_object},
    owner::{LiveOwner, OwnerId},
    updaters::updaters_of,
    upgrade_task::{TOPOLOGY_OWNED, has_ended, hooks_reach, refused_by_api},
};

/// Requeue delay after the API server has not let Refit create a task.
const AFTER_REFUSAL: Duration = Duration::from_secs(30);

/// What has annotations, and the objects that these are decided on.
pub(super) struct Look {
    id: OwnerId,
    uid: Option<String>,
    resource_version: Option<String>,
    annotations: BTreeMap<String, String>,
    group: Group,
    /// The owner of the Machines.
    owner: LiveOwner,
    machines: Vec<Arc<Machine>>,
    /// What has annotations is a Machine of the owner.
    is_machine: bool,
}

pub(super) async fn reconcile(ctx: &Context, id: &OwnerId) -> anyhow::Result<Action> {
    if !ctx.opted_in(&id.key.namespace) {
        return Ok(Action::Done);
    }
    let Some(look) = Look::of_owner(ctx, id) else { return Ok(Action::Done) };
    let mut all = Vec::new();
    for keys in served(ctx) {
        all.push(look.of_prefix(ctx, keys).await);
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
    /// `None` for an owner that is not known, or is being deleted.
    fn of_owner(ctx: &Context, id: &OwnerId) -> Option<Self> {
        let group = group_of_owner(ctx, id)?;
        let owner = LiveOwner::of(&ctx.stores, &group).filter(|owner| !owner.is_deleting())?;
        Some(Self {
            id: id.clone(),
            uid: owner.uid(),
            resource_version: owner.resource_version(),
            annotations: owner.annotations(),
            machines: machines_of(&ctx.stores, &group.key),
            group,
            owner,
            is_machine: false,
        })
    }

    /// A Machine that asks for a version; `None` if its owner is not known.
    pub(super) fn of_machine(ctx: &Context, machine: &Arc<Machine>) -> Option<Self> {
        let group = group_of(&ctx.stores, machine)?;
        Some(Self {
            id: OwnerId::new(CORE_GROUP, "Machine", machine.as_ref()),
            uid: machine.uid(),
            resource_version: machine.resource_version(),
            annotations: machine.annotations().clone(),
            machines: vec![machine.clone()],
            owner: LiveOwner::of(&ctx.stores, &group)?,
            group,
            is_machine: true,
        })
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

    pub(super) async fn of_prefix(&self, ctx: &Context, keys: Keys) -> anyhow::Result<Action> {
        let tasks = tasks_of(ctx, &self.group, self.uid.as_ref(), keys);
        let (newest, older) = match tasks.split_last() {
            Some((newest, older)) => (Some(newest), older),
            None => (None, &[][..]),
        };
        // There is one task at a time; an older one is left from what was forgotten.
        for task in older.iter().filter(|task| !has_ended(task)) {
            self.stop(ctx, task).await?;
        }
        let control_plane = self.control_plane(ctx);
        let role = if self.group.spec.control_plane {
            OwnerRole::ControlPlane
        } else {
            OwnerRole::Workers(control_plane.as_ref())
        };
        let seen = self.seen(ctx, keys, newest.map(AsRef::as_ref), role);
        let decided = annotation::owner(&seen);
        if !decided.changes.is_empty() {
            return self.show(ctx, &decided).await;
        }
        if let Some((event, seconds)) = &decided.repeated {
            let turn = ctx.clock.now().as_second() / i64::try_from(*seconds).unwrap_or(i64::MAX);
            let now = turn.to_string();
            ctx.recorder.announce(&announced(self.object(ctx), event, &now)).await;
            return Ok(Action::RequeueAfter(Duration::from_secs(*seconds)));
        }
        match decided.request {
            OwnerRequest::None => Ok(Action::Done),
            OwnerRequest::Stop => {
                if let Some(task) = newest {
                    self.stop(ctx, task).await?;
                }
                Ok(Action::Done)
            }
            // Its first Machine wakes it.
            OwnerRequest::Ask { .. } if !self.has_machines_to_upgrade(ctx) => Ok(Action::Done),
            OwnerRequest::Ask { wanted, machines } => {
                let shown = self.annotations.get(keys.shown).map_or(0, |name| ordinal_of(name));
                let known = newest.map_or(0, |task| ordinal_of(&task.name_any()));
                let ordinal = known.max(shown) + 1;
                let via = match self.via(ctx, &wanted).await {
                    Ok(via) => via,
                    Err(error) => Err(refused_by_api(error)?),
                };
                match via {
                    Ok(via) => {
                        let task = self.task(ctx, (keys, ordinal), (&wanted, machines), via);
                        self.create(ctx, &seen, &wanted, &task).await
                    }
                    Err(why) => self.refuse(ctx, &seen, &wanted, &why).await,
                }
            }
        }
    }

    /// The version that the control plane of the Cluster requests.
    fn control_plane(&self, ctx: &Context) -> Option<KubernetesVersion> {
        let cluster = ctx.stores.clusters.get(&self.group.cluster_key())?;
        let plane = LiveOwner::of(&ctx.stores, &control_plane_group(&cluster)?)?;
        plane.version().version().cloned()
    }

    fn seen<'a>(
        &'a self,
        ctx: &Context,
        keys: Keys,
        task: Option<&'a UpgradeTask>,
        role: OwnerRole<'a>,
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
            is_machine: self.is_machine,
            version: self.owner.version().version(),
            role,
            version_by: self.version_by(ctx),
            of_topology: self.owner.labels().contains_key(TOPOLOGY_OWNED),
            is_served_by_others: may_have_k8sd && may_be_served_by_others(ctx, keys),
        }
    }

    /// The Updater that brings the Machines to a version in place of their hosts.
    fn version_by(&self, ctx: &Context) -> Option<String> {
        let kind = &self.machines.first()?.spec.infrastructure_ref.kind;
        let updaters = updaters_of(ctx, &self.group, kind);
        let by = updaters.iter().find(|updater| match updater {
            Updater::Kubeadm | Updater::Configuration(_) => false,
            Updater::Added(_) => updater.brings_version(),
        })?;
        Some(by.name().to_owned())
    }

    /// Who works through the Machines. Where Cluster API calls Refit, it does so itself, and for all of them.
    async fn via(&self, ctx: &Context, wanted: &Wanted) -> anyhow::Result<Result<Via, Refused>> {
        match wanted {
            Wanted::Option(_) => Ok(Ok(Via::Machines)),
            Wanted::Version(_) | Wanted::Bundle { .. } => Ok(match hooks_reach::via(ctx, &self.group).await? {
                Ok(Via::Spec) if self.is_machine => Err(Refused {
                    reason: "HooksCalled",
                    message: "Cluster API works through the Machines of its owner itself: set the owner's version"
                        .to_owned(),
                    is_final: true,
                    is_to_be_replaced: false,
                }),
                via => via,
            }),
        }
    }

    /// A task. Its name follows from what is known, so that only one of several attempts creates it.
    fn task(
        &self,
        ctx: &Context,
        (keys, ordinal): (Keys, u64),
        (wanted, machines): (&Wanted, Option<Vec<String>>),
        via: Via,
    ) -> UpgradeTask {
        let hash = hash_json(&json!([keys.upgrade_to, self.id.kind, self.id.key.name, self.uid]));
        let mut spec = UpgradeTaskSpec {
            owner_ref: Some(self.group.spec.owner.clone()),
            machines,
            ..UpgradeTaskSpec::of(&self.group.spec.cluster_name, via)
        };
        let only = || self.is_machine.then(|| vec![self.id.key.name.clone()]);
        match wanted {
            Wanted::Option(option) => spec.option = Some(option.clone()),
            Wanted::Version(version) => {
                spec.version = Some(version.clone());
                spec.machines = only();
            }
            Wanted::Bundle { location, version } => {
                // A bundle is for one version.
                spec.version = version.as_ref().or(self.owner.version().version()).cloned();
                spec.bundle = Some(location.clone());
                spec.machines = only();
            }
        }
        let mut task = UpgradeTask::new(&format!("annotated-{}-{ordinal}", &hash[..16]), spec);
        task.metadata.namespace = Some(self.group.key.namespace.clone());
        task.metadata.annotations = Some(BTreeMap::from([
            (keys::REQUESTED_BY.to_owned(), keys.upgrade_to.to_owned()),
            (keys::REQUESTED.to_owned(), wanted.to_string()),
        ]));
        let object = self.object(ctx);
        task.metadata.owner_references = Some(vec![OwnerReference {
            api_version: object.api_version.unwrap_or_default(),
            kind: self.id.kind.clone(),
            name: self.id.key.name.clone(),
            uid: self.uid.clone().unwrap_or_default(),
            controller: None,
            block_owner_deletion: Some(false),
        }]);
        task
    }

    /// The object that has the annotations.
    fn object(&self, ctx: &Context) -> ObjectReference {
        match self.machines.first().filter(|_| self.is_machine) {
            Some(machine) => reference(machine.as_ref()),
            None => owner_object(&ctx.stores, &self.group),
        }
    }

    async fn create(
        &self,
        ctx: &Context,
        seen: &OwnerSeen<'_>,
        wanted: &Wanted,
        task: &UpgradeTask,
    ) -> anyhow::Result<Action> {
        match self.tasks_api(ctx).create(&PostParams::default(), task).await {
            Ok(made) => {
                tracing::info!(object = %self.id.key, task = made.name_any(), "requested UpgradeTask");
                ctx.stores.upgrade_tasks.insert(made);
                Ok(Action::Done)
            }
            // The cache is about to show it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Ok(Action::RequeueAfter(AFTER_CONFLICT))
            }
            Err(error) => self.refuse(ctx, seen, wanted, &refused_by_api(error.into())?).await,
        }
    }

    /// Shows why no task is created; tries again later.
    async fn refuse(
        &self,
        ctx: &Context,
        seen: &OwnerSeen<'_>,
        wanted: &Wanted,
        why: &Refused,
    ) -> anyhow::Result<Action> {
        let decided = seen.not_permitted(wanted, &why.message);
        if decided.changes.is_empty() {
            return Ok(Action::RequeueAfter(AFTER_REFUSAL));
        }
        self.show(ctx, &decided).await
    }

    async fn stop(&self, ctx: &Context, task: &UpgradeTask) -> anyhow::Result<()> {
        if task.spec.stage == Stage::Abort {
            return Ok(());
        }
        let body = json!({
            "metadata": {"annotations": {keys::GOAL_CHANGED: ""}}, "spec": {"stage": Stage::Abort},
        });
        match apply::merge(&self.tasks_api(ctx), &task.name_any(), &body).await {
            Ok(written) => ctx.stores.upgrade_tasks.insert(written),
            Err(error) if apply::is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn tasks_api(&self, ctx: &Context) -> Api<UpgradeTask> {
        Api::namespaced(ctx.client.clone(), &self.id.key.namespace)
    }

    /// Writes the annotations, after the events that announce it. A request that was made meanwhile is not overwritten.
    async fn show(&self, ctx: &Context, decided: &OwnerAnnounced) -> anyhow::Result<Action> {
        let shown = decided.changes.values().flatten().cloned().collect::<Vec<_>>().join(" ");
        for event in &decided.events {
            ctx.recorder.announce(&announced(self.object(ctx), event, &shown)).await;
        }
        let body = json!({ "metadata": {
            "annotations": decided.changes,
            "resourceVersion": self.resource_version,
        }});
        let api = self.api(ctx).await?;
        let written: kube::Result<DynamicObject> =
            apply::merge(&api, &self.id.key.name, &body).await;
        match written {
            // The next look must not rest on it as it was.
            Ok(_) => self.read(ctx).await?,
            Err(error) if apply::is_conflict(&error) => self.read(ctx).await?,
            Err(error) if apply::is_not_found(&error) => return Ok(Action::Done),
            Err(error) => return Err(error.into()),
        }
        Ok(Action::RequeueAfter(AFTER_CONFLICT))
    }

    /// The API of the object that has the annotations. Kinds that are watched are written in the version that is read.
    async fn api(&self, ctx: &Context) -> kube::Result<Api<DynamicObject>> {
        let resource = if self.is_machine {
            ApiResource::erase::<Machine>(&())
        } else {
            match &self.owner {
                LiveOwner::ControlPlane(_) => ApiResource::erase::<KubeadmControlPlane>(&()),
                LiveOwner::Deployment(_) => ApiResource::erase::<MachineDeployment>(&()),
                LiveOwner::Set(_) => ApiResource::erase::<MachineSet>(&()),
                LiveOwner::Foreign(_) => {
                    return ctx.foreign.api(&ctx.client, &self.id.object()).await;
                }
            }
        };
        Ok(Api::namespaced_with(ctx.client.clone(), &self.id.key.namespace, &resource))
    }

    async fn read(&self, ctx: &Context) -> Result<(), ReadError> {
        if self.is_machine {
            read_object(ctx, &ctx.stores.machines, &self.id.key).await
        } else {
            LiveOwner::read(ctx, &self.group).await
        }
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

/// The tasks that annotations of a prefix have requested for the object of this uid, the newest last.
fn tasks_of(
    ctx: &Context,
    group: &Group,
    uid: Option<&String>,
    keys: Keys,
) -> Vec<Arc<UpgradeTask>> {
    let mut tasks = ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &group.key);
    tasks.retain(|task| {
        let mut owners = task.owner_references().iter();
        is_requested_by(task.as_ref(), keys.upgrade_to)
            && owners.any(|owner| Some(&owner.uid) == uid)
    });
    tasks.sort_by_key(|task| ordinal_of(&task.name_any()));
    tasks
}

/// Whether a task that annotations of a Machine have requested has not ended, or its end is not shown.
pub(super) fn has_work_left(ctx: &Context, machine: &Machine, keys: Keys) -> bool {
    let Some(group) = group_of(&ctx.stores, machine) else { return false };
    let shown = machine.annotations().get(keys.shown);
    let is_left = |task: &Arc<UpgradeTask>| !has_ended(task) || Some(&task.name_any()) != shown;
    tasks_of(ctx, &group, machine.metadata.uid.as_ref(), keys).last().is_some_and(is_left)
}

/// The number at the end of a task's name.
fn ordinal_of(name: &str) -> u64 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
