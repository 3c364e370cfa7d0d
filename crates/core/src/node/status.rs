//! Turns the standing of an update into its status and the next write.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    conditions,
    refit::{
        Blocker, DrainRung, NodeUpdate, NodeUpdateStatus, PartState, PartStatus, Phase, Role,
        Stage, StepState,
    },
};

use super::{
    member_missing::MEMBER_MISSING,
    order::speaks,
    snapshot::{Announcement, Decision, GroupState, ManagementWrite, Severity, Snapshot, Write},
    steps,
};
use crate::report::{Reason, Refusal, RefusalReason};

/// Suffix for an update whose abort was requested too late.
const TOO_LATE: &str = " (too late to abort: the update runs to completion)";

/// Whether an abort comes too late for an update that has not ended. On a worker, what kubeadm
/// changes is rolled back, and the old kubelet runs until the drain has ended. What an Updater has begun cannot be
/// stopped; between two attempts of k8sd, nothing runs.
pub fn is_past_return(status: &NodeUpdateStatus) -> bool {
    let first = match status.role {
        Some(Role::Worker) => Phase::Disrupting,
        Some(Role::FirstControlPlane | Role::ControlPlane) | None => Phase::Upgrading,
    };
    let is_between_attempts =
        || !status.has_updater_begun() && status.parts.iter().any(PartStatus::is_to_be_repeated);
    (first..=Phase::Uncordoning).contains(&status.phase) && !is_between_attempts()
        || status.has_updater_begun() && !status.phase.is_final()
}

/// Why an update failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) message: String,
}

/// The state of an update, and what to do once the status shows it.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) phase: Phase,
    pub(super) write: Option<Write>,
    pub(super) blockers: Vec<Refusal>,
    /// Keep blockers from rejected evictions: no eviction was attempted since.
    pub(super) keep_eviction_blockers: bool,
    pub(super) failure: Option<Failure>,
    /// Message to show if neither a blocker nor the phase is sufficient.
    pub(super) message: String,
    pub(super) requeue: Option<Duration>,
}

impl Standing {
    pub(super) fn new(phase: Phase, message: impl Into<String>) -> Self {
        Self {
            phase,
            write: None,
            blockers: Vec::new(),
            keep_eviction_blockers: false,
            failure: None,
            message: message.into(),
            // A safety net: any change that the update waits for also triggers a decision.
            requeue: Some(Duration::from_secs(30)),
        }
    }

    pub(super) fn blocked(phase: Phase, refusal: Refusal) -> Self {
        Self { blockers: vec![refusal], ..Self::new(phase, "") }
    }

    pub(super) fn write(mut self, write: Option<Write>) -> Self {
        self.write = write;
        self
    }

    pub(super) fn again_after(mut self, seconds: u64) -> Self {
        self.requeue = Some(Duration::from_secs(seconds));
        self
    }

    pub(super) fn failed(reason: impl Into<String>, message: impl Into<String>) -> Self {
        let failure = Failure { reason: reason.into(), message: message.into() };
        let line = format!("failed: {}; {}", failure.reason, failure.message);
        Self { failure: Some(failure), ..Self::new(Phase::Failed, line) }
    }

    pub(super) fn stopped(reason: &str, message: impl Into<String>) -> Self {
        let failure = Failure { reason: reason.to_owned(), message: message.into() };
        let line = format!("stopped: {}", failure.message);
        Self { failure: Some(failure), ..Self::new(Phase::Stopped, line) }
    }
}

