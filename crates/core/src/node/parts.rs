//! The parts of an update that Updaters make.
//!
//! | disruption | works |
//! |---|---|
//! | None | after the host's upgrade and before the drain; alone without a slot |
//! | Restart | with the slot; alone without a drain |
//! | Drain, Reboot | with the slot on the drained node, after the host |
//!
//! An Updater cannot be stopped or undone: once one has begun, the update runs to completion.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{
    Disruption, Gate, PartState, PartStatus, Phase, Role, StepState, StepStatus, UpdatePart,
    UpdaterAction,
};

use super::{
    health,
    k8sd::may_restart,
    snapshot::Write,
    status::Standing,
    steps::{self, STEP_CORDON, STEP_NODE_READY},
    verify::verify,
    work::Work,
    work_order::WorkStep,
};
use crate::report::Refusal;

/// How long the part of an Updater may take if the update does not say.
pub(super) const TIMEOUT_SECONDS: i32 = 3600;
/// Delay until the next call after the first failed one, in seconds; it doubles with each.
const FIRST_RETRY_SECONDS: i64 = 5;
/// Longest delay between two calls, in seconds.
const LONGEST_DELAY_SECONDS: i64 = 300;
/// How often the objects are read until they show what an Updater has done, in seconds.
const VERIFY_SECONDS: i64 = 10;
/// For how long the answer that an Updater can be called is relied on, in seconds.
const ANSWER_SECONDS: i64 = 120;
/// How long a node must stay Ready after k8sd has refreshed its snap or certificates, in seconds: longer than the Lease of a kubelet.
const WATCHED_SECONDS: i64 = 60;
/// Longest message of an Updater in a status, in characters.
const MESSAGE_CHARACTERS: usize = 512;

/// How a call of an Updater ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// It has done its part.
    Done,
    /// It is at work and is to be called again.
    Again {
        /// Its message.
        message: String,
        /// When it wants the next call, in seconds.
        seconds: i32,
    },
    /// It gave no usable response, or reports a failure.
    Failed {
        /// What is wrong.
        message: String,
    },
}

/// The state of an Updater's part after the question whether the Updater can be called.
pub fn after_ask(part: &PartStatus, answer: Result<(), String>, now: Timestamp) -> PartStatus {
    match answer {
        Ok(()) => PartStatus {
            answered_at: Some(Time(now)),
            failures: 0,
            next_call_at: None,
            message: String::new(),
            ..part.clone()
        },
        Err(why) => failed(part, &why, now),
    }
}

/// The state of an Updater's part that begins.
pub fn begun(part: &PartStatus, now: Timestamp) -> PartStatus {
    let started_at = part.started_at.clone().or(Some(Time(now)));
    PartStatus { state: PartState::Running, started_at, ..part.clone() }
}

/// The state of an Updater's part after a failure: the next try is later with each.
fn failed(part: &PartStatus, why: &str, now: Timestamp) -> PartStatus {
    let doubled = u32::try_from(part.failures).unwrap_or(0).min(10);
    PartStatus {
        failures: part.failures.saturating_add(1),
        message: shown(why),
        next_call_at: Some(later(FIRST_RETRY_SECONDS << doubled, now)),
        ..part.clone()
    }
}

fn later(seconds: i64, now: Timestamp) -> Time {
    let seconds = SignedDuration::from_secs(seconds.clamp(1, LONGEST_DELAY_SECONDS));
    Time(now.saturating_add(seconds).unwrap_or(now))
}

/// The state of an Updater's part after a call. `is_verified`: whether something shows what it has done.
pub fn after_call(
    part: &PartStatus,
    called: &Called,
    is_verified: bool,
    now: Timestamp,
) -> PartStatus {
    let mut next = part.clone();
    next.started_at.get_or_insert(Time(now));
    next.next_call_at = None;
    match called {
        Called::Done => {
            next.failures = 0;
            next.message = String::new();
            if is_verified {
                next.state = PartState::Verifying;
            } else {
                next.state = PartState::Unverified;
                next.finished_at = Some(Time(now));
            }
        }
        Called::Again { message, seconds } => {
            next.state = PartState::Running;
            next.failures = 0;
            next.message = shown(message);
            next.next_call_at = Some(later((*seconds).into(), now));
        }
        Called::Failed { message } => {
            next.state = PartState::Running;
            return failed(&next, message, now);
        }
    }
    next
}

