//! The pods of a node: reading them for a drain, and removing them.

mod look;
mod remove;

pub(crate) use look::{DrainTarget, look, look_ahead};
pub(crate) use remove::remove;
