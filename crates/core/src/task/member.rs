//! What a Machine of a task's group waits for.

use jiff::Timestamp;
use refit_kinds::{
    conditions,
    refit::{ExceptionRule, MachineUid, NodeUpdate, Phase},
    version::KubernetesVersion,
};

use crate::node::{HOST_LOST, MEMBER_MISSING, SUPERSEDED};

/// Failures after which the next look may request another update without a person.
const PASSING: [&str; 3] = [SUPERSEDED, MEMBER_MISSING, HOST_LOST];

/// How a Machine's spec compares with what its owner requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecState {
    /// It is as before.
    #[default]
    Outdated,
    /// It has been handed over, and its own spec is still to be written.
    HandedOver,
    /// It is what the owner requests.
    Current,
}

/// A Machine of a task's group.
#[derive(Clone, Debug, Default)]
pub struct Member<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: MachineUid,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub deleting: bool,
    /// How its spec compares with what its owner requests.
    pub spec: SpecState,
    /// The task that is written on it.
    pub task: Option<&'a str>,
    /// Status and reason of its condition MachineUpToDate.
    pub shows: Option<(&'a str, &'a str)>,
    /// The NodeUpdate that speaks for it.
    pub update: Option<&'a NodeUpdate>,
    /// Another attempt is requested of this NodeUpdate: by annotation, or by a task that is newer than its end.
    pub retry: Option<&'a str>,
    /// An operator has it left out, for the rollout or until it is released.
    pub exception: Option<ExceptionRule>,
    /// It is there only while its Cluster is upgraded, and is deleted after that.
    pub is_extra: bool,
    /// Cluster API updates it in place.
    pub is_updated_by_cluster_api: bool,
}

/// What a Machine waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemberState<'a> {
    /// Nothing: it is up to date.
    Updated,
    /// Its deletion.
    Deleting,
    /// Its turn.
    Waiting,
    /// An operator, who has it left out.
    Excepted(ExceptionRule),
    /// Its unfinished NodeUpdate.
    Updating(&'a NodeUpdate),
    /// The write of what its update has reached.
    Reached,
    /// A person: its NodeUpdate failed or was stopped.
    Failed(&'a NodeUpdate),
}

impl<'a> Member<'a> {
    /// What the Machine waits for, on its way to `target`.
    pub fn state(&self, target: Option<&KubernetesVersion>) -> MemberState<'a> {
        if self.deleting {
            return MemberState::Deleting;
        }
        let phase = self.update.map(NodeUpdate::phase);
        match (self.update, phase) {
            (Some(update), Some(phase)) if !phase.is_final() => MemberState::Updating(update),
            _ if self.spec == SpecState::Current => MemberState::Updated,
            _ if self.spec == SpecState::HandedOver => MemberState::Reached,
            (Some(update), Some(Phase::Failed | Phase::Stopped))
                if is_for(update, target) && !self.may_go_on(update) =>
            {
                MemberState::Failed(update)
            }
            (Some(update), Some(Phase::Succeeded)) if is_for(update, target) => {
                MemberState::Reached
            }
            _ => self.exception.map_or(MemberState::Waiting, MemberState::Excepted),
        }
    }

    /// Whether the next look may request another update after this one.
    fn may_go_on(&self, update: &NodeUpdate) -> bool {
        let reason = update.status.as_ref().map_or("", |status| &status.failure_reason);
        PASSING.contains(&reason)
            || self.retry.is_some() && self.retry == update.metadata.name.as_deref()
    }

    /// Whether its condition shows that it waits, with no NodeUpdate that speaks for it.
    pub(super) fn shows_that_it_waits(&self) -> bool {
        self.shows == Some(("Unknown", conditions::REASON_WAITING))
    }
}

/// Whether an update is on the way to this version, or to no version at all.
pub(super) fn is_for(update: &NodeUpdate, target: Option<&KubernetesVersion>) -> bool {
    update.spec.goal.kubernetes_version.as_ref() == target
}
