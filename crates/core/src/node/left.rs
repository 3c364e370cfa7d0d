//! Whether an update that has ended may have something left to do: most have not, for ever.

use std::sync::Arc;

use jiff::Timestamp;
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::{
    keys,
    refit::{MachineUid, NodeUpdate, Phase, Slot},
};

use super::{
    adopt::names,
    end::{left_by_upkeep, requests_done},
    guard,
    lost::HOST_LOST,
    order::{releases, speaker},
    seen::NodeView,
    status::condition_change,
};

/// The facts that decide whether an ended NodeUpdate is worth a look. Each can be looked up: none
/// needs the rest of the group or of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// The NodeUpdate.
    pub update: &'a NodeUpdate,
    /// Every NodeUpdate that names a Machine of this name, this one included.
    pub of_machine: &'a [Arc<NodeUpdate>],
    /// The Machine with that name.
    pub machine: Option<&'a Machine>,
    /// The slots of the Machine's group.
    pub slots: &'a [Slot],
    /// Its entries of Machines without a slot.
    pub undisturbed: &'a [Slot],
    /// The Machine's Node, once the watch of its cluster has delivered it.
    pub node: Option<&'a NodeView>,
}

impl Ended<'_> {
    /// Whether [`super::decide`] may write or wait for something. It may be true without need, but
    /// is never false if there is a need. What is not known yet counts as nothing: it wakes the
    /// NodeUpdate when it becomes known.
    pub fn may_have_work_left(&self) -> bool {
        let uid = &self.update.spec.machine_ref.uid;
        let speaker = speaker(self.of_machine.iter().map(AsRef::as_ref), uid);
        let speaks =
            speaker.is_none_or(|speaker| speaker.metadata.name == self.update.metadata.name);
        let mut all = self.slots.iter().chain(self.undisturbed);
        if all.any(|slot| releases(self.update, speaks, slot, self.others())) {
            return true;
        }
        let machine = self.machine.filter(|machine| MachineUid::of(&machine.metadata) == *uid);
        machine.is_some_and(|machine| {
            if !speaks {
                let status = self.update.status.clone().unwrap_or_default();
                let left = left_by_upkeep(self.update, &self.others(), machine, &status);
                return !left.is_empty();
            }
            self.machine_needs_it(machine) || self.node_needs_it()
        })
    }

    /// The other NodeUpdates of the same Machine.
    fn others(&self) -> impl Iterator<Item = &NodeUpdate> + Clone {
        let Self { update, of_machine, .. } = *self;
        of_machine.iter().map(AsRef::as_ref).filter(|other: &&NodeUpdate| {
            other.spec.machine_ref.uid == update.spec.machine_ref.uid
                && other.metadata.name != update.metadata.name
        })
    }

    /// The guard, the retry annotation, the condition, and an update that may be withdrawn.
    fn machine_needs_it(&self, machine: &Machine) -> bool {
        let status = self.update.status.clone().unwrap_or_default();
        let given_up = matches!(status.phase, Phase::Failed | Phase::Stopped);
        !guard::remove(machine).is_empty()
            || !requests_done(self.update, &self.others(), machine, &status).is_empty()
            || [keys::RETRY, keys::ADOPT].iter().any(|key| names(machine, key, self.update))
            || condition_change(self.update, machine, &status, Timestamp::UNIX_EPOCH).is_some()
            || given_up && update_in_progress(machine)
    }

    /// The cordon, as shown or of a lost host that has returned, and the exclusion from load
    /// balancers.
    fn node_needs_it(&self) -> bool {
        let (status, node) = (self.update.status.as_ref(), self.node);
        let shown = status.is_some_and(|status| status.cordoned_by_us);
        let lost = status.is_some_and(|status| status.failure_reason == HOST_LOST);
        node.is_some_and(|node| {
            let cordoned = node.cordoned_by_us();
            cordoned != shown
                || cordoned && lost
                || !node.unschedulable && node.excluded_by.is_some()
        })
    }
}
