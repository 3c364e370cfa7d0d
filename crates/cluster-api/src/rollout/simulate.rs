//! Simulates the rollout of a MachineDeployment to the end, with the real planner and the real
//! MachineSet decisions, one reconcile of each per step.
//!
//! Time passes only while nothing is left to decide: then the next machine comes back, as its [`Durations`]
//! have it. A machine that is unavailable now stays unavailable, because its recovery cannot be predicted.
//!
//! A step costs no more than the machines that it concerns: those that are not touched are kept in the order in
//! which they would be deleted or moved.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use jiff::Timestamp;

use super::find::find_new_and_old;
use super::intent::{Decisions, IntentInput, RolloutIntent, intend};
use super::keys;
use super::machine_set::{
    DeletionOrder, MachineSetAction, Move, Pool, Trigger, delete_priority, sync_pool,
    trigger_in_place,
};
use super::types::{Machine, MachineDeployment, MachineSet};

/// Guard against a planner that never ends: more steps per machine than any rollout needs.
const STEPS_PER_MACHINE: i64 = 64;

/// The extension's response about the machines of an old MachineSet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The machines can be updated in place.
    InPlace,
    /// The machines cannot be updated in place: they are replaced.
    Replace,
    /// No valid response: nothing is written until there is one.
    Wait,
}

/// How a rollout ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Every machine has the new template.
    Done,
    /// The extension delays the rollout.
    Waits,
    /// The rollout is stuck with old machines left.
    Stuck,
}

/// From when to when something is done to a machine, in seconds since the begin of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// When it begins.
    pub start: i64,
    /// When it ends.
    pub end: i64,
}

/// How long the machines of a simulation take.
pub trait Durations {
    /// When an update that Cluster API requests at `asked` begins and ends.
    fn update(&mut self, machine: &str, asked: i64) -> Span;
    /// How many seconds a new machine takes until it is available.
    fn creation(&self) -> i64;
}

/// Durations of a rollout of which only the result counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timeless;

impl Durations for Timeless {
    fn update(&mut self, _machine: &str, asked: i64) -> Span {
        Span { start: asked, end: asked }
    }

    fn creation(&self) -> i64 {
        0
    }
}

/// What is done to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// It is updated in place.
    Update,
    /// It is created.
    Create,
    /// It is deleted.
    Delete,
}

/// What is done to a machine, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name; `None` for a machine that the simulation has created, which has none yet.
    pub machine: Option<String>,
    /// What is done.
    pub act: Act,
    /// When Cluster API decides it, in seconds since the begin of the simulation.
    pub asked: i64,
    /// When it is done. How long a deletion takes is not simulated.
    pub span: Span,
}

/// A MachineDeployment with its MachineSets and machines, and the expected responses.
#[derive(Debug, Clone)]
pub struct Workers {
    /// The desired MachineDeployment.
    pub deployment: MachineDeployment,
    /// Its MachineSets.
    pub sets: Vec<MachineSet>,
    /// Their Machines.
    pub machines: Vec<Machine>,
    /// Machines that are not available, by name.
    pub unavailable: BTreeSet<String>,
    /// Responses by name of the old MachineSet; machines of other sets are replaced.
    pub answers: BTreeMap<String, Answer>,
    /// The feature gate `InPlaceUpdates`.
    pub in_place_updates: bool,
    /// Which machine is deleted first.
    pub order: DeletionOrder,
    /// The time of the snapshot.
    pub now: Timestamp,
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedRollout {
    /// How it ended.
    pub end: End,
    /// Existing machines that have the new template now.
    pub in_place: BTreeSet<String>,
    /// Existing machines that were deleted.
    pub deleted: BTreeSet<String>,
    /// Number of machines created, kept or not.
    pub created: i64,
    /// Whether the extension was called at all.
    pub asked: bool,
    /// Number of machines at the end.
    pub total: i64,
    /// What was done to the machines, in the order in which it was decided.
    pub events: Vec<Event>,
}

/// Name of the MachineSet that a simulation creates; no object may have it.
const NEW: &str = "\u{1}new";
/// Name prefix of the machines that it creates; a number follows.
const CREATED: &str = "\u{1}created";

/// A place in the order of deletion: the priority, the greatest first, and the name.
type Rank = (Reverse<u64>, String);

/// The machines of one MachineSet.
#[derive(Default)]
struct Members {
    in_deletion_order: BTreeMap<Rank, Machine>,
    /// How many of them are not available.
    down: i64,
}

/// What happens when the clock reaches a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The update of the machine of this name ends.
    Updated(String),
    /// The created machine of this name is available.
    Created(String),
}

