//! How far machines are, as people see it: what the demo and every command that waits have in common.

mod board;
mod step;

pub(crate) use board::Board;
pub(crate) use step::{Step, is_done, step};
