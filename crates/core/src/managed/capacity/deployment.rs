//! A MachineDeployment that gets extra Machines, or loses them.

use std::{cmp::Reverse, str::FromStr};

use refit_kinds::{keys, refit::ExtraCapacity, version::KubernetesVersion};

use super::{CapacityMachine, CapacityWrite};
use crate::task::Paused;

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
    /// Whether its Machines are bootstrapped by kubeadm.
    pub has_kubeadm: bool,
    /// Who has paused it: Cluster API neither creates nor deletes Machines for it.
    pub paused: Paused,
    /// Its Machines that are not being deleted, and extra ones that are.
    pub machines: Vec<CapacityMachine>,
    /// How many others are being deleted.
    pub deleting: usize,
    /// How many Machines its MachineSets still create.
    pub lacking: usize,
}

impl Default for DeploymentSeen {
    fn default() -> Self {
        Self {
            name: String::new(),
            version: None,
            replicas: 0,
            extra: Ok(ExtraReplicas::default()),
            of_topology: false,
            has_kubeadm: true,
            paused: Paused::No,
            machines: Vec::new(),
            deleting: 0,
            lacking: 0,
        }
    }
}

impl DeploymentSeen {
    /// Its extra Machines, as more replicas.
    pub(super) fn raised(
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

    pub(super) fn extra(&self) -> i32 {
        self.extra.as_ref().map_or(0, |replicas| replicas.extra)
    }

    /// Whether another client has set the raised replicas back.
    fn is_set_back(&self) -> bool {
        self.extra.as_ref().is_ok_and(|extra| self.replicas < extra.of)
    }

    /// Marks the newest Machines, as many as there are more than without extra ones: those were created last. Extra ones that
    /// Cluster API would not delete first are marked again.
    pub(super) fn marks(&self) -> Vec<CapacityWrite> {
        let again = marked_by_half(self.machines.iter());
        again.into_iter().chain(self.marks_of_newest()).collect()
    }

    fn marks_of_newest(&self) -> Vec<CapacityWrite> {
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
    pub(super) fn lowered(&self) -> Vec<CapacityWrite> {
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
        let mut marked: Vec<_> = alive.clone().filter(|one| one.is_extra).collect();
        let replicas = usize::try_from(self.replicas).unwrap_or_default();
        // Of a paused one, each MachineSet replaces what it loses.
        let deleting = match self.paused {
            Paused::No => 0,
            Paused::ByTask(_) | Paused::ByHold | Paused::ByOthers => self.deleting,
        };
        let replaced = deleting.saturating_add(self.lacking);
        let leaving = alive.count().saturating_add(replaced).saturating_sub(replicas);
        let stay = marked.split_off(leaving.min(marked.len()));
        let unmarks = stay.into_iter().map(|machine| CapacityWrite::Unmark(machine.name.clone()));
        marked_by_half(marked.into_iter()).into_iter().chain(unmarks).collect()
    }

    /// What keeps its extra Machines from being deleted, if that is known.
    pub(super) fn keeps_extra(&self, lives: impl Fn(&str) -> bool) -> Option<String> {
        let name = &self.name;
        if let Err(value) = &self.extra {
            let key = keys::EXTRA_CAPACITY;
            return Some(format!(
                "the annotation {key} of MachineDeployment {name} is {value:?}, which Refit has \
                 not written: remove it, and check spec.replicas"
            ));
        }
        match &self.paused {
            Paused::No => None,
            Paused::ByTask(task) if !lives(task) => Some(format!(
                "MachineDeployment {name} is paused by UpgradeTask {task}, which is gone: the next \
                 UpgradeTask takes it over"
            )),
            Paused::ByTask(_) | Paused::ByHold | Paused::ByOthers => {
                Some(format!("MachineDeployment {name} is paused"))
            }
        }
    }

    /// Whether one of its extra Machines is not being deleted.
    pub(super) fn has_alive_extra(&self) -> bool {
        self.machines.iter().any(|machine| machine.is_extra && !machine.deleting)
    }

    /// Why Cluster API does not add the Machines that it is to have, if that is known; with a colon before it.
    pub(super) fn cause(&self) -> String {
        if self.is_set_back() {
            return format!(": another client has set its replicas to {}", self.replicas);
        }
        match &self.paused {
            Paused::ByTask(_) | Paused::ByHold | Paused::ByOthers => ": it is paused".to_owned(),
            Paused::No => String::new(),
        }
    }
}

/// Marks those again whose annotation a person has removed.
fn marked_by_half<'a>(machines: impl Iterator<Item = &'a CapacityMachine>) -> Vec<CapacityWrite> {
    let by_half = |one: &&CapacityMachine| one.is_extra && !one.deleting && !one.is_deleted_first;
    machines.filter(by_half).map(|one| CapacityWrite::Mark(one.name.clone())).collect()
}
