//! A control plane that lacks a member while Cluster API waits for another one to be updated.
//!
//! No member is updated while one is missing, and Cluster API creates none while a Machine of the
//! control plane has its mark of an update in progress (`docs/facts/control-plane.md#reconcile-order`):
//! each would wait for the other. So an update that has disturbed nothing stops and takes the mark
//! off. Cluster API then considers the Machine updated, because its spec has the new version, and
//! does not ask again; the update is made again once the control plane is complete.

use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{Gate, NodeUpdate, NodeUpdateStatus};

use super::{
    end::is_awaited,
    order::next_ordinal,
    snapshot::{
        Announcement, Group, GroupState, ManagementWrite, NodeView, Severity, Snapshot, Workload,
    },
    work::{Work, is_control_plane},
};

/// Failure reason of an update that stopped so that Cluster API can create a missing member.
pub const MEMBER_MISSING: &str = "MemberMissing";

impl Group {
    /// Whether the group has fewer Machines than its owner asks for.
    fn lacks_machines(&self) -> bool {
        i32::try_from(self.others.len()).is_ok_and(|others| others < self.limits.replicas - 1)
    }
}

impl Work<'_> {
    /// Whether the control plane lacks a member that Cluster API does not create before this update
    /// has ended, and nothing has been disturbed yet.
    pub(super) fn delays_a_member(&self, machine: &Machine, gate: Gate) -> bool {
        let lacks = match &self.s.group {
            GroupState::Present(group) => group.lacks_machines(),
            GroupState::None | GroupState::Missing => false,
        };
        lacks && gate <= Gate::Stage && self.control_plane() && is_awaited(machine)
    }
}

/// Whether an update has stopped for a missing member, and its Machine has not reached the version
/// in its spec since.
pub(super) fn waits_for_member(
    update: &NodeUpdate,
    status: &NodeUpdateStatus,
    machine: &Machine,
    node: Option<&NodeView>,
) -> bool {
    let goal = &update.spec.goal.kubernetes_version;
    status.failure_reason == MEMBER_MISSING
        && is_control_plane(machine)
        && machine.metadata.deletion_timestamp.is_none()
        && machine.spec.version.is(goal)
        && node.is_some_and(|node| !node.kubelet_version.is(goal))
}

/// The next write for an update that has stopped for a missing member: to take Cluster API's mark
/// off, or to make the update again.
pub(super) fn next_write(
    s: &Snapshot,
    machine: &Machine,
    status: &NodeUpdateStatus,
) -> Option<(Announcement, ManagementWrite)> {
    let (Workload::Seen(seen), GroupState::Present(group)) = (&s.workload, &s.group) else {
        return None;
    };
    let goal = &s.update.spec.goal.kubernetes_version;
    if !waits_for_member(&s.update, status, machine, seen.node()) {
        return None;
    }
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    if !group.lacks_machines() {
        // Cluster API asks for another version itself, but only after this update if it waits for it.
        if !s.owner_version.is(goal) && !is_awaited(machine) {
            return None;
        }
        let announcement = Announcement {
            severity: Severity::Normal,
            reason: "UpdateResumed",
            message: format!(
                "The update of Machine {name} to {goal} continues: its control plane has all its \
                 Machines again."
            ),
        };
        let updates = s.siblings.iter().map(AsRef::as_ref).chain([s.update.as_ref()]);
        let ordinal = next_ordinal(name, updates);
        return Some((announcement, ManagementWrite::Resume { ordinal }));
    }
    is_awaited(machine).then(|| {
        let announcement = Announcement {
            severity: Severity::Normal,
            reason: "UpdateWithdrawn",
            message: format!(
                "The update of Machine {name} to {goal} is withdrawn until Cluster API has created \
                 the Machine that its control plane lacks."
            ),
        };
        (announcement, ManagementWrite::Withdraw)
    })
}
