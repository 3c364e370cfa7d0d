//! What a task for a group is decided on.

mod sets;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::control_plane::ControlPlane,
    kinds::{Cluster, KubeadmControlPlane, Machine, MachineSet, update_in_progress},
    rollout::difference::Difference,
};
use refit_core::{
    group::{RolloutKey, exception_of, rollout_number},
    node::{newest_upgrade, speaker},
    task::{GroupSeen, Member, Obstacle, OwnerSeen, Paused, SpecState, specs::Specs},
};
use refit_kinds::{
    conditions, keys,
    refit::{
        MachineUid, NodeUpdate, Origin, Owner, Pacing, UpdateGroup, UpdateGroupSpec, UpgradeTask,
        Via, hash_json, update_group_name,
    },
    version::StatedVersion,
};
use refit_runtime::ObjectKey;
use serde_json::{Value, json};

use self::sets::current_set;
pub(super) use self::sets::{deployment_snapshot, set_snapshot};
use super::{cluster::is_extra, objects, obstacle};
use crate::{
    context::Context,
    groups::{Group, machines_of, node_updates_of},
    indexes::SETS_BY_GROUP,
    owner::{LiveOwner, limits_of, pace_of},
    replacement_hold::holds_only_machine,
};

pub(crate) use refit_kinds::keys::TOPOLOGY_OWNED;

/// A task, and the objects that it is decided on.
pub(super) struct Look {
    pub(super) task: Arc<UpgradeTask>,
    pub(super) group: Group,
    pub(super) owner: Option<LiveOwner>,
    pub(super) sets: Vec<Arc<MachineSet>>,
    /// Name of the MachineSet with the MachineDeployment's template.
    pub(super) current_set: Option<String>,
    machines: Vec<Arc<Machine>>,
    updates: Vec<Vec<Arc<NodeUpdate>>>,
    specs: BTreeMap<String, SpecState>,
    object: Option<Arc<UpdateGroup>>,
    obstacle: Option<Obstacle>,
    /// The version of the Cluster's topology, if it has one.
    topology: Option<StatedVersion>,
    /// The specs of the request that made the task.
    pub(super) accepted: Option<Specs>,
}

impl Look {
    /// Reads the caches; of a control plane whose Machines have its version, their objects are read live.
    pub(super) async fn read(ctx: &Context, task: Arc<UpgradeTask>) -> anyhow::Result<Self> {
        let stores = &ctx.stores;
        let group = group_of_task(&task);
        let owner = LiveOwner::of(stores, &group);
        let machines = machines_of(stores, &group.key);
        let updates = node_updates_of(stores, &machines);
        let sets = stores.machine_sets.listed(&SETS_BY_GROUP, &group.key);
        let current_set = current_set(owner.as_ref(), &sets, ctx.clock.now());
        let driven = driven_by_cluster_api(&task, owner.as_ref(), &machines);
        let of_owner = (&group, owner.as_ref());
        let obstacle = obstacle::of_group(ctx, &task, of_owner, driven.as_deref());
        let object = stores.update_groups.get(&group.key);
        let cluster = stores.clusters.get(&group.cluster_key());
        let topology = cluster.and_then(|cluster| topology_version(&cluster));
        let mut look = Self {
            specs: BTreeMap::new(),
            task,
            group,
            owner,
            sets,
            current_set,
            machines,
            updates,
            object,
            obstacle,
            topology,
            accepted: None,
        };
        if look.obstacle.is_none() {
            look.specs = match look.task.spec.via {
                Via::Machines => look.spec_states(ctx).await?,
                Via::Spec => look.versions_reached(),
            };
        }
        Ok(look)
    }

    /// A Machine of the group.
    pub(super) fn machine(&self, name: &str) -> Option<&Arc<Machine>> {
        self.machines.iter().find(|machine| machine.metadata.name.as_deref() == Some(name))
    }

