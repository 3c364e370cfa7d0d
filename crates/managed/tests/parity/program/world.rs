//! A simulated OpenShift cluster with all that its upgrades depend on, and the program in the same process.

use std::{
    convert::Infallible,
    ops::Deref,
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::crd::CustomResourceExt as _,
};
use lab_apiserver::{
    ApiServer,
    auth::{Authentication, Identity},
};
use lab_openshift::{
    Blueprint, Site,
    site::{OCM_HOST, from_any_thread},
    wire,
};
use refit_managed::{Compat, Process, Settings, run};
use refit_openshift::{
    config::{CONFIG_KEY, CONFIG_MAP},
    kinds::{MACHINE_API, MachineSet},
    upgrade_config::{NAME, NAMESPACE, Phase, UpgradeConfig},
    validation::RELEASE_LABEL,
};
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::Open,
    lease::LeaseSettings,
    net::Dialer,
    process::{LogFormat, init_logs},
    serve, tls,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// The Kubernetes API, whose calls are counted.
const API: &str = "counted.test";
const REGISTRY: &str = "registry.test";
const LEASE: &str = "managed-upgrade-operator-lock";
/// The version that worlds are upgraded to.
pub(crate) const VERSION: &str = "4.16.4";

/// The version of the one image in the registry.
pub(crate) const IMAGE_VERSION: &str = "4.16.5";

/// The configuration that every world begins with. The provider is the object in the cluster.
pub(crate) const LOCAL: &str = "\
upgradeType: OSD
configManager: {source: LOCAL, localConfigName: managed-upgrade-config, watchInterval: 1}
maintenance: {controlPlaneTime: 90}
scale: {timeOut: 30}
upgradeWindow: {delayTrigger: 30, timeOut: 120}
nodeDrain: {timeOut: 45, expectedNodeDrainTime: 8}
";

/// The same with OCM as the provider.
pub(crate) fn by_ocm() -> String {
    let source = "source: LOCAL, localConfigName: managed-upgrade-config";
    let gates = "featureGate: {enabled: [PreHealthCheck, ServiceLogNotification]}\n";
    LOCAL.replace(source, &format!("source: OCM, ocmBaseUrl: 'http://{OCM_HOST}'")) + gates
}

/// A cluster of version 4.16.3 with three workers.
pub(crate) struct World {
    site: Site,
    /// Method and URI of each call of the program.
    calls: Arc<Mutex<Vec<String>>>,
    tasks: JoinSet<()>,
}

impl Deref for World {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

/// A registry with the release image of one version, and no troubles.
#[derive(Clone, Debug)]
struct Registry {
    manifest: Value,
    config: Value,
    troubles: wire::Troubles,
}

impl Registry {
    fn new(version: &str) -> Self {
        let config = json!({"config": {"Labels": {RELEASE_LABEL: version}}});
        let manifest = json!({"config": {"digest": digest(&config)}});
        Self { manifest, config, troubles: wire::Troubles::default() }
    }
}

fn digest(value: &Value) -> String {
    format!("sha256:{:x}", Sha256::digest(value.to_string()))
}

impl wire::Answers for Registry {
    fn troubles(&self) -> &wire::Troubles {
        &self.troubles
    }

    fn answer(&self, asked: &wire::Asked) -> (StatusCode, Value) {
        let is = |kind: &str, value: &Value| {
            asked.path == format!("/v2/ocp/release/{kind}/{}", digest(value))
        };
        if is("manifests", &self.manifest) {
            (StatusCode::OK, self.manifest.clone())
        } else if is("blobs", &self.config) {
            (StatusCode::OK, self.config.clone())
        } else {
            (StatusCode::NOT_FOUND, Value::Null)
        }
    }

    fn failed(&self, _: StatusCode) -> Value {
        Value::Null
    }
}

/// The release image of a version, whose registry has only that one.
pub(crate) fn image(version: &str) -> String {
    format!("{REGISTRY}/ocp/release@{}", digest(&Registry::new(version).manifest))
}

/// A program; it ends with its handle.
pub(crate) struct Program {
    host: &'static str,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<anyhow::Result<()>>,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs a test on a paused clock.
pub(crate) fn in_world(test: impl Future<Output = ()>) {
    static LOGS: Once = Once::new();
    tls::install_provider();
    if let Ok(filter) = std::env::var("REFIT_LOG") {
        LOGS.call_once(|| init_logs(&filter, LogFormat::Text).unwrap());
    }
    // The random numbers of the program, and of kube's back-off.
    fastrand::seed(1);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(test);
}

/// A client of the server with the rights of an identity.
pub(crate) fn client_as(server: &ApiServer, identity: &Identity) -> Client {
    let (server, identity) = (server.clone(), identity.clone());
    let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
        request.extensions_mut().insert(identity.clone());
        server.clone().oneshot(request)
    });
    Client::new(service, NAMESPACE)
}

impl World {
    /// A world whose program may do everything.
    pub(crate) async fn new() -> Self {
        let world = Self::with(&Blueprint::default(), Authentication::Open).await;
        world.add_token_secret().await.unwrap();
        world
    }

