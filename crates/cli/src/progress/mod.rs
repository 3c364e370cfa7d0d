//! Progress of machines for display, shared by the demo and the commands that wait.

mod board;
mod step;

pub(crate) use board::Board;
pub(crate) use step::{Step, is_done, step};
