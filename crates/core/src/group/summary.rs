//! What an UpdateGroup shows: which machines wait, and whether the rollout proceeds.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    conditions, keys,
    refit::{Blocker, NodeUpdateStatus, Phase, Role, Slot, UpdateGroupStatus, Waiting},
    version::StatedVersion,
};

use super::{
    Limits,
    unrequested::{REASON_NOT_REQUESTED, Rollout},
};
use crate::{
    ask::BundleExpected,
    change::{Policy, Verdict},
    node::{MEMBER_MISSING, SUPERSEDED},
    report::{EndsBy, Reason, RefusalReason},
};

/// Condition: a machine of the group is being updated.
pub const PROGRESSING: &str = "Progressing";
/// Condition: the group is blocked by something that does not end by itself.
pub const BLOCKED: &str = "Blocked";
/// Condition, set by the hooks: whether the change in the owner's spec is made in place.
pub const COVERED: &str = "Covered";
/// Reason of [`COVERED`] if the verdict was about an earlier state of the owner.
pub(super) const OWNER_CHANGED: &str = "OwnerChanged";
/// Reason of [`BLOCKED`]: a change that no updater covers.
pub const REASON_UNCOVERED: &str = "Uncovered";

/// Condition of an UpdateGroup: whether the annotations of owner and Cluster are valid.
pub const POLICY_UNDERSTOOD: &str = "PolicyUnderstood";
/// How long the wait of a machine whose host has begun may take before its group is blocked: kubelets
/// and API servers restart.
const LASTING: SignedDuration = SignedDuration::from_mins(5);
/// Reason of [`BLOCKED`]: workers wait for a control plane that is blocked.
const CONTROL_PLANE_BLOCKED: &str = "ControlPlaneBlocked";
/// Reason of [`BLOCKED`]: the NodeUpdate of a machine under way was deleted.
const NODE_UPDATE_DELETED: &str = "NodeUpdateDeleted";
/// Reason of [`BLOCKED`]: no UpgradeTask names the bundle that an annotation of the owner asks for.
const BUNDLE_EXPECTED: &str = "BundleExpected";
/// Reason of [`BLOCKED`]: the API server refuses the surge machine of the only Machine.
const REPLACEMENT_HELD: &str = "ReplacementHeld";
/// Reasons of [`COVERED`] for verdicts that wait for an operator.
const WAITS_FOR_OPERATOR: [&str; 5] =
    ["NoFreshReport", "KubeletBehind", "ProviderForbidden", "Held", "Skipped"];

/// A Machine of the group, with the NodeUpdate that speaks for it.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Name of the Machine.
    pub machine: &'a str,
    /// Whether Cluster API waits for its update.
    pub in_progress: bool,
    /// Whether the Machine counts as updated for Cluster API, although its kubelet runs another version
    /// than its spec requests.
    pub is_behind: bool,
    /// Whether its update was withdrawn for a missing member of the group.
    pub is_withdrawn: bool,
    /// Name of the NodeUpdate.
    pub node_update: &'a str,
    /// Status of the NodeUpdate.
    pub status: &'a NodeUpdateStatus,
}

impl Member<'_> {
    fn phase(&self) -> Phase {
        self.status.phase
    }

    /// Why it does not begin, if the failures of others have stopped the rollout.
    fn stopped_rollout(&self) -> Option<&str> {
        let stopped = Some(Reason::Update(RefusalReason::RolloutStopped));
        let mut blockers = self.status.blocked_by.iter();
        let found = blockers.find(|blocker| Reason::of(&blocker.reason) == stopped)?;
        Some(&found.message)
    }

    /// Whether its update waits for a Machine that Cluster API has not created yet.
    fn waits_for_member(&self) -> bool {
        let stopped =
            self.phase() == Phase::Stopped && self.status.failure_reason == MEMBER_MISSING;
        self.is_withdrawn || self.in_progress && stopped
    }

    /// Reason and message for an update that has ended before its goal. It stays so until an
    /// operator acts.
    pub fn given_up(&self) -> Option<(&str, String)> {
        let NodeUpdateStatus { failure_reason, failure_message, .. } = self.status;
        let (reason, what) = if self.phase() == Phase::Failed {
            (conditions::REASON_FAILED, "failed")
        } else if self.phase() == Phase::Stopped && !is_made_again(failure_reason) {
            (failure_reason.as_str(), "was stopped")
        } else {
            return None;
        };
        let Self { machine, node_update, .. } = self;
        let why = failure_message.trim_end_matches('.');
        let remedy = if self.is_behind {
            let pause = match self.status.role {
                Some(Role::FirstControlPlane | Role::ControlPlane) => {
                    "; pause the control plane meanwhile, or Cluster API deletes the machine"
                }
                Some(Role::Worker) | None => "",
            };
            format!(
                "Cluster API does not request it again: bring the machine to the version of its spec with \
                 a NodeUpdate of your own{pause}"
            )
        } else {
            format!("To try again: refit retry machine/{machine}")
        };
        let message = format!(
            "Machine {machine}: NodeUpdate {node_update} {what}: {failure_reason}; {why}. {remedy}"
        );
        Some((reason, message))
    }
}

