//! Where an update stands, and its one next write.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_api::{
    capi::Machine,
    keys,
    refit::{
        Gate, HostPlan, HostPlanSpec, HostPlanStatus, NodeUpdate, NodeUpdateStatus, Phase,
        PlanState, PlannedStep, Role, Slot, Stage, StepState,
    },
};

use super::{
    drain::{another_could_take, evictable},
    end, gate, guard, plan,
    role::decide_role,
    snapshot::{Decision, GroupView, PodRef, Seen, Snapshot, Workload, Write},
    status::{Outcome, conclude, is_about},
    steps::{self, STEP_CORDON, STEP_DRAIN, STEP_NODE_READY, STEP_UNCORDON},
    verify::verify,
};
use crate::{group, report::Refusal};

/// What a draining update says of itself while nothing blocks it.
const DRAIN_LINE: &str = "pods leave the node";

/// Decides what is to be done about a NodeUpdate.
///
/// ```text
/// final?                  -> clean up after it (end.rs)
/// to be stopped?          -> stop the host, then Stopped
/// no plan on the host     -> checks, slot (control plane), role, plan with gate Stage
/// gate Stage              -> staged? checks, slot, guard, gate Upgrade
/// gate Upgrade            -> upgraded? cordon, evict, gate Disrupt
/// gate Disrupt            -> ended? verify, uncordon, Succeeded
/// ```
pub fn decide(s: &Snapshot<'_>, now: Timestamp) -> Decision {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut status = s.update.status.clone().unwrap_or_default();
    if status.phase.is_final() {
        return end::after_end(s, status, now);
    }
    let seen = match &s.workload {
        Workload::Seen(seen) => seen,
        Workload::NotSynced => return hold(status),
        Workload::Unreachable { cluster } => {
            let outcome = unreachable(s, &status, cluster, now);
            return conclude(s, status, outcome, now);
        }
    };
    note_beginning(s, seen, &mut status);
    let mut work = Work { s, seen, status, now };
    let outcome = work.outcome();
    work.show_cordon();
    conclude(s, work.status, outcome, now)
}

/// Nothing is known yet: nothing is written.
fn hold(status: NodeUpdateStatus) -> Decision {
    Decision {
        status,
        write: None,
        announce: Vec::new(),
        blockers: Vec::new(),
        requeue: Some(std::time::Duration::from_secs(1)),
    }
}

fn unreachable(
    s: &Snapshot<'_>,
    status: &NodeUpdateStatus,
    cluster: &str,
    now: Timestamp,
) -> Outcome {
    match s.machine.filter(|machine| is_about(s, machine)) {
        None => gone(s),
        Some(machine) if deletion_overdue(machine, s, now) => stopped_by_deletion(machine),
        Some(_) => {
            let refusal = Refusal::ApiUnreachable { cluster: cluster.to_owned() };
            Outcome::blocked(status.phase, refusal).again_after(10)
        }
    }
}

/// Notes what was there when the update began: it cannot be read off later.
fn note_beginning(s: &Snapshot<'_>, seen: &Seen<'_>, status: &mut NodeUpdateStatus) {
    let node = s
        .machine
        .filter(|machine| is_about(s, machine))
        .and_then(|machine| machine.status.as_ref()?.node_ref.as_ref())
        .map(|node_ref| node_ref.name.clone());
    if status.node_name.is_empty() {
        status.node_name = node.unwrap_or_default();
    }
    if status.from_version.is_empty()
        && let Some(node) = seen.node
    {
        status.from_version.clone_from(&node.kubelet_version);
    }
}

/// Everything that the parts of a decision look at.
pub(super) struct Work<'w, 'a> {
    pub(super) s: &'w Snapshot<'a>,
    pub(super) seen: &'w Seen<'a>,
    pub(super) status: NodeUpdateStatus,
    pub(super) now: Timestamp,
}

