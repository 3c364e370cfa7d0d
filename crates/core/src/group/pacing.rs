//! When the next machine of a group may begin, by `UpdateGroup.spec.pacing`.
//!
//! Everything is decided on the group's status and written into it by the claim itself, so that two claims
//! at a time count each other. Only the order of machines is decided on a cached view of the others.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    GroupFailure, GroupOwner, GroupRollout, MAX_FAILURES, MAX_FIRST_MACHINES, MachineUid,
    NodeUpdate, NodeUpdateSpec, Pacing, PacingOrder, Phase, StepState, UpdateGroupStatus,
};

use super::Limits;
use crate::report::{Reason, Refusal, RefusalReason};

/// What a group's pacing is decided on, apart from its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pace {
    /// `spec.pacing` of the UpdateGroup.
    pub pacing: Pacing,
    /// The owner, as commands name it: `machinedeployment/md-0`.
    pub owner: String,
    /// Generation of the owner.
    pub owner_generation: Option<i64>,
}

/// A machine that would be next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<'a> {
    /// Name of the Machine.
    pub machine: &'a str,
    /// uid of the Machine.
    pub machine_uid: &'a MachineUid,
    /// When the Machine was created.
    pub created: Option<Timestamp>,
    /// What it is updated to.
    pub target: &'a str,
}

/// What decides whether it is a machine's turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The group's pacing.
    pub pace: &'a Pace,
    /// The machine.
    pub candidate: Candidate<'a>,
    /// The others that wait for theirs.
    pub queue: &'a [Queued],
}

/// Another machine that waits only for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Name of the Machine.
    pub machine: String,
    /// When the Machine was created.
    pub created: Option<Timestamp>,
}

/// The owner of a group as commands name it.
pub fn owner_argument(owner: &GroupOwner) -> String {
    format!("{}/{}", owner.kind.to_lowercase(), owner.name)
}

/// What a NodeUpdate brings its machine to, as [`GroupRollout::target`] has it. An update without a version
/// or an option is identified by the generation of the owner.
pub fn target_of(spec: &NodeUpdateSpec, owner_generation: Option<i64>) -> String {
    if spec.brings_version() || spec.goal.option.is_some() {
        return spec.target();
    }
    match owner_generation {
        Some(generation) => format!("generation {generation} of its owner"),
        None => spec.target(),
    }
}

impl Limits {
    /// The limits with which a group is paced: they are never higher than the owner's.
    #[must_use]
    pub fn paced(self, pacing: &Pacing) -> Self {
        let paced = pacing.max_unavailable.unwrap_or(i32::MAX);
        Self { max_unavailable: self.max_unavailable.min(paced), ..self }
    }
}

/// Whether the pacing of a group lets a machine begin that is not down yet.
pub(super) fn may_begin(
    status: &UpdateGroupStatus,
    turn: &Turn<'_>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let Turn { pace, candidate, queue } = turn;
    let rollout = current(status, candidate.target);
    if let Some(refusal) = rollout.and_then(|rollout| stopped(rollout, pace, candidate.machine_uid))
    {
        return Err(refusal);
    }
    needs_approval(status, pace, candidate)?;
    if let Some(until) = rollout.and_then(|rollout| soaks_until(rollout, &pace.pacing))
        && now < until
    {
        return Err(Refusal::Soaking { until });
    }
    let earlier = queue.iter().filter(|other| comes_before(other, candidate, pace.pacing.order));
    match earlier.min_by(|a, b| a.machine.cmp(&b.machine)) {
        Some(first) => Err(Refusal::OutOfTurn { machine: first.machine.clone() }),
        None => Ok(()),
    }
}

/// The rollout to a target, if it is the group's current one.
fn current<'a>(status: &'a UpdateGroupStatus, target: &str) -> Option<&'a GroupRollout> {
    status.rollout.as_deref().filter(|rollout| rollout.ended.is_none() && rollout.target == target)
}

/// The number of the rollout that this target belongs to, whether it has begun or not.
fn number(status: &UpdateGroupStatus, target: &str) -> i64 {
    let last = status.rollout.as_ref().map_or(0, |rollout| rollout.number);
    if current(status, target).is_some() { last } else { last.saturating_add(1) }
}

