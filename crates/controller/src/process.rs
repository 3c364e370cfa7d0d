//! One process of several: its part of the Lease, its probes, its end.

use std::time::Duration;

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

/// How long a write that is on its way at the end is waited for; no longer than it may take at all.
const LAST_WRITES: Duration = Duration::from_secs(15);
/// How long giving the Lease back may take; it runs out by itself.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

/// What makes a process one of several that are started and stopped by somebody else. By default it
/// is alone, has no probes and runs until it is dropped.
#[derive(Debug, Default)]
pub struct Process {
    /// The Lease whose holder does the leader's work; without one this process does it.
    pub lease: Option<LeaseSettings>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served over plain HTTP.
    pub probes: Option<Listener>,
    /// Asks the process to end well.
    pub stop: CancellationToken,
    /// How long hooks are still taken once the process is not ready any more: as long as callers
    /// may need to hear of it.
    pub drain_delay: Duration,
}

/// The part of the Lease of one process.
pub(crate) struct Candidate {
    settings: LeaseSettings,
    /// For the Lease itself: no fence, short calls.
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
            anyhow::bail!("the Lease cannot be used: {problem}");
        }
        // Two attempts fit before the deadline.
        let deadline = settings.renew_deadline / 2;
        let client = stack
            .clone()
            .with_deadline(deadline)
            .client(config)
            .context("the Lease's client cannot be built")?;
        Ok(Self { settings, client, clock })
    }

    /// Stands for election until it is dropped.
    pub(crate) async fn run(&self, leadership: &Leadership) {
        let client = self.client.clone();
        match lease::elect(client, self.clock, &self.settings, leadership).await {}
    }

    /// Gives the Lease back.
    pub(crate) async fn release(&self) {
        let release = lease::release(self.client.clone(), self.clock, &self.settings);
        match tokio::time::timeout(RELEASE_DEADLINE, release).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => tracing::info!(lease = self.settings.name, "the Lease is given back"),
            Ok(Err(error)) => tracing::warn!(%error, "the Lease stays until it runs out"),
            Err(_) => tracing::warn!("the Lease stays until it runs out: no answer"),
        }
    }
}

/// Waits until the process is asked to end, and ends it in order: not ready any more, hooks answered
/// that are on their way, no new write of the leader, the last ones over.
pub(crate) async fn end(
    ctx: &Context,
    stop: CancellationToken,
    drain_delay: Duration,
    closing: &CancellationToken,
    served: &CancellationToken,
) {
    stop.cancelled().await;
    tracing::info!("asked to end: not ready any more");
    ctx.begin_to_end();
    tokio::time::sleep(drain_delay).await;
    closing.cancel();
    served.cancelled().await;
    ctx.leadership.resign();
    if tokio::time::timeout(LAST_WRITES, ctx.leadership.idle()).await.is_err() {
        tracing::warn!("a write is still on its way at the end");
    }
}
