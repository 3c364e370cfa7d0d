//! A test environment with one host: an API server, a disk, a host, and an agent that can be
//! killed.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;

use jiff::Timestamp;
use kube::{Api, Client};
use lab_apiserver::{ApiServer, Options};
use lab_simhost::{DiskState, HostState, SimDisk, SimHost};
use refit_agent::{AgentOptions, Disk, Extras, PolicyFile};
use refit_kinds::{
    keys,
    refit::{
        Gate as PlanGate, HostPlan, HostPlanStatus, HostStep, KubeadmArgs, KubeletArgs,
        PackageArgs, PlanState, PlannedStep, Role,
    },
};
use refit_runtime::{
    Clock, ObjectKey, apply,
    client::ClientStack,
    gate::{Effect, Fate, Gate},
    net::{Dialer, MemoryNetwork},
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

pub(crate) const NODE: &str = "edge-1-md-0-1";
pub(crate) const OLD: &str = "v1.34.2";
pub(crate) const NEW: &str = "v1.35.0";
const HOST: &str = "edge-1.refit.sandbox";

/// Where the agent is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    Never,
    Before(usize),
    After(usize),
}

/// Counts effects, and kills the agent at one of them.
pub(crate) struct Switch {
    kill: Kill,
    seen: AtomicUsize,
    effects: Mutex<Vec<String>>,
    dead: watch::Sender<bool>,
}

impl Switch {
    pub(crate) fn new(kill: Kill) -> Arc<Self> {
        Arc::new(Self {
            kill,
            seen: AtomicUsize::new(0),
            effects: Mutex::default(),
            dead: watch::channel(false).0,
        })
    }

    /// The effects so far, in order.
    pub(crate) fn effects(&self) -> Vec<String> {
        self.effects.lock().unwrap().clone()
    }

    pub(crate) fn die(&self) {
        self.dead.send_replace(true);
    }

    pub(crate) async fn died(&self) {
        let mut dead = self.dead.subscribe();
        dead.wait_for(|dead| *dead).await.unwrap();
    }
}

impl Gate for Switch {
    fn before(&self, effect: &Effect) -> Fate {
        if self.fate() == Fate::Dead {
            return Fate::Dead;
        }
        let number = self.seen.fetch_add(1, Ordering::SeqCst);
        self.effects.lock().unwrap().push(effect.to_string());
        if self.kill == Kill::Before(number) {
            self.die();
        }
        self.fate()
    }

    fn after(&self, _: &Effect) -> Fate {
        if self.kill == Kill::After(self.seen.load(Ordering::SeqCst) - 1) {
            self.die();
        }
        self.fate()
    }

    fn fate(&self) -> Fate {
        if *self.dead.borrow() { Fate::Dead } else { Fate::Alive }
    }
}

/// A disk that may be full: writes then fail, and reads still work.
struct Filling {
    inner: SimDisk,
    full: Arc<AtomicBool>,
}

impl Filling {
    fn room(&self) -> std::io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Disk for Filling {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, std::io::Result<Option<Vec<u8>>>> {
        self.inner.read(path)
    }
    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, std::io::Result<()>> {
        Box::pin(async move {
            self.room()?;
            self.inner.append(path, bytes).await
        })
    }
    fn sync<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, std::io::Result<()>> {
        self.inner.sync(path, what)
    }
    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        what: &'a str,
    ) -> BoxFuture<'a, std::io::Result<()>> {
        Box::pin(async move {
            self.room()?;
            self.inner.write_atomic(path, bytes, what).await
        })
    }
}

