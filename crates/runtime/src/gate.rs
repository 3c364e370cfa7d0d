//! The gate that every write of a process passes.
//!
//! In production it is [`Open`] and costs nothing. A crash sweep installs its kill switch here: the
//! gate sees each effect before and after it happens and may end the process at either point. After
//! the kill no call of that process takes effect or gets a response.

use std::fmt;

use futures::future::BoxFuture;

/// An action of a process on the outside world.
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
        /// A short description of the record.
        record: String,
    },
    /// A command on a host.
    Host {
        /// The command.
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

/// Whether a process is still alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The process is alive.
    Alive,
    /// The process is dead: its calls never return.
    Dead,
}

/// Observes each effect of one incarnation of a process.
pub trait Gate: Send + Sync + 'static {
    /// Called before the effect. On `Dead` the effect does not happen.
    fn before(&self, effect: &Effect) -> Fate;
    /// Called after the effect. On `Dead` its result is never delivered.
    fn after(&self, effect: &Effect) -> Fate;
    /// Whether the process is alive. Once it is dead, reads are held back too.
    fn fate(&self) -> Fate;
    /// A wait between [`Gate::before`] and the fence: a simulation pauses a whole process here.
    /// Production has no wait.
    fn stall(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// The production gate: everything passes.
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

/// Never completes, like a call of a dead process.
pub async fn never<T>() -> T {
    std::future::pending().await
}
