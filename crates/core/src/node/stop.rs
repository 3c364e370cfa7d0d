//! Why work stops, and how it is stopped.

use jiff::Timestamp;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{
        FailureKind, Gate, HostPlan, HostPlanStatus, HostStepStatus, NodeUpdate, Phase, PlanState,
        Role, Stage, StepState, StepStatus,
    },
};

use super::{
    end::is_awaited,
    gate,
    member_missing::MEMBER_MISSING,
    order::{is_newer, is_unfinished},
    snapshot::{Snapshot, Write},
    status::Standing,
    steps::{self, STEP_CORDON, STEP_DRAIN, STEP_UNCORDON},
    work::{Work, report},
};
use crate::report::Refusal;

/// Failure reason of an update that stopped for another goal.
pub const SUPERSEDED: &str = "Superseded";

/// Why work must stop.
pub(super) enum Stop {
    Aborted,
    /// The goal of the Machine has changed.
    GoalChanged,
    Superseded(String),
    /// Cluster API does not create a missing Machine of the group before the update has ended.
    MemberMissing,
    Deleting,
}

impl Work<'_> {
    pub(super) fn stop(&self, machine: &Machine, gate: Gate) -> Option<Stop> {
        if machine.metadata.deletion_timestamp.is_some() {
            return Some(Stop::Deleting);
        }
        let abort_sent = self.own_plan().is_some_and(|plan| plan.spec.abort);
        let asked = self.s.update.spec.stage == Stage::Abort;
        let in_time = match gate {
            Gate::Closed | Gate::Stage => true,
            // The kubelet is still the old one, and a worker rolls back what kubeadm has changed.
            Gate::Upgrade => asked && !self.control_plane(),
            Gate::Disrupt => false,
        };
        if !in_time && !abort_sent {
            return None;
        }
        if asked {
            let annotations = self.s.update.metadata.annotations.as_ref();
            let by_refit = annotations.is_some_and(|all| all.contains_key(keys::GOAL_CHANGED));
            return Some(if by_refit { Stop::GoalChanged } else { Stop::Aborted });
        }
        if let Some(newer) = self
            .same_machine()
            .find(|other| is_unfinished(other) && is_newer(other, &self.s.update))
        {
            return Some(Stop::Superseded(newer.metadata.name.clone().unwrap_or_default()));
        }
        let delays = self.delays_a_member(machine, gate);
        if !delays && !abort_sent && self.status.phase != Phase::Stopping {
            return None;
        }
        // Refit stopped it for a missing member, which may have been created since.
        let for_member = delays || is_awaited(machine);
        Some(if for_member { Stop::MemberMissing } else { Stop::Aborted })
    }

    /// The standing of an update that has stopped.
    fn stopped(&self, machine: &Machine, stop: &Stop) -> Standing {
        let left = self.own_plan().and_then(report).map_or(&[][..], |report| &report.left_behind);
        let and_left = |message: &str| {
            let sentences = left.iter().map(|sentence| sentence.trim_end_matches('.'));
            [message].into_iter().chain(sentences).collect::<Vec<_>>().join("; ")
        };
        match stop {
            Stop::Deleting => stopped_by_deletion(machine),
            Stop::Aborted => {
                Standing::stopped("Aborted", and_left("the update was aborted on request"))
            }
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
        let Some(plan) = self.own_plan() else {
            return stopped;
        };
        let overdue = matches!(stop, Stop::Deleting)
            && (self.fresh_plan().is_none() || deletion_overdue(machine, self.s, self.now));
        if gate::host_ended(plan) || overdue {
            let serves = !matches!(stop, Stop::Deleting) && is_rolled_back(plan);
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
            Stop::Aborted | Stop::GoalChanged | Stop::Superseded(_) | Stop::MemberMissing => {
                match self.silent_agent() {
                    Some(silent) => Standing::blocked(Phase::Stopping, silent),
                    None => {
                        Standing::new(Phase::Stopping, "the host will stop at the next safe step")
                    }
                }
            }
        };
        outcome.write(abort_write(plan))
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

/// Whether the host has rolled the plan back: nothing was done past the point of no return, and no
/// change is left behind.
fn is_rolled_back(plan: &HostPlan) -> bool {
    report(plan).is_some_and(|report| {
        matches!(report.state, PlanState::Failed | PlanState::Stopped)
            && !report.past_no_return
            && report.left_behind.is_empty()
    })
}

/// Whether an update of a control plane machine ended without success after kubeadm had begun: its
/// static pods may have the new version, although its kubelet has the old one.
pub fn is_half_upgraded(update: &NodeUpdate) -> bool {
    update.status.as_ref().is_some_and(|status| {
        let begun = |step: &StepStatus| {
            step.name == "kubeadm-upgrade"
                && matches!(step.state, StepState::Running | StepState::Done | StepState::Failed)
        };
        matches!(status.phase, Phase::Failed | Phase::Stopped)
            && matches!(status.role, Some(Role::FirstControlPlane | Role::ControlPlane))
            && status.steps.iter().any(begun)
    })
}

/// Whether an update has ended and its host is as it was before. `plan` is the one on the host.
pub(super) fn is_taken_back(update: &NodeUpdate, plan: Option<&HostPlan>) -> bool {
    let Some(status) = &update.status else {
        return false;
    };
    let given_up = matches!(status.phase, Phase::Failed | Phase::Stopped);
    given_up
        && match plan.filter(|plan| gate::is_ours(plan, update)) {
            Some(plan) => is_rolled_back(plan),
            // An update lists its steps before it sends them to the host.
            None => status.steps.is_empty(),
        }
}

/// The standing of an update whose plan the host did not finish.
pub(super) fn host_gave_up(plan: &HostPlan) -> Option<Standing> {
    let report = report(plan)?;
    match report.state {
        PlanState::Failed => {
            let failed = |step: &&HostStepStatus| step.state == StepState::Failed;
            let Some(step) = report.steps.iter().find(failed) else {
                let message = "the agent reported no reason";
                return Some(Standing::failed("HostStepFailed", message));
            };
            let reason = match &*step.reason {
                "" => "HostStepFailed",
                reason => reason,
            };
            let mut message = format!("step {}: {}", step.id, step.message);
            for more in afterwards(report, step.failure) {
                message.push_str("; ");
                message.push_str(more);
            }
            Some(Standing::failed(reason, message))
        }
        PlanState::Stopped => Some(Standing::stopped(
            "HostStopped",
            "the host stopped the plan, although this NodeUpdate was not aborted",
        )),
        PlanState::Idle
        | PlanState::Running
        | PlanState::AtGate
        | PlanState::Retrying
        | PlanState::Undoing
        | PlanState::Succeeded => None,
    }
}

/// Details for the operator in addition to the failure: the state of the host, and whether manual
/// intervention is required.
fn afterwards(report: &HostPlanStatus, failure: Option<FailureKind>) -> Vec<&str> {
    let undone = report.steps.iter().any(|step| step.state == StepState::Undone);
    let mut list: Vec<&str> =
        report.left_behind.iter().map(|sentence| sentence.trim_end_matches('.')).collect();
    if undone && list.is_empty() {
        list.push("the host has rolled back");
    }
    match failure {
        Some(FailureKind::NeedsPerson) => list.push("manual intervention is required"),
        Some(FailureKind::Final) => list.push("another attempt cannot succeed"),
        Some(FailureKind::Retriable) | None => {}
    }
    list
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

pub(super) fn abort_write(plan: &HostPlan) -> Option<Write> {
    let mut spec = plan.spec.clone();
    spec.abort = true;
    (!plan.spec.abort).then_some(Write::HostPlan(spec))
}
