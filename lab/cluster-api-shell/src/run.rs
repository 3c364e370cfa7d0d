//! The process: watches, queues and controllers in one future.

use std::sync::Arc;

use anyhow::Context as _;
use futures::{
    StreamExt as _,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use refit_runtime::{
    Clock, ObjectKey,
    client::ClientStack,
    queue::{Action, Queue},
    tls::ClientIdentity,
};
use tokio::sync::mpsc;

use crate::{
    context::{Context, Task},
    control_plane,
    error::Error,
    extension, health_check,
    hooks::HookClient,
    machine, machine_deployment, machine_set, real_cluster_api, wiring,
};

/// How many Machines are reconciled at once; they are independent of each other.
const MACHINES_AT_ONCE: usize = 4;
/// How long to wait after a write conflict.
const CONFLICT_WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// The options of [`run`].
#[derive(Clone, Debug)]
pub struct CapiOptions {
    /// Builds every client of this process.
    pub stack: ClientStack,
    /// The management cluster.
    pub config: kube::Config,
    /// The clock.
    pub clock: Clock,
    /// The client certificate that hook calls present
    /// (`docs/facts/hooks.md#client-certificates`).
    pub hook_client: Option<ClientIdentity>,
}

/// Runs Cluster API's controllers until the future is dropped.
///
/// It returns early only if it cannot start: the management cluster is unreachable, or the real
/// Cluster API runs there ([`crate::RealClusterApi`]).
///
/// Boxed, so that it is compiled in this crate and not in the crate that awaits it.
pub fn run(options: CapiOptions) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(process(options))
}

async fn process(options: CapiOptions) -> anyhow::Result<()> {
    let CapiOptions { stack, config, clock, hook_client } = options;
    let client =
        stack.client(&config).context("invalid client configuration for the management cluster")?;
    real_cluster_api::refuse(&client).await?;
    let (spawner, mut spawned) = mpsc::unbounded_channel();
    let hooks = HookClient::new(stack.clone(), hook_client);
    let context = Arc::new(Context::new(client, &stack, clock, hooks, spawner));
    let mut tasks: FuturesUnordered<Task> = FuturesUnordered::new();
    tasks.extend(wiring::watches(&context));
    tasks.push(Box::pin(controllers(context.clone())));
    loop {
        tokio::select! {
            biased;
            Some(task) = spawned.recv() => tasks.push(task),
            // Watches and controllers never end; a workload cluster's watch may.
            Some(()) = tasks.next() => {}
        }
    }
}

/// Runs all controllers once the caches are filled.
async fn controllers(context: Arc<Context>) {
    context.clusters.ready().await;
    context.deployments.ready().await;
    context.sets.ready().await;
    context.machines.ready().await;
    context.control_planes.ready().await;
    context.extensions.ready().await;
    context.health_checks.ready().await;
    context.namespaces.ready().await;
    let queues = &context.queues;
    let works: Vec<Task> = vec![
        work(&context, "extensionconfig", &queues.extensions, 1, |c, k| {
            Box::pin(async move { extension::reconcile(&c, &k).await })
        }),
        work(&context, "machinehealthcheck", &queues.health_checks, 1, |c, k| {
            Box::pin(async move { health_check::reconcile(&c, &k).await })
        }),
        work(&context, "machinedeployment", &queues.deployments, 1, |c, k| {
            Box::pin(async move { machine_deployment::reconcile(&c, &k).await })
        }),
        work(&context, "machineset", &queues.sets, 1, |c, k| {
            Box::pin(async move { machine_set::reconcile(&c, &k).await })
        }),
        work(&context, "kubeadmcontrolplane", &queues.control_planes, 1, |c, k| {
            Box::pin(async move { control_plane::reconcile(&c, &k).await })
        }),
        work(&context, "machine", &queues.machines, MACHINES_AT_ONCE, |c, k| {
            Box::pin(async move { machine::reconcile(&c, &k).await })
        }),
    ];
    join_all(works).await;
}

type Reconcile = futures::future::BoxFuture<'static, Result<Action, Error>>;

fn work(
    context: &Arc<Context>,
    name: &'static str,
    queue: &Queue<ObjectKey>,
    at_once: usize,
    reconcile: fn(Arc<Context>, ObjectKey) -> Reconcile,
) -> Task {
    let queue = queue.clone();
    let context = context.clone();
    Box::pin(async move {
        queue
            .work(name, at_once, move |key| {
                let outcome = reconcile(context.clone(), key);
                async move { settle(outcome.await) }
            })
            .await;
    })
}

/// A conflict is not a failure: the watch delivers the other write, and the next reconcile decides.
fn settle(outcome: Result<Action, Error>) -> Result<Action, Error> {
    match outcome {
        Err(error) if error.is_conflict() => {
            tracing::debug!(%error, "conflict: another client wrote first");
            Ok(Action::RequeueAfter(CONFLICT_WAIT))
        }
        outcome => outcome,
    }
}
