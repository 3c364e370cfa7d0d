//! The slot of a machine in its group: claimed before anything is disturbed, returned if nothing was.

use jiff::SignedDuration;
use refit_kinds::refit::{ClaimId, Gate, NodeUpdate, Phase, StepDurations, UpdateGroupStatus};

use super::{
    host::plan_steps,
    order::is_unfinished,
    preflight::Point,
    seen::NodeView,
    snapshot::{Group, GroupState, ManagementWrite, Write},
    status::Standing,
    steps::step_names,
    work::Work,
};
use crate::{
    group::{self, Claim, GiveBack, RolloutKey, Turn},
    report::Refusal,
};

/// How often an update is looked at that waits for something without an event.
const LOOK_SECONDS: u64 = 10;
/// The same for one that waits for a time: what it waits for may be changed meanwhile.
const LONGEST_LOOK_SECONDS: u64 = 60;

/// The same for one that waits for health gates: looking at them costs requests.
const GATES_LOOK_SECONDS: u64 = 30;
/// For how long the check of the gates that a slot was claimed with counts.
const CLAIMED_JUST_NOW: SignedDuration = SignedDuration::from_mins(1);
/// How far clocks may be apart.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_secs(5);

impl Work<'_> {
    /// A refusal that names the machine that the status names, while it still holds a slot.
    fn same_holder(&self, refusal: Refusal, group: &UpdateGroupStatus) -> Refusal {
        let is_busy = matches!(refusal, Refusal::SlotBusy { .. });
        let shown = self.status.blocked_by.iter().find(|one| one.reason == refusal.reason());
        let held = shown.filter(|one| group.slots.iter().any(|slot| slot.machine == one.object));
        match held {
            Some(shown) if is_busy => Refusal::SlotBusy { machine: shown.object.clone() },
            Some(_) | None => refusal,
        }
    }

    /// The claim that must still be written, or what is to be asked before it; `Ok(None)` once the slot is
    /// held. An update that does not disturb its machine enters its group without a slot.
    pub(super) fn claim(&self) -> Result<Option<Write>, Refusal> {
        let group = match &self.s.group {
            GroupState::None => {
                return Err(Refusal::NoGroup { machine: self.machine_name().to_owned() });
            }
            GroupState::Missing => return Err(Refusal::GroupNotReady),
            GroupState::Present(group) => group,
        };
        let rollout = RolloutKey::of(&self.s.update.spec, &group.pace);
        let turn = Turn {
            pace: &group.pace,
            candidate: self.candidate(rollout.as_ref()),
            queue: &group.others.queue,
            failures: &group.others.failures,
            takes: self.expected_rest(&group.status.durations),
        };
        let (status, limits) = (&group.status, group.limits);
        if let Some(refusal) = self.closed_meanwhile(group, &turn) {
            return Err(refusal);
        }
        let takes_slot = self.disruption().takes_slot();
        let wanted = self.wanted_slot();
        let claim = if takes_slot {
            group::claim(status, &wanted, limits, &group.others.machines, &turn)
        } else {
            group::enter(status, &wanted, &turn)
        };
        match claim.map_err(|refusal| self.same_holder(refusal, status))? {
            Claim::Held => Ok(None),
            Claim::Take(next) => {
                let preflight = self.preflight().filter(|_| takes_slot && !self.holds_slot());
                if let Some(refusal) = preflight.and_then(|one| one.refusal_at(Point::Claim)) {
                    return Err(refusal);
                }
                if let Some(refusal) = self.closed_gates(group) {
                    return Err(refusal);
                }
                Ok(Some(match self.ask_updaters()? {
                    Some(ask) => ask,
                    None => Write::Management(ManagementWrite::ClaimSlot(next)),
                }))
            }
        }
    }

    /// The refusal to begin with a slot that was claimed in a window which has closed since, or before a gate has closed.
    fn closed_meanwhile(&self, group: &Group, turn: &Turn<'_>) -> Option<Refusal> {
        let has_unused = self.has_own_slot(&group.status) && !self.has_begun();
        if !has_unused {
            return None;
        }
        let is_closed = !group::is_window_open(turn.pace, self.now);
        let window =
            is_closed.then(|| group::outside_of_windows(turn.pace, turn.takes, self.now)).flatten();
        window.or_else(|| self.closed_gates(group))
    }

    fn has_own_slot(&self, status: &UpdateGroupStatus) -> bool {
        let name = self.s.update.metadata.name.as_deref();
        let mut all = status.slots.iter().chain(&status.undisturbed);
        all.any(|slot| Some(&*slot.node_update) == name)
    }

    /// Whether the machine is disturbed, or may be from now on.
    fn has_begun(&self) -> bool {
        self.workers.may_disturb() || self.has_disturbing_begun() || self.is_down_already()
    }

    /// Whether the machine begins only while the gates of its group are open.
    pub(super) fn waits_for_gates(&self, group: &Group) -> bool {
        let has_gates = !group.pace.pacing.gates.is_empty();
        let has_begun = self.workers.may_disturb() || self.has_disturbing_begun();
        has_gates && !has_begun && !self.goes_on_whatever_gates_say(&group.status)
    }

    /// Whether a machine begins although gates may be closed: Refit has cordoned its node; or it holds a slot, and they were open
    /// a moment ago, when it claimed that, or it is repaired, and may itself be what a gate has found.
    fn goes_on_whatever_gates_say(&self, status: &UpdateGroupStatus) -> bool {
        let is_cordoned = self.seen.node().is_some_and(NodeView::cordoned_by_us);
        let uid = &self.s.update.spec.machine_ref.uid;
        let mut all = status.slots.iter().chain(&status.undisturbed);
        let Some(slot) = all.find(|slot| slot.machine_uid == *uid) else {
            return is_cordoned;
        };
        let is_of_older = Some(&slot.node_update) != self.s.update.metadata.name.as_ref();
        // A clock may be behind the one of the claim, but not much.
        let age = self.now.duration_since(slot.since.0);
        let is_new = (-CLOCK_SLACK..CLAIMED_JUST_NOW).contains(&age);
        let mut failures = status.rollout.iter().flat_map(|rollout| &rollout.failures);
        let has_failed = failures.any(|failure| failure.machine_uid == *uid);
        is_of_older || is_new || has_failed || !self.is_intact()
    }

    /// Whether the node is Ready, and Refit has not cordoned it.
    fn is_intact(&self) -> bool {
        self.seen.node().is_some_and(|node| node.ready && !node.cordoned_by_us())
    }

    /// The refusal to begin while gates of the group are known to be closed.
    fn closed_gates(&self, group: &Group) -> Option<Refusal> {
        let read = group.gates_read().filter(|_| self.waits_for_gates(group))?;
        (!read.closed.is_empty()).then(|| Refusal::GateClosed {
            owner: group.pace.owner.clone(),
            closed: read.closed.clone(),
        })
    }

    /// How long the steps that are left take, as past updates of the group show it. A member of a control plane has its slot
    /// before its steps are planned.
    fn expected_rest(&self, durations: &[StepDurations]) -> Option<SignedDuration> {
        let steps = &self.status.steps;
        if steps.is_empty() {
            let spec = &self.s.update.spec;
            let only_kubeadm = spec.updater_parts().next().is_none();
            let version = spec.goal.kubernetes_version.as_ref().filter(|_| only_kubeadm)?;
            let planned = plan_steps(self.role(), version);
            return group::expected_rest(durations, step_names(&planned));
        }
        let left = steps.iter().filter(|step| !step.state.is_done_or_skipped());
        group::expected_rest(durations, left.map(|step| &*step.name))
    }

    /// Restores the slot of a machine that is already disturbed: the UpdateGroup must show how many
    /// machines are down, however the slot was lost.
    pub(super) fn reclaim(&self) -> Option<Write> {
        match &self.s.group {
            GroupState::Present(group) if !self.holds_slot() => Some(Write::Management(
                ManagementWrite::ClaimSlot(group::with_slot(&group.status, &self.wanted_slot())),
            )),
            GroupState::Present(_) | GroupState::None | GroupState::Missing => None,
        }
    }

    /// Waits because of a refusal. An unused slot is released: a blocked machine must not prevent
    /// the repair of another.
    pub(super) fn wait(&self, phase: Phase, refusal: Refusal) -> Standing {
        let give_back = match &self.s.group {
            GroupState::Present(group) => {
                let unused = self.leave_unused(&group.status);
                let slot = || self.give_back(&group.status);
                unused.or_else(|| self.is_intact().then(slot).flatten())
            }
            GroupState::None | GroupState::Missing => None,
        };
        let again = match refusal.ends_at() {
            Some(end) => {
                let left = u64::try_from(end.duration_since(self.now).as_secs()).unwrap_or(0);
                left.clamp(LOOK_SECONDS, LONGEST_LOOK_SECONDS)
            }
            // Other windows wake it.
            None if matches!(refusal, Refusal::NoWindow { .. }) => LONGEST_LOOK_SECONDS,
            None if matches!(refusal, Refusal::GateClosed { .. }) => GATES_LOOK_SECONDS,
            None => LOOK_SECONDS,
        };
        Standing::blocked(phase, refusal).write(give_back).again_after(again)
    }

    /// Leaves the group without having begun: a blocked machine must not keep others from their turn.
    fn leave_unused(&self, status: &UpdateGroupStatus) -> Option<Write> {
        let has_begun = self.gate() >= Gate::Upgrade || self.status.has_updater_begun();
        let name = self.s.update.metadata.name.as_ref().filter(|_| !has_begun)?;
        let entry = status.undisturbed.iter().find(|one| one.node_update == *name)?;
        let next = group::leave_unused(status, entry)?;
        Some(Write::Management(ManagementWrite::ReleaseSlot(next)))
    }

    /// The next step to release the slot, if the host was not allowed to do anything for it. An older
    /// update that is still ending needs it, although its host is ready.
    fn give_back(&self, status: &UpdateGroupStatus) -> Option<Write> {
        let uid = &self.s.update.spec.machine_ref.uid;
        let slot = status.slots.iter().find(|slot| slot.machine_uid == *uid)?;
        let is_holder =
            |other: &NodeUpdate| other.metadata.name.as_ref() == Some(&slot.node_update);
        let of_another = self.same_machine().any(|other| is_holder(other) && is_unfinished(other));
        // Without work on the host, no gate opens for the claim.
        let in_use = self.workers.may_disturb() || self.has_disturbing_begun();
        let returned =
            if self.workers.know_as_returned(slot.claim) { slot.claim } else { ClaimId::default() };
        if of_another || in_use {
            return None;
        }
        match group::give_back(status, uid, returned)? {
            GiveBack::Release(next) => Some(Write::Management(ManagementWrite::ReleaseSlot(next))),
            GiveBack::Mark(claim) => self.workers.return_claim(claim),
        }
    }
}
