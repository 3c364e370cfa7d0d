//! Predicts a whole rollout: how many machines stay, and how many the group's surge replaces.
//!
//! It runs the real planner to the end on an imaginary group in which every machine is healthy and
//! the extension covers the change. There is no second formula that could diverge from it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::control_plane::{ControlPlane, ControlPlaneMachine, Decision, decide};
use super::machine_set::DeletionOrder;
use super::simulate::{Answer, End, Workers};
use super::types::{Machine, MachineDeployment, MachineSet, Strategy, Template};

/// Guard against a planner that never ends: more steps per machine than any rollout needs.
const STEPS_PER_MACHINE: i64 = 64;

/// How many machines of a group survive a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prediction {
    /// Machines that are updated in place.
    pub kept: i64,
    /// Machines that are replaced, or deleted because a surge machine took their place.
    pub replaced: i64,
    /// Whether the rollout ends by itself. OnDelete does not: it waits for a user to delete
    /// machines.
    pub ends: bool,
}

/// Predicts the rollout of a MachineDeployment whose machines can all be updated in place.
pub fn machine_deployment(replicas: i64, strategy: &Strategy) -> Prediction {
    let template = |version: &str| Template { version: version.into(), ..Template::default() };
    let machine = |index: i64| Machine {
        name: format!("m{index}"),
        owner: "old".to_owned(),
        created_at: Timestamp::from_second(index).unwrap_or_default(),
        has_node: true,
        ..Machine::default()
    };
    let outcome = Workers {
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
            template: template("old"),
            ..MachineSet::default()
        }],
        machines: (0..replicas).map(machine).collect(),
        unavailable: BTreeSet::new(),
        answers: [("old".to_owned(), Answer::InPlace)].into(),
        in_place_updates: true,
        order: DeletionOrder::default(),
        now: Timestamp::from_second(replicas).unwrap_or_default(),
    }
    .run();
    let ends = outcome.end == End::Done;
    let kept = if ends { i64::try_from(outcome.in_place.len()).unwrap_or(replicas) } else { 0 };
    Prediction { kept, replaced: replicas - kept, ends }
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
    state.machines = (0..replicas).map(|index| control_plane_machine(index, false)).collect();
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
                for machine in state.machines.iter_mut().filter(|machine| machine.name == name) {
                    machine.up_to_date = true;
                }
            }
            Decision::ScaleDown(name, _) => state.machines.retain(|machine| machine.name != name),
            Decision::Wait(_) => break,
        }
    }
    let original = |machine: &&ControlPlaneMachine| machine.created_at.as_second() < replicas;
    let kept = if ends { state.machines.iter().filter(original).count() } else { 0 };
    let kept = i64::try_from(kept).unwrap_or(replicas);
    Prediction { kept, replaced: replicas - kept, ends }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IntOrPercent;

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
        assert_eq!(prediction, Prediction { kept: 0, replaced: 3, ends: false });
    }

    #[test]
    fn an_empty_group_has_nothing_to_keep() {
        assert_eq!(rolling(0, "1", "0"), (0, 0));
        assert_eq!(control_plane(0, 0), Prediction { kept: 0, replaced: 0, ends: true });
    }

    #[test]
    fn a_control_plane_replaces_one_machine_only_with_surge() {
        assert_eq!(control_plane(3, 1), Prediction { kept: 2, replaced: 1, ends: true });
        assert_eq!(control_plane(5, 1), Prediction { kept: 4, replaced: 1, ends: true });
        assert_eq!(control_plane(3, 0), Prediction { kept: 3, replaced: 0, ends: true });
        assert_eq!(control_plane(1, 1), Prediction { kept: 0, replaced: 1, ends: true });
    }
}
