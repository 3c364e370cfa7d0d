//! Reads everything that a decision about one NodeUpdate needs.

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_core::{
    change::updaters::accepted,
    group::{Other, Pace, Queued, RolloutKey, failure_of, holds, waits_for_turn},
    node::{
        ConfigurationValues, ControlPlaneMember, Decision, Group, GroupState, Leaving, MachineView,
        NodeView, OtherMachines, Others, Replacer, Seen, Snapshot, StaticPod, Workload, decide,
        from_bundle, has_brought_version, is_available, member_problem, newest_upgrade,
        of_rollouts, speaker,
    },
    report::Refusal,
};
use refit_kinds::{
    conditions, keys,
    refit::{
        MachineUid, NodeName, NodeUpdate, NodeUpdateStatus, Origin, Owner, PlanSettings, Role,
        UpdateGroup, UpdatePart, UpdaterAction,
    },
};
use refit_runtime::ObjectKey;

use crate::{
    api_error::{ReadError, is_silence},
    cluster_view::ClusterView,
    context::{Context, Stores},
    groups::{
        self, control_plane_of, group_of, machines_of, node_updates_of, node_updates_of_machine,
    },
    host_plan::{cluster_key, node_name, plan_key},
    owner::{LiveOwner, limits_of, pace_of},
    policy::{live_drain_policy, live_host_settings, live_policy},
    workload_watch::can_be_watched,
};

/// Everything that was read for one reconcile: the snapshot for the decision, and handles for the
/// write.
pub(super) struct Look {
    pub(super) snapshot: Snapshot,
    /// The UpdateGroup, as it was read.
    pub(super) group: Option<Arc<UpdateGroup>>,
    pub(super) cluster: Option<WorkloadCluster>,
    /// The request in progress, as a refusal names it.
    pub(super) request: String,
}

/// A workload cluster that is watched.
pub(crate) struct WorkloadCluster {
    pub(crate) key: ObjectKey,
    pub(crate) view: Arc<ClusterView>,
}

impl WorkloadCluster {
    /// Why the data from its watches must not be used; `None` if it may.
    pub(crate) fn unseen(&self, ctx: &Context) -> Option<Workload> {
        let Self { key, view } = self;
        let cluster = key.name.clone();
        if let Some(what) = view.too_large() {
            Some(Workload::TooLarge { cluster, what: what.to_string() })
        } else if view.is_unreachable() || view.is_overdue(&ctx.clock) {
            Some(Workload::Unreachable { cluster })
        } else {
            (!view.synced()).then_some(Workload::NotSynced)
        }
    }
}

impl Look {
    pub(super) fn read(ctx: &Context, update: Arc<NodeUpdate>) -> Self {
        let stores = &ctx.stores;
        let machine_key = groups::machine_key(&update);
        let machine = stores.machines.get(&machine_key);
        let name = update.name_any();
        let mut siblings = node_updates_of_machine(stores, &machine_key);
        siblings.retain(|other| other.name_any() != name);
        let known = machine.as_deref();
        let owner = known.and_then(|machine| group_of(stores, machine));
        let cluster = known.and_then(|machine| {
            let key = cluster_key(machine);
            Some(WorkloadCluster { view: ctx.workload_index.view(&key)?, key })
        });
        let seen = known
            .zip(cluster.as_ref())
            .map(|(machine, cluster)| seen(ctx, &update, machine, cluster));
        let object = owner.as_ref().and_then(|group| stores.update_groups.get(&group.key));
        let group = match (&machine, &owner, &object) {
            (Some(machine), Some(owner), Some(object)) => {
                GroupState::Present(group(ctx, &update, machine, owner, object, seen.as_ref()))
            }
            (Some(_), Some(_), None) => GroupState::Missing,
            _ => GroupState::None,
        };
        // Nothing starts without a group.
        let found = known.zip(owner.as_ref());
        let (settings, settings_refused) =
            match found.map(|(machine, group)| live_host_settings(ctx, machine, group)) {
                Some(Ok(settings)) => (from_bundle(settings, update.spec.bundle.as_deref()), None),
                Some(Err(refusal)) => (PlanSettings::default(), Some(refusal)),
                None => (PlanSettings::default(), None),
            };
        let policy = owner.as_ref().and_then(|owner| live_policy(ctx, owner).ok());
        let host_lost_after =
            policy.as_ref().map_or(ctx.settings.host_lost_after, |policy| policy.host_lost_after);
        #[cfg(feature = "sabotage")]
        let host_lost_after = ctx.sabotage.host_lost_after(host_lost_after);
        let snapshot = Snapshot {
            paused: known
                .and_then(|machine| paused(stores, machine))
                .or_else(|| paused_group(object.as_deref()?, &group, &update)),
            replacer: owner
                .as_ref()
                .and_then(|group| replacer(group, &LiveOwner::of(stores, group)?)),
            unguarded: policy.is_some_and(|policy| policy.unguarded),
            drain: known.map(|machine| live_drain_policy(ctx, machine)).unwrap_or_default(),
            settings,
            settings_refused,
            configuration: ConfigurationValues::Unread,
            updater_refused: updater_refused(stores, &update),
            reboot: ctx.settings.reboot,
            owner_version: owner
                .as_ref()
                .and_then(|owner| LiveOwner::of(stores, owner))
                .map(|owner| owner.version().clone())
                .unwrap_or_default(),
            group,
            workload: match seen {
                Some(seen) => Workload::Seen(seen),
                // Without a Machine there is no cluster to read, and nothing to wait for.
                None => known.map_or_else(
                    || Workload::Unreachable { cluster: String::new() },
                    |machine| unwatched(stores, machine),
                ),
            },
            report_stale_after: ctx.settings.stale_after(),
            host_lost_after,
            refused: None,
            providers: ctx.providers.of_machine(&update, &siblings),
            machine,
            siblings,
            update,
        };
        Self { snapshot, group: object, cluster, request: String::new() }
    }

