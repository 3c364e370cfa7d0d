//! What must hold after every write, and who broke it.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use refit_apiserver::ApiServer;

use crate::world::{Inner, lock};

/// Something that should never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Timestamp,
    /// User agent of the write that did it.
    pub user_agent: String,
    /// What was written.
    pub object: String,
    /// What is broken.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            user_agent,
            object,
            message,
        } = self;
        write!(f, "{at} {user_agent} wrote {object}: {message}")
    }
}

/// Checks every write of a world.
#[derive(Clone, Default)]
pub(crate) struct Checker {
    found: Arc<Mutex<Vec<Violation>>>,
}

impl Checker {
    pub(crate) fn violations(&self) -> Vec<Violation> {
        lock(&self.found).clone()
    }

    /// Checks every write to the management cluster from now on.
    pub(crate) fn start(&self, _inner: &Inner) {}

    /// Checks every write to a workload cluster from now on.
    pub(crate) fn follow_workload(&self, _cluster: &str, _server: &ApiServer) {}
}
