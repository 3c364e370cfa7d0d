//! Simulated hosts: one for each Machine that has a Node, with the real agent.
//!
//! The HostPlan of a host is in the management cluster, and its agent has permissions for that
//! HostPlan only.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client, ResourceExt as _};
use lab_simhost::{
    DiskState, HostState, SimDisk, SimHost, kubelet::HostView, service::HostService,
};
use refit_agent::{AgentOptions, run_for};
use refit_cluster_api::kinds::Machine;
use refit_kinds::version::StatedVersion;
use refit_runtime::{
    Clock, ObjectKey, Store, client::ClientStack, gate::Open, store, workload::Workloads,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    certs::Certs,
    kubelet::Kubelet,
    lock,
    objects::{self, NODE, Objects},
};

/// How many times faster than a real host they work.
const HURRY: u32 = 24;
/// Factor by which a held step is slower. The agent sleeps until the end of the step, so the end is
/// near and is postponed again and again.
const HELD: u32 = 5;
/// How far the end of a held step is postponed.
const HELD_ON: SignedDuration = SignedDuration::from_secs(1);
/// How often hosts and Machines are checked.
const POLL: Duration = Duration::from_millis(200);
/// Delay before an agent that stopped is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Label of every Machine of a control plane.
const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";

/// The hosts of a bed. They stop when this value is dropped.
#[derive(Debug)]
pub struct Hosts {
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 3],
}

struct Shared {
    clock: Clock,
    client: Client,
    url: String,
    certs: Arc<Certs>,
    workloads: Workloads,
    machines: Store<Machine>,
    hosts: Mutex<BTreeMap<ObjectKey, Host>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").finish_non_exhaustive()
    }
}

/// One host.
struct Host {
    uid: String,
    state: Arc<Mutex<HostState>>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Host {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        lock(&self.shared.hosts).clear();
    }
}

impl Hosts {
    /// Starts a host for every Machine of the management cluster, as soon as the Machine has a
    /// Node.
    pub fn start(client: Client, url: &str, certs: Arc<Certs>) -> Self {
        let clock = Clock::real();
        let stack = ClientStack::production("refit-testbed-kubelet");
        let shared = Arc::new(Shared {
            clock,
            workloads: Workloads::new(client.clone(), stack, clock),
            client: client.clone(),
            url: url.to_owned(),
            certs,
            machines: Store::default(),
            hosts: Mutex::default(),
        });
        let api: Api<Machine> = Api::all(client);
        let seen = shared.machines.clone();
        let watch = store::reflect(api, store::everything(), seen, |_| {});
        let tasks = [
            tokio::spawn(watch),
            tokio::spawn(shared.clone().keep()),
            tokio::spawn(shared.clone().postpone_held()),
        ];
        Self { shared, tasks }
    }

    /// Changes the host of a Machine without the knowledge of any component.
    pub fn with<T>(
        &self,
        namespace: &str,
        machine: &str,
        act: impl FnOnce(&mut HostState) -> T,
    ) -> anyhow::Result<T> {
        let key = ObjectKey::new(namespace, machine);
        let changed = self.shared.with(|own, _| *own == key, act);
        changed.with_context(|| format!("Machine {namespace}/{machine} has no host"))
    }

    /// Returns an API that upgrades the hosts of one namespace without their agents.
    pub fn service(&self, namespace: &str) -> HostService {
        let (shared, namespace) = (self.shared.clone(), namespace.to_owned());
        HostService::new(Box::new(move |node, act| {
            let is_it =
                |key: &ObjectKey, host: &HostState| key.namespace == namespace && host.node == node;
            shared.with(is_it, act).is_some()
        }))
    }

    /// Returns the names of the Machines in a namespace that have a host.
    pub fn machines(&self, namespace: &str) -> Vec<String> {
        let hosts = lock(&self.shared.hosts);
        let keys = hosts.keys().filter(|key| key.namespace == namespace);
        keys.map(|key| key.name.clone()).collect()
    }

    /// Holds a host at a step, once it reaches that step, until [`Hosts::resume`].
    pub fn hold(&self, namespace: &str, machine: &str, step: &str) -> anyhow::Result<()> {
        self.with(namespace, machine, |host| {
            host.troubles.slow.insert(step.to_owned(), HELD);
        })
    }

    /// Lets a held host continue.
    pub fn resume(&self, namespace: &str, machine: &str) -> anyhow::Result<()> {
        self.with(namespace, machine, |host| host.troubles.slow.clear())
    }
}

impl Shared {
    /// Changes the first host that fits.
    fn with<T>(
        &self,
        is_it: impl Fn(&ObjectKey, &HostState) -> bool,
        act: impl FnOnce(&mut HostState) -> T,
    ) -> Option<T> {
        let hosts = lock(&self.hosts);
        let mut states = hosts.iter().map(|(key, host)| (key, lock(&host.state)));
        let (_, mut state) = states.find(|(key, state)| is_it(key, state))?;
        state.tick(self.clock.now());
        Some(act(&mut state))
    }

