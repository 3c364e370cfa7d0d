//! What becomes of the only Machine of a control plane: Cluster API never updates it in place, it creates a second one
//! first.

use kube::ResourceExt as _;
use std::borrow::Borrow;

use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    conditions, keys,
    refit::{Stage, TaskPhase, UpgradeTask, Via},
    version::StatedVersion,
};

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
    /// One that updates Machines itself has not ended.
    Unfinished,
    /// The one of this name has not ended. It was created here for what was requested before.
    Stale(String),
    /// The one of this name was created here for what is requested now, and has ended, and the Machine is still outdated:
    /// an operator has aborted it, or a Machine that it has updated was changed by another client.
    Ended(String),
}

impl TaskSeen {
    /// Sees the tasks of a control plane that makes this request, a hash. `name` is that of the task that is created here
    /// for it.
    pub fn of(tasks: &[impl Borrow<UpgradeTask>], request: &str, name: &str) -> Self {
        let tasks = tasks.iter().map(Borrow::borrow);
        let created_for =
            |task: &UpgradeTask| task.annotations().get(keys::SINGLE_REPLICA).cloned();
        let is_stale = |task: &&UpgradeTask| {
            task.spec.stage != Stage::Abort && created_for(task).is_some_and(|of| of != request)
        };
        let mut unfinished = tasks.clone().filter(|task| !task.phase().has_ended());
        if let Some(task) = unfinished.clone().find(is_stale) {
            return Self::Stale(task.name_any());
        }
        // Cluster API, which replaces the Machine, would do the work of a task with `via: Spec`.
        if unfinished.any(|task| task.spec.via == Via::Machines) {
            return Self::Unfinished;
        }
        // What ended before the newest one was about another request, even if that has come back.
        let created = |task: &&UpgradeTask| task.creation_timestamp().map(|at| at.0);
        let newest = tasks.clone().max_by_key(created).filter(|task| {
            let recorded = || task.status.as_ref().map(|status| status.owner_request.clone());
            task.phase() == TaskPhase::Aborted
                && !task.annotations().contains_key(keys::GOAL_CHANGED)
                && created_for(task).or_else(recorded).is_some_and(|of| of == request)
        });
        let ended = newest.or_else(|| tasks.clone().find(|task| task.name_any() == name));
        ended.map_or(Self::Missing, |task| Self::Ended(task.name_any()))
    }
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

/// Whether Cluster API may see a Machine as outdated whose owner requests this version. If so, a comparison of the objects
/// shows whether it is.
pub fn may_be_outdated(requested: &StatedVersion, machine: &Machine) -> bool {
    let shown = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
    machine.spec.version != *requested
        || conditions::get(shown, conditions::UP_TO_DATE).is_some_and(|up_to_date| {
            up_to_date.status == "False" && up_to_date.reason == conditions::NOT_UP_TO_DATE
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    /// A task with this name: created for this request, at this minute, in this stage and phase.
    fn task((name, of, at): (&str, Option<&str>, u8), stage: &str, phase: &str) -> UpgradeTask {
        serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "creationTimestamp": format!("2026-03-02T08:{at:02}:00Z"),
                "annotations": of.map(|of| json!({keys::SINGLE_REPLICA: of})),
            },
            "spec": {"clusterRef": {"name": "c"}, "via": "Machines", "stage": stage},
            "status": {"phase": phase, "ownerRequest": "now"},
        }))
        .unwrap()
    }

    #[test]
    fn the_tasks_of_a_control_plane_are_seen_from_what_it_requests_now() {
        let ours = ("single-1", Some("now"), 5);
        let of_before = ("single-0", Some("before"), 3);
        let by_hand = ("by-hand", None, 4);
        let ended = |name: &str| TaskSeen::Ended(name.to_owned());
        let changed = |mut task: UpgradeTask| {
            task.annotations_mut().insert(keys::GOAL_CHANGED.to_owned(), String::new());
            task
        };
        let via_spec = |mut task: UpgradeTask| {
            task.spec.via = Via::Spec;
            task
        };
        let table = [
            (vec![], TaskSeen::Missing),
            (vec![task(ours, "Ongoing", "Ongoing")], TaskSeen::Unfinished),
            // It goes on once its cause is gone.
            (vec![task(ours, "Ongoing", "Failed")], TaskSeen::Unfinished),
            (vec![task(by_hand, "Ongoing", "Ongoing")], TaskSeen::Unfinished),
            (vec![task(of_before, "Ongoing", "Ongoing")], TaskSeen::Stale("single-0".into())),
            (vec![via_spec(task(by_hand, "Ongoing", "Failed"))], TaskSeen::Missing),
            // It is being stopped already.
            (vec![task(of_before, "Abort", "Ongoing")], TaskSeen::Unfinished),
            (vec![task(of_before, "Ongoing", "Complete")], TaskSeen::Missing),
            (vec![changed(task(of_before, "Abort", "Aborted"))], TaskSeen::Missing),
            (vec![task(ours, "Ongoing", "Complete")], ended("single-1")),
            (vec![task(ours, "Abort", "Aborted")], ended("single-1")),
            // Its operator has stopped it, for what is requested now.
            (vec![task(by_hand, "Abort", "Aborted")], ended("by-hand")),
            (vec![task(by_hand, "Ongoing", "Complete")], TaskSeen::Missing),
            // The earlier request has come back.
            (
                vec![
                    task(("single-9", Some("now"), 1), "Abort", "Aborted"),
                    changed(task(of_before, "Abort", "Aborted")),
                ],
                TaskSeen::Missing,
            ),
            (
                vec![task(ours, "Ongoing", "Ongoing"), task(of_before, "Ongoing", "Failed")],
                TaskSeen::Stale("single-0".into()),
            ),
        ];
        for (tasks, wanted) in table {
            assert_eq!(TaskSeen::of(&tasks, "now", "single-1"), wanted, "{tasks:#?}");
        }
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