    /// Reads the caches again, which know more by now; returns whether the NodeUpdate still exists.
    /// What was read apart from the caches stays.
    pub(super) fn read_again(&mut self, ctx: &Context, key: &ObjectKey) -> bool {
        let Some(update) = ctx.stores.node_updates.get(key) else {
            return false;
        };
        let drain = self.seen_mut().and_then(|seen| seen.drain.take());
        let ahead = self.seen_mut().and_then(|seen| seen.ahead.take());
        let gates = self.group_mut().and_then(|group| group.gates.take());
        let refused = self.snapshot.refused.take();
        let configuration = std::mem::take(&mut self.snapshot.configuration);
        let request = std::mem::take(&mut self.request);
        *self = Self { request, ..Self::read(ctx, update) };
        self.snapshot.refused = refused;
        self.snapshot.configuration = configuration;
        if let Some(group) = self.group_mut().filter(|_| gates.is_some()) {
            group.gates = gates;
        }
        if let Some(seen) = self.seen_mut() {
            (seen.drain, seen.ahead) = (drain, ahead);
        }
        true
    }

    /// Checks the health gates of the group, unless they are known to be closed.
    pub(super) async fn check_gates_unless_known(&mut self, ctx: &Context) {
        if self.group_mut().is_some_and(|group| group.gates.is_none()) {
            self.check_gates(ctx).await;
        }
    }

    /// Checks the health gates of the group; returns whether one is closed.
    pub(super) async fn check_gates(&mut self, ctx: &Context) -> bool {
        let (Some(cluster), Some(object)) = (&self.cluster, &self.group) else { return false };
        let key = ObjectKey::of(object.as_ref());
        let read = Box::pin(ctx.gates.check(ctx, &key, cluster)).await;
        let is_closed = !read.closed.is_empty();
        if let Some(group) = self.group_mut() {
            group.gates = Some(read);
        }
        is_closed
    }

    fn group_mut(&mut self) -> Option<&mut Group> {
        match &mut self.snapshot.group {
            GroupState::Present(group) => Some(group),
            GroupState::None | GroupState::Missing => None,
        }
    }

    /// Notes a failed read for the next decision. An error that a retry may resolve is returned.
    pub(super) fn note(&mut self, failure: &ReadError) -> Result<(), Arc<kube::Error>> {
        if let Some(refusal) = failure.refusal() {
            self.snapshot.refused = Some(refusal);
            return Ok(());
        }
        match failure {
            ReadError::Object(_) => Ok(()),
            ReadError::Workload(request) if is_silence(&request.error) => {
                if let Some(cluster) = &self.cluster {
                    cluster.view.mark_unreachable();
                }
                Ok(())
            }
            ReadError::Workload(request) | ReadError::Management(request) => {
                Err(request.error.clone())
            }
        }
    }

