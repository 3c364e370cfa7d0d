//! A simulated cluster, and all that its upgrades depend on, served in memory.

use std::{convert::Infallible, sync::Arc};

use anyhow::Context as _;
use http::{Request, StatusCode, header::AUTHORIZATION};
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Secret,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::crd::CustomResourceExt as _,
};
use lab_apiserver::{
    ApiServer, ClockFn, Options,
    auth::{Authentication, Identity},
};
use refit_openshift::{
    kinds::ClusterVersion,
    upgrade_config::{NAMESPACE, UpgradeConfig},
};
use refit_runtime::{
    Clock,
    net::MemoryNetwork,
    serve,
    tls::{self, Authority, ReloadableCert, Validity},
};
use serde_json::{Value, json};
use tokio::{runtime::Handle, task::JoinSet};
use tower::ServiceExt as _;

use crate::{
    Blueprint, Cluster,
    alertmanager::{self, Alertmanager},
    cincinnati::{self, Cincinnati},
    ocm::{Managed, Ocm},
    prometheus::{self, Prometheus},
    registry::{self, Registry},
    wire::{self, Answers, Asked, Troubles},
};

/// The host name of the Kubernetes API, on port 80.
pub const API_HOST: &str = "api.test";
/// The host name of OCM, on port 80.
pub const OCM_HOST: &str = "ocm.test";
/// The host name of the version graph, on port 80.
pub const GRAPH_HOST: &str = "graph.test";
/// The host name of a server that upgrades may be made to depend on, on port 80.
pub const DEPENDENCY_HOST: &str = "dependency.test";
/// The ID of the cluster in OCM.
pub const OCM_CLUSTER: &str = "ocm-1";

/// A simulated cluster whose operators run, and servers around it. Dropping it stops them.
pub struct Site {
    /// The clock of everything.
    pub clock: Clock,
    /// Has all rights.
    pub client: Client,
    /// The Kubernetes API itself.
    pub server: ApiServer,
    /// Sets trouble.
    pub cluster: Cluster,
    /// Its alerts.
    pub prometheus: Prometheus,
    /// Its silences.
    pub alertmanager: Alertmanager,
    /// The upgrade policies.
    pub ocm: Ocm,
    /// The version graph.
    pub cincinnati: Cincinnati,
    /// The release images.
    pub registry: Registry,
    /// The troubles of [`DEPENDENCY_HOST`].
    pub dependency: Troubles,
    /// Where everything is served.
    pub network: MemoryNetwork,
    /// The authority of the servers that use TLS.
    pub authority: Authority,
    tasks: JoinSet<()>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("now", &self.clock.now()).finish_non_exhaustive()
    }
}

/// A server that answers every request.
#[derive(Clone, Debug)]
struct Dependency(Troubles);

impl Answers for Dependency {
    fn troubles(&self) -> &Troubles {
        &self.0
    }

    fn answer(&self, _: &Asked) -> (StatusCode, Value) {
        (StatusCode::OK, Value::Null)
    }

    fn failed(&self, _: StatusCode) -> Value {
        Value::Null
    }
}

/// The validity of certificates in simulated time.
pub fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().unwrap_or(Timestamp::MIN),
        until: "2120-01-01T00:00:00Z".parse().unwrap_or(Timestamp::MAX),
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

/// The clock of this runtime, readable from other threads: a simulated clock follows the runtime that it is read in.
pub fn from_any_thread(clock: Clock) -> ClockFn {
    let runtime = Handle::current();
    Arc::new(move || {
        let _entered = runtime.enter();
        clock.now()
    })
}

impl Site {
    /// Creates the cluster and serves everything. Callers of the API on the network that present no token have all rights;
    /// others have those of this authentication.
    pub async fn new(
        clock: Clock,
        blueprint: &Blueprint,
        authentication: Authentication,
    ) -> anyhow::Result<Self> {
        tls::install_provider();
        let mut options = Options::new(from_any_thread(clock));
        options.authentication = authentication;
        let server = ApiServer::new(options);
        let client = admin(&server);
        let ocm = Ocm::new(Managed {
            id: OCM_CLUSTER.to_owned(),
            external_id: blueprint.cluster_id.clone(),
            token: blueprint.ocm_token.clone(),
            channel_group: "stable".to_owned(),
            grace_minutes: 60,
        });
        let mut site = Self {
            clock,
            cluster: Cluster::new(client.clone()),
            client,
            server,
            prometheus: Prometheus::default(),
            alertmanager: Alertmanager::default(),
            ocm,
            cincinnati: graph(blueprint),
            registry: registry(blueprint),
            dependency: Troubles::default(),
            network: MemoryNetwork::default(),
            authority: Authority::new("service-ca", validity())?,
            tasks: JoinSet::new(),
        };
        site.serve()?;
        let service_ca = site.authority.material().cert_pem.clone();
        let blueprint = Blueprint { service_ca, ..blueprint.clone() };
        site.create(&blueprint).await?;
        let run = Cluster::run(site.client.clone(), clock);
        site.tasks.spawn(async move { match run.await {} });
        Ok(site)
    }

