//! How a whole rollout ends: which machines stay, and which are replaced by the group's own surge.
//!
//! The real planner is run to its end on an imaginary group in which every machine is healthy and
//! the extension covers the change. There is no second formula that could drift from it.

use jiff::Timestamp;

use super::control_plane::{ControlPlane, ControlPlaneMachine, Decision, decide};
use super::keys;
use super::machine_set::{
    DeletionOrder, MachineSetAction, Trigger, sync_replicas, trigger_in_place,
};
use super::plan::{Decisions, PlanInput, plan};
use super::types::{Machine, MachineDeployment, MachineSet, Strategy, Template};

/// More steps than any rollout needs per machine; a guard against a planner that never ends.
const STEPS_PER_MACHINE: i64 = 64;

/// How many machines of a group are still the same after a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prediction {
    /// Machines that are updated in place.
    pub kept: i64,
    /// Machines that are replaced, or deleted because a surge machine took their place.
    pub replaced: i64,
    /// The rollout ends by itself. OnDelete does not: it waits for a user to delete machines.
    pub ends: bool,
}

/// Predicts the rollout of a MachineDeployment whose machines can all be updated in place.
pub fn machine_deployment(replicas: i64, strategy: &Strategy) -> Prediction {
    let template = |version: &str| Template {
        version: version.to_owned(),
        ..Template::default()
    };
    let mut group = Group {
        deployment: MachineDeployment {
            name: "group".to_owned(),
            replicas,
            strategy: strategy.clone(),
            template: template("new"),
            rollout_after: None,
        },
        sets: vec![MachineSet {
            name: "old".to_owned(),
            spec_replicas: replicas,
            status_replicas: replicas,
            available_replicas: replicas,
            up_to_date_replicas: 0,
            template: template("old"),
            ..MachineSet::default()
        }],
        machines: (0..replicas).map(|index| machine(index, "old")).collect(),
        created: replicas,
    };
    let ends = (0..STEPS_PER_MACHINE.saturating_mul(replicas + 1)).any(|_| group.step());
    let kept = group
        .machines
        .iter()
        .filter(|machine| number(machine) < replicas)
        .count();
    let kept = if ends {
        i64::try_from(kept).unwrap_or(replicas)
    } else {
        0
    };
    Prediction {
        kept,
        replaced: replicas - kept,
        ends,
    }
}

/// Predicts the rollout of a control plane whose machines can all be updated in place.
pub fn control_plane(replicas: i64, max_surge: i64) -> Prediction {
    let mut state = ControlPlane {
        replicas,
        max_surge,
        in_place_updates: true,
        managed_etcd: true,
        ..ControlPlane::default()
    };
    state.machines = (0..replicas)
        .map(|index| control_plane_machine(index, false))
        .collect();
    let mut created = replicas;
    let mut ends = false;
    for _ in 0..STEPS_PER_MACHINE.saturating_mul(replicas + 1) {
        match decide(&state) {
            Decision::UpToDate => {
                ends = true;
                break;
            }
            Decision::ScaleUp(_) => {
                state.machines.push(control_plane_machine(created, true));
                created += 1;
            }
            Decision::AskExtension(name) => {
                state.can_update.insert(name, true);
            }
            Decision::TriggerInPlace(name)
            | Decision::CompleteTrigger(name)
            | Decision::WaitForUpdate(name) => {
                for machine in state
                    .machines
                    .iter_mut()
                    .filter(|machine| machine.name == name)
                {
                    machine.up_to_date = true;
                }
            }
            Decision::ScaleDown(name, _) => state.machines.retain(|machine| machine.name != name),
            Decision::Wait(_) => break,
        }
    }
    let original = |machine: &&ControlPlaneMachine| machine.created_at.as_second() < replicas;
    let kept = if ends {
        state.machines.iter().filter(original).count()
    } else {
        0
    };
    let kept = i64::try_from(kept).unwrap_or(replicas);
    Prediction {
        kept,
        replaced: replicas - kept,
        ends,
    }
}

fn control_plane_machine(index: i64, up_to_date: bool) -> ControlPlaneMachine {
    ControlPlaneMachine {
        name: format!("m{index}"),
        created_at: Timestamp::from_second(index).unwrap_or_default(),
        up_to_date,
        has_node: true,
        ..ControlPlaneMachine::default()
    }
}

fn machine(index: i64, owner: &str) -> Machine {
    Machine {
        name: format!("m{index}"),
        owner: owner.to_owned(),
        created_at: Timestamp::from_second(index).unwrap_or_default(),
        has_node: true,
        ..Machine::default()
    }
}

fn number(machine: &Machine) -> i64 {
    machine.created_at.as_second()
}

/// A MachineDeployment with its MachineSets and machines, one reconcile of each per step.
struct Group {
    deployment: MachineDeployment,
    sets: Vec<MachineSet>,
    machines: Vec<Machine>,
    created: i64,
}

impl Group {
    /// One round of all controllers; whether nothing is left to do.
    fn step(&mut self) -> bool {
        let before = (self.sets.clone(), self.machines.clone());
        self.plan();
        for index in 0..self.sets.len() {
            self.reconcile(index);
        }
        for index in 0..self.sets.len() {
            self.update_status(index);
        }
        let old_gone = self.machines.iter().all(|machine| machine.owner == "new");
        before == (self.sets.clone(), self.machines.clone()) && old_gone
    }

