//! The observed state of a world, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use refit_kinds::{refit::Gate, version::StatedVersion};

use super::{
    fleet::{FleetPlan, Upgrade},
    objects::{Machine, Node, Owner, Plan, Policy, StaticPod, Update},
    provider::Provider,
};

/// Namespace and name.
pub(super) type Key = (String, String);

/// Namespace, kind and name of the owner of a group.
pub(super) type GroupKey = (String, String, String);

/// Everything that the invariants read, built up write by write.
///
/// Actors are the names of processes: `controller`, `capi`, `agent/<node>`; any other actor is a
/// user or external, and unrestricted. To restore a world from a snapshot, observe its objects
/// under any other name.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub(super) machines: BTreeMap<Key, Machine>,
    pub(super) owners: BTreeMap<GroupKey, Owner>,
    /// MachineDeployments that a user changed in the middle of a rollout, until all of their Machines
    /// are as they request. Cluster API then scales MachineSets without a call of an extension
    /// (`docs/facts/machine-deployment.md#a-change-in-the-middle-of-a-rollout`).
    pub(super) changed_midway: BTreeSet<GroupKey>,
    /// Control plane Machines from which a user removed Cluster API's mark of an update in progress.
    /// Cluster API then deletes a member that is outdated and unhealthy, without a call of an extension
    /// (`docs/facts/control-plane.md#preflight`).
    pub(super) cancelled: BTreeSet<Key>,
    pub(super) clusters: BTreeMap<Key, Policy>,
    pub(super) clusters_deleting: BTreeMap<Key, bool>,
    pub(super) updates: BTreeMap<Key, Update>,
    pub(super) slots: BTreeMap<Key, Vec<(String, String)>>,
    /// By cluster and name.
    pub(super) nodes: BTreeMap<Key, Node>,
    pub(super) plans: BTreeMap<Key, Plan>,
    /// The objects of providers, by namespace, kind and name.
    pub(super) providers: BTreeMap<GroupKey, Provider>,
    /// The version that a node had when the gate of a plan first let its host change, by plan id.
    pub(super) began_at: BTreeMap<String, StatedVersion>,
    pub(super) static_pods: BTreeMap<Key, StaticPod>,
    /// The ClusterUpgrades.
    pub(super) upgrades: BTreeMap<Key, Upgrade>,
    /// The ClusterUpgradePlans, by name.
    pub(super) fleet_plans: BTreeMap<String, FleetPlan>,
    /// Since when a critical alert fires.
    pub(super) firing_since: Option<Timestamp>,
}

impl World {
    /// A world without objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that critical alerts fire from now on, or not any more.
    pub fn set_firing(&mut self, since: Option<Timestamp>) {
        self.firing_since = since;
    }

    /// The owner whose limits apply to the group.
    pub(super) fn group_of(&self, namespace: &str, machine: &Machine) -> Option<GroupKey> {
        let (kind, name) = machine.owner.clone()?;
        let owner_key = (namespace.to_owned(), kind, name);
        let parent = self.owners.get(&owner_key).and_then(|owner| owner.parent.clone());
        match parent {
            Some((kind, name)) if kind == "MachineDeployment" => {
                Some((namespace.to_owned(), kind, name))
            }
            _ => Some(owner_key),
        }
    }

    pub(super) fn members<'a>(
        &'a self,
        group: &'a GroupKey,
    ) -> impl Iterator<Item = (&'a Key, &'a Machine)> {
        self.machines
            .iter()
            .filter(|((namespace, _), _)| *namespace == group.0)
            .filter(|((namespace, _), m)| self.group_of(namespace, m).as_ref() == Some(group))
    }

    /// Records a new state of an owner.
    pub(super) fn owner_changed(&mut self, key: GroupKey, new: Option<Owner>, by_user: bool) {
        let deployment = key.1 == "MachineDeployment";
        if let (Some(before), Some(after)) = (self.owners.get(&key), &new)
            && (&before.version, before.replicas) != (&after.version, after.replicas)
            && deployment
            && by_user
            && !self.is_settled(&key)
        {
            self.changed_midway.insert(key.clone());
        }
        match new {
            Some(new) => self.owners.insert(key, new),
            None => self.owners.remove(&key),
        };
        self.forget_changes();
    }

    /// Forgets the changes whose rollouts have ended.
    pub(super) fn forget_changes(&mut self) {
        let changed = std::mem::take(&mut self.changed_midway);
        self.changed_midway = changed.into_iter().filter(|key| !self.is_settled(key)).collect();
    }

    /// Whether a group has as many Machines as its owner requests, in its version, and none is being
    /// updated.
    fn is_settled(&self, group: &GroupKey) -> bool {
        self.owners.get(group).is_none_or(|owner| {
            let members: Vec<_> = self.members(group).map(|(_, machine)| machine).collect();
            let present = i32::try_from(members.len()).unwrap_or(i32::MAX);
            owner.replicas.is_none_or(|replicas| replicas == present)
                && members.iter().all(|machine| {
                    !machine.updating
                        && machine.deleted_at.is_none()
                        && machine.version == owner.version
                })
        })
    }

    /// The Machine that has this Node.
    pub(super) fn machine_of(&self, cluster: &str, node: &str) -> Option<(&Key, &Machine)> {
        self.machines.iter().find(|(_, m)| m.cluster == cluster && m.node == node)
    }

    pub(super) fn node_of(&self, machine: &Machine) -> Option<&Node> {
        self.nodes.get(&(machine.cluster.clone(), machine.node.clone()))
    }

    /// The NodeUpdate that speaks for a Machine: the newest unfinished one, or else the newest; one that has issued
    /// certificates only if there is no other.
    pub(super) fn speaker(&self, machine_uid: &str) -> Option<(&Key, &Update)> {
        self.updates
            .iter()
            .filter(|(_, update)| update.machine_uid == machine_uid)
            .max_by(|(_, a), (_, b)| a.rank.cmp(&b.rank))
    }

    pub(super) fn is_disturbed(&self, machine: &Machine) -> bool {
        let key = (machine.cluster.clone(), machine.node.clone());
        let Some(node) = self.nodes.get(&key) else {
            return false;
        };
        let refreshes = || {
            self.updates
                .values()
                .any(|update| update.refreshes_since.is_some() && update.machine_uid == machine.uid)
        };
        if node.cordoned_by_us() || self.has_provider_at_work(machine, node) || refreshes() {
            return true;
        }
        let disturbs = |plan: &&Plan| plan.gate >= Gate::Upgrade && plan.disruption.takes_slot();
        let Some(plan) = self.plans.get(&key).filter(disturbs) else {
            return false;
        };
        let update = self.updates.values().find(|update| update.uid == plan.plan_id);
        let over = update.map_or(plan.ended, |update| update.phase.is_final());
        !(over && node.ready)
    }

    pub(super) fn is_available(&self, machine: &Machine) -> bool {
        machine.deleted_at.is_none()
            && self.node_of(machine).is_some_and(|node| node.ready)
            && !self.is_disturbed(machine)
    }
}