/// Everything except the agent.
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) server: ApiServer,
    pub(crate) disk: Arc<Mutex<DiskState>>,
    pub(crate) host: Arc<Mutex<HostState>>,
    pub(crate) forgetful: bool,
    /// The host's own policy.
    pub(crate) policy: Option<PolicyFile>,
    /// Whether the agent's disk is full.
    pub(crate) disk_full: Arc<AtomicBool>,
    network: MemoryNetwork,
    serving: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl World {
    /// A world whose API server has the HostPlan CRD and namespace.
    pub(crate) async fn new() -> Self {
        let world = Self::bare();
        world.install().await;
        world
    }

    /// A world whose API server has no object of Refit yet.
    pub(crate) fn bare() -> Self {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::simulated(epoch);
        let server = ApiServer::new(Options::new(Arc::new(move || clock.now())));
        let network = MemoryNetwork::default();
        let listener = network.listen(HOST, 6443);
        let api = server.clone();
        let service = tower::service_fn(move |request| {
            let response = tower::ServiceExt::oneshot(api.clone(), request);
            async move { Ok::<_, Infallible>(response.await.expect("no connection faults are used")) }
        });
        let serving = tokio::spawn(refit_runtime::serve::serve(
            listener,
            None,
            service,
            std::future::pending(),
        ));
        let host = HostState::new(NODE, false, OLD, clock.now());
        Self {
            clock,
            server,
            disk: Arc::default(),
            host: Arc::new(Mutex::new(host)),
            forgetful: false,
            policy: None,
            disk_full: Arc::default(),
            network,
            serving,
        }
    }

    /// Installs the CRD and the namespace, as the controller does.
    pub(crate) async fn install(&self) {
        use k8s_openapi::{
            api::core::v1::Namespace,
            apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        };
        let client = self.client();
        for crd in refit_kinds::crds::refit_crds() {
            let api: Api<CustomResourceDefinition> = Api::all(client.clone());
            api.create(&kube::api::PostParams::default(), &crd).await.unwrap();
        }
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(keys::HOST_PLAN_NAMESPACE.to_owned());
        let api: Api<Namespace> = Api::all(client);
        api.create(&kube::api::PostParams::default(), &namespace).await.unwrap();
    }

    /// A client of another component, without gates and network.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.server.clone(), "default")
    }

    pub(crate) fn api(&self) -> Api<HostPlan> {
        Api::namespaced(self.client(), keys::HOST_PLAN_NAMESPACE)
    }

    fn options(&self, gate: Arc<dyn Gate>) -> AgentOptions {
        let dialer = Dialer::Memory(self.network.clone(), gate.clone());
        let url = format!("http://{HOST}:6443").parse().unwrap();
        AgentOptions {
            stack: ClientStack::new(dialer, gate.clone(), "refit-agent/test"),
            config: kube::Config::new(url),
            clock: self.clock,
            node_name: NODE.to_owned(),
            host: Arc::new(SimHost::new(self.host.clone(), self.clock, gate.clone())),
            disk: Arc::new(Filling {
                inner: SimDisk::new(self.disk.clone(), gate).forgetful(self.forgetful),
                full: self.disk_full.clone(),
            }),
        }
    }

    /// The same world with a control plane host.
    pub(crate) fn control_plane(self) -> Self {
        *self.host.lock().unwrap() = HostState::new(NODE, true, OLD, self.clock.now());
        self
    }

    /// Runs an agent until its switch kills it, `done` returns true, or the time is over. Returns
    /// whether `done` returned true.
    pub(crate) async fn run_until(
        &self,
        switch: &Arc<Switch>,
        seconds: u64,
        done: impl AsyncFn(&Self) -> bool,
    ) -> bool {
        let plan = ObjectKey::new(keys::HOST_PLAN_NAMESPACE, NODE);
        let extras = Extras { policy: self.policy.clone(), ..Extras::default() };
        let agent = refit_agent::run_with(self.options(switch.clone()), plan, extras);
        let reached = async {
            loop {
                if Box::pin(done(self)).await {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        };
        tokio::select! {
            biased;
            () = switch.died() => false,
            outcome = agent => panic!("the agent returned: {outcome:?}"),
            () = reached => true,
            () = tokio::time::sleep(Duration::from_secs(seconds)) => false,
        }
    }

    /// Runs an undisturbed agent for this many seconds.
    pub(crate) async fn run_for(&self, seconds: u64) {
        let switch = Switch::new(Kill::Never);
        self.run_until(&switch, seconds, async |_| false).await;
    }

    /// Runs an undisturbed agent until it reports this state of the plan.
    pub(crate) async fn run_to(&self, state: PlanState) -> HostPlanStatus {
        let switch = Switch::new(Kill::Never);
        let reached =
            self.run_until(&switch, 2000, async |world| world.status().await.state == state).await;
        let status = self.status().await;
        assert!(reached, "{state:?} is not reached: {status:#?}");
        status
    }

    /// Runs an undisturbed agent until it reports the end of this plan.
    pub(crate) async fn run_until_ended(&self, id: &str) -> HostPlanStatus {
        let switch = Switch::new(Kill::Never);
        let over = [PlanState::Succeeded, PlanState::Failed, PlanState::Stopped];
        let ended = async |world: &Self| {
            let status = world.status().await;
            status.plan_id == id && over.contains(&status.state)
        };
        let reached = self.run_until(&switch, 2000, ended).await;
        let status = self.status().await;
        assert!(reached, "the plan does not end: {status:#?}");
        status
    }

    pub(crate) async fn plan(&self) -> Option<HostPlan> {
        apply::optional(self.api().get(NODE).await).unwrap()
    }

    pub(crate) async fn status(&self) -> HostPlanStatus {
        let plan = self.plan().await;
        plan.and_then(|plan| plan.status).unwrap_or_default()
    }

    /// Writes the spec, as the controller does.
    pub(crate) async fn order(&self, spec: &Value) {
        let body = json!({
            "apiVersion": "refit.dev/v1alpha1",
            "kind": "HostPlan",
            "metadata": { "name": NODE },
            "spec": spec,
        });
        apply::apply(&self.api(), keys::MANAGER, NODE, &body).await.unwrap();
    }

    /// Writes a plan with these steps that may proceed up to a gate.
    pub(crate) async fn order_plan(&self, id: &str, gate: PlanGate, steps: &[PlannedStep]) {
        self.order(&spec(id, gate, steps)).await;
    }

    pub(crate) fn host_state(&self) -> HostState {
        self.host.lock().unwrap().clone()
    }

    pub(crate) fn break_step(&self, step: &str, times: u32) {
        self.host.lock().unwrap().break_step(step, times);
    }

    /// Makes the API server respond with 503 only.
    pub(crate) fn api_down(&self, down: bool) {
        let faults = self.server.faults();
        if down {
            faults.set_down(Some(lab_apiserver::Down::Unavailable));
        } else {
            faults.set_down(None);
        }
    }
}

pub(crate) fn spec(id: &str, gate: PlanGate, steps: &[PlannedStep]) -> Value {
    json!({ "nodeUpdate": format!("nu-{id}"), "planId": id, "gate": gate, "steps": steps })
}

/// The steps of a worker, with or without a reboot.
pub(crate) fn worker_steps(version: &str, reboot: bool) -> Vec<PlannedStep> {
    let mut steps = steps(Role::Worker, version, reboot);
    for step in &mut steps {
        step.undo = None;
    }
    steps
}

fn steps(role: Role, version: &str, reboot: bool) -> Vec<PlannedStep> {
    let version = || version.parse().unwrap();
    let packages = PackageArgs::default;
    let steps = [
        Some(HostStep::Preflight { version: Some(version()) }),
        Some(HostStep::Stage {
            version: version(),
            packages: packages(),
            images: None,
            bundle: None,
        }),
        Some(HostStep::KubeadmInstall { version: version(), packages: packages() }),
        Some(HostStep::KubeadmUpgrade {
            version: version(),
            role,
            kubeadm: KubeadmArgs::default(),
        }),
        Some(HostStep::KubeletInstall {
            version: version(),
            packages: packages(),
            kubelet: KubeletArgs::default(),
        }),
        Some(HostStep::KubeletRestart {}),
        reboot.then_some(HostStep::Reboot {}),
        Some(HostStep::Verify { version: Some(version()) }),
    ];
    steps.into_iter().flatten().map(PlannedStep::new).collect()
}

/// The steps with the undos that a controller plans for a worker or a control plane member.
pub(crate) fn reversible_steps(role: Role, version: &str) -> Vec<PlannedStep> {
    let mut steps = steps(role, version, false);
    for step in &mut steps {
        let stays = role != Role::Worker && step.id != "kubeadm-install";
        if stays || step.id == "stage" {
            step.undo = None;
        }
    }
    steps
}

/// A plan with these steps that names its point of no return.
pub(crate) fn reversible(id: &str, gate: PlanGate, role: Role) -> Value {
    let mut spec = spec(id, gate, &reversible_steps(role, NEW));
    spec["pointOfNoReturn"] = json!(match role {
        Role::Worker => "node-ready",
        Role::FirstControlPlane | Role::ControlPlane => "kubeadm-upgrade",
    });
    spec
}