    /// Postpones the ends of held steps.
    async fn postpone_held(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            for host in lock(&self.hosts).values() {
                postpone_steps(&mut lock(&host.state), now);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn keep(self: Arc<Self>) {
        self.machines.ready().await;
        loop {
            let machines = self.machines.list();
            lock(&self.hosts).retain(|key, host| {
                machines.iter().any(|m| {
                    ObjectKey::of(m.as_ref()) == *key && m.uid().as_ref() == Some(&host.uid)
                })
            });
            for machine in machines {
                let key = ObjectKey::of(machine.as_ref());
                let status = machine.status.as_ref();
                let node = status.and_then(|status| status.node_ref.as_ref());
                let known = lock(&self.hosts).contains_key(&key);
                if let (false, Some(node)) = (known, node) {
                    match self.boot(&machine, &node.name).await {
                        Ok(Some(host)) => {
                            lock(&self.hosts).insert(key, host);
                        }
                        Ok(None) => {}
                        Err(error) => tracing::debug!(machine = %key, "no host yet: {error:#}"),
                    }
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Starts a host for a Node that kubeadm has just created.
    async fn boot(&self, machine: &Machine, node: &str) -> anyhow::Result<Option<Host>> {
        let key = ObjectKey::of(machine);
        let workload = self.workloads.client(&key.namespace, &machine.spec.cluster_name).await;
        let workload = match workload {
            Ok(workload) => workload,
            Err(error) => {
                self.workloads.forget(&key.namespace, &machine.spec.cluster_name);
                return Err(error.into());
            }
        };
        let found = Objects::of_cluster(workload.clone()).find(NODE, node).await?;
        let Some(object) = found else {
            return Ok(None);
        };
        // The provider of v1.12 creates Nodes without a kubelet version.
        let shown = objects::text(&object, "/status/nodeInfo/kubeletVersion");
        let version = StatedVersion::from(shown).or(machine.spec.version.clone()).to_string();
        let control_plane = machine.labels().contains_key(CONTROL_PLANE);
        let now = self.clock.now();
        let state = HostState::new(node, control_plane, &version, now).hurried(HURRY);
        let state = Arc::new(Mutex::new(state));
        let user = self.allow(&key).await?;
        let config = self.certs.config(&self.url, &user, &[]).await?;
        let agent = agent(config, key, node.to_owned(), state.clone(), self.clock);
        let kubelet = kubelet(Kubelet::new(node, workload), state.clone(), self.clock);
        Ok(Some(Host {
            uid: machine.uid().unwrap_or_default(),
            state,
            tasks: [tokio::spawn(agent), tokio::spawn(kubelet)],
        }))
    }

    /// Grants the agent of a Machine the permissions from `docs/install.md`, and returns its user
    /// name.
    async fn allow(&self, key: &ObjectKey) -> anyhow::Result<String> {
        let user = format!("refit:agent:{}:{}", key.namespace, key.name);
        for object in rights(key, &user) {
            objects::apply(&self.client, &object).await?;
        }
        Ok(user)
    }
}

fn postpone_steps(host: &mut HostState, now: Timestamp) {
    for unit in host.units.values_mut() {
        let held = host.troubles.slow.get(&unit.step) == Some(&HELD);
        if held && unit.exit.is_none() && unit.ends > now {
            unit.ends = unit.ends.max(now + HELD_ON);
        }
    }
}

fn rights(key: &ObjectKey, user: &str) -> [Value; 2] {
    let name = format!("refit-agent-{}", key.name);
    let metadata = json!({"name": name, "namespace": key.namespace});
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "Role",
        "metadata": metadata,
        "rules": [
            {
                "apiGroups": ["refit.dev"],
                "resources": ["hostplans"],
                "resourceNames": [key.name],
                "verbs": ["create", "list", "patch", "watch"],
            },
            {
                "apiGroups": ["refit.dev"],
                "resources": ["hostplans/status"],
                "resourceNames": [key.name],
                "verbs": ["patch"],
            },
        ],
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    });
    [role, binding]
}

/// Runs the agent of one host, and restarts it when it stops.
async fn agent(
    config: kube::Config,
    plan: ObjectKey,
    node: String,
    state: Arc<Mutex<HostState>>,
    clock: Clock,
) {
    let disk: Arc<Mutex<DiskState>> = Arc::default();
    loop {
        let options = AgentOptions {
            stack: ClientStack::production("refit-agent/testbed"),
            config: config.clone(),
            clock,
            node_name: node.clone(),
            host: Arc::new(SimHost::new(state.clone(), clock, Arc::new(Open))),
            disk: Arc::new(SimDisk::new(disk.clone(), Arc::new(Open))),
        };
        if let Err(error) = run_for(options, plan.clone()).await {
            tracing::warn!(%plan, "restarting agent: {error:#}");
        }
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

async fn kubelet(mut kubelet: Kubelet, state: Arc<Mutex<HostState>>, clock: Clock) {
    loop {
        let now = clock.now();
        let host = HostView::of(&mut lock(&state), now);
        if let Err(error) = kubelet.report(host, now).await {
            tracing::debug!("report failed: {error:#}");
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use refit_agent::host::{Job, UnitState};
    use refit_kinds::refit::HostStep;

    use super::*;

    #[test]
    fn a_held_step_ends_after_its_host_resumes() {
        let now: Timestamp = "2026-03-02T08:00:00Z".parse().unwrap();
        let mut host = HostState::new("n", false, "v1.34.2", now).hurried(HURRY);
        host.troubles.slow.insert("snapshot".to_owned(), HELD);
        host.start(&Job::new("p", "u", "snapshot", HostStep::Snapshot {}), now);
        let mut at = now;
        while at < now + SignedDuration::from_mins(1) {
            at += SignedDuration::from_millis(500);
            postpone_steps(&mut host, at);
            host.tick(at);
        }
        assert_eq!(host.poll("u"), UnitState::Running);
        host.troubles.slow.clear();
        at += HELD_ON;
        postpone_steps(&mut host, at);
        host.tick(at);
        assert!(matches!(host.poll("u"), UnitState::Exited { code: 0, .. }));
    }
}
