//! What a Machine waits for, of which a task asks by annotation.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::{
    canonical::{K8SD, Keys, UpgradeStatus},
    refit::{ExceptionRule, MachineUid, NodeUpdate, PartState},
};

/// A Machine of the group.
#[derive(Clone, Copy, Debug)]
pub struct OptionMember<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a MachineUid,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub deleting: bool,
    /// All its annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The newest NodeUpdate that annotations of the task's prefix have requested for it.
    pub update: Option<&'a NodeUpdate>,
    /// An operator has it left out.
    pub exception: Option<ExceptionRule>,
}

/// What a Machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionState {
    /// Nothing: the option is its release.
    Updated,
    /// Its deletion.
    Deleting,
    /// Its turn.
    Waiting,
    /// Its turn, although it is asked for another option, which has not begun.
    Overruled,
    /// A person, who removes a status that shows an upgrade which nothing requests.
    ShownInProgress,
    /// An operator, who has it left out.
    Excepted(ExceptionRule),
    /// The end of its upgrade.
    Updating,
    /// Another attempt, or a person: the last one failed.
    Failed,
}

impl OptionState {
    /// Whether the Machine takes the place of one that may be down.
    pub(super) fn is_under_way(self) -> bool {
        match self {
            Self::Updating | Self::Failed | Self::Deleting => true,
            Self::Updated
            | Self::Waiting
            | Self::Overruled
            | Self::ShownInProgress
            | Self::Excepted(_) => false,
        }
    }
}

impl OptionMember<'_> {
    /// What the Machine waits for, on its way to an option.
    pub fn state(&self, keys: Keys, waits_for_status: bool, option: &str) -> OptionState {
        if self.deleting {
            return OptionState::Deleting;
        }
        let get = |key: &str| self.annotations.get(key).map(String::as_str);
        let is_busy = self.update.is_some_and(|update| !update.phase().is_final());
        let may_run =
            self.may_run_a_refresh() || keys.change_id.is_some_and(|key| get(key).is_some());
        match get(keys.upgrade_to) {
            Some(to) if to == option => {
                let has_failed = get(keys.last_failed_attempt_at).is_some_and(|at| !at.is_empty());
                if has_failed { OptionState::Failed } else { OptionState::Updating }
            }
            // What runs is finished first; what only waits, or fails again and again, gives way.
            Some(_) if may_run => OptionState::Updating,
            Some(_) => self.waits(OptionState::Overruled),
            None if is_busy => OptionState::Updating,
            None if get(keys.release) == Some(option) => OptionState::Updated,
            None if waits_for_status
                && get(keys.status) == Some(UpgradeStatus::InProgress.into()) =>
            {
                OptionState::ShownInProgress
            }
            None => self.waits(OptionState::Waiting),
        }
    }

    /// Whether a refresh may run on the node: annotations show that later.
    fn may_run_a_refresh(&self) -> bool {
        let status = self.update.and_then(|update| update.status.as_ref());
        status.is_some_and(|status| {
            !status.phase.is_final() && status.part(K8SD).state == PartState::Running
        })
    }

    fn waits(&self, otherwise: OptionState) -> OptionState {
        self.exception.map_or(otherwise, OptionState::Excepted)
    }
}
