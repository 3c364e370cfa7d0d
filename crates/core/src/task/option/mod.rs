//! A task that has k8sd install an option, such as a channel, on the Machines of a group.
//!
//! It asks one Machine after the other, by annotation, and waits until each shows the option as its release. What an
//! annotation of a Machine leads to is decided in [`crate::annotation`]. The owner of the Machines is neither paused nor
//! changed: its spec does not name what k8sd installs.
//!
//! Under the prefix of Canonical's controllers, members of a control plane take turns by a lock, as those controllers
//! expect it; the slot of the group holds as well.

mod actions;
mod member;
mod status;

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use refit_kinds::{
    canonical::Keys,
    refit::{GoalOption, PacingOrder, TaskPhase, UpgradeTask},
};

pub use self::{
    actions::{OptionAction, option_actions},
    member::{OptionMember, OptionState},
    status::option_status,
};
use super::{Obstacle, is_to_stop};

/// The lock of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// None is needed.
    #[default]
    Unused,
    /// No Machine holds it.
    Free,
    /// The Machine of this name holds it.
    Held(String),
    /// It cannot be read.
    Unreadable(String),
}

/// The owner of the Machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionOwner {
    /// It is being deleted.
    pub deleting: bool,
    /// All its replicas are ready, as far as it shows that.
    pub is_ready: bool,
}

/// Everything that a task with an option is decided on.
#[derive(Clone, Debug)]
pub struct OptionSeen<'a> {
    /// The task.
    pub task: &'a UpgradeTask,
    /// What it installs.
    pub option: &'a GoalOption,
    /// The annotations by which it asks.
    pub keys: Keys,
    /// A Machine whose status shows an upgrade is waited for, also if nothing requests that, as Canonical's controllers do
    /// with workers.
    pub waits_for_status: bool,
    /// What stands in the way.
    pub obstacle: Option<Obstacle>,
    /// The owner, if it is known.
    pub owner: Option<OptionOwner>,
    /// The Machines of the group.
    pub machines: Vec<OptionMember<'a>>,
    /// There are fewer of them than the owner requests.
    pub lacks_machines: bool,
    /// How many of them are asked at a time.
    pub at_once: usize,
    /// Which of the waiting ones is next; by default in the order of their uids.
    pub order: Option<PacingOrder>,
    /// The group's pacing lets no further Machine begin.
    pub is_paced_to_a_halt: bool,
    /// The lock of the control plane.
    pub lock: Lock,
    /// The time of the look.
    pub now: Timestamp,
}

impl<'a> OptionSeen<'a> {
    /// Whether the task is to stop: on request, or because it is being deleted.
    pub fn stops(&self) -> bool {
        is_to_stop(self.task)
    }

    fn phase(&self) -> TaskPhase {
        self.task.status.as_ref().map(|status| status.phase).unwrap_or_default()
    }

    /// The Machines that the task is for, with what each waits for.
    fn members(&self) -> Vec<(&OptionMember<'a>, OptionState)> {
        let named = self.task.spec.machines.as_ref();
        let is_named = |member: &&OptionMember<'a>| {
            named.is_none_or(|named| named.iter().any(|name| name == member.name))
        };
        let all = self.machines.iter().filter(is_named);
        all.map(|member| (member, self.state_of(member))).collect()
    }

    fn state_of(&self, member: &OptionMember<'_>) -> OptionState {
        member.state(self.keys, self.waits_for_status, &self.option.to_string())
    }

    /// The first of the named Machines, if the owner has none of them.
    fn missing(&self) -> Option<&str> {
        let named = self.task.spec.machines.as_ref()?;
        let is_there = |name: &String| self.machines.iter().any(|member| member.name == name);
        if named.iter().any(is_there) { None } else { named.first().map(String::as_str) }
    }

    /// Whether the Machine that holds the lock needs it no longer. A refresh that runs is never left without it.
    fn may_unlock(&self, holder: &str) -> bool {
        let member = self.machines.iter().find(|member| member.name == holder);
        member.is_none_or(|member| !self.state_of(member).is_under_way())
    }
}
