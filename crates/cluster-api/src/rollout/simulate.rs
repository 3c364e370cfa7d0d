//! Simulates the rollout of a MachineDeployment to the end, with the real planner and the real
//! MachineSet decisions, one reconcile of each per step.
//!
//! Every machine that is updated or created is available one step later. A machine that is
//! unavailable now stays unavailable, because its recovery cannot be predicted.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::find::find_new_and_old;
use super::intent::{Decisions, IntentInput, intend};
use super::keys;
use super::machine_set::{
    DeletionOrder, MachineSetAction, Trigger, sync_replicas, trigger_in_place,
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
}

/// Name of the MachineSet that a simulation creates; no object may have it.
const NEW: &str = "\u{1}new";
/// Name prefix of the machines that it creates; a number follows.
const CREATED: &str = "\u{1}created";

struct Run {
    workers: Workers,
    decisions: Decisions,
    created: i64,
    waits: bool,
    asked: bool,
}

impl Workers {
    /// Runs the rollout to the end.
    pub fn run(self) -> SimulatedRollout {
        let before: BTreeSet<String> = self.machines.iter().map(|m| m.name.clone()).collect();
        let old_sets = self.old_sets();
        let started_old: BTreeSet<String> = self
            .machines
            .iter()
            .filter(|machine| old_sets.contains(&machine.owner))
            .map(|machine| machine.name.clone())
            .collect();
        let replicas = self.deployment.replicas.max(0);
        let count = i64::try_from(self.machines.len()).unwrap_or(i64::MAX);
        let steps = STEPS_PER_MACHINE.saturating_mul(replicas.max(count).saturating_add(1));
        let mut run = Run {
            workers: self,
            decisions: Decisions::new(),
            created: 0,
            waits: false,
            asked: false,
        };
        let mut end = End::Stuck;
        for _ in 0..steps {
            if let Some(done) = run.step() {
                end = done;
                break;
            }
        }
        run.outcome(end, &before, &started_old)
    }

    /// Returns the MachineSets whose template differs from the desired one.
    fn old_sets(&self) -> BTreeSet<String> {
        find_new_and_old(&self.deployment, &self.sets, self.now)
            .old
            .into_iter()
            .map(|old| old.machine_set.name)
            .collect()
    }
}

impl Run {
    fn outcome(
        self,
        end: End,
        before: &BTreeSet<String>,
        started_old: &BTreeSet<String>,
    ) -> SimulatedRollout {
        let old_sets = self.workers.old_sets();
        let machines = &self.workers.machines;
        let left: BTreeSet<&String> = machines.iter().map(|machine| &machine.name).collect();
        SimulatedRollout {
            end,
            in_place: machines
                .iter()
                .filter(|m| started_old.contains(&m.name) && !old_sets.contains(&m.owner))
                .map(|m| m.name.clone())
                .collect(),
            deleted: before.iter().filter(|name| !left.contains(name)).cloned().collect(),
            created: self.created,
            asked: self.asked,
            total: i64::try_from(machines.len()).unwrap_or(i64::MAX),
        }
    }

    /// Runs one round of all controllers; returns the end if nothing is left to do.
    fn step(&mut self) -> Option<End> {
        let before = (self.workers.sets.clone(), self.workers.machines.clone());
        self.intent();
        if self.waits {
            return Some(End::Waits);
        }
        for index in 0..self.workers.sets.len() {
            self.reconcile(index);
        }
        for index in 0..self.workers.sets.len() {
            self.update_status(index);
        }
        if before != (self.workers.sets.clone(), self.workers.machines.clone()) {
            return None;
        }
        let old_sets = self.workers.old_sets();
        let machines = &self.workers.machines;
        let old_left = machines.iter().any(|m| old_sets.contains(&m.owner));
        Some(if old_left { End::Stuck } else { End::Done })
    }

