//! The controller of ReplacementHolds: one per namespace that opted in, for the admission policy that refuses what would
//! replace Machines.
//!
//! What allows Cluster API less rests on the caches. What allows it more is decided on the objects as they are now.

mod finalizer;
mod only_machine;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::{Api, ResourceExt as _, api::PostParams};
use refit_cluster_api::kinds::{Cluster, Machine, MachineSet};
use refit_core::{
    change::{Policy, PolicyDefaults, policy},
    hold::{Held, OwnerSeen, allows_more, both_allow, may_be_outdated, refused},
};
use refit_kinds::{
    keys,
    refit::{
        HeldKind, HeldOwner, Owner, REPLACEMENT_HOLD, ReplacementHold, ReplacementHoldSpec,
        update_group_name,
    },
};
use refit_runtime::{ObjectKey, apply, queue::Action};
use serde_json::json;

use crate::{
    Settings,
    context::Context,
    groups::{Group, control_plane_group, machines_of},
    indexes::{DEPLOYMENTS_BY_CLUSTER, SETS_BY_GROUP},
    metrics::measured,
    node_update::live::{list_machines, read_object},
    owner::{LiveOwner, OwnerId},
};

pub(crate) use self::only_machine::wake as wake_only_machine;

/// How many owners are worked on at once. Those of a namespace share one object.
const WORKERS: usize = 4;
/// How long changes of a ReplacementHold are collected before it is looked at: most are the controller's own.
const COLLECT: Duration = Duration::from_secs(1);
/// Requeue delay after a write conflict.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HoldKey {
    /// All owners of a namespace.
    Namespace(String),
    /// One owner.
    Owner(HeldKind, ObjectKey),
}

impl HoldKey {
    fn namespace(&self) -> &str {
        match self {
            Self::Namespace(name) => name,
            Self::Owner(_, key) => &key.namespace,
        }
    }
}

/// The last writes of ReplacementHolds: each would have all owners of its namespace looked at once more.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnHolds(Arc<Mutex<BTreeMap<ObjectKey, String>>>);

impl OwnHolds {
    fn note(&self, written: &ReplacementHold) {
        let version = written.resource_version().unwrap_or_default();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.insert(ObjectKey::of(written), version);
    }

    fn is_last(&self, seen: &ReplacementHold) -> bool {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(&ObjectKey::of(seen)) == seen.metadata.resource_version.as_ref()
    }
}

/// Reconciles ReplacementHolds until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    for namespace in ctx.stores.namespaces.list() {
        wake(&ctx, HoldKey::Namespace(namespace.name_any()));
    }
    let reconcile = |key| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "replacement-hold", Box::pin(reconcile(&ctx, &key))).await }
    };
    let holds = ctx.queues.replacement_holds.work("replacement-hold", WORKERS, reconcile);
    futures::join!(holds, only_machine::run(&ctx));
    Ok(())
}

/// Wakes all owners of a namespace.
pub(crate) fn wake_namespace(ctx: &Context, namespace: &str) {
    wake(ctx, HoldKey::Namespace(namespace.to_owned()));
    only_machine::wake_namespace(ctx, namespace);
}

/// Looks at a ReplacementHold that has changed.
pub(crate) fn hold_changed(ctx: &Context, hold: &ReplacementHold) {
    let namespace = hold.namespace().unwrap_or_default();
    if concerns(ctx, &namespace) && !ctx.own_holds.is_last(hold) {
        ctx.queues.replacement_holds.add_after(HoldKey::Namespace(namespace), COLLECT);
    }
}

/// Looks at a ReplacementHold that is being deleted: it waits until its namespace has no Machines.
pub(crate) fn machine_changed(ctx: &Context, machine: &Machine) {
    let namespace = machine.namespace().unwrap_or_default();
    if known_hold(ctx, &namespace).is_some_and(|hold| hold.metadata.deletion_timestamp.is_some()) {
        ctx.queues.replacement_holds.add_after(HoldKey::Namespace(namespace), COLLECT);
    }
}

/// Wakes an owner, if its Machines may be held.
pub(crate) fn wake_owner(ctx: &Context, owner: &OwnerId) {
    let kind = match Owner::of_kind(&owner.kind) {
        Some(Owner::ControlPlane) => {
            only_machine::wake(ctx, &owner.key);
            HeldKind::KubeadmControlPlane
        }
        Some(Owner::Deployment) => HeldKind::MachineDeployment,
        Some(Owner::Set) | None => return,
    };
    wake(ctx, HoldKey::Owner(kind, owner.key.clone()));
}

