//! Time of the last write to the management cluster.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use lab_apiserver::ApiServer;

use crate::world::lock;

/// Time of the last write, except for Leases, which are renewed forever.
pub(super) struct Quiet {
    since: Mutex<Timestamp>,
}

impl Quiet {
    /// Starts to follow a server.
    pub(super) fn follow(server: &ApiServer, now: Timestamp) -> Arc<Self> {
        let quiet = Arc::new(Self { since: Mutex::new(now) });
        let written = quiet.clone();
        server.observe(Box::new(move |event| {
            if &*event.resource.id != "leases.coordination.k8s.io" {
                *lock(&written.since) = event.now;
            }
        }));
        quiet
    }

    pub(super) fn since(&self) -> Timestamp {
        *lock(&self.since)
    }
}
