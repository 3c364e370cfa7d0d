//! The facts that the parts of a decision share, with helpers to read them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{Gate, GoalOption, NodeUpdate, NodeUpdateStatus, Role, Slot, StepState},
    version::KubernetesVersion,
};

use super::{
    order::same_machine,
    role::decide_role,
    seen::{NodeView, Seen},
    snapshot::{GroupState, Snapshot},
    status::retrying,
    steps,
    work_order::WorkState,
    workers::Workers,
};
use crate::group;

/// The facts that the parts of a decision share.
pub(super) struct Work<'a> {
    pub(super) s: &'a Snapshot,
    pub(super) seen: &'a Seen,
    pub(super) workers: Workers<'a>,
    pub(super) status: NodeUpdateStatus,
    pub(super) now: Timestamp,
    /// The version to which the kubelet is updated; of a channel, the first of its minor version.
    pub(super) goal_version: Option<KubernetesVersion>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        s: &'a Snapshot,
        seen: &'a Seen,
        status: NodeUpdateStatus,
        now: Timestamp,
    ) -> Self {
        let goal = &s.update.spec.goal;
        let of_channel = || goal.option.as_ref().and_then(GoalOption::minor_version);
        let goal_version = goal.kubernetes_version.clone().or_else(of_channel);
        Self { s, seen, workers: s.workers(seen), status, now, goal_version }
    }

    pub(super) fn role(&self) -> Role {
        self.status.role.unwrap_or_else(|| {
            let goal = self.s.update.spec.goal.kubernetes_version.as_ref();
            let last = match &self.s.group {
                GroupState::Present(group) => group.others.last_first_passed,
                GroupState::None | GroupState::Missing => None,
            };
            decide_role(self.control_plane(), goal, last, &self.seen.static_pods)
        })
    }

    /// Shows what the host has reported.
    pub(super) fn mirror_host(&mut self) {
        if self.workers.ordered().is_none() {
            return;
        }
        self.mirror_providers();
        let steps = self.workers.steps(&self.status);
        let all: Vec<_> = steps.into_iter().chain(self.part_steps()).collect();
        steps::mirror(&mut self.status, &all);
        self.status.started_at.get_or_insert(Time(self.now));
        self.status.role = self.status.role.or_else(|| self.workers.role());
    }

    pub(super) fn show_cordon(&mut self) {
        self.status.cordoned_by_us = self.seen.node().is_some_and(NodeView::cordoned_by_us);
    }

    /// Progress message of a working host: it changes with the step.
    pub(super) fn host_line(&self) -> String {
        if self.workers.report().is_some_and(|report| report.state == WorkState::Undoing) {
            return "the host is rolling back".to_owned();
        }
        let ended = |state| matches!(state, StepState::Done | StepState::Skipped);
        let mut reported =
            self.workers.steps(&self.status).into_iter().filter_map(|step| step.status);
        let next = reported.find(|step| !ended(step.state));
        let next = next.filter(|step| step.state != StepState::Pending);
        // Explains a delay on the Machine itself.
        if let Some(failed) = retrying(&self.status) {
            return failed.message;
        }
        match next {
            Some(step) => match step.name.strip_prefix("updater/") {
                Some(updater) => self.provider_line(updater),
                None => format!("step {} on the host", step.name),
            },
            None if self.workers.has_agent() => "the agent starts the plan".to_owned(),
            None => "the updaters start".to_owned(),
        }
    }

    /// Whether no report of the agent has arrived recently. A report from the future arrived before the
    /// controller's clock was set back: when, is not known.
    pub(super) fn is_silent(&self) -> bool {
        let is_fresh = |heard| self.now.duration_since(heard).abs() <= self.s.report_stale_after;
        self.workers.has_agent() && !self.workers.host.last_report_at().is_some_and(is_fresh)
    }

    /// The gate up to which the host may work for this NodeUpdate.
    pub(super) fn gate(&self) -> Gate {
        self.workers.ordered().unwrap_or_default().gate
    }

    /// The gate up to which the host has done its work for this NodeUpdate.
    pub(super) fn passed(&self) -> Gate {
        self.workers.report().unwrap_or_default().passed_gate
    }

    pub(super) fn machine_name(&self) -> &str {
        &self.s.update.spec.machine_ref.name
    }

    pub(super) fn wanted_slot(&self) -> Slot {
        let name = self.s.update.metadata.name.as_deref().unwrap_or_default();
        let machine = &self.s.update.spec.machine_ref;
        Slot {
            claim: self.workers.returned_claim(),
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

/// Whether the Machine belongs to a control plane.
pub(super) fn is_control_plane(machine: &Machine) -> bool {
    let labels = machine.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(keys::CONTROL_PLANE))
}
