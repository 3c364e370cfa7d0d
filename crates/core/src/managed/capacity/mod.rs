//! Extra Machines for the time of an upgrade: which are to be added, whether they are Ready, and how they are removed.
//!
//! What was added shows that itself: a MachineDeployment that has only extra Machines has a label, one with more replicas an
//! annotation, and each extra Machine has a label. So nothing is added twice, and all of it is found after a crash.

mod clone;

use std::{cmp::Reverse, str::FromStr};

use jiff::Timestamp;
use refit_kinds::{
    keys,
    refit::{CapacityMethod, ExtraCapacity},
    version::KubernetesVersion,
};

pub use self::clone::{clone_name, clone_of};

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

/// How many replicas of a MachineDeployment are extra, and of how many: the value of its annotation, such as `1/4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraReplicas {
    /// How many are extra.
    pub extra: i32,
    /// `spec.replicas` with them, as Refit has set it. Another client may have changed it since.
    pub of: i32,
}

impl FromStr for ExtraReplicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (extra, of) = text.split_once('/').ok_or_else(|| text.to_owned())?;
        let number = |part: &str| part.parse::<i32>().map_err(|_| text.to_owned());
        let (extra, of) = (number(extra)?, number(of)?);
        if 0 < extra && extra <= of { Ok(Self { extra, of }) } else { Err(text.to_owned()) }
    }
}

impl std::fmt::Display for ExtraReplicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.extra, self.of)
    }
}

/// A MachineDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentSeen {
    /// Its name.
    pub name: String,
    /// The version that its Machines have or get.
    pub version: Option<KubernetesVersion>,
    /// `spec.replicas`.
    pub replicas: i32,
    /// Its annotation about extra ones; the error is its value, if that is not one of Refit's.
    pub extra: Result<ExtraReplicas, String>,
    /// Whether a topology writes its spec.
    pub of_topology: bool,
    /// Whether it is paused: Cluster API neither creates nor deletes Machines for it.
    pub is_paused: bool,
    /// Its Machines that are not being deleted, and extra ones that are.
    pub machines: Vec<CapacityMachine>,
}

