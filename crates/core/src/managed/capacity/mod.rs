//! Extra Machines for the time of an upgrade: which are to be added, whether they are Ready, and how they are removed.
//!
//! What was added shows that itself: a MachineDeployment that has only extra Machines has a label, one with more replicas an
//! annotation, and each extra Machine has a label. So nothing is added twice, and all of it is found after a crash.

mod clone;
mod deployment;

use jiff::Timestamp;
use refit_kinds::{
    keys,
    refit::{CapacityMethod, ExtraCapacity},
    version::KubernetesVersion,
};

pub use self::{
    clone::{clone_name, clone_of},
    deployment::{DeploymentSeen, ExtraReplicas},
};
use crate::task::Paused;

/// How many objects a message names.
const NAMED: usize = 5;

/// What is known of the extra capacity of a Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacitySeen {
    /// The MachineDeployments, without those that have only extra Machines.
    pub deployments: Vec<DeploymentSeen>,
    /// The MachineDeployments that have only extra Machines.
    pub clones: Vec<CloneSeen>,
    /// Extra Machines whose MachineDeployment is gone.
    pub orphans: Vec<CapacityMachine>,
}

/// A MachineDeployment that has only extra Machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloneSeen {
    /// Its name.
    pub name: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `spec.replicas`.
    pub replicas: i32,
    /// Its Machines.
    pub machines: Vec<CapacityMachine>,
}

/// A Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacityMachine {
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it is extra.
    pub is_extra: bool,
    /// Whether Cluster API deletes it before others.
    pub is_deleted_first: bool,
    /// Whether it is being deleted, or is about to be: its MachineSet has too many of them.
    pub deleting: bool,
    /// Why it cannot take Pods; `None` if it can.
    pub unready: Option<String>,
}

/// A write for extra capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapacityWrite {
    /// Keep the ClusterUpgrade until the extra Machines are removed.
    Guard,
    /// Create a MachineDeployment with the template of this one.
    Clone {
        /// Name of the MachineDeployment with the template.
        deployment: String,
        /// How many Machines.
        machines: i32,
    },
    /// Give a MachineDeployment more replicas.
    Raise {
        /// Its name.
        deployment: String,
        /// Its replicas then.
        replicas: ExtraReplicas,
    },
    /// Give a MachineDeployment that has only extra Machines as many as are requested by now.
    Resize {
        /// Its name.
        clone: String,
        /// How many Machines it requests now.
        from: i32,
        /// How many Machines.
        machines: i32,
    },
    /// Mark a Machine as extra: it is not upgraded, and is deleted first.
    Mark(String),
    /// Make a Machine that was extra one like the others: its MachineDeployment was scaled up since.
    Unmark(String),
    /// Delete a MachineDeployment that has only extra Machines.
    Delete(String),
    /// Set the replicas of a MachineDeployment back.
    Lower {
        /// Its name.
        deployment: String,
        /// `spec.replicas`.
        replicas: i32,
    },
    /// Let the ClusterUpgrade be deleted.
    Unguard,
}

impl CapacityWrite {
    /// Whether Machines are created for it: only in a Cluster that is healthy now.
    pub fn adds_machines(&self) -> bool {
        match self {
            Self::Clone { .. } | Self::Raise { .. } => true,
            Self::Resize { from, machines, .. } => machines > from,
            Self::Guard
            | Self::Mark(_)
            | Self::Unmark(_)
            | Self::Delete(_)
            | Self::Lower { .. }
            | Self::Unguard => false,
        }
    }

    /// Whether a cache that is behind could make it create or delete a Machine too many, or leave one behind.
    pub fn rests_on_live_read(&self) -> bool {
        match self {
            Self::Clone { .. }
            | Self::Raise { .. }
            | Self::Mark(_)
            | Self::Unmark(_)
            | Self::Resize { .. }
            | Self::Delete(_)
            | Self::Lower { .. }
            | Self::Unguard => true,
            Self::Guard => false,
        }
    }
}

/// How far extra Machines are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// All are Ready: their names.
    Ready(String),
    /// They are not.
    Waits {
        /// What is waited for, as a sentence.
        why: String,
        /// What is to be written now.
        writes: Vec<CapacityWrite>,
    },
}