/// The state of an Updater's part after its objects were read.
pub fn after_verification(
    part: &PartStatus,
    shows: Result<(), String>,
    now: Timestamp,
) -> PartStatus {
    let mut next = part.clone();
    match shows {
        Ok(()) => {
            next.state = PartState::Done;
            next.message = String::new();
            next.next_call_at = None;
            next.finished_at = Some(Time(now));
        }
        Err(why) => {
            next.message = shown(&why);
            next.next_call_at = Some(later(VERIFY_SECONDS, now));
        }
    }
    next
}

/// A message of another program, in one line of bounded length.
pub(super) fn shown(message: &str) -> String {
    let plain = message.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut text: String = plain.take(MESSAGE_CHARACTERS).collect();
    text.truncate(text.trim_end().len());
    text
}

/// The gate behind which a part is made.
fn gate_of(part: &UpdatePart) -> Gate {
    match part.disruption {
        Disruption::None => Gate::Upgrade,
        Disruption::Restart | Disruption::Drain | Disruption::Reboot => Gate::Disrupt,
    }
}

impl Work<'_> {
    /// Lists what Updaters are to do.
    pub(super) fn list_parts(&mut self) {
        for part in self.s.update.spec.updater_parts() {
            if self.status.parts.iter().all(|known| known.updater != part.updater) {
                let state = match part.action {
                    UpdaterAction::Update => PartState::Pending,
                    UpdaterAction::Leave => PartState::Left,
                };
                self.status.parts.push(PartStatus {
                    updater: part.updater.clone(),
                    state,
                    ..PartStatus::default()
                });
            }
        }
    }

    /// The parts of Updaters as steps.
    pub(super) fn part_steps(&self) -> Vec<WorkStep> {
        let made =
            |part: &&UpdatePart| part.action == UpdaterAction::Update && part.template.is_none();
        let parts = self.called_parts().filter(made);
        parts.map(|part| self.part_step(part)).collect()
    }

    /// The parts of Updaters that Refit calls: without those of the host.
    fn called_parts(&self) -> impl Iterator<Item = &UpdatePart> {
        self.s.update.spec.updater_parts().filter(|part| part.host.is_none())
    }

    /// Asks the Updaters that have not begun whether they can be called. A slot, and a drain, for one that
    /// cannot would be an outage for nothing.
    pub(super) fn ask_updaters(&self) -> Result<Option<Write>, Refusal> {
        let is_old = |asked: Option<Time>| {
            let age = asked.map(|at| self.now.duration_since(at.0));
            age.is_none_or(|age| age.abs() > SignedDuration::from_secs(ANSWER_SECONDS))
        };
        let parts = self.called_parts().map(|part| self.status.part(&part.updater));
        let mut pending = parts.filter(|part| part.state == PartState::Pending);
        let Some(part) = pending.find(|part| is_old(part.answered_at.clone())) else {
            return Ok(None);
        };
        if part.next_call_at.is_some_and(|at| at.0 > self.now) {
            return Err(Refusal::UpdaterFails { updater: part.updater, message: part.message });
        }
        Ok(Some(Write::AskUpdater(part.updater)))
    }

    /// Whether no Updater has anything to do.
    pub(super) fn has_no_updaters(&self) -> bool {
        let mut parts = self.s.update.spec.updater_parts();
        parts.all(|part| part.action == UpdaterAction::Leave)
    }

    /// When the last Updater ended that disturbs the machine.
    pub(super) fn updaters_ended_at(&self) -> Option<Timestamp> {
        let parts = self.called_parts().filter(|part| gate_of(part) == Gate::Disrupt);
        parts.filter_map(|part| self.status.part(&part.updater).finished_at).map(|at| at.0).max()
    }

    /// Whether an Updater that disturbs the machine has begun.
    pub(super) fn has_disturbing_begun(&self) -> bool {
        let mut parts = self.called_parts().filter(|part| gate_of(part) == Gate::Disrupt);
        parts.any(|part| self.status.part(&part.updater).state.has_begun())
    }

    /// The refusal while a node that an Updater reboots has not shown the new boot. A reboot that the
    /// Updater left out shows by a heartbeat after its end.
    pub(super) fn not_rebooted(&self) -> Option<Refusal> {
        let reboots = self.called_parts().filter(|part| part.disruption == Disruption::Reboot);
        let mut parts = reboots.map(|part| self.status.part(&part.updater));
        let node = self.seen.node()?;
        let is_old = |part: PartStatus| {
            let ended = part.finished_at.map(|at| at.0);
            let is_heard = ended.is_some_and(|ended| node.heartbeat.is_some_and(|at| at > ended));
            !is_heard && (node.boot_id == part.boot_id || node.boot_id.is_empty())
        };
        parts.any(is_old).then(|| Refusal::NodeNotVerified {
            node: self.status.node_name.clone(),
            why: "its kubelet has not reported since its reboot".to_owned(),
        })
    }

    /// Notes that the host has done its parts. Its own checks show them.
    pub(super) fn end_host_parts(&mut self) {
        let names = self.s.update.spec.host_parts().map(|(part, _)| &part.updater);
        let names: Vec<&String> = names.collect();
        for part in self.status.parts.iter_mut().filter(|part| names.contains(&&part.updater)) {
            part.state = PartState::Done;
            part.finished_at.get_or_insert(Time(self.now));
        }
    }

    fn part_step(&self, part: &UpdatePart) -> WorkStep {
        let name = format!("updater/{}", part.updater);
        let known = self.status.part(&part.updater);
        let is_repeated = known.is_to_be_repeated();
        let PartStatus { state, failures, started_at, finished_at, message, refresh, .. } = known;
        let attempts = refresh.map_or(failures, |refresh| refresh.failed_attempts);
        let status = StepStatus {
            name: name.clone(),
            state: state.as_step(),
            attempt: if state.has_begun() || is_repeated { attempts.saturating_add(1) } else { 0 },
            started_at,
            finished_at,
            message: if failures > 0 { message } else { String::new() },
        };
        WorkStep { name, gate: gate_of(part), status: Some(status) }
    }

    /// Lets the Updaters behind a gate work, one after the other; `None` once all are done.
    pub(super) fn updaters(&self, gate: Gate) -> Option<Standing> {
        // What a provider has done through the gates is only verified here.
        let is_behind = |part: &&UpdatePart| match &part.template {
            Some(_) => gate == Gate::Disrupt,
            None => gate_of(part) == gate,
        };
        let mut behind = self.called_parts().filter(is_behind);
        let next = behind.find(|part| !self.status.part(&part.updater).state.has_ended())?;
        let part = self.status.part(&next.updater);
        let phase = match gate {
            Gate::Closed | Gate::Stage | Gate::Upgrade => Phase::Upgrading,
            // The pods are listed while the phase is Draining, and the first call needs that.
            Gate::Disrupt if !part.state.has_begun() && self.status.phase == Phase::Draining => {
                Phase::Draining
            }
            Gate::Disrupt => Phase::Disrupting,
        };
        let limit =
            SignedDuration::from_secs(next.timeout_seconds.unwrap_or(TIMEOUT_SECONDS).into());
        // The time of a provider counts from its last gate.
        let started = part.gate_at.as_ref().or(part.started_at.as_ref()).map(|time| time.0);
        // After an outage there is one more call.
        let is_late = |at: Timestamp| {
            let took = started.map(|started| at.duration_since(started));
            !next.is_of_k8sd() && took.is_some_and(|took| took >= limit)
        };
        if let Some(refusal) = part.is_to_be_repeated().then(|| self.pause_refusal()).flatten() {
            return Some(Standing::blocked(phase, refusal).again_after(10));
        }
        if is_late(self.now) && part.next_call_at.as_ref().is_some_and(|at| is_late(at.0)) {
            return Some(timed_out(&part, limit));
        }
        if let Some(failed) = next.is_of_k8sd().then(|| self.node_lost_to_k8sd(&part)).flatten() {
            return Some(failed);
        }
        let standing = at_work(phase, &part, self.now);
        let later = part.next_call_at.as_ref().map(|at| at.0.duration_since(self.now));
        Some(match later.and_then(|later| Duration::try_from(later).ok()) {
            Some(later) if !later.is_zero() => standing.again_after(later.as_secs().max(1)),
            Some(_) | None => standing.write(Some(Write::Updater(next.updater.clone()))),
        })
    }

    /// An update in which only Updaters work.
    pub(super) fn without_host(&mut self, machine: &Machine) -> Standing {
        let role = if self.control_plane() { Role::ControlPlane } else { Role::Worker };
        self.status.role.get_or_insert(role);
        let cordon = steps::state_of(&self.status, STEP_CORDON);
        let drains = !matches!(cordon, StepState::Pending | StepState::Skipped);
        if !self.status.has_updater_begun() && !drains {
            if let Some(failed) = self.unreachable_goal() {
                return failed;
            }
            if let Some(refusal) = self.common_refusal() {
                return self.wait(Phase::Pending, refusal);
            }
            if let Some(standing) = self.verify_adopted() {
                return standing;
            }
            if let Some(refusal) = self.until_refusal(Gate::Upgrade) {
                return self.wait(Phase::Waiting, refusal);
            }
            if let Some(entering) = self.enter_undisturbed() {
                return entering;
            }
        }
        self.status.started_at.get_or_insert(Time(self.now));
        let own_steps = self.part_steps();
        steps::mirror(&mut self.status, &own_steps);
        if let Some(working) = self.updaters(Gate::Upgrade) {
            return working;
        }
        if let Some(working) = self.disturb(machine, drains) {
            return working;
        }
        self.finish_without_host()
    }

    /// Prepares the machine for the Updaters that disturb it, and lets them work.
    fn disturb(&mut self, machine: &Machine, drains: bool) -> Option<Standing> {
        let disruption = self.disruption();
        if !disruption.takes_slot() {
            return None;
        }
        let begun = self.has_disturbing_begun();
        if begun || drains {
            if let Some(write) = self.keep_claims(machine) {
                let phase = self.status.phase;
                return Some(Standing::new(phase, "keeping the slot").write(Some(write)));
            }
        } else if let Some(waiting) = self.enter(machine) {
            return Some(waiting);
        }
        if begun {
            self.note_drain();
        } else {
            if self.control_plane()
                && let Err(refusal) =
                    health::control_plane_health(self.seen, &self.status.node_name)
            {
                return Some(Standing::blocked(Phase::Draining, refusal).again_after(10));
            }
            if disruption.drains() {
                if let Some(waiting) = self.drain() {
                    return Some(waiting);
                }
            } else {
                self.note_drain();
            }
        }
        self.updaters(Gate::Disrupt)
    }

    /// Waits for its turn to begin with an update that does not disturb the machine.
    fn enter_undisturbed(&self) -> Option<Standing> {
        if self.disruption().takes_slot() || self.has_no_updaters() {
            return None;
        }
        match self.claim() {
            Err(refusal) => Some(self.wait(Phase::Waiting, refusal)),
            Ok(claim) => {
                let phase = self.status.phase.max(Phase::Waiting);
                claim.map(|claim| {
                    Standing::new(phase, "entering the group: it is the turn of the machine")
                        .write(Some(claim))
                })
            }
        }
    }

    /// Takes the slot and the guard.
    fn enter(&self, machine: &Machine) -> Option<Standing> {
        let held = self.pause_refusal().or_else(|| self.until_refusal(Gate::Disrupt));
        if let Some(refusal) = held.or_else(|| self.disturb_refusal()) {
            return Some(self.wait(Phase::Waiting, refusal));
        }
        let write = match self.claim() {
            Err(refusal) => return Some(self.wait(Phase::Waiting, refusal)),
            Ok(Some(claim)) => Some(claim),
            Ok(None) => self.keep_claims(machine),
        };
        write.map(|write| {
            let phase = self.status.phase.max(Phase::Waiting);
            Standing::new(phase, "a slot is claimed").write(Some(write))
        })
    }

    fn finish_without_host(&mut self) -> Standing {
        if self.disruption().takes_slot() {
            let node = self.status.node_name.clone();
            let now = self.now;
            steps::advance(&mut self.status, STEP_NODE_READY, StepState::Running, now, "");
            // Nothing here has made a version true.
            let shown = verify(self.seen, &node, None, false, None, now);
            let unhealthy = || {
                let is_member = self.control_plane();
                is_member.then(|| health::control_plane_health(self.seen, &node).err()).flatten()
            };
            let refusal = shown.err().or_else(|| self.not_rebooted()).or_else(unhealthy);
            if let Some(watched) = refusal.is_none().then(|| self.watched_after_k8sd()).flatten() {
                return watched;
            }
            if let Some(refusal) = refusal {
                return self.node_lost(&refusal).unwrap_or_else(|| {
                    Standing::blocked(Phase::Verifying, refusal).again_after(10)
                });
            }
            self.note_drain();
        } else {
            self.skip_drain("nothing is disturbed");
        }
        self.end_serving()
    }
}

