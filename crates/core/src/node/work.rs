//! The facts that the parts of a decision share, with helpers to read them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{
        Gate, HostPlan, HostPlanStatus, HostStep, NodeUpdate, NodeUpdateStatus, PlanState,
        PlannedStep, Role, Slot, StepState,
    },
};

use super::{
    gate,
    host_steps::HostWork,
    order::same_machine,
    role::decide_role,
    snapshot::{GroupState, NodeView, Seen, Snapshot},
    status::retrying,
    steps,
};
use crate::group;

/// The facts that the parts of a decision share.
pub(super) struct Work<'a> {
    pub(super) s: &'a Snapshot,
    pub(super) seen: &'a Seen,
    pub(super) status: NodeUpdateStatus,
    pub(super) now: Timestamp,
}

impl<'a> Work<'a> {
    pub(super) fn role(&self) -> Role {
        let goal = &self.s.update.spec.goal.kubernetes_version;
        self.status.role.unwrap_or_else(|| {
            let last = match &self.s.group {
                GroupState::Present(group) => group.others.last_first_passed,
                GroupState::None | GroupState::Missing => None,
            };
            decide_role(self.control_plane(), goal, last, &self.seen.static_pods)
        })
    }

    /// The steps of this update: those of its plan, or of the plan to be created.
    pub(super) fn steps_of(&self, plan: &HostPlan) -> Vec<PlannedStep> {
        if gate::is_ours(plan, &self.s.update) {
            plan.spec.steps.clone()
        } else {
            self.new_steps(Some(plan), self.role())
        }
    }

    pub(super) fn new_steps(&self, plan: Option<&HostPlan>, role: Role) -> Vec<PlannedStep> {
        self.host_work(plan, role).steps()
    }

    /// The target state of the host for this NodeUpdate, and the state that it reports.
    pub(super) fn host_work<'b>(&'b self, plan: Option<&'b HostPlan>, role: Role) -> HostWork<'b> {
        let goal = &self.s.update.spec.goal;
        HostWork {
            role,
            version: &goal.kubernetes_version,
            reboot: self.s.reboot,
            settings: &self.s.settings,
            facts: plan.and_then(|plan| plan.status.as_ref()).map(|status| &status.facts),
        }
    }

    pub(super) fn mirror_host(&mut self) {
        let Some(plan) = self.own_plan() else { return };
        steps::mirror(&mut self.status, &plan.spec.steps, report(plan));
        self.status.started_at.get_or_insert(Time(self.now));
        if self.status.role.is_none() {
            self.status.role = plan.spec.steps.iter().find_map(role_of);
        }
    }

    pub(super) fn show_cordon(&mut self) {
        self.status.cordoned_by_us = self.seen.node().is_some_and(NodeView::cordoned_by_us);
    }

    /// Progress message of a working host: it changes with the step.
    pub(super) fn host_line(&self) -> String {
        if self.own_plan().and_then(report).is_some_and(|report| report.state == PlanState::Undoing)
        {
            return "the host is rolling back".to_owned();
        }
        let ended = |state| matches!(state, StepState::Done | StepState::Skipped);
        let next = self.own_plan().and_then(|plan| {
            let report = report(plan)?;
            let step = report.steps.iter().find(|step| !ended(step.state))?;
            (step.state != StepState::Pending).then_some(step)
        });
        // Explains a delay on the Machine itself.
        if let Some(failed) = retrying(&self.status) {
            return failed.message;
        }
        match next {
            Some(step) => format!("step {} on the host", step.id),
            None => "the agent starts the plan".to_owned(),
        }
    }

    /// The HostPlan, if it belongs to this NodeUpdate.
    pub(super) fn own_plan(&self) -> Option<&'a HostPlan> {
        self.seen.host_plan.as_deref().filter(|plan| gate::is_ours(plan, &self.s.update))
    }

    /// The HostPlan, if the agent reported recently.
    pub(super) fn fresh_plan(&self) -> Option<&'a HostPlan> {
        let plan = self.seen.host_plan.as_deref()?;
        let reported = plan.status.as_ref()?.reported_at.as_ref()?.0;
        (self.now.duration_since(reported).abs() <= self.s.report_stale_after).then_some(plan)
    }

    /// The gate up to which the host may work for this NodeUpdate.
    pub(super) fn gate(&self) -> Gate {
        self.own_plan().map(|plan| plan.spec.gate).unwrap_or_default()
    }

    pub(super) fn passed(&self) -> Gate {
        self.own_plan().and_then(report).map(|report| report.passed).unwrap_or_default()
    }

    pub(super) fn machine_name(&self) -> &str {
        &self.s.update.spec.machine_ref.name
    }

    pub(super) fn wanted_slot(&self) -> Slot {
        let name = self.s.update.metadata.name.as_deref().unwrap_or_default();
        let machine = &self.s.update.spec.machine_ref;
        let returned = self.seen.host_plan.as_ref().map(|plan| plan.spec.returned_claim);
        Slot {
            claim: returned.unwrap_or_default(),
            ..group::slot(&machine.name, &machine.uid, name, self.now)
        }
    }

    pub(super) fn control_plane(&self) -> bool {
        match self.status.role {
            Some(role) => role != Role::Worker,
            None => self.s.machine.as_deref().is_some_and(is_control_plane),
        }
    }

    /// The other NodeUpdates of the same Machine, compared by uid.
    pub(super) fn same_machine(&self) -> impl Iterator<Item = &'a NodeUpdate> {
        same_machine(self.s)
    }
}

/// The role that a step was planned for.
fn role_of(step: &PlannedStep) -> Option<Role> {
    if let HostStep::KubeadmUpgrade { role, .. } = step.step()? { Some(*role) } else { None }
}

/// Whether the Machine belongs to a control plane.
pub(super) fn is_control_plane(machine: &Machine) -> bool {
    let labels = machine.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(keys::CONTROL_PLANE))
}

/// The host's report, if it is about the plan in the spec.
pub(super) fn report(plan: &HostPlan) -> Option<&HostPlanStatus> {
    plan.status.as_ref().filter(|status| status.plan_id == plan.spec.plan_id)
}