    fn intent(&mut self) {
        let intent = loop {
            let intent = intend(&IntentInput {
                deployment: &self.workers.deployment,
                machine_sets: &self.workers.sets,
                machines: &self.workers.machines,
                in_place_updates: self.workers.in_place_updates,
                decisions: &self.decisions,
                new_name: NEW,
                now: self.workers.now,
            });
            if intent.is_complete() {
                break intent;
            }
            self.asked = true;
            for pair in &intent.pairs_to_ask {
                let answer = self.workers.answers.get(&pair.0);
                self.waits |= answer == Some(&Answer::Wait);
                let yes = answer == Some(&Answer::InPlace);
                self.decisions.insert(pair.clone(), yes);
            }
            if self.waits {
                return;
            }
        };
        for set in &mut self.workers.sets {
            if let Some(planned) = intent.machine_sets.get(&set.name) {
                set.spec_replicas = planned.replicas;
                set.annotations.clone_from(&planned.annotations);
            }
        }
        if let Some(created) = intent.create {
            self.workers.sets.push(MachineSet {
                name: created.name,
                created_at: self.workers.now,
                spec_replicas: created.replicas,
                annotations: created.annotations,
                template: self.workers.deployment.template.clone(),
                ..MachineSet::default()
            });
        }
    }

    fn reconcile(&mut self, index: usize) {
        let set = self.workers.sets[index].clone();
        let machines = &mut self.workers.machines;
        for machine in machines
            .iter_mut()
            .filter(|machine| machine.owner == set.name && !machine.is_pending_acknowledge())
        {
            machine.annotations.remove(keys::UPDATE_IN_PROGRESS);
            machine.annotations.remove(keys::PENDING_HOOKS);
        }
        for trigger in trigger_in_place(&set, &machines_of(machines, &set)) {
            if let Trigger::CompleteMove { machine, .. } = trigger {
                for found in machines.iter_mut().filter(|found| found.name == machine) {
                    found.annotations.remove(keys::PENDING_ACKNOWLEDGE_MOVE);
                }
            }
        }
        let target = set
            .annotation(keys::MOVE_MACHINES)
            .and_then(|name| self.workers.sets.iter().find(|other| other.name == name));
        let Workers { order, now, .. } = self.workers;
        let action = sync_replicas(&set, &machines_of(machines, &set), target, order, now);
        match action {
            Ok(MachineSetAction::Create(count)) => {
                for _ in 0..count {
                    self.create(&set);
                }
            }
            Ok(MachineSetAction::Delete(names)) => {
                machines.retain(|machine| !names.contains(&machine.name));
            }
            Ok(MachineSetAction::Move(moved)) => {
                machines.retain(|machine| !moved.delete.contains(&machine.name));
                for machine in
                    machines.iter_mut().filter(|machine| moved.machines.contains(&machine.name))
                {
                    machine.owner.clone_from(&moved.target);
                    for key in [keys::UPDATE_IN_PROGRESS, keys::PENDING_ACKNOWLEDGE_MOVE] {
                        machine.annotations.insert(key.to_owned(), String::new());
                    }
                }
            }
            Ok(MachineSetAction::None | MachineSetAction::CreateDisabled { .. }) | Err(_) => {}
        }
    }

    fn create(&mut self, set: &MachineSet) {
        let number = self.created;
        let since = jiff::SignedDuration::from_secs(number.saturating_add(1));
        self.workers.machines.push(Machine {
            name: format!("{CREATED}{number:06}"),
            owner: set.name.clone(),
            created_at: self.workers.now.saturating_add(since).unwrap_or(self.workers.now),
            has_node: true,
            ..Machine::default()
        });
        self.created += 1;
    }

    fn update_status(&mut self, index: usize) {
        let workers = &mut self.workers;
        let old = find_new_and_old(&workers.deployment, &workers.sets, workers.now).old;
        let set = &mut workers.sets[index];
        let current = old.iter().all(|old| old.machine_set.name != set.name);
        let (mut replicas, mut available) = (0, 0);
        for machine in workers.machines.iter().filter(|m| m.owner == set.name) {
            replicas += 1;
            let up = !machine.is_updating()
                && !machine.deleting
                && !workers.unavailable.contains(&machine.name);
            available += i64::from(up);
        }
        set.status_replicas = replicas;
        set.available_replicas = available;
        set.up_to_date_replicas = if current { available } else { 0 };
    }
}

