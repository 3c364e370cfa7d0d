//! A test world: two API servers, a fake environment, a fake extension, and the stand-in for
//! Cluster API between them, all over in-memory streams with real TLS.

pub mod environment;
pub mod extension;
pub mod manifests;

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::gvk::GroupVersionKind,
    discovery::ApiResource,
};
use lab_apiserver::{ApiServer, Options};
use lab_cluster_api_shell::CapiOptions;
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::{Effect, Fate, Gate, Open},
    net::{Dialer, MemoryNetwork},
    process::log_filter,
    tls::{self, Authority, KeyAndCert, ReloadableCert, Validity},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

pub const MANAGEMENT: &str = "management.refit.sandbox";
pub const WORKLOAD: &str = "edge-1.refit.sandbox";
pub const EXTENSION: &str = "refit-webhook.refit-system.svc";
pub const NAMESPACE: &str = "default";

/// Counts the effects of a process, and kills it at one of them.
#[derive(Default)]
pub struct Switch {
    pub effects: AtomicUsize,
    pub log: Mutex<Vec<String>>,
    kill_at: Option<(usize, bool)>,
    dead: AtomicBool,
}

impl Switch {
    /// A switch that kills the process before or after its n-th effect.
    pub fn killing(at: usize, after: bool) -> Self {
        Self { kill_at: Some((at, after)), ..Self::default() }
    }

    pub fn count(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl Gate for Switch {
    fn before(&self, effect: &Effect) -> Fate {
        if self.is_dead() {
            return Fate::Dead;
        }
        let number = self.effects.fetch_add(1, Ordering::SeqCst);
        self.log.lock().unwrap().push(effect.to_string());
        if self.kill_at == Some((number, false)) {
            self.dead.store(true, Ordering::SeqCst);
        }
        self.fate()
    }

    fn after(&self, _: &Effect) -> Fate {
        let done = self.count();
        if let Some((at, true)) = self.kill_at
            // Effects overlap: another may have begun before the n-th ended.
            && done > at
        {
            self.dead.store(true, Ordering::SeqCst);
        }
        self.fate()
    }

    fn fate(&self) -> Fate {
        if self.is_dead() { Fate::Dead } else { Fate::Alive }
    }
}

/// The servers, clients and fakes of one test.
pub struct World {
    pub clock: Clock,
    pub network: MemoryNetwork,
    pub management: ApiServer,
    pub workload: ApiServer,
    pub admin: Client,
    pub workload_admin: Client,
    pub extension: Arc<extension::Extension>,
    pub ca: KeyAndCert,
    tasks: JoinSet<()>,
}

/// Created once, because creating keys is slow in a debug build.
struct Certificates {
    ca: KeyAndCert,
    server: KeyAndCert,
}

fn certificates() -> &'static Certificates {
    static MADE: std::sync::OnceLock<Certificates> = std::sync::OnceLock::new();
    MADE.get_or_init(|| {
        let validity = Validity {
            from: Timestamp::UNIX_EPOCH,
            until: "2120-01-01T00:00:00Z".parse().unwrap(),
        };
        let authority = Authority::new("test", validity).unwrap();
        let server = authority.server(&[MANAGEMENT, WORKLOAD, EXTENSION], validity).unwrap();
        Certificates { ca: authority.material().clone(), server }
    })
}

pub fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

pub fn api(client: &Client, api_version: &str, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), NAMESPACE, &resource(api_version, kind))
}

