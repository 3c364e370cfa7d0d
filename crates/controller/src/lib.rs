//! The management cluster process: hook server, controllers, drain and metrics.
//!
//! | module | does |
//! |---|---|
//! | `hooks` | the hooks Discovery, CanUpdateMachine, CanUpdateMachineSet and UpdateMachine |
//! | `node_update` | brings one Machine to one goal |
//! | `requests` | the NodeUpdates of a Machine, for every way in |
//! | `upgrade_task` | works through the Machines of a group, where Cluster API does not |
//! | `cluster_upgrade` | begins the upgrade of a whole Cluster at its time, and keeps its history |
//! | `cluster_upgrade_plan` | requests the upgrades of a fleet, wave by wave |
//! | `notifications` | delivers the notifications of both to receivers outside of Kubernetes |
//! | `annotations` | upgrades by annotation of a Machine, or of its owner |
//! | `gates`, `cluster_health` | the health gates of a group, and the checks of a Cluster |
//! | `update_group` | limits how many Machines of a group may be down, and reports why it waits |
//! | `k8sd` | calls of k8sd on the Nodes of Canonical Kubernetes |
//! | `replacement_hold` | which Machines Cluster API may create and delete |
//! | `updaters`, `updater_servers` | whether an Updater is valid; calls of its server |
//! | `host_plan`, `workload_watch`, `workload_objects` | HostPlans, the watches of workload clusters, and what they keep |
//! | `agent_access` | the rights of agents in workload clusters |
//! | [`certificates`] | the hook server's certificate, without cert-manager |
//! | `control_planes` | the control planes of other providers |
//! | `api_error` | what a failed request means |
//! | `served`, `machine_condition` | a Cluster API that serves v1beta1 only |
//! | `policy` | annotations for changes that no updater covers, for drains and for hosts |
//! | `watches`, `groups`, `indexes` | one watch per kind, and the keys that a change wakes |
//! | `metrics` | the content of `/metrics` |
//!
//! Every module is thin: it reads caches, calls `refit-core` and writes.

mod agent_access;
mod agent_policy;
mod alertmanager;
mod annotations;
mod api_error;
mod arrivals;
pub mod certificates;
mod changed_settings;
mod client_trust;
mod cluster_health;
mod cluster_upgrade;
mod cluster_upgrade_plan;
mod cluster_view;
mod context;
mod control_planes;
mod drain;
mod gates;
mod groups;
mod hooks;
mod host_plan;
mod indexes;
mod k8sd;
mod machine_condition;
mod metrics;
mod node_update;
mod notifications;
mod owner;
mod policy;
mod providers;
mod replacement_hold;
mod requests;
#[cfg(feature = "sabotage")]
pub mod sabotage;
#[cfg(test)]
mod scan_tests;
mod served;
mod settings;
mod shared_read;
mod update_group;
mod updater_servers;
mod updaters;
mod upgrade_task;
mod version_graph;
mod watches;
mod workload_objects;
mod workload_watch;

