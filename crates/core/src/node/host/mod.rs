//! The updater of the host: the agent, whose orders and reports are a HostPlan.

mod applied;
mod arrival;
mod boot;
mod configuration;
mod report;
pub(super) mod selection;
mod settings;
mod steps;
mod verify;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    clip,
    refit::{
        ClaimId, Disruption, Gate, GoalCertificates, HostPlan, HostPlanSpec, HostPlanStatus,
        HostStep, MAX_FACT, NodeName, NodeUpdate, OsImageArgs, OsPackageArgs, Phase, PlanId,
        PlanSettings, PlanState, PlannedStep, REPORT_INTERVAL_SECONDS, Role, SettingHashes,
        StepState,
    },
};

use super::{
    order::is_unfinished,
    seen::{NodeView, Seen},
    snapshot::{Snapshot, Write},
    work_order::{WorkOrder, WorkReport, WorkStep},
};
use crate::report::Refusal;

pub(super) use applied::settings_after;
pub use applied::settings_had;
pub use arrival::Arrival;
pub use selection::Specificity;
pub use settings::{SettingsSources, applying_settings, from_bundle, host_settings};
pub use steps::{HostWork, Reboot, plan_steps};

/// The host of a Machine, for one of its NodeUpdates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    update: &'a NodeUpdate,
    /// The HostPlan of the Machine's Node, whichever NodeUpdate it is of.
    plan: Option<&'a HostPlan>,
    /// When the agent's last report arrived.
    reported_at: Option<Timestamp>,
}

impl<'a> Host<'a> {
    /// The host in a cluster that is not known.
    pub(super) fn unseen(update: &'a NodeUpdate) -> Self {
        Self { update, plan: None, reported_at: None }
    }

    pub(super) fn new(update: &'a NodeUpdate, seen: &'a Seen) -> Self {
        Self { update, plan: seen.host_plan.as_deref(), reported_at: seen.reported_at }
    }

