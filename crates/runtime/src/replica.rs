//! One of several replicas: its Lease candidacy, its probes, its shutdown.

use std::{convert::Infallible, time::Duration};

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::{
    Clock,
    client::{ClientError, ClientStack},
    lease::{self, Leadership, LeaseSettings},
    net::Listener,
};

/// How long shutdown waits for writes in flight. No write may take longer.
const LAST_WRITES: Duration = Duration::from_secs(15);
/// Timeout for releasing the Lease; an unreleased Lease expires.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

/// Settings of a process that is one of several replicas. By default it runs alone, has no probes
/// and runs until the future is dropped.
#[derive(Debug, Default)]
pub struct Process {
    /// The Lease whose holder does the leader's work; without one this process always does it.
    pub lease: Option<LeaseSettings>,
    /// Where `/healthz` and `/readyz` are served over plain HTTP; Refit's controller serves `/metrics` there, too.
    pub probes: Option<Listener>,
    /// Requests a graceful shutdown.
    pub stop: CancellationToken,
    /// How long callers are still served after the process reports not ready: the time until they stop
    /// using it.
    pub drain_delay: Duration,
}

/// The identity of a replica with this name, by default that of its host. A restarted container has the same name: a suffix keeps
/// it from taking over its own old Lease.
pub fn identity(name: Option<&str>, clock: Clock) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.map_or_else(host, str::to_owned);
    let name = match name.trim() {
        "" => "refit",
        name => name,
    };
    format!("{name}_{:x}-{:x}", clock.now().as_microsecond(), std::process::id())
}

/// Why a process cannot be a candidate.
#[derive(Debug, thiserror::Error)]
pub enum CandidateError {
    /// Its durations do not keep two replicas apart.
    #[error("invalid Lease settings: {0}")]
    Settings(String),
    /// There is no client of the Lease.
    #[error("cannot create the client of the Lease")]
    Client(#[from] ClientError),
}

/// One process as a candidate for the Lease.
pub struct Candidate {
    settings: LeaseSettings,
    /// Client of the Lease: not fenced, with short timeouts.
    client: Client,
    clock: Clock,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Candidate {
    /// The candidate of a process with a Lease.
    pub fn new(
        settings: LeaseSettings,
        stack: &ClientStack,
        config: &kube::Config,
        clock: Clock,
    ) -> Result<Self, CandidateError> {
        if let Some(problem) = settings.problem() {
            return Err(CandidateError::Settings(problem));
        }
        // Two attempts fit within the renew deadline.
        let deadline = settings.renew_deadline / 2;
        let client = stack.clone().with_deadline(deadline).client(config)?;
        Ok(Self { settings, client, clock })
    }

    /// Runs for election until the future is dropped.
    pub async fn run(&self, leadership: &Leadership) -> Infallible {
        lease::elect(self.client.clone(), self.clock, &self.settings, leadership).await
    }

    /// Releases the Lease.
    pub async fn release(&self) {
        let release = lease::release(self.client.clone(), self.clock, &self.settings);
        match tokio::time::timeout(RELEASE_DEADLINE, release).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => tracing::info!(lease = self.settings.name, "Lease released"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release the Lease, it will expire"),
            Err(_) => tracing::warn!("cannot release the Lease, it will expire: no answer"),
        }
    }
}

/// Ends the leader's writes at shutdown, and waits for the last ones.
pub async fn end_writes(leadership: &Leadership) {
    leadership.resign();
    if tokio::time::timeout(LAST_WRITES, leadership.idle()).await.is_err() {
        tracing::warn!("exiting with a write in flight");
    }
}
