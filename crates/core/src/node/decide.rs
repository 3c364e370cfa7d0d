//! The phase of an update, and its next write.

use jiff::Timestamp;
use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{Gate, NodeName, NodeUpdateStatus, Phase, StepState, Until};

use super::{
    drain::DRAIN_LINE,
    end,
    gate::nothing_to_do,
    guard, health,
    host::settings_after,
    objects::short,
    order::newest_upgrade,
    preflight::{no_node, workload_refusal},
    seen::{Seen, Workload},
    snapshot::{Decision, ManagementWrite, Providers, Snapshot, WorkloadWrite, Write},
    status::{Standing, conclude, reached},
    steps::{self, STEP_CORDON, STEP_NODE_READY, STEP_UNCORDON},
    stop::{ABORT, Stop, deletion_overdue, machine_gone, stopped_by_deletion},
    verify::{not_serving, seconds_to_settle, static_pods_unsettled, verify},
    work::Work,
    work_order::{WorkOrder, WorkState},
};
use crate::report::{Hold, Refusal};

/// Decides the next write for a NodeUpdate.
///
/// ```text
/// final?                -> clean up after it (end.rs)
/// to be stopped?        -> stop the host, then Stopped
/// no plan on the host   -> checks, slot (control plane), role, plan with gate Stage
/// gate Stage            -> staged? spec.until, checks, slot, guard, gate Upgrade
/// gate Upgrade          -> upgraded? spec.until, must the host boot?, cordon, evict, gate Disrupt
/// gate Disrupt          -> ended? verify, uncordon, Succeeded
/// ```
///
/// Nothing is cordoned or evicted in an update that does not drain its node, and one that does not disturb its machine takes
/// neither slot nor guard.
pub fn decide(s: &Snapshot, now: Timestamp) -> Decision {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut status = s.update.status.clone().unwrap_or_default();
    if status.phase.is_final() {
        return end::after_end(s, status, now);
    }
    let seen = match &s.workload {
        Workload::Seen(seen) => seen,
        Workload::NotSynced | Workload::Unreachable { .. } | Workload::TooLarge { .. } => {
            let Some(refusal) = workload_refusal(&s.workload) else {
                return not_synced(s, status, now);
            };
            let outcome = unreachable(s, &status, refusal, now);
            return conclude(s, status, outcome, now);
        }
    };
    note_beginning(s, seen, &mut status);
    let mut work = Work::new(s, seen, status, now);
    let are_known = matches!(s.providers, Providers::Known(_));
    if let Some(stopping) = (!are_known).then(|| work.stops_before_providers()).flatten() {
        return conclude(s, work.status, stopping, now);
    }
    match &s.providers {
        Providers::Known(_) => {}
        Providers::NotSynced => return not_synced(s, work.status, now),
        Providers::Unusable(refusal) => {
            let outcome = unreachable(s, &work.status, refusal.clone(), now);
            return conclude(s, work.status, outcome, now);
        }
    }
    let outcome = work.outcome();
    work.show_cordon();
    conclude(s, work.status, outcome, now)
}

/// The first lists are not complete: nothing is written, except that a deletion does not wait
/// forever for a cluster that cannot be read.
fn not_synced(s: &Snapshot, status: NodeUpdateStatus, now: Timestamp) -> Decision {
    let overdue = s.own_machine().filter(|machine| deletion_overdue(machine, s, now));
    if let Some(machine) = overdue {
        return conclude(s, status, stopped_by_deletion(machine), now);
    }
    Decision {
        status,
        write: None,
        announce: Vec::new(),
        blockers: Vec::new(),
        requeue: Some(std::time::Duration::from_secs(1)),
    }
}

fn unreachable(
    s: &Snapshot,
    status: &NodeUpdateStatus,
    refusal: Refusal,
    now: Timestamp,
) -> Standing {
    match s.own_machine() {
        None => machine_gone(s),
        Some(machine) if deletion_overdue(machine, s, now) => stopped_by_deletion(machine),
        Some(_) => Standing::blocked(status.phase, refusal).again_after(10),
    }
}

