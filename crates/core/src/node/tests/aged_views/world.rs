//! The true objects, two controllers whose view of each kind has its own age, and everything else
//! that changes the objects.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    conditions, keys,
    refit::{Gate, Phase, ProviderObject, ProviderStatus, Stage},
};

use super::{
    super::{
        applied::word,
        model::{Kind, guard_of},
        world::{One, at, pod},
    },
    CORDON, DELETED, DISRUPT, EVICT, KINDS, RELEASE, UPGRADE,
    judge::Judge,
    objects::{Fleet, MACHINES, Objects, Team, phase},
    providers::{is_busy, report, works},
};
use crate::{
    group::holds,
    invariants::Violation,
    node::{host::has_ended, *},
};

pub(super) const CONTROLLERS: usize = 2;
/// Simulated seconds per move.
const TICK: i64 = 5;
/// Writes of one reconcile. The status may alternate between two views.
const MAX_WRITES: usize = 6;

/// Kinds that a controller reads live, each before a write.
pub(super) type LiveReads<'a> = &'a [(Kind, &'a str)];

/// One thing that happens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    /// The watches of a controller deliver all events, except those of the aged kinds. Then it
    /// reconciles these machines.
    Reconcile {
        controller: usize,
        machines: Vec<usize>,
        aged: Vec<Kind>,
    },
    /// The agent and the kubelet of a host advance by one step.
    HostWorks(usize),
    /// The agent fails permanently.
    HostFails(usize),
    /// A provider does what it may, and reports it.
    ProviderWorks(Kind, usize),
    /// A provider reports something that need not be so.
    ProviderReports(Kind, usize, Report),
    /// The object of a provider is being deleted.
    ProviderDeleting(Kind, usize),
    NodeFails(usize),
    ApiServerFails(usize),
    /// Cluster API sees that an update has succeeded.
    MachineUpdated(usize),
    Abort(usize),
    Delete(usize),
    Pause(bool),
    MaxUnavailable(i32),
}

/// A report of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) passed: Gate,
    pub(super) ready: bool,
    pub(super) past_no_return: bool,
    /// Whether it is about the newest order.
    pub(super) is_new: bool,
    /// Whether it has failed, and tries again.
    pub(super) fails: Option<bool>,
}

/// A violation, and the write that caused it.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) write: String,
    pub(super) violation: String,
}

#[derive(Clone)]
pub(super) struct World {
    fleet: Fleet,
    now: i64,
    truth: Objects,
    /// Pods are not watched: the controller lists those of a node that it drains.
    pods: Vec<Vec<PodView>>,
    views: [Objects; CONTROLLERS],
    judge: Judge,
}

impl World {
    pub(super) fn new(fleet: Fleet, team: Team, max_unavailable: i32) -> Self {
        let truth = Objects::new(fleet, team, max_unavailable);
        Self {
            fleet,
            now: 0,
            pods: (0..MACHINES).map(|n| vec![pod(&format!("web-{n}"))]).collect(),
            views: [truth.clone(), truth.clone()],
            judge: Judge::new(fleet, &truth),
            truth,
        }
    }

    /// Makes a move; returns the violations of its writes.
    pub(super) fn make(&mut self, what: &Move, live: LiveReads<'_>) -> Vec<Finding> {
        self.now += TICK;
        match *what {
            Move::Reconcile { controller, ref machines, ref aged } => {
                for kind in KINDS.into_iter().filter(|kind| !aged.contains(kind)) {
                    self.views[controller].copy(kind, &self.truth);
                }
                let reconcile = |who: &usize| self.reconcile(controller, *who, live);
                return machines.iter().flat_map(reconcile).collect();
            }
            Move::HostWorks(who) => self.host_works(who),
            Move::HostFails(who) => self.host_fails(who),
            Move::ProviderWorks(kind, who) => self.provider_works(kind, who),
            Move::ProviderReports(kind, who, status) => {
                self.change_provider(kind, who, |object| report(object, status));
            }
            Move::ProviderDeleting(kind, who) => {
                self.change_provider(kind, who, |object| object.is_deleting = true);
            }
            Move::NodeFails(who) => {
                self.change(Kind::Node, who, |one| one.node_mut().ready = false);
            }
            Move::ApiServerFails(who) => self.change(Kind::MirrorPod, who, |one| {
                one.static_pods.iter_mut().skip(who).take(1).for_each(|pod| pod.ready = false);
            }),
            Move::MachineUpdated(who) => self.machine_updated(who),
            Move::Abort(who) => {
                self.change(Kind::NodeUpdate, who, |one| one.update.spec.stage = Stage::Abort);
            }
            Move::Delete(who) => self.change(Kind::Machine, who, |one| {
                let now = Time(at(one.now));
                one.machine.as_mut().unwrap().metadata.deletion_timestamp.get_or_insert(now);
            }),
            Move::Pause(paused) => self.truth.paused = paused,
            Move::MaxUnavailable(limit) => {
                self.truth.limits = self.fleet.limits(limit);
                self.judge.owner(self.fleet, self.truth.limits);
            }
        }
        Vec::new()
    }

