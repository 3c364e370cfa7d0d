//! Starts processes, and restarts them when they die.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::SignedDuration;
use lab_apiserver::StaleView;
use lab_simhost::{SimDisk, SimHost};
use refit_agent::{AgentOptions, Disk, Extras, PlanTrust};
use refit_controller::{ControllerOptions, HookServer, Process, Settings};
use refit_kinds::keys;
use refit_runtime::{
    Clock, ObjectKey,
    client::ClientStack,
    gate::Gate,
    lease::LeaseSettings,
    net::{Dialer, Listener},
    serve, tls,
};

use super::{Actor, Inner, RESTART_DELAY, Running, lock, process::Switch};
use crate::{
    alertmanager, canonical_controllers, pki, prometheus::Prometheus, provider,
    receivers::Receivers, version_provider,
};

/// How long a restarted process sees the NodeUpdates as they were before the effect at which it
/// died: the watch cache of an API server may lag.
pub(crate) const STALE: SignedDuration = SignedDuration::from_secs(3);
/// How long a process is paused to lose its Lease: long enough for the other replica to take over.
const PAUSE: Duration = Duration::from_secs(40);
/// Name of the Lease that two controllers compete for.
pub(crate) const LEASE: &str = "refit-controller";
/// Storage name of NodeUpdates.
const NODE_UPDATES: &str = "nodeupdates.refit.dev";

impl Inner {
    /// Starts a process and keeps it running until [`Inner::dismiss`]. Hosts on which k8sd runs have no agent, nor
    /// have those of a world in which a provider brings machines to versions.
    pub(crate) fn supervise(self: &Arc<Self>, actor: &Actor) {
        if let Actor::Agent(host) = actor {
            let has_k8sd = lock(&self.hosts).get(host).is_some_and(|host| host.k8sd.is_some());
            if has_k8sd || self.others.contains(&Actor::VersionProvider) {
                return;
            }
        }
        let (incarnation, switch) = self.next(actor);
        let task = watch_over(self.clone(), actor.clone(), incarnation, switch.clone());
        let task = tokio::spawn(task).abort_handle();
        let running = Running { incarnation, since: self.clock.now(), switch, task };
        if let Some(old) = lock(&self.processes).insert(actor.clone(), running) {
            old.switch.kill();
            old.task.abort();
        }
    }

    /// Ends a process permanently.
    pub(crate) fn dismiss(&self, actor: &Actor) {
        if let Some(old) = lock(&self.processes).remove(actor) {
            old.switch.kill();
            old.task.abort();
        }
    }

    fn next(&self, actor: &Actor) -> (u32, Arc<Switch>) {
        let mut incarnations = lock(&self.incarnations);
        let count = incarnations.entry(actor.clone()).or_default();
        *count += 1;
        (*count, Switch::new(actor.clone(), self.hub.clone()))
    }

    /// Makes the first view of an incarnation lag behind the effect that killed its predecessor.
    fn lag(&self, actor: &Actor, incarnation: u32) {
        let Some(revision) = self.hub.take_lag(actor) else {
            return;
        };
        self.management.faults().add_stale(StaleView {
            user_agent: actor.user_agent(incarnation),
            resource: NODE_UPDATES.to_owned(),
            revision,
            until: self.clock.now() + STALE,
        });
    }

    /// Where a replica serves hooks: all live replicas are endpoints of the Service.
    fn hook_listener(&self, actor: &Actor) -> Listener {
        let (host, port) = (pki::HOOK_HOST, pki::HOOK_PORT);
        if self.two_controllers {
            self.network.join(host, port, &actor.to_string())
        } else {
            self.network.listen(host, port)
        }
    }

    fn probe_listener(&self, actor: &Actor) -> Listener {
        self.network.join(pki::PROBE_HOST, pki::PROBE_PORT, &actor.to_string())
    }

    pub(crate) fn close_hooks(&self, actor: &Actor) {
        let (host, port) = (pki::HOOK_HOST, pki::HOOK_PORT);
        if self.two_controllers {
            self.network.leave(host, port, &actor.to_string());
        } else {
            self.network.close(host, port);
        }
    }

