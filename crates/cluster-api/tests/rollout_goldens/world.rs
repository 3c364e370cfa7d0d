//! The objects of the simulated world.

use std::collections::{BTreeMap, BTreeSet};

use refit_cluster_api::rollout::{Machine, MachineSet, Strategy, Template, keys};

/// The initial parameters of a rollout.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// `spec.replicas` of the MachineDeployment.
    pub(crate) replicas: i64,
    /// Its strategy.
    pub(crate) strategy: Strategy,
    /// Its template's version, as the number of the MachineSet with that version.
    pub(crate) version: usize,
    /// The machines of ms1, ms2, ...
    pub(crate) sets: Vec<Vec<i64>>,
    /// Whether the extension covers every change.
    pub(crate) in_place: bool,
    /// Maximum number of machines that the user makes unavailable.
    pub(crate) max_user_unavailable: i64,
    /// Whether the scenario allows too few available machines.
    pub(crate) tolerate_unavailable: bool,
    /// Whether the scenario allows too many machines.
    pub(crate) tolerate_surge: bool,
    /// A machine that never becomes available.
    pub(crate) unhealthy: Option<i64>,
}

#[derive(Debug, Clone)]
pub(crate) struct SimMachine {
    pub(crate) index: i64,
    pub(crate) version: usize,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) deleting: bool,
    pub(crate) unhealthy: bool,
}

impl SimMachine {
    pub(crate) fn new(index: i64, version: usize) -> Self {
        Self { index, version, annotations: BTreeMap::new(), deleting: false, unhealthy: false }
    }

    pub(crate) fn name(&self) -> String {
        format!("m{}", self.index)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.annotations.contains_key(key)
    }

    pub(crate) fn snapshot(&self, owner: &str) -> Machine {
        Machine {
            name: self.name(),
            owner: owner.to_owned(),
            annotations: self.annotations.clone(),
            deleting: self.deleting,
            has_node: true,
            unhealthy: self.unhealthy,
            ..Machine::default()
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct SimSet {
    pub(crate) set: MachineSet,
    pub(crate) version: usize,
    pub(crate) machines: Vec<SimMachine>,
}

impl SimSet {
    pub(crate) fn new(version: usize, machines: Vec<SimMachine>, unhealthy: i64) -> Self {
        let count = machines.len() as i64;
        let set = MachineSet {
            name: format!("ms{version}"),
            spec_replicas: count,
            status_replicas: count,
            available_replicas: count - unhealthy,
            template: template(version),
            ..MachineSet::default()
        };
        Self { set, version, machines }
    }

    pub(crate) fn snapshots(&self) -> Vec<Machine> {
        self.machines.iter().map(|machine| machine.snapshot(&self.set.name)).collect()
    }

    pub(crate) fn machine_list(&self) -> String {
        let acknowledged: BTreeSet<&str> = self.set.acknowledged_machines().collect();
        let names = self.machines.iter().map(|machine| {
            let mut name = machine.name();
            let pending = machine.has(keys::PENDING_ACKNOWLEDGE_MOVE);
            if pending && !acknowledged.contains(name.as_str()) {
                name.push('🟠');
            }
            if machine.has(keys::UPDATE_IN_PROGRESS) {
                name.push('🟡');
            }
            name
        });
        names.collect::<Vec<_>>().join(",")
    }

    pub(crate) fn summary(&self) -> String {
        self.summary_from(self.set.spec_replicas)
    }

    pub(crate) fn summary_from(&self, replicas_before: i64) -> String {
        let MachineSet { spec_replicas, status_replicas, .. } = self.set;
        let replicas = if replicas_before == spec_replicas {
            format!("{status_replicas}/{spec_replicas}")
        } else {
            format!("from {status_replicas}/{replicas_before} to {status_replicas}/{spec_replicas}")
        };
        format!(
            "{replicas} replicas, {} available, {} upToDate ({})",
            self.set.available_replicas,
            self.set.up_to_date_replicas,
            self.machine_list()
        )
    }
}

pub(crate) fn template(version: usize) -> Template {
    Template { failure_domain: format!("v{version}"), ..Template::default() }
}
