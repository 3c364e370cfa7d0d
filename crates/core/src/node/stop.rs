//! Why work stops, and how it is stopped.

use jiff::Timestamp;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{Gate, NodeUpdate, Origin, Phase, Role, Stage, StepState, StepStatus},
};

use super::{
    adopt::names,
    end::is_awaited,
    member_missing::MEMBER_MISSING,
    order::{is_newer, is_unfinished},
    snapshot::Snapshot,
    status::Standing,
    steps::{self, STEP_CORDON, STEP_DRAIN, STEP_UNCORDON},
    work::Work,
    work_order::{WorkOrder, WorkState},
};
use crate::report::Refusal;

/// Failure reason of an update that was being stopped when Cluster API's request for it ended.
pub const REQUEST_WITHDRAWN: &str = "RequestWithdrawn";
/// Failure reason of an update that stopped for another goal.
pub const SUPERSEDED: &str = "Superseded";

/// Stops an updater at its next safe step.
pub(super) const ABORT: WorkOrder = WorkOrder { gate: Gate::Closed, abort: true };

/// Why work must stop.
pub(super) enum Stop {
    Aborted,
    /// The goal of the Machine has changed.
    GoalChanged,
    Superseded(String),
    /// Cluster API does not request it any more.
    RequestWithdrawn,
    /// The newer NodeUpdate that it was stopped for has ended, or was deleted.
    Overtaken,
    /// Cluster API does not create a missing Machine of the group before the update has ended.
    MemberMissing,
    Deleting,
}

impl Work<'_> {
    pub(super) fn stop(&self, machine: &Machine, gate: Gate) -> Option<Stop> {
        if machine.metadata.deletion_timestamp.is_some() {
            return Some(Stop::Deleting);
        }
        let abort_sent = self.workers.ordered().unwrap_or_default().abort;
        let asked = abort_asked(&self.s.update, machine, gate);
        let in_time = match gate {
            Gate::Closed | Gate::Stage => true,
            // The kubelet is still the old one, and a worker rolls back what kubeadm has changed.
            Gate::Upgrade => asked && !self.control_plane(),
            Gate::Disrupt => false,
        };
        let in_time = in_time && !self.status.has_updater_begun() && !self.workers.past_no_return();
        if !in_time && !abort_sent {
            return None;
        }
        if asked {
            let annotations = self.s.update.metadata.annotations.as_ref();
            let by_refit = annotations.is_some_and(|all| all.contains_key(keys::GOAL_CHANGED))
                && !names(machine, keys::ABORT, &self.s.update);
            return Some(if by_refit { Stop::GoalChanged } else { Stop::Aborted });
        }
        if let Some(newer) = self
            .same_machine()
            .find(|other| is_unfinished(other) && is_newer(other, &self.s.update))
        {
            return Some(Stop::Superseded(newer.metadata.name.clone().unwrap_or_default()));
        }
        // The others are to stop because one of them has failed.
        if self.workers.one_has_failed() {
            return None;
        }
        let delays = self.delays_a_member(machine, gate);
        if !delays && !abort_sent && self.status.phase != Phase::Stopping {
            return None;
        }
        Some(match self.s.update.spec.origin {
            // Refit stopped it for a missing member, which may have been created since.
            _ if delays || is_awaited(machine) => Stop::MemberMissing,
            Origin::Hook => Stop::RequestWithdrawn,
            Origin::Task | Origin::Annotation | Origin::HostSettings => Stop::Overtaken,
        })
    }

    /// The standing of an update that has stopped.
    fn stopped(&self, machine: &Machine, stop: &Stop) -> Standing {
        let left = self.workers.report().unwrap_or_default().left_behind;
        let and_left = |message: &str| {
            let sentences = left.iter().map(|sentence| sentence.trim_end_matches('.'));
            [message].into_iter().chain(sentences).collect::<Vec<_>>().join("; ")
        };
        match stop {
            Stop::Deleting => stopped_by_deletion(machine),
            Stop::Aborted => {
                Standing::stopped("Aborted", and_left("the update was aborted on request"))
            }
            Stop::RequestWithdrawn => Standing::stopped(
                REQUEST_WITHDRAWN,
                and_left("it was being stopped, and Cluster API does not request it any more"),
            ),
            Stop::Overtaken => Standing::stopped(
                SUPERSEDED,
                and_left("superseded by a newer NodeUpdate, which has ended or was deleted"),
            ),
            Stop::GoalChanged => {
                Standing::stopped(SUPERSEDED, and_left("the goal of the Machine changed"))
            }
            Stop::MemberMissing => Standing::stopped(
                MEMBER_MISSING,
                and_left(
                    "Cluster API creates a missing Machine of the group only while no update is \
                     requested; the update continues once the group is complete",
                ),
            ),
            Stop::Superseded(by) => {
                let message = format!("superseded by NodeUpdate {by}, which has another goal");
                Standing::stopped(SUPERSEDED, and_left(&message))
            }
        }
    }

    pub(super) fn stopping(&mut self, machine: &Machine, stop: &Stop) -> Standing {
        let stopped = self.stopped(machine, stop);
        if self.workers.ordered().is_none() {
            let deleting = matches!(stop, Stop::Deleting);
            // The provider of a deleted update works on the node.
            let older = self.workers.older_provider(&self.status.node_name);
            if let Some(older) = older.filter(|_| !deleting && self.workers.has_busy_provider()) {
                let orphan = self.workers.abort_orphan(&self.s.siblings);
                return Standing::blocked(Phase::Stopping, older).write(orphan).again_after(10);
            }
            if let Some(returning) =
                (!deleting).then(|| self.serve_again(Phase::Stopping)).flatten()
            {
                return returning;
            }
            self.end_own_steps();
            return stopped;
        }
        let report = self.workers.report().unwrap_or_default();
        let overdue = matches!(stop, Stop::Deleting)
            && (self.is_silent() || deletion_overdue(machine, self.s, self.now));
        if report.has_ended() || overdue {
            let serves = !matches!(stop, Stop::Deleting) && report.is_rolled_back();
            if let Some(returning) = serves.then(|| self.serve_again(Phase::Stopping)).flatten() {
                return returning;
            }
            self.end_own_steps();
            return stopped;
        }
        let outcome = match stop {
            Stop::Deleting => Standing::blocked(
                Phase::Stopping,
                Refusal::MachineDeleting { machine: self.machine_name().to_owned() },
            ),
            Stop::Aborted
            | Stop::RequestWithdrawn
            | Stop::Overtaken
            | Stop::GoalChanged
            | Stop::Superseded(_)
            | Stop::MemberMissing => match self.working_refusal() {
                Some(refusal) => Standing::blocked(Phase::Stopping, refusal),
                None => Standing::new(Phase::Stopping, "the host will stop at the next safe step"),
            },
        };
        outcome.write(self.workers.order(ABORT))
    }

    /// The standing of an update whose host has given up.
    pub(super) fn gave_up(&self) -> Option<Standing> {
        let has_ended = self.workers.report().is_some_and(|report| report.has_ended());
        if self.workers.one_has_failed() && !has_ended {
            let phase = self.status.phase;
            let standing = match self.working_refusal() {
                Some(refusal) => Standing::blocked(phase, refusal),
                None => Standing::new(phase, "an updater has failed, and the others stop"),
            };
            return Some(standing.write(self.workers.order(ABORT)));
        }
        match self.workers.report()?.state {
            WorkState::Failed(failure) => Some(Standing::failed(failure.reason, failure.message)),
            WorkState::Stopped => Some(Standing::stopped(
                "HostStopped",
                "its updater stopped, although this NodeUpdate was not aborted",
            )),
            WorkState::Working | WorkState::Undoing | WorkState::Succeeded => None,
        }
    }

    /// Ends the controller's steps that an abort interrupts.
    fn end_own_steps(&mut self) {
        for (step, end) in [
            (STEP_CORDON, StepState::Undone),
            (STEP_DRAIN, StepState::Undone),
            (STEP_UNCORDON, StepState::Done),
        ] {
            if steps::state_of(&self.status, step) == StepState::Running {
                steps::advance(&mut self.status, step, end, self.now, "");
            }
        }
    }
}

