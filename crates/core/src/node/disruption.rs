//! How much an update disturbs its machine: the one rule for slots, guards, drains and checks of the others.
//!
//! | disruption | slot, guard, health of a control plane | drain |
//! |---|---|---|
//! | None | no | no |
//! | Restart | yes | no |
//! | Drain, Reboot | yes | yes |
//!
//! It is the most of what the parts of the NodeUpdate say and of what the steps on its host need at least
//! ([`refit_kinds::refit::HostStep::least_disruption`]), and it stands in the HostPlan. It rises to Reboot once the host has
//! installed packages for which it must boot: what a drain waits for is checked then, before the node is cordoned.

use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{Disruption, Phase, Role, StepState};

use super::{
    guard,
    snapshot::{ManagementWrite, Write},
    status::Standing,
    steps::{self, STEP_CORDON, STEP_DRAIN},
    work::Work,
};
use crate::report::Refusal;

/// Why the steps of a drain are skipped.
const PODS_STAY: &str = "pods stay while the machine is updated";

impl Work<'_> {
    /// How the update disturbs its machine.
    pub(super) fn disruption(&self) -> Disruption {
        let by_parts = self.s.update.spec.disruption();
        if by_parts.drains() || !self.workers.has_agent() {
            return by_parts;
        }
        // Which member of a control plane it is makes no difference.
        let role = if self.control_plane() { Role::ControlPlane } else { Role::Worker };
        by_parts.max(self.workers.host.disruption(self.s, role))
    }

    /// Has the node drained before its host goes on, if the host must boot for the packages that it has installed.
    pub(super) fn raise_to_boot(&self) -> Option<Standing> {
        let blocked = |refusal| Standing::blocked(Phase::Upgrading, refusal).again_after(10);
        if let Some(why) = self.workers.host.boot_unknown() {
            let node = self.status.node_name.clone();
            return Some(blocked(Refusal::HostUnreadable { node, why }));
        }
        let (why, raise) = self.workers.host.raise()?;
        let drains_anyway = self.disruption().drains();
        let preflight = self.preflight().filter(|_| !drains_anyway);
        let budget =
            preflight.and_then(|one| one.of_drain(&self.s.drain.policy).refusal_to_drain());
        Some(budget.map_or_else(
            || {
                let line = format!("the host must reboot, so the node is drained first: {why}");
                Standing::new(Phase::Upgrading, line).write(Some(raise))
            },
            blocked,
        ))
    }

    /// A disturbed machine holds a slot and carries the guard, even if something else removed them.
    pub(super) fn keep_claims(&self, machine: &Machine) -> Option<Write> {
        if !self.disruption().takes_slot() {
            return None;
        }
        if let Some(claim) = self.reclaim() {
            return Some(claim);
        }
        let missing = guard::set(machine, self.s.unguarded);
        (!missing.is_empty()).then_some(Write::Management(ManagementWrite::Guard(missing)))
    }

    /// Notes what became of the drain before the machine is disturbed: that the node is drained, or that its pods stay.
    pub(super) fn note_drain(&mut self) {
        if !self.disruption().drains() {
            return self.skip_drain(PODS_STAY);
        }
        for step in [STEP_CORDON, STEP_DRAIN] {
            steps::advance(&mut self.status, step, StepState::Done, self.now, "");
        }
    }

    /// Notes that the node is not drained.
    pub(super) fn skip_drain(&mut self, why: &str) {
        for step in [STEP_CORDON, STEP_DRAIN] {
            steps::advance(&mut self.status, step, StepState::Skipped, self.now, why);
        }
    }
}
