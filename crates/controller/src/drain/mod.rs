//! Pods of a node: what is read of them for a drain, and how they are asked to go.

mod look;
mod remove;

pub(crate) use look::{Blind, Whose, look};
pub(crate) use remove::remove;
