//! Upgrades by annotation: what a Machine's annotations ask for, and what they show (`docs/annotations.md`).

mod machine;

pub use machine::{Announced, MachineSeen, Request, machine};