    /// What stands in the way.
    pub(super) fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref()
    }

    /// What keeps the task from ever working.
    pub(super) fn final_obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref().filter(|obstacle| obstacle.is_final())
    }

    /// A Machine that stands for these, or for all of the group.
    pub(super) fn to_judge(&self, named: &[String]) -> Option<Arc<Machine>> {
        let machines = self.machines.iter().filter(|machine| {
            let name = machine.metadata.name.as_ref();
            machine.metadata.deletion_timestamp.is_none()
                && (named.is_empty() || name.is_some_and(|name| named.contains(name)))
        });
        // One that is up to date has nothing left to compare.
        let is_outdated =
            |machine: &&Arc<Machine>| self.spec_of(&machine.name_any()) != SpecState::Current;
        machines.clone().find(is_outdated).or(machines.clone().next()).cloned()
    }

    /// The Machines that stand for all that are not what their owner requests: of each MachineSet one, of a control
    /// plane each.
    pub(super) fn differing(&self) -> Vec<Arc<Machine>> {
        let mut sets = BTreeSet::new();
        let differing = self.machines.iter().filter(|machine| {
            machine.metadata.deletion_timestamp.is_none()
                && self.spec_of(&machine.name_any()) != SpecState::Current
        });
        let first_of_set = differing
            .filter(|machine| self.set_of(machine).is_none_or(|set| sets.insert(set.name_any())));
        first_of_set.cloned().collect()
    }

    /// Whether the topology of the Cluster, if it has one, requests the owner's version.
    pub(super) fn follows_topology(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| self.topology_asks_for(owner.version()))
    }

    /// Whether a NodeUpdate writes the Machine's condition.
    pub(super) fn speaks_for_itself(&self, machine: &Machine) -> bool {
        let uid = MachineUid::of(&machine.metadata);
        self.updates_of(machine).iter().any(|update| update.spec.machine_ref.uid == uid)
    }

    /// Everything that the task is decided on.
    pub(super) fn seen(&self, ctx: &Context) -> GroupSeen<'_> {
        let pacing = self.pacing(ctx);
        let limits = limits_of(&ctx.stores, &self.group, || self.machines.len()).paced(&pacing);
        let mut seen = GroupSeen {
            task: &self.task,
            obstacle: self.obstacle.clone(),
            owner: self.owner.as_ref().map(|owner| self.owner_seen(owner)),
            machines: self.members(&pacing),
            lacks_machines: limits.lacks(self.machines.len()),
            slots: usize::try_from(limits.slots()).unwrap_or(1),
            order: pacing.order,
            is_paced_to_a_halt: pacing.paused,
            sets: None,
            is_held: holds_only_machine(ctx, &self.group),
            now: ctx.clock.now_seconds(),
        };
        seen.sets = self.sets_seen(&seen, limits);
        seen
    }

    /// The pacing of the group: that of its UpdateGroup and of its owner's annotations.
    fn pacing(&self, ctx: &Context) -> Pacing {
        let pacing = self.object.as_ref().map(|object| object.spec.pacing.clone());
        pace_of(&ctx.stores, &self.group, &pacing.unwrap_or_default()).pacing
    }

    /// What its Machines are to be brought to, for display.
    pub(super) fn target(&self) -> String {
        let of_owner = || self.owner.as_ref().and_then(|owner| owner.version().version());
        let version = self.task.spec.version.as_ref().or_else(of_owner);
        version.map_or_else(|| "its desired state".to_owned(), ToString::to_string)
    }

    /// Number of the rollout that the task's NodeUpdates belong to.
    fn rollout(&self) -> i64 {
        let of_owner = || self.owner.as_ref().and_then(|owner| owner.version().version());
        let version = self.task.spec.version.as_ref().or_else(of_owner);
        let target = version.map(ToString::to_string).unwrap_or_default();
        let status = self.object.as_ref().and_then(|object| object.status.clone());
        rollout_number(&status.unwrap_or_default(), &RolloutKey { origin: Origin::Task, target })
    }

    fn owner_seen(&self, owner: &LiveOwner) -> OwnerSeen {
        // What is deleted first may have any version.
        let leaving = self.leaving(owner);
        let leaves = |machine: &Arc<Machine>| leaving.contains(&machine.name_any());
        let all_current = self.machines.iter().all(|machine| {
            machine.metadata.deletion_timestamp.is_some()
                || leaves(machine)
                || self.spec_of(&machine.name_any()) == SpecState::Current
        });
        let is_old =
            |set: &&Arc<MachineSet>| self.current_set.as_deref() != set.metadata.name.as_deref();
        let is_emptied = |set: &Arc<MachineSet>| {
            let of_set = |machine: &&Arc<Machine>| {
                leaves(machine) && self.set_of(machine).is_some_and(|of| Arc::ptr_eq(of, set))
            };
            let leaving = self.machines.iter().filter(of_set).count();
            set.spec.replicas.is_some_and(|replicas| {
                usize::try_from(replicas).is_ok_and(|replicas| replicas <= leaving)
            })
        };
        let old_are_empty = self.sets.iter().filter(is_old).all(is_emptied);
        let has_sets = self.group.spec.owner.owner() == Owner::Deployment;
        OwnerSeen {
            owner: self.group.spec.owner.owner(),
            paused: Paused::of(&owner.annotations()),
            deleting: owner.is_deleting(),
            version: owner.version().clone(),
            of_topology: owner.labels().contains_key(TOPOLOGY_OWNED),
            request: request_of(owner),
            is_up_to_date: owner.is_up_to_date(),
            replaces_none: all_current
                && self.topology_asks_for(owner.version())
                && (!has_sets || old_are_empty && self.current_set.is_some()),
        }
    }

    /// Whether the Cluster's topology, if it has one, has given the owner its version: it writes another one later,
    /// even to an owner that goes on. A task for each request of the owner is for each of the versions, one after another.
    fn topology_asks_for(&self, version: &StatedVersion) -> bool {
        self.task.annotations().contains_key(keys::SINGLE_REPLICA)
            || self.topology.as_ref().is_none_or(|topology| topology == version)
    }

    fn members(&self, pacing: &Pacing) -> Vec<Member<'_>> {
        let rollout = self.rollout();
        let members = self.machines.iter().zip(&self.updates).map(|(machine, updates)| {
            let uid = MachineUid::of(&machine.metadata);
            let name = machine.metadata.name.as_deref().unwrap_or_default();
            let annotations = machine.annotations();
            let status = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
            let shows = conditions::get(status, conditions::MACHINE_UP_TO_DATE);
            Member {
                name,
                created: machine.metadata.creation_timestamp.as_ref().map(|time| time.0),
                deleting: machine.metadata.deletion_timestamp.is_some(),
                spec: self.spec_of(name),
                task: annotations.get(keys::TASK).map(String::as_str),
                shows: shows.map(|shows| (&*shows.status, &*shows.reason)),
                update: speaker(updates.iter().map(AsRef::as_ref), &uid),
                retry: self.retry_of(machine, updates),
                exception: exception_of(machine, pacing, rollout).map(|one| one.rule),
                is_extra: is_extra(machine.as_ref()),
                is_updated_by_cluster_api: update_in_progress(machine.as_ref()),
                uid,
            }
        });
        members.collect()
    }

    /// The ended NodeUpdate of which another attempt is requested: by annotation, as after an upgrade by hand, or
    /// by this task, if it is newer.
    pub(super) fn retry_of<'a>(
        &self,
        machine: &Machine,
        updates: &'a [Arc<NodeUpdate>],
    ) -> Option<&'a str> {
        let uid = MachineUid::of(&machine.metadata);
        let newest = newest_upgrade(updates.iter().map(AsRef::as_ref), &uid)?;
        let ended = newest.status.as_ref()?.finished_at.as_ref()?;
        let began = self.task.metadata.creation_timestamp.as_ref()?;
        let name = newest.metadata.name.as_ref()?;
        let mut asked = [keys::RETRY, keys::ADOPT].into_iter();
        let is_asked = asked.any(|key| machine.annotations().get(key) == Some(name));
        (ended.0 <= began.0 || is_asked).then_some(name.as_str())
    }

    /// The NodeUpdates of a Machine.
    pub(super) fn updates_of(&self, machine: &Machine) -> &[Arc<NodeUpdate>] {
        let at = self.machines.iter().position(|known| known.name_any() == machine.name_any());
        at.map_or(&[], |at| &self.updates[at])
    }

    fn spec_of(&self, machine: &str) -> SpecState {
        self.specs.get(machine).copied().unwrap_or_default()
    }

    /// The Machines that Cluster API has brought to the owner's version.
    fn versions_reached(&self) -> BTreeMap<String, SpecState> {
        let Some(owner) = &self.owner else { return BTreeMap::new() };
        let has_reached = |machine: &&Arc<Machine>| {
            machine.spec.version == *owner.version() && !update_in_progress(machine.as_ref())
        };
        let reached = self.machines.iter().filter(has_reached);
        reached.map(|machine| (machine.name_any(), SpecState::Current)).collect()
    }

    async fn spec_states(&self, ctx: &Context) -> anyhow::Result<BTreeMap<String, SpecState>> {
        let mut found = BTreeMap::new();
        match &self.owner {
            // No task brings the Machines of another provider to a version: an obstacle.
            None | Some(LiveOwner::Foreign(_)) => {}
            Some(LiveOwner::ControlPlane(owner)) => {
                let has_version =
                    |machine: &&Arc<Machine>| machine.spec.version == owner.spec.version;
                for machine in self.machines.iter().filter(has_version) {
                    if is_current_member(ctx, &self.group, machine).await? {
                        found.insert(machine.name_any(), SpecState::Current);
                    }
                }
            }
            Some(LiveOwner::Deployment(_)) => {
                for machine in &self.machines {
                    if let Some(set) = self.set_of(machine)
                        && self.current_set.as_deref() == set.metadata.name.as_deref()
                    {
                        let has_spec = has_spec_of(machine, &set.spec.template.spec);
                        let state =
                            if has_spec { SpecState::Current } else { SpecState::HandedOver };
                        found.insert(machine.name_any(), state);
                    }
                }
            }
            Some(LiveOwner::Set(set)) => {
                for machine in &self.machines {
                    if has_spec_of(machine, &set.spec.template.spec) {
                        found.insert(machine.name_any(), SpecState::Current);
                    }
                }
            }
        }
        Ok(found)
    }
}

