//! When the next machine of a group may begin, by `UpdateGroup.spec.pacing`.
//!
//! Everything is decided on the group's status and written into it by the claim itself, so that two claims
//! at a time count each other. Only the order of machines is decided on a cached view of the others.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    refit::{
        ClaimId, FirstMachine, GroupFailure, GroupOwner, GroupRollout, MAX_FAILURES,
        MAX_FIRST_MACHINES, MachineUid, NodeUpdate, NodeUpdateSpec, Origin, Pacing, PacingOrder,
        Phase, StepState, UpdateGroupStatus,
    },
    version::StatedVersion,
};

use super::Limits;
use crate::{
    report::{Expected, Reason, Refusal, RefusalReason},
    windows::Schedule,
};

/// How much of the hash of a goal names it.
const HASH_CHARACTERS: usize = 12;
/// What the target of a rollout of changed HostSettings begins with.
const SETTINGS_TARGET: &str = "HostSettings ";

/// What a group's pacing is decided on, apart from its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pace {
    /// `spec.pacing` of the UpdateGroup.
    pub pacing: Pacing,
    /// The owner, as commands name it: `machinedeployment/md-0`.
    pub owner: String,
    /// Generation of the owner.
    pub owner_generation: Option<i64>,
    /// What the owner requests: a version, and an infrastructure template.
    pub request: String,
}

/// Identifies a rollout, as long as it has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutKey {
    /// How the update was requested.
    pub origin: Origin,
    /// What it is for.
    pub target: String,
}

impl RolloutKey {
    /// The rollout that an update belongs to. Updates that Cluster API requests belong to what the owner requests
    /// now, whatever part of it their machine still lacks. New certificates bring a machine to nothing else: they belong to
    /// none.
    pub fn of(spec: &NodeUpdateSpec, pace: &Pace) -> Option<Self> {
        if spec.issues_certificates() {
            return None;
        }
        let short = |hash: &str| hash.chars().take(HASH_CHARACTERS).collect::<String>();
        let target = match (spec.origin, &spec.goal.host_settings) {
            (_, Some(hash)) => format!("{SETTINGS_TARGET}{}", short(hash)),
            (Origin::Hook, None) => pace.request.clone(),
            (Origin::Task | Origin::Annotation | Origin::HostSettings, None)
                if spec.ends_at_version() || spec.goal.option.is_some() =>
            {
                spec.target()
            }
            (Origin::Task | Origin::Annotation | Origin::HostSettings, None) => {
                format!("goal {}", short(&spec.goal_hash))
            }
        };
        Some(Self { origin: spec.origin, target })
    }

    /// The number of the rollout of this key; for none, that of the next one.
    pub fn number_of(key: Option<&Self>, status: &UpdateGroupStatus) -> i64 {
        let last = status.rollout.as_ref().map_or(0, |rollout| rollout.number);
        key.map_or_else(|| last.saturating_add(1), |key| rollout_number(status, key))
    }

