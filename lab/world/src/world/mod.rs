//! A whole world in one process, on simulated time: management cluster, workload clusters, hosts,
//! and the processes of Refit and of the Cluster API stand-in.
//!
//! Everything runs in one current-thread tokio runtime whose clock is paused ([`runtime`]): time
//! jumps to the next timer when all tasks are idle. [`pace`] makes it run at a multiple of real
//! time instead, for people who watch. APIs and hooks are served over in-memory streams with the
//! production TLS configuration. The same seed, manifests and calls result in the same world.

mod build;
pub(crate) mod by_hand;
mod enforced;
mod facts;
mod hook_call;
mod hosts;
mod pacer;
mod process;
mod progress;
mod snaps;
pub(crate) mod status;
mod supervise;
mod tasks;
mod wait;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicI64},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use lab_apiserver::ApiServer;
use lab_simhost::k8sd::SigningRequests;
use refit_kinds::json;
use refit_runtime::{
    Clock,
    client::{ClientError, ClientStack},
    gate::Open,
    net::{Dialer, MemoryNetwork},
    plan_signing::PlanKeys,
    tls::TlsError,
};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};

pub use enforced::{Enforced, WORKLOAD_USER};
pub use facts::{MachineFacts, facts};
pub use hosts::HostSnapshot;
pub use pacer::pace;
pub use process::{Actor, Kill, RESTART_DELAY, Side};
pub use progress::{MachineProgress, ProgressFeed};
pub use wait::TimedOut;

pub(crate) use build::{cluster_secrets, collection};
pub(crate) use enforced::{caller, insider};
pub(crate) use hosts::HostHandle;
pub(crate) use process::Hub;
pub(crate) use supervise::LEASE;

use crate::{
    alertmanager::Alertmanager,
    direct::{Call, Direct, DirectError, USER},
    env::state::EnvState,
    invariants::Checker,
    leaders::Leaders,
    mirror::Mirror,
    pki::{self, HookClient, Identity},
    prometheus::Prometheus,
    provider::Misbehaviour,
    receivers::Receivers,
    update_server::UpdateServer,
};

/// Stands for authorities in `examples/hook-updater/updater.yaml`.
const CA_BUNDLE: &str = "CA_BUNDLE";

/// Options of a world.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each turns on something of its own")]
pub struct WorldOptions {
    /// Seed of generated names and uids.
    pub seed: u64,
    /// Simulated time at the start.
    pub epoch: Timestamp,
    /// Objects that the user applies, in order.
    pub manifests: Vec<Value>,
    /// The safeguard that is disabled in the controllers.
    #[cfg(feature = "sabotage")]
    pub without: Option<refit_controller::sabotage::Safeguard>,
    /// Whether the agents' journals keep their records.
    pub journal: bool,
    /// The operator's settings of the controller.
    pub settings: refit_controller::Settings,
    /// Keys of the signers whose plans the agents accept; `None` accepts all plans.
    pub plan_keys: Option<PlanKeys>,
    /// Whether there are two replicas of the controller, one of which leads.
    pub two_controllers: bool,
    /// Whether the server of `examples/hook-updater` runs.
    pub updater: bool,
    /// Whether `examples/provider` runs.
    pub provider: bool,
    /// Whether a provider brings machines to versions; then there are no agents.
    pub version_provider: bool,
    /// Whether Canonical's controllers run.
    pub canonical_controllers: bool,
    /// Whether there are receivers of notifications.
    pub receivers: bool,
    /// How often the leader of two controllers renews the Lease; `None` for the default.
    pub lease_retry: Option<Duration>,
    /// How many times faster than real hosts these work.
    pub hurry: u32,
    /// Whether a restored world uses the machine's own clock, in an ordinary runtime.
    pub real_time: bool,
    /// A real installation of Refit, whose RBAC permissions are enforced; `None` gives full access.
    pub enforced: Option<Enforced>,
}

impl WorldOptions {
    /// The default options with these manifests.
    pub fn new(manifests: Vec<Value>) -> Self {
        Self {
            seed: 1,
            epoch: "2026-03-02T08:00:00Z".parse().expect("a valid time"),
            manifests,
            #[cfg(feature = "sabotage")]
            without: None,
            journal: true,
            settings: refit_controller::Settings::default(),
            plan_keys: None,
            two_controllers: false,
            updater: false,
            provider: false,
            version_provider: false,
            canonical_controllers: false,
            receivers: false,
            lease_retry: None,
            hurry: 1,
            real_time: false,
            enforced: None,
        }
    }

    /// The clock of a world that continues at `time`. Time in a world never goes back: if the
    /// machine's own clock was set back, the world keeps an offset to it.
    fn clock_from(&self, time: Timestamp) -> Clock {
        let real = Clock::real();
        if self.real_time && real.now() >= time { real } else { Clock::simulated(time) }
    }
}

