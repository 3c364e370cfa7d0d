//! One of several replicas: its Lease candidacy, its probes, its shutdown.

use std::{convert::Infallible, time::Duration};

use anyhow::Context as _;
use kube::Client;
use refit_runtime::{
    Clock,
    client::ClientStack,
    lease::{self, Leadership, LeaseSettings},
    net::Listener,
};
use tokio_util::sync::CancellationToken;

use crate::context::Context;

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
    /// Where `/healthz`, `/readyz` and `/metrics` are served over plain HTTP.
    pub probes: Option<Listener>,
    /// Requests a graceful shutdown.
    pub stop: CancellationToken,
    /// How long hooks are still accepted after the process reports not ready: the time until
    /// callers stop using it.
    pub drain_delay: Duration,
}

/// One process as a candidate for the Lease.
pub(crate) struct Candidate {
    settings: LeaseSettings,
    /// Client of the Lease: not fenced, with short timeouts.
    client: Client,
    clock: Clock,
}

impl Candidate {
    /// The candidate of a process with a Lease.
    pub(crate) fn new(
        settings: LeaseSettings,
        stack: &ClientStack,
        config: &kube::Config,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        if let Some(problem) = settings.problem() {
            anyhow::bail!("invalid Lease settings: {problem}");
        }
        // Two attempts fit within the renew deadline.
        let deadline = settings.renew_deadline / 2;
        let client = stack
            .clone()
            .with_deadline(deadline)
            .client(config)
            .context("cannot create the client of the Lease")?;
        Ok(Self { settings, client, clock })
    }

    /// Runs for election until the future is dropped.
    pub(crate) async fn run(&self, leadership: &Leadership) -> Infallible {
        lease::elect(self.client.clone(), self.clock, &self.settings, leadership).await
    }

    /// Releases the Lease.
    pub(crate) async fn release(&self) {
        let release = lease::release(self.client.clone(), self.clock, &self.settings);
        match tokio::time::timeout(RELEASE_DEADLINE, release).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => tracing::info!(lease = self.settings.name, "Lease released"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release the Lease, it will expire"),
            Err(_) => tracing::warn!("cannot release the Lease, it will expire: no answer"),
        }
    }
}

/// Waits for the shutdown request and shuts down in order: report not ready, answer the hooks in
/// flight, stop the leader's writes, wait for the last ones.
pub(crate) async fn end(
    ctx: &Context,
    stop: CancellationToken,
    drain_delay: Duration,
    closing: &CancellationToken,
    served: &CancellationToken,
) {
    stop.cancelled().await;
    tracing::info!("shutting down, no longer ready");
    ctx.begin_to_end();
    tokio::time::sleep(drain_delay).await;
    closing.cancel();
    served.cancelled().await;
    ctx.leadership.resign();
    if tokio::time::timeout(LAST_WRITES, ctx.leadership.idle()).await.is_err() {
        tracing::warn!("exiting with a write in flight");
    }
}
