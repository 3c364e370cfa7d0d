//! Which NodeUpdate of a Machine came first, and which speaks for it.

use jiff::Timestamp;
use refit_kinds::refit::{MachineUid, NodeUpdate};

use super::snapshot::Snapshot;

/// Ordinal, creation and name.
type Order = (Option<u32>, Option<Timestamp>, String);

/// The other NodeUpdates of the same Machine, uid and all.
pub(super) fn same_machine(s: &Snapshot) -> impl Iterator<Item = &NodeUpdate> {
    let uid = &s.update.spec.machine_ref.uid;
    s.siblings.iter().map(AsRef::as_ref).filter(move |other| other.spec.machine_ref.uid == *uid)
}

/// Whether `a` came after `b`: by ordinal, then by creation and name, so that one that was not
/// named by us has its place too.
pub(super) fn is_newer(a: &NodeUpdate, b: &NodeUpdate) -> bool {
    order(a) > order(b)
}

fn order(update: &NodeUpdate) -> Order {
    let name = update.metadata.name.clone().unwrap_or_default();
    let ordinal = refit_kinds::refit::ordinal_of(&name, &update.spec.machine_ref.name);
    let created = update.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (ordinal, created, name)
}

/// Whether the NodeUpdate has not come to its end.
pub(super) fn is_unfinished(update: &NodeUpdate) -> bool {
    !update.status.as_ref().map(|status| status.phase).unwrap_or_default().is_final()
}

fn rank(update: &NodeUpdate) -> (bool, Order) {
    (is_unfinished(update), order(update))
}

/// The NodeUpdate that speaks for a Machine: the newest that has not ended, or the newest of all.
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

/// Whether this NodeUpdate speaks for its Machine. The others leave the Machine's condition and
/// guard alone.
pub(super) fn speaks(s: &Snapshot) -> bool {
    let mine = rank(&s.update);
    same_machine(s).all(|other| rank(other) < mine)
}
