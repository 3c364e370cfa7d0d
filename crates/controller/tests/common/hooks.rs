//! A controller that serves hooks, and clients that call them over TLS.

use std::{sync::Arc, time::Duration};

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use lab_apiserver::ApiServer;
use refit_cluster_api::kinds::{Cluster, KubeadmControlPlane, Machine};
use refit_controller::{
    ClientTrust, ControllerOptions, HookServer, PlanLocation, Process, Settings, run,
};
use refit_kinds::{hooks::path, keys, refit::HostPlan};
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::Open,
    net::{Dialer, Listener, MemoryNetwork},
    tls::{self, Authority, KeyAndCert, ReloadableCert},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::objects::{
    PROBES, install_kinds, made, made_in, owner, scraped, serve_api, server, status, validity,
};

pub(crate) const HOST: &str = "refit-webhook.refit-system.svc";

/// The name of the clients that may call hooks, if the server requires a certificate.
pub(crate) const CLIENT: &str = "capi";

/// A controller that serves hooks at a listener; its management cluster is on `network`.
pub(crate) struct Server {
    ca: Authority,
    pub(crate) cert: Arc<ReloadableCert>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) fn start(
        network: &MemoryNetwork,
        listener: Listener,
        client_ca: Option<&Authority>,
    ) -> Self {
        tls::install_provider();
        let ca = Authority::new("hooks", validity()).unwrap();
        let material = ca.server(&[HOST, "localhost"], validity()).unwrap();
        let cert = ReloadableCert::new(&material).unwrap();
        let dialer = Dialer::Memory(network.clone(), Arc::new(Open));
        let controller = run(ControllerOptions {
            stack: ClientStack::new(dialer, Arc::new(Open), "refit-controller/test"),
            config: kube::Config::new("http://management.test:80".parse().unwrap()),
            clock: Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap()),
            hooks: HookServer {
                listener,
                cert: cert.clone(),
                clients: client_ca.map(|ca| {
                    ClientTrust::of(ca.material().cert_pem.as_bytes(), [CLIENT]).unwrap()
                }),
            },
            // Agents report in the management cluster, so that no workload cluster is needed.
            settings: Settings {
                plan_location: PlanLocation::Management,
                external_upgrade_clients: ["provisioner".to_owned()].into(),
                ..Settings::default()
            },
            process: Process { probes: Some(network.listen(PROBES, 80)), ..Process::default() },
        });
        Self { ca, cert, task: tokio::spawn(controller) }
    }

    /// The authority of the server's certificate.
    pub(crate) fn ca_pem(&self) -> String {
        self.ca.material().cert_pem.clone()
    }

    pub(crate) fn trust(&self) -> rustls::ClientConfig {
        tls::client_config(self.ca.material().cert_pem.as_bytes()).unwrap()
    }

    pub(crate) fn trust_with_identity(&self, identity: &KeyAndCert) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        let pem = self.ca.material().cert_pem.as_bytes();
        roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(identity.cert_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
        rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap()
    }
}

pub(crate) type Answer = Result<(u16, String), Box<dyn std::error::Error + Send + Sync>>;

pub(crate) async fn call(
    dialer: &Dialer,
    (host, port): (&str, u16),
    tls: rustls::ClientConfig,
    request: Request<Full<bytes::Bytes>>,
) -> Answer {
    let stream = dialer.dial(host, port).await?;
    let name = ServerName::try_from(host.to_owned())?;
    let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
    let (mut sender, connection) = http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec())?))
    };
    tokio::select! {
        biased;
        answer = exchange => answer,
        ended = connection => Err(format!("the connection ended: {ended:?}").into()),
    }
}

pub(crate) fn request(
    method: Method,
    path: &str,
    body: impl Into<bytes::Bytes>,
) -> Request<Full<bytes::Bytes>> {
    // No Content-Type and no Accept, as Cluster API (`docs/facts/hooks.md#paths-and-http`).
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", HOST)
        .body(Full::new(body.into()))
        .unwrap()
}

