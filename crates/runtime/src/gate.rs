//! The switch that every write of a process passes.
//!
//! In production it is [`Open`] and costs nothing. A crash sweep puts its kill switch here: it sees
//! each effect before and after it happens and may end the process at either point, so that after
//! the kill nothing of that process takes effect or gets an answer.

use std::fmt;

use futures::future::BoxFuture;

/// Something that a process does to the world outside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// A mutating API request.
    Api {
        /// HTTP method.
        method: String,
        /// Path without its query.
        path: String,
    },
    /// A durable journal append.
    Journal {
        /// What was appended, in a few words.
        record: String,
    },
    /// A command on a host.
    Host {
        /// Which command.
        command: String,
    },
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api { method, path } => write!(f, "api {method} {path}"),
            Self::Journal { record } => write!(f, "journal {record}"),
            Self::Host { command } => write!(f, "host {command}"),
        }
    }
}

/// Whether a process lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does.
    Alive,
    /// It does not: whatever asked never gets an answer.
    Dead,
}

/// Sees each effect of one incarnation of a process.
pub trait Gate: Send + Sync + 'static {
    /// Called before the effect happens. `Dead`: it does not happen.
    fn before(&self, effect: &Effect) -> Fate;
    /// Called after the effect happened. `Dead`: nobody hears of it.
    fn after(&self, effect: &Effect) -> Fate;
    /// Whether the process still lives. Reads are held back too once it does not.
    fn fate(&self) -> Fate;
    /// What an effect has to wait for between [`Gate::before`] and the fence: a simulation stops a
    /// whole process here for a while. Nothing in production.
    fn stall(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// The gate of production: everything passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl Gate for Open {
    fn before(&self, _: &Effect) -> Fate {
        Fate::Alive
    }

    fn after(&self, _: &Effect) -> Fate {
        Fate::Alive
    }

    fn fate(&self) -> Fate {
        Fate::Alive
    }
}

/// Waits for ever: what a dead process does.
pub async fn never<T>() -> T {
    std::future::pending().await
}