/// What lies outside a group and holds it up.
#[derive(Clone, Debug, Default)]
pub struct Outside<'a> {
    /// Whether the group has fewer Machines than its owner asks for.
    pub lacks_machines: bool,
    /// The control plane, for a group of workers that are not all as their owner requests.
    pub control_plane: Option<ControlPlane>,
    /// The slot of a Machine whose NodeUpdate was deleted, if Cluster API will not request another.
    pub deserted: Option<&'a Slot>,
    /// A Machine whose update does not begin before its bundle is known, and why.
    pub bundle: Option<(&'a str, BundleExpected)>,
    /// The only Machine of the group, if Cluster API would replace it by a surge machine, which the API server refuses.
    pub held: Option<String>,
    /// The owner's rollout, if the owner is known.
    pub rollout: Option<Rollout<'a>>,
}

/// The control plane that workers wait for.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    /// Kind and name of its owner.
    pub owner: String,
    /// The version that its owner requests.
    pub version: StatedVersion,
    /// The version that the owner of the workers requests.
    pub workers_version: StatedVersion,
    /// Why its group is blocked.
    pub blocked: Option<String>,
}

impl ControlPlane {
    /// Why workers that wait for this control plane wait for an operator.
    fn holds_workers_up(&self) -> Option<(&'static str, String)> {
        let Self { owner, version, workers_version, blocked } = self;
        if let (Some(asked), Some(wanted)) = (version.version(), workers_version.version())
            && asked.minor_below(wanted)
        {
            let message = format!(
                "{owner} requests {version}, and workers are updated to {workers_version} after \
                 their control plane: set the version of {owner} first"
            );
            return Some((RefusalReason::ControlPlaneBehind.into(), message));
        }
        let why = blocked.as_ref()?;
        Some((CONTROL_PLANE_BLOCKED, format!("the update of the control plane is blocked: {why}")))
    }
}

/// Whether an update that stopped for this reason is made again without an operator: by the next call
/// of Cluster API, or once the group is complete.
fn is_made_again(failure_reason: &str) -> bool {
    [SUPERSEDED, MEMBER_MISSING].contains(&failure_reason)
}