    /// Decides from the snapshot and the current state of its cluster.
    pub(super) fn decide(&mut self, ctx: &Context) -> Decision {
        if let Some(unseen) = self.cluster.as_ref().and_then(|cluster| cluster.unseen(ctx)) {
            self.snapshot.workload = unseen;
        }
        decide(&self.snapshot, ctx.clock.now())
    }

    /// Whether the cache lacks the Machine of an unfinished NodeUpdate: a stale cache must not end
    /// an update permanently.
    pub(super) fn machine_is_missing(&self) -> bool {
        !self.snapshot.update.phase().is_final() && self.snapshot.own_machine().is_none()
    }

    /// The data from the workload cluster's watches.
    pub(super) fn seen(&self) -> Option<&Seen> {
        match &self.snapshot.workload {
            Workload::Seen(seen) => Some(seen),
            Workload::NotSynced | Workload::Unreachable { .. } | Workload::TooLarge { .. } => None,
        }
    }

    /// The data from the workload cluster's watches, for adding what was read later.
    pub(super) fn seen_mut(&mut self) -> Option<&mut Seen> {
        match &mut self.snapshot.workload {
            Workload::Seen(seen) => Some(seen),
            Workload::NotSynced | Workload::Unreachable { .. } | Workload::TooLarge { .. } => None,
        }
    }
}

/// The state of a cluster without a view: there will be one, unless its Cluster lacks something.
fn unwatched(stores: &Stores, machine: &Machine) -> Workload {
    let key = cluster_key(machine);
    if can_be_watched(stores, &key) {
        Workload::NotSynced
    } else {
        Workload::Unreachable { cluster: key.name }
    }
}

/// Whether an update of a Machine to a version has begun and has not ended.
fn is_on_its_way(stores: &Stores, machine: &Machine) -> bool {
    let updates = node_updates_of_machine(stores, &ObjectKey::of(machine));
    let uid = MachineUid::of(&machine.metadata);
    let newest = newest_upgrade(updates.iter().map(AsRef::as_ref), &uid);
    let phase = newest.filter(|update| update.spec.ends_at_version()).map(NodeUpdate::phase);
    phase.is_some_and(|phase| !phase.is_final() && !phase.is_undisturbed())
}

fn seen(ctx: &Context, update: &NodeUpdate, machine: &Machine, cluster: &WorkloadCluster) -> Seen {
    let WorkloadCluster { key, view } = cluster;
    let node_name = update_node_name(update, machine);
    let control_plane = control_plane_of(&ctx.stores, key)
        .iter()
        .map(|other| ControlPlaneMember {
            machine: other.name_any(),
            node: self::node_name(other),
            deleting: other.metadata.deletion_timestamp.is_some(),
            updating: is_on_its_way(&ctx.stores, other),
        })
        .collect();
    let now = ctx.clock.now();
    let (host_plan, reported_at) = view.host_plan(plan_key(ctx, machine, &node_name), now);
    Seen {
        complete_since: view.complete_since().unwrap_or(now),
        host_plan,
        reported_at,
        node_name,
        nodes: view.nodes.list().iter().map(|node| node.view.clone()).collect(),
        static_pods: view.static_pods.list().iter().filter_map(|pod| pod.view.clone()).collect(),
        control_plane,
        api_server: view.api_version(),
        drain: None,
        ahead: None,
        evictions: None,
    }
}

/// The name of the Node that a NodeUpdate works on; empty before it has one.
pub(crate) fn update_node_name(update: &NodeUpdate, machine: &Machine) -> NodeName {
    let known = update.status.as_ref().map(|status| status.node_name.clone());
    let known = known.filter(|name| !name.is_empty());
    known.or_else(|| node_name(machine)).unwrap_or_default()
}