    fn plan(&mut self) {
        let decisions = Decisions::from([(("old".to_owned(), "new".to_owned()), true)]);
        let plan = plan(&PlanInput {
            deployment: &self.deployment,
            machine_sets: &self.sets,
            machines: &self.machines,
            in_place_updates: true,
            decisions: &decisions,
            new_name: "new",
            now: Timestamp::default(),
        });
        for set in &mut self.sets {
            if let Some(planned) = plan.machine_sets.get(&set.name) {
                set.spec_replicas = planned.replicas;
                set.annotations.clone_from(&planned.annotations);
            }
        }
        if let Some(created) = plan.create {
            self.sets.push(MachineSet {
                name: created.name,
                spec_replicas: created.replicas,
                annotations: created.annotations,
                template: self.deployment.template.clone(),
                ..MachineSet::default()
            });
        }
    }

    fn reconcile(&mut self, index: usize) {
        let set = self.sets[index].clone();
        let updates_done =
            |machine: &&mut Machine| machine.owner == set.name && !machine.is_pending_acknowledge();
        for machine in self.machines.iter_mut().filter(updates_done) {
            machine.annotations.remove(keys::UPDATE_IN_PROGRESS);
        }
        let own = |machines: &[Machine]| -> Vec<Machine> {
            machines
                .iter()
                .filter(|machine| machine.owner == set.name)
                .cloned()
                .collect()
        };
        for trigger in trigger_in_place(&set, &own(&self.machines)) {
            if let Trigger::CompleteMove { machine, .. } = trigger {
                for found in self
                    .machines
                    .iter_mut()
                    .filter(|found| found.name == machine)
                {
                    found.annotations.remove(keys::PENDING_ACKNOWLEDGE_MOVE);
                }
            }
        }
        let target = set
            .annotation(keys::MOVE_MACHINES)
            .and_then(|name| self.sets.iter().find(|other| other.name == name));
        let action = sync_replicas(&set, &own(&self.machines), target, DeletionOrder::default());
        match action {
            Ok(MachineSetAction::Create(count)) => {
                for _ in 0..count {
                    self.machines.push(machine(self.created, &set.name));
                    self.created += 1;
                }
            }
            Ok(MachineSetAction::Delete(names)) => {
                self.machines
                    .retain(|machine| !names.contains(&machine.name));
            }
            Ok(MachineSetAction::Move(moved)) => {
                let moves = |machine: &&mut Machine| moved.machines.contains(&machine.name);
                for machine in self.machines.iter_mut().filter(moves) {
                    machine.owner.clone_from(&moved.target);
                    for key in [keys::UPDATE_IN_PROGRESS, keys::PENDING_ACKNOWLEDGE_MOVE] {
                        machine.annotations.insert(key.to_owned(), String::new());
                    }
                }
            }
            Ok(MachineSetAction::None | MachineSetAction::CreateDisabled { .. }) | Err(_) => {}
        }
    }

    fn update_status(&mut self, index: usize) {
        let current = self.sets[index].template == self.deployment.template;
        let set = &mut self.sets[index];
        let own = self
            .machines
            .iter()
            .filter(|machine| machine.owner == set.name);
        let (mut replicas, mut available) = (0, 0);
        for machine in own {
            replicas += 1;
            available += i64::from(!machine.is_updating());
        }
        set.status_replicas = replicas;
        set.available_replicas = available;
        set.up_to_date_replicas = if current { available } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::IntOrPercent;
    use super::*;

    fn rolling(replicas: i64, surge: &str, unavailable: &str) -> (i64, i64) {
        let read = |text: &str| text.parse::<IntOrPercent>().unwrap();
        let strategy = Strategy::rolling_update(read(surge), read(unavailable));
        let prediction = machine_deployment(replicas, &strategy);
        assert!(prediction.ends);
        (prediction.kept, prediction.replaced)
    }

    #[test]
    fn the_default_strategy_replaces_one_machine() {
        assert_eq!(rolling(5, "1", "0"), (4, 1));
        assert_eq!(rolling(3, "1", "0"), (2, 1));
        assert_eq!(rolling(6, "10", "0"), (5, 1));
    }

    #[test]
    fn without_surge_every_machine_stays() {
        assert_eq!(rolling(5, "0", "1"), (5, 0));
        assert_eq!(rolling(1, "0", "1"), (1, 0));
        assert_eq!(rolling(6, "0", "10"), (6, 0));
        assert_eq!(rolling(6, "1", "3"), (6, 0));
    }

    #[test]
    fn a_single_machine_with_surge_is_replaced() {
        assert_eq!(rolling(1, "1", "0"), (0, 1));
    }

    #[test]
    fn percentages_count_too() {
        assert_eq!(rolling(8, "25%", "0%"), (7, 1));
        assert_eq!(rolling(8, "0%", "25%"), (8, 0));
    }

    #[test]
    fn on_delete_waits_for_the_user_and_keeps_nothing() {
        let prediction = machine_deployment(3, &Strategy::OnDelete);
        assert_eq!(
            prediction,
            Prediction {
                kept: 0,
                replaced: 3,
                ends: false
            }
        );
    }

    #[test]
    fn an_empty_group_has_nothing_to_keep() {
        assert_eq!(rolling(0, "1", "0"), (0, 0));
        assert_eq!(
            control_plane(0, 0),
            Prediction {
                kept: 0,
                replaced: 0,
                ends: true
            }
        );
    }

    #[test]
    fn a_control_plane_with_surge_replaces_one_and_without_none() {
        assert_eq!(
            control_plane(3, 1),
            Prediction {
                kept: 2,
                replaced: 1,
                ends: true
            }
        );
        assert_eq!(
            control_plane(5, 1),
            Prediction {
                kept: 4,
                replaced: 1,
                ends: true
            }
        );
        assert_eq!(
            control_plane(3, 0),
            Prediction {
                kept: 3,
                replaced: 0,
                ends: true
            }
        );
        assert_eq!(
            control_plane(1, 1),
            Prediction {
                kept: 0,
                replaced: 1,
                ends: true
            }
        );
    }
}
