//! A management cluster, a workload cluster and a controller on an in-memory network.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use lab_apiserver::{AnswerBody, ApiServer, StaleView};
use refit_controller::{
    ControllerOptions, HookServer, Process, Settings, run,
    sabotage::{Safeguard, run_without},
};
use refit_runtime::{
    Clock,
    client::{ClientStack, HttpsPoster},
    gate::Open,
    net::{Dialer, MemoryNetwork},
    tls::{self, Authority, ReloadableCert},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::{Service, ServiceExt as _};

use super::objects::{PROBES, is_ready, made, scraped, serve_api, server, validity};

/// User agent of the controller, for faults that affect only it.
pub(crate) const CONTROLLER: &str = "refit-controller/test";
const HOOKS: &str = "hooks.test";
const MANAGEMENT: &str = "management.test";
const WORKLOAD: &str = "workload.test";
/// The address of the workload cluster after it moved.
const MOVED: &str = "moved.test";

/// A controller that runs until this is dropped.
pub(crate) type Running = JoinSet<anyhow::Result<()>>;

/// Both clusters are served until this is dropped; controllers start and stop.
pub(crate) struct Site {
    pub(crate) clock: Clock,
    pub(crate) management: ApiServer,
    pub(crate) workload: ApiServer,
    pub(crate) settings: Settings,
    network: MemoryNetwork,
    authority: Authority,
    writes: Arc<Mutex<Vec<String>>>,
    servers: JoinSet<()>,
}

impl Site {
    /// Empty clusters and no controller.
    pub(crate) fn new() -> Self {
        tls::install_provider();
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let mut site = Self {
            clock,
            management: server(clock),
            workload: server(clock),
            settings: Settings::default(),
            network: MemoryNetwork::default(),
            authority: Authority::new("site", validity()).unwrap(),
            writes: Arc::default(),
            servers: JoinSet::new(),
        };
        let writes = site.writes.clone();
        let observed = site.management.clone().map_request(move |request: Request<Incoming>| {
            if request.method() != Method::GET {
                writes.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
            }
            request
        });
        site.servers.spawn(serve_api(&site.network, MANAGEMENT, &observed));
        site.servers.spawn(serve_api(&site.network, WORKLOAD, &site.workload));
        site
    }

    /// A client of the management cluster.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.management.clone(), "default")
    }

    /// A client of the workload cluster.
    pub(crate) fn workload_client(&self) -> Client {
        Client::new(self.workload.clone(), "default")
    }

    /// Every write that the controller has sent to the management cluster, with any result.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }

    /// Gives the controller access to the workload cluster, as Cluster API does.
    pub(crate) async fn connect(&self, client: &Client, cluster: &str) {
        self.connect_to(client, cluster, WORKLOAD).await;
    }

    /// Serves another workload cluster, and gives the controller access to it.
    pub(crate) async fn add_workload<S>(&mut self, cluster: &str, server: &S)
    where
        S: Service<Request<Incoming>, Response = Response<AnswerBody>, Error = io::Error>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        let host = format!("{cluster}.test");
        self.servers.spawn(serve_api(&self.network, &host, server));
        self.connect_to(&self.client(), cluster, &host).await;
    }

    /// Serves the workload cluster through another service, to clients that connect from now on.
    pub(crate) fn serve_workload<S>(&mut self, server: &S)
    where
        S: Service<Request<Incoming>, Response = Response<AnswerBody>, Error = io::Error>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        self.servers.spawn(serve_api(&self.network, WORKLOAD, server));
    }

    /// Moves the workload cluster to another address, and changes its kubeconfig Secret. The old
    /// address is silent: open streams are half-open, new ones are refused.
    pub(crate) async fn move_workload(&mut self, cluster: &str) {
        self.network.close(WORKLOAD, 80);
        self.network.silence(WORKLOAD, 80);
        self.servers.spawn(serve_api(&self.network, MOVED, &self.workload));
        let secrets: Api<Secret> = Api::default_namespaced(self.client());
        let body = json!({"stringData": {"value": kubeconfig(MOVED)}});
        let name = format!("{cluster}-kubeconfig");
        secrets.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }

    async fn connect_to(&self, client: &Client, cluster: &str, host: &str) {
        let secret = json!({
            "metadata": {"name": format!("{cluster}-kubeconfig")},
            "stringData": {"value": kubeconfig(host)},
        });
        let _: Secret = made(client, secret).await;
    }

    /// Hides later changes of this resource from the controller's watch.
    pub(crate) fn hold_back(&self, resource: &str) {
        self.management.faults().add_stale(StaleView {
            user_agent: CONTROLLER.to_owned(),
            resource: resource.to_owned(),
            revision: self.management.revision(),
            until: self.clock.now() + SignedDuration::from_hours(1),
        });
    }

    /// A controller, optionally without one safeguard.
    pub(crate) fn controller(
        &self,
        without: Option<Safeguard>,
    ) -> BoxFuture<'static, anyhow::Result<()>> {
        let identity = self.authority.server(&[HOOKS], validity()).unwrap();
        let options = ControllerOptions {
            stack: self.stack(CONTROLLER),
            config: kube::Config::new(format!("http://{MANAGEMENT}:80").parse().unwrap()),
            clock: self.clock,
            hooks: HookServer {
                listener: self.network.listen(HOOKS, 443),
                cert: ReloadableCert::new(&identity).unwrap(),
                clients: None,
            },
            settings: self.settings.clone(),
            process: Process {
                probes: Some(self.network.listen(PROBES, 80)),
                ..Process::default()
            },
        };
        match without {
            Some(safeguard) => run_without(options, safeguard),
            None => run(options),
        }
    }

    /// Starts a controller.
    pub(crate) fn start(&self, without: Option<Safeguard>) -> Running {
        let mut running = Running::new();
        running.spawn(self.controller(without));
        running
    }

    /// Calls a hook as Cluster API does.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let ca = &self.authority.material().cert_pem;
        let poster = HttpsPoster::new(&self.stack("cluster-api/test"), ca.as_bytes()).unwrap();
        let url = format!("https://{HOOKS}:443{path}");
        let deadline = Duration::from_secs(10);
        let answer = poster.post(&url, body.to_string().into_bytes(), deadline).await;
        let (status, text) = answer.unwrap();
        assert_eq!(status, 200, "{path}");
        serde_json::from_slice(&text).unwrap()
    }

    /// The content of `/metrics`.
    pub(crate) async fn metrics(&self) -> String {
        scraped(&self.stack("scraper/test")).await
    }

    /// Whether the controller reports itself as ready.
    pub(crate) async fn is_ready(&self) -> bool {
        is_ready(&self.stack("kubelet/test")).await
    }

    fn stack(&self, user_agent: &str) -> ClientStack {
        let dialer = Dialer::Memory(self.network.clone(), Arc::new(Open));
        ClientStack::new(dialer, Arc::new(Open), user_agent)
    }
}

fn kubeconfig(host: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": format!("http://{host}:80")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    })
    .to_string()
}

/// Waits until every watch has delivered the changes and all components have reacted.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}