impl CapacitySeen {
    /// The MachineDeployments that get extra Machines.
    fn wanted<'a>(
        &'a self,
        capacity: &'a ExtraCapacity,
    ) -> impl Iterator<Item = &'a DeploymentSeen> {
        let named = &capacity.machine_deployments;
        self.deployments.iter().filter(move |one| {
            let has_machines = one.replicas > one.extra();
            if named.is_empty() { has_machines } else { named.contains(&one.name) }
        })
    }

    /// Why a Cluster with a control plane of this version cannot have the extra Machines for an upgrade to `target`: a
    /// reason and a sentence.
    pub fn invalid(
        &self,
        capacity: &ExtraCapacity,
        (control_plane, target): (&KubernetesVersion, &KubernetesVersion),
    ) -> Option<(&'static str, String)> {
        let missing = capacity
            .machine_deployments
            .iter()
            .find(|name| !self.deployments.iter().any(|one| one.name == **name));
        if let Some(name) = missing {
            let why = format!(
                "MachineDeployment {name} of spec.extraCapacity.machineDeployments does not exist \
                 in the Cluster: correct the name"
            );
            return Some(("ExtraCapacityNotPossible", why));
        }
        let why = self.wanted(capacity).find_map(|one| {
            let name = &one.name;
            if let Err(value) = &one.extra {
                let key = keys::EXTRA_CAPACITY;
                return Some(format!(
                    "the annotation {key} of MachineDeployment {name} is {value:?}, which Refit \
                     has not written: remove it, and check spec.replicas"
                ));
            }
            let adds_machines = self.adds_machines_to(one, capacity);
            let version = one.version.as_ref();
            let is_refused = |version: &&KubernetesVersion| {
                let is_other_minor =
                    version.minor_below(control_plane) || control_plane.minor_below(version);
                one.has_kubeadm && is_other_minor || one.of_topology && **version != *control_plane
            };
            if let Some(version) = version.filter(|_| adds_machines).filter(is_refused) {
                return Some(format!(
                    "extra Machines of MachineDeployment {name} would have its version, {version}, \
                     and Cluster API creates none of that version next to a control plane of \
                     {control_plane}: request the upgrade without spec.extraCapacity"
                ));
            }
            if capacity.method == CapacityMethod::Replicas && one.of_topology {
                return Some(format!(
                    "the Cluster's topology writes the replicas of MachineDeployment {name}: set \
                     spec.extraCapacity.method to Clone"
                ));
            }
            let is_paused = one.paused != Paused::No;
            if adds_machines && capacity.method == CapacityMethod::Replicas && is_paused {
                return Some(format!(
                    "MachineDeployment {name} is paused, and Cluster API adds no Machines to it: \
                     set spec.extraCapacity.method to Clone"
                ));
            }
            let version = version?;
            let skew = version.check_kubelet_of(target).err()?;
            Some(format!(
                "extra Machines of MachineDeployment {name} stay at {version}: {skew}. Upgrade to \
                 a version between first, or without spec.extraCapacity"
            ))
        })?;
        Some(("ExtraCapacityNotPossible", why))
    }

    /// How far the extra Machines are, and what is to be written for them.
    pub fn reserve(&self, capacity: &ExtraCapacity) -> Reserve {
        let (mut writes, mut problems, mut ready) = (Vec::new(), Vec::new(), Vec::new());
        writes.extend(self.unwanted(capacity));
        if !writes.is_empty() {
            problems.push("extra Machines that are not requested any more are removed".to_owned());
        }
        for one in self.wanted(capacity) {
            let machines = match capacity.method {
                CapacityMethod::Clone => self.clone(one, capacity, &mut writes),
                CapacityMethod::Replicas => one.raised(capacity, &mut writes),
            };
            let wanted = usize::try_from(capacity.machines).unwrap_or_default();
            let (well, unwell): (Vec<&CapacityMachine>, Vec<_>) =
                machines.iter().partition(|machine| machine.unready.is_none());
            ready.extend(well.iter().map(|machine| machine.name.clone()));
            if well.len() >= wanted {
                continue;
            }
            if machines.len() < wanted {
                let (name, has) = (&one.name, machines.len());
                let cause = match capacity.method {
                    CapacityMethod::Clone => String::new(),
                    CapacityMethod::Replicas => one.cause(),
                };
                problems.push(format!(
                    "MachineDeployment {name} has {has} of {wanted} extra Machines{cause}"
                ));
            }
            problems.extend(unwell.iter().map(|machine| {
                format!("Machine {}: {}", machine.name, machine.unready.as_deref().unwrap_or(""))
            }));
        }
        if writes.is_empty() && problems.is_empty() {
            return Reserve::Ready(some_of(&ready));
        }
        Reserve::Waits { why: some_of_with("; ", &problems), writes }
    }

    /// Whether something is there that is not requested any more, or not in this number.
    pub fn has_unwanted(&self, capacity: &ExtraCapacity) -> bool {
        match self.reserve(capacity) {
            Reserve::Ready(_) => false,
            Reserve::Waits { writes, .. } => writes.iter().any(|write| !write.adds_machines()),
        }
    }

    /// Whether some of what is requested is not even there: Machines would be created for it.
    pub fn lacks_machines(&self, capacity: &ExtraCapacity) -> bool {
        self.wanted(capacity).any(|one| self.adds_machines_to(one, capacity))
    }

    fn adds_machines_to(&self, one: &DeploymentSeen, capacity: &ExtraCapacity) -> bool {
        match capacity.method {
            CapacityMethod::Clone => {
                let name = clone_name(&one.name);
                let is_there = |clone: &CloneSeen| {
                    clone.name == name && !clone.deleting && clone.replicas >= capacity.machines
                };
                !self.clones.iter().any(is_there)
            }
            CapacityMethod::Replicas => one.extra() < capacity.machines,
        }
    }

    /// The Machines of the MachineDeployment that was created for another one.
    fn clone<'a>(
        &'a self,
        one: &DeploymentSeen,
        capacity: &ExtraCapacity,
        writes: &mut Vec<CapacityWrite>,
    ) -> Vec<&'a CapacityMachine> {
        let name = clone_name(&one.name);
        let Some(clone) = self.clones.iter().find(|clone| clone.name == name) else {
            let (deployment, machines) = (one.name.clone(), capacity.machines);
            writes.push(CapacityWrite::Clone { deployment, machines });
            return Vec::new();
        };
        if !clone.deleting && clone.replicas != capacity.machines {
            let (from, machines) = (clone.replicas, capacity.machines);
            writes.push(CapacityWrite::Resize { clone: name, from, machines });
        }
        // Once it is gone, another one is created.
        let stay = clone.machines.iter().filter(|machine| !machine.deleting);
        if clone.deleting { Vec::new() } else { stay.collect() }
    }

    /// What removes the extra Machines that another request has added.
    fn unwanted(&self, capacity: &ExtraCapacity) -> Vec<CapacityWrite> {
        let wanted: Vec<&DeploymentSeen> = self.wanted(capacity).collect();
        let (clones, raised): (Vec<String>, &[&DeploymentSeen]) = match capacity.method {
            CapacityMethod::Clone => {
                (wanted.iter().map(|one| clone_name(&one.name)).collect(), &[])
            }
            CapacityMethod::Replicas => (Vec::new(), &wanted),
        };
        let deletes = self.clones.iter().filter(|one| !one.deleting && !clones.contains(&one.name));
        let deletes = deletes.map(|one| CapacityWrite::Delete(one.name.clone()));
        let others = self.deployments.iter().filter(|one| !raised.contains(one));
        deletes.chain(others.flat_map(DeploymentSeen::lowered)).collect()
    }

    /// Whether a MachineDeployment or Machine is left that the Cluster had in addition.
    pub fn remains(&self) -> bool {
        let has_extra = |one: &DeploymentSeen| {
            one.extra() > 0 || one.machines.iter().any(|machine| machine.is_extra)
        };
        !self.clones.is_empty()
            || !self.orphans.is_empty()
            || self.deployments.iter().any(has_extra)
    }

    /// What removes the extra Machines, and nothing else: writes, none of them if only time is needed.
    pub fn removal(&self) -> Vec<CapacityWrite> {
        let clones = self.clones.iter().filter(|clone| !clone.deleting);
        let deletes = clones.map(|clone| CapacityWrite::Delete(clone.name.clone()));
        deletes.chain(self.deployments.iter().flat_map(DeploymentSeen::lowered)).collect()
    }

    /// What keeps the extra Machines that are left from being deleted, if that is known. `lives` is whether an UpgradeTask
    /// of this name is there, and works.
    pub fn kept_by(&self, lives: impl Fn(&str) -> bool) -> Option<String> {
        let kept = self.deployments.iter().filter(|one| one.has_alive_extra());
        let causes: Vec<String> = kept.filter_map(|one| one.keeps_extra(&lives)).collect();
        (!causes.is_empty()).then(|| some_of_with("; ", &causes))
    }

    /// Whether an UpgradeTask still has to let extra Machines be deleted: it has paused their MachineDeployment, and is there.
    pub fn is_left_to_task(&self, lives: impl Fn(&str) -> bool) -> bool {
        self.deployments.iter().any(|one| match &one.paused {
            Paused::ByTask(task) => one.has_alive_extra() && lives(task),
            Paused::No | Paused::ByHold | Paused::ByOthers => false,
        })
    }

    /// The extra Machines that are left, for display.
    pub fn left(&self) -> String {
        let of_clones = self.clones.iter().flat_map(|clone| &clone.machines);
        let all = self.deployments.iter().flat_map(|one| &one.machines);
        let of_none = self.orphans.iter();
        let extra = of_clones.chain(of_none).chain(all.filter(|machine| machine.is_extra));
        let names: Vec<String> = extra.map(|machine| machine.name.clone()).collect();
        if names.is_empty() {
            let clones: Vec<String> = self.clones.iter().map(|one| one.name.clone()).collect();
            return format!("MachineDeployments {}", some_of(&clones));
        }
        format!("Machines {}", some_of(&names))
    }
}

/// The first few of a list.
fn some_of(names: &[String]) -> String {
    some_of_with(", ", names)
}

fn some_of_with(separator: &str, all: &[String]) -> String {
    let rest = all.len().saturating_sub(NAMED);
    let shown = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(separator);
    if rest > 0 { format!("{shown}{separator}and {rest} more") } else { shown }
}

#[cfg(test)]
mod tests;
