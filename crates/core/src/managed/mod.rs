//! Managed upgrades: when a cluster may be upgraded, whether it is fit for it, what is done in which order, and what
//! became of it (seed 5).
//!
//! ```text
//! New -> Pending -> Upgrading -> Completed
//!            \           \-> Failed: not begun in time, stopped
//!             \-> Failed: not begun in time, stopped
//! ```
//!
//! The engine is the same for each platform. A platform gives it facts and a list of steps, and makes the writes that the
//! steps ask for. Nothing is remembered between two looks but the history: a step that has done its work shows so by what
//! it finds. So after a crash, or without its status, an upgrade continues where it is.
//!
//! | module | decides |
//! |---|---|
//! | `engine` | phases, history, the time to begin |
//! | [`steps`] | the first step that is not done |
//! | [`mod@cluster`] | the steps of a Cluster of Cluster API |
//! | [`fleet`] | the waves of a fleet of Clusters |
//! | [`graph`] | which versions a Cluster may take |
//! | [`capacity`] | which Machines a Cluster has in addition meanwhile |
//! | [`health`] | whether a Cluster is fit for an upgrade |
//! | [`silences`] | which alerts are silenced meanwhile |
//! | [`notifications`] | what people are notified of, and what is delivered next |

pub mod capacity;
pub mod cluster;
mod engine;
pub mod fleet;
pub mod graph;
pub mod health;
pub mod notifications;
pub mod silences;
pub mod steps;

pub use self::engine::{Ended, Facts, Looked, Ready, Request, look, version_at_work};