/// Why work is to stop.
enum Stop {
    Aborted,
    Superseded(String),
    Deleting,
}

impl<'a> Work<'_, 'a> {
    fn outcome(&mut self) -> Outcome {
        let Some(machine) = self.s.machine.filter(|machine| is_about(self.s, machine)) else {
            let abort = self.ours().filter(|plan| !gate::host_ended(plan));
            return match abort.and_then(abort_write) {
                Some(write) => {
                    Outcome::new(Phase::Stopping, "the Machine is gone").write(Some(write))
                }
                None => gone(self.s),
            };
        };
        self.mirror_host();
        let gate = self.gate();
        if let Some(stop) = self.stop(machine, gate) {
            return self.stopping(machine, &stop);
        }
        if self.status.node_name.is_empty() {
            let machine = self.machine_name().to_owned();
            return Outcome::blocked(Phase::Pending, Refusal::NoNode { machine });
        }
        let Some(plan) = self.ours() else {
            return self.start();
        };
        if let Some(ended) = self.host_gave_up(plan) {
            return ended;
        }
        match gate {
            Gate::Closed | Gate::Stage => self.staged(plan, machine),
            Gate::Upgrade => self.upgraded(plan, machine),
            Gate::Disrupt => self.disrupted(plan, machine),
        }
    }

    /// No plan of ours is on the host yet.
    fn start(&mut self) -> Outcome {
        if let Some(hopeless) = self.hopeless() {
            return hopeless;
        }
        if let Some(refusal) = self.start_refusal() {
            let orphan = match refusal {
                Refusal::OlderPlanRunning { .. } => self.abort_orphan(),
                _ => None,
            };
            let waiting = self.wait(Phase::Pending, refusal);
            return match orphan {
                Some(write) => waiting.write(Some(write)),
                None => waiting,
            };
        }
        if self.control_plane() {
            if let Some(refusal) = self.disturb_refusal() {
                return self.wait(Phase::Waiting, refusal);
            }
            match self.claim() {
                Err(refusal) => return self.wait(Phase::Waiting, refusal),
                Ok(Some(claim)) => {
                    return Outcome::new(self.status.phase, "a slot is claimed").write(Some(claim));
                }
                Ok(None) => {}
            }
        }
        let role = self.role();
        self.status.role = Some(role);
        let spec = HostPlanSpec {
            node_update: self.s.update.metadata.name.clone().unwrap_or_default(),
            plan_id: self.s.update.metadata.uid.clone().unwrap_or_default(),
            gate: Gate::Stage,
            abort: false,
            steps: self.new_steps(self.seen.host_plan, role),
        };
        steps::mirror(&mut self.status, &spec.steps, None);
        Outcome::new(self.status.phase, "the host is given its plan")
            .write(Some(Write::HostPlan(spec)))
    }

    /// The plan is on the host, and nothing is disturbed yet.
    fn staged(&mut self, plan: &HostPlan, machine: &Machine) -> Outcome {
        if self.passed() < Gate::Stage {
            return Outcome::new(Phase::Staging, self.host_line());
        }
        let refusal = self.pause_refusal().or_else(|| self.disturb_refusal());
        if let Some(refusal) = refusal {
            return self.wait(Phase::Waiting, refusal);
        }
        let phase = self.status.phase.max(Phase::Waiting);
        let ready = |write| Outcome::new(phase, "the host is ready").write(Some(write));
        match self.claim() {
            Err(refusal) => return self.wait(Phase::Waiting, refusal),
            Ok(Some(claim)) => return ready(claim),
            Ok(None) => {}
        }
        let missing = guard::set(machine);
        if !missing.is_empty() {
            return ready(Write::Guard(missing));
        }
        ready(raised(plan, Gate::Upgrade))
    }

    /// kubeadm may do its part; then the node is emptied.
    fn upgraded(&mut self, plan: &HostPlan, machine: &Machine) -> Outcome {
        if let Some(write) = self.keep_claims(machine) {
            return Outcome::new(Phase::Upgrading, self.host_line()).write(Some(write));
        }
        if self.passed() < Gate::Upgrade {
            return Outcome::new(Phase::Upgrading, self.host_line());
        }
        if let Some(waiting) = self.drain() {
            return waiting;
        }
        if self.control_plane()
            && let Err(refusal) =
                super::health::control_plane_health(self.seen, &self.status.node_name)
        {
            return Outcome::blocked(Phase::Draining, refusal).again_after(10);
        }
        Outcome::new(Phase::Draining, DRAIN_LINE).write(Some(raised(plan, Gate::Disrupt)))
    }

    /// Cordons and evicts; `None` once nothing is left to wait for.
    fn drain(&mut self) -> Option<Outcome> {
        let name = self.status.node_name.clone();
        let Some(node) = self.seen.node else {
            return Some(Outcome::blocked(
                Phase::Draining,
                Refusal::NodeNotReady { node: name },
            ));
        };
        let skipped = steps::state_of(&self.status, STEP_DRAIN) == StepState::Skipped;
        if skipped || (!node.unschedulable && !another_could_take(node, self.seen.nodes)) {
            let why = "no other node could take the pods";
            for step in [STEP_CORDON, STEP_DRAIN] {
                steps::advance(&mut self.status, step, StepState::Skipped, self.now, why);
            }
            return None;
        }
        if !node.unschedulable {
            steps::advance(&mut self.status, STEP_CORDON, StepState::Running, self.now, "");
            return Some(Outcome::new(Phase::Draining, DRAIN_LINE).write(Some(Write::Cordon)));
        }
        let whose = if node.cordoned_by_us() { "" } else { "it was cordoned before" };
        steps::advance(&mut self.status, STEP_CORDON, StepState::Done, self.now, whose);
        steps::advance(&mut self.status, STEP_DRAIN, StepState::Running, self.now, "");
        let Some(pods) = self.seen.pods else {
            return Some(Outcome::new(Phase::Draining, DRAIN_LINE).again_after(1));
        };
        if evictable(pods).next().is_none() {
            return None;
        }
        let left: Vec<PodRef> =
            evictable(pods).filter(|pod| !pod.terminating).map(|pod| pod.pod.clone()).collect();
        let mut outcome = Outcome::new(Phase::Draining, DRAIN_LINE).again_after(2);
        match self.seen.evictions {
            Some(refused) => {
                outcome.blockers = refused.iter().map(|r| r.refusal.clone()).collect();
                if !outcome.blockers.is_empty() {
                    outcome = outcome.again_after(5);
                }
            }
            None if !left.is_empty() => {
                outcome.keep_eviction_blockers = true;
                outcome.write = Some(Write::Evict(left));
            }
            None => {}
        }
        Some(outcome)
    }

    /// The host may do everything; then the node must be back.
    fn disrupted(&mut self, plan: &HostPlan, machine: &Machine) -> Outcome {
        let now = self.now;
        for step in [STEP_CORDON, STEP_DRAIN] {
            steps::advance(&mut self.status, step, StepState::Done, now, "");
        }
        if let Some(write) = self.keep_claims(machine) {
            return Outcome::new(Phase::Disrupting, self.host_line()).write(Some(write));
        }
        if report(plan).is_none_or(|report| report.state != PlanState::Succeeded) {
            return Outcome::new(Phase::Disrupting, self.host_line());
        }
        steps::advance(&mut self.status, STEP_NODE_READY, StepState::Running, now, "");
        let goal = &self.s.update.spec.goal.kubernetes_version;
        let node_name = self.status.node_name.clone();
        if let Err(refusal) =
            verify(self.seen, &node_name, goal, self.control_plane(), plan)
        {
            return Outcome::blocked(Phase::Verifying, refusal).again_after(10);
        }
        steps::advance(&mut self.status, STEP_NODE_READY, StepState::Done, now, "");
        // The note counts, not the cordon: an admin may have opened the node meanwhile.
        if self.seen.node.is_some_and(|node| node.cordoned_by.is_some()) {
            steps::advance(&mut self.status, STEP_UNCORDON, StepState::Running, now, "");
            return Outcome::new(Phase::Uncordoning, "the node is opened for pods again")
                .write(Some(Write::Uncordon));
        }
        let ran = steps::state_of(&self.status, STEP_UNCORDON) == StepState::Running;
        let (end, why) = match ran {
            true => (StepState::Done, ""),
            false => (StepState::Skipped, "the node has no cordon of ours"),
        };
        steps::advance(&mut self.status, STEP_UNCORDON, end, now, why);
        Outcome::new(Phase::Succeeded, format!("the machine runs {goal}"))
    }

    /// While the machine is disturbed it holds a slot and carries the guard, whoever took them.
    fn keep_claims(&self, machine: &Machine) -> Option<Write> {
        if let Some(claim) = self.reclaim() {
            return Some(claim);
        }
        let missing = guard::set(machine);
        (!missing.is_empty()).then_some(Write::Guard(missing))
    }

    fn host_gave_up(&self, plan: &HostPlan) -> Option<Outcome> {
        let report = report(plan)?;
        match report.state {
            PlanState::Failed => {
                let step = report.steps.iter().find(|step| step.state == StepState::Failed);
                let (reason, message) = step.map_or_else(
                    || (String::new(), "the host gave no reason".to_owned()),
                    |step| (step.reason.clone(), format!("step {}: {}", step.id, step.message)),
                );
                let reason = if reason.is_empty() { "HostStepFailed".to_owned() } else { reason };
                Some(Outcome::failed(reason, message))
            }
            PlanState::Stopped => Some(Outcome::stopped(
                "HostStopped",
                "the host stopped the plan, though nobody asked this NodeUpdate to stop",
            )),
            _ => None,
        }
    }

    fn stop(&self, machine: &Machine, gate: Gate) -> Option<Stop> {
        if machine.metadata.deletion_timestamp.is_some() {
            return Some(Stop::Deleting);
        }
        let told = self.ours().is_some_and(|plan| plan.spec.abort);
        if gate >= Gate::Upgrade && !told {
            return None;
        }
        if self.s.update.spec.stage == Stage::Abort {
            return Some(Stop::Aborted);
        }
        if let Some(newer) = self
            .same_machine()
            .find(|other| is_unfinished(other) && is_newer(other, self.s.update))
        {
            return Some(Stop::Superseded(newer.metadata.name.clone().unwrap_or_default()));
        }
        (told || self.status.phase == Phase::Stopping).then_some(Stop::Aborted)
    }

    fn stopping(&self, machine: &Machine, stop: &Stop) -> Outcome {
        let stopped = match stop {
            Stop::Deleting => stopped_by_deletion(machine),
            Stop::Aborted => Outcome::stopped("Aborted", "the update was aborted as asked"),
            Stop::Superseded(by) => {
                Outcome::stopped("Superseded", format!("NodeUpdate {by} has another goal"))
            }
        };
        let Some(plan) = self.ours() else {
            return stopped;
        };
        let overdue = matches!(stop, Stop::Deleting)
            && (self.fresh_plan().is_none() || deletion_overdue(machine, self.s, self.now));
        if gate::host_ended(plan) || overdue {
            return stopped;
        }
        let outcome = match stop {
            Stop::Deleting => Outcome::blocked(
                Phase::Stopping,
                Refusal::MachineDeleting { machine: self.machine_name().to_owned() },
            ),
            _ => Outcome::new(Phase::Stopping, "the host stops at the next safe step"),
        };
        outcome.write(abort_write(plan))
    }

    fn pause_refusal(&self) -> Option<Refusal> {
        let object = self.s.paused.clone()?;
        Some(Refusal::Paused { object })
    }

    fn role(&self) -> Role {
        let last = match &self.s.group {
            GroupView::Present(group) => group.last_first_passed,
            GroupView::None | GroupView::Missing => None,
        };
        let goal = &self.s.update.spec.goal.kubernetes_version;
        self.status.role.unwrap_or_else(|| {
            decide_role(self.control_plane(), goal, last, self.seen.static_pods)
        })
    }

    /// The steps of this update: those of its plan, or of the plan that it will have.
    pub(super) fn steps_of(&self, plan: &HostPlan) -> Vec<PlannedStep> {
        if gate::is_ours(plan, self.s.update) {
            plan.spec.steps.clone()
        } else {
            self.new_steps(Some(plan), self.role())
        }
    }

    fn new_steps(&self, plan: Option<&HostPlan>, role: Role) -> Vec<PlannedStep> {
        let goal = &self.s.update.spec.goal;
        let now = plan.and_then(|plan| plan.status.as_ref()).map(|status| &status.facts.os_image);
        let reboot = !goal.os_image.is_empty() && now.is_some_and(|now| *now != goal.os_image);
        plan::plan_steps(role, &goal.kubernetes_version, reboot)
    }

    fn mirror_host(&mut self) {
        let Some(plan) = self.ours() else { return };
        steps::mirror(&mut self.status, &plan.spec.steps, report(plan));
        self.status.started_at.get_or_insert(Time(self.now));
        if self.status.role.is_none() {
            self.status.role = plan.spec.steps.iter().find_map(|step| step.action.role);
        }
    }

    fn show_cordon(&mut self) {
        self.status.cordoned_by_us = self.seen.node.is_some_and(|node| node.cordoned_by_us());
    }

    /// The line of a host at work: it changes with the step.
    fn host_line(&self) -> String {
        let ended = |state| matches!(state, StepState::Done | StepState::Skipped);
        let next = self.ours().and_then(|plan| {
            let report = report(plan)?;
            let step = report.steps.iter().find(|step| !ended(step.state))?;
            (step.state != StepState::Pending).then_some(step)
        });
        match next {
            Some(step) if step.attempt > 1 => {
                format!("step {} on the host, try {}", step.id, step.attempt)
            }
            Some(step) => format!("step {} on the host", step.id),
            None => "the host takes up its plan".to_owned(),
        }
    }

    /// The HostPlan, if it is of this NodeUpdate.
    pub(super) fn ours(&self) -> Option<&'a HostPlan> {
        self.seen.host_plan.filter(|plan| gate::is_ours(plan, self.s.update))
    }

    /// The HostPlan, if the agent reported lately.
    pub(super) fn fresh_plan(&self) -> Option<&'a HostPlan> {
        let plan = self.seen.host_plan?;
        let reported = plan.status.as_ref()?.reported_at.as_ref()?.0;
        (self.now.duration_since(reported) <= self.s.report_stale_after).then_some(plan)
    }

    /// How far the host may go for this NodeUpdate.
    pub(super) fn gate(&self) -> Gate {
        self.ours().map(|plan| plan.spec.gate).unwrap_or_default()
    }

    fn passed(&self) -> Gate {
        self.ours().and_then(report).map(|report| report.passed).unwrap_or_default()
    }

    pub(super) fn machine_name(&self) -> &str {
        &self.s.update.spec.machine_ref.name
    }

    pub(super) fn wanted_slot(&self) -> Slot {
        let name = self.s.update.metadata.name.as_deref().unwrap_or_default();
        let machine = &self.s.update.spec.machine_ref;
        group::slot(&machine.name, &machine.uid, name, self.now)
    }

    pub(super) fn control_plane(&self) -> bool {
        match self.status.role {
            Some(role) => role != Role::Worker,
            None => self.s.machine.is_some_and(is_control_plane),
        }
    }

    /// The other NodeUpdates of the same Machine, uid and all.
    pub(super) fn same_machine(&self) -> impl Iterator<Item = &'a NodeUpdate> {
        same_machine(self.s)
    }
}

