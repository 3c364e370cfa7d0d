//! A cluster of OpenShift on the embedded API server, with the program in the same process. Its operators are played by hand.

use std::{
    convert::Infallible,
    sync::{Arc, Once},
    time::Duration,
};

use http::Request;
use hyper::body::Incoming;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use lab_apiserver::{
    ApiServer, Options,
    auth::{Authentication, Identity},
};
use lab_openshift::{
    alertmanager::{self, Alertmanager},
    prometheus::{self, Prometheus},
};
use refit_managed::{Compat, Process, Settings, run};
use refit_openshift::{
    config::{CONFIG_KEY, CONFIG_MAP},
    kinds::crds,
    upgrade_config::{NAME, NAMESPACE, UpgradeConfig},
};
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::Open,
    net::{Dialer, MemoryNetwork},
    process::{LogFormat, init_logs},
    serve,
    tls::{self, Authority, ReloadableCert, Validity},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tower::ServiceExt as _;

pub(crate) const EPOCH: &str = "2026-03-02T08:00:00Z";
const API: &str = "api.test";
/// Host name of the program's ports.
pub(crate) const OPERATOR: &str = "operator.test";

/// The configuration that every world begins with.
pub(crate) const CONFIG: &str = "\
upgradeType: OSD
configManager: {source: LOCAL, localConfigName: managed-upgrade-config, watchInterval: 1}
maintenance: {controlPlaneTime: 90}
scale: {timeOut: 30}
upgradeWindow: {delayTrigger: 30, timeOut: 120}
nodeDrain: {timeOut: 45, expectedNodeDrainTime: 8}
";

/// A cluster.
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) network: MemoryNetwork,
    pub(crate) server: ApiServer,
    /// With all rights.
    pub(crate) client: Client,
    pub(crate) prometheus: Prometheus,
    pub(crate) alertmanager: Alertmanager,
    tasks: JoinSet<()>,
}

/// Runs a test on a paused clock.
pub(crate) fn in_world(test: impl Future<Output = ()>) {
    tls::install_provider();
    static LOGS: Once = Once::new();
    if let Ok(filter) = std::env::var("REFIT_LOG") {
        LOGS.call_once(|| init_logs(&filter, LogFormat::Text).unwrap());
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(test);
}

fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().unwrap(),
        until: "2120-01-01T00:00:00Z".parse().unwrap(),
    }
}

/// A client of the server with all rights.
fn admin(server: &ApiServer) -> Client {
    let server = server.clone();
    let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
        request.extensions_mut().insert(Identity::admin());
        server.clone().oneshot(request)
    });
    Client::new(service, NAMESPACE)
}

impl World {
    /// A cluster of version 4.16.3 with two workers, which may be upgraded to 4.16.4.
    pub(crate) async fn new() -> Self {
        Self::with(Authentication::Open).await
    }

    /// The same with callers that authenticate like this.
    pub(crate) async fn with(authentication: Authentication) -> Self {
        let clock = Clock::simulated(EPOCH.parse().unwrap());
        let mut options = Options::new(Arc::new(move || clock.now_seconds()));
        options.authentication = authentication;
        let own = [NAMESPACE, "openshift-monitoring", "openshift-config", "openshift-machine-api"];
        options.namespaces.extend(own.map(str::to_owned));
        let server = ApiServer::new(options);
        let mut world = Self {
            clock,
            network: MemoryNetwork::default(),
            client: admin(&server),
            server,
            prometheus: Prometheus::default(),
            alertmanager: Alertmanager::default(),
            tasks: JoinSet::new(),
        };
        let service_ca = world.serve();
        for crd in crds() {
            Api::all(world.client.clone()).create(&PostParams::default(), &crd).await.unwrap();
        }
        world.pass(1).await;
        world.fill(&service_ca).await;
        world
    }

    /// Serves everything; returns the authority of the cluster's services.
    fn serve(&mut self) -> String {
        let server = self.server.clone();
        let api = tower::service_fn(move |request: Request<Incoming>| {
            let answer = server.clone().oneshot(request);
            async { Ok::<_, Infallible>(answer.await.expect("no connection is cut here")) }
        });
        let listener = self.network.listen(API, 80);
        self.tasks.spawn(serve::serve(listener, None, api, std::future::pending()));
        let authority = Authority::new("service-ca", validity()).unwrap();
        let hosts = [prometheus::HOST, alertmanager::HOST];
        let material = authority.server(&hosts, validity()).unwrap();
        let config = tls::server_config(ReloadableCert::new(&material).unwrap()).unwrap();
        let listener = self.network.listen(prometheus::HOST, prometheus::PORT);
        self.tasks.spawn(self.prometheus.clone().serve(listener, Some(config.clone())));
        let listener = self.network.listen(alertmanager::HOST, alertmanager::PORT);
        self.tasks.spawn(self.alertmanager.clone().serve(listener, Some(config), self.clock));
        authority.material().cert_pem.clone()
    }

