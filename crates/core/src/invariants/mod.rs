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
//! | 4 | one unfinished NodeUpdate per Machine; none starts twice, reopens, or goes down unasked |
//! | 6 | a cordon, taint or label of an admin survives |
//!
//! | number | at rest |
//! |---|---|
//! | 5 | every machine is updated, untouched, or failed or stopped with a reason |
//! | 6 | no cordon of Refit remains after success; after a failure the status reports it |
//! | 7 | no annotation or slot of Refit remains on a healthy Machine |
//! | 8 | a Machine behind its MachineDeployment's MachineSet has an update request |
//!
//! A machine is *disturbed* from the moment its HostPlan's gate is `Upgrade` or wider, or its Node
//! has Refit's cordon, until its NodeUpdate has ended and its Node is Ready and schedulable. It is
//! *available* if its Node is Ready and has no cordon of Refit, and it is neither disturbed nor
//! being deleted. Cluster API's condition `Available` is ignored: it becomes False as soon as a
//! machine is selected.

mod objects;
mod observe;
mod rest;
mod state;

#[cfg(test)]
mod tests;

use std::fmt;

pub use state::World;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Number of the invariant, 1 to 8.
    pub invariant: u8,
    /// Kind and name of the violating object.
    pub object: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}: {}", self.invariant, self.object, self.message)
    }
}