    /// The HostPlan, if it belongs to this NodeUpdate.
    fn own_plan(&self) -> Option<&'a HostPlan> {
        self.plan.filter(|plan| is_ours(plan, self.update))
    }

    /// The last order of this NodeUpdate; `None` before the first.
    pub(super) fn ordered(&self) -> Option<WorkOrder> {
        let spec = &self.own_plan()?.spec;
        Some(WorkOrder { gate: spec.gate, abort: spec.abort })
    }

    /// The steps of this NodeUpdate; empty before the first order.
    pub(super) fn steps(&self) -> Vec<WorkStep> {
        let plan = self.own_plan();
        plan.map(|plan| report::steps(&plan.spec.steps, reported(plan))).unwrap_or_default()
    }

    /// The agent's report on this NodeUpdate; `None` until there is one.
    pub(super) fn report(&self) -> Option<WorkReport> {
        self.own_plan().and_then(reported).map(report::of)
    }

    /// When the first of kubeadm's certificates on the host expires.
    pub(super) fn certificates_end(&self) -> Option<Timestamp> {
        let end = reported(self.own_plan()?)?.facts.certificates_end.as_ref()?;
        Some(end.0)
    }

    /// The role for kubeadm that the steps were planned for.
    pub(super) fn role(&self) -> Option<Role> {
        let role_of = |step: &PlannedStep| {
            if let HostStep::KubeadmUpgrade { role, .. } = step.step()? {
                Some(*role)
            } else {
                None
            }
        };
        self.own_plan()?.spec.steps.iter().find_map(role_of)
    }

    /// The same host for another NodeUpdate of its Machine.
    pub(super) fn for_update(&self, update: &'a NodeUpdate) -> Self {
        Self { update, ..*self }
    }

    /// The first order, which allows the host to prepare, and its steps; `None` if the goal asks for nothing on the host.
    pub(super) fn first_order(&self, s: &Snapshot, role: Role) -> Option<(Vec<WorkStep>, Write)> {
        let settings = applied::applied(s);
        let work = self.work(s, role, settings.as_deref())?;
        let steps = work.steps();
        let spec = HostPlanSpec {
            node_update: self.update.metadata.name.clone().unwrap_or_default(),
            plan_id: PlanId::of(&self.update.metadata),
            gate: Gate::Stage,
            abort: false,
            returned_claim: self.returned_claim(),
            point_of_no_return: work.point_of_no_return().to_owned(),
            disruption: s.update.spec.disruption().max(least_disruption(&steps)),
            steps,
        };
        Some((report::steps(&spec.steps, None), Write::HostPlan(spec)))
    }

    /// How the steps of its plan disturb the machine, or those that it would get. The plan's field may be missing: the
    /// definition of an older Refit does not keep it. A plan whose host has to boot is raised.
    pub(super) fn disruption(&self, s: &Snapshot, role: Role) -> Disruption {
        match self.own_plan() {
            Some(plan) => least_disruption(&plan.spec.steps).max(Self::raised(plan)),
            None => least_disruption(&self.planned(s, role)),
        }
    }

    fn planned(&self, s: &Snapshot, role: Role) -> Vec<PlannedStep> {
        let settings = applied::applied(s);
        self.work(s, role, settings.as_deref()).map(|work| work.steps()).unwrap_or_default()
    }

    /// Whether the goal asks for something on the host.
    pub(super) fn has_work(&self) -> bool {
        let spec = &self.update.spec;
        upgrades(self.update)
            || spec.is_upkeep()
            || os_image(self.update).is_some()
            || os_packages(self.update).is_some()
            || spec.configuration().is_some_and(|part| !part.is_empty())
    }

    /// The target state of the host with the settings that are applied, and the state that it reports.
    fn work<'b>(
        &self,
        s: &'b Snapshot,
        role: Role,
        applied: Option<&'b PlanSettings>,
    ) -> Option<HostWork<'b>>
    where
        'a: 'b,
    {
        let spec = &s.update.spec;
        let renewal = spec.goal.certificates.map(GoalCertificates::renewal);
        let upgrades = upgrades(&s.update);
        let settings = applied.unwrap_or(&s.settings);
        let work = HostWork {
            role,
            version: spec.goal.kubernetes_version.as_ref(),
            upgrades,
            renew_within_days: renewal
                .or_else(|| settings.certificates.clone().filter(|_| upgrades))
                .map(|certificates| certificates.renew_within_days),
            reboot: s.reboot,
            settings,
            applies_settings: applied.is_some(),
            os_image: os_image(&s.update).or_else(|| applied?.os_image.as_ref()),
            os_packages: os_packages(&s.update)
                .or_else(|| applied?.os_packages.as_ref())
                .map(|packages| steps::keeping_runtime(packages, &s.settings)),
            configuration: self.configuration(s),
            facts: self.plan.and_then(|plan| plan.status.as_ref()).map(|status| &status.facts),
        };
        let applies = applied.is_some_and(|all| SettingHashes::of(all) != SettingHashes::default());
        (self.has_work() && (applies || !spec.changes_settings())).then_some(work)
    }

    /// The OS image that would replace the packages that an Updater installs: a new image has its own.
    pub(super) fn image_without_packages(&self, s: &Snapshot, role: Role) -> Option<String> {
        os_packages(&s.update)?;
        let settings = applied::applied(s);
        Some(self.work(s, role, settings.as_deref())?.new_image()?.name)
    }

    /// Gives an order after the first; `None` if the host has it already, or no first one.
    pub(super) fn order(&self, order: WorkOrder) -> Option<Write> {
        let plan = self.own_plan()?;
        let mut spec = plan.spec.clone();
        spec.gate = spec.gate.max(order.gate);
        spec.abort |= order.abort;
        (spec != plan.spec).then_some(Write::HostPlan(spec))
    }

    /// When the agent's last report arrived, on any plan or on none.
    pub(super) fn last_report_at(&self) -> Option<Timestamp> {
        self.reported_at
    }

    /// The first fact of the host that its agent could not read, and why.
    pub(super) fn unread(&self) -> Option<String> {
        let unread = self.plan?.status.as_ref()?.facts.unread.first()?;
        Some(clip(&format!("{}: {}", unread.fact, unread.message), MAX_FACT))
    }

    /// How long the host may be silent because of the step that it runs: all its time, and the report.
    pub(super) fn silence_of_step(&self) -> Option<SignedDuration> {
        let plan = self.own_plan()?;
        let report = reported(plan)?;
        let running = report.steps.iter().find(|step| step.state == StepState::Running)?;
        let planned = plan.spec.steps.iter().find(|step| step.id == running.id)?;
        let default =
            || planned.step().map(HostStep::rules).map(|rules| rules.timeout_seconds.into());
        let timeout: i64 = planned.timeout_seconds.map(i64::from).or_else(default)?;
        Some(SignedDuration::from_secs(timeout.saturating_add(REPORT_INTERVAL_SECONDS)))
    }

    /// What prevents an agent that reports from starting this NodeUpdate: a step that it does not
    /// support, or an older plan that it has not finished.
    pub(super) fn start_refusal(
        &self,
        s: &Snapshot,
        node: &NodeName,
        role: Role,
    ) -> Option<Refusal> {
        let plan = self.plan?;
        let capabilities = plan.status.as_ref().map_or(&[][..], |status| &status.capabilities);
        let steps = match self.own_plan() {
            Some(plan) => plan.spec.steps.clone(),
            None => self.planned(s, role),
        };
        let mut types = steps.iter().filter_map(PlannedStep::step_type);
        if let Some(step) = types.find(|type_| !capabilities.contains(type_)) {
            return Some(Refusal::AgentTooOld { node: node.clone(), step });
        }
        self.older_plan(node)
    }

    /// The refusal while the agent has not ended a plan of another NodeUpdate.
    pub(super) fn older_plan(&self, node: &NodeName) -> Option<Refusal> {
        let plan = self.plan?;
        let foreign = !plan.spec.plan_id.is_empty() && !is_ours(plan, self.update);
        (foreign && !has_ended(plan)).then(|| Refusal::OlderPlanRunning {
            node: node.clone(),
            node_update: plan.spec.node_update.clone(),
        })
    }

    /// Aborts the plan of another NodeUpdate, unless that NodeUpdate is unfinished and does so
    /// itself. A plan that may run every step ends by itself, and its kubelet may be the new one
    /// already.
    pub(super) fn abort_orphan(&self, siblings: &[Arc<NodeUpdate>]) -> Option<Write> {
        let plan = self.plan.filter(|plan| plan.spec.gate < Gate::Disrupt)?;
        let owner_unfinished =
            siblings.iter().any(|other| is_ours(plan, other) && is_unfinished(other));
        let mut spec = plan.spec.clone();
        spec.abort = true;
        (!owner_unfinished && !plan.spec.abort).then_some(Write::HostPlan(spec))
    }

    /// Whether a plan, of this NodeUpdate or of another, may disturb the node: if it is not known,
    /// it may.
    pub(super) fn may_disturb(&self) -> bool {
        self.plan.is_none_or(|plan| {
            plan.spec.disruption.takes_slot()
                && plan.spec.gate >= Gate::Upgrade
                && (is_ours(plan, self.update) || !has_ended(plan))
        })
    }

    /// Whether a plan is another one than that of the host, and no further order about it.
    pub(super) fn is_new(&self, spec: &HostPlanSpec) -> bool {
        self.plan.is_none_or(|plan| plan.spec.plan_id != spec.plan_id)
    }

    /// Whether a plan allows the host steps that disturb the machine, and that it may not carry out yet.
    pub(super) fn opens(&self, spec: &HostPlanSpec) -> bool {
        let before = self.plan.map(|plan| plan.spec.gate).unwrap_or_default();
        spec.disruption.takes_slot() && spec.gate >= Gate::Upgrade && spec.gate > before
    }

    /// The claim of a slot that was returned unused.
    pub(super) fn returned_claim(&self) -> ClaimId {
        self.plan.map(|plan| plan.spec.returned_claim).unwrap_or_default()
    }

    /// Records that a claim is returned unused: no gate opens for it any more.
    pub(super) fn return_claim(&self, claim: ClaimId) -> Option<Write> {
        let mut spec = self.plan?.spec.clone();
        spec.returned_claim = claim;
        Some(Write::HostPlan(spec))
    }

    /// Whether the update has ended and the host is as it was before.
    pub(super) fn ended_rolled_back(&self) -> bool {
        let Some(status) = &self.update.status else {
            return false;
        };
        let given_up = matches!(status.phase, Phase::Failed | Phase::Stopped);
        given_up
            && match self.own_plan() {
                Some(_) => self.report().is_some_and(|report| report.is_rolled_back()),
                // An update lists its steps before it sends them to the host.
                None => status.steps.is_empty(),
            }
    }

    /// Checks that the Node shows the host as it is after this NodeUpdate; otherwise the error is what
    /// does not match.
    pub(super) fn verify(&self, node: &NodeView, now: Timestamp) -> Result<(), String> {
        let plan = self.own_plan().ok_or("its host has no plan of this NodeUpdate")?;
        verify::verify(node, plan, now)
    }
}