/// Turns a standing into a decision: first the status if it must change, then the Machine's
/// condition, then the standing's own write.
pub(super) fn conclude(
    s: &Snapshot,
    mut status: NodeUpdateStatus,
    outcome: Standing,
    now: Timestamp,
) -> Decision {
    let old = s.update.status.clone().unwrap_or_default();
    status.phase = outcome.phase;
    status.observed_generation = s.update.metadata.generation;
    status.blocked_by = blocked_by(&old.blocked_by, &outcome, now);
    let refused = api_refused(s, &status, &outcome, now);
    status.blocked_by.extend(refused);
    status.message = match status.blocked_by.first() {
        Some(blocker) if outcome.failure.is_none() => blocker.message.clone(),
        _ => outcome.message.clone(),
    };
    // Report a late abort, so that the request does not look ignored.
    if s.update.spec.stage == Stage::Abort && is_past_return(&status) {
        status.message.push_str(TOO_LATE);
    }
    let retrying = retrying(&status);
    let failure = outcome.failure.clone().or(retrying.clone());
    status.retriable = outcome.failure.is_none() && retrying.is_some();
    status.failure_reason = failure.as_ref().map(|f| f.reason.clone()).unwrap_or_default();
    status.failure_message = failure.map(|f| f.message).unwrap_or_default();
    status.progress = match &s.group {
        GroupState::Present(group) => steps::progress(&status.steps, &group.status.durations),
        GroupState::None | GroupState::Missing => steps::progress(&status.steps, &[]),
    };
    if status.steps == old.steps && old.progress.is_some() {
        // Each machine that is done changes the past durations.
        status.progress.clone_from(&old.progress);
    }
    if status.phase == Phase::Succeeded
        && let Some(progress) = &mut status.progress
    {
        progress.percent = 100;
        progress.remaining_seconds = progress.remaining_seconds.map(|_| 0);
    }
    if status.phase.is_final() {
        status.finished_at.get_or_insert(Time(now));
    }
    let changed = s.update.status.as_ref() != Some(&status);
    let next = outcome.write.clone().filter(|write| {
        changed
            && s.refused.is_none()
            && precedes_status(write)
            && differs_for_display_only(&old, &status)
    });
    let announce =
        if changed && next.is_none() { announcements(&old, &status, &outcome) } else { Vec::new() };
    let write = match next {
        Some(next) => Some(next),
        None if changed => Some(Write::STATUS),
        None => machine_condition(s, &status, now).or(outcome.write),
    };
    Decision { status, write, announce, blockers: outcome.blockers, requeue: outcome.requeue }
}

/// Whether a write leads to another status at once: what has changed for display only is shown with that one.
fn precedes_status(write: &Write) -> bool {
    match write {
        Write::HostPlan(_)
        | Write::Management(ManagementWrite::ClaimSlot(_) | ManagementWrite::Guard(_)) => true,
        Write::Management(
            ManagementWrite::Status
            | ManagementWrite::ReleaseSlot(_)
            | ManagementWrite::Unguard(_)
            | ManagementWrite::Withdraw
            | ManagementWrite::WithdrawForMember
            | ManagementWrite::Again { .. }
            | ManagementWrite::MachineCondition(_),
        )
        | Write::Workload(_)
        | Write::Provider(_)
        | Write::OlderProvider(..)
        | Write::AskUpdater(_)
        | Write::Updater(_) => false,
    }
}

/// Whether nothing differs that a later decision rests on: the message, how far the host is, and that the machine
/// waited for a slot. Later decisions rest on other blockers.
fn differs_for_display_only(old: &NodeUpdateStatus, new: &NodeUpdateStatus) -> bool {
    let for_display = |status: &NodeUpdateStatus| NodeUpdateStatus {
        message: String::new(),
        blocked_by: status.blocked_by.iter().filter(|one| !is_slot_busy(one)).cloned().collect(),
        progress: None,
        steps: status.steps.iter().map(steps::without_report).collect(),
        ..status.clone()
    };
    for_display(old) == for_display(new)
}

fn blocked_by(old: &[Blocker], outcome: &Standing, now: Timestamp) -> Vec<Blocker> {
    let mut list: Vec<Blocker> = Vec::new();
    if outcome.keep_eviction_blockers {
        let of_eviction =
            |blocker: &&Blocker| Reason::of(&blocker.reason).is_some_and(Reason::is_of_eviction);
        let kept = old.iter().filter(of_eviction);
        list.extend(kept.cloned());
    }
    for refusal in &outcome.blockers {
        let blocker = refusal.blocker(old, now);
        let known = |b: &Blocker| same_blocker(b, &blocker);
        if !list.iter().any(known) {
            list.push(blocker);
        }
    }
    list
}

/// Whether only the next attempt at the same write can resolve it.
fn is_api_refusal(blocker: &Blocker) -> bool {
    let reason = Reason::of(&blocker.reason);
    [RefusalReason::ApiRefused, RefusalReason::ApiErrors]
        .into_iter()
        .any(|api| reason == Some(Reason::Update(api)))
}