fn needs_approval(
    status: &UpdateGroupStatus,
    pace: &Pace,
    candidate: &Candidate<'_>,
) -> Result<(), Refusal> {
    let Some(pause_after) = pace.pacing.pause_after else {
        return Ok(());
    };
    let first = current(status, candidate.target).map_or(&[][..], |one| &one.first_machines);
    let number = number(status, candidate.target);
    let is_first = first.iter().any(|machine| machine == candidate.machine);
    let has_room = i32::try_from(first.len()).is_ok_and(|begun| begun < pause_after);
    if is_first || has_room || pace.pacing.approve == Some(number) {
        return Ok(());
    }
    Err(Refusal::ApprovalRequired {
        owner: pace.owner.clone(),
        number,
        target: candidate.target.to_owned(),
        begun: first.len(),
    })
}

/// When the machine that was updated last has been back long enough.
fn soaks_until(rollout: &GroupRollout, pacing: &Pacing) -> Option<Timestamp> {
    let soak = SignedDuration::from_secs(pacing.soak_seconds?.into());
    rollout.last_updated.as_ref()?.0.checked_add(soak).ok()
}

fn comes_before(other: &Queued, candidate: &Candidate<'_>, order: Option<PacingOrder>) -> bool {
    let by_age = (other.created, &*other.machine).cmp(&(candidate.created, candidate.machine));
    match order {
        None => false,
        Some(PacingOrder::Oldest) => by_age.is_lt(),
        Some(PacingOrder::Newest) => by_age.is_gt(),
        Some(PacingOrder::Name) => *other.machine < *candidate.machine,
    }
}

/// Whether a machine waits only for its turn, by the reason of its blocker.
pub fn waits_for_turn(reason: &str) -> bool {
    [
        RefusalReason::SlotBusy,
        RefusalReason::GroupUnavailable,
        RefusalReason::Soaking,
        RefusalReason::OutOfTurn,
    ]
    .into_iter()
    .any(|turn| Reason::of(reason) == Some(Reason::Update(turn)))
}

/// Why no further machine of a rollout begins, if its failures stop it. Another attempt on a machine that has
/// failed may begin.
fn stopped(rollout: &GroupRollout, pace: &Pace, candidate: &MachineUid) -> Option<Refusal> {
    let again = rollout.failures.iter().any(|failure| failure.machine_uid == *candidate);
    if again { None } else { stop(rollout, pace) }
}

fn stop(rollout: &GroupRollout, pace: &Pace) -> Option<Refusal> {
    let since = pace.pacing.failures_since.as_ref().map(|since| since.0);
    let counted = rollout.failures.iter().filter(|failure| Some(failure.at.0) > since);
    let mut by_cause: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for failure in counted {
        by_cause.entry(&failure.cause).or_default().push(&failure.machine);
    }
    let reaches = |count: usize, limit: i32| {
        limit > 0 && i32::try_from(count).is_ok_and(|count| count >= limit)
    };
    let refusal = |machines: Vec<&str>, cause: Option<&str>| Refusal::RolloutStopped {
        owner: pace.owner.clone(),
        target: rollout.target.clone(),
        machines: machines.into_iter().map(str::to_owned).collect(),
        cause: cause.map(str::to_owned),
    };
    let same = by_cause.iter().find(|(_, all)| reaches(all.len(), pace.pacing.same_cause_stops));
    if let Some((cause, machines)) = same {
        return Some(refusal(machines.clone(), Some(cause)));
    }
    let all: Vec<&str> = by_cause.into_values().flatten().collect();
    reaches(all.len(), pace.pacing.stop_after_failures?).then(|| refusal(all, None))
}

/// Why a machine does not even prepare: its rollout has stopped.
pub fn start_refusal(
    status: &UpdateGroupStatus,
    pace: &Pace,
    candidate: Candidate<'_>,
) -> Option<Refusal> {
    stopped(current(status, candidate.target)?, pace, candidate.machine_uid)
}

/// Records that a machine begins. Another target, or a target after the end of its rollout, begins another one.
pub(super) fn record_begin(
    status: &mut UpdateGroupStatus,
    Turn { pace, candidate, .. }: &Turn<'_>,
    now: Timestamp,
) {
    let rollout = enter(status, candidate.target, now);
    rollout.owner_generation = pace.owner_generation;
    let first = &mut rollout.first_machines;
    let is_known = first.iter().any(|machine| machine == candidate.machine);
    if !is_known && first.len() < MAX_FIRST_MACHINES {
        first.push(candidate.machine.to_owned());
    }
}

