//! The snapshot that all rollout decisions use: plain data, no client types.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::version::StatedVersion;
use serde_json::Value;

use super::keys;
use crate::IntOrPercent;
use crate::kinds::{annotations_show_update, update_hook_pending};

/// How a MachineDeployment rolls out a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// The controller replaces or updates machines by itself.
    RollingUpdate {
        /// Maximum number of machines beyond the replicas.
        max_surge: IntOrPercent,
        /// Maximum number of machines missing from the replicas.
        max_unavailable: IntOrPercent,
    },
    /// Machines are replaced only when a user deletes them; never updated in place.
    OnDelete,
}

/// The limits of a rollout above and below the replicas, in machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fenceposts {
    /// Maximum number of machines beyond the replicas.
    pub surge: i64,
    /// Maximum number of unavailable machines.
    pub unavailable: i64,
}

impl Strategy {
    /// Creates a rolling update with these limits.
    pub fn rolling_update(max_surge: IntOrPercent, max_unavailable: IntOrPercent) -> Self {
        Self::RollingUpdate { max_surge, max_unavailable }
    }

    /// Returns the limits in machines: surge rounded up, unavailable rounded down. If both are 0,
    /// one machine may be unavailable; otherwise the rollout could never progress
    /// (`docs/facts/machine-deployment.md#rolling-update`).
    pub fn fenceposts(&self, replicas: i64) -> Fenceposts {
        let Self::RollingUpdate { max_surge, max_unavailable } = self else {
            return Fenceposts::default();
        };
        let surge = max_surge.rounded_up(replicas);
        let unavailable = match max_unavailable.rounded_down(replicas) {
            0 if surge == 0 => 1,
            unavailable => unavailable,
        };
        Fenceposts { surge, unavailable: unavailable.min(replicas).max(0) }
    }
}

/// The fields of a machine template whose change requires a rollout.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Template {
    /// `spec.version`.
    pub version: StatedVersion,
    /// `spec.bootstrap`, complete.
    pub bootstrap: Value,
    /// `spec.infrastructureRef`.
    pub infrastructure_ref: Value,
    /// `spec.failureDomain`.
    pub failure_domain: String,
}

/// A MachineDeployment as input of the planner.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineDeployment {
    /// Its name.
    pub name: String,
    /// `spec.replicas`.
    pub replicas: i64,
    /// `spec.rollout.strategy`.
    pub strategy: Strategy,
    /// `spec.template.spec`.
    pub template: Template,
    /// `spec.rollout.after`: machines created before it are replaced once it has passed.
    pub rollout_after: Option<Timestamp>,
}

impl MachineDeployment {
    /// Returns its limits in machines.
    pub fn fenceposts(&self) -> Fenceposts {
        self.strategy.fenceposts(self.replicas)
    }
}

/// A MachineSet as input of the planner and of its own decisions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MachineSet {
    /// Its name.
    pub name: String,
    /// Creation time: old MachineSets are scaled down in this order.
    pub created_at: Timestamp,
    /// `spec.replicas`.
    pub spec_replicas: i64,
    /// `status.replicas`.
    pub status_replicas: i64,
    /// `status.availableReplicas`.
    pub available_replicas: i64,
    /// `status.upToDateReplicas`.
    pub up_to_date_replicas: i64,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// `spec.template.spec`.
    pub template: Template,
}

impl MachineSet {
    /// Returns the value of an annotation that is set and not empty.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Reports whether it accepts machines from other MachineSets.
    pub fn receives_machines(&self) -> bool {
        self.annotation(keys::RECEIVE_MACHINES).is_some()
    }

    /// Returns the machines that its MachineDeployment has counted after a move.
    pub fn acknowledged_machines(&self) -> impl Iterator<Item = &str> {
        keys::split_list(self.annotation(keys::ACKNOWLEDGED_MOVE).unwrap_or_default())
    }
}

/// A Machine of a MachineDeployment.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// The MachineSet that controls it.
    pub owner: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Whether `status.nodeRef` is set.
    pub has_node: bool,
    /// Whether it counts as unhealthy in the order of deletion.
    pub unhealthy: bool,
    /// Whether a MachineHealthCheck failed and the owner has not remediated it yet.
    pub needs_remediation: bool,
}

impl Machine {
    /// Reports whether the UpdateMachine hook is pending.
    pub fn has_pending_update_hook(&self) -> bool {
        update_hook_pending(&self.annotations)
    }

    /// Reports whether an in-place update is in progress.
    pub fn is_updating(&self) -> bool {
        annotations_show_update(&self.annotations)
    }

    /// Reports whether it was moved and the MachineDeployment has not counted it yet.
    pub fn is_pending_acknowledge(&self) -> bool {
        self.annotations.contains_key(keys::PENDING_ACKNOWLEDGE_MOVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posts(surge: &str, unavailable: &str, replicas: i64) -> (i64, i64) {
        let strategy =
            Strategy::rolling_update(surge.parse().unwrap(), unavailable.parse().unwrap());
        let posts = strategy.fenceposts(replicas);
        (posts.surge, posts.unavailable)
    }

    #[test]
    fn surge_rounds_up_and_unavailable_rounds_down() {
        assert_eq!(posts("25%", "25%", 7), (2, 1));
        assert_eq!(posts("30%", "20%", 10), (3, 2));
        assert_eq!(posts("1%", "99%", 3), (1, 2));
    }

    #[test]
    fn a_rollout_that_may_go_neither_up_nor_down_may_go_down_by_one() {
        assert_eq!(posts("0", "0", 3), (0, 1));
        assert_eq!(posts("0%", "25%", 3), (0, 1));
    }

    #[test]
    fn unavailable_is_never_more_than_the_replicas() {
        assert_eq!(posts("0", "10", 6), (0, 6));
        assert_eq!(posts("0", "10", 0), (0, 0));
        assert_eq!(posts("0", "0", 0), (0, 0));
    }

    #[test]
    fn on_delete_has_no_room_at_all() {
        assert_eq!(Strategy::OnDelete.fenceposts(5), Fenceposts::default());
    }

    #[test]
    fn a_machine_is_updating_by_annotation_or_by_pending_hook() {
        let mut machine = Machine::default();
        assert!(!machine.is_updating());
        machine.annotations.insert(keys::PENDING_HOOKS.into(), "A,UpdateMachine".into());
        assert!(machine.is_updating());
        machine.annotations.insert(keys::PENDING_HOOKS.into(), "A".into());
        assert!(!machine.is_updating());
        machine.annotations.insert(keys::UPDATE_IN_PROGRESS.into(), String::new());
        assert!(machine.is_updating());
    }
}
