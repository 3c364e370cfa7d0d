//! Whether the host has to boot for the packages that were installed on it, which only the host can find out.
//!
//! A plan with packages of the operating system begins without a drain: most of them need no boot. Once they are installed and
//! the host reports that it must boot, the plan is raised to [`Disruption::Reboot`], and the node is drained before the gate
//! `Disrupt` opens. What was raised stands in the HostPlan, so that it stays for as long as the plan does: the report changes
//! with the boot.

use refit_kinds::{
    clip,
    refit::{Disruption, Gate, HostPlan, HostPlanSpec, MAX_FACT, PlannedStep, StepType},
};

use super::{Host, reported};
use crate::node::snapshot::Write;

/// Name of the fact in a report.
const FACT: &str = "rebootRequired";

impl Host<'_> {
    /// How the plan disturbs its machine because the host has to boot: what the plan was raised to.
    pub(super) fn raised(plan: &HostPlan) -> Disruption {
        let spec = &plan.spec;
        // A definition that does not keep the field shows `Drain`; it does not keep such a step either.
        let is_raised = spec.disruption == Disruption::Reboot && may_boot(spec);
        if is_raised { Disruption::Reboot } else { Disruption::None }
    }

    /// The order that raises the plan, and why the host must boot; `None` if it need not, or if the plan was raised.
    pub(in crate::node) fn raise(&self) -> Option<(String, Write)> {
        let plan = self.installed()?;
        let why = plan.status.as_ref()?.facts.reboot_required.as_ref()?;
        let mut spec = plan.spec.clone();
        spec.disruption = Disruption::Reboot;
        (spec != plan.spec).then(|| (clip(why, MAX_FACT), Write::HostPlan(spec)))
    }

    /// Why it is not known whether the host must boot, although its plan may boot it.
    pub(in crate::node) fn boot_unknown(&self) -> Option<String> {
        let plan = self.installed()?;
        let mut unread = plan.status.as_ref()?.facts.unread.iter();
        let unread = unread.find(|unread| unread.fact == FACT)?;
        Some(clip(&format!("{FACT}: {}", unread.message), MAX_FACT))
    }

    /// Whether a plan is this one, which did not drain its node and now does.
    pub(in crate::node) fn raises_to_drain(&self, spec: &HostPlanSpec) -> bool {
        let drained = self.own_plan().is_none_or(|plan| plan.spec.disruption.drains());
        !drained && spec.disruption.drains()
    }

    /// The plan, if its packages are installed and it has not gone on.
    fn installed(&self) -> Option<&HostPlan> {
        let plan = self.own_plan().filter(|plan| may_boot(&plan.spec))?;
        let has_passed = reported(plan).is_some_and(|report| report.passed >= Gate::Upgrade);
        (has_passed && plan.spec.gate == Gate::Upgrade).then_some(plan)
    }
}

/// Whether a plan boots its host if that is required.
fn may_boot(spec: &HostPlanSpec) -> bool {
    spec.steps
        .iter()
        .filter_map(PlannedStep::step_type)
        .any(|type_| type_ == StepType::RebootIfRequired)
}