/// Why a world cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// A certificate cannot be created.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A client cannot be created.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The files of a program cannot be written.
    #[error("failed to write a temporary file: {0}")]
    Files(std::io::Error),
    /// Refit cannot be installed.
    #[error("failed to install Refit: {0:#}")]
    Install(anyhow::Error),
    /// The embedded API server rejected a write.
    #[error("the embedded API server rejected a write: {0}")]
    Refused(#[from] DirectError),
    /// The cluster does not exist, or its API is not up yet.
    #[error("workload cluster {0} does not exist, or its API does not answer yet")]
    NoCluster(String),
}

/// Creates the runtime of one world: one thread, paused clock.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()
}

/// One workload cluster.
#[derive(Clone)]
pub(crate) struct Workload {
    pub(crate) server: ApiServer,
    pub(crate) identity: Identity,
    pub(crate) mirror: Mirror,
    /// The task that serves its API, while the API is up.
    pub(crate) serving: Option<AbortHandle>,
}

/// A process that runs or is about to be restarted.
pub(crate) struct Running {
    pub(crate) incarnation: u32,
    /// Since when the incarnation runs.
    pub(crate) since: Timestamp,
    pub(crate) switch: Arc<process::Switch>,
    task: AbortHandle,
}

/// The hosts that have booted, by key.
pub(crate) type Hosts = Arc<Mutex<BTreeMap<String, HostHandle>>>;

/// The state shared by the tasks of a world.
pub(crate) struct Inner {
    pub(crate) clock: Clock,
    pub(crate) seed: u64,
    #[cfg(feature = "sabotage")]
    pub(crate) without: Option<refit_controller::sabotage::Safeguard>,
    pub(crate) journal: bool,
    pub(crate) settings: refit_controller::Settings,
    pub(crate) plan_keys: Option<PlanKeys>,
    pub(crate) two_controllers: bool,
    /// Processes of others that run: the updater and the providers.
    pub(crate) others: BTreeSet<Actor>,
    /// How the provider of memory misbehaves now.
    pub(crate) misbehaviour: Mutex<Option<Misbehaviour>>,
    /// What the controller asks before it begins with a machine.
    pub(crate) prometheus: Prometheus,
    /// What gets the notifications of upgrades.
    pub(crate) receivers: Option<Receivers>,
    pub(crate) update_server: UpdateServer,
    /// What silences alerts.
    pub(crate) alertmanager: Alertmanager,
    pub(crate) lease_retry: Option<Duration>,
    pub(crate) leaders: Leaders,
    pub(crate) hurry: u32,
    /// Whether callers from outside this process must authenticate.
    pub(crate) authentication: lab_apiserver::auth::Authentication,
    pub(crate) enforced: Option<Enforced>,
    /// The workload clusters whose API was up at least once, and whether it is up now.
    pub(crate) apis: watch::Sender<BTreeMap<String, bool>>,
    pub(crate) network: MemoryNetwork,
    pub(crate) management: ApiServer,
    pub(crate) management_mirror: Mirror,
    pub(crate) management_identity: Identity,
    pub(crate) hook_identity: Identity,
    pub(crate) hook_client: HookClient,
    pub(crate) workloads: Mutex<BTreeMap<String, Workload>>,
    pub(crate) env: Mutex<EnvState>,
    pub(crate) hosts: Hosts,
    /// The requests to sign certificates, by cluster: those of a world that is restored are made again.
    pub(crate) signing_requests: Mutex<BTreeMap<String, Arc<SigningRequests>>>,
    pub(crate) processes: Mutex<BTreeMap<Actor, Running>>,
    /// How often each process was started, including agents of removed hosts.
    pub(crate) incarnations: Mutex<BTreeMap<Actor, u32>>,
    /// By how many seconds the clock of each process is ahead of the world's.
    pub(crate) clock_steps: Mutex<BTreeMap<Actor, &'static AtomicI64>>,
    pub(crate) hub: Hub,
    pub(crate) woken: Arc<Notify>,
    pub(crate) checker: Checker,
    tasks: Mutex<Vec<AbortHandle>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// A stack for clients that are never killed.
    pub(crate) fn stack(&self, user_agent: &str) -> ClientStack {
        let gate = Arc::new(Open);
        ClientStack::new(Dialer::Memory(self.network.clone(), gate.clone()), gate, user_agent)
    }

    pub(crate) fn management_config(&self) -> kube::Config {
        let ca = &self.management_identity.ca;
        pki::client_config(pki::MANAGEMENT_HOST, pki::MANAGEMENT_PORT, ca)
    }

    /// Host and port of a workload cluster's API.
    pub(crate) fn endpoint(&self, cluster: &str) -> Option<(String, u16)> {
        let env = lock(&self.env);
        let known = env.clusters.get(cluster)?;
        Some((known.host.clone(), known.port))
    }