fn enter<'a>(
    status: &'a mut UpdateGroupStatus,
    target: &str,
    now: Timestamp,
) -> &'a mut GroupRollout {
    let number = number(status, target);
    let known = status.rollout.take().filter(|rollout| rollout.number == number);
    let new = || GroupRollout {
        number,
        target: target.to_owned(),
        since: Time(now),
        ended: None,
        owner_generation: None,
        first_machines: Vec::new(),
        last_updated: None,
        failures: Vec::new(),
    };
    status.rollout.insert(known.unwrap_or_else(|| Box::new(new())))
}

/// Records that a machine has not begun after all.
pub(super) fn record_not_begun(status: &mut UpdateGroupStatus, machine: &str) {
    if let Some(rollout) = &mut status.rollout {
        rollout.first_machines.retain(|first| first != machine);
    }
}

/// Records that a machine is back after its update has succeeded.
pub fn record_success(status: &mut UpdateGroupStatus, machine_uid: &MachineUid, now: Timestamp) {
    if let Some(rollout) = &mut status.rollout {
        rollout.last_updated = Some(Time(now));
        rollout.failures.retain(|failure| failure.machine_uid != *machine_uid);
    }
}

/// The failure of a NodeUpdate, if it has failed for good, and what it should have brought its machine to.
pub fn failure_of(
    update: &NodeUpdate,
    owner_generation: Option<i64>,
) -> Option<(String, GroupFailure)> {
    let status = update.status.as_ref().filter(|status| status.phase == Phase::Failed)?;
    let step = status.steps.iter().find(|step| step.state == StepState::Failed);
    let cause = match step {
        Some(step) => format!("{} at {}", status.failure_reason, step.name),
        None => status.failure_reason.clone(),
    };
    let failure = GroupFailure {
        machine: update.spec.machine_ref.name.clone(),
        machine_uid: update.spec.machine_ref.uid.clone(),
        node_update: update.metadata.name.clone()?,
        cause,
        at: status.finished_at.clone()?,
    };
    Some((target_of(&update.spec, owner_generation), failure))
}

/// Records a failed update, once. What failed before the current rollout does not count in it.
pub fn record_failure(status: &mut UpdateGroupStatus, target: &str, failure: GroupFailure) {
    let last = status.rollout.as_ref();
    let is_known = last.is_some_and(|rollout| {
        rollout.failures.iter().any(|known| known.node_update == failure.node_update)
    });
    let is_old = last.is_some_and(|rollout| {
        let is_own = rollout.ended.is_none() && rollout.target == target;
        let begun = rollout.ended.as_ref().unwrap_or(&rollout.since);
        !is_own && failure.at.0 <= begun.0 || is_own && failure.at.0 < rollout.since.0
    });
    if is_known || is_old {
        return;
    }
    let rollout = enter(status, target, failure.at.0);
    rollout.failures.retain(|known| known.machine_uid != failure.machine_uid);
    rollout.failures.push(failure);
    rollout.failures.sort_by(|a, b| (a.at.0, &a.node_update).cmp(&(b.at.0, &b.node_update)));
    let surplus = rollout.failures.len().saturating_sub(MAX_FAILURES);
    rollout.failures.drain(..surplus);
}

/// Records which rollout waits for an approval, by the targets of the updates that wait for one.
pub fn record_approval<'a>(
    status: &mut UpdateGroupStatus,
    pacing: &Pacing,
    targets: impl Iterator<Item = &'a str>,
) {
    let numbers = targets.map(|target| number(status, target));
    let waits = numbers.max().filter(|number| pacing.approve != Some(*number));
    status.awaits_approval = waits.filter(|_| pacing.pause_after.is_some());
}

/// Whether an update waits for the approval of its rollout.
pub fn awaits_approval(update: &NodeUpdate) -> bool {
    let approval = Some(Reason::Update(RefusalReason::ApprovalRequired));
    let blockers = update.status.iter().flat_map(|status| &status.blocked_by);
    blockers.map(|blocker| Reason::of(&blocker.reason)).any(|reason| reason == approval)
}

/// Records that all machines of the group have been updated, as their owner of this generation shows.
pub fn record_end(status: &mut UpdateGroupStatus, owner_generation: Option<i64>, now: Timestamp) {
    let Some(rollout) = status.rollout.as_mut().filter(|rollout| rollout.ended.is_none()) else {
        return;
    };
    // An owner as it was before the rollout shows that all machines are up to date, too.
    if owner_generation >= rollout.owner_generation {
        rollout.ended = Some(Time(now));
        rollout.failures.clear();
    }
}
