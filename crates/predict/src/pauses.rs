//! What a plan reports of the pacing of a group that only people end: a pause, a hold, failures, an approval.

use refit_core::{
    group::{OwnerPacing, Pace, exception_of, present_rollout, request_of, stopped_rollout},
    report::Refusal,
};
use refit_kinds::{
    json::{annotations, name},
    refit::{ExceptionRule, update_group_name},
};
use serde::Deserialize as _;
use serde_json::Value;

use super::view::View;

impl View<'_> {
    /// Adds blockers for machines that do not begin until people let them, and notes of those that are left out or wait for an
    /// approval in the middle.
    pub(super) fn look_for_pauses(&mut self, machines: &[&Value]) {
        let group = self.update_group();
        let (pacing, status) =
            group.map(|group| (group.spec.pacing, group.status)).unwrap_or_default();
        let status = status.unwrap_or_default();
        let of_owner = OwnerPacing::of(&annotations(self.wanted));
        let group = update_group_name(&self.group.kind, &self.group.name);
        let object = if pacing.paused {
            format!("UpdateGroup {group}")
        } else {
            format!("{} {}", self.group.kind, self.group.name)
        };
        let pacing = of_owner.with(&pacing);
        let unsettled = self.unsettled.take();
        let mut refusals: Vec<(String, Refusal)> =
            unsettled.into_iter().map(|refusal| (self.title(), refusal)).collect();
        if pacing.paused {
            refusals.push((self.title(), Refusal::Paused { object }));
        }
        let rollout = present_rollout(&status, &request_of(&self.plan.to, ""));
        for machine in machines {
            let Ok(read) = refit_cluster_api::kinds::Machine::deserialize(*machine) else {
                continue;
            };
            let Some(exception) = exception_of(&read, &pacing, rollout) else { continue };
            let object = format!("Machine/{}", name(machine));
            match exception.rule {
                ExceptionRule::Hold => refusals.push((object, exception.into())),
                ExceptionRule::Skip => {
                    self.plan
                        .notes
                        .push(format!("{object}: {}", Refusal::from(exception).sentence()));
                }
            }
        }
        let first = pacing.pause_after.filter(|_| pacing.approve != Some(rollout));
        if let Some(first) = first.filter(|first| i64::from(*first) < self.plan.machines.in_place) {
            self.plan.notes.push(format!(
                "the rollout waits for an approval after {first} machines (`refit approve {}`); the times do not contain that \
                 wait",
                self.owner_argument()
            ));
        }
        let pace = Pace { pacing, owner: self.owner_argument(), ..Pace::default() };
        if let Some(refusal) = stopped_rollout(&status, &pace) {
            refusals.push((self.title(), refusal));
        }
        for (object, refusal) in refusals {
            self.block(refusal.reason(), object, refusal.sentence());
        }
    }
}