    pub(crate) fn workload_config(&self, cluster: &str) -> Option<kube::Config> {
        let (host, port) = self.endpoint(cluster)?;
        let workloads = lock(&self.workloads);
        let identity = &workloads.get(cluster)?.identity;
        Some(pki::client_config(&host, port, &identity.ca))
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let handle = tokio::spawn(task).abort_handle();
        lock(&self.tasks).push(handle.clone());
        handle
    }
}

/// A whole world. Dropping it stops everything in it.
pub struct World {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for process in lock(&self.inner.processes).values() {
            process.task.abort();
        }
        for task in lock(&self.inner.tasks).drain(..) {
            task.abort();
        }
    }
}

impl World {
    /// The current time in the world.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The clock of the world.
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// Creates a client of the management cluster. Its connections are separate and never killed.
    pub fn client(&self, user_agent: &str) -> Result<kube::Client, WorldError> {
        let config = self.inner.management_config();
        Ok(self.inner.stack(user_agent).client(&config)?)
    }

    /// Creates a client of the workload cluster `namespace/name`.
    pub fn workload_client(
        &self,
        cluster: &str,
        user_agent: &str,
    ) -> Result<kube::Client, WorldError> {
        let config = self
            .inner
            .workload_config(cluster)
            .ok_or_else(|| WorldError::NoCluster(cluster.to_owned()))?;
        Ok(self.inner.stack(user_agent).client(&config)?)
    }

    /// The management API server itself, to inject faults and to read it without HTTP.
    pub fn management(&self) -> &ApiServer {
        &self.inner.management
    }

    /// The API server of the workload cluster `namespace/name`.
    pub fn workload(&self, cluster: &str) -> Option<ApiServer> {
        let workloads = lock(&self.inner.workloads);
        workloads.get(cluster).map(|workload| workload.server.clone())
    }

    /// Keys of the workload clusters, `namespace/name`.
    pub fn clusters(&self) -> Vec<String> {
        lock(&self.inner.env).clusters.keys().cloned().collect()
    }

    /// The in-memory network, to disconnect components.
    pub fn network(&self) -> &MemoryNetwork {
        &self.inner.network
    }

    /// The running processes, with the number of their incarnation.
    pub fn processes(&self) -> Vec<(Actor, u32)> {
        lock(&self.inner.processes)
            .iter()
            .map(|(actor, running)| (actor.clone(), running.incarnation))
            .collect()
    }

    /// Kills a process at once; it restarts after [`RESTART_DELAY`].
    pub fn kill(&self, actor: &Actor) -> bool {
        let processes = lock(&self.inner.processes);
        let Some(running) = processes.get(actor) else {
            return false;
        };
        running.switch.kill();
        true
    }

    /// The agent on a node, by the node's name.
    pub fn agent(&self, node: &str) -> Option<Actor> {
        let hosts = lock(&self.inner.hosts);
        hosts
            .keys()
            .find(|key| key.rsplit('/').next() == Some(node))
            .map(|key| Actor::Agent(key.clone()))
    }

    /// Changes the version of every KubeadmControlPlane and MachineDeployment at once. A user can
    /// do the same, because Cluster API and Refit order the steps.
    pub async fn upgrade(&self, version: &str) -> Result<(), WorldError> {
        let api = Direct::new(self.inner.management.clone(), USER);
        let mirror = &self.inner.management_mirror;
        for (group, kind, pointer) in [
            (refit_cluster_api::kinds::CONTROL_PLANE_GROUP, "KubeadmControlPlane", "/spec/version"),
            (
                refit_cluster_api::kinds::CORE_GROUP,
                "MachineDeployment",
                "/spec/template/spec/version",
            ),
        ] {
            let Some(place) = mirror.place(group, kind) else {
                continue;
            };
            for object in mirror.list(&place.id) {
                if json::text(&object, pointer) == version {
                    continue;
                }
                let body = if kind == "MachineDeployment" {
                    json!({"spec": {"template": {"spec": {"version": version}}}})
                } else {
                    json!({"spec": {"version": version}})
                };
                let path = place.path(json::namespace(&object), json::name(&object));
                api.send(Call::merge(path, body)).await?;
            }
        }
        Ok(())
    }

    /// Lets an Updater without authorities trust the server of `examples/hook-updater` in this world.
    pub(crate) fn trust_hook_updater(&self, object: &mut Value) {
        let hook = object
            .pointer_mut("/spec/hook")
            .filter(|hook| hook["caBundle"].is_null() || hook["caBundle"] == CA_BUNDLE);
        if let Some(hook) = hook {
            let ca = self.inner.hook_identity.ca.cert();
            hook["caBundle"] = STANDARD.encode(ca).into();
        }
    }

    #[cfg(feature = "sabotage")]
    pub(crate) fn hub(&self) -> &Hub {
        &self.inner.hub
    }
}