/// Wakes the owners of a Cluster.
pub(crate) fn wake_cluster(ctx: &Context, cluster: &Cluster) {
    if let Some(plane) = control_plane_group(cluster) {
        wake_owner(ctx, &OwnerId::of_group(&plane));
    }
    let key = ObjectKey::of(cluster);
    for deployment in ctx.stores.machine_deployments.listed(&DEPLOYMENTS_BY_CLUSTER, &key) {
        wake_owner(ctx, &OwnerId::of(Owner::Deployment, deployment.as_ref()));
    }
}

/// Wakes the owner of a group.
pub(crate) fn wake_group(ctx: &Context, group: &Group) {
    wake_owner(ctx, &OwnerId::of_group(group));
}

fn wake(ctx: &Context, key: HoldKey) {
    if concerns(ctx, key.namespace()) {
        ctx.queues.replacement_holds.add(key);
    }
}

/// Whether there is, or has to be, a ReplacementHold in a namespace.
fn concerns(ctx: &Context, namespace: &str) -> bool {
    is_maintained(ctx, namespace) || known_hold(ctx, namespace).is_some()
}

/// Whether the ReplacementHold of a namespace is kept up to date: also before the API server asks for it, and also where
/// Refit does nothing else.
fn is_maintained(ctx: &Context, namespace: &str) -> bool {
    ctx.opted_in(namespace) || ctx.holds_replacements(namespace)
}

fn known_hold(ctx: &Context, namespace: &str) -> Option<Arc<ReplacementHold>> {
    ctx.stores.replacement_holds.get(&ObjectKey::new(namespace, REPLACEMENT_HOLD))
}

pub(crate) async fn reconcile(ctx: &Context, key: &HoldKey) -> anyhow::Result<Action> {
    let hold = known_hold(ctx, key.namespace());
    if let (HoldKey::Namespace(_), Some(hold)) = (key, &hold)
        && let Some(again) = finalizer::settle(ctx, hold).await?
    {
        return Ok(again);
    }
    if !is_maintained(ctx, key.namespace()) {
        return Ok(Action::Done);
    }
    match (key, hold) {
        (HoldKey::Namespace(namespace), hold) => all(ctx, namespace, hold.as_deref()).await,
        (HoldKey::Owner(kind, owner), Some(hold)) => one(ctx, *kind, owner, &hold).await,
        (HoldKey::Owner(_, owner), None) => {
            wake(ctx, HoldKey::Namespace(owner.namespace.clone()));
            Ok(Action::Done)
        }
    }
}

/// Looks at all owners of a namespace. Those that may allow more are looked at one by one.
async fn all(
    ctx: &Context,
    namespace: &str,
    hold: Option<&ReplacementHold>,
) -> anyhow::Result<Action> {
    if hold.is_none() && finalizer::is_leaving(ctx, namespace) {
        return Ok(Action::Done);
    }
    let Known { owners, may_allow_more, again } = by_caches(ctx, namespace, hold);
    let action = write(ctx, namespace, hold, owners, again).await?;
    for (kind, name) in may_allow_more {
        wake(ctx, HoldKey::Owner(kind, ObjectKey::new(namespace, name)));
    }
    Ok(action)
}

/// What the caches know of the owners of a namespace.
struct Known {
    /// The entries, none of which allows more than before.
    owners: Vec<HeldOwner>,
    /// The owners whose next entry may allow more.
    may_allow_more: BTreeSet<(HeldKind, String)>,
    /// When an entry may be another one although nothing changes.
    again: Option<Timestamp>,
}

/// Looks at all owners of a namespace. Without a ReplacementHold, nothing is allowed yet.
fn by_caches(ctx: &Context, namespace: &str, hold: Option<&ReplacementHold>) -> Known {
    let stores = &ctx.stores;
    let planes = stores.control_planes.list_in(namespace).into_iter();
    let planes = planes.map(|plane| (HeldKind::KubeadmControlPlane, plane.name_any()));
    let deployments = stores.machine_deployments.list_in(namespace).into_iter();
    let deployments =
        deployments.map(|deployment| (HeldKind::MachineDeployment, deployment.name_any()));
    let known = hold.iter().flat_map(|hold| &hold.spec.owners).cloned();
    let mut owners: BTreeMap<_, _> =
        known.map(|entry| ((entry.kind, entry.name.clone()), entry)).collect();
    // An owner that is not in the caches may have been deleted.
    let mut may_allow_more: BTreeSet<_> = owners.keys().cloned().collect();
    let mut again = None;
    for (kind, name) in planes.chain(deployments) {
        let held = held(ctx, kind, &ObjectKey::new(namespace, &name));
        again = again.into_iter().chain(held.again).min();
        let owner = (kind, name);
        if hold.is_none() {
            owners.insert(owner.clone(), refused(kind, &owner.1));
        }
        let known = owners.get(&owner);
        if let Some(known) = known.filter(|known| allows_more(held.entry.as_ref(), Some(*known))) {
            let both = both_allow(known, held.entry.as_ref());
            owners.insert(owner.clone(), both);
            may_allow_more.insert(owner);
        } else {
            may_allow_more.remove(&owner);
            owners.extend(held.entry.map(|entry| (owner, entry)));
        }
    }
    Known { owners: owners.into_values().collect(), may_allow_more, again }
}

