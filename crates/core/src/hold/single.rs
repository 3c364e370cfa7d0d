//! What becomes of the only Machine of a control plane: Cluster API never updates it in place, it creates a second one
//! first.

use refit_cluster_api::kinds::{KubeadmControlPlane, Machine};
use refit_kinds::conditions;

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
    pub paused: PausedBy,
    /// The UpgradeTasks of the control plane.
    pub task: TaskSeen,
}

/// Who has paused a control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedBy {
    /// It is not paused.
    None,
    /// Refit, because its Machine would be replaced.
    Hold,
    /// An UpgradeTask, or another client.
    Others,
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
    /// The one that was created here for what is requested now has ended, and the Machine is still outdated: an
    /// operator has aborted it.
    Ended,
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
    /// Decides what is done next.
    pub fn next(&self) -> Step {
        if !self.is_outdated || !(self.is_held || self.in_place) {
            return match self.paused {
                PausedBy::Hold => Step::Release,
                PausedBy::None | PausedBy::Others => Step::Nothing,
            };
        }
        match &self.task {
            TaskSeen::Unfinished => Step::Nothing,
            TaskSeen::Stale(name) => Step::Abort(name.clone()),
            TaskSeen::Missing if self.in_place => Step::Update,
            TaskSeen::Missing | TaskSeen::Ended => match self.paused {
                PausedBy::None if self.is_held => Step::Pause,
                PausedBy::None | PausedBy::Hold | PausedBy::Others => Step::Nothing,
            },
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
        paused: PausedBy::None,
        task: TaskSeen::Missing,
    };

    #[test]
    fn a_held_control_plane_is_paused_until_its_machine_is_up_to_date() {
        let (hold, others) = (PausedBy::Hold, PausedBy::Others);
        for (paused, wanted) in
            [(PausedBy::None, Step::Pause), (hold, Step::Nothing), (others, Step::Nothing)]
        {
            assert_eq!(Only { paused, ..OUTDATED }.next(), wanted, "{paused:?}");
            let freed = if paused == hold { Step::Release } else { Step::Nothing };
            assert_eq!(Only { paused, is_outdated: false, ..OUTDATED }.next(), freed);
            assert_eq!(Only { paused, is_held: false, ..OUTDATED }.next(), freed);
        }
    }

    #[test]
    fn an_opted_in_control_plane_gets_one_task_for_what_it_requests() {
        for paused in [PausedBy::None, PausedBy::Hold, PausedBy::Others] {
            for is_held in [true, false] {
                let seen = Only { in_place: true, paused, is_held, ..OUTDATED };
                let next = |task| Only { task, ..seen.clone() }.next();
                assert_eq!(next(TaskSeen::Missing), Step::Update);
                assert_eq!(next(TaskSeen::Unfinished), Step::Nothing);
                assert_eq!(next(TaskSeen::Stale("one".into())), Step::Abort("one".into()));
            }
        }
    }

    #[test]
    fn the_abort_of_a_task_is_not_undone() {
        let seen = Only { in_place: true, task: TaskSeen::Ended, ..OUTDATED };
        assert_eq!(seen.next(), Step::Pause);
        assert_eq!(Only { paused: PausedBy::Others, ..seen.clone() }.next(), Step::Nothing);
        assert_eq!(Only { is_held: false, ..seen }.next(), Step::Nothing);
    }
}