fn group(
    ctx: &Context,
    update: &Arc<NodeUpdate>,
    machine: &Arc<Machine>,
    owner: &groups::Group,
    object: &UpdateGroup,
    seen: Option<&Seen>,
) -> Group {
    let stores = &ctx.stores;
    let status = object.status.clone().unwrap_or_default();
    let limits = limits_of(stores, owner, || machines_of(stores, &owner.key).len());
    // Cluster API has no part in a request by annotation, nor in changed HostSettings.
    let limits = match update.spec.origin {
        Origin::Annotation | Origin::HostSettings => limits.without_surge(),
        Origin::Hook | Origin::Task => limits,
    };
    let limits = limits.paced(&object.spec.pacing);
    let pace = pace_of(stores, owner, &object.spec.pacing);
    #[cfg(feature = "sabotage")]
    let (status, limits) = ctx.sabotage.own_slot(&update.spec.machine_ref.uid, status, limits);
    let nodes = seen.map_or_else(Vec::new, |seen| seen.nodes.clone());
    let static_pods = seen.filter(|_| is_paused_control_plane(stores, owner));
    let static_pods = static_pods.map(|seen| seen.static_pods.clone());
    let (stores, key) = (stores.clone(), owner.key.clone());
    let (update, machine) = (update.clone(), machine.clone());
    let rolls_out = pace.clone();
    let read = move || {
        let seen = (&nodes[..], static_pods.as_deref());
        other_machines(&stores, &update, &machine, &key, seen, &rolls_out)
    };
    let gates = ctx.gates.known_closed(ctx, &owner.key);
    Group { status, limits, pace, gates, others: Others::read_on_use(read) }
}

/// Whether a group is a control plane of which Cluster API shows nothing new.
fn is_paused_control_plane(stores: &Stores, owner: &groups::Group) -> bool {
    owner.spec.control_plane
        && LiveOwner::of(stores, owner)
            .is_some_and(|owner| owner.annotations().contains_key(keys::PAUSED))
}

/// The other Machines of a group. The static pods are given for a control plane that is paused.
fn other_machines(
    stores: &Stores,
    update: &NodeUpdate,
    machine: &Machine,
    group: &ObjectKey,
    (nodes, static_pods): (&[Arc<NodeView>], Option<&[StaticPod]>),
    pace: &Pace,
) -> OtherMachines {
    let machines = machines_of(stores, group);
    let updates = node_updates_of(stores, &machines);
    let status = stores.update_groups.get(group).and_then(|group| group.status.clone());
    let status = status.unwrap_or_default();
    let mut all = OtherMachines {
        last_first_passed: last_first_passed(updates.iter().flatten(), update),
        ..OtherMachines::default()
    };
    let others = machines.iter().zip(&updates);
    for (other, updates) in others.filter(|(other, _)| other.metadata.name != machine.metadata.name)
    {
        let node = other.status.as_ref().and_then(|status| status.node_ref.as_ref());
        // They are in the order of their names.
        let found =
            node.and_then(|of| nodes.binary_search_by(|node| (*node.name).cmp(&of.name)).ok());
        let node = found.map(|found| nodes[found].as_ref());
        let machine_uid = MachineUid::of(&other.metadata);
        let newest = speaker(updates.iter().map(AsRef::as_ref), &machine_uid);
        let newest_phase = newest.map(NodeUpdate::phase);
        let counted = of_rollouts(updates.iter().map(AsRef::as_ref), &machine_uid);
        all.failures.extend(
            counted.into_iter().filter_map(|update| {
                Some((RolloutKey::of(&update.spec, pace)?, failure_of(update)?))
            }),
        );
        // One that has just claimed a slot may still show that it waits for it.
        let has_turns = |update: &&NodeUpdate| !update.spec.issues_certificates();
        if newest.filter(has_turns).is_some_and(waits_for_its_turn) && !holds(&status, &machine_uid)
        {
            let created = other.metadata.creation_timestamp.as_ref().map(|created| created.0);
            all.queue.push(Queued { machine: other.name_any(), created });
        }
        let serves = static_pods
            .map(|pods| node.is_some_and(|node| member_problem(nodes, pods, &node.name).is_none()));
        let available = is_available(&MachineView { machine: other, node, newest_phase, serves });
        all.machines.push(Other { machine_uid, available });
        all.run.push(node.map(|node| node.kubelet_version.clone()).unwrap_or_default());
        if is_drained_by_cluster_api(other)
            && let Some(node) = node_name(other)
        {
            all.leaving.push(Leaving { machine: other.name_any(), node });
        }
    }
    all
}