/// The status to show: limit, waiting machines, conditions. Slots, durations and the conditions set
/// by the hooks do not change.
pub fn summarise(
    status: &UpdateGroupStatus,
    limits: Limits,
    members: &[Member<'_>],
    outside: &Outside<'_>,
    generation: Option<i64>,
    now: Timestamp,
) -> UpdateGroupStatus {
    let mut next = status.clone();
    next.limit = limits.slots();
    next.observed_generation = generation;
    next.waiting = members.iter().filter_map(waiting).collect();
    let waits = |phase| matches!(phase, Phase::Pending | Phase::Waiting);
    let works = |phase: Phase| !phase.is_final() && !waits(phase);
    // Which machines, their slots show: a number would change with each of them.
    let progressing = if members.iter().any(|member| works(member.phase())) {
        ("True", "Updating", "machines are being updated")
    } else {
        ("False", "Idle", "no machine is being updated")
    };
    conditions::set(
        &mut next.conditions,
        now,
        generation,
        (PROGRESSING, progressing.0, progressing.1, progressing.2),
    );
    let (state, reason, message) = blocked(&next, members, outside, now);
    conditions::set(&mut next.conditions, now, generation, (BLOCKED, state, &reason, &message));
    next
}

/// Sets the condition that reports whether the annotations of owner and Cluster are valid. A group
/// whose annotations were always valid does not have it.
pub fn show_policy(
    status: &UpdateGroupStatus,
    policy: &Policy,
    now: Timestamp,
) -> UpdateGroupStatus {
    let mut next = status.clone();
    let (word, reason, message) = match &policy.not_understood {
        Some(_) => ("False", "UnknownValue", policy.complaint()),
        None if conditions::get(&next.conditions, POLICY_UNDERSTOOD).is_some() => {
            ("True", "Understood", String::new())
        }
        None => return next,
    };
    let condition = (POLICY_UNDERSTOOD, word, reason, message.as_str());
    conditions::set(&mut next.conditions, now, None, condition);
    next
}

/// Whether a verdict blocks the group until an operator intervenes. Such a verdict must be stored
/// so that it can be checked for being outdated.
pub fn answer_blocks(verdict: &Verdict) -> bool {
    !verdict.uncovered().is_empty() || WAITS_FOR_OPERATOR.contains(&verdict.reason())
}

/// Clears a blocking verdict once the owner's spec has changed: Cluster API does not ask about a
/// change that was reverted, so the verdict would block the group forever. If a difference remains
/// uncovered, Cluster API calls the hook again, because a Failure is not cached
/// (`docs/facts/machine-deployment.md#canupdatemachineset`).
pub fn forget_old_answer(
    status: &UpdateGroupStatus,
    owner_generation: Option<i64>,
    now: Timestamp,
) -> UpdateGroupStatus {
    let mut next = status.clone();
    let answered = conditions::get(&status.conditions, COVERED).and_then(|c| c.observed_generation);
    if let (Some(answered), Some(current)) = (answered, owner_generation)
        && answered < current
    {
        next.uncovered.clear();
        let message = "the owner has changed since the last call of Cluster API";
        let covered = (COVERED, "Unknown", OWNER_CHANGED, message);
        conditions::set(&mut next.conditions, now, None, covered);
    }
    next
}

/// Clears the lines of a change that replaced machines, once the owner reports all machines as up
/// to date. The verdict stays.
pub fn forget_replaced(status: &UpdateGroupStatus, owner_is_up_to_date: bool) -> UpdateGroupStatus {
    let mut next = status.clone();
    if owner_is_up_to_date && was_replaced(status) {
        next.uncovered.clear();
    }
    next
}

/// Whether the last verdict let Cluster API replace machines.
fn was_replaced(status: &UpdateGroupStatus) -> bool {
    conditions::get(&status.conditions, COVERED)
        .is_some_and(|condition| condition.reason == "UncoveredReplace")
}

fn waiting(member: &Member<'_>) -> Option<Waiting> {
    let blocker = member.status.blocked_by.first().filter(|_| member.phase().is_undisturbed())?;
    Some(Waiting {
        machine: member.machine.to_owned(),
        reason: blocker.reason.clone(),
        message: blocker.message.clone(),
    })
}

fn blocked(
    status: &UpdateGroupStatus,
    members: &[Member<'_>],
    outside: &Outside<'_>,
    now: Timestamp,
) -> (&'static str, String, String) {
    if !status.uncovered.is_empty() && !was_replaced(status) {
        let message = status.uncovered.join("\n");
        return ("True", REASON_UNCOVERED.to_owned(), message);
    }
    let unanswered = conditions::get(&status.conditions, COVERED).filter(|answer| {
        answer.status == "Unknown" && WAITS_FOR_OPERATOR.contains(&&*answer.reason)
    });
    if let Some(answer) = unanswered {
        return ("True", answer.reason.clone(), answer.message.clone());
    }
    if let Some(message) = members.iter().find_map(Member::stopped_rollout) {
        let reason: &str = RefusalReason::RolloutStopped.into();
        return ("True", reason.to_owned(), message.to_owned());
    }
    let holds = |member: &Member<'_>| {
        let mut slots = status.slots.iter();
        slots.any(|slot| slot.machine == member.machine)
    };
    // Also if other machines are still being updated: this one will not be.
    let given_up = members
        .iter()
        .filter(|member| member.in_progress || member.is_behind || holds(member))
        .find_map(Member::given_up);
    if let Some((reason, message)) = given_up {
        return ("True", reason.to_owned(), message);
    }
    let stuck = members
        .iter()
        .flat_map(|member| member.status.blocked_by.iter().map(move |blocker| (member, blocker)))
        .filter(|(member, blocker)| {
            // Blockers of a working host resolve by themselves, except in these phases, and unless
            // they last.
            let phase = member.phase();
            let lasts = now.duration_since(blocker.since.0) >= LASTING;
            let held = lasts || phase.is_undisturbed() || phase == Phase::Draining;
            let silent =
                [RefusalReason::NoFreshReport, RefusalReason::ApiRefused, RefusalReason::ApiErrors];
            let reason = Reason::of(&blocker.reason);
            let is_left_out = reason == Some(Reason::Update(RefusalReason::Skipped));
            !is_left_out && held
                || silent.into_iter().map(Reason::Update).any(|one| reason == Some(one))
        })
        .find(|(member, blocker)| !ends_by_itself(status, member, blocker));
    if let Some((member, blocker)) = stuck {
        let message = format!("{}: {}", member.machine, blocker.message);
        return ("True", blocker.reason.clone(), message);
    }
    match blocked_from_outside(status, members, outside, now) {
        Some((reason, message)) => ("True", reason.to_owned(), message),
        None => ("False", "NotBlocked".to_owned(), String::new()),
    }
}

/// Reason and message for a group that waits for Cluster API, or for another group.
fn blocked_from_outside(
    status: &UpdateGroupStatus,
    members: &[Member<'_>],
    outside: &Outside<'_>,
    now: Timestamp,
) -> Option<(&'static str, String)> {
    let mut members = members.iter().filter(|_| outside.lacks_machines);
    let waiting = members.find(|member| member.waits_for_member());
    if let Some(Member { machine, .. }) = waiting {
        let message = format!(
            "Machine {machine}: its update continues once Cluster API has created the Machine that \
             its group lacks"
        );
        return Some((MEMBER_MISSING, message));
    }
    if let Some(Slot { machine, node_update, .. }) = outside.deserted {
        let message = format!(
            "Machine {machine}: NodeUpdate {node_update} was deleted under way: create another one \
             with the same goal, which continues with what it finds"
        );
        return Some((NODE_UPDATE_DELETED, message));
    }
    if let Some((machine, why)) = &outside.bundle {
        return Some((BUNDLE_EXPECTED, format!("Machine {machine}: {why}")));
    }
    if let Some(machine) = &outside.held {
        let message = format!(
            "Machine {machine}: Cluster API would replace it by its surge machine, and the API server refuses that, because \
             the namespace holds replacements. To update it in place, set spec.rollout.strategy.rollingUpdate to maxSurge 0 \
             and maxUnavailable 1; to let Cluster API replace it, annotate the owner or its Cluster with {}=Replace",
            keys::ON_UNCOVERED
        );
        return Some((REPLACEMENT_HELD, message));
    }
    let behind = Some(Reason::Update(RefusalReason::ControlPlaneBehind));
    let refused = conditions::get(&status.conditions, COVERED)
        .is_some_and(|answer| answer.status == "Unknown" && Reason::of(&answer.reason) == behind);
    let control_plane = outside.control_plane.as_ref().filter(|_| refused);
    if let Some(found) = control_plane.and_then(ControlPlane::holds_workers_up) {
        return Some(found);
    }
    let rollout = outside.rollout.as_ref()?;
    let is_due = rollout.blocks_at(status).is_some_and(|at| at <= now);
    is_due.then(|| (REASON_NOT_REQUESTED, rollout.message()))
}

/// Whether the wait ends with the group's own progress: a machine that waits for others recovers none
/// of them.
fn ends_by_itself(status: &UpdateGroupStatus, member: &Member<'_>, blocker: &Blocker) -> bool {
    match Reason::of(&blocker.reason).map(Reason::ends_by) {
        Some(EndsBy::Progress) => true,
        Some(EndsBy::OthersRecover) => {
            status.slots.iter().any(|slot| slot.machine != member.machine)
        }
        Some(EndsBy::ObjectChange | EndsBy::Deadline | EndsBy::Command) | None => false,
    }
}