    async fn fill(&self, service_ca: &str) {
        let monitoring = "openshift-monitoring";
        let bundle = json!({"service-ca.crt": service_ca});
        self.create(
            "v1",
            "ConfigMap",
            monitoring,
            "serving-certs-ca-bundle",
            json!({"data": bundle}),
        )
        .await;
        for (name, port) in
            [("prometheus-k8s", prometheus::PORT), ("alertmanager-main", alertmanager::PORT)]
        {
            let spec = json!({"ports": [{"name": "web", "port": port}]});
            self.create("v1", "Service", monitoring, name, json!({"spec": spec})).await;
        }
        self.create("v1", "ServiceAccount", monitoring, "prometheus-k8s", json!({})).await;
        // Its name ends with random characters.
        let token = json!({"data": {"token": "c2VjcmV0"}});
        self.create("v1", "Secret", monitoring, "prometheus-k8s-token-x7x7x", token).await;
        self.configure(CONFIG).await;
        let release = |version: &str| json!({"version": version, "image": format!("quay.io/r/{version}@sha256:0a")});
        let cluster = json!({
            "spec": {"clusterID": "c-1", "channel": "stable-4.16"},
            "status": {
                "desired": release("4.16.3"),
                "availableUpdates": [release("4.16.4")],
                "history": [{
                    "state": "Completed", "version": "4.16.3", "image": "i",
                    "startedTime": "2026-02-01T00:00:00Z", "completionTime": "2026-02-01T01:00:00Z",
                }],
                "conditions": [],
            },
        });
        self.create("config.openshift.io/v1", "ClusterVersion", "", "version", cluster).await;
        for (pool, machines) in [("master", 3), ("worker", 2)] {
            let kind = "machineconfiguration.openshift.io/v1";
            let count = json!({"machineCount": machines, "updatedMachineCount": machines});
            self.create(kind, "MachineConfigPool", "", pool, json!({"spec": {}, "status": count}))
                .await;
        }
        for node in ["w-0", "w-1"] {
            let metadata = json!({"labels": {"node-role.kubernetes.io/worker": ""}});
            self.create("v1", "Node", "", node, json!({"metadata": metadata})).await;
        }
    }

    /// Creates an object, and sets its status.
    pub(crate) async fn create(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) {
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        object["metadata"]["name"] = name.into();
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        let api = api_of(&self.client, &object);
        let status = object["status"].take();
        let object: kube::api::DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
        if !status.is_null() {
            let body = json!({"status": status});
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
        }
    }

    /// Sets the configuration of the operator.
    pub(crate) async fn configure(&self, text: &str) {
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text},
        });
        let api: Api<k8s_openapi::api::core::v1::ConfigMap> =
            Api::namespaced(self.client.clone(), NAMESPACE);
        let apply = PatchParams::apply("test").force();
        api.patch(CONFIG_MAP, &apply, &Patch::Apply(&body)).await.unwrap();
    }

    /// Requests an upgrade to 4.16.4 in a number of minutes.
    pub(crate) async fn request(&self, minutes: i64) {
        let at = self.clock.now_seconds() + jiff::SignedDuration::from_mins(minutes);
        self.request_at(&at.to_string()).await;
    }

    pub(crate) async fn request_at(&self, at: &str) {
        let spec = json!({
            "desired": {"version": "4.16.4", "channel": "stable-4.16"}, "upgradeAt": at,
            "PDBForceDrainTimeout": 60, "type": "OSD",
        });
        let kind = "upgrade.managed.openshift.io/v1alpha1";
        self.create(kind, "UpgradeConfig", NAMESPACE, NAME, json!({"spec": spec})).await;
    }

    /// The UpgradeConfig.
    pub(crate) async fn upgrade(&self) -> UpgradeConfig {
        self.upgrades().get(NAME).await.unwrap()
    }

    pub(crate) fn upgrades(&self) -> Api<UpgradeConfig> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Phase, and whether each condition is true, of the newest entry of the UpgradeConfig.
    pub(crate) async fn shown(&self) -> String {
        let upgrade = self.upgrade().await;
        let entry = upgrade.entry().unwrap();
        let conditions =
            entry.conditions.iter().map(|one| format!(" {}={}", one.type_, one.status));
        format!("{}{}", entry.phase, conditions.collect::<String>())
    }

    /// Merges into the status of an object without a namespace.
    pub(crate) async fn status<K>(&self, name: &str, status: Value)
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let body = json!({"status": status});
        let api: Api<K> = Api::all(self.client.clone());
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// How the program, and clients of it, dial.
    pub(crate) fn stack(&self) -> ClientStack {
        let dialer = Dialer::Memory(self.network.clone(), Arc::new(Open));
        ClientStack::new(dialer, Arc::new(Open), "refit-managed/test")
    }

    /// How the program reaches the API server.
    pub(crate) fn config() -> kube::Config {
        kube::Config::new(format!("http://{API}:80").parse().unwrap())
    }

    /// Starts the program.
    pub(crate) fn start(&self, compat: Compat) -> JoinHandle<anyhow::Result<()>> {
        let probes = Some(self.network.listen(OPERATOR, 8081));
        self.start_as(Process { probes, ..Process::default() }, compat)
    }

    pub(crate) fn start_as(
        &self,
        process: Process,
        compat: Compat,
    ) -> JoinHandle<anyhow::Result<()>> {
        let settings = Settings {
            compat,
            metrics: Some(self.network.listen(OPERATOR, 8383)),
            custom_metrics: Some(self.network.listen(OPERATOR, 8089)),
            ..Settings::default()
        };
        tokio::spawn(run(self.stack(), Self::config(), self.clock, process, settings))
    }

    /// What the program serves, or the error.
    pub(crate) async fn get(&self, port: u16, path: &str) -> Result<String, kube::Error> {
        let url = format!("http://{OPERATOR}:{port}");
        let client = self.stack().client(&kube::Config::new(url.parse().unwrap())).unwrap();
        client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await
    }

    /// The lines of a metric.
    pub(crate) async fn metric(&self, name: &str) -> Vec<String> {
        let text = self.get(8383, "/metrics").await.unwrap();
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }
}

fn api_of(client: &Client, object: &Value) -> Api<kube::api::DynamicObject> {
    let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let kind = kube::api::GroupVersionKind::gvk(group, version, text("/kind"));
    let resource = kube::api::ApiResource::from_gvk(&kind);
    match text("/metadata/namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}