struct Run<'a, D> {
    deployment: MachineDeployment,
    sets: Vec<MachineSet>,
    /// The machines, by name of their MachineSet.
    members: BTreeMap<String, Members>,
    /// The MachineSet and the rank of every machine that is being updated or created, by its name.
    busy: BTreeMap<String, (String, Rank)>,
    unavailable: BTreeSet<String>,
    answers: BTreeMap<String, Answer>,
    in_place_updates: bool,
    order: DeletionOrder,
    now: Timestamp,
    durations: &'a mut D,
    decisions: Decisions,
    created: i64,
    asked: bool,
    /// Seconds since the begin.
    clock: i64,
    due: BinaryHeap<Reverse<(i64, Due)>>,
    events: Vec<Event>,
    /// Whether the present step has changed a machine.
    changed: bool,
}

impl Workers {
    /// Runs the rollout to the end.
    pub fn run(self) -> SimulatedRollout {
        self.run_timed(&mut Timeless)
    }

    /// Runs the rollout to the end, with a time for everything that is done.
    pub fn run_timed(self, durations: &mut impl Durations) -> SimulatedRollout {
        let before: BTreeSet<String> = self.machines.iter().map(|m| m.name.clone()).collect();
        let replicas = self.deployment.replicas.max(0);
        let count = i64::try_from(self.machines.len()).unwrap_or(i64::MAX);
        let steps = STEPS_PER_MACHINE.saturating_mul(replicas.max(count).saturating_add(1));
        let machines = self.machines;
        let mut run = Run {
            deployment: self.deployment,
            sets: self.sets,
            members: BTreeMap::new(),
            busy: BTreeMap::new(),
            unavailable: self.unavailable,
            answers: self.answers,
            in_place_updates: self.in_place_updates,
            order: self.order,
            now: self.now,
            durations,
            decisions: Decisions::new(),
            created: 0,
            asked: false,
            clock: 0,
            due: BinaryHeap::new(),
            events: Vec::new(),
            changed: false,
        };
        let old_sets = run.old_sets();
        let is_old = |machine: &&Machine| old_sets.contains(&machine.owner);
        let started_old: BTreeSet<String> =
            machines.iter().filter(is_old).map(|machine| machine.name.clone()).collect();
        for machine in machines {
            run.take_in(machine);
        }
        let mut end = End::Stuck;
        for _ in 0..steps {
            if let Some(done) = run.step() {
                end = done;
                break;
            }
        }
        run.outcome(end, &before, &started_old)
    }
}