/// A paused group. A machine that has its slot has begun, and is finished.
fn paused_group(object: &UpdateGroup, group: &GroupState, update: &NodeUpdate) -> Option<String> {
    let GroupState::Present(Group { status, pace, .. }) = group else {
        return None;
    };
    let owner = &object.spec.owner;
    let has_begun = holds(status, &update.spec.machine_ref.uid);
    (pace.pacing.paused && !has_begun).then(|| {
        if object.spec.pacing.paused {
            format!("UpdateGroup {}", object.name_any())
        } else {
            format!("{} {}", owner.kind, owner.name)
        }
    })
}

fn waits_for_its_turn(update: &NodeUpdate) -> bool {
    let waits = |status: &NodeUpdateStatus| {
        let mut blockers = status.blocked_by.iter();
        status.phase.is_undisturbed() && blockers.any(|blocker| waits_for_turn(&blocker.reason))
    };
    update.status.as_ref().is_some_and(waits)
}

/// Whether Cluster API drains the Node of a Machine (`docs/facts/machine.md#conditions`).
fn is_drained_by_cluster_api(machine: &Machine) -> bool {
    let conditions = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let deleting = conditions::get(conditions, conditions::DELETING);
    machine.metadata.deletion_timestamp.is_some()
        && deleting.is_some_and(|deleting| deleting.reason == "DrainingNode")
}

/// The first Updater of an update that cannot be called.
fn updater_refused(stores: &Stores, update: &NodeUpdate) -> Option<Refusal> {
    let called = update
        .spec
        .updater_parts()
        .filter(|part| part.action == UpdaterAction::Update && part.host.is_none())
        .filter(|part| !part.is_of_k8sd());
    let wrong = |part: &UpdatePart| match stores.updaters.get(&ObjectKey::new("", &*part.updater)) {
        None => Some("it does not exist".to_owned()),
        Some(updater) => accepted(&updater).err().map(|why| why.to_string()).or_else(|| {
            let template = part.template.as_ref().map(|part| &part.template);
            let differs = template != updater.spec.template.as_ref();
            differs.then(|| {
                "its spec.template is not the one that this update was made with".to_owned()
            })
        }),
    };
    called
        .filter_map(|part| Some((&part.updater, wrong(part)?)))
        .map(|(updater, why)| Refusal::UpdaterUnusable { updater: updater.clone(), why })
        .next()
}

/// Whether the latest other NodeUpdate of these machines to the same version with the role FirstControlPlane has
/// brought its machine to the version.
fn last_first_passed<'a>(
    updates: impl Iterator<Item = &'a Arc<NodeUpdate>>,
    update: &NodeUpdate,
) -> Option<bool> {
    let goal = &update.spec.goal.kubernetes_version;
    let first = updates
        .filter(|other| other.metadata.name != update.metadata.name)
        .filter(|other| other.spec.goal.kubernetes_version == *goal)
        .filter(|other| {
            let role = other.status.as_ref().and_then(|status| status.role);
            role == Some(Role::FirstControlPlane)
        })
        .max_by_key(|other| {
            let created = other.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, other.name_any())
        })?;
    Some(has_brought_version(first))
}

/// The control plane that Cluster API rolls out: one that is not paused. When another provider replaces a Machine, its
/// contract does not state; it calls no hook, so nothing that it requests is under way.
fn replacer(group: &groups::Group, owner: &LiveOwner) -> Option<Replacer> {
    match owner {
        LiveOwner::ControlPlane(_) => {
            let is_paused = owner.annotations().contains_key(keys::PAUSED);
            (!is_paused).then(|| Replacer {
                object: format!("{} {}", Owner::ControlPlane.kind(), group.spec.owner.name),
                has_observed: owner.has_observed(),
            })
        }
        LiveOwner::Foreign(_) | LiveOwner::Deployment(_) | LiveOwner::Set(_) => None,
    }
}

/// What pauses a Machine: its Cluster, or an annotation of its own.
pub(crate) fn paused(stores: &Stores, machine: &Machine) -> Option<String> {
    let cluster = stores.clusters.get(&cluster_key(machine));
    if cluster.is_some_and(|cluster| cluster.spec.paused == Some(true)) {
        return Some(format!("Cluster {}", machine.spec.cluster_name));
    }
    let annotated = machine.annotations().contains_key(keys::PAUSED);
    annotated.then(|| format!("Machine {}", machine.name_any()))
}
