//! Managed upgrades of an OpenShift cluster (seed 5), around the decisions of `refit-openshift`.
//!
//! It runs on the cluster itself: there is no Cluster API, and the machine-config operator works the nodes. It reads and writes
//! what the decisions ask for (`docs/adr/0009`), and decides nothing.
//!
//! | module | does |
//! |---|---|
//! | `upgrade` | looks at the UpgradeConfig, and works through the steps of its upgrade |
//! | `provider`, `sync` | asks which upgrade is wanted, and creates and deletes the UpgradeConfig |
//! | `cleanup` | removes what a cancelled or deleted upgrade has added |
//! | `nodes` | NodeKeeper: brings the drains of nodes forward |
//! | `notices`, `record` | sends notifications; stores what was done |
//! | [`remote`] | asks what is outside of the Kubernetes API |
//! | `watches`, `context` | what wakes the controllers, and what they share |
//! | `metrics`, `endpoints` | metrics and probes |

mod cleanup;
mod context;
mod endpoints;
mod metrics;
mod nodes;
mod notices;
mod provider;
mod record;
pub mod remote;
mod settings;
mod sync;
mod upgrade;
mod watches;

use std::{future::pending, sync::Arc};

use anyhow::Context as _;
use futures::future::BoxFuture;
use refit_runtime::{
    Clock,
    client::ClientStack,
    lease::Leadership,
    liveness::Heartbeat,
    replica::{self, Candidate},
};
use tokio::task::JoinSet;

pub use refit_openshift::Compat;
pub use refit_runtime::replica::Process;
pub use settings::Settings;

use crate::context::{Context, Shared};

/// Runs the process until the future is dropped, which stops all of its work, or until [`Process::stop`] requests a shutdown,
/// which returns `Ok`.
///
/// The future is boxed so that its code is compiled in this crate, not in the crate that awaits it.
pub fn run(
    stack: ClientStack,
    config: kube::Config,
    clock: Clock,
    process: Process,
    settings: Settings,
) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_to_end(stack, config, clock, process, settings))
}

async fn run_to_end(
    stack: ClientStack,
    config: kube::Config,
    clock: Clock,
    process: Process,
    settings: Settings,
) -> anyhow::Result<()> {
    let Process { lease, probes, stop, drain_delay } = process;
    let candidate = lease.map(|lease| Candidate::new(lease, &stack, &config, clock)).transpose()?;
    let candidate = candidate.map(Arc::new);
    let leadership = match &candidate {
        Some(_) => Leadership::candidate(clock),
        None => Leadership::alone(clock),
    };
    let shared = Arc::<Shared>::default();
    let fenced = stack.clone().fenced(leadership.clone());
    let context = |stack| Context::new(stack, &config, clock, &settings, shared.clone());
    let (ctx, control) = (Arc::new(context(stack)?), Arc::new(context(fenced)?));
    let heartbeat = Arc::<Heartbeat>::default();
    // In tasks of their own: a long turn of the main task must neither cost the Lease nor keep a probe waiting. They end with this
    // future.
    let mut own_tasks = JoinSet::new();
    let probed = probes.is_some();
    if let Some(listener) = probes {
        own_tasks.spawn(endpoints::probes(listener, ctx.clone(), heartbeat.clone(), stop.clone()));
    }
    if let Some(listener) = settings.metrics {
        own_tasks.spawn(endpoints::metrics(listener, ctx.clone()));
    }
    if let Some(listener) = settings.custom_metrics {
        own_tasks.spawn(endpoints::custom_metrics(listener, ctx.clone()));
    }
    if let Some(candidate) = candidate.clone() {
        let leadership = leadership.clone();
        own_tasks.spawn(async move { match candidate.run(&leadership).await {} });
    }
    let tasks_end = async {
        match own_tasks.join_next().await {
            Some(Ok(())) => anyhow::bail!("a listener of probes or metrics is closed"),
            Some(Err(panicked)) => Err(panicked).context("a task of the process failed"),
            None => pending().await,
        }
    };
    let beating = async {
        if probed {
            heartbeat.keep().await;
        }
        pending::<anyhow::Result<()>>().await
    };
    let watching = async {
        Box::pin(watches::run(&ctx)).await;
        anyhow::Ok(())
    };
    // The original syncs in every replica.
    let syncing = async {
        match ctx.compat {
            Compat::Strict => sync::run(&ctx).await,
            Compat::Repaired => pending().await,
        }
    };
    let stopped = async {
        stop.cancelled().await;
        tracing::info!("shutting down, no longer ready");
        tokio::time::sleep(drain_delay).await;
        replica::end_writes(&leadership).await;
    };
    tokio::select! {
        biased;
        outcome = async {
            futures::try_join!(watching, syncing, lead(&control, &leadership), tasks_end, beating)
        } => outcome.map(|((), (), (), (), ())| ())?,
        () = stopped => {}
    }
    // No renewal may follow the release.
    own_tasks.shutdown().await;
    if let Some(candidate) = &candidate {
        candidate.release().await;
    }
    Ok(())
}

/// Does the leader's work while this replica is the leader.
async fn lead(ctx: &Arc<Context>, leadership: &Leadership) -> anyhow::Result<()> {
    let lost = async || {
        leadership.lost().await;
        // Writes in flight are completed: the result of a cancelled write would be unknown.
        leadership.idle().await;
    };
    let syncing = async || match ctx.compat {
        Compat::Repaired => sync::run(ctx).await,
        Compat::Strict => pending().await,
    };
    loop {
        leadership.held().await;
        tokio::select! {
            biased;
            () = lost() => {
                tracing::warn!("lost leadership");
                ctx.shared.metrics.clear();
            }
            outcome = async {
                futures::try_join!(upgrade::run(ctx.clone()), nodes::run(ctx.clone()), syncing())
            } => return outcome.map(|((), (), ())| ()),
        }
    }
}
