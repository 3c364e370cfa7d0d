//! The management cluster process: hook server, controllers, drain and metrics.
//!
//! | module | does |
//! |---|---|
//! | `hooks` | answers Cluster API: Discovery, CanUpdateMachine, CanUpdateMachineSet, UpdateMachine |
//! | `node_update` | brings one Machine to one goal |
//! | `update_group` | how many Machines of a group may be down, and why it waits |
//! | `host_plan`, `workload_watch` | what is written to and read from workload clusters |
//! | `watches`, `groups` | one watch per kind, and whom a change wakes |
//!
//! Every module is thin: it reads caches, asks `refit-core` and writes.

mod context;
mod drain;
mod groups;
mod hooks;
mod host_plan;
mod metrics;
mod node_update;
mod settings;
#[cfg(test)]
mod testing;
mod update_group;
mod watches;
mod workload_watch;

use std::sync::Arc;

use anyhow::Context as _;
use refit_core::safeguards::Safeguards;
use refit_kube::{Clock, client::ClientStack, net::Listener, serve, tls};

pub use hooks::create::{NewNodeUpdate, node_update};
pub use settings::Settings;

use crate::context::Context;

/// What the controller process is made of.
#[derive(Debug)]
pub struct ControllerOptions {
    /// Builds every client of the process.
    pub stack: ClientStack,
    /// The management cluster.
    pub config: kube::Config,
    /// The time.
    pub clock: Clock,
    /// Where Cluster API calls us.
    pub hooks: HookServer,
    /// Which safeguards are in force.
    pub safeguards: Safeguards,
    /// What an operator may choose.
    pub settings: Settings,
}

/// Where and how the hooks are served.
#[derive(Debug)]
pub struct HookServer {
    /// Accepts connections.
    pub listener: Listener,
    /// The certificate that is shown; it may be exchanged at any time.
    pub cert: Arc<tls::ReloadableCert>,
    /// Only clients with a certificate of this CA are served.
    pub client_ca_pem: Option<Vec<u8>>,
}

/// Runs the process until the future is dropped, which ends everything that it does.
pub async fn run(options: ControllerOptions) -> anyhow::Result<()> {
    let ControllerOptions {
        stack,
        config,
        clock,
        hooks: server,
        safeguards,
        settings,
    } = options;
    let client = stack
        .client(&config)
        .context("the management cluster's client cannot be built")?;
    let tls = tls::server_config(server.cert, server.client_ca_pem.as_deref())
        .context("the hook server's TLS configuration cannot be built")?;
    let ctx = Arc::new(Context::new(client, stack, clock, safeguards, settings));
    let service = hooks::service(ctx.clone());
    let watches = async {
        Box::pin(watches::run(&ctx)).await;
        anyhow::Ok(())
    };
    let serving = async {
        serve::serve(server.listener, Some(tls), service, std::future::pending()).await;
        Err::<(), _>(anyhow::anyhow!("the hook server's listener is closed"))
    };
    let workloads = async {
        Box::pin(workload_watch::run(&ctx)).await;
        anyhow::Ok(())
    };
    futures::try_join!(
        watches,
        workloads,
        serving,
        node_update::run(ctx.clone()),
        update_group::run(ctx.clone()),
    )?;
    Ok(())
}