/// Looks at one owner.
async fn one(
    ctx: &Context,
    kind: HeldKind,
    key: &ObjectKey,
    hold: &ReplacementHold,
) -> anyhow::Result<Action> {
    let known = find(&hold.spec.owners, kind, &key.name);
    let mut next = held(ctx, kind, key);
    if allows_more(next.entry.as_ref(), known) {
        let narrowed = known.map(|known| both_allow(known, next.entry.as_ref()));
        if narrowed.as_ref() == known {
            read(ctx, kind, key).await?;
            next = held(ctx, kind, key);
        } else {
            // What it allows less does not wait for the reads.
            next.entry = narrowed;
            wake(ctx, HoldKey::Owner(kind, key.clone()));
        }
    }
    if next.entry.as_ref() == known {
        return Ok(self::next(ctx, next.again));
    }
    let is_other = |entry: &&HeldOwner| entry.kind != kind || entry.name != key.name;
    let mut owners: Vec<HeldOwner> = hold.spec.owners.iter().filter(is_other).cloned().collect();
    let place = owners.partition_point(|entry| (entry.kind, &entry.name) < (kind, &key.name));
    if let Some(entry) = next.entry {
        owners.insert(place, entry);
    }
    write(ctx, &key.namespace, Some(hold), owners, next.again).await
}

fn find<'a>(owners: &'a [HeldOwner], kind: HeldKind, name: &str) -> Option<&'a HeldOwner> {
    owners.iter().find(|entry| entry.kind == kind && entry.name == name)
}

/// What Cluster API may do to the Machines of an owner, by the caches. Only an owner that does not exist is not held.
fn held(ctx: &Context, kind: HeldKind, key: &ObjectKey) -> Held {
    let held = judged(ctx, kind, key, |seen| seen.held(ctx.clock.now()));
    held.unwrap_or(Held { entry: None, again: None })
}

/// Name of the only Machine of a MachineDeployment, if it is outdated and Cluster API cannot replace it, because its surge
/// machine is refused.
pub(crate) fn waits_without_surge(ctx: &Context, group: &Group) -> Option<String> {
    match group.spec.owner.owner() {
        Owner::Deployment => {}
        Owner::ControlPlane | Owner::Set => return None,
    }
    let owner = LiveOwner::of(&ctx.stores, group)?;
    held_only(ctx, group, |machine| {
        may_be_outdated(owner.version(), machine).then(|| machine.name_any())
    })
    .flatten()
}

/// Whether the API server refuses what would replace the only Machine of a group.
pub(crate) fn holds_only_machine(ctx: &Context, group: &Group) -> bool {
    held_only(ctx, group, |_| ()).is_some()
}

fn held_only<T>(ctx: &Context, group: &Group, judge: impl FnOnce(&Machine) -> T) -> Option<T> {
    let kind = match group.spec.owner.owner() {
        Owner::ControlPlane => HeldKind::KubeadmControlPlane,
        Owner::Deployment => HeldKind::MachineDeployment,
        Owner::Set => return None,
    };
    if !ctx.holds_replacements(&group.key.namespace) {
        return None;
    }
    let found = |seen: OwnerSeen<'_>| seen.held_only(ctx.clock.now()).map(judge);
    judged(ctx, kind, &group.owner_key(), found)?
}

