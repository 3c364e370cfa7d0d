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
    task::{GroupSeen, MemberState, SetSeen, SetWrite, SetsSeen, SpecState, limit_leaving},
};
use refit_kinds::{keys, refit::Owner};
use serde_json::json;

use super::Look;
use crate::{
    groups::{controller_of, creates_machines},
    owner::LiveOwner,
    upgrade_task::cluster::is_extra,
};

impl Look {
    /// The MachineSet that controls a Machine.
    pub(in crate::upgrade_task) fn set_of(&self, machine: &Machine) -> Option<&Arc<MachineSet>> {
        let owner = controller_of(machine.owner_references())?;
        self.sets.iter().find(|set| set.metadata.uid.as_deref() == Some(&owner.uid))
    }

    /// Whether a write at rest gives a MachineSet fewer replicas than it has: then it may delete Machines.
    pub(in crate::upgrade_task) fn lowers(&self, write: &SetWrite) -> bool {
        let set = self.sets.iter().find(|set| set.metadata.name == write.name);
        let replicas = set.and_then(|set| set.spec.replicas);
        write.creates && replicas.is_some_and(|replicas| write.replicas < replicas.into())
    }

    /// The names of extra Machines that are to be deleted.
    pub(super) fn leaving(&self, owner: &LiveOwner) -> BTreeSet<String> {
        let counts = self.counts(owner).into_iter();
        let names = counts.flat_map(|set| {
            let of_set = |machine: &&Arc<Machine>| {
                self.set_of(machine).is_some_and(|of| of.metadata.name.as_ref() == Some(&set.name))
            };
            let mut extra: Vec<&Arc<Machine>> = self
                .machines
                .iter()
                .filter(|machine| is_deleted_first(machine))
                .filter(of_set)
                .collect();
            extra.sort_by_key(|machine| machine.metadata.deletion_timestamp.is_none());
            let leaving = usize::try_from(set.leaving).unwrap_or_default();
            extra.into_iter().take(leaving).map(|machine| machine.name_any()).collect::<Vec<_>>()
        });
        names.collect()
    }

    /// The MachineSets, with the Machines that they control.
    fn counts(&self, owner: &LiveOwner) -> Vec<SetSeen> {
        let LiveOwner::Deployment(deployment) = owner else { return Vec::new() };
        // Until the replicas are set back, none of its extra Machines is to be deleted.
        let is_raised = owner.annotations().contains_key(keys::EXTRA_CAPACITY);
        let mut counts: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for machine in &self.machines {
            if let Some(set) = self.set_of(machine) {
                let (machines, extra) = counts.entry(set.name_any()).or_default();
                *machines += 1;
                *extra += i64::from(!is_raised && is_deleted_first(machine));
            }
        }
        let of = |set: &Arc<MachineSet>| {
            let status = set.status.clone().unwrap_or_default();
            let (machines, leaving) = counts.get(&set.name_any()).copied().unwrap_or_default();
            SetSeen {
                name: set.name_any(),
                replicas: set.spec.replicas.unwrap_or(1).into(),
                shown: status.replicas.unwrap_or(0).into(),
                is_observed: status.observed_generation == set.metadata.generation,
                creates: creates_machines(set),
                machines,
                leaving,
            }
        };
        let mut sets: Vec<SetSeen> = self.sets.iter().map(of).collect();
        limit_leaving(&mut sets, deployment.spec.replicas.unwrap_or(1).into());
        sets
    }

    pub(super) fn sets_seen(&self, seen: &GroupSeen<'_>, limits: Limits) -> Option<SetsSeen> {
        if self.group.spec.owner.owner() != Owner::Deployment {
            return None;
        }
        let sets = self.owner.as_ref().map(|owner| self.counts(owner)).unwrap_or_default();
        let (current, old): (Vec<_>, Vec<_>) =
            sets.into_iter().partition(|set| self.current_set.as_deref() == Some(&set.name));
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