    /// The clock that a process sees.
    fn clock_of(&self, actor: &Actor) -> Clock {
        self.clock.stepped_by(self.step_of(actor))
    }

    fn step_of(&self, actor: &Actor) -> &'static AtomicI64 {
        let mut steps = lock(&self.clock_steps);
        // A clock is copied into everything that a process runs, so its step lives as long as the
        // simulation: eight bytes for each process.
        steps.entry(actor.clone()).or_insert_with(|| Box::leak(Box::default()))
    }

    /// Steps the clock of a process: from now on it is `ahead` seconds ahead of the others.
    pub(crate) fn step_clock(&self, actor: &Actor, ahead: i64) {
        self.step_of(actor).store(ahead, Ordering::Relaxed);
    }

    /// Creates one incarnation of a process.
    fn incarnation(
        self: &Arc<Self>,
        actor: &Actor,
        incarnation: u32,
        switch: &Arc<Switch>,
    ) -> anyhow::Result<BoxFuture<'static, anyhow::Result<()>>> {
        let gate: Arc<dyn Gate> = switch.clone();
        let dialer = Dialer::Memory(self.network.clone(), gate.clone());
        let stack = ClientStack::new(dialer, gate.clone(), actor.user_agent(incarnation));
        let clock = self.clock_of(actor);
        Ok(match actor {
            Actor::Controller | Actor::Standby => {
                let options = ControllerOptions {
                    stack,
                    config: self.management_config(),
                    clock,
                    hooks: HookServer {
                        listener: self.hook_listener(actor).behind(gate.clone()),
                        cert: self.hook_identity.server.reloadable()?,
                        clients: Some(self.hook_client.trust.clone()),
                    },
                    settings: Settings {
                        prometheus: Some(Prometheus::config()),
                        alertmanager: Some(alertmanager::config()),
                        cloud_events: self
                            .receivers
                            .as_ref()
                            .map(Receivers::cloud_events)
                            .map(Box::new),
                        slack: self.receivers.as_ref().map(Receivers::slack),
                        ..self.settings.clone()
                    },
                    process: Process {
                        lease: self.two_controllers.then(|| {
                            let identity = actor.user_agent(incarnation);
                            let defaults = LeaseSettings::new(pki::HOOK_NAMESPACE, LEASE, identity);
                            let retry_period = self.lease_retry.unwrap_or(defaults.retry_period);
                            LeaseSettings { retry_period, ..defaults }
                        }),
                        probes: Some(self.probe_listener(actor).behind(gate)),
                        ..Process::default()
                    },
                };
                if self.enforced.is_some() {
                    return Ok(self.installed_controller(options));
                }
                #[cfg(feature = "sabotage")]
                if let Some(safeguard) = self.without {
                    return Ok(refit_controller::sabotage::run_without(options, safeguard));
                }
                refit_controller::run(options)
            }
            Actor::Capi => {
                Box::pin(lab_cluster_api_shell::run(lab_cluster_api_shell::CapiOptions {
                    stack,
                    config: self.management_config(),
                    clock,
                    hook_client: Some(self.hook_client.identity.clone()),
                }))
            }
            Actor::Updater => self.updater_server(&stack, gate)?,
            Actor::Provider => {
                let client = stack.client(&self.management_config())?;
                let misbehaviour = *lock(&self.misbehaviour);
                Box::pin(async move {
                    match misbehaviour {
                        None => memory_provider::run(client).await,
                        Some(how) => provider::run(client, clock, how).await,
                    }
                    Ok(())
                })
            }
            Actor::VersionProvider => {
                let client = stack.client(&self.management_config())?;
                let (inner, gate) = (Arc::downgrade(self), gate.clone());
                let host_of = move |key: &str| {
                    let inner = inner.upgrade()?;
                    let state = lock(&inner.hosts).get(key)?.state.clone();
                    Some(SimHost::new(state, inner.clock, gate.clone()))
                };
                Box::pin(async move {
                    version_provider::run(client, Arc::new(host_of)).await;
                    Ok(())
                })
            }
            Actor::CanonicalControllers => {
                let client = stack.client(&self.management_config())?;
                let inner = Arc::downgrade(self);
                let k8sd_of = move |key: &str| lock(&inner.upgrade()?.hosts).get(key)?.k8sd.clone();
                Box::pin(async move {
                    canonical_controllers::run(client, Arc::new(k8sd_of)).await;
                    Ok(())
                })
            }
            Actor::Agent(key) => {
                let (cluster, node) = key
                    .rsplit_once('/')
                    .ok_or_else(|| anyhow::anyhow!("invalid host {key}, expected CLUSTER/NODE"))?;
                let config = self
                    .workload_config(cluster)
                    .ok_or_else(|| anyhow::anyhow!("cluster {cluster} does not exist"))?;
                let host = lock(&self.hosts)
                    .get(key)
                    .cloned()
                    .ok_or_else(|| anyhow::anyhow!("host {key} does not exist"))?;
                let disk = SimDisk::new(host.disk, gate.clone()).forgetful(!self.journal);
                let disk: Arc<dyn Disk> = Arc::new(disk);
                let extras = Extras {
                    trust: self.plan_keys.clone().map(|keys| PlanTrust::new(keys, disk.clone())),
                    ..Extras::default()
                };
                let options = AgentOptions {
                    stack,
                    config,
                    clock,
                    node_name: node.to_owned(),
                    host: Arc::new(SimHost::new(host.state, self.clock, gate)),
                    disk,
                };
                let plan = ObjectKey::new(keys::HOST_PLAN_NAMESPACE, node);
                refit_agent::run_with(options, plan, extras)
            }
        })
    }
}