use std::{future::pending, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::future::BoxFuture;
use refit_runtime::{
    Clock,
    client::{ClientStack, ServedVersions},
    lease::Leadership,
    liveness::{Heartbeat, Liveness},
    net::Listener,
    replica::{self, Candidate},
    serve, tls,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use agent_access::rights as agent_rights;
pub use client_trust::{ClientRefusal, ClientTrust};
pub use hooks::wire;
pub use refit_runtime::replica::Process;
pub use requests::{NewNodeUpdate, node_update};
pub use settings::{Canonical, HOLD_CALLERS, PlanLocation, Settings, SlackSettings};
pub use version_graph::GraphSource;

use crate::context::Context;

/// How many calls to the management cluster are in progress at once, apart from watches.
const MANAGEMENT_CALLS: usize = 64;

/// Parts and settings of the controller process.
#[derive(Debug)]
pub struct ControllerOptions {
    /// Builds every client of the process.
    pub stack: ClientStack,
    /// The management cluster.
    pub config: kube::Config,
    /// Source of the current time.
    pub clock: Clock,
    /// The hook server, which Cluster API calls.
    pub hooks: HookServer,
    /// Settings of the operator.
    pub settings: Settings,
    /// Settings of a process that is one of several replicas; by default it runs alone.
    pub process: Process,
}

/// Where and how the hooks are served.
#[derive(Debug)]
pub struct HookServer {
    /// Accepts connections.
    pub listener: Listener,
    /// The server certificate; it may be replaced at any time.
    pub cert: Arc<tls::ReloadableCert>,
    /// Which clients may call hooks; without it, all may. Discovery and probes answer any client.
    pub clients: Option<Arc<ClientTrust>>,
}

/// Runs the process until the future is dropped, which stops all of its work, or until
/// [`Process::stop`] requests a shutdown, which returns `Ok`.
///
/// The future is boxed so that its code is compiled in this crate, not in the crate that awaits it.
pub fn run(options: ControllerOptions) -> BoxFuture<'static, anyhow::Result<()>> {
    #[cfg(not(feature = "sabotage"))]
    let process = run_to_end(options);
    #[cfg(feature = "sabotage")]
    let process = run_to_end(options, Arc::default());
    Box::pin(process)
}

async fn run_to_end(
    options: ControllerOptions,
    #[cfg(feature = "sabotage")] sabotage: Arc<sabotage::Sabotage>,
) -> anyhow::Result<()> {
    let ControllerOptions { stack, config, clock, hooks: server, settings, process } = options;
    let Process { lease, probes, stop, drain_delay } = process;
    let candidate = lease.map(|lease| Candidate::new(lease, &stack, &config, clock)).transpose()?;
    let candidate = candidate.map(Arc::new);
    let leadership = match &candidate {
        Some(_) => Leadership::candidate(clock),
        None => Leadership::alone(clock),
    };
    // A process that runs alone has a fence too: its shutdown waits for its last writes.
    let fence = leadership.clone();
    #[cfg(feature = "sabotage")]
    let fence = sabotage.fence(fence, clock);
    let fenced = stack.clone().fenced(fence);
    let served = ServedVersions::new(served::KINDS);
    let client = |stack: &ClientStack| {
        let stack = stack.clone().with_concurrency(MANAGEMENT_CALLS);
        let client = stack.with_served_versions(served.clone()).client(&config);
        client.context("cannot create the client of the management cluster")
    };
    let (open, control) = (client(&stack)?, client(&fenced)?);
    let tls = match &server.clients {
        Some(_) => tls::hook_server_config(server.cert),
        None => tls::server_config(server.cert),
    };
    let tls = tls.context("cannot create the TLS configuration of the hook server")?;
    let ctx =
        Context::new(open, stack, clock, settings).with_served(served).with_leadership(leadership);
    #[cfg(feature = "sabotage")]
    let ctx = ctx.with_sabotage(sabotage);
    let ctx = Arc::new(ctx);
    let control = Arc::new(ctx.with_clients(control, fenced));
    let service = hooks::service(ctx.clone(), server.clients);
    let (closing, served) = (CancellationToken::new(), CancellationToken::new());
    let serving = async {
        let hooks = service.clone();
        serve::serve(server.listener, Some(tls), hooks, closing.cancelled()).await;
        served.cancel();
        if !closing.is_cancelled() {
            anyhow::bail!("the hook server's listener is closed");
        }
        pending().await
    };
    let heartbeat = Arc::<Heartbeat>::default();
    let live = Liveness { probes: service.probes(), heartbeat: heartbeat.clone() };
    // In tasks of their own: a long turn of the main task must neither cost the Lease nor keep a
    // probe waiting. They end with this future.
    let mut own_tasks = JoinSet::new();
    let probed = probes.is_some();
    if let Some(listener) = probes {
        own_tasks.spawn(async move {
            serve::serve(listener, None, live, pending()).await;
            anyhow::anyhow!("the listener of the probes is closed")
        });
    }
    if let Some(candidate) = candidate.clone() {
        let leadership = ctx.leadership.clone();
        own_tasks.spawn(async move { match candidate.run(&leadership).await {} });
    }
    let tasks_end = async {
        match own_tasks.join_next().await {
            Some(Ok(ended)) => Err(ended),
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
    let watches = async {
        Box::pin(watches::run(&ctx)).await;
        anyhow::Ok(())
    };
    let workloads = async {
        Box::pin(workload_watch::run(&control)).await;
        anyhow::Ok(())
    };
    tokio::select! {
        biased;
        outcome = async {
            futures::try_join!(watches, workloads, serving, lead(control.clone()), tasks_end, beating)
        } => outcome.map(|((), (), (), (), (), ())| ())?,
        () = end(&ctx, stop, drain_delay, &closing, &served) => {}
    }
    // No renewal may follow the release.
    own_tasks.shutdown().await;
    if let Some(candidate) = &candidate {
        candidate.release().await;
    }
    Ok(())
}

/// Does the leader's work while this replica is the leader.
async fn lead(ctx: Arc<Context>) -> anyhow::Result<()> {
    let lost = async || {
        #[cfg(feature = "sabotage")]
        ctx.sabotage.ignore_lost_lease().await;
        ctx.leadership.lost().await;
        // Writes in flight are completed: the result of a cancelled write would be unknown.
        ctx.leadership.idle().await;
    };
    loop {
        ctx.leadership.held().await;
        tokio::select! {
            biased;
            () = lost() => {
                tracing::warn!("lost leadership");
            }
            outcome = async {
                futures::try_join!(
                    node_update::run(ctx.clone()),
                    update_group::run(ctx.clone()),
                    updaters::run(ctx.clone()),
                    upgrade_task::run(ctx.clone()),
                    cluster_upgrade::run(ctx.clone()),
                    cluster_upgrade_plan::run(ctx.clone()),
                    notifications::run(ctx.clone()),
                    annotations::run(ctx.clone()),
                    changed_settings::run(ctx.clone()),
                    replacement_hold::run(ctx.clone()),
                )
            } => return outcome.map(|((), (), (), (), (), (), (), (), (), ())| ()),
        }
    }
}

/// Waits for the shutdown request and shuts down in order: report not ready, answer the hooks in
/// flight, stop the leader's writes, wait for the last ones.
async fn end(
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
    replica::end_writes(&ctx.leadership).await;
}