/// Whether kubeadm brings the host to a version in this update.
fn upgrades(update: &NodeUpdate) -> bool {
    update.spec.goal.kubernetes_version.is_some() && update.spec.upgrades_host()
}

/// How much steps disturb a machine at least.
fn least_disruption(steps: &[PlannedStep]) -> Disruption {
    let known = steps.iter().filter_map(PlannedStep::step);
    known.map(HostStep::least_disruption).max().unwrap_or(Disruption::None)
}

/// The OS image that an Updater installs in this update.
fn os_image(update: &NodeUpdate) -> Option<&OsImageArgs> {
    update.spec.host_parts().find_map(|(_, host)| host.os_image())
}

/// The packages of the operating system that an Updater installs in this update.
fn os_packages(update: &NodeUpdate) -> Option<&OsPackageArgs> {
    update.spec.host_parts().find_map(|(_, host)| host.os_packages())
}

/// Whether the plan belongs to this NodeUpdate.
fn is_ours(plan: &HostPlan, update: &NodeUpdate) -> bool {
    let plan_id = PlanId::of(&update.metadata);
    !plan_id.is_empty() && plan.spec.plan_id == plan_id
}

/// The agent's report, if it is about the plan in the spec.
fn reported(plan: &HostPlan) -> Option<&HostPlanStatus> {
    plan.status.as_ref().filter(|status| status.plan_id == plan.spec.plan_id)
}

/// Whether the host has finished the plan in its spec, successfully or not.
pub(super) fn has_ended(plan: &HostPlan) -> bool {
    reported(plan).is_some_and(|report| {
        matches!(report.state, PlanState::Succeeded | PlanState::Failed | PlanState::Stopped)
    })
}
