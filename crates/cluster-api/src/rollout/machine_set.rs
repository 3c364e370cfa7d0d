//! Decides how a MachineSet reaches its number of machines
//! (`docs/facts/machine-deployment.md#machineset-reconcile`).
//!
//! A move takes writes on both sides, each of which survives a crash:
//!
//! 1. The old MachineSet hands it over: owner, label and the two annotations in one patch
//!    ([`sync_replicas`] answers [`MachineSetAction::Move`]).
//! 2. The MachineDeployment counts it (`acknowledged-move`, see [`super::intent`]).
//! 3. The new MachineSet writes the desired objects and marks the hook pending
//!    ([`trigger_in_place`]).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::keys;
use super::types::{Machine, MachineSet};

/// Which machine is deleted first if there is no other preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionOrder {
    /// By name: stable, but arbitrary.
    #[default]
    Random,
    /// The newest first.
    Newest,
    /// The oldest first.
    Oldest,
}

impl DeletionOrder {
    /// Parses `spec.deletion.order`; an unknown value counts as `Random`.
    pub fn from_spec(value: &str) -> Self {
        match value {
            "Newest" => Self::Newest,
            "Oldest" => Self::Oldest,
            _ => Self::Random,
        }
    }
}

/// Priority of a machine for deletion; the greatest value is deleted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeletePriority {
    /// No reason to prefer this machine.
    Ordinary,
    /// It is unhealthy.
    Unhealthy,
    /// It is being updated in place: deleting it wastes the least work.
    Updating,
    /// A user annotated it.
    Annotated,
    /// It is being deleted already.
    Deleting,
}

/// Returns the priority of a machine for deletion.
pub fn delete_priority(machine: &Machine) -> DeletePriority {
    if machine.deleting {
        DeletePriority::Deleting
    } else if machine.annotations.contains_key(keys::DELETE_MACHINE) {
        DeletePriority::Annotated
    } else if machine.is_updating() {
        DeletePriority::Updating
    } else if machine.unhealthy {
        DeletePriority::Unhealthy
    } else {
        DeletePriority::Ordinary
    }
}

/// Returns all machines in deletion order.
pub fn in_deletion_order(machines: &[Machine], order: DeletionOrder) -> Vec<&Machine> {
    let age = |machine: &Machine| -> i128 {
        let created = machine.created_at.as_nanosecond();
        match order {
            DeletionOrder::Random => 0,
            DeletionOrder::Oldest => created,
            DeletionOrder::Newest => -created,
        }
    };
    let mut sorted: Vec<&Machine> = machines.iter().collect();
    sorted.sort_by_key(|machine| {
        (Reverse(delete_priority(machine)), age(machine), machine.name.clone())
    });
    sorted
}

/// The action of a MachineSet to reach its number of machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineSetAction {
    /// Nothing to do.
    None,
    /// Machines are missing, but creation is disabled.
    CreateDisabled {
        /// Number of missing machines.
        missing: usize,
    },
    /// Create this many machines.
    Create(usize),
    /// Move machines to another MachineSet.
    Move(Move),
    /// Delete these machines, in this order.
    Delete(Vec<String>),
}

/// A move of machines to another MachineSet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Move {
    /// The MachineSet that receives the machines.
    pub target: String,
    /// Machines to move.
    pub machines: Vec<String>,
    /// Machines to delete instead, because they wait for remediation.
    pub delete: Vec<String>,
    /// Number of machines that cannot be moved yet: they are being updated or have no node.
    pub held_back: usize,
}

/// Why a MachineSet cannot act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The MachineSet to move machines to does not exist.
    #[error("MachineSet {name} is set to move replicas to {target}, which does not exist")]
    TargetMissing {
        /// This MachineSet.
        name: String,
        /// The missing MachineSet.
        target: String,
    },
    /// The target does not accept machines from this MachineSet.
    #[error(
        "MachineSet {name} is set to move replicas to {target}, but {target} only accepts Machines \
         from {accepted}"
    )]
    TargetDoesNotAccept {
        /// This MachineSet.
        name: String,
        /// The MachineSet that should receive the machines.
        target: String,
        /// The MachineSets whose machines it accepts.
        accepted: String,
    },
}

/// Returns the machines that were moved to a MachineSet and that its MachineDeployment has not
/// counted: they are not in `spec.replicas` yet, so they must not count as surplus.
pub fn not_acknowledged<'a>(set: &MachineSet, machines: &'a [Machine]) -> Vec<&'a str> {
    if !set.receives_machines() {
        return Vec::new();
    }
    machines
        .iter()
        .filter(|machine| machine.is_pending_acknowledge())
        .map(|machine| machine.name.as_str())
        .collect()
}

/// Returns how many machines a MachineSet has beyond its replicas, without those that are not
/// counted yet. Zero or negative: there is no surplus.
pub fn surplus(set: &MachineSet, machines: &[Machine]) -> i64 {
    let pending = not_acknowledged(set, machines).len();
    i64::try_from(machines.len() - pending).unwrap_or(i64::MAX).saturating_sub(set.spec_replicas)
}

