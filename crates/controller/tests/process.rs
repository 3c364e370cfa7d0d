//! The whole process against an API server in memory: the state that it leaves when it dies.

use std::{
    convert::Infallible,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use lab_apiserver::{ApiServer, Options};
use refit_cluster_api::kinds::{Cluster, Machine, MachineSpec};
use refit_controller::{ControllerOptions, HookServer, Process, Settings, run};
use refit_kinds::{crds, hooks, keys, refit::NodeUpdate};
use refit_runtime::{
    Clock,
    client::{ClientStack, HttpsPoster},
    gate::{Effect, Fate, Gate, Open},
    lease::LeaseSettings,
    net::{Dialer, MemoryNetwork},
    serve,
    tls::{self, Authority, ReloadableCert, Validity},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::common::objects::{label_default, update_asked};

const API: &str = "management.refit.sandbox";
const HOOKS: &str = "refit-webhook.refit-system.svc";

struct World {
    network: MemoryNetwork,
    authority: Authority,
    clock: Clock,
    client: Client,
    api: JoinHandle<()>,
    /// Path and query of every call to the API server.
    calls: Arc<Mutex<Vec<String>>>,
    /// How long each patch of a status takes, and how many have finished.
    patches: Arc<Mutex<(Duration, usize)>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.api.abort();
    }
}

fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().unwrap(),
        until: "2120-01-01T00:00:00Z".parse().unwrap(),
    }
}

