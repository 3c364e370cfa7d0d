//! What an UpgradeTask shows.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    conditions, keys,
    refit::{
        MAX_TASK_FAILURES, NodeUpdate, Owner, Phase, TaskCounts, TaskFailure, TaskPhase,
        UpgradeTask, UpgradeTaskStatus,
    },
};

use super::{
    GroupSeen, Member, MemberState, Obstacle, Paused, SetsSeen, SpecState,
    actions::{has_stopped, is_done},
    is_for_one_request,
};
use crate::{
    group::owner_argument,
    report::{MISSING_MACHINE, Reason, RefusalReason},
};

/// Condition of an UpgradeTask: whether it is complete and, if not, why.
pub const READY: &str = "Ready";
/// Condition of an UpgradeTask: whether it pauses its owner.
pub const OWNER_PAUSED: &str = "OwnerPaused";
/// Length of a failure's message, in characters; the NodeUpdate has all of it.
pub(super) const MAX_FAILURE_MESSAGE: usize = 1024;
/// Reason of [`READY`] of a task that has ended because Cluster API is to replace the Machines, as the policy requires.
pub const REPLACED: &str = "ReplacedByClusterApi";
/// How many objects a message names.
const NAMED: usize = 5;

/// Why an object could not be brought further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// CamelCase reason.
    pub reason: &'static str,
    /// What refuses, and what ends it.
    pub message: String,
    /// Only a person ends it.
    pub is_final: bool,
    /// The policy has Cluster API replace this Machine instead, and every other one that it would replace.
    pub is_to_be_replaced: bool,
}

