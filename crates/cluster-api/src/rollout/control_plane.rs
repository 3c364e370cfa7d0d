//! Decides the next step of a KubeadmControlPlane, and for which machine
//! (`docs/facts/control-plane.md#reconcile-order`, `docs/facts/control-plane.md#rollout` and
//! `docs/facts/control-plane.md#preflight`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use super::keys;
use super::machine_set::oldest;
use crate::kinds::{annotations_show_update, update_hook_pending};

/// A control plane and its machines.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ControlPlane {
    /// `spec.replicas`.
    pub replicas: i64,
    /// `spec.rollout.strategy.rollingUpdate.maxSurge`: 0 or 1.
    pub max_surge: i64,
    /// The feature gate `InPlaceUpdates`.
    pub in_place_updates: bool,
    /// Whether its version differs from the topology's without an upgrade step that explains it.
    pub topology_version_mismatch: bool,
    /// Whether etcd runs on these machines.
    pub managed_etcd: bool,
    /// Failure domains of the cluster for control planes.
    pub failure_domains: BTreeSet<String>,
    /// Its machines.
    pub machines: Vec<ControlPlaneMachine>,
    /// Whether a machine can be updated in place: the extension's responses so far.
    pub can_update: BTreeMap<String, bool>,
}

/// A control plane machine.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ControlPlaneMachine {
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// `spec.failureDomain`.
    pub failure_domain: Option<String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Whether it matches the control plane's spec.
    pub up_to_date: bool,
    /// Whether it must be replaced by date (`rollout.after`, certificates), which no in-place
    /// update can satisfy.
    pub expired: bool,
    /// Whether `status.nodeRef` is set.
    pub has_node: bool,
    /// Components that are unhealthy or have no known health.
    pub unhealthy: BTreeSet<Component>,
}

/// A component of a control plane machine that must be healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// `APIServerPodHealthy`.
    ApiServer,
    /// `ControllerManagerPodHealthy`.
    ControllerManager,
    /// `SchedulerPodHealthy`.
    Scheduler,
    /// `EtcdPodHealthy`.
    EtcdPod,
    /// `EtcdMemberHealthy`.
    EtcdMember,
}

impl Component {
    /// All components.
    pub const ALL: [Self; 5] = [
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::EtcdPod,
        Self::EtcdMember,
    ];

    /// Returns the Machine condition that reports the component.
    pub fn condition(self) -> &'static str {
        match self {
            Self::ApiServer => "APIServerPodHealthy",
            Self::ControllerManager => "ControllerManagerPodHealthy",
            Self::Scheduler => "SchedulerPodHealthy",
            Self::EtcdPod => "EtcdPodHealthy",
            Self::EtcdMember => "EtcdMemberHealthy",
        }
    }

    pub(super) fn is_etcd(self) -> bool {
        matches!(self, Self::EtcdPod | Self::EtcdMember)
    }
}

/// Why a change is not allowed now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreflightFailure {
    /// The topology controller has not updated the control plane yet.
    TopologyVersionMismatch,
    /// A machine is being deleted.
    MachineDeleting(String),
    /// A machine has no node yet.
    NoNode(String),
    /// A component is unhealthy, or its health is not known.
    Unhealthy(String, Component),
}

impl fmt::Display for PreflightFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TopologyVersionMismatch => {
                write!(out, "the Cluster's topology has another version than the control plane")
            }
            Self::MachineDeleting(name) => write!(out, "Machine {name} is being deleted"),
            Self::NoNode(name) => write!(out, "Machine {name} does not have a node yet"),
            Self::Unhealthy(name, component) => {
                write!(out, "Machine {name}: {} is not true", component.condition())
            }
        }
    }
}

/// Why a machine is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleDownReason {
    /// There are more machines than replicas.
    TooManyMachines,
    /// During a rollout, this machine may not be updated in place: the gate is off, a user
    /// annotated it, it expired, or enough machines are up to date already.
    NotEligible,
    /// Only this machine fails the preflight checks.
    FailsPreflight,
    /// The extension does not cover the change.
    NotCovered,
}

/// Why a machine is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleUpReason {
    /// There are fewer machines than replicas.
    TooFewMachines,
    /// A rollout uses maxSurge.
    Surge,
}