impl Work<'_> {
    /// Waits after k8sd has ended: a kubelet that does not start leaves the node Ready until its Lease ends.
    fn watched_after_k8sd(&self) -> Option<Standing> {
        let part = self.s.update.spec.updater_parts().find(|part| part.is_of_k8sd())?;
        let ended = self.status.part(&part.updater).finished_at?.0;
        let rest = WATCHED_SECONDS - self.now.duration_since(ended).as_secs();
        let rest = u64::try_from(rest).ok().filter(|rest| *rest > 0)?;
        let refusal = Refusal::NodeNotVerified {
            node: self.status.node_name.clone(),
            why: format!("it must stay Ready for {WATCHED_SECONDS} s after k8sd has refreshed it"),
        };
        Some(Standing::blocked(Phase::Verifying, refusal).again_after(rest))
    }

    /// The failure of an update whose node has not reported since a refresh began: then remediation may do its work.
    fn node_lost_to_k8sd(&self, part: &PartStatus) -> Option<Standing> {
        let limit = self.s.host_lost_after?;
        let node = self.seen.node().filter(|node| !node.ready)?;
        let began = part.refresh.as_ref()?.began_at.as_ref()?.0;
        let heard = node.heartbeat?.max(began).max(self.seen.complete_since);
        (part.state.has_begun() && self.now.duration_since(heard) >= limit).then(|| {
            let why = format!(
                "its kubelet has not reported for {} s since k8sd refreshes it",
                limit.as_secs()
            );
            Standing::failed("NodeNotBack", why)
        })
    }

    /// The failure of an update whose node does not return from its Updaters: then remediation may do its
    /// work.
    pub(super) fn node_lost(&self, refusal: &Refusal) -> Option<Standing> {
        let limit = self.s.host_lost_after?;
        let ended = self.updaters_ended_at()?.max(self.seen.complete_since);
        (self.now.duration_since(ended) >= limit).then(|| {
            let why = refusal.sentence();
            Standing::failed(
                "NodeNotBack",
                format!("all Updaters have ended, and for too long: {why}"),
            )
        })
    }
}