    /// A world whose API authenticates callers like this. Without the Secret of [`Site::add_token_secret`], tokens for
    /// Prometheus are requested.
    pub(crate) async fn with(blueprint: &Blueprint, authentication: Authentication) -> Self {
        let clock = Clock::simulated("2026-03-02T08:00:00Z".parse().unwrap());
        let site = Site::new(clock, blueprint, authentication).await.unwrap();
        let mut world = Self { site, calls: Arc::default(), tasks: JoinSet::new() };
        world.serve();
        world.configure(LOCAL).await;
        world.minutes(5).await;
        world
    }

    /// Serves the API and a registry.
    fn serve(&mut self) {
        let (server, calls) = (self.server.clone(), self.calls.clone());
        let api = tower::service_fn(move |request: Request<Incoming>| {
            calls.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
            let answer = server.clone().oneshot(request);
            async { Ok::<_, Infallible>(answer.await.expect("no connection is cut here")) }
        });
        let listener = self.network.listen(API, 80);
        self.tasks.spawn(serve::serve(listener, None, api, std::future::pending()));
        let registry = Registry::new(IMAGE_VERSION);
        let config = self.tls(&[REGISTRY]).unwrap();
        let listener = self.network.listen(REGISTRY, 443);
        self.tasks.spawn(wire::serve(
            registry,
            listener,
            Some(config),
            from_any_thread(self.clock),
        ));
    }