    /// Whether a rollout is this one. What people request while the owner rolls out counts in that rollout.
    fn is(&self, rollout: &GroupRollout) -> bool {
        use Origin::{Annotation, Hook, HostSettings, Task};
        rollout.ended.is_none()
            && match (rollout.origin, self.origin) {
                (Hook, Task | Annotation | HostSettings) => true,
                (Task | Annotation | HostSettings, Hook) => false,
                (Hook, Hook)
                | (Task | Annotation | HostSettings, Task | Annotation | HostSettings) => {
                    rollout.target == self.target
                }
            }
    }
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
    /// The rollout of its update; `None` for one that belongs to no rollout, and waits for no part of it.
    pub rollout: Option<&'a RolloutKey>,
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
    /// The updates of others that have failed, recorded or not.
    pub failures: &'a [(RolloutKey, GroupFailure)],
    /// How long the update takes from now on, by what past ones took; `None` if they do not show it.
    pub takes: Option<SignedDuration>,
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

/// What an owner requests, as a rollout names it.
pub fn request_of(version: &StatedVersion, template: &str) -> String {
    if template.is_empty() { version.to_string() } else { format!("{version} ({template})") }
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
    let Turn { pace, candidate, queue, failures, takes } = turn;
    if let Some(refusal) = outside_of_windows(pace, *takes, now) {
        return Err(refusal);
    }
    let Some(of) = candidate.rollout else { return Ok(()) };
    let mut known = status.clone();
    for (key, failure) in *failures {
        record_failure(&mut known, pace.owner_generation, key, failure.clone());
    }
    let status = &known;
    if let Some(refusal) = start_refusal(status, pace, *candidate) {
        return Err(refusal);
    }
    needs_approval(status, pace, (candidate.machine, of))?;
    let rollout = current(status, of);
    if let Some(until) = rollout.and_then(|rollout| soaks_until(rollout, &pace.pacing))
        && now < until
    {
        return Err(Refusal::Soaking { until });
    }
    match first_in(queue, candidate, pace.pacing.order) {
        Some(first) => Err(Refusal::OutOfTurn { machine: first.machine.clone() }),
        None => Ok(()),
    }
}

/// Why the maintenance windows of a group let no machine begin whose update takes so long; `None` if past ones do not show how
/// long.
pub fn outside_of_windows(
    pace: &Pace,
    takes: Option<SignedDuration>,
    now: Timestamp,
) -> Option<Refusal> {
    let windows = pace.pacing.windows.as_ref()?;
    let none = |why| Some(Refusal::NoWindow { owner: pace.owner.clone(), why });
    let schedule = match Schedule::of(windows) {
        Ok(schedule) => schedule,
        Err(bad) => return none(bad.to_string()),
    };
    let estimate = || SignedDuration::from_secs(windows.estimate_seconds.into());
    let needs = takes.map_or_else(|| Expected::Estimated(estimate()), Expected::Shown);
    let Some(opens) = schedule.next_for(needs.time(), now) else {
        return none(format!(
            "no maintenance window is open long enough for an update that takes {needs}"
        ));
    };
    (opens > now).then(|| {
        let closes = schedule.open_at(now).map(|open| open.until);
        Refusal::WindowClosed { opens, closes, needs }
    })
}

/// Whether a maintenance window of a group is open, or it has none.
pub fn is_window_open(pace: &Pace, now: Timestamp) -> bool {
    let Some(windows) = &pace.pacing.windows else { return true };
    Schedule::of(windows).is_ok_and(|schedule| schedule.open_at(now).is_some())
}

/// The group's rollout, if it is the one of this key.
fn current<'a>(status: &'a UpdateGroupStatus, key: &RolloutKey) -> Option<&'a GroupRollout> {
    status.rollout.as_deref().filter(|rollout| key.is(rollout))
}

/// The number of the rollout of this key, whether it has begun or not.
pub fn rollout_number(status: &UpdateGroupStatus, key: &RolloutKey) -> i64 {
    let last = status.rollout.as_ref().map_or(0, |rollout| rollout.number);
    if current(status, key).is_some() { last } else { last.saturating_add(1) }
}

/// The number of the rollout for what the owner requests, or that people have begun before it; the next one if no rollout
/// is under way.
pub fn present_rollout(status: &UpdateGroupStatus, request: &str) -> i64 {
    let is_present = |rollout: &GroupRollout| {
        let by_people = rollout.origin != Origin::Hook;
        rollout.ended.is_none() && (by_people || rollout.target == request)
    };
    match status.rollout.as_deref() {
        Some(rollout) if is_present(rollout) => rollout.number,
        Some(rollout) => rollout.number.saturating_add(1),
        None => 1,
    }
}

fn needs_approval(
    status: &UpdateGroupStatus,
    pace: &Pace,
    (machine, key): (&str, &RolloutKey),
) -> Result<(), Refusal> {
    let Some(pause_after) = pace.pacing.pause_after else {
        return Ok(());
    };
    let rollout = current(status, key);
    let first = rollout.map_or(&[][..], |one| &one.first_machines);
    let number = rollout_number(status, key);
    let is_first = first.iter().any(|one| one.machine == machine);
    let has_room = i32::try_from(first.len()).is_ok_and(|begun| begun < pause_after);
    if is_first || has_room || pace.pacing.approve == Some(number) {
        return Ok(());
    }
    // There is nothing to look at yet.
    let mut busy = status.slots.iter().chain(&status.undisturbed).map(|slot| &slot.machine);
    if let Some(machine) = busy.find(|busy| first.iter().any(|one| one.machine == **busy)) {
        return Err(Refusal::OutOfTurn { machine: machine.clone() });
    }
    Err(Refusal::ApprovalRequired {
        owner: pace.owner.clone(),
        number,
        target: rollout.map_or(&key.target, |rollout| &rollout.target).clone(),
        begun: first.len(),
    })
}

/// When the machine that was updated last has been back long enough.
fn soaks_until(rollout: &GroupRollout, pacing: &Pacing) -> Option<Timestamp> {
    let soak = SignedDuration::from_secs(pacing.soak_seconds?.into());
    rollout.last_updated.as_ref()?.0.checked_add(soak).ok()
}

