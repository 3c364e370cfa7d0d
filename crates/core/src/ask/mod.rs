//! How a request for a Machine gets its NodeUpdate, for every way in.

mod bundle;
mod parts;

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    refit::{Goal, GoalPart, MachineUid, NodeUpdate, Phase, Stage, Until, ordinal_of},
    version::KubernetesVersion,
};

pub use self::{
    bundle::{BundleExpected, bundle_for, bundle_of},
    parts::{Offer, adopting, parts, without_bundle},
};
use crate::node::{HOST_LOST, MEMBER_MISSING, SUPERSEDED, is_past_return, newest};

/// How long the Machine's own status may lag after its NodeUpdate, which checked the Node itself,
/// has succeeded. After that, the status is trusted: the host was changed by other means.
const REPORT_LAG: SignedDuration = SignedDuration::from_secs(300);

/// Known facts about the Machine itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Its name.
    pub name: String,
    /// Its uid: a NodeUpdate with another uid belongs to another Machine.
    pub uid: MachineUid,
    /// The version that its kubelet reports.
    pub kubelet_version: Option<KubernetesVersion>,
    /// Value of the annotation that requests another attempt.
    pub retry: Option<String>,
    /// Value of the annotation that adopts what was done by hand.
    pub adopt: Option<String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether the agent on its host has reported recently.
    pub host_reports: bool,
    /// Whether its group has fewer Machines than its owner asks for.
    pub lacks_member: bool,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask<'a> {
    /// Create the NodeUpdate with this ordinal. Its creation is the compare-and-swap: if it already
    /// exists, read it and ask again.
    Create {
        /// Ordinal of the NodeUpdate.
        ordinal: u32,
        /// How far it may go: no further than the update that it continues.
        until: Until,
        /// Whether the host was upgraded by hand, and is only verified.
        adopts: bool,
    },
    /// Request a stop of this NodeUpdate, which has another goal, and wait meanwhile.
    Abort(&'a NodeUpdate),
    /// Write nothing.
    Wait(Wait<'a>),
    /// The goal is reached.
    Done,
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait<'a> {
    /// Nothing: the Machine is being deleted.
    Deletion,
    /// The Machine's own status, which does not show the goal yet.
    Report,
    /// The Machines that the group lacks.
    Members,
    /// A NodeUpdate with this goal, which is unfinished.
    Running(&'a NodeUpdate),
    /// A decision of an operator: the NodeUpdate with this goal has failed.
    Failed(&'a NodeUpdate),
    /// A decision of an operator: the NodeUpdate with this goal was stopped.
    Stopped(&'a NodeUpdate),
    /// A NodeUpdate with another goal, which is being stopped.
    Stopping(&'a NodeUpdate),
    /// A NodeUpdate with another goal, which has already changed its host.
    Finishing(&'a NodeUpdate),
}

/// Decides what becomes of a request for `goal` on this Machine, given the known NodeUpdates.
///
/// The newest NodeUpdate of the Machine's uid decides, and none is created while an older one is
/// unfinished: an operator may have created the newest. One that is only upkeep decides about upkeep
/// alone: after it, an upgrade that has failed still waits for an operator. The
/// list may be out of date: a NodeUpdate is created by its ordinal, so it can be created only once.
pub fn ask<'a>(
    machine: &MachineFacts,
    goal: &Goal,
    updates: &[&'a NodeUpdate],
    now: Timestamp,
) -> Ask<'a> {
    let ask = by_newest(machine, goal, updates, now);
    let unfinished = updates
        .iter()
        .copied()
        .find(|update| update.spec.machine_ref.uid == machine.uid && !update.phase().is_final());
    match (&ask, unfinished) {
        (Ask::Create { .. }, Some(older)) if is_to_version_of(older, goal) => {
            Ask::Wait(Wait::Running(older))
        }
        (Ask::Create { .. }, Some(older)) => supersede(older),
        (Ask::Create { .. } | Ask::Abort(_) | Ask::Wait(_) | Ask::Done, _) => ask,
    }
}

/// The same for a request that is made once more: what an ended NodeUpdate has reached, or has failed to reach, does not
/// count.
pub fn ask_again<'a>(
    machine: &MachineFacts,
    goal: &Goal,
    updates: &[&'a NodeUpdate],
    now: Timestamp,
) -> Ask<'a> {
    match ask(machine, goal, updates, now) {
        Ask::Done | Ask::Wait(Wait::Failed(_) | Wait::Stopped(_) | Wait::Report) => {
            let ordinal = next_ordinal(&machine.name, updates.iter().copied());
            Ask::Create { ordinal, until: Until::Disrupt, adopts: false }
        }
        ask @ (Ask::Create { .. } | Ask::Abort(_) | Ask::Wait(_)) => ask,
    }
}

fn by_newest<'a>(
    machine: &MachineFacts,
    goal: &Goal,
    updates: &[&'a NodeUpdate],
    now: Timestamp,
) -> Ask<'a> {
    if machine.deleting {
        return Ask::Wait(Wait::Deletion);
    }
    let ordinal = || next_ordinal(&machine.name, updates.iter().copied());
    let create_until = |until| Ask::Create { ordinal: ordinal(), until, adopts: false };
    let create = || create_until(Until::Disrupt);
    let is_upkeep = goal.certificates.is_some() || goal.host_settings.is_some();
    let counts = |update: &&NodeUpdate| is_upkeep || !update.spec.is_upkeep();
    let Some(newest) = newest(updates.iter().copied().filter(counts), &machine.uid) else {
        return create();
    };
    let phase = newest.phase();
    if phase == Phase::Succeeded && !has_reached(newest, goal) {
        return create();
    }
    if !is_to_version_of(newest, goal) {
        return if phase.is_final() { create() } else { supersede(newest) };
    }
    let adopt_asked = machine.adopt.is_some() && machine.adopt == newest.metadata.name;
    let retry_asked = machine.retry.is_some() && machine.retry == newest.metadata.name;
    match phase {
        Phase::Succeeded => succeeded(machine, goal, newest, now).unwrap_or_else(create),
        Phase::Failed | Phase::Stopped if adopt_asked && newest.spec.can_be_adopted() => {
            Ask::Create { ordinal: ordinal(), until: Until::Disrupt, adopts: true }
        }
        Phase::Failed | Phase::Stopped if retry_asked => create(),
        // It stopped for a goal that no one wants any more.
        Phase::Stopped if ended_with(newest, SUPERSEDED) => create(),
        Phase::Stopped if ended_with(newest, MEMBER_MISSING) && machine.lacks_member => {
            Ask::Wait(Wait::Members)
        }
        Phase::Stopped if ended_with(newest, MEMBER_MISSING) => create_until(newest.spec.until),
        // The host is back: the next update adopts what it finds there.
        Phase::Failed if ended_with(newest, HOST_LOST) && machine.host_reports => {
            create_until(newest.spec.until)
        }
        Phase::Failed => Ask::Wait(Wait::Failed(newest)),
        Phase::Stopped => Ask::Wait(Wait::Stopped(newest)),
        Phase::Pending
        | Phase::Waiting
        | Phase::Staging
        | Phase::Upgrading
        | Phase::Draining
        | Phase::Disrupting
        | Phase::Verifying
        | Phase::Uncordoning
        | Phase::Stopping => Ask::Wait(Wait::Running(newest)),
    }
}

/// Whether an update without success is for this goal. What Updaters claim is read when they work: so a
/// value that changes meanwhile, such as a field that a provider starts to default, stops no update, and
/// begins none that waits for an operator.
fn is_to_version_of(update: &NodeUpdate, goal: &Goal) -> bool {
    let Goal { kubernetes_version, option, certificates, host_settings, parts: _ } =
        &update.spec.goal;
    *kubernetes_version == goal.kubernetes_version
        && *option == goal.option
        && *certificates == goal.certificates
        && *host_settings == goal.host_settings
}

/// Whether an update that has succeeded has reached all of a goal.
fn has_reached(update: &NodeUpdate, goal: &Goal) -> bool {
    let has = |part: &GoalPart| parts::reached_by(update, &part.updater) == Some(&part.hash);
    is_to_version_of(update, goal) && goal.parts.iter().all(has)
}

fn ended_with(update: &NodeUpdate, reason: &str) -> bool {
    update.status.as_ref().is_some_and(|status| status.failure_reason == reason)
}

/// One past the highest ordinal in use, even if another Machine with this name used it.
pub(crate) fn next_ordinal<'a>(
    machine: &str,
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
) -> u32 {
    updates
        .into_iter()
        .filter_map(|update| ordinal_of(update.metadata.name.as_deref()?, machine))
        .max()
        .unwrap_or(0)
        .saturating_add(1)
}

/// Done, or waiting for the Machine's own status; `None` if the work must be repeated.
fn succeeded<'a>(
    machine: &MachineFacts,
    goal: &Goal,
    update: &NodeUpdate,
    now: Timestamp,
) -> Option<Ask<'a>> {
    // Only what works on the host makes a version true.
    let is_of_host = goal.kubernetes_version.is_some() && update.spec.brings_version();
    if !is_of_host || machine.kubelet_version == goal.kubernetes_version {
        return Some(Ask::Done);
    }
    let finished = update.status.as_ref().and_then(|status| status.finished_at.as_ref());
    let may_lag = finished.is_none_or(|time| now.duration_since(time.0) < REPORT_LAG);
    (may_lag || machine.kubelet_version.is_none()).then_some(Ask::Wait(Wait::Report))
}

/// Another goal is requested while this NodeUpdate is unfinished: it is stopped if nothing has been
/// disturbed, otherwise it must finish.
fn supersede(update: &NodeUpdate) -> Ask<'_> {
    if is_stopping(update) {
        Ask::Wait(Wait::Stopping(update))
    } else if update.phase().is_undisturbed() && !update.status.as_ref().is_some_and(is_past_return)
    {
        Ask::Abort(update)
    } else {
        Ask::Wait(Wait::Finishing(update))
    }
}

/// Whether an abort was requested in time.
pub fn is_stopping(update: &NodeUpdate) -> bool {
    update.spec.stage == Stage::Abort && !update.status.as_ref().is_some_and(is_past_return)
}

#[cfg(test)]
mod parts_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
