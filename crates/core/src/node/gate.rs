//! What must hold before anything starts, and before anything is disturbed. What concerns the machine and its
//! cluster is in the list of `preflight`.

use jiff::Timestamp;
use refit_cluster_api::kinds::update_in_progress;
use refit_kinds::{
    conditions,
    refit::{NodeUpdate, NodeUpdateStatus, Phase, SettingHashes},
    version::Hop,
};

use super::{
    drain_policy::DrainPolicy,
    lost::HOST_LOST,
    order::{is_newer, is_unfinished},
    preflight::{Begun, Point, Preflight},
    seen::{NodeView, Workload},
    snapshot::{
        ConfigurationValues, Decision, GroupState, ManagementWrite, Snapshot, WorkloadWrite, Write,
    },
    status::Standing,
    stop::SUPERSEDED,
    work::{Work, is_control_plane},
};
use crate::{
    group::{self, Candidate, Exception, RolloutKey},
    report::{Hold, Reason, Refusal, RefusalReason},
};

/// Whether a write disturbs a machine, or reserves the right to. Whether the other machines are
/// healthy is in no object that is written, so the decision must rest on a live read of them:
///
/// - of the Nodes, the control plane's mirror pods, the Machines and the MachineSets of the cluster,
/// - of the NodeUpdate, its UpdateGroup, and the owner and Cluster of its Machine,
/// - of the objects of providers for the Machine.
///
/// A worker's drain needs none: it holds its slot, and its pods are listed before each eviction.
///
/// An update whose provider's object is missing in the view writes nothing on an old view either, nor
/// does it return its slot: no provider would be at work.
///
/// That a host is lost is decided live, too, on its HostPlan: an old view would end its update. So is
/// that an update is withdrawn, because its owner asks for the old version again or for a missing
/// member: Cluster API then considers the Machine updated. And so is that a node that was upgraded by
/// hand runs the goal, or does not.
pub fn requires_live_read(s: &Snapshot, decision: &Decision) -> bool {
    let adopted = |status: &NodeUpdateStatus| {
        s.update.spec.adopts() && matches!(status.phase, Phase::Succeeded | Phase::Failed)
    };
    let ends = |status: &NodeUpdateStatus| status.failure_reason == HOST_LOST || adopted(status);
    let has_ended = s.update.status.as_ref().is_some_and(ends);
    let disturbs = decision.write.as_ref().is_some_and(|write| disturbs(s, write));
    let may_miss = decision.write.as_ref().is_some_and(|write| s.may_miss_provider(write));
    disturbs || may_miss || ends(&decision.status) && !has_ended
}

/// Whether a write claims a slot for a machine whose node will be drained, or raises its plan to a drain, and it was not read
/// yet whether budgets let its pods go. Like the reads above, it is made right before the write.
pub fn requires_drain_ahead(s: &Snapshot, decision: &Decision, now: Timestamp) -> bool {
    let Workload::Seen(seen) = &s.workload else {
        return false;
    };
    let status = decision.status.clone();
    let claims = matches!(&decision.write, Some(Write::Management(ManagementWrite::ClaimSlot(_))))
        && status.phase.is_undisturbed();
    let raises = matches!(&decision.write, Some(Write::HostPlan(spec)) if s.host_as_seen().raises_to_drain(spec));
    let is_due = (claims || raises) && seen.ahead.is_none();
    let work = is_due.then(|| Work::new(s, seen, status, now));
    work.as_ref().and_then(Work::preflight).is_some_and(|preflight| {
        let preflight = if raises { preflight.of_drain(&s.drain.policy) } else { preflight };
        preflight.waits_for_budgets()
    })
}

/// Whether a write begins with a machine whose group has health gates, and they are not known to be open. Like the reads
/// above, the check is made right before the write.
pub fn requires_gates(s: &Snapshot, decision: &Decision, now: Timestamp) -> bool {
    let (Workload::Seen(seen), GroupState::Present(group)) = (&s.workload, &s.group) else {
        return false;
    };
    let begins = decision.write.as_ref().is_some_and(|write| begins(s, write));
    begins
        && group.gates_read().is_none_or(|read| !read.closed.is_empty())
        && Work::new(s, seen, decision.status.clone(), now).waits_for_gates(group)
}

/// Whether the update waits for gates that were closed: whether it still does is decided on what is found now.
pub fn awaits_gates(status: &NodeUpdateStatus) -> bool {
    is_undisturbed_and_waits(status, RefusalReason::GateClosed)
}

