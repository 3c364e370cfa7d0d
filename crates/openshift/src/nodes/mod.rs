//! NodeKeeper: it looks after the nodes that the machine-config operator has cordoned for an upgrade, which drains them. Pods
//! that do not leave are removed by force, and a drain that takes too long raises an alert
//! (`docs/facts/openshift-upgrades.md#nodekeeper`).
//!
//! A look at a node:
//! 1. [`Attention::of`] decides whether the node needs any. Its pods and the PodDisruptionBudgets are read only for
//!    [`Attention::Drain`].
//! 2. [`look`] decides on the [`DrainAction`]s, which are taken in order. A failed one ends the look.
//! 3. [`drain_timeout`] decides on the metric. The next look follows after [`AGAIN`].

mod drain;
mod strategy;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt as _;

pub use self::{
    drain::{DrainAction, DrainLook, DrainSeen, DrainSettings, UnknownDrainStart, look},
    strategy::Strategy,
};
use crate::{
    Compat,
    kinds::MachineConfigPool,
    pools::WorkerCount,
    upgrade_config::{Phase, UpgradeConfig},
};

/// When a cordoned node is looked at again.
pub const AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// Label of the nodes of the control plane.
const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/master";
/// Key of the taint of a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Annotation with what the machine-config daemon does on a node.
const DAEMON_STATE: &str = "machineconfiguration.openshift.io/state";

/// What a node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Nothing: it is of the control plane, or no worker is upgraded. Its metric stays as it is.
    Unneeded,
    /// Its metric `node_drain_timeout` becomes 0: it is not cordoned, or was deleted.
    Reset,
    /// It is cordoned: the rest of the look follows.
    Drain,
}

impl Attention {
    /// Decides by the UpgradeConfig, if there is one, all MachineConfigPools, and the node, unless it was deleted.
    pub fn of(
        config: Option<&UpgradeConfig>,
        pools: &[MachineConfigPool],
        node: Option<&Node>,
        compat: Compat,
    ) -> Self {
        let entry = config.and_then(UpgradeConfig::entry);
        let is_at_work = entry.is_some_and(|entry| entry.phase == Phase::Upgrading)
            && WorkerCount::of(pools, compat).is_some_and(WorkerCount::is_upgrading);
        let is_control_plane = |node: &Node| node.labels().contains_key(CONTROL_PLANE_LABEL);
        if !is_at_work || node.is_some_and(is_control_plane) {
            return Self::Unneeded;
        }
        match node.and_then(cordon) {
            Some(_) => Self::Drain,
            None => Self::Reset,
        }
    }
}

/// The value of the metric `node_drain_timeout` of a cordoned node: 1 for `true`, 0 for `false`, unchanged for `None`.
///
/// The machine-config daemon works on a node that is drained for an upgrade. An admin may have cordoned any other one.
pub fn drain_timeout(node: &Node, has_failed: bool) -> Option<bool> {
    if !has_failed || node.metadata.deletion_timestamp.is_some() {
        return Some(false);
    }
    is_worked_on(node).then_some(true)
}

/// Whether the machine-config daemon works on a node.
pub(crate) fn is_worked_on(node: &Node) -> bool {
    node.annotations().get(DAEMON_STATE).is_some_and(|state| state == "Working")
}

/// The taint of a node that is cordoned.
pub(crate) fn cordon(node: &Node) -> Option<&Taint> {
    let spec = node.spec.as_ref().filter(|spec| spec.unschedulable == Some(true))?;
    let mut taints = spec.taints.iter().flatten();
    taints.find(|taint| taint.key == UNSCHEDULABLE && taint.effect == "NoSchedule")
}
