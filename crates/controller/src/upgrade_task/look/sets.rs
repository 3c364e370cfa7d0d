//! What a task reads of the MachineSets of its MachineDeployment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt as _;
use refit_cluster_api::{
    kinds::{Machine, MachineDeployment, MachineSet},
    rollout::{self, find_new_and_old},
};
use refit_core::{
    group::Limits,
    task::{GroupSeen, MemberState, SetSeen, SetWrite, SetsSeen, SpecState},
};
use refit_kinds::{keys, refit::Owner};
use serde_json::json;

use super::Look;
use crate::{groups::controller_of, owner::LiveOwner, upgrade_task::cluster::is_extra};

impl Look {
    /// The MachineSet that controls a Machine.
    pub(in crate::upgrade_task) fn set_of(&self, machine: &Machine) -> Option<&Arc<MachineSet>> {
        let owner = controller_of(machine.owner_references())?;
        self.sets.iter().find(|set| set.metadata.uid.as_deref() == Some(&owner.uid))
    }

    /// Whether a write gives a MachineSet fewer replicas than it has Machines.
    pub(in crate::upgrade_task) fn is_below_machines(&self, write: &SetWrite) -> bool {
        let is_of_set = |machine: &&Arc<Machine>| {
            self.set_of(machine).is_some_and(|set| set.metadata.name == write.name)
        };
        let machines = self.machines.iter().filter(is_of_set).count();
        i64::try_from(machines).is_ok_and(|machines| write.replicas < machines)
    }

    /// The names of extra Machines that are to be deleted: as many as there are more Machines than the owner requests.
    pub(super) fn leaving(&self, owner: &LiveOwner) -> BTreeSet<String> {
        let LiveOwner::Deployment(deployment) = owner else { return BTreeSet::new() };
        if owner.annotations().contains_key(keys::EXTRA_CAPACITY) {
            return BTreeSet::new();
        }
        let replicas = usize::try_from(deployment.spec.replicas.unwrap_or(1)).unwrap_or_default();
        let surplus = self.machines.len().saturating_sub(replicas);
        let mut extra: Vec<&Arc<Machine>> =
            self.machines.iter().filter(|machine| is_deleted_first(machine)).collect();
        extra.sort_by_key(|machine| machine.metadata.deletion_timestamp.is_none());
        extra.into_iter().take(surplus).map(|machine| machine.name_any()).collect()
    }

    pub(super) fn sets_seen(&self, seen: &GroupSeen<'_>, limits: Limits) -> Option<SetsSeen> {
        if self.group.spec.owner.owner() != Owner::Deployment {
            return None;
        }
        let leaving = self.owner.as_ref().map(|owner| self.leaving(owner)).unwrap_or_default();
        let mut counts: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for machine in &self.machines {
            if let Some(set) = self.set_of(machine) {
                let (machines, leaves) = counts.entry(set.name_any()).or_default();
                *machines += 1;
                *leaves += i64::from(leaving.contains(&machine.name_any()));
            }
        }
        let of = |set: &Arc<MachineSet>| {
            let status = set.status.clone().unwrap_or_default();
            let disabled = set.annotations().get(keys::DISABLE_MACHINE_CREATE);
            let (machines, leaving) = counts.get(&set.name_any()).copied().unwrap_or_default();
            SetSeen {
                name: set.name_any(),
                replicas: set.spec.replicas.unwrap_or(1).into(),
                shown: status.replicas.unwrap_or(0).into(),
                is_observed: status.observed_generation == set.metadata.generation,
                creates: disabled.is_none_or(|value| value != "true"),
                machines,
                leaving,
            }
        };
        let (current, old): (Vec<_>, Vec<_>) = self
            .sets
            .iter()
            .map(of)
            .partition(|set| self.current_set.as_deref() == Some(&set.name));
        let target = seen.target();
        let arriving = seen.machines.iter().filter(|member| {
            member.spec == SpecState::Outdated
                && matches!(member.state(target), MemberState::Updating(_) | MemberState::Reached)
        });
        Some(SetsSeen {
            current: current.into_iter().next(),
            old,
            wanted: limits.replicas.into(),
            arriving: i64::try_from(arriving.count()).unwrap_or(i64::MAX),
            ends: false,
        })
    }
}

/// Name of the MachineSet with the template of a MachineDeployment.
pub(super) fn current_set(
    owner: Option<&LiveOwner>,
    sets: &[Arc<MachineSet>],
    now: jiff::Timestamp,
) -> Option<String> {
    let LiveOwner::Deployment(deployment) = owner? else { return None };
    let sets: Vec<rollout::MachineSet> = sets
        .iter()
        .filter(|set| set.metadata.deletion_timestamp.is_none())
        .map(|set| set_snapshot(set))
        .collect();
    find_new_and_old(&deployment_snapshot(deployment), &sets, now).new.map(|set| set.name)
}

/// A MachineDeployment, as the model of its rollout reads it.
pub(in crate::upgrade_task) fn deployment_snapshot(
    deployment: &MachineDeployment,
) -> rollout::MachineDeployment {
    let json = json!(deployment);
    let after = deployment.spec.rollout.as_ref().and_then(|rollout| rollout.after.as_deref());
    rollout::MachineDeployment {
        name: deployment.name_any(),
        replicas: deployment.spec.replicas.unwrap_or(1).into(),
        strategy: rollout::Strategy::of(&json).unwrap_or(rollout::Strategy::OnDelete),
        template: rollout::Template::of(&json["spec"]["template"]["spec"]),
        rollout_after: after.and_then(|after| after.parse().ok()),
    }
}

/// A MachineSet, as the model of its rollout reads it.
pub(in crate::upgrade_task) fn set_snapshot(set: &MachineSet) -> rollout::MachineSet {
    let created = set.metadata.creation_timestamp.as_ref();
    rollout::MachineSet {
        name: set.name_any(),
        created_at: created.map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0),
        spec_replicas: set.spec.replicas.unwrap_or(1).into(),
        annotations: set.annotations().clone(),
        template: rollout::Template::of(&json!(set.spec.template.spec)),
        ..rollout::MachineSet::default()
    }
}

/// Whether a MachineSet that has too many Machines deletes this one before its others.
fn is_deleted_first(machine: &Machine) -> bool {
    is_extra(machine) && machine.annotations().contains_key(keys::DELETE_MACHINE)
}