/// A Machine that Cluster API updates in place, before the task has paused its owner.
fn driven_by_cluster_api(
    task: &UpgradeTask,
    owner: Option<&LiveOwner>,
    machines: &[Arc<Machine>],
) -> Option<String> {
    let has_paused = owner.is_some_and(|owner| Paused::of(&owner.annotations()).task().is_some());
    if task.spec.via == Via::Spec || has_paused {
        return None;
    }
    let driven = machines.iter().find(|machine| update_in_progress(machine.as_ref()));
    driven.map(|machine| machine.name_any())
}

/// The version of a Cluster's topology, if it has one.
pub(super) fn topology_version(cluster: &Cluster) -> Option<StatedVersion> {
    let version = cluster.spec.topology.as_ref()?.0.get("version")?.as_str()?;
    Some(StatedVersion::from(version))
}

/// Whether a Machine has the fields of its template that change only by a rollout.
fn has_spec_of(machine: &Machine, template: &refit_cluster_api::kinds::MachineSpec) -> bool {
    let domain = |spec: &refit_cluster_api::kinds::MachineSpec| {
        spec.failure_domain.clone().unwrap_or_default()
    };
    let keeps_domain = template.failure_domain.is_none();
    machine.spec.version == template.version
        && (keeps_domain || domain(&machine.spec) == domain(template))
}