/// The host's report, if it speaks of the plan that the spec names.
fn report(plan: &HostPlan) -> Option<&HostPlanStatus> {
    plan.status.as_ref().filter(|status| status.plan_id == plan.spec.plan_id)
}

/// The other NodeUpdates of the same Machine, uid and all.
pub(super) fn same_machine<'a>(s: &Snapshot<'a>) -> impl Iterator<Item = &'a NodeUpdate> {
    let uid = &s.update.spec.machine_ref.uid;
    s.siblings.iter().copied().filter(move |other| other.spec.machine_ref.uid == *uid)
}

/// Whether `a` came after `b`: by ordinal, then by creation and name, so that one that was not
/// named by us has its place too.
pub(super) fn is_newer(a: &NodeUpdate, b: &NodeUpdate) -> bool {
    order(a) > order(b)
}

fn order(update: &NodeUpdate) -> (Option<u32>, Option<Timestamp>, String) {
    let name = update.metadata.name.clone().unwrap_or_default();
    let ordinal = refit_api::refit::ordinal_of(&name, &update.spec.machine_ref.name);
    let created = update.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (ordinal, created, name)
}

/// Whether the NodeUpdate has not come to its end.
pub(super) fn is_unfinished(update: &NodeUpdate) -> bool {
    !update.status.as_ref().map(|status| status.phase).unwrap_or_default().is_final()
}