    async fn create(&self, blueprint: &Blueprint) -> anyhow::Result<()> {
        let now = self.clock.now_seconds();
        self.cluster.create(blueprint, now).await.context("failed to create the cluster")?;
        let kinds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        kinds.create(&PostParams::default(), &UpgradeConfig::crd()).await?;
        let upstream = format!("http://{GRAPH_HOST}{}", cincinnati::PATH);
        let patch = Patch::Merge(json!({"spec": {"upstream": upstream}}));
        let versions: Api<ClusterVersion> = Api::all(self.client.clone());
        versions.patch("version", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Adds the Secret with a token for Prometheus that clusters before 4.16 have. Without it, tokens are requested.
    pub async fn add_token_secret(&self) -> kube::Result<()> {
        let secret = json!({
            "metadata": {"name": "prometheus-k8s-token-x7x7x"}, "stringData": {"token": "secret"},
        });
        let secret: Secret = serde_json::from_value(secret).map_err(kube::Error::SerdeError)?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "openshift-monitoring");
        secrets.create(&PostParams::default(), &secret).await.map(|_| ())
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let server = self.server.clone();
        let api = tower::service_fn(move |mut request: Request<Incoming>| {
            if !request.headers().contains_key(AUTHORIZATION) {
                request.extensions_mut().insert(Identity::admin());
            }
            let answer = server.clone().oneshot(request);
            async { Ok::<_, Infallible>(answer.await.expect("no connection is cut here")) }
        });
        let clock = from_any_thread(self.clock);
        let listen = |host: &str| self.network.listen(host, 80);
        self.tasks.spawn(serve::serve(listen(API_HOST), None, api, std::future::pending()));
        self.tasks.spawn(wire::serve(self.ocm.clone(), listen(OCM_HOST), None, clock.clone()));
        let graph = self.cincinnati.clone();
        self.tasks.spawn(wire::serve(graph, listen(GRAPH_HOST), None, clock.clone()));
        let listener = self.network.listen(registry::HOST, 443);
        let tls = self.tls(&[registry::HOST])?;
        self.tasks.spawn(wire::serve(self.registry.clone(), listener, Some(tls), clock.clone()));
        let dependency = Dependency(self.dependency.clone());
        self.tasks.spawn(wire::serve(dependency, listen(DEPENDENCY_HOST), None, clock));
        let tls = self.tls(&[prometheus::HOST, alertmanager::HOST])?;
        let listener = self.network.listen(prometheus::HOST, prometheus::PORT);
        self.tasks.spawn(self.prometheus.clone().serve(listener, Some(tls.clone())));
        let listener = self.network.listen(alertmanager::HOST, alertmanager::PORT);
        self.tasks.spawn(self.alertmanager.clone().serve(listener, Some(tls), self.clock));
        Ok(())
    }

    /// How servers with these names use TLS.
    pub fn tls(&self, names: &[&str]) -> anyhow::Result<Arc<rustls::ServerConfig>> {
        let material = self.authority.server(names, validity())?;
        Ok(tls::server_config(ReloadableCert::new(&material)?)?)
    }
}

/// The version graph of all releases: updates from that which runs to each other one.
fn graph(blueprint: &Blueprint) -> Cincinnati {
    let graph = Cincinnati::default();
    let Some(current) = blueprint.history.last() else { return graph };
    for release in &blueprint.releases {
        for channel in &release.channels {
            graph.offer(channel, &current.version, &release.version);
        }
    }
    graph
}

/// The registry of all releases.
fn registry(blueprint: &Blueprint) -> Registry {
    let releases = blueprint.history.iter().chain(&blueprint.releases);
    Registry::new(releases.map(|release| &*release.version))
}