/// Whether an operator or Refit has asked this update to stop. One that is to be adopted stops only while its host has
/// changed nothing: a rollback would undo what was done by hand.
fn abort_asked(update: &NodeUpdate, machine: &Machine, gate: Gate) -> bool {
    update.spec.stage == Stage::Abort
        || names(machine, keys::ABORT, update)
        || gate <= Gate::Stage
            && update.spec.can_be_adopted()
            && names(machine, keys::ADOPT, update)
}

/// Whether the step of an update that brings a machine to its version is done, whichever updater does it.
pub fn has_brought_version(update: &NodeUpdate) -> bool {
    let steps = update.status.as_ref().map_or(&[][..], |status| &status.steps);
    let by_provider = update.spec.provider_parts().filter(|part| part.brings_version());
    let mut names = by_provider
        .map(|part| format!("updater/{}", part.updater))
        .chain(["kubeadm-upgrade".to_owned()]);
    names.any(|name| steps.iter().any(|step| step.name == name && step.state == StepState::Done))
}

/// Whether an update of a control plane machine ended without success after kubeadm had begun: its
/// static pods may have the new version, although its kubelet has the old one.
pub fn is_half_upgraded(update: &NodeUpdate) -> bool {
    update.status.as_ref().is_some_and(|status| {
        let begun = |step: &StepStatus| {
            step.name == "kubeadm-upgrade"
                && matches!(step.state, StepState::Running | StepState::Done | StepState::Failed)
        };
        let by_provider = || {
            let mut parts = update.spec.provider_parts().filter(|part| part.brings_version());
            parts.any(|part| status.part(&part.updater).gate >= Some(Gate::Upgrade))
        };
        matches!(status.phase, Phase::Failed | Phase::Stopped)
            && matches!(status.role, Some(Role::FirstControlPlane | Role::ControlPlane))
            && (status.steps.iter().any(begun) || by_provider())
    })
}

pub(super) fn machine_gone(s: &Snapshot) -> Standing {
    let name = &s.update.spec.machine_ref.name;
    match &s.machine {
        None => Standing::stopped("MachineGone", format!("Machine {name} was deleted")),
        Some(_) => Standing::stopped(
            "MachineReplaced",
            format!("Machine {name} is not the Machine of this NodeUpdate"),
        ),
    }
}

pub(super) fn stopped_by_deletion(machine: &Machine) -> Standing {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    Standing::stopped("MachineDeleting", format!("Machine {name} is being deleted"))
}

/// Whether a deletion has waited for the host longer than a report counts as fresh: Refit's hook
/// must not block the deletion of a Machine forever if its host is gone.
pub(super) fn deletion_overdue(machine: &Machine, s: &Snapshot, now: Timestamp) -> bool {
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    deleted.is_some_and(|deleted| now.duration_since(deleted.0) > s.report_stale_after)
}