/// Whether a write is the first, or one of the first, with which a machine begins.
fn begins(s: &Snapshot, write: &Write) -> bool {
    use ManagementWrite::{Withdraw, WithdrawForMember};
    use WorkloadWrite::{Cordon, Evict, Exclude};
    let withdraws = matches!(write, Write::Management(Withdraw | WithdrawForMember));
    let drains = matches!(write, Write::Workload(Cordon | Exclude | Evict(_)));
    drains || disturbs(s, write) && !withdraws
}

/// Whether the update waits for a budget before its node is drained: it is decided on what is read now.
pub fn awaits_budget(status: &NodeUpdateStatus) -> bool {
    waits(status, RefusalReason::PodDisruptionBudget)
        && (status.phase.is_undisturbed() || status.phase == Phase::Upgrading)
}

/// Whether the update waits because its KubeadmConfig has changed: it is decided on what is read now. Without the values,
/// the plan would seem possible again.
pub fn awaits_configuration(status: &NodeUpdateStatus) -> bool {
    is_undisturbed_and_waits(status, RefusalReason::ConfigurationChanged)
}

/// Whether the update of a control plane machine waits for Cluster API to request it. It holds no slot, and other
/// members may be updated before it.
pub fn awaits_request(status: &NodeUpdateStatus) -> bool {
    is_undisturbed_and_waits(status, RefusalReason::WouldBeReplaced)
}

fn is_undisturbed_and_waits(status: &NodeUpdateStatus, reason: RefusalReason) -> bool {
    status.phase.is_undisturbed() && waits(status, reason)
}

fn waits(status: &NodeUpdateStatus, reason: RefusalReason) -> bool {
    let mut blockers = status.blocked_by.iter();
    blockers.any(|blocker| Reason::of(&blocker.reason) == Some(Reason::Update(reason)))
}

/// Whether a write creates a plan. Its steps follow from the HostSettings of the namespace and run as
/// root, so these are read live: an old view may lack what an operator has just withdrawn.
///
/// So is that they have changed, which ends an update that is to apply them.
pub fn requires_live_settings(s: &Snapshot, decision: &Decision) -> bool {
    let is_superseded = s.update.spec.changes_settings()
        && !s.update.phase().is_final()
        && decision.status.failure_reason == SUPERSEDED;
    is_superseded || creates_plan(s, decision)
}

fn creates_plan(s: &Snapshot, decision: &Decision) -> bool {
    match &decision.write {
        Some(Write::HostPlan(spec)) => s.host_as_seen().is_new(spec),
        Some(
            Write::Management(_)
            | Write::Workload(_)
            | Write::AskUpdater(_)
            | Write::Updater(_)
            | Write::Provider(_)
            | Write::OlderProvider(..),
        )
        | None => false,
    }
}

/// Whether a write creates a plan with values of the KubeadmConfig, which was not read.
pub fn requires_live_configuration(s: &Snapshot, decision: &Decision) -> bool {
    requires_live_settings(s, decision)
        && s.update.spec.configuration().is_some()
        && s.configuration == ConfigurationValues::Unread
}

fn disturbs(s: &Snapshot, write: &Write) -> bool {
    use ManagementWrite::{
        Again, ClaimSlot, Guard, MachineCondition, ReleaseSlot, Status, Unguard, Withdraw,
        WithdrawForMember,
    };
    use WorkloadWrite::{Cordon, Evict, Exclude, Include, Uncordon};
    match write {
        Write::Management(ClaimSlot(_) | Withdraw | WithdrawForMember) => true,
        Write::Management(
            Status | ReleaseSlot(_) | Guard(_) | Unguard(_) | MachineCondition(_) | Again { .. },
        )
        | Write::Workload(Uncordon | Include)
        | Write::AskUpdater(_)
        | Write::OlderProvider(..) => false,
        Write::HostPlan(spec) => s.host_as_seen().opens(spec),
        Write::Provider(order) => s.opens(order),
        Write::Updater(name) => {
            let begun =
                s.update.status.as_ref().is_some_and(|status| status.part(name).state.has_begun());
            let mut parts = s.update.spec.updater_parts();
            !begun && parts.any(|part| part.updater == *name && part.disruption.takes_slot())
        }
        Write::Workload(Cordon | Exclude | Evict(_)) => {
            s.machine.as_deref().is_some_and(is_control_plane)
        }
    }
}

