//! The process: watch the own HostPlan, act, report.
//!
//! Three futures in one: the watch, the engine that drives the host, and the reporter. The engine
//! never waits for the API, so the agent goes on while the API server of its own cluster is down.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::{Api, runtime::watcher};
use refit_kinds::{
    keys,
    refit::{HostFacts, HostPlan},
};
use refit_runtime::{Clock, ObjectKey, Store, client::ClientStack, store::reflect};
use tokio::sync::watch;

use crate::{
    disk::Disk,
    driver::Driver,
    host::Host,
    reporter::{OwnPlan, Reporter},
    trust::Extras,
};

/// What an agent needs.
pub struct AgentOptions {
    /// Builds the client.
    pub stack: ClientStack,
    /// The API in which the HostPlan is.
    pub config: kube::Config,
    /// The time.
    pub clock: Clock,
    /// Name of the node, and of its HostPlan.
    pub node_name: String,
    /// The host.
    pub host: Arc<dyn Host>,
    /// Where the journal is.
    pub disk: Arc<dyn Disk>,
}

impl std::fmt::Debug for AgentOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentOptions").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// Runs the agent of one host until it is dropped. Dropping it at any point loses nothing.
///
/// Boxed, so that all of it is compiled here and not in whatever crate awaits it.
pub fn run(options: AgentOptions) -> BoxFuture<'static, anyhow::Result<()>> {
    let key = ObjectKey::new(keys::HOST_PLAN_NAMESPACE, &options.node_name);
    run_for(options, key)
}

/// The same with a HostPlan of another name: in the management cluster it is that of the Machine.
pub fn run_for(options: AgentOptions, plan: ObjectKey) -> BoxFuture<'static, anyhow::Result<()>> {
    run_with(options, plan, Extras::default())
}

/// The same for a host that asks for signed plans, or whose agent exchanges itself.
pub fn run_with(
    options: AgentOptions,
    plan: ObjectKey,
    extras: Extras,
) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(process(options, plan, extras))
}

async fn process(options: AgentOptions, plan_key: ObjectKey, extras: Extras) -> anyhow::Result<()> {
    let client = options.stack.client(&options.config)?;
    let api: Api<HostPlan> = Api::namespaced(client, &plan_key.namespace);
    let store = Store::default();
    let (changed, changes) = watch::channel(());
    let (reports, reported) = watch::channel(None);
    let field = format!("metadata.name={}", plan_key.name);
    // Boxed: they are large, and whoever embeds an agent holds this future.
    let watching = Box::pin(reflect(
        api.clone(),
        // Not from the API server's cache: an old plan in a stale list would be run again.
        watcher::Config::default().fields(&field),
        store.clone(),
        |_| {
            changed.send_replace(());
        },
    ));
    let plan = OwnPlan::new(plan_key, store, changes);
    let driver = Driver {
        plan: plan.clone(),
        host: options.host,
        disk: options.disk,
        clock: options.clock,
        facts: HostFacts::default(),
        started: String::new(),
        ended: None,
        reports,
        extras: extras.clone(),
        refused: None,
    };
    let reporter = Reporter::new(plan, api, options.clock, extras);
    tokio::select! {
        biased;
        () = watching => anyhow::bail!("the watch of the HostPlan has ended"),
        never = Box::pin(driver.run()) => match never {},
        never = Box::pin(reporter.run(reported)) => match never {},
    }
}
