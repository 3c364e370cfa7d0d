//! Queries of a world's state, cheap enough for any time.

use std::{collections::BTreeMap, sync::Arc};

use refit_kinds::{
    json::{is_true, name, namespace, text},
    keys, refit,
};
use serde_json::Value;

use super::{World, lock};

const MACHINES: &str = "machines.cluster.x-k8s.io";
const MACHINE_SETS: &str = "machinesets.cluster.x-k8s.io";
const DEPLOYMENTS: &str = "machinedeployments.cluster.x-k8s.io";
const CONTROL_PLANES: &str = "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io";
const CONTROL_PLANES_OF_CANONICAL: &str = "ck8scontrolplanes.controlplane.cluster.x-k8s.io";
const NODE_UPDATES: &str = "nodeupdates.refit.dev";
const UPDATE_GROUPS: &str = "updategroups.refit.dev";

/// Annotations that a Machine carries only during an operation.
pub(crate) const PASSING: [&str; 7] = [
    keys::UPDATE_IN_PROGRESS,
    keys::PENDING_ACKNOWLEDGE_MOVE,
    keys::PENDING_HOOKS,
    keys::SKIP_REMEDIATION,
    keys::GUARDED_BY_US,
    keys::PRE_DRAIN_HOOK,
    keys::RETRY,
];

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object["metadata"]["annotations"].get(key)
}

impl World {
    /// The number of changes so far to the objects that this module returns, of each API server. Equal
    /// revisions mean equal answers.
    pub(crate) fn revision(&self) -> Vec<u64> {
        let workloads = lock(&self.inner.workloads);
        let mirrors = workloads.values().map(|workload| &workload.mirror);
        let all = std::iter::once(&self.inner.management_mirror).chain(mirrors);
        all.map(|mirror| mirror.revision().whole).collect()
    }

    /// Every Machine, as stored, in order of namespace and name.
    pub fn machines(&self) -> Vec<Arc<Value>> {
        self.inner.management_mirror.list(MACHINES)
    }

    /// Every MachineSet, as stored, in order of namespace and name.
    pub fn machine_sets(&self) -> Vec<Arc<Value>> {
        self.inner.management_mirror.list(MACHINE_SETS)
    }

    /// Every NodeUpdate, as stored, in order of namespace and name.
    pub fn node_updates(&self) -> Vec<Arc<Value>> {
        self.inner.management_mirror.list(NODE_UPDATES)
    }

    /// Every UpdateGroup, as stored, in order of namespace and name.
    pub fn update_groups(&self) -> Vec<Arc<Value>> {
        self.inner.management_mirror.list(UPDATE_GROUPS)
    }

    /// The Nodes of all workload clusters, by cluster and name.
    pub fn nodes(&self) -> BTreeMap<(String, String), Arc<Value>> {
        let workloads = lock(&self.inner.workloads);
        workloads
            .iter()
            .flat_map(|(key, workload)| {
                let nodes = workload.mirror.list("nodes");
                nodes.into_iter().map(|node| ((key.clone(), name(&node).to_owned()), node))
            })
            .collect()
    }

    /// The Node of a Machine.
    pub(crate) fn node_of(&self, machine: &Value) -> Option<Arc<Value>> {
        let key = format!("{}/{}", namespace(machine), text(machine, "/spec/clusterName"));
        let workloads = lock(&self.inner.workloads);
        let mirror = &workloads.get(&key)?.mirror;
        mirror.get("nodes", "", text(machine, "/status/nodeRef/name"))
    }

    /// The number of Machines that the owners request.
    pub fn wanted_machines(&self) -> usize {
        let mirror = &self.inner.management_mirror;
        let replicas = |object: &Arc<Value>| object["spec"]["replicas"].as_u64().unwrap_or(1);
        let owners = [CONTROL_PLANES, CONTROL_PLANES_OF_CANONICAL, DEPLOYMENTS];
        let all = owners.iter().flat_map(|owner| mirror.list(owner));
        usize::try_from(all.map(|object| replicas(&object)).sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Whether every requested Machine exists and is available.
    pub fn is_ready(&self) -> bool {
        let machines = self.machines();
        machines.len() == self.wanted_machines()
            && machines.iter().all(|machine| {
                is_true(machine, refit_kinds::conditions::AVAILABLE)
                    && text(machine, "/metadata/deletionTimestamp").is_empty()
            })
    }

    /// Whether no update is in progress: every NodeUpdate is finished, no Machine has an annotation
    /// of an update, no slot is taken.
    pub fn is_quiet(&self) -> bool {
        self.node_updates().iter().all(|update| is_final(update))
            && self
                .machines()
                .iter()
                .all(|machine| PASSING.iter().all(|key| annotation(machine, key).is_none()))
            && self
                .update_groups()
                .iter()
                .all(|group| group["status"]["slots"].as_array().is_none_or(Vec::is_empty))
    }

    /// Whether every machine runs this version, is available and has no update in progress.
    pub fn is_updated(&self, version: &str) -> bool {
        self.is_ready()
            && self.is_quiet()
            && self.machines().iter().all(|machine| {
                text(machine, "/spec/version") == version
                    && self.node_of(machine).is_some_and(|node| {
                        text(&node, "/status/nodeInfo/kubeletVersion") == version
                    })
            })
    }
}

/// Whether a NodeUpdate has finished.
pub(crate) fn is_final(update: &Value) -> bool {
    phase(update).is_final()
}

/// The phase of a NodeUpdate.
pub(crate) fn phase(update: &Value) -> refit::Phase {
    serde_json::from_value(update["status"]["phase"].clone()).unwrap_or_default()
}

/// Whether a Machine belongs to a MachineDeployment.
#[cfg(feature = "sabotage")]
pub(crate) fn is_worker(machine: &Value) -> bool {
    let labels = &machine["metadata"]["labels"];
    labels.get(keys::DEPLOYMENT_NAME).is_some() && labels.get(keys::CONTROL_PLANE).is_none()
}
