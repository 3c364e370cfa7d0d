//! What becomes of the only Machine of a control plane: Cluster API never updates it in place, it creates a second one
//! first.

use refit_cluster_api::kinds::{KubeadmControlPlane, Machine};
use refit_kinds::conditions;

use crate::task::Paused;

/// What is known of a control plane with one Machine.
#[derive(Clone, Debug)]
pub struct Only {
    /// The Machine is not what the control plane requests.
    pub is_outdated: bool,
    /// The API server refuses a second Machine.
    pub is_held: bool,
    /// The policy lets Refit update it in place.
    pub in_place: bool,
    /// Who has paused the control plane.
    pub paused: Paused,
    /// The UpgradeTasks of the control plane.
    pub task: TaskSeen,
}

/// The UpgradeTasks of a control plane, seen from what it requests now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskSeen {
    /// None of them is about what is requested now.
    Missing,
    /// One has not ended.
    Unfinished,
    /// The one of this name has not ended. It was created here for what was requested before.
    Stale(String),
    /// The one of this name was created here for what is requested now, and has ended, and the Machine is still outdated:
    /// an operator has aborted it, or a Machine that it has updated was changed by another client.
    Ended(String),
}

/// What is done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// The control plane is paused: each attempt of Cluster API creates an infrastructure machine.
    Pause,
    /// Cluster API goes on with the control plane.
    Release,
    /// An UpgradeTask is created, which updates the Machine in place.
    Update,
    /// The UpgradeTask of this name is aborted.
    Abort(String),
}

impl Only {
    /// Decides what is done next. A held control plane is paused first, whatever follows. One that is neither held nor
    /// paused is left alone: Cluster API creates a second Machine at once.
    pub fn next(&self) -> Step {
        let is_kept = self.is_outdated && (self.is_held || self.in_place);
        if is_kept && self.is_held && self.paused == Paused::No {
            return Step::Pause;
        }
        match (&self.task, &self.paused) {
            // Also where the Machine is what is requested again: its host may not be.
            (TaskSeen::Stale(name), _) => Step::Abort(name.clone()),
            (TaskSeen::Missing, Paused::ByHold | Paused::ByTask(_)) if is_kept && self.in_place => {
                Step::Update
            }
            (_, Paused::ByHold) if !is_kept => Step::Release,
            (
                TaskSeen::Missing | TaskSeen::Unfinished | TaskSeen::Ended(_),
                Paused::No | Paused::ByHold | Paused::ByTask(_) | Paused::ByOthers,
            ) => Step::Nothing,
        }
    }
}

/// Whether Cluster API may see a Machine as outdated. If so, a comparison of the objects shows whether it is.
pub fn may_be_outdated(plane: &KubeadmControlPlane, machine: &Machine) -> bool {
    let shown = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
    machine.spec.version != plane.spec.version
        || conditions::get(shown, conditions::UP_TO_DATE).is_some_and(|up_to_date| {
            up_to_date.status == "False" && up_to_date.reason == conditions::NOT_UP_TO_DATE
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outdated Machine that is held, of a control plane that Cluster API works on.
    const OUTDATED: Only = Only {
        is_outdated: true,
        is_held: true,
        in_place: false,
        paused: Paused::No,
        task: TaskSeen::Missing,
    };

    fn tasks() -> [TaskSeen; 4] {
        let stale = TaskSeen::Stale("one".into());
        [TaskSeen::Missing, TaskSeen::Unfinished, stale, TaskSeen::Ended("one".into())]
    }

    #[test]
    fn a_held_control_plane_is_paused_before_anything_else_is_done() {
        for task in tasks() {
            for in_place in [true, false] {
                let seen = Only { in_place, task: task.clone(), ..OUTDATED };
                assert_eq!(seen.next(), Step::Pause, "{seen:?}");
            }
        }
    }

    #[test]
    fn cluster_api_goes_on_once_the_machine_is_up_to_date_or_no_longer_held() {
        let up_to_date = Only { is_outdated: false, ..OUTDATED };
        let free = Only { is_held: false, ..OUTDATED };
        for seen in [up_to_date, free] {
            for task in [TaskSeen::Missing, TaskSeen::Unfinished, TaskSeen::Ended("one".into())] {
                let next = |paused| Only { paused, task: task.clone(), ..seen.clone() }.next();
                assert_eq!(next(Paused::ByHold), Step::Release);
                assert_eq!(next(Paused::No), Step::Nothing);
                // A task lets the control plane go on by itself, or an operator does.
                assert_eq!(next(Paused::ByTask("old".into())), Step::Nothing);
                assert_eq!(next(Paused::ByOthers), Step::Nothing);
            }
        }
    }

    #[test]
    fn an_outdated_machine_keeps_its_control_plane_paused_until_an_operator_decides() {
        for paused in [Paused::ByHold, Paused::ByTask("old".into()), Paused::ByOthers] {
            for task in [TaskSeen::Missing, TaskSeen::Unfinished, TaskSeen::Ended("one".into())] {
                let seen = Only { paused: paused.clone(), task, ..OUTDATED };
                assert_eq!(seen.next(), Step::Nothing, "{seen:?}");
            }
        }
    }

    #[test]
    fn a_paused_control_plane_gets_one_task_for_what_it_requests() {
        for (paused, wanted) in [
            (Paused::ByHold, Step::Update),
            (Paused::ByTask("old".into()), Step::Update),
            // Whatever another client does with it must not be disturbed.
            (Paused::ByOthers, Step::Nothing),
        ] {
            for is_held in [true, false] {
                let paused = paused.clone();
                let seen = Only { in_place: true, paused, is_held, ..OUTDATED };
                let next = |task| Only { task, ..seen.clone() }.next();
                assert_eq!(next(TaskSeen::Missing), wanted, "{seen:?}");
                assert_eq!(next(TaskSeen::Unfinished), Step::Nothing);
                assert_eq!(next(TaskSeen::Ended("one".into())), Step::Nothing);
            }
        }
    }

    #[test]
    fn a_task_for_an_earlier_request_is_stopped_also_if_the_machine_is_what_is_requested_again() {
        for is_outdated in [true, false] {
            for paused in [Paused::ByHold, Paused::ByTask("one".into()), Paused::ByOthers] {
                let task = TaskSeen::Stale("one".into());
                let seen = Only { is_outdated, in_place: true, paused, task, ..OUTDATED };
                assert_eq!(seen.next(), Step::Abort("one".into()));
            }
        }
    }

    #[test]
    fn without_a_hold_no_task_is_created_for_a_control_plane_that_cluster_api_works_on() {
        let seen = Only { in_place: true, is_held: false, ..OUTDATED };
        assert_eq!(seen.next(), Step::Nothing);
        assert_eq!(Only { task: TaskSeen::Unfinished, ..seen }.next(), Step::Nothing);
    }
}
