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

/// The age that moves an ordinary machine most of the way through its range of priorities, in seconds: ten days.
const AGE_SCALE: f64 = 864_000.0;
/// Priority of an unhealthy machine, and the end of the range of ordinary ones.
const UNHEALTHY: f64 = 50.0;

/// Returns the priority of a machine for deletion, 0 to 100; the greatest is deleted first. Beyond about a year, age has no effect
/// (`docs/facts/machine-deployment.md#machineset-reconcile`).
pub(super) fn delete_priority(machine: &Machine, order: DeletionOrder, now: Timestamp) -> f64 {
    if machine.deleting {
        return 100.0;
    }
    if machine.annotations.contains_key(keys::DELETE_MACHINE) {
        return 80.0;
    }
    if machine.is_updating() {
        return 75.0;
    }
    if machine.unhealthy {
        return UNHEALTHY;
    }
    let age = now.duration_since(machine.created_at).as_secs_f64().max(0.0);
    let by_age = UNHEALTHY * (1.0 - (-age / AGE_SCALE).exp());
    match order {
        DeletionOrder::Random => 20.0,
        DeletionOrder::Oldest => by_age,
        DeletionOrder::Newest => UNHEALTHY - by_age,
    }
}

/// Returns all machines in deletion order; those of the same priority by name.
pub fn in_deletion_order(
    machines: &[Machine],
    order: DeletionOrder,
    now: Timestamp,
) -> Vec<&Machine> {
    let priority = |machine| (delete_priority(machine, order, now), machine);
    let mut sorted: Vec<(f64, &Machine)> = machines.iter().map(priority).collect();
    sorted.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.name.cmp(&other.name)));
    sorted.into_iter().map(|(_, machine)| machine).collect()
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
    beyond(set, machines.len() - not_acknowledged(set, machines).len())
}

fn beyond(set: &MachineSet, count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX).saturating_sub(set.spec_replicas)
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
    now: Timestamp,
) -> Result<MachineSetAction, SyncError> {
    let in_order = || in_deletion_order(machines, order, now);
    let pool = Pool {
        total: machines.len(),
        not_acknowledged: not_acknowledged(set, machines).len(),
        in_deletion_order: Box::new(std::iter::once_with(in_order).flatten()),
    };
    sync_pool(set, pool, target)
}

/// The machines of a MachineSet, for a caller that keeps them in order itself.
pub(super) struct Pool<'a> {
    /// How many there are.
    pub(super) total: usize,
    /// How many of them its MachineDeployment has not counted: see [`not_acknowledged`].
    pub(super) not_acknowledged: usize,
    /// All of them, in the order in which they are deleted or moved.
    pub(super) in_deletion_order: Box<dyn Iterator<Item = &'a Machine> + 'a>,
}

/// Decides like [`sync_replicas`].
pub(super) fn sync_pool(
    set: &MachineSet,
    pool: Pool<'_>,
    target: Option<&MachineSet>,
) -> Result<MachineSetAction, SyncError> {
    let wanted = usize::try_from(set.spec_replicas).unwrap_or(0);
    if pool.total < wanted {
        let missing = wanted - pool.total;
        let disabled = set.annotation(keys::DISABLE_MACHINE_CREATE) == Some("true");
        return Ok(if disabled {
            MachineSetAction::CreateDisabled { missing }
        } else {
            MachineSetAction::Create(missing)
        });
    }
    let surplus = beyond(set, pool.total.saturating_sub(pool.not_acknowledged));
    let Some(surplus) = usize::try_from(surplus).ok().filter(|count| *count > 0) else {
        return Ok(MachineSetAction::None);
    };
    if let Some(target_name) = set.annotation(keys::MOVE_MACHINES) {
        return start_move(set, pool.in_deletion_order, target_name, target, surplus)
            .map(MachineSetAction::Move);
    }
    Ok(MachineSetAction::Delete(
        pool.in_deletion_order.take(surplus).map(|machine| machine.name.clone()).collect(),
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

fn start_move<'a>(
    set: &MachineSet,
    in_deletion_order: impl Iterator<Item = &'a Machine>,
    target_name: &str,
    target: Option<&MachineSet>,
    count: usize,
) -> Result<Move, SyncError> {
    check_target(set, target_name, target)?;
    let mut result = Move { target: target_name.to_owned(), ..Move::default() };
    let mut left = count;
    for machine in in_deletion_order {
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