fn rank(update: &NodeUpdate) -> (bool, (Option<u32>, Option<Timestamp>, String)) {
    (is_unfinished(update), order(update))
}

/// The NodeUpdate that speaks for a Machine: the newest that has not ended, or the newest of all.
pub fn speaker<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &str,
) -> Option<&'a NodeUpdate> {
    updates
        .into_iter()
        .filter(|update| update.spec.machine_ref.uid == machine_uid)
        .max_by_key(|update| rank(update))
}

/// Whether this NodeUpdate speaks for its Machine. The others leave the Machine's condition and
/// guard alone.
pub(super) fn speaks(s: &Snapshot<'_>) -> bool {
    let mine = rank(s.update);
    same_machine(s).all(|other| rank(other) < mine)
}

/// Whether the Machine is of a control plane.
pub(super) fn is_control_plane(machine: &Machine) -> bool {
    let labels = machine.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(keys::CONTROL_PLANE))
}

fn gone(s: &Snapshot<'_>) -> Outcome {
    let name = &s.update.spec.machine_ref.name;
    match s.machine {
        None => Outcome::stopped("MachineGone", format!("Machine {name} is gone")),
        Some(_) => Outcome::stopped(
            "MachineReplaced",
            format!("Machine {name} is another one than this NodeUpdate is about"),
        ),
    }
}

fn stopped_by_deletion(machine: &Machine) -> Outcome {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    Outcome::stopped("MachineDeleting", format!("Machine {name} is being deleted"))
}

/// Whether a deletion has waited for the host for as long as a report counts as fresh: our hook
/// must not hold a Machine for ever whose host is gone.
fn deletion_overdue(machine: &Machine, s: &Snapshot<'_>, now: Timestamp) -> bool {
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    deleted.is_some_and(|deleted| now.duration_since(deleted.0) > s.report_stale_after)
}

fn raised(plan: &HostPlan, gate: Gate) -> Write {
    let mut spec = plan.spec.clone();
    spec.gate = spec.gate.max(gate);
    Write::HostPlan(spec)
}

fn abort_write(plan: &HostPlan) -> Option<Write> {
    let mut spec = plan.spec.clone();
    spec.abort = true;
    (!plan.spec.abort).then_some(Write::HostPlan(spec))
}