    pub(super) fn is_cordoned(&self, who: usize) -> bool {
        self.truth.nodes[who].unschedulable
    }

    fn environment(&self, objects: &Objects, who: usize) -> One {
        One { now: self.now, pods: self.pods[who].clone(), ..objects.environment(who) }
    }

    /// Decides about a machine and writes, up to the first write that is not only a report.
    fn reconcile(&mut self, controller: usize, who: usize, live: LiveReads<'_>) -> Vec<Finding> {
        let mut found = Vec::new();
        for _ in 0..MAX_WRITES {
            let (view, decision) = self.decide(controller, who, live);
            let Some(write) = decision.write.clone() else { break };
            let conflicts = |kind| !view.is_current(kind, who, &self.truth);
            if guard_of(&write).is_some_and(conflicts) {
                break;
            }
            let (name, reports) = (class(&write), is_report(&write));
            let early = self.too_early(who, &decision, &write);
            let violations = self.write(controller, who, &decision, write);
            let violations = violations.iter().map(ToString::to_string).chain(self.without_slot());
            let violations = violations.chain(early);
            found.extend(violations.map(|text| Finding { write: name.clone(), violation: text }));
            if !reports {
                break;
            }
        }
        found
    }

    /// Unfinished updates that may disturb their machine without a slot.
    fn without_slot(&self) -> impl Iterator<Item = String> {
        let is_open = |n: usize| {
            let of_provider = |one: &Arc<ProviderObject>| one.spec.gate >= Gate::Upgrade;
            self.truth.plans[n].spec.gate >= Gate::Upgrade
                || self.truth.providers_of(n).any(of_provider)
        };
        let unclaimed = (0..MACHINES).filter(move |n| {
            // A provider that has not ended may go on after the update has failed.
            let at_work = is_open(*n) && !phase(&self.truth.updates[*n]).is_final()
                || self.truth.providers_of(*n).any(|object| is_busy(object));
            at_work && !holds(&self.truth.group, &format!("uid-m-{n}").into())
        });
        unclaimed.map(|n| format!("m-{n} is disturbed without a slot"))
    }

    /// The decision of a controller, and the view that it rests on. If the write requires live
    /// reads, the decision is made again with them. They are in the same instant as the write.
    fn decide(&self, controller: usize, who: usize, live: LiveReads<'_>) -> (Objects, Decision) {
        let mut view = self.views[controller].clone();
        let mut unread = live.to_vec();
        loop {
            let one = self.environment(&view, who);
            let decision = one.decide();
            let word = decision.write.as_ref().map(|write| class_of(&decision, write));
            let word = word.unwrap_or_default();
            let (required, rest) = unread.into_iter().partition::<Vec<_>, _>(|(_, w)| *w == word);
            if required.is_empty() {
                return (view, decision);
            }
            let reads = requires_live_read(&one.snapshot(None), &decision);
            if word == RELEASE && !reads {
                return (view, decision);
            }
            // A worker's drain may rest on any view.
            let workers_drain = [CORDON, EVICT].contains(&&*word) && self.fleet == Fleet::Workers;
            assert_eq!(reads, !workers_drain, "{word}");
            for (kind, _) in required {
                view.copy(kind, &self.truth);
            }
            unread = rest;
        }
    }

    /// Why a gate must not open yet: its slot was returned, or pods are left on its node.
    fn too_early(&self, who: usize, decision: &Decision, write: &Write) -> Option<String> {
        let slots = &self.truth.group.slots;
        let slot = slots.iter().find(|slot| *slot.machine_uid == *format!("uid-m-{who}"));
        let claim = slot.map(|slot| slot.claim).unwrap_or_default();
        let plan = Some(self.truth.plans[who].spec.returned_claim);
        let returned = self.truth.providers_of(who).map(|object| object.returned_claim);
        let is_returned = returned.chain(plan).any(|returned| returned == claim);
        match &*class_of(decision, write) {
            DELETED => Some(format!("no object for m-{who} was deleted")),
            UPGRADE if slot.is_some() && is_returned => {
                Some(format!("m-{who} goes on with a slot that is returned"))
            }
            DISRUPT if !self.pods[who].is_empty() || !self.truth.nodes[who].unschedulable => {
                Some(format!("m-{who} is not drained"))
            }
            _ => None,
        }
    }

    fn write(
        &mut self,
        controller: usize,
        who: usize,
        decision: &Decision,
        write: Write,
    ) -> Vec<Violation> {
        let evicts = matches!(write, Write::Workload(WorkloadWrite::Evict(_)));
        // The remaining write without a guard is the Machine's condition.
        let kind = guard_of(&write).unwrap_or(Kind::Machine);
        let mut one = self.environment(&self.truth, who);
        one.apply_alone(decision, write);
        if evicts {
            let before = std::mem::replace(&mut self.pods[who], one.pods);
            let evicted = before.iter().filter(|pod| !self.pods[who].contains(pod));
            return evicted.flat_map(|pod| self.judge.evicted(who, pod)).collect();
        }
        self.truth.store(kind, who, one);
        self.views[controller].copy_one(kind, who, &self.truth);
        self.judge.observe(&self.truth, kind, who, "controller")
    }