/// The next step of a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to do.
    UpToDate,
    /// Complete an update that was started: this machine was marked, and its desired objects or its
    /// hook still have to be written. Not gated.
    CompleteTrigger(String),
    /// An in-place update is in progress: everything else waits. Not gated.
    WaitForUpdate(String),
    /// The preflight checks forbid any change.
    Wait(Vec<PreflightFailure>),
    /// Create a machine.
    ScaleUp(ScaleUpReason),
    /// Call the extension for this machine, then decide again.
    AskExtension(String),
    /// Start the in-place update of this machine.
    TriggerInPlace(String),
    /// Delete this machine.
    ScaleDown(String, ScaleDownReason),
}

/// Decides the next step of a control plane.
pub fn decide(control_plane: &ControlPlane) -> Decision {
    if let Some(machine) = first(control_plane, |machine| {
        machine.annotations.contains_key(keys::UPDATE_IN_PROGRESS) && !machine.hook_pending()
    }) {
        return Decision::CompleteTrigger(machine.name.clone());
    }
    if let Some(machine) = first(control_plane, ControlPlaneMachine::is_updating) {
        return Decision::WaitForUpdate(machine.name.clone());
    }
    let count = i64::try_from(control_plane.machines.len()).unwrap_or(i64::MAX);
    if control_plane.machines.iter().any(|machine| !machine.up_to_date || machine.expired) {
        return rolling_update(control_plane, count);
    }
    if count < control_plane.replicas {
        return scale_up(control_plane, ScaleUpReason::TooFewMachines);
    }
    if count > control_plane.replicas {
        return select(control_plane).map_or(Decision::UpToDate, |machine| {
            scale_down(control_plane, machine, ScaleDownReason::TooManyMachines)
        });
    }
    Decision::UpToDate
}

fn rolling_update(control_plane: &ControlPlane, count: i64) -> Decision {
    if count < control_plane.replicas.saturating_add(control_plane.max_surge) {
        return scale_up(control_plane, ScaleUpReason::Surge);
    }
    let Some(machine) = select(control_plane) else {
        return Decision::UpToDate;
    };
    let up_to_date = control_plane
        .machines
        .iter()
        .filter(|machine| machine.up_to_date && !machine.expired)
        .count();
    let enough = i64::try_from(up_to_date).unwrap_or(i64::MAX) >= control_plane.replicas;
    if !control_plane.in_place_updates || !machine.is_eligible_for_in_place() || enough {
        return scale_down(control_plane, machine, ScaleDownReason::NotEligible);
    }
    let failures = preflight(control_plane, None);
    if !failures.is_empty() {
        // A machine that itself fails the checks is replaced, not updated.
        return if preflight(control_plane, Some(&machine.name)).is_empty() {
            Decision::ScaleDown(machine.name.clone(), ScaleDownReason::FailsPreflight)
        } else {
            Decision::Wait(failures)
        };
    }
    match control_plane.can_update.get(&machine.name) {
        None => Decision::AskExtension(machine.name.clone()),
        Some(true) => Decision::TriggerInPlace(machine.name.clone()),
        Some(false) => scale_down(control_plane, machine, ScaleDownReason::NotCovered),
    }
}

fn scale_up(control_plane: &ControlPlane, reason: ScaleUpReason) -> Decision {
    let failures = preflight(control_plane, None);
    if failures.is_empty() { Decision::ScaleUp(reason) } else { Decision::Wait(failures) }
}

fn scale_down(
    control_plane: &ControlPlane,
    machine: &ControlPlaneMachine,
    reason: ScaleDownReason,
) -> Decision {
    let failures = preflight(control_plane, Some(&machine.name));
    if failures.is_empty() {
        Decision::ScaleDown(machine.name.clone(), reason)
    } else {
        Decision::Wait(failures)
    }
}