/// The machine that comes before the candidate, and before all others.
fn first_in<'a>(
    queue: &'a [Queued],
    candidate: &Candidate<'_>,
    order: Option<PacingOrder>,
) -> Option<&'a Queued> {
    let by_age = |other: &Queued| (other.created, other.machine.clone());
    let own = (candidate.created, candidate.machine.to_owned());
    match order? {
        PacingOrder::Oldest => {
            queue.iter().filter(|other| by_age(other) < own).min_by_key(|other| by_age(other))
        }
        PacingOrder::Newest => {
            queue.iter().filter(|other| by_age(other) > own).max_by_key(|other| by_age(other))
        }
        PacingOrder::Name => {
            let earlier = queue.iter().filter(|other| *other.machine < *candidate.machine);
            earlier.min_by_key(|other| other.machine.clone())
        }
    }
}

/// Whether a machine waits only for its turn, by the reason of its blocker.
pub fn waits_for_turn(reason: &str) -> bool {
    use RefusalReason::{GateClosed, OutOfTurn, SlotBusy, Soaking, WindowClosed};
    [SlotBusy, Soaking, OutOfTurn, WindowClosed, GateClosed]
        .into_iter()
        .any(|turn| Reason::of(reason) == Some(Reason::Update(turn)))
}

/// Why the group's rollout has stopped, if its failures have reached a limit.
pub fn stopped_rollout(status: &UpdateGroupStatus, pace: &Pace) -> Option<Refusal> {
    let rollout = status.rollout.as_deref().filter(|rollout| rollout.ended.is_none())?;
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

/// Why a machine does not even prepare: its rollout has stopped. Another attempt on a machine that has failed may
/// begin.
pub fn start_refusal(
    status: &UpdateGroupStatus,
    pace: &Pace,
    candidate: Candidate<'_>,
) -> Option<Refusal> {
    let rollout = current(status, candidate.rollout?)?;
    let again = rollout.failures.iter().any(|one| one.machine_uid == *candidate.machine_uid);
    if again { None } else { stopped_rollout(status, pace) }
}

/// Records that a machine begins with a claim.
pub(super) fn record_begin(
    status: &mut UpdateGroupStatus,
    Turn { pace, candidate, .. }: &Turn<'_>,
    now: Timestamp,
) {
    let Some(key) = candidate.rollout else { return };
    let claim = status.claims;
    let rollout = enter(status, pace.owner_generation, key, now);
    let first = &mut rollout.first_machines;
    let is_known = first.iter().any(|one| one.machine == candidate.machine);
    if !is_known && first.len() < MAX_FIRST_MACHINES {
        first.push(FirstMachine { machine: candidate.machine.to_owned(), claim });
    }
}

/// The rollout of this key, which begins now unless it is the group's current one.
fn enter<'a>(
    status: &'a mut UpdateGroupStatus,
    generation: Option<i64>,
    key: &RolloutKey,
    now: Timestamp,
) -> &'a mut GroupRollout {
    let number = rollout_number(status, key);
    let known = status.rollout.take().filter(|rollout| rollout.number == number);
    let new = || GroupRollout {
        number,
        origin: key.origin,
        target: key.target.clone(),
        since: Time(now),
        ended: None,
        owner_generation: None,
        first_machines: Vec::new(),
        last_updated: None,
        failures: Vec::new(),
    };
    let rollout = status.rollout.insert(known.unwrap_or_else(|| Box::new(new())));
    rollout.owner_generation = rollout.owner_generation.max(generation);
    rollout
}

/// Whether what was read of the owner is older than what the rollout was recorded with.
fn is_outdated(status: &UpdateGroupStatus, generation: Option<i64>) -> bool {
    status.rollout.as_ref().is_some_and(|rollout| generation < rollout.owner_generation)
}

/// Records that a machine has not begun with this claim after all.
pub(super) fn record_not_begun(status: &mut UpdateGroupStatus, machine: &str, claim: ClaimId) {
    if let Some(rollout) = &mut status.rollout {
        rollout.first_machines.retain(|first| first.machine != machine || first.claim != claim);
    }
}

/// Records that a machine is back after its update has succeeded.
pub fn record_success(status: &mut UpdateGroupStatus, machine_uid: &MachineUid, now: Timestamp) {
    if let Some(rollout) = &mut status.rollout {
        rollout.last_updated = Some(Time(now));
        rollout.failures.retain(|failure| failure.machine_uid != *machine_uid);
    }
}

