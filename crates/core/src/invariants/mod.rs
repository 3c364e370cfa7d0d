//! Safety invariants, checked after every write: the invariants of `docs/architecture.md` as code.
//!
//! A [`World`] receives every write of a simulation and returns the violations of that write;
//! [`World::at_rest`] checks the final state. `refit doctor` checks the objects of a cluster at
//! rest. The module shares no code with the decisions that it checks, only the objects.
//!
//! | number | after every write |
//! |---|---|
//! | 1 | no available machine is disturbed unless enough others of its group are available |
//! | 2 | one control plane member at a time, while the others are healthy |
//! | 3 | no machine is replaced unless policy, surge, a user or remediation asks for it |
//! | 4 | one unfinished NodeUpdate per Machine; none starts twice, reopens, or goes below the version at which it began unasked; its updaters work one after the other |
//! | 7 | a cordon, taint or label of an admin survives; an update disturbs its machine as its parts and its plan say, and no step of the plan needs more |
//! | 8 | no gate lets an aborted update change the host |
//! | 9 | no available machine gets a slot outside of the maintenance windows of its group, or while an alert has closed a gate of it |
//! | 10 | a plan requests a Cluster once, and only when its spec lets it: wave by wave, so many at once, until too many have failed; it replaces only an upgrade that has ended |
//!
//! | number | at rest |
//! |---|---|
//! | 6 | every machine is updated, untouched, or failed or stopped with a reason; one that is behind its MachineDeployment's MachineSet has an update request |
//! | 7 | no cordon of Refit remains after success; after a failure the status reports it |
//! | 8 | no annotation or slot of Refit remains on a Machine that is whole |
//!
//! Invariant 5, that whatever waits has a reason, needs the world around the objects: the fault
//! simulation checks it.
//!
//! A machine is *disturbed* from the moment its HostPlan's gate is `Upgrade` or wider, unless the plan's disruption is `None`, or its Node
//! has Refit's cordon, until its NodeUpdate has ended and its Node is Ready and schedulable. The gate
//! of a provider's object disturbs it, too, until the provider has also ended. It is
//! *available* if its Node is Ready and has no cordon of Refit, and it is neither disturbed nor
//! being deleted. Cluster API's condition `Available` is ignored: it becomes False as soon as a
//! machine is selected.

mod disruption;
mod fleet;
mod objects;
mod observe;
mod provider;
mod rest;
mod state;
mod windows;

#[cfg(test)]
mod tests;

use std::fmt;

pub use state::World;

/// An invariant that a [`World`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Enough others of the group of a disturbed machine are available.
    EnoughAvailable,
    /// One control plane member at a time, while the others are healthy.
    OneMember,
    /// No machine is replaced unasked.
    NoReplacement,
    /// One unfinished NodeUpdate per Machine, which starts once and lowers no version unasked.
    OneUpdate,
    /// The updaters of an update disturb the machine one after the other.
    OneUpdater,
    /// Every machine is updated, untouched, or failed or stopped with a reason.
    NoneForgotten,
    /// A Machine behind its MachineSet has an update request.
    UpdateRequested,
    /// No cordon of Refit is left; a cordon, taint or label of an admin survives.
    Cordons,
    /// An update disturbs its machine as its parts and its plan say: without a drain it neither cordons the node nor evicts
    /// pods, and no step of the plan needs more. One that only issues certificates does nothing else on the host.
    Disruption,
    /// No gate lets an aborted update change the host.
    AbortStops,
    /// Nothing of Refit is left on a Machine that is whole.
    NothingLeft,
    /// A machine begins in a maintenance window of its group.
    InWindow,
    /// No machine begins while an alert has closed a gate of its group.
    GateOpen,
    /// A plan requests a Cluster once, and only when its spec lets it.
    WavesKept,
}

impl Invariant {
    /// Its number in `docs/architecture.md`.
    pub fn number(self) -> u8 {
        match self {
            Self::EnoughAvailable => 1,
            Self::OneMember => 2,
            Self::NoReplacement => 3,
            Self::OneUpdate | Self::OneUpdater => 4,
            Self::NoneForgotten | Self::UpdateRequested => 6,
            Self::Cordons | Self::Disruption => 7,
            Self::AbortStops | Self::NothingLeft => 8,
            Self::InWindow | Self::GateOpen => 9,
            Self::WavesKept => 10,
        }
    }
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// Kind and name of the violating object.
    pub object: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}: {}", self.invariant.number(), self.object, self.message)
    }
}