/// The failure of an update that would succeed without having done anything on its host.
pub(super) fn nothing_to_do() -> Standing {
    Standing::failed(
        "NothingToDo",
        "the goal asks for nothing on this host: it has neither a Kubernetes version for kubeadm, nor an OS image or \
         packages of the operating system, nor certificates, nor a change of its KubeadmConfig, nor HostSettings with files, time servers, kubelet flags, a container \
         runtime, an OS image or OS packages",
    )
}

/// Whether the update waits, after kubeadm's upgrade, until an operator lets it go on.
fn is_held_before_drain(update: &NodeUpdate) -> bool {
    let reason = Some(Reason::Update(RefusalReason::UntilReached));
    let status = update.status.as_ref().filter(|status| status.phase == Phase::Upgrading);
    status.is_some_and(|status| {
        status.blocked_by.iter().any(|blocker| Reason::of(&blocker.reason) == reason)
    })
}

impl Work<'_> {
    /// A failure that waiting cannot resolve: the goal cannot be reached from the current version.
    pub(super) fn unreachable_goal(&self) -> Option<Standing> {
        let spec = &self.s.update.spec;
        let mut parts = spec.updater_parts();
        if let Some(option) = &spec.goal.option
            && !parts.any(|part| part.brings_version() || part.is_of_k8sd())
        {
            let why = format!("none of the updaters of this update can install {option}");
            return Some(Standing::failed("OptionNotSupported", why));
        }
        if spec.changes_settings()
            && let Some(other) = spec.updater_parts().next()
        {
            let why = format!(
                "the agent on the host applies HostSettings alone, and the update has the updater {} as well",
                other.updater
            );
            return Some(Standing::failed("HostSettingsNotSupported", why));
        }
        if let Some(failed) = self.unissuable_certificates().or_else(|| self.unreachable_channel())
        {
            return Some(failed);
        }
        if self.workers.has_agent() && !self.workers.host.has_work() {
            return Some(nothing_to_do());
        }
        let goal = self.s.update.spec.goal.kubernetes_version.as_ref()?;
        // Without a kubelet version the goal cannot be checked.
        let hop = self.status.from_version.as_ref()?.hop_to(goal);
        if hop == Hop::Downgrade && !self.s.owner_version.is(goal) {
            return Some(Standing::failed(
                "DowngradeNotAsked",
                format!(
                    "{goal} is older than the node's version, and the owner does not request it"
                ),
            ));
        }
        let too_far = matches!(hop, Hop::TooFar { .. } | Hop::OtherMajor);
        (too_far && self.control_plane()).then(|| {
            Standing::failed(
                "SkipsMinor",
                format!(
                    "{goal} is more than one minor version ahead, which kubeadm rejects; upgrade \
                     one minor version at a time"
                ),
            )
        })
    }

    /// The end of an update that is to apply HostSettings that have changed since: a newer one applies them.
    pub(super) fn superseded_settings(&self) -> Option<Standing> {
        let wanted = self.s.update.spec.goal.host_settings.as_ref()?;
        let known = self.s.settings_refused.is_none();
        let differ = known && *wanted != SettingHashes::of(&self.s.settings).hash();
        differ.then(|| {
            Standing::stopped(
                SUPERSEDED,
                "the HostSettings of this machine have changed since the update was created; a newer NodeUpdate applies \
                 them, or the next upgrade",
            )
        })
    }

    /// The same for a channel, of which only the minor version is known.
    fn unreachable_channel(&self) -> Option<Standing> {
        let option = self.s.update.spec.goal.option.as_ref()?;
        let goal = option.minor_version()?;
        let from = self.status.from_version.as_ref()?;
        if goal.minor_below(from) {
            let why = format!("{option} is older than the node's version {from}");
            return Some(Standing::failed("DowngradeNotAsked", why));
        }
        let skips = from.next_minor_zero().minor_below(&goal) && self.control_plane();
        skips.then(|| {
            let why = format!(
                "{option} is more than one minor version ahead of {from}; upgrade a control plane one minor version \
                 at a time"
            );
            Standing::failed("SkipsMinor", why)
        })
    }

    /// What prevents any work from starting.
    pub(super) fn common_refusal(&self) -> Option<Refusal> {
        if let Some(older) = self.older_unfinished() {
            let node_update = older.metadata.name.clone().unwrap_or_default();
            return Some(if is_held_before_drain(older) {
                Refusal::UntilReached { node_update, hold: Hold::AfterUpgrade }
            } else {
                Refusal::OlderUpdateUnfinished { node_update }
            });
        }
        if let Some(refusal) = self.pause_refusal() {
            return Some(refusal);
        }
        if let Some(stopped) = self.stopped_rollout() {
            return Some(stopped);
        }
        match &self.s.group {
            GroupState::None => {
                return Some(Refusal::NoGroup { machine: self.machine_name().to_owned() });
            }
            GroupState::Missing => return Some(Refusal::GroupNotReady),
            GroupState::Present(_) => {}
        }
        self.s.updater_refused.clone()
    }

    /// What prevents the work on the host from starting.
    pub(super) fn start_refusal(&self) -> Option<Refusal> {
        self.common_refusal()
            .or_else(|| self.s.settings_refused.clone())
            .or_else(|| self.two_os_images())
            .or_else(|| self.two_os_packages())
            .or_else(|| self.configuration_conflict())
            .or_else(|| self.configuration_changed())
            .or_else(|| self.would_be_replaced())
            .or_else(|| self.preflight()?.refusal(Point::Prepare))
            .or_else(|| self.silent_agent())
            .or_else(|| self.unreadable_host())
            .or_else(|| self.packages_without_image())
            .or_else(|| self.workers.start_refusal(self.s, &self.status.node_name, self.role()))
    }

    /// The refusal for a machine whose rollout has stopped. One that is down already is repaired.
    fn stopped_rollout(&self) -> Option<Refusal> {
        match &self.s.group {
            GroupState::Present(group) if !self.holds_slot() => {
                let rollout = RolloutKey::of(&self.s.update.spec, &group.pace);
                group::start_refusal(&group.status, &group.pace, self.candidate(rollout.as_ref()))
            }
            GroupState::Present(_) | GroupState::None | GroupState::Missing => None,
        }
    }

    /// What an operator has asked for: this machine does not begin, nor any of its group or cluster.
    pub(super) fn pause_refusal(&self) -> Option<Refusal> {
        let paused = self.s.paused.clone().map(|object| Refusal::Paused { object });
        paused.or_else(|| self.exception().map(Refusal::from))
    }

    /// Whether the machine is held or skipped, and has not begun.
    fn exception(&self) -> Option<Exception> {
        match &self.s.group {
            // What was upgraded by hand is only verified.
            GroupState::Present(group) if !self.holds_slot() && !self.s.update.spec.adopts() => {
                let rollout = RolloutKey::of(&self.s.update.spec, &group.pace);
                let number = RolloutKey::number_of(rollout.as_ref(), &group.status);
                group::exception_of(self.s.own_machine()?, &group.pace.pacing, number)
            }
            GroupState::Present(_) | GroupState::None | GroupState::Missing => None,
        }
    }

    pub(super) fn candidate<'a>(&'a self, rollout: Option<&'a RolloutKey>) -> Candidate<'a> {
        let machine = &self.s.update.spec.machine_ref;
        let found = self.s.machine.as_deref();
        let created = found.and_then(|machine| machine.metadata.creation_timestamp.as_ref());
        Candidate {
            machine: &machine.name,
            machine_uid: &machine.uid,
            created: created.map(|created| created.0),
            rollout,
        }
    }

    /// A plan has the values that its goal was made of.
    fn configuration_changed(&self) -> Option<Refusal> {
        let machine = self.s.own_machine()?;
        let why = self.workers.host.configuration_differs(self.s)?;
        let config = &machine.spec.bootstrap.config_ref;
        let object = config.as_ref().map_or_else(
            || format!("Machine {}", self.machine_name()),
            |config| format!("{} {}", config.kind, config.name),
        );
        Some(Refusal::ConfigurationChanged { object, why })
    }

    fn older_unfinished(&self) -> Option<&NodeUpdate> {
        self.same_machine().find(|other| is_unfinished(other) && is_newer(&self.s.update, other))
    }

    /// The refusal for a host whose agent has not reported recently.
    pub(super) fn silent_agent(&self) -> Option<Refusal> {
        self.is_silent().then(|| Refusal::NoFreshReport { node: self.status.node_name.clone() })
    }

    /// The refusal for a host whose agent cannot read some facts: a plan would rest on none, or old ones.
    fn unreadable_host(&self) -> Option<Refusal> {
        let why = self.workers.host.unread().filter(|_| self.workers.has_agent())?;
        Some(Refusal::HostUnreadable { node: self.status.node_name.clone(), why })
    }

    /// The refusal while an updater that is to work does not get on. An agent that has done its part may be off.
    pub(super) fn working_refusal(&self) -> Option<Refusal> {
        let agent_ended = self.workers.host.report().is_some_and(|report| report.has_ended());
        let silent = if agent_ended && !self.workers.providers.is_empty() {
            None
        } else {
            self.silent_agent()
        };
        silent.or_else(|| self.provider_refusal())
    }

    /// What prevents the machine from being disturbed, or only changed, apart from slots.
    pub(super) fn disturb_refusal(&self) -> Option<Refusal> {
        let preflight = self.preflight()?;
        if !self.disruption().takes_slot() {
            // It takes nothing from others, so they may be down.
            return self.would_be_replaced().or_else(|| preflight.refusal_to_touch());
        }
        let counts_others = self.holds_slot() && !self.is_down_already();
        // A claim checks the rest in its turn.
        let rest = || counts_others.then(|| preflight.refusal_at(Point::Claim)).flatten();
        let replaced = self.would_be_replaced();
        replaced.or_else(|| preflight.refusal(Point::Disturb)).or_else(rest)
    }

    /// Cluster API deletes a control plane machine that is outdated, has no mark of an update and fails the
    /// preflight checks alone, as it does while its components restart
    /// (`docs/facts/control-plane.md#preflight`). Only an update by hand begins without the mark.
    fn would_be_replaced(&self) -> Option<Refusal> {
        let is_undisturbed = self.status.phase.is_undisturbed() && !self.s.update.spec.adopts();
        let owner = self.s.replacer.as_ref().filter(|_| is_undisturbed && self.control_plane())?;
        let machine = self.s.own_machine().filter(|machine| !update_in_progress(*machine))?;
        let conditions = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let shown = conditions::get(conditions, conditions::UP_TO_DATE);
        // An owner that has not observed its spec may find the machine outdated when it does.
        let is_outdated = !owner.has_observed
            || machine.spec.version != self.s.owner_version
            || shown.is_some_and(|shown| shown.status == "False");
        is_outdated.then(|| Refusal::WouldBeReplaced {
            machine: self.machine_name().to_owned(),
            owner: owner.object.clone(),
        })
    }

    /// What the checks of the preflight read; `None` without a Machine.
    pub(super) fn preflight(&self) -> Option<Preflight<'_>> {
        Some(Preflight {
            machine: self.s.own_machine()?,
            node: &self.status.node_name,
            control_plane: self.control_plane(),
            goal: self.goal_version.as_ref(),
            workload: &self.s.workload,
            group: match &self.s.group {
                GroupState::Present(group) => Some(group),
                GroupState::None | GroupState::Missing => None,
            },
            drain: self.will_drain(),
            begun: match (self.holds_slot(), self.was_held()) {
                (false, _) => Begun::No,
                (true, true) => Begun::Held,
                (true, false) => Begun::Slot,
            },
            now: self.now,
        })
    }

    /// How the update drains the node; `None` if pods stay.
    fn will_drain(&self) -> Option<&DrainPolicy> {
        self.disruption().drains().then_some(&self.s.drain.policy)
    }

    /// Whether the update was held, with its slot, while the machine was up: a node that is down since
    /// then is not down because of an update.
    fn was_held(&self) -> bool {
        let of_hold =
            [RefusalReason::UntilReached, RefusalReason::NodeNotReady, RefusalReason::NodeCordoned];
        self.status.blocked_by.iter().any(|blocker| {
            of_hold
                .into_iter()
                .any(|reason| Reason::of(&blocker.reason) == Some(Reason::Update(reason)))
        })
    }

    /// Whether an older update has left the worker cordoned: only this update ends that, and it takes no
    /// further machine from the group. A node that is not Ready may return by itself.
    pub(super) fn is_down_already(&self) -> bool {
        !self.control_plane() && self.seen.node().is_some_and(NodeView::cordoned_by_us)
    }

    pub(super) fn holds_slot(&self) -> bool {
        let uid = &self.s.update.spec.machine_ref.uid;
        match &self.s.group {
            GroupState::Present(group) => group::holds(&group.status, uid),
            GroupState::None | GroupState::Missing => false,
        }
    }
}
