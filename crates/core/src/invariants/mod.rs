//! What must hold, whatever died when: section 5 of the architecture as code.
//!
//! A [`World`] is fed every write of a simulation (or every watch event in production) and answers
//! with what that write broke; [`World::at_rest`] judges what is left when nothing moves any more.
//! It shares no code with the decisions that it checks, only the objects.
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
//! | 6 | no cordon of ours is left after a good end; after a bad one the status says so |
//! | 7 | nothing of ours is left on a Machine that is whole |
//! | 8 | no Machine is behind the version of its MachineDeployment's MachineSet unasked |
//!
//! A machine is *disturbed* while its HostPlan's gate is `Upgrade` or wider or its Node has a cordon
//! of ours, until its NodeUpdate has ended and its Node is Ready and open. It is *available* while
//! its Node is Ready, has no cordon of ours, it is not disturbed and not being deleted. Cluster
//! API's condition `Available` is left aside: it turns False when a machine is merely chosen.

mod objects;
mod observe;
mod rest;
mod state;

#[cfg(test)]
mod tests;

use std::fmt;

pub use state::World;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Number of the invariant, 1 to 8.
    pub invariant: u8,
    /// Kind and name of the object that shows it.
    pub object: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}: {}", self.invariant, self.object, self.message)
    }
}