fn machines_of(machines: &[Machine], set: &MachineSet) -> Vec<Machine> {
    machines.iter().filter(|machine| machine.owner == set.name).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::predict;
    use super::super::types::{Strategy, Template};
    use super::*;
    use crate::IntOrPercent;

    fn template(version: &str) -> Template {
        Template { version: version.into(), ..Template::default() }
    }

    fn workers(replicas: i64, surge: i64, unavailable: i64) -> Workers {
        Workers {
            deployment: MachineDeployment {
                name: "md".into(),
                replicas,
                strategy: Strategy::rolling_update(
                    IntOrPercent::Int(surge),
                    IntOrPercent::Int(unavailable),
                ),
                template: template("v2"),
                rollout_after: None,
            },
            sets: vec![MachineSet {
                name: "old".into(),
                spec_replicas: replicas,
                status_replicas: replicas,
                available_replicas: replicas,
                template: template("v1"),
                ..MachineSet::default()
            }],
            machines: (0..replicas)
                .map(|index| Machine {
                    name: format!("m{index}"),
                    owner: "old".into(),
                    created_at: Timestamp::from_second(index).unwrap(),
                    has_node: true,
                    ..Machine::default()
                })
                .collect(),
            unavailable: BTreeSet::new(),
            answers: [("old".to_owned(), Answer::InPlace)].into(),
            in_place_updates: true,
            order: DeletionOrder::default(),
            now: Timestamp::from_second(1000).unwrap(),
        }
    }

    fn counts(outcome: &SimulatedRollout) -> (usize, i64, usize, End) {
        (outcome.in_place.len(), outcome.created, outcome.deleted.len(), outcome.end)
    }

    #[test]
    fn a_healthy_group_ends_as_predicted() {
        for replicas in 0..6 {
            for (surge, unavailable) in [(0, 1), (1, 0), (1, 1), (0, 3), (2, 0), (3, 2)] {
                let outcome = workers(replicas, surge, unavailable).run();
                let strategy = workers(replicas, surge, unavailable).deployment.strategy;
                let predicted = predict::machine_deployment(replicas, &strategy);
                let kept = i64::try_from(outcome.in_place.len()).unwrap();
                assert_eq!(kept, predicted.kept, "{replicas} {surge}/{unavailable}");
                assert_eq!(outcome.end == End::Done, predicted.ends);
                assert_eq!(outcome.total, replicas);
            }
        }
    }

    #[test]
    fn the_response_of_the_extension_decides() {
        let with = |answer| {
            let mut workers = workers(3, 0, 1);
            workers.answers.insert("old".into(), answer);
            counts(&workers.run())
        };
        assert_eq!(with(Answer::InPlace), (3, 0, 0, End::Done));
        assert_eq!(with(Answer::Replace), (0, 3, 3, End::Done));
        assert_eq!(with(Answer::Wait), (0, 0, 0, End::Waits));
    }

    #[test]
    fn without_the_gate_all_are_replaced_without_a_call() {
        let mut off = workers(3, 1, 0);
        off.in_place_updates = false;
        let outcome = off.run();
        assert!(!outcome.asked);
        assert_eq!(counts(&outcome), (0, 3, 3, End::Done));
    }

    #[test]
    fn on_delete_does_nothing_by_itself() {
        let mut group = workers(3, 0, 1);
        group.deployment.strategy = Strategy::OnDelete;
        assert_eq!(counts(&group.run()), (0, 0, 0, End::Stuck));
    }

    #[test]
    fn a_machine_awaiting_remediation_is_deleted_not_moved() {
        let mut group = workers(3, 0, 1);
        group.machines[1].needs_remediation = true;
        group.machines[1].unhealthy = true;
        group.unavailable.insert("m1".into());
        let outcome = group.run();
        assert_eq!(outcome.deleted, BTreeSet::from(["m1".to_owned()]));
        assert_eq!(counts(&outcome), (2, 1, 1, End::Done));
    }

    #[test]
    fn a_group_that_is_up_to_date_stays_as_it_is() {
        let mut group = workers(3, 1, 0);
        group.deployment.template = template("v1");
        assert_eq!(counts(&group.run()), (0, 0, 0, End::Done));
    }
}