/// Records that a machine has been updated since its update failed, with a slot or without one.
pub fn record_recovery(status: &mut UpdateGroupStatus, update: &NodeUpdate) {
    let ended = update.status.as_ref().filter(|status| status.phase == Phase::Succeeded);
    let ended = ended.and_then(|status| status.finished_at.as_ref());
    if let (Some(rollout), Some(ended)) = (&mut status.rollout, ended) {
        // Upkeep shows nothing of what has failed otherwise, nor the other way round.
        let is_of_settings = rollout.target.starts_with(SETTINGS_TARGET);
        if update.spec.issues_certificates() || update.spec.changes_settings() != is_of_settings {
            return;
        }
        let uid = &update.spec.machine_ref.uid;
        rollout.failures.retain(|one| one.machine_uid != *uid || one.at.0 > ended.0);
    }
}

/// The failure of a NodeUpdate, if it has failed for good.
pub fn failure_of(update: &NodeUpdate) -> Option<GroupFailure> {
    let status = update.status.as_ref().filter(|status| status.phase == Phase::Failed)?;
    let step = status.steps.iter().find(|step| step.state == StepState::Failed);
    let cause = match step {
        Some(step) => format!("{} at {}", status.failure_reason, step.name),
        None => status.failure_reason.clone(),
    };
    Some(GroupFailure {
        machine: update.spec.machine_ref.name.clone(),
        machine_uid: update.spec.machine_ref.uid.clone(),
        node_update: update.metadata.name.clone()?,
        cause,
        at: status.finished_at.clone()?,
    })
}

/// Records a failed update, once. It counts in the current rollout, if that began before it: an update may fail for
/// what the owner requested before. It begins a rollout only after the end of the last one, or if the owner has
/// moved on.
pub fn record_failure(
    status: &mut UpdateGroupStatus,
    generation: Option<i64>,
    key: &RolloutKey,
    failure: GroupFailure,
) {
    if is_outdated(status, generation) {
        return;
    }
    let last = status.rollout.as_deref();
    let is_known = last
        .is_some_and(|last| last.failures.iter().any(|one| one.node_update == failure.node_update));
    let is_old = last.is_some_and(|last| match &last.ended {
        Some(ended) => failure.at.0 <= ended.0,
        None => failure.at.0 < last.since.0,
    });
    if is_known || is_old {
        return;
    }
    let moved_on = last.is_some_and(|last| {
        (last.origin, key.origin) == (Origin::Hook, Origin::Hook) && !key.is(last)
    });
    let goes_on = last.filter(|last| last.ended.is_none() && !moved_on);
    let own = goes_on.map(|last| RolloutKey { origin: last.origin, target: last.target.clone() });
    let rollout = enter(status, generation, own.as_ref().unwrap_or(key), failure.at.0);
    rollout.failures.retain(|known| known.machine_uid != failure.machine_uid);
    rollout.failures.push(failure);
    rollout.failures.sort_by(|a, b| (a.at.0, &a.node_update).cmp(&(b.at.0, &b.node_update)));
    let surplus = rollout.failures.len().saturating_sub(MAX_FAILURES);
    rollout.failures.drain(..surplus);
}

/// Records which rollout waits for an approval: that of the updates that wait for one.
pub fn record_approval<'a>(
    status: &mut UpdateGroupStatus,
    pace: &Pace,
    waiting: impl Iterator<Item = &'a RolloutKey>,
    now: Timestamp,
) {
    if is_outdated(status, pace.owner_generation) {
        return;
    }
    status.awaits_approval = None;
    if pace.pacing.pause_after.is_none() {
        return;
    }
    // The number is bound to its target, also before a machine begins.
    let numbers = waiting.map(|key| enter(status, pace.owner_generation, key, now).number);
    let last = numbers.last();
    status.awaits_approval = last.filter(|number| pace.pacing.approve != Some(*number));
}

/// Whether an update waits for the approval of its rollout.
pub fn awaits_approval(update: &NodeUpdate) -> bool {
    let approval = Some(Reason::Update(RefusalReason::ApprovalRequired));
    let blockers = update.status.iter().flat_map(|status| &status.blocked_by);
    blockers.map(|blocker| Reason::of(&blocker.reason)).any(|reason| reason == approval)
}

/// Records that all machines of the group have been updated, as their owner shows. What people have requested has
/// no such end: another goal, or the owner, begins another rollout.
pub fn record_end(status: &mut UpdateGroupStatus, pace: &Pace, now: Timestamp) {
    let Some(rollout) = status.rollout.as_mut().filter(|rollout| rollout.ended.is_none()) else {
        return;
    };
    // An owner as it was before the rollout shows that all machines are up to date, too.
    let is_current = pace.owner_generation >= rollout.owner_generation;
    if is_current && rollout.origin == Origin::Hook && rollout.target == pace.request {
        rollout.ended = Some(Time(now));
        rollout.failures.clear();
    }
}