/// Creates an object through the API.
pub async fn create(client: &Client, object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let resource = resource(text("/apiVersion").unwrap(), text("/kind").unwrap());
    let api: Api<DynamicObject> = match text("/metadata/namespace") {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let status = object.get("status").cloned();
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
    if let Some(status) = status {
        let name = object.metadata.name.unwrap();
        let body = json!({ "status": status });
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }
}

impl World {
    /// A world with the CRDs, the cluster's objects and an extension; no controller has run yet.
    pub async fn new(manifests: &[Value]) -> Self {
        tls::install_provider();
        let filter = std::env::var("RUST_LOG").unwrap_or_default();
        let lines = tracing_subscriber::fmt::layer().with_test_writer().without_time();
        let logs = tracing_subscriber::registry().with(log_filter(&filter).unwrap());
        // Every test tries this; only the first one succeeds.
        let _ = logs.with(lines).try_init();
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let options = |seed: u64| {
            let mut options = Options::new(Arc::new(move || clock.now()));
            options.seed = seed;
            options
        };
        let management = ApiServer::new(options(1));
        let workload = ApiServer::new(options(2));
        let admin = Client::new(management.clone(), NAMESPACE);
        let workload_admin = Client::new(workload.clone(), NAMESPACE);
        let network = MemoryNetwork::default();
        let extension = Arc::new(extension::Extension::new(workload_admin.clone()));
        let mut world = Self {
            clock,
            network,
            management,
            workload,
            admin,
            workload_admin,
            extension,
            ca: certificates().ca.clone(),
            tasks: JoinSet::new(),
        };
        world.listen();
        for crd in manifests::crds() {
            create(&world.admin, &crd).await;
        }
        for object in manifests::base(&world.ca, &world.kubeconfig()) {
            create(&world.admin, &object).await;
        }
        create(&world.workload_admin, &manifests::kubeadm_config()).await;
        for manifest in manifests {
            let mut manifest = manifest.clone();
            lab_cluster_api_shell::defaults::default_object(&mut manifest);
            create(&world.admin, &manifest).await;
        }
        let environment = environment::Environment {
            admin: world.admin.clone(),
            management: world.management.clone(),
            workload_admin: world.workload_admin.clone(),
            workload: world.workload.clone(),
        };
        world.tasks.spawn(environment.run());
        world
    }

    fn listen(&mut self) {
        let cert = ReloadableCert::new(&certificates().server).unwrap();
        let config = tls::server_config(cert).unwrap();
        for (host, port, server) in
            [(MANAGEMENT, 6443, self.management.clone()), (WORKLOAD, 6443, self.workload.clone())]
        {
            let service = tower::service_fn(move |request| {
                let server = server.clone();
                async move {
                    match server.oneshot(request).await {
                        Ok(answer) => Ok::<_, Infallible>(answer),
                        Err(_) => std::future::pending().await,
                    }
                }
            });
            let listener = self.network.listen(host, port);
            let stop = std::future::pending();
            self.tasks.spawn(refit_runtime::serve::serve(
                listener,
                Some(config.clone()),
                service,
                stop,
            ));
        }
        let listener = self.network.listen(EXTENSION, 443);
        let extension = self.extension.clone();
        let service = tower::service_fn(move |request| {
            let extension = extension.clone();
            async move { Ok::<_, Infallible>(extension.answer(request).await) }
        });
        let stop = std::future::pending();
        self.tasks.spawn(refit_runtime::serve::serve(listener, Some(config), service, stop));
    }

    fn kubeconfig(&self) -> String {
        let ca = STANDARD.encode(&self.ca.cert_pem);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{WORKLOAD}:6443"), "certificate-authority-data": ca,
            }}],
            "users": [{"name": "c", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        })
        .to_string()
    }

    /// The options for a process under test.
    pub fn options(&self, gate: Arc<dyn Gate>) -> CapiOptions {
        let dialer = Dialer::Memory(self.network.clone(), gate.clone());
        let stack = ClientStack::new(dialer, gate, "refit-capi/test");
        let url = format!("https://{MANAGEMENT}:6443").parse().unwrap();
        let mut config = kube::Config::new(url);
        let pem = self.ca.cert_pem.clone();
        let der: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        config.root_cert = Some(vec![STANDARD.decode(der).unwrap()]);
        CapiOptions { stack, config, clock: self.clock, hook_client: None }
    }

    /// Runs the stand-in for Cluster API until `until` returns true, for at most some simulated
    /// minutes.
    pub async fn run(&self, gate: Arc<dyn Gate>, minutes: u64, until: impl Fn(&Self) -> bool) {
        let process = lab_cluster_api_shell::run(self.options(gate));
        let watcher = async {
            while !until(self) {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let limit = Duration::from_secs(minutes * 60);
        let ended = tokio::select! {
            biased;
            ended = process => panic!("the process ended: {ended:?}"),
            ended = tokio::time::timeout(limit, watcher) => ended,
        };
        assert!(ended.is_ok(), "timed out after {minutes} minutes:\n{}", self.summary());
    }

    /// Like [`World::run`], with a gate that lets everything pass.
    pub async fn run_open(&self, minutes: u64, until: impl Fn(&Self) -> bool) {
        self.run(Arc::new(Open), minutes, until).await;
    }

    /// Runs for some simulated seconds.
    pub async fn run_for(&self, gate: Arc<dyn Gate>, seconds: u64) {
        let end = self.clock.now() + jiff::SignedDuration::from_secs(seconds.cast_signed());
        self.run(gate, seconds / 60 + 2, |world| world.clock.now() >= end).await;
    }

    pub fn list(&self, group: &str, plural: &str) -> Vec<Value> {
        self.management.list_values(group, plural, Some(NAMESPACE))
    }

    pub fn machines(&self) -> Vec<Value> {
        self.list("cluster.x-k8s.io", "machines")
    }

    pub fn one(&self, group: &str, plural: &str, name: &str) -> Value {
        let all = self.list(group, plural);
        let found = all.into_iter().find(|object| object["metadata"]["name"] == name);
        found.unwrap_or(Value::Null)
    }

    pub fn deployment(&self) -> Value {
        self.one("cluster.x-k8s.io", "machinedeployments", "edge-1-md-0")
    }

    pub fn control_plane(&self) -> Value {
        self.one("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes", "edge-1")
    }

    pub fn nodes(&self) -> Vec<Value> {
        self.workload.list_values("", "nodes", None)
    }

    /// Whether all machines of the group are available and up to date, and none is surplus.
    pub fn is_done(object: &Value) -> bool {
        let replicas = &object["spec"]["replicas"];
        let status = &object["status"];
        ["replicas", "readyReplicas", "availableReplicas", "upToDateReplicas"]
            .iter()
            .all(|field| status[*field] == *replicas)
            && status["observedGeneration"] == object["metadata"]["generation"]
    }

    /// The result of a version change: name, uid and version of each Machine, and of its Node.
    pub fn end_state(&self) -> Vec<String> {
        let nodes = self.nodes();
        let kubelet = |name: &Value| {
            let node = nodes.iter().find(|node| node["metadata"]["name"] == *name);
            node.map_or(Value::Null, |node| node["status"]["nodeInfo"]["kubeletVersion"].clone())
        };
        self.machines()
            .iter()
            .map(|machine| {
                let annotations = machine["metadata"].get("annotations");
                format!(
                    "{} {} {} {} {}",
                    machine["metadata"]["name"],
                    machine["spec"]["version"],
                    machine["spec"]["providerID"],
                    kubelet(&machine["metadata"]["name"]),
                    annotations.unwrap_or(&Value::Null),
                )
            })
            .collect()
    }

    pub fn summary(&self) -> String {
        let mut text = String::new();
        for (group, plural) in [
            ("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes"),
            ("cluster.x-k8s.io", "machinedeployments"),
            ("cluster.x-k8s.io", "machinesets"),
            ("cluster.x-k8s.io", "machines"),
        ] {
            for object in self.list(group, plural) {
                let mut object = object;
                object["metadata"].as_object_mut().unwrap().remove("managedFields");
                text.extend([plural, ": ", &object.to_string(), "\n"]);
            }
        }
        text
    }

    /// Changes the version, as a user would.
    pub async fn set_version(&self, kind: &str, name: &str, version: &str) {
        let (group, body) = if kind == "KubeadmControlPlane" {
            let body = json!({"spec": {"version": version}});
            ("controlplane.cluster.x-k8s.io/v1beta2", body)
        } else {
            let body = json!({"spec": {"template": {"spec": {"version": version}}}});
            ("cluster.x-k8s.io/v1beta2", body)
        };
        api(&self.admin, group, kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(&body))
            .await
            .unwrap();
    }
}
