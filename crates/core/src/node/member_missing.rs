//! A group that lacks a Machine while Cluster API waits for the update of another one.
//!
//! Each can wait for the other. No member of a control plane is updated while one is missing, and
//! Cluster API creates none while a Machine of the control plane has its mark of an update in progress
//! (`docs/facts/control-plane.md#reconcile-order`). So can workers without surge, once their control plane is
//! newer: the old MachineSet may create no Machine of its version
//! (`docs/facts/machine-deployment.md#machineset-reconcile`), and does not shrink while the updated Machine
//! counts as unavailable. Only Cluster API knows which case it is, so workers wait for some time first.
//!
//! So an update that has disturbed nothing stops, and Refit takes the mark off. Cluster API then
//! considers the Machine updated, because its spec has the new version, and does not ask again. Once
//! the group is complete, Refit sets the mark again, and Cluster API completes the request as if it
//! had been interrupted.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{Blocker, Gate, NodeUpdateStatus},
    version::StatedVersion,
};

use super::{
    end::is_awaited,
    seen::Workload,
    snapshot::{Announcement, GroupState, ManagementWrite, Severity, Snapshot},
    work::{Work, is_control_plane},
};
use crate::report::{MISSING_MACHINE, Reason, RefusalReason};

/// How long a worker waits for a missing Machine before its update is withdrawn.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// Failure reason of an update that stopped so that Cluster API can create a missing member.
pub const MEMBER_MISSING: &str = "MemberMissing";

impl Work<'_> {
    /// Whether the group lacks a member that Cluster API may not create before this update has ended,
    /// and nothing has been disturbed yet. A missing worker is created without that, in most cases.
    pub(super) fn delays_a_member(&self, machine: &Machine, gate: Gate) -> bool {
        let waits_long = || self.lacks_machine_for().is_some_and(|wait| wait >= PATIENCE);
        gate <= Gate::Stage
            && (self.control_plane() || waits_long())
            && stands_in_the_way(self.s, machine)
    }

    /// How long the update has waited for a Machine that the group lacks.
    fn lacks_machine_for(&self) -> Option<SignedDuration> {
        let reason = Some(Reason::Update(RefusalReason::GroupUnavailable));
        let waits = |blocker: &&Blocker| {
            Reason::of(&blocker.reason) == reason && blocker.object == MISSING_MACHINE
        };
        let blocker = self.status.blocked_by.iter().find(waits)?;
        Some(self.now.duration_since(blocker.since.0))
    }
}

/// Whether Cluster API waits for this Machine before it creates one that the group lacks.
fn stands_in_the_way(s: &Snapshot, machine: &Machine) -> bool {
    let lacks = || match &s.group {
        GroupState::Present(group) => group.limits.lacks(group.others.machines.len() + 1),
        GroupState::None | GroupState::Missing => false,
    };
    is_awaited(machine) && machine.metadata.deletion_timestamp.is_none() && lacks()
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
        || is_control_plane(machine) && s.workers(seen).ended_rolled_back();
    (untouched && stands_in_the_way(s, machine)).then(|| {
        let announcement = Announcement {
            severity: Severity::Normal,
            reason: "UpdateWithdrawn",
            message: format!(
                "The update of Machine {} is withdrawn until Cluster API has created the Machine \
                 that its group lacks.",
                machine.metadata.name.as_deref().unwrap_or_default()
            ),
        };
        (announcement, ManagementWrite::WithdrawForMember)
    })
}

/// What to change at the Machines of a group whose updates were withdrawn for a missing member, now that
/// none is missing: annotations to set (`Some`) and to remove (`None`). At most `slots` updates of the
/// group are requested at a time.
///
/// If the owner asks for another version by now, Cluster API requests that one itself.
pub fn request_again<'a>(
    machines: &[&'a Machine],
    slots: i32,
    owner_version: &StatedVersion,
) -> Vec<(&'a Machine, BTreeMap<String, Option<String>>)> {
    let is_marked = |machine: &&&Machine| has(machine, keys::UPDATE_IN_PROGRESS);
    let requested = machines.iter().filter(is_marked).count();
    let mut room = usize::try_from(slots).unwrap_or(0).saturating_sub(requested);
    let mut all = Vec::new();
    for machine in machines {
        let changes = changes_of(machine, owner_version);
        let requests = changes.contains_key(keys::UPDATE_IN_PROGRESS);
        if changes.is_empty() || requests && room == 0 {
            continue;
        }
        room -= usize::from(requests);
        all.push((*machine, changes));
    }
    all
}

fn has(machine: &Machine, annotation: &str) -> bool {
    machine.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotation))
}

fn changes_of(
    machine: &Machine,
    owner_version: &StatedVersion,
) -> BTreeMap<String, Option<String>> {
    if !has(machine, keys::WITHDRAWN_FOR_MEMBER) || machine.metadata.deletion_timestamp.is_some() {
        return BTreeMap::new();
    }
    let note = (keys::WITHDRAWN_FOR_MEMBER.to_owned(), None);
    let mark = (keys::UPDATE_IN_PROGRESS.to_owned(), Some(String::new()));
    let wanted = machine.spec.version == *owner_version && !has(machine, keys::UPDATE_IN_PROGRESS);
    [note].into_iter().chain(wanted.then_some(mark)).collect()
}