/// Judges an owner by the caches. One whose Cluster is unknown is judged by its own annotations.
fn judged<T>(
    ctx: &Context,
    kind: HeldKind,
    key: &ObjectKey,
    judge: impl FnOnce(OwnerSeen<'_>) -> T,
) -> Option<T> {
    let stores = &ctx.stores;
    let group = group_key(kind, key);
    let machines = machines_of(stores, &group);
    let machines: Vec<&Machine> = machines.iter().map(AsRef::as_ref).collect();
    let sets = stores.machine_sets.listed(&SETS_BY_GROUP, &group);
    let sets: Vec<&MachineSet> = sets.iter().map(AsRef::as_ref).collect();
    let cluster = cluster_of(ctx, kind, key).and_then(|key| stores.clusters.get(&key));
    let cluster = cluster.as_deref();
    let seen = match kind {
        HeldKind::KubeadmControlPlane => stores.control_planes.get(key).map(|plane| {
            let policy = policy_of(ctx, plane.annotations(), cluster);
            OwnerSeen::control_plane(&plane, policy, machines)
        }),
        HeldKind::MachineDeployment => stores.machine_deployments.get(key).map(|deployment| {
            let policy = policy_of(ctx, deployment.annotations(), cluster);
            OwnerSeen::deployment(&deployment, policy, machines, sets)
        }),
    };
    let mut seen = seen?;
    seen.is_deleting |= cluster.is_some_and(|one| one.metadata.deletion_timestamp.is_some());
    Some(judge(seen))
}

fn policy_of(ctx: &Context, owner: &BTreeMap<String, String>, cluster: Option<&Cluster>) -> Policy {
    let Settings { on_uncovered, host_lost_after, .. } = ctx.settings;
    let unknown = BTreeMap::new();
    let of_cluster = cluster.map_or(&unknown, |cluster| cluster.annotations());
    policy(owner, of_cluster, PolicyDefaults { on_uncovered, host_lost_after })
}

/// Brings an owner, its Cluster and its Machines in the caches up to the present.
async fn read(ctx: &Context, kind: HeldKind, key: &ObjectKey) -> anyhow::Result<()> {
    let stores = &ctx.stores;
    match kind {
        HeldKind::KubeadmControlPlane => read_object(ctx, &stores.control_planes, key).await?,
        HeldKind::MachineDeployment => read_object(ctx, &stores.machine_deployments, key).await?,
    }
    if let Some(cluster) = cluster_of(ctx, kind, key) {
        read_object(ctx, &stores.clusters, &cluster).await?;
        list_machines(ctx, &cluster).await?;
    }
    Ok(())
}

fn group_key(kind: HeldKind, owner: &ObjectKey) -> ObjectKey {
    ObjectKey::new(&owner.namespace, update_group_name(owner_kind(kind).kind(), &owner.name))
}

fn owner_kind(kind: HeldKind) -> Owner {
    match kind {
        HeldKind::KubeadmControlPlane => Owner::ControlPlane,
        HeldKind::MachineDeployment => Owner::Deployment,
    }
}

/// The Cluster of an owner that exists.
fn cluster_of(ctx: &Context, kind: HeldKind, key: &ObjectKey) -> Option<ObjectKey> {
    let stores = &ctx.stores;
    let name = match kind {
        HeldKind::KubeadmControlPlane => {
            let plane = stores.control_planes.get(key)?;
            // Cluster API goes by the reference.
            let mut references = plane.owner_references().iter();
            let reference = references.find(|one| one.kind == "Cluster").map(|one| &one.name);
            plane.labels().get(keys::CLUSTER_NAME).or(reference)?.clone()
        }
        HeldKind::MachineDeployment => {
            stores.machine_deployments.get(key)?.spec.cluster_name.clone()
        }
    };
    Some(ObjectKey::new(&key.namespace, name))
}

/// Writes a ReplacementHold, unless it has changed since it was read.
async fn write(
    ctx: &Context,
    namespace: &str,
    hold: Option<&ReplacementHold>,
    owners: Vec<HeldOwner>,
    again: Option<Timestamp>,
) -> anyhow::Result<Action> {
    let callers = ctx.settings.hold_callers.clone();
    let spec = ReplacementHoldSpec { callers, owners };
    let api: Api<ReplacementHold> = Api::namespaced(ctx.client.clone(), namespace);
    let written = match hold {
        Some(hold) if hold.spec == spec => return Ok(next(ctx, again)),
        Some(hold) => {
            let version = &hold.metadata.resource_version;
            let spec = json!({"callers": spec.callers, "owners": spec.owners});
            let body = json!({"metadata": {"resourceVersion": version}, "spec": spec});
            apply::merge(&api, REPLACEMENT_HOLD, &body).await
        }
        None => {
            let mut object = ReplacementHold::new(REPLACEMENT_HOLD, spec);
            object.metadata.namespace = Some(namespace.to_owned());
            object.metadata.finalizers = finalizer::of_new(ctx, namespace);
            api.create(&PostParams::default(), &object).await
        }
    };
    match written {
        Ok(written) => {
            ctx.own_holds.note(&written);
            ctx.stores.replacement_holds.insert(written);
        }
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => {
            return Ok(Action::RequeueAfter(AFTER_CONFLICT));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(next(ctx, again))
}

fn next(ctx: &Context, again: Option<Timestamp>) -> Action {
    let left = again.map(|at| Duration::try_from(at.duration_since(ctx.clock.now())));
    left.map_or(Action::Done, |left| Action::RequeueAfter(left.unwrap_or_default()))
}