/// Records facts from the beginning of the update that cannot be read later.
fn note_beginning(s: &Snapshot, seen: &Seen, status: &mut NodeUpdateStatus) {
    let node = s
        .own_machine()
        .and_then(|machine| machine.status.as_ref()?.node_ref.as_ref())
        .map(|node_ref| NodeName::from(&*node_ref.name));
    if status.node_name.is_empty() {
        status.node_name = node.unwrap_or_default();
    }
    if status.from_version.is_none()
        && let Some(node) = seen.node()
    {
        status.from_version = node.kubelet_version.version().cloned();
    }
}

impl Work<'_> {
    fn outcome(&mut self) -> Standing {
        let Some(machine) = self.s.own_machine() else {
            let ended = self.workers.report().is_some_and(|report| report.has_ended());
            return match self.workers.order(ABORT).filter(|_| !ended) {
                Some(write) => {
                    Standing::new(Phase::Stopping, "the Machine was deleted").write(Some(write))
                }
                None => machine_gone(self.s),
            };
        };
        self.list_parts();
        self.mirror_host();
        let gate = self.gate();
        let stop = self.stop(machine, gate);
        // A deletion has a deadline of its own.
        if !matches!(stop, Some(Stop::Deleting))
            && let Some(lost) = self.host_lost()
        {
            return lost;
        }
        if !matches!(stop, Some(Stop::Deleting))
            && let Some(failed) = self.provider_vanished().or_else(|| self.provider_timed_out())
        {
            // Who comes back must not go on.
            let abort = self.workers.order(ABORT);
            return match abort {
                Some(_) => Standing::new(self.status.phase, "stopping the updaters").write(abort),
                None => failed,
            };
        }
        if let Some(stop) = stop {
            return self.stopping(machine, &stop);
        }
        if let Some(refusal) = no_node(machine, &self.status.node_name) {
            return Standing::blocked(Phase::Pending, refusal);
        }
        if !self.s.update.spec.has_workers() {
            return self.without_host(machine);
        }
        if let Some(ended) = self.gave_up() {
            return ended;
        }
        if let Some(refusal) = self.provider_deleting() {
            return Standing::blocked(self.status.phase, refusal).again_after(10);
        }
        if self.workers.awaits_first_order() {
            return self.start();
        }
        match gate {
            Gate::Closed | Gate::Stage => self.staged(machine),
            Gate::Upgrade => self.upgraded(machine),
            Gate::Disrupt => self.disrupted(machine),
        }
    }

    /// The host has no plan of this NodeUpdate yet.
    fn start(&mut self) -> Standing {
        if let Some(failed) = self.unreachable_goal() {
            return failed;
        }
        if let Some(superseded) = self.superseded_settings() {
            return superseded;
        }
        if let Some(refusal) = self.start_refusal() {
            return self.wait_for_older(Phase::Pending, refusal);
        }
        if self.is_back() && self.has_no_updaters() {
            let goal = self.s.update.spec.target();
            let back =
                format!("the machine runs {goal}: an update to another version was rolled back");
            let done = Standing::new(Phase::Succeeded, back);
            return self.serve_again(Phase::Uncordoning).unwrap_or(done);
        }
        if self.control_plane() && self.disruption().takes_slot() {
            if let Some(refusal) = self.disturb_refusal() {
                return self.wait(Phase::Waiting, refusal);
            }
            match self.claim() {
                Err(refusal) => return self.wait(Phase::Waiting, refusal),
                Ok(Some(claim)) => {
                    return Standing::new(self.status.phase, "a slot is claimed")
                        .write(Some(claim));
                }
                Ok(None) => {}
            }
        }
        let role = self.role();
        self.status.role = Some(role);
        if !self.workers.providers.is_empty() {
            match self.ask_updaters() {
                Err(refusal) => return self.wait(Phase::Pending, refusal),
                Ok(Some(ask)) => {
                    return Standing::new(self.status.phase, "asking the Updaters")
                        .write(Some(ask));
                }
                Ok(None) => {}
            }
        }
        let first = self.workers.first_order(self.s, &self.status.node_name, role, &self.status);
        let Some((planned, order)) = first else {
            return nothing_to_do();
        };
        let all: Vec<_> = planned.into_iter().chain(self.part_steps()).collect();
        steps::mirror(&mut self.status, &all);
        if matches!(order, Write::HostPlan(_)) {
            self.status.host_settings = settings_after(self.s);
        }
        let line = match &order {
            Write::Provider(order) => {
                format!("sending the order to the provider of {}", order.updater)
            }
            Write::HostPlan(_)
            | Write::Management(_)
            | Write::Workload(_)
            | Write::OlderProvider(..)
            | Write::AskUpdater(_)
            | Write::Updater(_) => "sending the plan to the host".to_owned(),
        };
        Standing::new(self.status.phase, line).write(Some(order))
    }

    /// Waits; work of another NodeUpdate that is in the way is stopped.
    pub(super) fn wait_for_older(&self, phase: Phase, refusal: Refusal) -> Standing {
        let is_older = matches!(refusal, Refusal::OlderPlanRunning { .. });
        let orphan = is_older.then(|| self.workers.abort_orphan(&self.s.siblings)).flatten();
        let waiting = self.wait(phase, refusal);
        match orphan {
            Some(write) => waiting.write(Some(write)),
            None => waiting,
        }
    }

    /// Whether the goal is what the host has been since its last update was rolled back.
    fn is_back(&self) -> bool {
        let goal = &self.s.update.spec.goal;
        // The node shows nothing of what upkeep does, and what became of that nothing of its version.
        let newest = newest_upgrade(self.same_machine(), &self.s.update.spec.machine_ref.uid);
        let shows = !self.s.update.spec.is_upkeep();
        shows
            && newest.is_some_and(|last| self.workers.for_update(last).ended_rolled_back())
            && self
                .seen
                .node()
                .is_some_and(|node| node.ready && goal.accepts(&node.kubelet_version))
    }

    /// The host has the plan, and nothing has been disturbed yet.
    fn staged(&mut self, machine: &Machine) -> Standing {
        if self.passed() < Gate::Stage {
            return self.host_at_work(Phase::Staging);
        }
        let held = self.until_refusal(Gate::Upgrade);
        let takes_slot = self.disruption().takes_slot();
        if let (Some(refusal), true) = (&held, self.control_plane() && takes_slot) {
            return self.held_with_slot(refusal.clone());
        }
        // The view may have lacked it at the start.
        if let Some(refusal) = self.workers.older_provider(&self.status.node_name) {
            return self.wait_for_older(Phase::Waiting, refusal);
        }
        let refusal = self.pause_refusal().or(held).or_else(|| self.disturb_refusal());
        if let Some(refusal) = refusal {
            return self.wait(Phase::Waiting, refusal);
        }
        let begun = self.status.phase != Phase::Pending;
        let phase = if begun { self.status.phase } else { Phase::Waiting };
        let ready = |write| Standing::new(phase, "the host is ready").write(write);
        match self.claim() {
            Err(refusal) => return self.wait(Phase::Waiting, refusal),
            Ok(Some(claim)) => return ready(Some(claim)),
            Ok(None) => {}
        }
        let missing = guard::set(machine, self.s.unguarded);
        if takes_slot && !missing.is_empty() {
            return ready(Some(Write::Management(ManagementWrite::Guard(missing))));
        }
        ready(self.workers.order(open(Gate::Upgrade)))
    }

    /// kubeadm may run; then the node is drained.
    fn upgraded(&mut self, machine: &Machine) -> Standing {
        let has_passed = self.passed() >= Gate::Upgrade;
        if let Some(working) = has_passed.then(|| self.updaters(Gate::Upgrade)).flatten() {
            return match self.keep_claims(machine) {
                Some(write) => self.host_at_work(Phase::Upgrading).write(Some(write)),
                None => working,
            };
        }
        let may_wait = !self.control_plane()
            && has_passed
            && steps::state_of(&self.status, STEP_CORDON) == StepState::Pending;
        if let Some(refusal) = may_wait.then(|| self.until_refusal(Gate::Disrupt)).flatten() {
            return self.held_before_drain(machine, refusal);
        }
        if let Some(write) = self.keep_claims(machine) {
            return self.host_at_work(Phase::Upgrading).write(Some(write));
        }
        if self.passed() < Gate::Upgrade {
            return self.next_at_work(Phase::Upgrading, Gate::Upgrade);
        }
        if let Some(raising) = self.raise_to_boot() {
            return raising;
        }
        let disruption = self.disruption();
        let phase = if disruption.drains() { Phase::Draining } else { Phase::Upgrading };
        // Before each step of the drain, too: it would prepare an outage that must not happen.
        if self.control_plane()
            && disruption.takes_slot()
            && let Err(refusal) = health::control_plane_health(self.seen, &self.status.node_name)
        {
            return Standing::blocked(phase, refusal).again_after(10);
        }
        let line = if !disruption.drains() {
            self.note_drain();
            "the node is not drained: its pods stay"
        } else if let Some(waiting) = self.drain() {
            return waiting;
        } else {
            DRAIN_LINE
        };
        Standing::new(phase, line).write(self.workers.order(open(Gate::Disrupt)))
    }

    /// The host may run every step; then the node must be Ready again.
    fn disrupted(&mut self, machine: &Machine) -> Standing {
        let now = self.now;
        let disruption = self.disruption();
        self.note_drain();
        if let Some(write) = self.keep_claims(machine) {
            return self.host_at_work(Phase::Disrupting).write(Some(write));
        }
        if self.workers.report().is_none_or(|report| report.state != WorkState::Succeeded) {
            return self.next_at_work(Phase::Disrupting, Gate::Disrupt);
        }
        self.end_host_parts();
        if let Some(working) = self.updaters(Gate::Disrupt) {
            return working;
        }
        steps::advance(&mut self.status, STEP_NODE_READY, StepState::Running, now, "");
        let spec = &self.s.update.spec;
        // Only what brings a machine to a version makes that true.
        let goal = spec.goal.kubernetes_version.as_ref().filter(|_| spec.ends_at_version());
        let node_name = self.status.node_name.clone();
        let workers = Some(&self.workers);
        let verified = verify(self.seen, &node_name, goal, self.control_plane(), workers, now);
        let by_provider = !self.workers.providers.is_empty();
        let not_rebooted = || by_provider.then(|| self.not_rebooted()).flatten();
        let is_disturbed_member = self.control_plane() && disruption.takes_slot();
        let of_no_version = is_disturbed_member && goal.is_none();
        let unready = || of_no_version.then(|| not_serving(self.seen, &node_name)).flatten();
        if let Some(refusal) = verified.err().or_else(not_rebooted).or_else(unready) {
            let lost = (!self.workers.has_agent()).then(|| self.node_lost(&refusal)).flatten();
            return lost
                .unwrap_or_else(|| Standing::blocked(Phase::Verifying, refusal).again_after(10));
        }
        let since = steps::started(&self.status, STEP_NODE_READY);
        if is_disturbed_member
            && steps::state_of(&self.status, STEP_NODE_READY) == StepState::Running
            && let Some(seconds) = since.and_then(|since| seconds_to_settle(since, now))
        {
            let after = if disruption.drains() { "its kubelet's restart" } else { "their restart" };
            let refusal = static_pods_unsettled(node_name, after);
            return Standing::blocked(Phase::Verifying, refusal).again_after(seconds);
        }
        self.end_serving()
    }

    /// The machine is as the goal wants it: it takes pods again.
    pub(super) fn end_serving(&mut self) -> Standing {
        let now = self.now;
        steps::advance(&mut self.status, STEP_NODE_READY, StepState::Done, now, "");
        if let Some(next) = self.serve_again(Phase::Uncordoning).or_else(|| self.note_expiry()) {
            return next;
        }
        let ran = steps::state_of(&self.status, STEP_UNCORDON) == StepState::Running;
        let (end, why) = if ran {
            (StepState::Done, "")
        } else {
            (StepState::Skipped, "Refit did not cordon the node")
        };
        steps::advance(&mut self.status, STEP_UNCORDON, end, now, why);
        Standing::new(Phase::Succeeded, reached(&self.s.update, &self.status))
    }

    /// Returns the node to its load balancers and makes it schedulable, if Refit changed either. Upkeep repairs
    /// nothing that an upgrade has left.
    pub(super) fn serve_again(&mut self, phase: Phase) -> Option<Standing> {
        let node = self.seen.node()?;
        let spec = &self.s.update.spec;
        let own = self.s.update.metadata.name.as_deref().map(short);
        let ends = |by: &String| !spec.is_upkeep() || Some(by) == own.as_ref();
        if node.excluded_by.as_ref().is_some_and(ends) {
            let line = "adding the node to its load balancers again";
            let include = Write::Workload(WorkloadWrite::Include);
            return Some(Standing::new(phase, line).write(Some(include)));
        }
        // The note decides, not the cordon: an admin may have uncordoned the node meanwhile.
        node.cordoned_by.as_ref().filter(|by| ends(by))?;
        steps::advance(&mut self.status, STEP_UNCORDON, StepState::Running, self.now, "");
        let uncordon = Write::Workload(WorkloadWrite::Uncordon);
        Some(Standing::new(phase, "uncordoning the node").write(Some(uncordon)))
    }

    /// Waits for the updater whose gate is open, or opens that of the next one: then the other members of a
    /// control plane must be as they were before the first.
    fn next_at_work(&self, phase: Phase, gate: Gate) -> Standing {
        let next = self.workers.order(open(gate));
        if next.is_some()
            && self.control_plane()
            && let Err(refusal) = health::control_plane_health(self.seen, &self.status.node_name)
        {
            return Standing::blocked(phase, refusal).again_after(10);
        }
        self.host_at_work(phase).write(next)
    }

    /// The stop of an update for which no provider has had an order yet, while they cannot be reached.
    fn stops_before_providers(&mut self) -> Option<Standing> {
        if self.status.parts.iter().any(|part| part.gate.is_some()) {
            return None;
        }
        let machine = self.s.own_machine()?;
        let stop = self.stop(machine, self.gate())?;
        Some(self.stopping(machine, &stop))
    }

    /// Waits for the host. A silent agent becomes a blocker, because the progress message would
    /// otherwise never change.
    fn host_at_work(&self, phase: Phase) -> Standing {
        match self.working_refusal() {
            Some(refusal) => Standing::blocked(phase, refusal),
            None => Standing::new(phase, self.host_line()),
        }
    }

    /// The refusal to go on to a gate that `spec.until` excludes.
    pub(super) fn until_refusal(&self, gate: Gate) -> Option<Refusal> {
        let until = self.s.update.spec.until;
        let hold = match until {
            Until::Stage | Until::Upgrade if self.control_plane() => Hold::ControlPlane,
            Until::Stage => Hold::AfterStage,
            Until::Upgrade | Until::Disrupt => Hold::AfterUpgrade,
        };
        let excluded = hold == Hold::ControlPlane || gate > until.gate();
        excluded.then(|| Refusal::UntilReached {
            node_update: self.s.update.metadata.name.clone().unwrap_or_default(),
            hold,
        })
    }

    /// Waits with the slot: the role of a control plane machine is certain only while it has it.
    fn held_with_slot(&self, refusal: Refusal) -> Standing {
        let ready = self.seen.node().is_some_and(|node| node.ready);
        let down = || Refusal::NodeNotReady { node: self.status.node_name.clone() };
        match self.claim() {
            Err(busy) => Standing::blocked(Phase::Waiting, busy).again_after(10),
            Ok(claim) => {
                let blocker = if ready { refusal } else { down() };
                Standing::blocked(Phase::Waiting, blocker).write(claim)
            }
        }
    }

    /// Waits before the drain, with the slot. A node that goes down meanwhile is down by itself: it is
    /// left to remediation.
    fn held_before_drain(&self, machine: &Machine, refusal: Refusal) -> Standing {
        let ready = self.seen.node().is_some_and(|node| node.ready);
        let node = || self.status.node_name.clone();
        let down = (!ready).then(|| Refusal::NodeNotReady { node: node() });
        let write = if ready {
            self.keep_claims(machine)
        } else {
            let left = guard::remove(machine);
            let unguard = || Write::Management(ManagementWrite::Unguard(left.clone()));
            self.reclaim().or_else(|| (!left.is_empty()).then(unguard))
        };
        let blocker = self.silent_agent().or(down).unwrap_or(refusal);
        Standing::blocked(Phase::Upgrading, blocker).write(write)
    }
}

fn open(gate: Gate) -> WorkOrder {
    WorkOrder { gate, abort: false }
}
