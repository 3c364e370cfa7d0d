//! What Cluster API may delete of a MachineDeployment.
//!
//! Which Machines a scale-down deletes is left to the MachineSet. But in the middle of a rollout, MachineSets may ask for the
//! deletion of more Machines than the owner has beyond its replicas, and the others would be created again. So in a rollout only as
//! many Machines may be deleted as there are beyond the replicas, each by its name.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::{
    kinds::{Machine, MachineSet, MachineSpec},
    rollout::{
        self,
        machine_set::{DeletionOrder, MachineSetAction, sync_replicas},
        template_up_to_date,
    },
};
use refit_kinds::keys;

/// How many Machines are named at once: the next ones follow when these are being deleted.
const MAX_NAMED: usize = 100;

/// What of a MachineDeployment may be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Deletable {
    /// Names of Machines, in order.
    pub machines: Vec<String>,
    /// Names of MachineSets all of whose Machines may be deleted, in order.
    pub sets: Vec<String>,
}

impl Deletable {
    /// Decides by the Machines and MachineSets of an owner that wants this number of Machines of this template.
    pub(super) fn of(
        machines: &[&Machine],
        sets: &[&MachineSet],
        replicas: i64,
        template: &MachineSpec,
        now: Timestamp,
    ) -> Self {
        let (leaving, kept): (Vec<Members>, Vec<Members>) = members(machines, sets)
            .into_iter()
            .partition(|members| members.set.metadata.deletion_timestamp.is_some());
        let stay: usize = kept.iter().map(Members::stay).sum();
        let too_many = stay.saturating_sub(usize::try_from(replicas).unwrap_or(0));
        let mut sets: Vec<String> = leaving.iter().map(Members::name).collect();
        let mut machines = Vec::new();
        if too_many > 0 {
            machines = kept.iter().flat_map(|members| members.about_to_delete(now)).collect();
            let mut in_use = kept.iter().filter(|members| members.is_in_use());
            let only = in_use.next().filter(|one| in_use.next().is_none() && one.is_of(template));
            let is_scale_down = !machines.is_empty() && machines.len() <= too_many;
            if let Some(only) = only.filter(|_| is_scale_down) {
                sets.push(only.name());
                machines.clear();
            }
            machines.truncate(too_many.min(MAX_NAMED));
        }
        machines.sort();
        sets.sort();
        Self { machines, sets }
    }
}

/// A MachineSet and its Machines.
struct Members<'a> {
    set: &'a MachineSet,
    machines: Vec<&'a Machine>,
}

fn members<'a>(machines: &[&'a Machine], sets: &[&'a MachineSet]) -> Vec<Members<'a>> {
    let mut by_set: BTreeMap<&str, Vec<&Machine>> = BTreeMap::new();
    for machine in machines {
        let mut owners = machine.owner_references().iter();
        if let Some(owner) = owners.find(|owner| owner.controller == Some(true)) {
            by_set.entry(&owner.name).or_default().push(machine);
        }
    }
    let of_set = |set: &&'a MachineSet| {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        Members { set, machines: by_set.remove(name).unwrap_or_default() }
    };
    sets.iter().map(of_set).collect()
}

impl Members<'_> {
    fn name(&self) -> String {
        self.set.name_any()
    }

    /// The number of Machines that are not being deleted.
    fn stay(&self) -> usize {
        self.machines.iter().filter(|machine| stays(machine)).count()
    }

    fn is_in_use(&self) -> bool {
        !self.machines.is_empty() || self.wants() > 0
    }

    /// Whether no rollout is to replace the MachineSet.
    fn is_of(&self, template: &MachineSpec) -> bool {
        let [own, wanted] = [&self.set.spec.template.spec, template]
            .map(|spec| rollout::Template::of(&serde_json::to_value(spec).unwrap_or_default()));
        template_up_to_date(&own, &wanted).is_up_to_date()
    }

    fn wants(&self) -> i64 {
        self.set.spec.replicas.unwrap_or(1).into()
    }

    /// The Machines that the MachineSet deletes at its next reconcile, first those that it deletes first
    /// (`docs/facts/machine-deployment.md#machineset-reconcile`). One that moves its Machines to another MachineSet, or is
    /// paused, deletes none.
    fn about_to_delete(&self, now: Timestamp) -> Vec<String> {
        let wants = self.wants();
        let has_enough = usize::try_from(wants).is_ok_and(|wants| self.machines.len() <= wants);
        if has_enough || self.set.annotations().contains_key(keys::PAUSED) {
            return Vec::new();
        }
        let decides = rollout::MachineSet {
            name: self.name(),
            spec_replicas: wants,
            annotations: self.set.annotations().clone(),
            ..rollout::MachineSet::default()
        };
        let order = self.set.spec.deletion.as_ref();
        let order = order.and_then(|deletion| deletion.order.as_deref()).unwrap_or_default();
        let order = DeletionOrder::from_spec(order);
        let machines =
            self.machines.iter().filter_map(|machine| serde_json::to_value(machine).ok());
        let machines: Vec<_> = machines.map(|machine| rollout::Machine::of(&machine)).collect();
        let names = match sync_replicas(&decides, &machines, None, order, now) {
            Ok(MachineSetAction::Delete(names)) => names,
            Ok(
                MachineSetAction::None
                | MachineSetAction::CreateDisabled { .. }
                | MachineSetAction::Create(_)
                | MachineSetAction::Move(_),
            )
            | Err(_) => return Vec::new(),
        };
        let leaving = self.machines.iter().filter(|machine| !stays(machine)).count();
        names.into_iter().skip(leaving).collect()
    }
}

fn stays(machine: &Machine) -> bool {
    machine.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
#[path = "deletable_tests.rs"]
mod tests;