/// Hooks and management cluster on one network.
pub(crate) struct InMemory {
    pub(crate) server: Server,
    pub(crate) dialer: Dialer,
}

impl InMemory {
    /// The management cluster does not respond.
    pub(crate) fn without_api() -> Self {
        let network = MemoryNetwork::default();
        let server = Server::start(&network, network.listen(HOST, 443), None);
        Self { server, dialer: Dialer::Memory(network, Arc::new(Open)) }
    }

    /// The controller has read a control plane of one Machine, whose agent has just reported.
    pub(crate) async fn ready() -> Self {
        Self::ready_for(None).await.0
    }

    /// The same for clients of this authority, with the API server of the management cluster.
    pub(crate) async fn ready_for(client_ca: Option<&Authority>) -> (Self, ApiServer) {
        let network = MemoryNetwork::default();
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let api = server(clock);
        let client = Client::new(api.clone(), "default");
        install_kinds(&client).await;
        control_plane(&client, clock).await;
        tokio::spawn(serve_api(&network, "management.test", &api));
        let server = Server::start(&network, network.listen(HOST, 443), client_ca);
        let ready = Self { server, dialer: Dialer::Memory(network, Arc::new(Open)) };
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (status, _) = ready.send(Method::GET, "/readyz", b"").await;
        assert_eq!(status, 200);
        (ready, api)
    }

    pub(crate) async fn can_update(&self) -> (u16, Value) {
        let body = json!({"current": side("v1.34.2"), "desired": side("v1.35.0")});
        let hook = path("CanUpdateMachine", Some("can-update-machine"));
        self.post(&format!("{hook}?timeout=10s"), &body).await
    }

    /// The content of `/metrics`.
    pub(crate) async fn metrics(&self) -> String {
        let stack = ClientStack::new(self.dialer.clone(), Arc::new(Open), "scraper/test");
        scraped(&stack).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: &[u8]) -> (u16, Value) {
        self.send_with(self.server.trust(), request(method, path, body.to_vec())).await
    }

    pub(crate) async fn send_with(
        &self,
        tls: rustls::ClientConfig,
        request: Request<Full<bytes::Bytes>>,
    ) -> (u16, Value) {
        let (status, text) = call(&self.dialer, (HOST, 443), tls, request).await.unwrap();
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (status, value)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send(Method::POST, path, body.to_string().as_bytes()).await
    }
}

async fn control_plane(client: &Client, clock: Clock) {
    let _: Namespace =
        made_in(&Api::all(client.clone()), json!({"metadata": {"name": "refit-system"}})).await;
    let named = json!({"metadata": {"name": "edge-1"}, "spec": {}});
    let cluster: Cluster = made(client, named).await;
    let initialised = json!({"initialization": {"controlPlaneInitialized": true}});
    status(client, &cluster, initialised).await;
    let owned: KubeadmControlPlane = made(
        client,
        json!({"metadata": {"name": "edge-1"}, "spec": {"replicas": 1, "version": "v1.35.0"}}),
    )
    .await;
    let machine: Machine = made(
        client,
        json!({
            "metadata": {
                "name": "edge-1-cp-0",
                "labels": {keys::CONTROL_PLANE: ""},
                "ownerReferences": [owner(&owned)],
            },
            "spec": {"clusterName": "edge-1", "version": "v1.34.2"},
        }),
    )
    .await;
    status(client, &machine, json!({"nodeRef": {"name": "edge-1-cp-0"}})).await;
    let plan: HostPlan =
        made(client, json!({"metadata": {"name": "edge-1-cp-0"}, "spec": {}})).await;
    status(client, &plan, json!({"reportedAt": clock.now_seconds()})).await;
}

pub(crate) fn side(version: &str) -> Value {
    let meta = json!({"name": "edge-1-cp-0", "namespace": "default"});
    json!({
        "machine": {"kind": "Machine", "metadata": meta, "spec": {"version": version}},
        "infrastructureMachine": {"kind": "DockerMachine", "metadata": meta, "spec": {}},
        "bootstrapConfig": {"kind": "KubeadmConfig", "metadata": meta, "spec": {}},
    })
}