    /// Sets the configuration of the operator.
    pub(crate) async fn configure(&self, text: &str) {
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text},
        });
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let apply = PatchParams::apply("test").force();
        api.patch(CONFIG_MAP, &apply, &Patch::Apply(&body)).await.unwrap();
    }

    /// The time in a number of minutes.
    pub(crate) fn at(&self, minutes: i64) -> Timestamp {
        self.clock.now_seconds() + SignedDuration::from_mins(minutes)
    }

    /// Requests an upgrade at a time.
    pub(crate) async fn request(&self, upgrade_at: &str) {
        let desired = json!({"version": VERSION, "channel": "stable-4.16"});
        self.request_release(&desired, upgrade_at).await;
    }

    /// Requests the upgrade to a release at a time.
    pub(crate) async fn request_release(&self, desired: &Value, upgrade_at: &str) {
        let upgrade = json!({
            "apiVersion": UpgradeConfig::crd().spec.group + "/v1alpha1", "kind": "UpgradeConfig",
            "metadata": {"name": NAME},
            "spec": {
                "desired": desired, "upgradeAt": upgrade_at, "PDBForceDrainTimeout": 60, "type": "OSD",
            },
        });
        let upgrade = serde_json::from_value(upgrade).unwrap();
        self.upgrades().create(&PostParams::default(), &upgrade).await.unwrap();
    }

    pub(crate) fn upgrades(&self) -> Api<UpgradeConfig> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The UpgradeConfig.
    pub(crate) async fn upgrade(&self) -> UpgradeConfig {
        self.upgrades().get(NAME).await.unwrap()
    }

    /// Merges into the UpgradeConfig.
    pub(crate) async fn patch(&self, body: &Value) {
        let merge = PatchParams::default();
        self.upgrades().patch(NAME, &merge, &Patch::Merge(body)).await.unwrap();
    }

    /// Deletes the UpgradeConfig.
    pub(crate) async fn delete(&self) {
        self.upgrades().delete(NAME, &DeleteParams::default()).await.unwrap();
    }

    /// The phase of the UpgradeConfig; `None` without an entry, or without the object.
    pub(crate) async fn phase(&self) -> Option<Phase> {
        let upgrade = self.upgrades().get_opt(NAME).await.unwrap()?;
        upgrade.entry().map(|entry| entry.phase)
    }

    /// Whether the ClusterVersion desires the version.
    pub(crate) async fn is_commenced(&self) -> bool {
        let cluster: Api<refit_openshift::kinds::ClusterVersion> = Api::all(self.client.clone());
        let cluster = cluster.get("version").await.unwrap();
        cluster.spec.desired_update.is_some_and(|update| update.version == VERSION)
    }

    pub(crate) async fn seconds(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn minutes(&self, minutes: u64) {
        self.seconds(60 * minutes).await;
    }

    /// Waits until a phase is shown; fails after a number of minutes.
    pub(crate) async fn until(&self, phase: Phase, minutes: u64) {
        for _ in 0..minutes * 6 {
            if self.phase().await == Some(phase) {
                return;
            }
            self.seconds(10).await;
        }
        let upgrade = self.upgrade().await;
        panic!("not {phase} within {minutes} minutes: {:#?}", upgrade.status);
    }

    /// Waits until the ClusterVersion desires the version; fails after a number of minutes.
    pub(crate) async fn until_commenced(&self, minutes: u64) {
        for _ in 0..minutes * 6 {
            if self.is_commenced().await {
                return;
            }
            self.seconds(10).await;
        }
        panic!("not commenced within {minutes} minutes: {:#?}", self.upgrade().await.status);
    }

    /// Waits until there is no UpgradeConfig; fails after a number of minutes.
    pub(crate) async fn until_gone(&self, minutes: u64) {
        for _ in 0..minutes {
            if self.upgrades().get_opt(NAME).await.unwrap().is_none() {
                return;
            }
            self.minutes(1).await;
        }
        panic!("not gone within {minutes} minutes: {:#?}", self.upgrade().await.status);
    }

    /// Waits until OCM shows an upgrade as completed: the next sync deletes its UpgradeConfig.
    pub(crate) async fn until_completed(&self, policy: &str, minutes: u64) {
        for _ in 0..minutes * 6 {
            if self.ocm.policy(policy).unwrap().state == "completed" {
                return;
            }
            self.seconds(10).await;
        }
        panic!("not completed within {minutes} minutes: {:#?}", self.upgrade().await.status);
    }

    /// OCM is out of reach from now on.
    pub(crate) fn close_ocm(&self) {
        self.network.close(OCM_HOST, 80);
    }

    /// How the program, and clients of it, dial.
    fn stack(&self) -> ClientStack {
        let dialer = Dialer::Memory(self.network.clone(), Arc::new(Open));
        let stack = ClientStack::new(dialer, Arc::new(Open), "refit-managed/test");
        stack.with_extra_roots(self.authority.material().cert_pem.as_bytes()).unwrap()
    }

    /// Starts the program, without leader election.
    pub(crate) fn start(&self, compat: Compat) -> Program {
        self.start_as("a.test", None, compat, None)
    }

    /// Starts a replica, whose ports are at its own host name.
    pub(crate) fn start_replica(&self, host: &'static str, compat: Compat) -> Program {
        let lease = LeaseSettings::new(NAMESPACE, LEASE, host);
        self.start_as(host, Some(lease), compat, None)
    }

    /// Renews the Lease of a replica elsewhere.
    pub(crate) async fn lead_elsewhere(&self) {
        let now = MicroTime(self.clock.now());
        let lease: Lease = serde_json::from_value(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": LEASE},
            "spec": {"holderIdentity": "elsewhere", "leaseDurationSeconds": 15, "renewTime": now},
        }))
        .unwrap();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let by = PatchParams::apply("elsewhere").force();
        leases.patch(LEASE, &by, &Patch::Apply(&lease)).await.unwrap();
    }

    pub(crate) fn start_as(
        &self,
        host: &'static str,
        lease: Option<LeaseSettings>,
        compat: Compat,
        token: Option<String>,
    ) -> Program {
        let stop = CancellationToken::new();
        let process = Process {
            lease,
            probes: Some(self.network.listen(host, 8081)),
            stop: stop.clone(),
            drain_delay: Duration::ZERO,
        };
        let settings = Settings {
            compat,
            metrics: Some(self.network.listen(host, 8383)),
            custom_metrics: Some(self.network.listen(host, 8089)),
            ..Settings::default()
        };
        let mut config = kube::Config::new(format!("http://{API}:80").parse().unwrap());
        config.auth_info.token = token.map(Into::into);
        let task = tokio::spawn(run(self.stack(), config, self.clock, process, settings));
        Program { host, stop, task }
    }

    /// What a program serves, or the error.
    pub(crate) async fn get(
        &self,
        program: &Program,
        port: u16,
        path: &str,
    ) -> Result<String, kube::Error> {
        let url = format!("http://{}:{port}", program.host);
        let client = self.stack().client(&kube::Config::new(url.parse().unwrap())).unwrap();
        client.request_text(Request::get(path).body(Vec::new()).unwrap()).await
    }

    /// The lines of gauges whose name begins like this.
    pub(crate) async fn gauges(&self, program: &Program, name: &str) -> Vec<String> {
        let text = self.get(program, 8383, "/metrics").await.unwrap();
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }

    /// The calls of programs to the API so far that contain a text.
    pub(crate) fn calls(&self, text: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| call.contains(text)).count()
    }

    /// The comments of the silences in force.
    pub(crate) fn silences(&self) -> Vec<String> {
        let all = self.alertmanager.silences(self.clock.now_seconds());
        let active = all.iter().filter(|silence| silence["status"]["state"] == "active");
        active.map(|silence| silence["comment"].as_str().unwrap().to_owned()).collect()
    }

    /// How many MachineSets with extra nodes there are.
    pub(crate) async fn extra_machine_sets(&self) -> usize {
        let sets: Api<MachineSet> = Api::namespaced(self.client.clone(), MACHINE_API);
        let extra = ListParams::default().labels("upgrade.managed.openshift.io=true");
        sets.list(&extra).await.unwrap().items.len()
    }

    /// The names of the nodes of workers.
    pub(crate) async fn workers(&self) -> Vec<String> {
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.client.clone());
        let workers = ListParams::default().labels("node-role.kubernetes.io/worker");
        let nodes = nodes.list(&workers).await.unwrap();
        nodes.items.into_iter().filter_map(|node| node.metadata.name).collect()
    }
}