/// Runs the checks before any change; ignores the health of the machine `without`.
pub fn preflight(control_plane: &ControlPlane, without: Option<&str>) -> Vec<PreflightFailure> {
    let mut failures = BTreeSet::new();
    if control_plane.topology_version_mismatch {
        failures.insert(PreflightFailure::TopologyVersionMismatch);
    }
    for machine in &control_plane.machines {
        let name = || machine.name.clone();
        if machine.deleting {
            failures.insert(PreflightFailure::MachineDeleting(name()));
        }
        if without == Some(machine.name.as_str()) {
            continue;
        }
        if !machine.has_node {
            failures.insert(PreflightFailure::NoNode(name()));
            continue;
        }
        let unhealthy = machine.unhealthy.iter().copied();
        failures.extend(
            unhealthy
                .filter(|component| control_plane.managed_etcd || !component.is_etcd())
                .map(|component| PreflightFailure::Unhealthy(name(), component)),
        );
    }
    failures.into_iter().collect()
}

/// Selects the next machine to delete or update: from those that a user marked, else the broken,
/// else the outdated, else all; among these, the oldest in the failure domain with the most
/// machines.
pub fn select(control_plane: &ControlPlane) -> Option<&ControlPlaneMachine> {
    let machines = &control_plane.machines;
    let outdated = |machine: &&ControlPlaneMachine| !machine.up_to_date || machine.expired;
    let marked =
        |machine: &&ControlPlaneMachine| machine.annotations.contains_key(keys::DELETE_MACHINE);
    let broken = |machine: &&ControlPlaneMachine| {
        machine.unhealthy.iter().any(|component| control_plane.managed_etcd || !component.is_etcd())
    };
    let groups: [Vec<&ControlPlaneMachine>; 5] = [
        machines.iter().filter(outdated).filter(marked).collect(),
        machines.iter().filter(marked).collect(),
        machines.iter().filter(outdated).filter(broken).collect(),
        machines.iter().filter(outdated).collect(),
        machines.iter().collect(),
    ];
    let eligible = groups.into_iter().find(|group| !group.is_empty())?;
    let domain = fullest_failure_domain(control_plane, &eligible);
    let there = eligible.iter().filter(|machine| machine.failure_domain == domain);
    oldest(there.copied(), ControlPlaneMachine::age)
}

/// Returns the failure domain to shrink: one that the cluster does not offer (that of its oldest
/// machine), else the one with the most machines of the whole control plane; ties go to the first
/// name.
fn fullest_failure_domain(
    control_plane: &ControlPlane,
    eligible: &[&ControlPlaneMachine],
) -> Option<String> {
    let offered = |machine: &&&ControlPlaneMachine| {
        machine
            .failure_domain
            .as_ref()
            .is_some_and(|domain| control_plane.failure_domains.contains(domain))
    };
    let elsewhere = eligible.iter().filter(|machine| !offered(machine)).copied();
    if let Some(machine) = oldest(elsewhere, ControlPlaneMachine::age) {
        return machine.failure_domain.clone();
    }
    let count = |domain: &Option<String>| {
        control_plane.machines.iter().filter(|machine| machine.failure_domain == *domain).count()
    };
    let domains: BTreeSet<&Option<String>> =
        eligible.iter().map(|machine| &machine.failure_domain).collect();
    // `max_by_key` returns the last of equal elements; reverse, so that the first name wins.
    domains.into_iter().rev().max_by_key(|domain| count(domain)).cloned().flatten()
}

fn first(
    control_plane: &ControlPlane,
    wanted: impl Fn(&ControlPlaneMachine) -> bool,
) -> Option<&ControlPlaneMachine> {
    oldest(
        control_plane.machines.iter().filter(|machine| wanted(machine)),
        ControlPlaneMachine::age,
    )
}

impl ControlPlaneMachine {
    fn age(&self) -> (Timestamp, &str) {
        (self.created_at, &self.name)
    }

    fn hook_pending(&self) -> bool {
        update_hook_pending(&self.annotations)
    }

    /// Reports whether an in-place update is in progress.
    pub fn is_updating(&self) -> bool {
        annotations_show_update(&self.annotations)
    }

    /// Reports whether an in-place update could bring the machine up to date, as far as the control
    /// plane knows.
    pub fn is_eligible_for_in_place(&self) -> bool {
        !self.up_to_date
            && !self.expired
            && !self.annotations.contains_key(keys::DELETE_MACHINE)
            && !self.annotations.contains_key(keys::REMEDIATE_MACHINE)
    }
}

#[cfg(test)]
#[path = "control_plane_tests.rs"]
mod tests;
