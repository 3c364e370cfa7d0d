//! The order of a Machine's NodeUpdates, and which of them speaks for it.

use jiff::Timestamp;
use refit_kinds::refit::{MachineUid, NodeUpdate};

use super::snapshot::Snapshot;

/// Ordinal, creation timestamp and name.
type Order = (Option<u32>, Option<Timestamp>, String);

/// The other NodeUpdates of the same Machine, compared by uid.
pub(super) fn same_machine(s: &Snapshot) -> impl Iterator<Item = &NodeUpdate> {
    let uid = &s.update.spec.machine_ref.uid;
    s.siblings.iter().map(AsRef::as_ref).filter(move |other| other.spec.machine_ref.uid == *uid)
}

/// Whether `a` is newer than `b`: by ordinal, then by creation timestamp and name, so that a
/// NodeUpdate that Refit did not name is ordered too.
pub(super) fn is_newer(a: &NodeUpdate, b: &NodeUpdate) -> bool {
    order(a) > order(b)
}

pub(super) fn order(update: &NodeUpdate) -> Order {
    let name = update.metadata.name.clone().unwrap_or_default();
    let ordinal = refit_kinds::refit::ordinal_of(&name, &update.spec.machine_ref.name);
    let created = update.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (ordinal, created, name)
}

/// Whether the NodeUpdate has not ended.
pub(super) fn is_unfinished(update: &NodeUpdate) -> bool {
    !update.status.as_ref().map(|status| status.phase).unwrap_or_default().is_final()
}

fn rank(update: &NodeUpdate) -> (bool, Order) {
    (is_unfinished(update), order(update))
}

/// The NodeUpdate that speaks for a Machine: the newest unfinished one, or else the newest.
pub fn speaker<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> Option<&'a NodeUpdate> {
    of_machine(updates, machine_uid).max_by_key(|update| rank(update))
}

/// The newest NodeUpdate of a Machine, whether it has ended or not.
pub fn newest<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> Option<&'a NodeUpdate> {
    of_machine(updates, machine_uid).max_by_key(|update| order(update))
}

fn of_machine<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> impl Iterator<Item = &'a NodeUpdate> {
    updates.into_iter().filter(move |update| update.spec.machine_ref.uid == *machine_uid)
}

/// Whether this NodeUpdate speaks for its Machine. Other NodeUpdates do not change the Machine's
/// condition and guard.
pub(super) fn speaks(s: &Snapshot) -> bool {
    let own_rank = rank(&s.update);
    same_machine(s).all(|other| rank(other) < own_rank)
}
