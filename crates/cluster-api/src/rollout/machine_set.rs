//! What a MachineSet does to have the machines that it should have (`spec/capi.md` 3.5).
//!
//! Moving a machine takes both sides, each with a write that survives a crash:
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

/// Which machine goes first when nothing else tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionOrder {
    /// By name: stable, but without meaning.
    #[default]
    Random,
    /// The newest first.
    Newest,
    /// The oldest first.
    Oldest,
}

impl DeletionOrder {
    /// Reads `spec.deletion.order`; an unknown value counts as `Random`.
    pub fn from_spec(value: &str) -> Self {
        match value {
            "Newest" => Self::Newest,
            "Oldest" => Self::Oldest,
            _ => Self::Random,
        }
    }
}

/// How much a machine wants to go; a greater value goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeletePriority {
    /// Nothing speaks for this one.
    Ordinary,
    /// It is unhealthy.
    Unhealthy,
    /// It is being updated in place: deleting it wastes least.
    Updating,
    /// A user annotated it.
    Annotated,
    /// It is being deleted already.
    Deleting,
}

/// How much a machine wants to go.
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

/// All machines, the first to go first.
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

/// What a MachineSet has to do about its number of machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineSetAction {
    /// Nothing.
    None,
    /// Nothing, although machines are missing: creation is disabled.
    CreateDisabled {
        /// How many are missing.
        missing: usize,
    },
    /// Create this many machines.
    Create(usize),
    /// Give machines to another MachineSet.
    Move(Move),
    /// Delete these machines, in this order.
    Delete(Vec<String>),
}

/// What a MachineSet that gives machines away has to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Move {
    /// The MachineSet that takes them.
    pub target: String,
    /// Machines to hand over.
    pub machines: Vec<String>,
    /// Machines to delete instead, because they wait for remediation.
    pub delete: Vec<String>,
    /// How many more should go, but cannot yet: they are being updated or have no node.
    pub held_back: usize,
}

/// Why a MachineSet can do nothing although it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The MachineSet to move machines to does not exist.
    #[error("MachineSet {name} is set to move replicas to {target}, which does not exist")]
    TargetMissing {
        /// This MachineSet.
        name: String,
        /// The one that is missing.
        target: String,
    },
    /// Both sides have to agree on a move.
    #[error(
        "MachineSet {name} is set to move replicas to {target}, but {target} only accepts Machines \
         from {accepted}"
    )]
    TargetDoesNotAccept {
        /// This MachineSet.
        name: String,
        /// The one that should take the machines.
        target: String,
        /// From whom it takes machines.
        accepted: String,
    },
}

/// The machines that a MachineSet was given and that its MachineDeployment has not counted: they
/// are not in `spec.replicas` yet, so they must not be taken for surplus.
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

/// How many machines a MachineSet has beyond its replicas, without those that nobody counts yet.
/// Not positive: there is nothing to give away.
pub fn surplus(set: &MachineSet, machines: &[Machine]) -> i64 {
    let pending = not_acknowledged(set, machines).len();
    i64::try_from(machines.len() - pending).unwrap_or(i64::MAX).saturating_sub(set.spec_replicas)
}

/// Decides what a MachineSet does about its number of machines.
///
/// `machines` are the ones that it controls; `target` is the MachineSet of its `move` annotation,
/// if that exists. Call it after [`trigger_in_place`], as Cluster API does.
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

/// Checks that the MachineSet of a `move` annotation takes machines from this one.
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
            // A broken machine would stay broken where it is moved to.
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

/// What the new MachineSet does with a machine whose in-place update has to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// The MachineDeployment has not counted it yet.
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

/// Decides what to do with every machine that carries `update-in-progress` without a pending hook:
/// freshly moved ones, and those where a former attempt died half-way.
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

/// What a MachineSet's status says, as far as rollouts depend on it.
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
    /// Its condition `Ready` is true.
    pub ready: bool,
    /// Its condition `Available` is true.
    pub available: bool,
    /// Its condition `UpToDate` is true.
    pub up_to_date: bool,
}

/// Counts machines for a MachineSet's status: one that is being updated counts only as existing.
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

/// The oldest of some machines, by creation time and then by name.
pub(super) fn oldest<'a, T>(
    items: impl IntoIterator<Item = &'a T>,
    key: impl Fn(&T) -> (Timestamp, &str),
) -> Option<&'a T> {
    items.into_iter().min_by(|a, b| key(a).cmp(&key(b)))
}

#[cfg(test)]
#[path = "machine_set_tests.rs"]
mod tests;