/// Whether the machine waits for another one that holds a slot.
fn is_slot_busy(blocker: &Blocker) -> bool {
    Reason::of(&blocker.reason) == Some(Reason::Update(RefusalReason::SlotBusy))
}

fn same_blocker(a: &Blocker, b: &Blocker) -> bool {
    (&a.reason, &a.object, &a.pod) == (&b.reason, &b.object, &b.pod)
}

/// The request that an API server rejects: just now, or at the last attempt of the next write.
fn api_refused(
    s: &Snapshot,
    status: &NodeUpdateStatus,
    outcome: &Standing,
    now: Timestamp,
) -> Option<Blocker> {
    let old = s.update.status.as_ref().map_or(&[][..], |old| &old.blocked_by);
    if outcome.phase.is_final() {
        return None;
    }
    if let Some(refused) = &s.refused {
        return Some(refused.blocker(old, now));
    }
    let known = old.iter().find(|blocker| is_api_refusal(blocker))?;
    let next = machine_condition(s, status, now).or_else(|| outcome.write.clone())?;
    (next.target() == known.object).then(|| known.clone())
}

/// A step that the host retries: it has not ended, and reports why an attempt failed.
pub(super) fn retrying(status: &NodeUpdateStatus) -> Option<Failure> {
    let step = status.steps.iter().find(|step| {
        !step.message.is_empty() && matches!(step.state, StepState::Running | StepState::Pending)
    })?;
    Some(Failure {
        reason: "StepRetried".to_owned(),
        message: format!("step {}, try {}: {}", step.name, step.attempt, step.message),
    })
}

fn announcements(
    old: &NodeUpdateStatus,
    new: &NodeUpdateStatus,
    outcome: &Standing,
) -> Vec<Announcement> {
    let mut list = Vec::new();
    let mut announce = |severity, reason, message: String| {
        list.push(Announcement { severity, reason, message });
    };
    if old.phase != new.phase
        && let Some((severity, reason, message)) = phase_announcement(new)
    {
        announce(severity, reason, message);
    }
    if let Some((reason, message)) = rung_announcement(old, new) {
        announce(Severity::Warning, reason, message);
    }
    for refusal in &outcome.blockers {
        let of_updater =
            matches!(refusal, Refusal::UpdaterFails { .. } | Refusal::UpdaterNotVerified { .. });
        let fresh = !old.blocked_by.iter().any(|blocker| {
            blocker.reason == refusal.reason() && blocker.object == refusal.object()
        });
        if fresh && of_updater {
            let message = format!("{}.", sentence(&refusal.sentence()));
            announce(Severity::Warning, refusal.reason(), message);
        }
        if fresh && refusal.typed_reason().is_of_eviction() {
            announce(
                Severity::Warning,
                "DrainBlocked",
                format!("{}.", sentence(&refusal.sentence())),
            );
        }
    }
    list
}

/// The event for the start of a phase.
fn phase_announcement(new: &NodeUpdateStatus) -> Option<(Severity, &'static str, String)> {
    let ended = || format!("{}.", sentence(&new.message));
    match new.phase {
        Phase::Upgrading => {
            Some((Severity::Normal, "UpdateStarted", "Starting the update of the host.".to_owned()))
        }
        Phase::Draining => Some((
            Severity::Normal,
            "Draining",
            format!("Evicting pods from node {}.", new.node_name),
        )),
        Phase::Succeeded => Some((Severity::Normal, "UpdateSucceeded", ended())),
        Phase::Failed => Some((Severity::Warning, "UpdateFailed", ended())),
        // It is requested again by itself.
        Phase::Stopped if new.failure_reason == MEMBER_MISSING => {
            Some((Severity::Normal, "UpdateStopped", ended()))
        }
        Phase::Stopped => Some((Severity::Warning, "UpdateStopped", ended())),
        Phase::Pending
        | Phase::Waiting
        | Phase::Staging
        | Phase::Disrupting
        | Phase::Verifying
        | Phase::Uncordoning
        | Phase::Stopping => None,
    }
}

