//! A control plane that lacks a Machine while Cluster API waits for the update of another one.
//!
//! No member is updated while one is missing, and Cluster API creates none while a Machine of the
//! control plane has its mark of an update in progress (`docs/facts/control-plane.md#reconcile-order`):
//! each would wait for the other. So an update that has disturbed nothing stops, and Refit takes the
//! mark off. Cluster API then considers the Machine updated, because its spec has the new version, and
//! does not ask again. Once the control plane is complete, Refit sets the mark again, and Cluster API
//! completes the request as if it had been interrupted.

use std::collections::BTreeMap;

use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{Gate, NodeUpdateStatus},
    version::StatedVersion,
};

use super::{
    end::is_awaited,
    snapshot::{Announcement, Group, GroupState, ManagementWrite, Severity, Snapshot, Workload},
    stop::is_taken_back,
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
        gate <= Gate::Stage && self.control_plane() && stands_in_the_way(self.s, machine)
    }
}

/// Whether Cluster API waits for this Machine before it creates one that the group lacks.
fn stands_in_the_way(s: &Snapshot, machine: &Machine) -> bool {
    let lacks = match &s.group {
        GroupState::Present(group) => group.lacks_machines(),
        GroupState::None | GroupState::Missing => false,
    };
    lacks && is_awaited(machine) && machine.metadata.deletion_timestamp.is_none()
}

/// The withdrawal of an update that has ended, for a member that is missing. A host that could not be
/// rolled back keeps its request: an operator has to decide about it.
pub(super) fn withdrawal(
    s: &Snapshot,
    machine: &Machine,
    status: &NodeUpdateStatus,
) -> Option<(Announcement, ManagementWrite)> {
    let Workload::Seen(seen) = &s.workload else {
        return None;
    };
    let untouched = status.failure_reason == MEMBER_MISSING
        || is_taken_back(&s.update, seen.host_plan.as_deref());
    let stands = is_control_plane(machine) && stands_in_the_way(s, machine);
    (stands && untouched).then(|| {
        let announcement = Announcement {
            severity: Severity::Normal,
            reason: "UpdateWithdrawn",
            message: format!(
                "The update of Machine {} is withdrawn until Cluster API has created the Machine \
                 that its control plane lacks.",
                machine.metadata.name.as_deref().unwrap_or_default()
            ),
        };
        (announcement, ManagementWrite::WithdrawForMember)
    })
}

/// Annotations of a Machine whose update was withdrawn for a missing member: to set (`Some`) and to
/// remove (`None`), now that none is missing. Empty while nothing is to change.
///
/// If the owner asks for another version by now, Cluster API requests that one itself.
pub fn request_again(
    machine: &Machine,
    owner_version: &StatedVersion,
) -> BTreeMap<String, Option<String>> {
    let annotations = machine.metadata.annotations.as_ref();
    let has = |key| annotations.is_some_and(|all| all.contains_key(key));
    if !has(keys::WITHDRAWN_FOR_MEMBER) || machine.metadata.deletion_timestamp.is_some() {
        return BTreeMap::new();
    }
    let note = (keys::WITHDRAWN_FOR_MEMBER.to_owned(), None);
    let mark = (keys::UPDATE_IN_PROGRESS.to_owned(), Some(String::new()));
    let wanted = machine.spec.version == *owner_version && !has(keys::UPDATE_IN_PROGRESS);
    [note].into_iter().chain(wanted.then_some(mark)).collect()
}
