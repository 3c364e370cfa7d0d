//! What a plan reports of the maintenance windows of a group.

use refit_core::{
    group::{Pace, expected_rest, outside_of_windows, owner_argument},
    node::{plan_steps, step_names},
    windows::Schedule,
};
use refit_kinds::{
    json::is_deleting,
    refit::{Gate, GroupOwner, Role, UpdateGroup, update_group_name},
};
use serde::Deserialize as _;

use super::view::View;

impl View<'_> {
    /// Notes when the machines of a group may begin; adds a blocker if they never may.
    pub(super) fn look_for_windows(&mut self) {
        let object = update_group_name(&self.group.kind, &self.group.name);
        let known = self.input.current.get("UpdateGroup", &self.group.namespace, &object);
        let known = known.filter(|group| !is_deleting(group));
        let Some(group) = known.and_then(|group| UpdateGroup::deserialize(group).ok()) else {
            return;
        };
        let Some(windows) = &group.spec.pacing.windows else { return };
        let steps = self.plan.to.version().map(|to| plan_steps(self.role(), to));
        let mut steps = steps.unwrap_or_default();
        match self.role() {
            // Their hosts prepare before they have a slot.
            Role::Worker => steps.retain(|step| step.gate > Gate::Stage),
            Role::FirstControlPlane | Role::ControlPlane => {}
        }
        let status = group.status.clone().unwrap_or_default();
        let owner = owner_argument(&GroupOwner {
            kind: self.group.kind.clone(),
            name: self.group.name.clone(),
            ..GroupOwner::default()
        });
        let pace = Pace { pacing: group.spec.pacing.clone(), owner, ..Pace::default() };
        let takes = expected_rest(&status.durations, step_names(&steps));
        let now = self.input.now;
        match outside_of_windows(&pace, takes, now) {
            Some(refusal) if refusal.ends_at().is_some() => {
                self.plan.notes.push(refusal.sentence());
            }
            Some(refusal) => {
                let object = format!("UpdateGroup/{object}");
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