/// The event for a higher rung of the drain's escalation.
fn rung_announcement(
    old: &NodeUpdateStatus,
    new: &NodeUpdateStatus,
) -> Option<(&'static str, String)> {
    let drain = new.drain.as_ref()?;
    if old.drain.as_ref().is_some_and(|old| old.rung >= drain.rung) {
        return None;
    }
    let reason = match drain.rung {
        DrainRung::Evict => return None,
        DrainRung::Notified => "DrainTakesLong",
        DrainRung::Delete => "DrainDeletesPods",
        DrainRung::Force => "DrainForcesPods",
        DrainRung::GivenUp => "DrainGivenUp",
    };
    Some((reason, format!("Node {}: {}.", new.node_name, drain.message)))
}

/// The message with a capital letter and without a full stop.
fn sentence(line: &str) -> String {
    let line = line.trim_end_matches('.');
    let mut letters = line.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The write that updates the Machine's condition to match the NodeUpdate, if needed.
pub(super) fn machine_condition(
    s: &Snapshot,
    status: &NodeUpdateStatus,
    now: Timestamp,
) -> Option<Write> {
    let machine = s.own_machine()?;
    // An older NodeUpdate that is still ending must not contradict the newest.
    speaks(s).then(|| condition_change(&s.update, machine, status, now)).flatten()
}

/// The same for the NodeUpdate that speaks for the Machine.
pub(super) fn condition_change(
    update: &NodeUpdate,
    machine: &Machine,
    status: &NodeUpdateStatus,
    now: Timestamp,
) -> Option<Write> {
    // Whether a machine is up to date does not depend on upkeep.
    if machine.metadata.deletion_timestamp.is_some() || update.spec.is_upkeep() {
        return None;
    }
    let conditions = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let known = conditions::get(conditions, conditions::MACHINE_UP_TO_DATE);
    let wanted = wanted_condition(update, status);
    let Some((state, reason, message)) = wanted else {
        return known.map(|_| Write::Management(ManagementWrite::MachineCondition(None)));
    };
    let mut list: Vec<Condition> = known.cloned().into_iter().collect();
    let what = (conditions::MACHINE_UP_TO_DATE, state, reason, message.as_str());
    conditions::set(&mut list, now, None, what)
        .then(|| Write::Management(ManagementWrite::MachineCondition(list.into_iter().next())))
}

/// What a machine has reached, and which of its fields are as before.
pub(super) fn reached(update: &NodeUpdate, status: &NodeUpdateStatus) -> String {
    let named = |state| {
        let parts = status.parts.iter().filter(|part| part.state == state);
        parts.map(|part| part.updater.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (left, unverified) = (named(PartState::Left), named(PartState::Unverified));
    let mut text = update.spec.reached();
    if !left.is_empty() {
        text = format!("{text}; what {left} claims is left as it was");
    }
    if !unverified.is_empty() {
        text = format!("{text}; nothing verifies what {unverified} has done");
    }
    text
}

fn wanted_condition(
    update: &NodeUpdate,
    status: &NodeUpdateStatus,
) -> Option<(&'static str, &'static str, String)> {
    let name = update.metadata.name.as_deref().unwrap_or_default();
    let goal = update.spec.target();
    match status.phase {
        Phase::Pending | Phase::Waiting | Phase::Staging => {
            // The condition must not report a rejected write that may be the condition itself. Which machine holds
            // the slot changes with each one that is done: the NodeUpdate shows it.
            let reportable =
                |blocker: &&Blocker| !is_api_refusal(blocker) && !is_slot_busy(blocker);
            let message = status.blocked_by.iter().find(reportable).map_or_else(
                || conditions::disturbs_nothing_yet(&goal),
                |blocker| blocker.message.clone(),
            );
            Some(("Unknown", conditions::REASON_WAITING, message))
        }
        Phase::Succeeded => Some(("True", conditions::REASON_UP_TO_DATE, reached(update, status))),
        Phase::Failed => Some(("False", conditions::REASON_FAILED, status.message.clone())),
        // Found with seed 1: an aborted update leaves no condition.
        Phase::Stopped => None,
        Phase::Upgrading
        | Phase::Draining
        | Phase::Disrupting
        | Phase::Verifying
        | Phase::Uncordoning
        | Phase::Stopping => Some((
            "Unknown",
            conditions::REASON_UPDATING,
            format!("NodeUpdate {name} is updating the machine to {goal}"),
        )),
    }
}