fn at_work(phase: Phase, part: &PartStatus, now: Timestamp) -> Standing {
    let PartStatus { updater, state, failures, message, .. } = part;
    if *failures > 0 && !may_restart(part, now) {
        let refusal = Refusal::UpdaterFails { updater: updater.clone(), message: message.clone() };
        return Standing::blocked(phase, refusal);
    }
    match state {
        PartState::Verifying if !message.is_empty() => {
            let refusal =
                Refusal::UpdaterNotVerified { updater: updater.clone(), why: message.clone() };
            Standing::blocked(phase, refusal)
        }
        PartState::Running if !message.is_empty() => {
            Standing::new(phase, format!("updater {updater}: {message}"))
        }
        PartState::Pending
        | PartState::Ongoing
        | PartState::Running
        | PartState::Verifying
        | PartState::Done
        | PartState::Unverified
        | PartState::Left => Standing::new(phase, format!("updater {updater} is at work")),
    }
}

fn timed_out(part: &PartStatus, limit: SignedDuration) -> Standing {
    let PartStatus { updater, state, message, .. } = part;
    let seconds = limit.as_secs();
    let (reason, what) = match state {
        PartState::Verifying => (
            "UpdaterNotVerified",
            format!(
                "Updater {updater} reports that it is done, and the objects of the machine do not show it"
            ),
        ),
        PartState::Pending
        | PartState::Ongoing
        | PartState::Running
        | PartState::Done
        | PartState::Unverified
        | PartState::Left => ("UpdaterTimedOut", format!("Updater {updater} has not finished")),
    };
    let why = if message.is_empty() { String::new() } else { format!(": {message}") };
    Standing::failed(reason, format!("{what} within {seconds} s{why}"))
}
