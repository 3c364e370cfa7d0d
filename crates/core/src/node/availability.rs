//! Whether a machine can stand in for another.

use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::{conditions, refit::Phase};

use super::seen::NodeView;

/// Known facts about one Machine of a group.
#[derive(Clone, Debug)]
pub struct MachineView<'a> {
    /// The Machine.
    pub machine: &'a Machine,
    /// Its Node, if it is known.
    pub node: Option<&'a NodeView>,
    /// Phase of its newest NodeUpdate.
    pub newest_phase: Option<Phase>,
    /// Whether the static pods of a member of a paused control plane are Ready; `None` for any other Machine. While it is
    /// paused, Cluster API shows nothing new of its members' pods (`docs/facts/control-plane.md#reconcile-order`).
    pub serves: Option<bool>,
}

/// Whether a machine is available, regardless of slots.
///
/// A machine counts as available if its condition `Available` is True, or if the condition is False
/// only because Cluster API marked the machine as updating: such a machine waits for Refit and
/// still serves. If it counted as missing, two marked machines could wait for each other forever.
/// After its update only the condition counts, because it also waits for `minReadySeconds`. Of a member of a paused control
/// plane it may be as old as the pause: its Node and its static pods count.
pub fn is_available(view: &MachineView<'_>) -> bool {
    let MachineView { machine, node, newest_phase, serves } = view;
    if machine.metadata.deletion_timestamp.is_some() {
        return false;
    }
    if let Some(node) = node
        && (!node.ready || node.cordoned_by_us())
    {
        return false;
    }
    if let Some(serves) = serves {
        let is_at_rest =
            newest_phase.is_none_or(|phase| phase.is_undisturbed() || phase.is_final());
        return *serves && is_at_rest && node.is_some();
    }
    let conditions = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
    if conditions::is_true(conditions, conditions::AVAILABLE) {
        return true;
    }
    let untouched = newest_phase.is_none_or(Phase::is_undisturbed);
    update_in_progress(*machine) && node.is_some() && untouched
}