impl Inner {
    /// The server of `examples/hook-updater`.
    fn updater_server(
        &self,
        stack: &ClientStack,
        gate: Arc<dyn Gate>,
    ) -> anyhow::Result<BoxFuture<'static, anyhow::Result<()>>> {
        let client = stack.client(&self.management_config())?;
        let service = hook_updater::router(client);
        let tls = tls::server_config(self.hook_identity.server.reloadable()?)?;
        let listener = self.network.listen(pki::UPDATER_HOST, pki::UPDATER_PORT).behind(gate);
        Ok(Box::pin(async move {
            serve::serve(listener, Some(tls), service, std::future::pending()).await;
            Ok(())
        }))
    }
}

/// Runs a process. While the process is paused it is not polled; afterwards it continues as if no
/// time had passed.
async fn with_pauses(
    switch: &Switch,
    mut process: BoxFuture<'static, anyhow::Result<()>>,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            biased;
            () = switch.paused() => {
                tokio::time::sleep(PAUSE).await;
                switch.resume();
            }
            outcome = &mut process => return outcome,
        }
    }
}

async fn watch_over(
    inner: Arc<Inner>,
    actor: Actor,
    mut incarnation: u32,
    mut switch: Arc<Switch>,
) {
    loop {
        match inner.incarnation(&actor, incarnation, &switch) {
            Err(error) => tracing::warn!(%actor, "failed to start process: {error:#}"),
            Ok(process) => {
                tokio::select! {
                    biased;
                    () = switch.killed() => tracing::debug!(%actor, incarnation, "killed"),
                    outcome = with_pauses(&switch, process) => match outcome {
                        Ok(()) => tracing::warn!(%actor, "process exited"),
                        Err(error) => tracing::warn!(%actor, "process failed: {error:#}"),
                    },
                }
            }
        }
        // Tasks of the process that outlive it in its connections see that it is dead.
        switch.kill();
        if actor.is_controller() {
            inner.close_hooks(&actor);
        }
        if inner.hub.keeps_down(&actor) {
            return;
        }
        tokio::time::sleep(RESTART_DELAY).await;
        (incarnation, switch) = inner.next(&actor);
        inner.lag(&actor, incarnation);
        if let Some(running) = lock(&inner.processes).get_mut(&actor) {
            running.incarnation = incarnation;
            running.since = inner.clock.now();
            running.switch = switch.clone();
        }
    }
}