/// Phase, reason and message.
pub(super) type Shown = (TaskPhase, &'static str, String);

/// The status of a task for one group. `refused` are the objects that could not be brought further, by
/// kind and name.
pub fn status(seen: &GroupSeen<'_>, refused: &BTreeMap<String, Refused>) -> UpgradeTaskStatus {
    let old = seen.task.status.clone().unwrap_or_default();
    let generation = seen.task.metadata.generation;
    let mut next = UpgradeTaskStatus { observed_generation: generation, ..old.clone() };
    let members: Vec<(&Member<'_>, MemberState<'_>)> =
        seen.members().map(|member| (member, member.state(seen.target()))).collect();
    if !old.phase.has_ended() {
        next.counts = Some(counts(&members, seen.stops()));
        next.failures = failures(&members);
        if !seen.owner_was_edited() {
            next.version = seen.target().cloned();
        }
        if let Some(owner) = seen.owner.as_ref().filter(|_| seen.sets_version().is_none())
            && (next.owner_request.is_empty() || !is_for_one_request(seen.task))
        {
            next.owner_request.clone_from(&owner.request);
        }
        let shown = shown(seen, &members, refused, &next);
        show(&mut next, seen.now, shown);
    }
    show_pause(seen, &mut next, generation);
    next
}

/// The status of a task of which something could not be read.
pub fn unread(task: &UpgradeTask, why: &Refused, now: Timestamp) -> UpgradeTaskStatus {
    let generation = task.metadata.generation;
    let old = task.status.clone().unwrap_or_default();
    let phase = if why.is_final && !old.phase.has_ended() { TaskPhase::Failed } else { old.phase };
    let mut next = UpgradeTaskStatus { phase, observed_generation: generation, ..old };
    if !phase.has_ended() {
        set(&mut next, now, generation, (READY, "False", why.reason, &why.message));
    }
    next
}

/// Writes a phase, its times and the condition Ready.
pub(super) fn show(next: &mut UpgradeTaskStatus, now: Timestamp, (phase, reason, message): Shown) {
    next.phase = phase;
    if next.started_at.is_none() && phase != TaskPhase::Pending {
        next.started_at = Some(Time(now));
    }
    if phase.has_ended() {
        next.finished_at = Some(Time(now));
    }
    let is_ready = if phase == TaskPhase::Complete { "True" } else { "False" };
    set(next, now, next.observed_generation, (READY, is_ready, reason, &message));
}

/// What an obstacle makes a task show; `waits` is for one that ends by itself.
pub(super) fn obstructed(
    obstacle: &Obstacle,
    waits: impl FnOnce(&'static str, String) -> Shown,
) -> Shown {
    let (reason, message) = (obstacle.into(), obstacle.message());
    if obstacle.is_final() { (TaskPhase::Failed, reason, message) } else { waits(reason, message) }
}

/// What refused writes make a task show; `waits` is for those that end by themselves.
pub(super) fn hindered(
    refused: &BTreeMap<String, Refused>,
    waits: impl FnOnce(String) -> Shown,
) -> Option<Shown> {
    let (object, why) = refused.iter().next()?;
    let message = format!("{object}: {}", why.message);
    Some(if why.is_final { (TaskPhase::Failed, why.reason, message) } else { waits(message) })
}

fn set(
    next: &mut UpgradeTaskStatus,
    now: Timestamp,
    generation: Option<i64>,
    what: (&str, &str, &str, &str),
) {
    conditions::set(&mut next.conditions, now, generation, what);
}

/// The states, counted. What a task that stops has stopped has not failed.
fn counts(members: &[(&Member<'_>, MemberState<'_>)], stops: bool) -> TaskCounts {
    let mut counts = TaskCounts::default();
    for (_, state) in members {
        counts.total += 1;
        match state {
            MemberState::Updated => counts.updated += 1,
            MemberState::Updating(_) | MemberState::Reached => counts.updating += 1,
            MemberState::Failed(update) if stops && update.phase() == Phase::Stopped => {
                counts.waiting += 1;
            }
            MemberState::Failed(_) => counts.failed += 1,
            MemberState::Excepted(_) => counts.excepted += 1,
            MemberState::Waiting | MemberState::Deleting => counts.waiting += 1,
        }
    }
    counts
}

/// The failures that are newest.
fn failures(members: &[(&Member<'_>, MemberState<'_>)]) -> Vec<TaskFailure> {
    let mut failures: Vec<TaskFailure> = members
        .iter()
        .filter_map(|(member, state)| match state {
            MemberState::Failed(update) => Some(failure(member, update)),
            MemberState::Updated
            | MemberState::Deleting
            | MemberState::Waiting
            | MemberState::Excepted(_)
            | MemberState::Updating(_)
            | MemberState::Reached => None,
        })
        .collect();
    keep_newest(&mut failures);
    failures
}

/// Sorts failures, the newest first, and drops those beyond the maximum.
pub(super) fn keep_newest(failures: &mut Vec<TaskFailure>) {
    failures.sort_by(|a, b| {
        let at = |failure: &TaskFailure| failure.at.as_ref().map(|time| time.0);
        (at(b), &a.machine).cmp(&(at(a), &b.machine))
    });
    failures.truncate(MAX_TASK_FAILURES);
}

fn failure(member: &Member<'_>, update: &NodeUpdate) -> TaskFailure {
    let status = update.status.clone().unwrap_or_default();
    let reason = if status.failure_reason.is_empty() { "Stopped" } else { &status.failure_reason };
    let message =
        if status.failure_message.is_empty() { &status.message } else { &status.failure_message };
    TaskFailure {
        machine: member.name.to_owned(),
        node_update: update.metadata.name.clone().unwrap_or_default(),
        reason: reason.to_owned(),
        message: message.chars().take(MAX_FAILURE_MESSAGE).collect(),
        at: status.finished_at,
    }
}

fn shown(
    seen: &GroupSeen<'_>,
    members: &[(&Member<'_>, MemberState<'_>)],
    refused: &BTreeMap<String, Refused>,
    next: &UpgradeTaskStatus,
) -> Shown {
    let old = seen.phase();
    let waits = |reason, message| {
        let pauses = seen.owner.as_ref().is_some_and(|owner| owner.paused.is_by(seen.name()));
        let begun = old != TaskPhase::Pending || pauses;
        (if begun { TaskPhase::Ongoing } else { TaskPhase::Pending }, reason, message)
    };
    if seen.stops() {
        return if has_stopped(seen) {
            (TaskPhase::Aborted, "Aborted", "the task was stopped on request".to_owned())
        } else {
            let message = format!("{}; the task ends with them", progress(members, next));
            (TaskPhase::Ongoing, "Aborting", message)
        };
    }
    if let Some(obstacle) = &seen.obstacle {
        return obstructed(obstacle, waits);
    }
    let Some(owner) = &seen.owner else {
        return waits("OwnerUnknown", "the owner is not known yet".to_owned());
    };
    if owner.deleting {
        return (TaskPhase::Failed, "OwnerDeleting", "the owner is being deleted".to_owned());
    }
    if seen.owner_was_edited() {
        let message = "the owner's spec was edited since the task began: what is under way is finished, and \
                       nothing else begins. Abort this task, and create one for what the spec requests now"
            .to_owned();
        return (TaskPhase::Failed, "OwnerEdited", message);
    }
    let waits_for = |message| waits("Waiting", format!("{}. {message}", progress(members, next)));
    if let Some(shown) = delegated(seen, members, refused).or_else(|| hindered(refused, waits_for))
    {
        return shown;
    }
    if let Some(version) = seen.sets_version() {
        let message = if owner.of_topology {
            format!("waits until the Cluster's topology asks its owner for {version}")
        } else {
            format!("sets version {version} in the owner's spec")
        };
        return waits("SettingVersion", message);
    }
    let is_complete = if seen.is_via_machines() { is_settled(seen) } else { owner.is_up_to_date };
    if is_complete {
        return (TaskPhase::Complete, "Complete", progress(members, next));
    }
    if lacks_a_member(seen, members) {
        let message = format!(
            "{}. A Machine of the control plane is missing, and Cluster API creates none while its owner is \
             paused. Ways out: abort this task and set the owner's spec back, so that Cluster API goes on with the \
             owner and creates the Machine; then create another task",
            progress(members, next)
        );
        return (TaskPhase::Failed, "MachineMissing", message);
    }
    let counts = next.counts.unwrap_or_default();
    let is_stuck = counts.failed > 0 && counts.updating == 0 && counts.waiting == 0;
    if is_stuck {
        let message = format!(
            "{}. Ways out: refit retry, or delete the Machine; the task goes on by itself",
            progress(members, next)
        );
        return (TaskPhase::Failed, "MachinesFailed", message);
    }
    if seen.is_paced_to_a_halt && counts.updating == 0 {
        return waits(
            "Paced",
            format!("{}; the group's pacing lets none begin", progress(members, next)),
        );
    }
    (TaskPhase::Ongoing, "Upgrading", progress(members, next))
}

/// What a task shows whose Machines Cluster API is to replace: it ends, once no Machine is in progress, held or skipped.
fn delegated(
    seen: &GroupSeen<'_>,
    members: &[(&Member<'_>, MemberState<'_>)],
    refused: &BTreeMap<String, Refused>,
) -> Option<Shown> {
    let (object, why) = refused.iter().next().filter(|(_, why)| why.is_to_be_replaced)?;
    if !refused.values().all(|why| why.is_to_be_replaced) {
        return None;
    }
    let in_progress = members
        .iter()
        .filter(|(_, state)| matches!(state, MemberState::Updating(_) | MemberState::Reached));
    if let Some(names) = names(in_progress.map(|(member, _)| member.name)) {
        let message = format!("{object}: {}. Before that, the task finishes {names}", why.message);
        return Some((TaskPhase::Ongoing, "Upgrading", message));
    }
    let excepted = members.iter().filter(|(_, state)| matches!(state, MemberState::Excepted(_)));
    let excepted = names(excepted.map(|(member, _)| member.name));
    let spec = &seen.task.spec;
    let kept = if let Some(names) = excepted {
        Some(format!("{names} are held or skipped, and would be replaced, too"))
    } else if spec.machines.is_some() {
        Some("the task is for some Machines, and others would be replaced, too".to_owned())
    } else if spec.updater_ref.is_some() {
        Some("another Updater than that of updaterRef may cover the change".to_owned())
    } else if !seen.owner.as_ref().is_some_and(|owner| owner.paused.is_by(seen.name())) {
        Some("another client has paused the owner".to_owned())
    } else {
        None
    };
    Some(match kept {
        Some(kept) => {
            let message = format!("{object}: {}; but {kept}", why.message);
            (TaskPhase::Failed, why.reason, message)
        }
        None => (TaskPhase::Aborted, REPLACED, format!("{object}: {}", why.message)),
    })
}

/// Whether the task waits for a member that Cluster API does not create: the control plane is paused. With outdated
/// members, the task cannot let it go on.
fn lacks_a_member(seen: &GroupSeen<'_>, members: &[(&Member<'_>, MemberState<'_>)]) -> bool {
    let is_paused_plane = seen.owner.as_ref().is_some_and(|owner| {
        let is_paused = match &owner.paused {
            Paused::ByTask(_) | Paused::ByHold | Paused::ByOthers => true,
            Paused::No => false,
        };
        owner.owner == Owner::ControlPlane && is_paused
    });
    let waits = |(_, state): &(&Member<'_>, MemberState<'_>)| match state {
        MemberState::Updating(update) => waits_for_missing(update),
        // The Machine that is deleted counts as missing once it is gone.
        MemberState::Reached | MemberState::Deleting => false,
        MemberState::Updated
        | MemberState::Waiting
        | MemberState::Excepted(_)
        | MemberState::Failed(_) => true,
    };
    let is_updating =
        |(_, state): &(&Member<'_>, MemberState<'_>)| matches!(state, MemberState::Updating(_));
    seen.is_via_machines()
        && seen.lacks_machines
        && is_paused_plane
        && members.iter().any(is_updating)
        && members.iter().all(waits)
}

/// Whether a NodeUpdate has disturbed nothing and waits for a Machine that its group lacks.
fn waits_for_missing(update: &NodeUpdate) -> bool {
    let Some(status) = update.status.as_ref().filter(|status| status.phase.is_undisturbed()) else {
        return false;
    };
    let reason = Some(Reason::Update(RefusalReason::GroupUnavailable));
    status
        .blocked_by
        .iter()
        .any(|blocker| Reason::of(&blocker.reason) == reason && blocker.object == MISSING_MACHINE)
}

/// Whether all Machines of the task are done, and nothing that the task has written is left to remove.
fn is_settled(seen: &GroupSeen<'_>) -> bool {
    let name = seen.name();
    let is_marked = seen.machines.iter().any(|member| member.task == Some(name));
    let is_about_to_go_on =
        seen.owner.as_ref().is_some_and(|owner| owner.paused.is_by(name) && owner.replaces_none);
    is_done(seen) && !is_marked && !is_about_to_go_on
}

/// How far the task is, with the names of some Machines.
fn progress(members: &[(&Member<'_>, MemberState<'_>)], next: &UpgradeTaskStatus) -> String {
    let TaskCounts { total, updated, failed, .. } = next.counts.unwrap_or_default();
    let version =
        next.version.as_ref().map_or_else(String::new, |version| format!(" to {version}"));
    let mut text = format!("{updated} of {total} Machines are updated{version}");
    let named = |wanted: fn(&MemberState<'_>) -> bool| {
        names(members.iter().filter(|(_, state)| wanted(state)).map(|(member, _)| member.name))
    };
    let updating = named(|state| matches!(state, MemberState::Updating(_) | MemberState::Reached));
    if let Some(names) = updating {
        text = format!("{text}; in progress: {names}");
    }
    if let Some(blocker) = blocker(members) {
        text = format!("{text} ({blocker})");
    }
    if let Some(names) = named(|state| matches!(state, MemberState::Excepted(_))) {
        text = format!("{text}; held or skipped: {names}");
    }
    if failed > 0
        && let Some(names) = named(|state| matches!(state, MemberState::Failed(_)))
    {
        text = format!("{text}; failed: {names}");
    }
    text
}

/// What blocks the Machines in progress, if it blocks all of them.
fn blocker(members: &[(&Member<'_>, MemberState<'_>)]) -> Option<String> {
    let mut first = None;
    for (member, state) in members {
        match state {
            MemberState::Updating(update) => {
                let blocker =
                    update.status.as_ref().and_then(|status| status.blocked_by.first())?;
                first = first.or(Some(format!("{}: {}", member.name, blocker.message)));
            }
            MemberState::Reached => return None,
            MemberState::Updated
            | MemberState::Deleting
            | MemberState::Waiting
            | MemberState::Excepted(_)
            | MemberState::Failed(_) => {}
        }
    }
    first
}

/// The first names, and how many there are besides.
pub(super) fn names<'a>(all: impl Iterator<Item = &'a str>) -> Option<String> {
    let all: Vec<&str> = all.collect();
    let (first, more) = all.split_at(all.len().min(NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    (!first.is_empty()).then(|| format!("{}{more}", first.join(", ")))
}

/// Shows whether the task pauses its owner and, after its end, which Machines keep it from going on.
fn show_pause(seen: &GroupSeen<'_>, next: &mut UpgradeTaskStatus, generation: Option<i64>) {
    let Some(owner) = &seen.owner else { return };
    if !owner.paused.is_by(seen.name()) {
        if conditions::is_true(&next.conditions, OWNER_PAUSED) {
            let (reason, message) = match owner.paused {
                Paused::No => ("GoesOn", "Cluster API goes on with the owner"),
                Paused::ByOthers => (
                    "OtherClient",
                    "another client pauses the owner now, and decides when Cluster API goes on with it",
                ),
                Paused::ByHold => {
                    ("Held", "Refit pauses the owner: its only Machine would be replaced")
                }
                Paused::ByTask(_) => ("OtherTask", "another UpgradeTask pauses the owner"),
            };
            set(next, seen.now, generation, (OWNER_PAUSED, "False", reason, message));
        }
        return;
    }
    let is_over = next.phase.has_ended() || next.phase == TaskPhase::Failed;
    let outdated = seen.machines.iter().filter(|member| member.spec != SpecState::Current);
    let to_be_lowered = seen.sets.iter().flat_map(SetsSeen::to_be_lowered);
    let is_deleted = seen.task.metadata.deletion_timestamp.is_some() && seen.is_via_machines();
    let keep_extra = names(to_be_lowered.map(|set| &*set.name));
    if let Some(sets) = keep_extra.filter(|_| is_over && is_deleted) {
        let message = format!("extra Machines are deleted by MachineSets first: {sets}");
        set(next, seen.now, generation, (OWNER_PAUSED, "True", "ExtraMachines", &message));
        return;
    }
    let (reason, message) = match names(outdated.map(|member| member.name)) {
        Some(names) if is_over => ("OutdatedMachines", ways_out(seen, &names)),
        Some(_) | None => (
            "UpgradeTask",
            "while the task works, Cluster API replaces no Machine of the owner".to_owned(),
        ),
    };
    set(next, seen.now, generation, (OWNER_PAUSED, "True", reason, &message));
}

/// What an operator can do about the Machines that keep the owner of an ended task from going on.
fn ways_out(seen: &GroupSeen<'_>, names: &str) -> String {
    let owner = seen.task.spec.owner_ref.as_ref().map(owner_argument).unwrap_or_default();
    let first = if seen.is_held {
        format!(", once the owner or its Cluster has the annotation {}=Replace", keys::ON_UNCOVERED)
    } else {
        String::new()
    };
    format!(
        "Cluster API would replace {names}. Ways out: `refit resume {owner}` upgrades them in place; `refit release \
         {owner} --accept-replacement` lets Cluster API replace them{first}; set back, the owner's spec asks for nothing"
    )
}
