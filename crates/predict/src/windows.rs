//! What a plan reports of the maintenance windows of a group.

use refit_core::{
    group::{Pace, expected_rest, outside_of_windows},
    node::{plan_steps, step_names},
    windows::Schedule,
};
use refit_kinds::refit::{Gate, Role, update_group_name};

use super::view::View;

impl View<'_> {
    /// Notes when the machines of a group may begin; adds a blocker if they never may.
    pub(super) fn look_for_windows(&mut self) {
        let Some(group) = self.update_group() else { return };
        let Some(windows) = &group.spec.pacing.windows else { return };
        let steps = self.plan.to.version().map(|to| plan_steps(self.role(), to));
        let mut steps = steps.unwrap_or_default();
        match self.role() {
            // Their hosts prepare before they have a slot.
            Role::Worker => steps.retain(|step| step.gate > Gate::Stage),
            Role::FirstControlPlane | Role::ControlPlane => {}
        }
        let status = group.status.clone().unwrap_or_default();
        let owner = self.owner_argument();
        let pace = Pace { pacing: group.spec.pacing.clone(), owner, ..Pace::default() };
        let takes = expected_rest(&status.durations, step_names(&steps));
        let now = self.input.now;
        match outside_of_windows(&pace, takes, now) {
            Some(refusal) if refusal.ends_at().is_some() => {
                self.plan.notes.push(refusal.sentence());
            }
            Some(refusal) => {
                let object = format!(
                    "UpdateGroup/{}",
                    update_group_name(&self.group.kind, &self.group.name)
                );
                self.block(refusal.reason(), object, refusal.sentence());
            }
            None => {
                let schedule = Schedule::of(windows).ok();
                if let Some(open) = schedule.and_then(|schedule| schedule.open_at(now)) {
                    self.plan.notes.push(format!(
                        "machines begin only in maintenance windows: the present one closes at {}",
                        open.until
                    ));
                }
            }
        }
    }
}