impl World {
    async fn new() -> Self {
        tls::install_provider();
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let server = ApiServer::new(Options::new(Arc::new(move || clock.now_seconds())));
        let client = Client::new(server.clone(), "default");
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        for crd in crds::refit_crds().into_iter().chain(refit_cluster_api::crds()) {
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        label_default(&client, json!({keys::IN_PLACE: keys::OPTED_IN})).await;
        let network = MemoryNetwork::default();
        let authority = Authority::new("sandbox", validity()).unwrap();
        let cert = ReloadableCert::new(&authority.server(&[API], validity()).unwrap()).unwrap();
        let config = tls::server_config(cert).unwrap();
        let listener = network.listen(API, 6443);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let patches = Arc::new(Mutex::new((Duration::ZERO, 0)));
        let ended = patches.clone();
        let service = tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            seen.lock().unwrap().push(request.uri().to_string());
            let is_patch = request.uri().to_string().contains("/status?");
            let (answer, ended) = (server.clone().oneshot(request), ended.clone());
            async move {
                let takes = ended.lock().unwrap().0;
                if is_patch && !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                let answer = answer.await.expect("no connection is cut here");
                ended.lock().unwrap().1 += usize::from(is_patch);
                Ok::<_, Infallible>(answer)
            }
        });
        let api =
            tokio::spawn(serve::serve(listener, Some(config), service, std::future::pending()));
        Self { network, authority, clock, client, api, calls, patches }
    }

    fn stack(&self) -> ClientStack {
        self.gated(Arc::new(Open))
    }

    fn gated(&self, gate: Arc<dyn Gate>) -> ClientStack {
        let dialer = Dialer::Memory(self.network.clone(), Arc::new(Open));
        ClientStack::new(dialer, gate, "refit-test/0")
    }

    fn start(&self) -> JoinHandle<anyhow::Result<()>> {
        self.start_as(Process::default())
    }

    fn start_as(&self, process: Process) -> JoinHandle<anyhow::Result<()>> {
        self.start_with(process, self.stack())
    }

    fn start_with(&self, process: Process, stack: ClientStack) -> JoinHandle<anyhow::Result<()>> {
        let ca = &self.authority;
        let mut config = Config::new(format!("https://{API}:6443").parse().unwrap());
        let pem = ca.material().cert_pem.as_bytes();
        config.root_cert = Some(vec![CertificateDer::from_pem_slice(pem).unwrap().to_vec()]);
        let cert = ReloadableCert::new(&ca.server(&[HOOKS], validity()).unwrap()).unwrap();
        tokio::spawn(run(ControllerOptions {
            stack,
            config,
            clock: self.clock,
            hooks: HookServer { listener: self.network.listen(HOOKS, 443), cert, clients: None },
            settings: Settings::default(),
            process,
        }))
    }

    async fn add_machine(&self) -> Machine {
        let clusters: Api<Cluster> = Api::namespaced(self.client.clone(), "default");
        let cluster = Cluster::new("edge-1", <_>::default());
        clusters.create(&PostParams::default(), &cluster).await.unwrap();
        let machines: Api<Machine> = Api::namespaced(self.client.clone(), "default");
        let spec = MachineSpec {
            cluster_name: "edge-1".into(),
            version: "v1.34.2".into(),
            ..MachineSpec::default()
        };
        let machine = Machine::new("edge-1-w-0", spec);
        machines.create(&PostParams::default(), &machine).await.unwrap()
    }

    async fn update_machine(&self, version: &str) -> Value {
        let machines: Api<Machine> = Api::namespaced(self.client.clone(), "default");
        let patch = Patch::Merge(update_asked(version));
        machines.patch("edge-1-w-0", &PatchParams::default(), &patch).await.unwrap();
        let meta = json!({"name": "edge-1-w-0", "namespace": "default"});
        let body = json!({"desired": {
            "machine": {"kind": "Machine", "metadata": meta,
                "spec": {"clusterName": "edge-1", "version": version}},
            "infrastructureMachine": {"kind": "DockerMachine", "metadata": meta, "spec": {}},
            "bootstrapConfig": {"kind": "KubeadmConfig", "metadata": meta, "spec": {}},
        }});
        let path = hooks::path("UpdateMachine", Some("update-machine"));
        let url = format!("https://{HOOKS}:443{path}?timeout=10s");
        let pem = self.authority.material().cert_pem.as_bytes();
        let poster = HttpsPoster::new(&self.stack(), pem).unwrap();
        let deadline = Duration::from_secs(10);
        let (status, answer) =
            poster.post(&url, body.to_string().into_bytes(), deadline).await.unwrap();
        assert_eq!(status, 200);
        serde_json::from_slice(&answer).unwrap()
    }

    async fn node_updates(&self) -> Vec<NodeUpdate> {
        let api: Api<NodeUpdate> = Api::namespaced(self.client.clone(), "default");
        api.list(&<_>::default()).await.unwrap().items
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_creates_each_node_update_once() {
    let world = World::new().await;
    let machine = world.add_machine().await;
    let machines: Api<Machine> = Api::namespaced(world.client.clone(), "default");

    for _ in 0..3 {
        let process = world.start();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let answer = world.update_machine("v1.35.0").await;
        assert_eq!(answer["status"], "Success", "{answer}");
        assert!(answer["retryAfterSeconds"].as_i64().unwrap() > 0, "{answer}");
        assert!(!process.is_finished());
        process.abort();
        assert!(process.await.unwrap_err().is_cancelled());
    }
    let updates = world.node_updates().await;
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0].name_any(), "edge-1-w-0-1");
    assert_eq!(Some(updates[0].spec.machine_ref.uid.to_string()), machine.uid());

    machines.delete("edge-1-w-0", &<_>::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(world.node_updates().await.is_empty(), "it goes with its Machine");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_writes_in_flight() {
    let world = World::new().await;
    world.add_machine().await;
    // An unreachable cluster gives the controller a status to write.
    let clusters: Api<Cluster> = Api::namespaced(world.client.clone(), "default");
    let ready = json!({"status": {"initialization": {"controlPlaneInitialized": true}}});
    clusters.patch_status("edge-1", &<_>::default(), &Patch::Merge(&ready)).await.unwrap();
    let lease = LeaseSettings::new("default", "refit-controller", "a");
    for (lease, version) in [(None, "v1.35.0"), (Some(lease), "v1.35.1")] {
        let stop = CancellationToken::new();
        let process = world.start_as(Process { lease, stop: stop.clone(), ..Process::default() });
        tokio::time::sleep(Duration::from_secs(5)).await;
        *world.patches.lock().unwrap() = (Duration::from_secs(1), 0);
        world.calls.lock().unwrap().clear();
        world.update_machine(version).await;
        let (begun, ended) = (
            || {
                let calls = world.calls.lock().unwrap();
                calls.iter().filter(|call| call.contains("/status?")).count()
            },
            || world.patches.lock().unwrap().1,
        );
        for _ in 0..1000 {
            if begun() > ended() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(begun() > ended(), "{:?}", world.calls.lock().unwrap());
        stop.cancel();
        process.await.unwrap().unwrap();
        assert_eq!(begun(), ended(), "{:?}", world.calls.lock().unwrap());
        world.patches.lock().unwrap().0 = Duration::ZERO;
    }
}

/// Blocks the thread that writes to a NodeUpdate, as a turn of the main task that never ends.
#[derive(Default)]
struct BlockedWrites {
    blocked: Mutex<bool>,
    freed: Condvar,
}

impl BlockedWrites {
    fn set(&self, blocked: bool) {
        *self.blocked.lock().unwrap() = blocked;
        self.freed.notify_all();
    }
}

impl Gate for BlockedWrites {
    fn before(&self, effect: &Effect) -> Fate {
        let of_update = match effect {
            Effect::Api { path, .. } => path.contains("/nodeupdates/"),
            Effect::Journal { .. } | Effect::Host { .. } => false,
        };
        let blocked = self.blocked.lock().unwrap();
        let _freed = self.freed.wait_while(blocked, |blocked| *blocked && of_update).unwrap();
        Fate::Alive
    }

    fn after(&self, _: &Effect) -> Fate {
        Fate::Alive
    }

    fn fate(&self) -> Fate {
        Fate::Alive
    }
}

/// Frees the writes at the end of a test, which could not end otherwise.
struct Freed(Arc<BlockedWrites>);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_busy_main_task_keeps_its_lease_and_answers_probes() {
    let world = World::new().await;
    world.add_machine().await;
    let clusters: Api<Cluster> = Api::namespaced(world.client.clone(), "default");
    let ready = json!({"status": {"initialization": {"controlPlaneInitialized": true}}});
    clusters.patch_status("edge-1", &<_>::default(), &Patch::Merge(&ready)).await.unwrap();
    let gate = Arc::new(BlockedWrites::default());
    let lease = LeaseSettings {
        duration: Duration::from_secs(5),
        renew_deadline: Duration::from_secs(3),
        retry_period: Duration::from_millis(200),
        ..LeaseSettings::new("default", "refit-controller", "a")
    };
    let probes = Some(world.network.listen("probes.test", 80));
    let process = Process { lease: Some(lease), probes, ..Process::default() };
    let process = world.start_with(process, world.gated(gate.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    gate.set(true);
    let _freed = Freed(gate.clone());
    world.update_machine("v1.35.0").await;
    // The status write begins within this time, and blocks the main task from then on.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "default");
    let renewed = async || {
        let lease = leases.get("refit-controller").await.unwrap();
        lease.spec.unwrap().renew_time.unwrap().0
    };
    let before = renewed().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(renewed().await > before, "the Lease is renewed");
    let probes = Config::new("http://probes.test:80".parse().unwrap());
    let probes = world.stack().client(&probes).unwrap();
    let health = http::Request::get("/healthz").body(Vec::new()).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(1), probes.request_text(health)).await;
    assert_eq!(answer.unwrap().unwrap(), "ok");
    assert!(world.node_updates().await[0].status.is_none(), "the main task is still blocked");
    process.abort();
}

/// In this test, the management cluster is its own workload cluster.
#[tokio::test(start_paused = true)]
async fn a_workload_cluster_is_watched_once() {
    let world = World::new().await;
    let clusters: Api<Cluster> = Api::namespaced(world.client.clone(), "default");
    clusters.create(&PostParams::default(), &Cluster::new("edge-1", <_>::default())).await.unwrap();
    let ca = world.authority.material().cert_pem.as_bytes();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://{API}:6443"),
            "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    let secret = serde_json::from_value(json!({
        "metadata": {"name": "edge-1-kubeconfig"},
        "stringData": {"value": kubeconfig.to_string()},
    }));
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "default");
    secrets.create(&PostParams::default(), &secret.unwrap()).await.unwrap();
    let process = world.start();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let lists = || {
        let calls = world.calls.lock().unwrap();
        let nodes = |call: &&String| call.contains("/api/v1/nodes?");
        let continues =
            |call: &&String| call.contains("resourceVersion=") && call.contains("watch");
        calls.iter().filter(nodes).filter(|call| !continues(call)).count()
    };
    assert_eq!(lists(), 0, "nothing is watched before the control plane is there");
    let ready = json!({"status": {"initialization": {"controlPlaneInitialized": true}}});
    clusters.patch_status("edge-1", &<_>::default(), &Patch::Merge(&ready)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(lists(), 1, "it is found by its event");
    assert!(!process.is_finished());
    process.abort();
    world.calls.lock().unwrap().clear();
    let process = world.start();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(lists(), 1, "it is found by the first look");
    process.abort();
}