/// Whether a member of a control plane and its objects are what the control plane wants. Objects that do not exist do not
/// differ, as for Cluster API (`docs/facts/control-plane.md`).
pub(crate) async fn is_current_member(
    ctx: &Context,
    group: &Group,
    machine: &Machine,
) -> anyhow::Result<bool> {
    let member = objects::member(ctx, group, machine).await?;
    let plane = ControlPlane { object: &member.plane, cluster: &group.spec.cluster_name };
    let differences = Difference::all(
        plane,
        &member.machine,
        member.infrastructure.as_ref(),
        member.config.as_ref(),
        ctx.clock.now(),
    );
    Ok(differences.iter().all(Difference::is_by_date))
}

/// What an owner requests of its Machines, as a hash.
fn request_of(owner: &LiveOwner) -> String {
    let request: Value = match owner {
        LiveOwner::ControlPlane(owner) => return request_of_plane(owner),
        LiveOwner::Foreign(owner) => json!([owner.spec.version]),
        LiveOwner::Deployment(owner) => template_request(&owner.spec.template.spec),
        LiveOwner::Set(owner) => template_request(&owner.spec.template.spec),
    };
    hash_json(&request)
}

/// What a control plane requests of its Machines, as a hash.
pub(crate) fn request_of_plane(plane: &KubeadmControlPlane) -> String {
    hash_json(&json!([
        plane.spec.version,
        plane.spec.machine_template.spec.infrastructure_ref,
        plane.spec.kubeadm_config_spec,
    ]))
}

fn template_request(spec: &refit_cluster_api::kinds::MachineSpec) -> Value {
    json!([spec.version, spec.infrastructure_ref, spec.bootstrap, spec.failure_domain])
}

/// The group of a task's owner.
pub(crate) fn group_of_task(task: &UpgradeTask) -> Group {
    let owner = task.spec.owner_ref.clone().unwrap_or_default();
    Group {
        key: ObjectKey::new(
            task.namespace().unwrap_or_default(),
            update_group_name(&owner.kind, &owner.name),
        ),
        spec: UpdateGroupSpec {
            cluster_name: task.spec.cluster_ref.name.clone(),
            control_plane: owner.owner() == Owner::ControlPlane,
            owner,
            pacing: Pacing::default(),
        },
    }
}