impl Default for DeploymentSeen {
    fn default() -> Self {
        Self {
            name: String::new(),
            version: None,
            replicas: 0,
            extra: Ok(ExtraReplicas::default()),
            of_topology: false,
            is_paused: false,
            machines: Vec::new(),
        }
    }
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
    /// Whether it is being deleted.
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
            Self::Guard
            | Self::Mark(_)
            | Self::Unmark(_)
            | Self::Resize { .. }
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
            if capacity.method == CapacityMethod::Replicas && one.of_topology {
                return Some(format!(
                    "the Cluster's topology writes the replicas of MachineDeployment {name}: set \
                     spec.extraCapacity.method to Clone"
                ));
            }
            if capacity.method == CapacityMethod::Replicas && one.is_paused && one.extra() == 0 {
                return Some(format!(
                    "MachineDeployment {name} is paused, and Cluster API adds no Machines to it: \
                     set spec.extraCapacity.method to Clone"
                ));
            }
            let version = one.version.as_ref()?;
            let is_same_minor =
                !version.minor_below(control_plane) && !control_plane.minor_below(version);
            if !is_same_minor || one.of_topology && version != control_plane {
                return Some(format!(
                    "extra Machines of MachineDeployment {name} would have its version, {version}, \
                     and Cluster API creates none of that version next to a control plane of \
                     {control_plane}: request the upgrade without spec.extraCapacity"
                ));
            }
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
                let pause = if one.is_paused && capacity.method == CapacityMethod::Replicas {
                    ": it is paused"
                } else {
                    ""
                };
                problems.push(format!(
                    "MachineDeployment {name} has {has} of {wanted} extra Machines{pause}"
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
            writes.push(CapacityWrite::Resize { clone: name, machines: capacity.machines });
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

    /// What keeps the extra Machines that are left from being deleted, if that is known.
    pub fn kept_by(&self) -> Option<String> {
        let is_kept = |one: &&DeploymentSeen| {
            one.is_paused
                && one.machines.iter().any(|machine| machine.is_extra && !machine.deleting)
        };
        let paused: Vec<String> =
            self.deployments.iter().filter(is_kept).map(|one| one.name.clone()).collect();
        (!paused.is_empty()).then(|| format!("paused MachineDeployments: {}", some_of(&paused)))
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

impl DeploymentSeen {
    /// Its extra Machines, as more replicas.
    fn raised(
        &self,
        capacity: &ExtraCapacity,
        writes: &mut Vec<CapacityWrite>,
    ) -> Vec<&CapacityMachine> {
        let (lacking, is_set_back) = (capacity.machines - self.extra(), self.is_set_back());
        if lacking > 0 && !is_set_back {
            let (deployment, extra) = (self.name.clone(), capacity.machines);
            let replicas = ExtraReplicas { extra, of: self.replicas.saturating_add(lacking) };
            writes.push(CapacityWrite::Raise { deployment, replicas });
        } else {
            writes.extend(self.marks());
        }
        self.machines.iter().filter(|machine| machine.is_extra && !machine.deleting).collect()
    }

    fn extra(&self) -> i32 {
        self.extra.as_ref().map_or(0, |replicas| replicas.extra)
    }

    /// Whether another client has set the raised replicas back.
    fn is_set_back(&self) -> bool {
        self.extra.as_ref().is_ok_and(|extra| self.replicas < extra.of)
    }

    /// Marks the newest Machines, as many as there are more than without extra ones: those were created last.
    fn marks(&self) -> Vec<CapacityWrite> {
        let Ok(ExtraReplicas { extra, of }) = self.extra else { return Vec::new() };
        // Another client may have set its replicas back already.
        let without = self.replicas.max(of).saturating_sub(extra);
        let without = usize::try_from(without).unwrap_or_default();
        let (marked, mut others): (Vec<&CapacityMachine>, Vec<_>) =
            self.machines.iter().filter(|one| !one.deleting).partition(|one| one.is_extra);
        let most = usize::try_from(extra).unwrap_or_default().saturating_sub(marked.len());
        let surplus = others.len().saturating_sub(without).min(most);
        others.sort_by_key(|machine| (Reverse(machine.created), &machine.name));
        let newest = others.into_iter().take(surplus);
        newest.map(|machine| CapacityWrite::Mark(machine.name.clone())).collect()
    }

    /// What takes its extra replicas away: first all Machines are marked that are extra, so that no other is deleted.
    fn lowered(&self) -> Vec<CapacityWrite> {
        match &self.extra {
            // A person has to correct it first.
            Err(_) => return Vec::new(),
            Ok(replicas) if replicas.extra == 0 => return self.unmarks(),
            Ok(_) => {}
        }
        let marks = self.marks();
        if !marks.is_empty() {
            return marks;
        }
        let others = self.machines.iter().filter(|one| !one.is_extra && !one.deleting).count();
        let others = i32::try_from(others).unwrap_or(i32::MAX);
        // Its other Machines stay in any case.
        let extra = if self.is_set_back() { 0 } else { self.extra() };
        let without = self.replicas.saturating_sub(extra).max(others);
        let (deployment, replicas) = (self.name.clone(), without.min(self.replicas));
        vec![CapacityWrite::Lower { deployment, replicas }]
    }

    /// Once its replicas are set back, what is marked beyond them is deleted. The rest stays: another client has scaled it
    /// up, or another Machine is deleted in its place.
    fn unmarks(&self) -> Vec<CapacityWrite> {
        let alive = self.machines.iter().filter(|one| !one.deleting);
        let marked: Vec<_> = alive.clone().filter(|one| one.is_extra).collect();
        let replicas = usize::try_from(self.replicas).unwrap_or_default();
        let leaving = alive.count().saturating_sub(replicas);
        let stay = marked.into_iter().skip(leaving);
        stay.map(|machine| CapacityWrite::Unmark(machine.name.clone())).collect()
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
