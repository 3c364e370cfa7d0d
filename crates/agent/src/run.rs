//! The process: watch the agent's own HostPlan, act, report.
//!
//! Three concurrent futures: the watch, the engine that drives the host, and the reporter. The
//! engine never waits for the API, so the agent continues while the API server of its own cluster
//! is down.

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

/// Dependencies and settings of an agent.
pub struct AgentOptions {
    /// Builds the Kubernetes client.
    pub stack: ClientStack,
    /// The API that holds the HostPlan.
    pub config: kube::Config,
    /// The clock.
    pub clock: Clock,
    /// Name of the Node, and of its HostPlan.
    pub node_name: String,
    /// The host.
    pub host: Arc<dyn Host>,
    /// The disk that holds the journal.
    pub disk: Arc<dyn Disk>,
}

impl std::fmt::Debug for AgentOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentOptions").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// Runs the agent of one host until it is dropped. Dropping it at any point loses nothing.
///
/// The future is boxed, so that it is compiled in this crate and not in every crate that awaits it.
pub fn run(options: AgentOptions) -> BoxFuture<'static, anyhow::Result<()>> {
    let key = ObjectKey::new(keys::HOST_PLAN_NAMESPACE, &options.node_name);
    run_for(options, key)
}

/// Like [`run`], with another HostPlan: in the management cluster it has the name of the Machine.
pub fn run_for(options: AgentOptions, plan: ObjectKey) -> BoxFuture<'static, anyhow::Result<()>> {
    run_with(options, plan, Extras::default())
}

/// Like [`run_for`], for a host that requires signed plans or whose agent replaces itself.
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
    // Boxed: these futures are large, and the caller of an agent holds them.
    let watching = Box::pin(reflect(
        api.clone(),
        // Not from the API server's cache: the agent would run an old plan of a stale list again.
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