/// Decides the action of a MachineSet to reach its number of machines.
///
/// `machines` are those that it controls; `target` is the MachineSet of its `move` annotation, if
/// it exists. Call it after [`trigger_in_place`], as Cluster API does.
pub fn sync_replicas(
    set: &MachineSet,
    machines: &[Machine],
    target: Option<&MachineSet>,
    order: DeletionOrder,
) -> Result<MachineSetAction, SyncError> {
    let wanted = usize::try_from(set.spec_replicas).unwrap_or(0);
    if machines.len() < wanted {
        let missing = wanted - machines.len();
        let disabled = set.annotation(keys::DISABLE_MACHINE_CREATE) == Some("true");
        return Ok(if disabled {
            MachineSetAction::CreateDisabled { missing }
        } else {
            MachineSetAction::Create(missing)
        });
    }
    let Some(surplus) = usize::try_from(surplus(set, machines)).ok().filter(|count| *count > 0)
    else {
        return Ok(MachineSetAction::None);
    };
    if let Some(target_name) = set.annotation(keys::MOVE_MACHINES) {
        return start_move(set, machines, target_name, target, surplus, order)
            .map(MachineSetAction::Move);
    }
    let delete = in_deletion_order(machines, order);
    Ok(MachineSetAction::Delete(
        delete.into_iter().take(surplus).map(|machine| machine.name.clone()).collect(),
    ))
}

/// Checks that the MachineSet of a `move` annotation accepts machines from this one.
pub fn check_target(
    set: &MachineSet,
    target_name: &str,
    target: Option<&MachineSet>,
) -> Result<(), SyncError> {
    let Some(target) = target.filter(|target| target.name == target_name) else {
        return Err(SyncError::TargetMissing {
            name: set.name.clone(),
            target: target_name.to_owned(),
        });
    };
    let accepted = target.annotation(keys::RECEIVE_MACHINES).unwrap_or_default();
    if keys::split_list(accepted).any(|name| name == set.name) {
        return Ok(());
    }
    Err(SyncError::TargetDoesNotAccept {
        name: set.name.clone(),
        target: target_name.to_owned(),
        accepted: accepted.to_owned(),
    })
}

fn start_move(
    set: &MachineSet,
    machines: &[Machine],
    target_name: &str,
    target: Option<&MachineSet>,
    count: usize,
    order: DeletionOrder,
) -> Result<Move, SyncError> {
    check_target(set, target_name, target)?;
    let mut result = Move { target: target_name.to_owned(), ..Move::default() };
    let mut left = count;
    for machine in in_deletion_order(machines, order) {
        if left == 0 {
            break;
        }
        if machine.deleting {
            left -= 1;
        } else if machine.needs_remediation {
            // A broken machine would stay broken after a move.
            result.delete.push(machine.name.clone());
            left -= 1;
        } else if !machine.is_updating() && machine.has_node {
            result.machines.push(machine.name.clone());
            left -= 1;
        }
    }
    result.held_back = left;
    Ok(result)
}

/// The action of the new MachineSet on a machine whose in-place update has to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// The MachineDeployment has not counted the machine yet.
    WaitForAcknowledge {
        /// The Machine.
        machine: String,
    },
    /// Write the desired infrastructure machine, bootstrap config and Machine, then mark the hook
    /// pending.
    CompleteMove {
        /// The Machine.
        machine: String,
        /// Remove `pending-acknowledge-move` in the same patch as the hook.
        drop_pending_acknowledge: bool,
    },
}

/// Decides about every machine with `update-in-progress` and without a pending hook: machines that
/// were just moved, and those whose earlier attempt was interrupted.
pub fn trigger_in_place(set: &MachineSet, machines: &[Machine]) -> Vec<Trigger> {
    let acknowledged: BTreeSet<&str> = set.acknowledged_machines().collect();
    let started = machines.iter().filter(|machine| {
        machine.annotations.contains_key(keys::UPDATE_IN_PROGRESS)
            && !machine.has_pending_update_hook()
    });
    started
        .map(|machine| {
            let pending = machine.is_pending_acknowledge();
            let name = machine.name.clone();
            if pending && set.receives_machines() && !acknowledged.contains(name.as_str()) {
                Trigger::WaitForAcknowledge { machine: name }
            } else {
                Trigger::CompleteMove { machine: name, drop_pending_acknowledge: pending }
            }
        })
        .collect()
}

/// Counts of a MachineSet's status that rollouts depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// `status.replicas`.
    pub replicas: i64,
    /// `status.readyReplicas`.
    pub ready: i64,
    /// `status.availableReplicas`.
    pub available: i64,
    /// `status.upToDateReplicas`.
    pub up_to_date: i64,
}

/// The facts about one machine that a MachineSet's status counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineFacts {
    /// Whether its condition `Ready` is true.
    pub ready: bool,
    /// Whether its condition `Available` is true.
    pub available: bool,
    /// Whether its condition `UpToDate` is true.
    pub up_to_date: bool,
}

/// Counts machines for a MachineSet's status: a machine that is being updated counts only in
/// `replicas`.
pub fn counts<'a>(machines: impl IntoIterator<Item = (&'a Machine, MachineFacts)>) -> Counts {
    let mut counts = Counts::default();
    for (machine, facts) in machines {
        counts.replicas += 1;
        if !machine.is_updating() {
            counts.ready += i64::from(facts.ready);
            counts.available += i64::from(facts.available);
            counts.up_to_date += i64::from(facts.up_to_date);
        }
    }
    counts
}

/// Returns the oldest of some machines, by creation time and then by name.
pub(super) fn oldest<'a, T>(
    items: impl IntoIterator<Item = &'a T>,
    key: impl Fn(&T) -> (Timestamp, &str),
) -> Option<&'a T> {
    items.into_iter().min_by(|a, b| key(a).cmp(&key(b)))
}

#[cfg(test)]
#[path = "machine_set_tests.rs"]
mod tests;