impl<D: Durations> Run<'_, D> {
    /// Returns the MachineSets whose template differs from the desired one.
    fn old_sets(&self) -> BTreeSet<String> {
        let found = find_new_and_old(&self.deployment, &self.sets, self.now);
        found.old.into_iter().map(|old| old.machine_set.name).collect()
    }

    fn outcome(
        self,
        end: End,
        before: &BTreeSet<String>,
        started_old: &BTreeSet<String>,
    ) -> SimulatedRollout {
        let old_sets = self.old_sets();
        let machines = || self.members.values().flat_map(|of| of.in_deletion_order.values());
        let left: BTreeSet<&String> = machines().map(|machine| &machine.name).collect();
        SimulatedRollout {
            end,
            in_place: machines()
                .filter(|m| started_old.contains(&m.name) && !old_sets.contains(&m.owner))
                .map(|m| m.name.clone())
                .collect(),
            deleted: before.iter().filter(|name| !left.contains(name)).cloned().collect(),
            created: self.created,
            asked: self.asked,
            total: i64::try_from(left.len()).unwrap_or(i64::MAX),
            events: self.events,
        }
    }

    /// Runs one round of all controllers, or lets time pass if they have nothing to do; returns the end if nothing
    /// is under way, either.
    fn step(&mut self) -> Option<End> {
        let before = self.sets.clone();
        self.changed = false;
        let Some(intent) = self.intent() else {
            return Some(End::Waits);
        };
        self.write(intent);
        for index in 0..self.sets.len() {
            self.reconcile(index);
        }
        self.update_statuses();
        if self.changed || before != self.sets || self.pass() {
            return None;
        }
        let old_sets = self.old_sets();
        let has_machines = |set: &String| {
            self.members.get(set).is_some_and(|members| !members.in_deletion_order.is_empty())
        };
        Some(if old_sets.iter().any(has_machines) { End::Stuck } else { End::Done })
    }

    /// Lets time pass until the next machine comes back; returns whether one does.
    fn pass(&mut self) -> bool {
        let Some(Reverse((at, _))) = self.due.peek() else {
            return false;
        };
        self.clock = (*at).max(self.clock);
        while let Some(Reverse((_, due))) =
            self.due.peek().filter(|next| next.0.0 <= self.clock).cloned()
        {
            self.due.pop();
            let (name, is_update) = match due {
                Due::Updated(name) => (name, true),
                Due::Created(name) => (name, false),
            };
            let Some(mut machine) = self.take_out(&name) else { continue };
            if is_update {
                machine.annotations.remove(keys::UPDATE_IN_PROGRESS);
                machine.annotations.remove(keys::PENDING_HOOKS);
            } else {
                machine.has_node = true;
            }
            self.put(machine);
        }
        true
    }

    fn write(&mut self, RolloutIntent { create, machine_sets, .. }: RolloutIntent) {
        for set in &mut self.sets {
            if let Some(planned) = machine_sets.get(&set.name) {
                set.spec_replicas = planned.replicas;
                set.annotations.clone_from(&planned.annotations);
            }
        }
        if let Some(created) = create {
            self.sets.push(MachineSet {
                name: created.name,
                created_at: self.now,
                spec_replicas: created.replicas,
                annotations: created.annotations,
                template: self.deployment.template.clone(),
                ..MachineSet::default()
            });
        }
    }

    /// The planner's intent with all responses; `None` if one of them is to wait.
    fn intent(&mut self) -> Option<RolloutIntent> {
        // The planner asks of machines only whether one is being updated.
        let machines: Vec<Machine> = self.busy_machines(|_| true);
        loop {
            let intent = intend(&IntentInput {
                deployment: &self.deployment,
                machine_sets: &self.sets,
                machines: &machines,
                in_place_updates: self.in_place_updates,
                decisions: &self.decisions,
                new_name: NEW,
                now: self.now,
            });
            if intent.is_complete() {
                return Some(intent);
            }
            self.asked = true;
            for pair in intent.pairs_to_ask {
                let answer = self.answers.get(&pair.0);
                if answer == Some(&Answer::Wait) {
                    return None;
                }
                let yes = answer == Some(&Answer::InPlace);
                self.decisions.insert(pair, yes);
            }
        }
    }

    /// Machines that are being updated or created, of the MachineSets that are asked for.
    fn busy_machines(&self, of: impl Fn(&str) -> bool) -> Vec<Machine> {
        let found =
            self.busy.values().filter(|(set, _)| of(set)).filter_map(|(set, rank)| {
                self.members.get(set)?.in_deletion_order.get(rank).cloned()
            });
        found.collect()
    }

    fn reconcile(&mut self, index: usize) {
        let set = self.sets[index].clone();
        let busy = self.busy_machines(|of| of == set.name);
        for trigger in trigger_in_place(&set, &busy) {
            if let Trigger::CompleteMove { machine, .. } = trigger {
                self.begin_update(&machine);
            }
        }
        let target = set
            .annotation(keys::MOVE_MACHINES)
            .and_then(|name| self.sets.iter().find(|other| other.name == name));
        let members = self.members.entry(set.name.clone()).or_default();
        let awaits = |name: &&String| {
            let found = self.busy.get(*name).filter(|(of, _)| *of == set.name);
            let machine = found.and_then(|(_, rank)| members.in_deletion_order.get(rank));
            machine.is_some_and(Machine::is_pending_acknowledge)
        };
        let not_acknowledged =
            if set.receives_machines() { self.busy.keys().filter(awaits).count() } else { 0 };
        let pool = Pool {
            total: members.in_deletion_order.len(),
            not_acknowledged,
            in_deletion_order: Box::new(members.in_deletion_order.values()),
        };
        match sync_pool(&set, pool, target) {
            Ok(MachineSetAction::Create(count)) => {
                for _ in 0..count {
                    self.create(&set);
                }
            }
            Ok(MachineSetAction::Delete(names)) => self.delete(&set, &names),
            Ok(MachineSetAction::Move(moved)) => self.hand_over(&set, &moved),
            Ok(MachineSetAction::None | MachineSetAction::CreateDisabled { .. }) | Err(_) => {}
        }
    }

    /// Cluster API calls the hook for a machine.
    fn begin_update(&mut self, name: &str) {
        let Some(mut machine) = self.take_out(name) else { return };
        machine.annotations.remove(keys::PENDING_ACKNOWLEDGE_MOVE);
        machine
            .annotations
            .insert(keys::PENDING_HOOKS.to_owned(), keys::UPDATE_MACHINE_HOOK.to_owned());
        self.put(machine);
        self.schedule_update(name);
    }

    fn schedule_update(&mut self, name: &str) {
        let span = self.durations.update(name, self.clock);
        let machine = Some(name.to_owned()).filter(|name| !name.starts_with(CREATED));
        self.events.push(Event { machine, act: Act::Update, asked: self.clock, span });
        self.due.push(Reverse((span.end, Due::Updated(name.to_owned()))));
    }

    fn hand_over(&mut self, set: &MachineSet, moved: &Move) {
        self.delete(set, &moved.delete);
        for name in &moved.machines {
            let Some(mut machine) = self.take_from(set, name) else { continue };
            machine.owner.clone_from(&moved.target);
            for key in [keys::UPDATE_IN_PROGRESS, keys::PENDING_ACKNOWLEDGE_MOVE] {
                machine.annotations.insert(key.to_owned(), String::new());
            }
            self.put(machine);
        }
    }

    fn delete(&mut self, set: &MachineSet, names: &[String]) {
        for name in names {
            let Some(machine) = self.take_from(set, name) else { continue };
            let machine = Some(machine.name).filter(|name| !name.starts_with(CREATED));
            let span = Span { start: self.clock, end: self.clock };
            self.events.push(Event { machine, act: Act::Delete, asked: self.clock, span });
        }
    }

    fn create(&mut self, set: &MachineSet) {
        let number = self.created;
        let since = jiff::SignedDuration::from_secs(number.saturating_add(1));
        let name = format!("{CREATED}{number:06}");
        self.put(Machine {
            name: name.clone(),
            owner: set.name.clone(),
            created_at: self.now.saturating_add(since).unwrap_or(self.now),
            ..Machine::default()
        });
        let end = self.clock.saturating_add(self.durations.creation());
        let span = Span { start: self.clock, end };
        self.events.push(Event { machine: None, act: Act::Create, asked: self.clock, span });
        self.due.push(Reverse((end, Due::Created(name))));
        self.created += 1;
    }

    /// Adds a machine of the snapshot. One that is being updated takes as long as one that begins now.
    fn take_in(&mut self, machine: Machine) {
        let name = machine.name.clone();
        let is_at_work = machine.is_updating() && !machine.is_pending_acknowledge();
        self.put(machine);
        if is_at_work {
            self.schedule_update(&name);
        }
    }

    fn is_down(&self, machine: &Machine) -> bool {
        let is_new = machine.name.starts_with(CREATED);
        machine.is_updating()
            || machine.deleting
            || is_new && !machine.has_node
            || self.unavailable.contains(&machine.name)
    }

    fn rank(&self, machine: &Machine) -> Rank {
        // The bits of positive numbers are in the order of the numbers.
        let priority = delete_priority(machine, self.order, self.now).max(0.0).to_bits();
        (Reverse(priority), machine.name.clone())
    }

    fn put(&mut self, machine: Machine) {
        let rank = self.rank(&machine);
        let is_down = self.is_down(&machine);
        let is_created = machine.name.starts_with(CREATED) && !machine.has_node;
        if machine.is_updating() || machine.is_pending_acknowledge() || is_created {
            self.busy.insert(machine.name.clone(), (machine.owner.clone(), rank.clone()));
        }
        let members = self.members.entry(machine.owner.clone()).or_default();
        members.down += i64::from(is_down);
        members.in_deletion_order.insert(rank, machine);
        self.changed = true;
    }

    /// Takes a busy machine out of its MachineSet.
    fn take_out(&mut self, name: &str) -> Option<Machine> {
        let (set, rank) = self.busy.remove(name)?;
        self.removed(&set, &rank)
    }

    /// Takes a machine out of this MachineSet.
    fn take_from(&mut self, set: &MachineSet, name: &str) -> Option<Machine> {
        if let Some((of, _)) = self.busy.get(name) {
            return if *of == set.name { self.take_out(name) } else { None };
        }
        let members = self.members.get(&set.name)?;
        let mut ranks = members.in_deletion_order.keys();
        let rank = ranks.find(|(_, known)| known == name)?.clone();
        self.removed(&set.name, &rank)
    }

    fn removed(&mut self, set: &str, rank: &Rank) -> Option<Machine> {
        let machine = self.members.get_mut(set)?.in_deletion_order.remove(rank)?;
        let is_down = self.is_down(&machine);
        self.members.get_mut(set)?.down -= i64::from(is_down);
        self.changed = true;
        Some(machine)
    }

    fn update_statuses(&mut self) {
        let old_sets = self.old_sets();
        for set in &mut self.sets {
            let members = self.members.get(&set.name);
            let replicas = members.map_or(0, |members| members.in_deletion_order.len());
            let replicas = i64::try_from(replicas).unwrap_or(i64::MAX);
            let available = replicas - members.map_or(0, |members| members.down);
            set.status_replicas = replicas;
            set.available_replicas = available;
            set.up_to_date_replicas = if old_sets.contains(&set.name) { 0 } else { available };
        }
    }
}

#[cfg(test)]
#[path = "simulate_tests.rs"]
mod tests;