    /// Changes an object of a machine without a controller.
    fn change(&mut self, kind: Kind, who: usize, change: impl FnOnce(&mut One)) {
        let mut one = self.environment(&self.truth, who);
        change(&mut one);
        self.truth.store(kind, who, one);
        self.judge.observe(&self.truth, kind, who, "other");
    }

    /// Advances the agent and the kubelet of a host by one step; what has failed recovers first.
    fn host_works(&mut self, who: usize) {
        let plan = &self.truth.plans[who];
        let passed = plan.status.as_ref().unwrap().passed;
        let pod_failed = self.truth.static_pods.get(who).is_some_and(|pod| !pod.ready);
        if !self.truth.nodes[who].ready || pod_failed {
            let recover = move |one: &mut One| {
                if passed == Gate::Disrupt {
                    one.kubelet_returns();
                }
                one.node_mut().ready = true;
                one.static_pods.iter_mut().skip(who).take(1).for_each(|pod| pod.ready = true);
            };
            self.change(Kind::Node, who, recover);
            self.change(Kind::MirrorPod, who, recover);
        } else if !has_ended(plan) && (plan.spec.abort || passed < plan.spec.gate) {
            let disrupted = plan.spec.gate == Gate::Disrupt && !plan.spec.abort;
            self.change(Kind::HostPlan, who, One::host_works);
            if disrupted {
                self.change(Kind::Node, who, |one| one.node_mut().ready = false);
            }
        }
    }

    fn change_provider(
        &mut self,
        kind: Kind,
        who: usize,
        change: impl FnOnce(&mut ProviderObject),
    ) {
        let Some(object) = self.truth.provider(kind, who) else { return };
        let mut changed = (**object).clone();
        change(&mut changed);
        if changed != **object {
            let name = changed.updater.clone();
            self.change(kind, who, |one| {
                let own = one.providers.iter_mut().find(|object| object.updater == name);
                *own.unwrap() = changed;
            });
        }
    }

    fn provider_works(&mut self, kind: Kind, who: usize) {
        let Some(object) = self.truth.provider(kind, who).cloned() else { return };
        let brings_version = object.spec.goal.kubernetes_version.is_some();
        self.change_provider(kind, who, works);
        let is_done = |status: &ProviderStatus| status.ready && status.passed == Gate::Disrupt;
        let now = self.truth.provider(kind, who).is_some_and(|object| is_done(&object.status));
        if now && !is_done(&object.status) && brings_version {
            self.change(Kind::Node, who, One::kubelet_returns);
            self.change(Kind::MirrorPod, who, One::kubelet_returns);
        }
    }

    /// The first step of the plan fails, if the host is at work.
    fn host_fails(&mut self, who: usize) {
        let plan = &self.truth.plans[who];
        let passed = plan.status.as_ref().unwrap().passed;
        if !has_ended(plan) && !plan.spec.abort && passed < plan.spec.gate {
            let id = plan.spec.steps[0].id.clone();
            self.change(Kind::HostPlan, who, |one| one.host_fails(&id));
        }
    }

    fn machine_updated(&mut self, who: usize) {
        if phase(&self.truth.updates[who]) != Phase::Succeeded {
            return;
        }
        let available = (conditions::AVAILABLE, "True", "Available", "");
        self.change(Kind::Machine, who, |one| {
            let machine = one.machine.as_mut().unwrap();
            machine.metadata.annotations.as_mut().unwrap().remove(keys::UPDATE_IN_PROGRESS);
            let list = &mut machine.status.as_mut().unwrap().conditions;
            conditions::set(list, at(one.now), None, available);
        });
    }
}

/// Whether a write only reports what happens, or protects the Machine meanwhile.
fn is_report(write: &Write) -> bool {
    matches!(
        write,
        Write::AskUpdater(_)
            | Write::Updater(_)
            | Write::Management(
                ManagementWrite::Status
                    | ManagementWrite::MachineCondition(_)
                    | ManagementWrite::Guard(_)
                    | ManagementWrite::Unguard(_)
            )
    )
}

/// The same, with the reason of an end that rests on a missing object.
fn class_of(decision: &Decision, write: &Write) -> String {
    let is_missing = decision.status.failure_reason == "ProviderObjectDeleted";
    if is_missing && *write == Write::STATUS { DELETED.to_owned() } else { class(write) }
}

/// A write as a word: the gate of any updater is the same.
fn class(write: &Write) -> String {
    match write {
        Write::Provider(order) if order.spec.stage == Stage::Ongoing => {
            format!("gate {:?}", order.spec.gate)
        }
        write => word(write),
    }
}
