//! Upgrades by annotation: what the annotations of a Machine or of its owner ask for, and what they show
//! (`docs/annotations.md`).

mod machine;
mod notes;
mod owner;

pub use machine::{Announced, MachineSeen, Request, machine};
pub use owner::{OwnedMachine, OwnerAnnounced, OwnerRequest, OwnerSeen, machine_begins, owner};
