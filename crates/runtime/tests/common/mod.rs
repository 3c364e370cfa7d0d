//! Shared by the tests: an API server behind TLS on an in-memory network, and client processes.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use lab_apiserver::{AnswerBody, ApiServer, Options};
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::{Effect, Fate, Gate, Open},
    net::{Dialer, Listener, MemoryNetwork},
    serve::serve,
    tls::{Authority, KeyAndCert, ReloadableCert, Validity},
};
use rustls::server::{ClientHello, ResolvesServerCert};
use serde_json::json;
use tokio::task::AbortHandle;
use tower::Service;

pub const HOST: &str = "api.test";
pub const PORT: u16 = 6443;

pub fn epoch() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

pub fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().unwrap(),
        until: "2120-01-01T00:00:00Z".parse().unwrap(),
    }
}

/// A certificate authority and a server's certificate from it.
pub struct Pki {
    pub authority: Authority,
    pub server: KeyAndCert,
}

impl Pki {
    pub fn new(hosts: &[&str]) -> Self {
        let authority = Authority::new("test", validity()).unwrap();
        let server = authority.server(hosts, validity()).unwrap();
        Self { authority, server }
    }

    pub fn ca(&self) -> &str {
        &self.authority.material().cert_pem
    }
}

pub fn kubeconfig(url: &str, ca_pem: &str) -> String {
    let ca = base64::engine::general_purpose::STANDARD.encode(ca_pem);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": "sesame"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    })
    .to_string()
}

pub async fn config(kubeconfig: &str) -> Config {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

/// A switch that kills at the effect with this number, counted from 1, before or after it.
#[derive(Default)]
pub struct Switch {
    pub dead: AtomicBool,
    before: AtomicUsize,
    after: AtomicUsize,
    pub effects: Mutex<Vec<String>>,
}

impl Switch {
    pub fn before(number: usize) -> Arc<Self> {
        let switch = Self::default();
        switch.before.store(number, Ordering::SeqCst);
        Arc::new(switch)
    }

    pub fn after(number: usize) -> Arc<Self> {
        let switch = Self::default();
        switch.after.store(number, Ordering::SeqCst);
        Arc::new(switch)
    }

    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    pub fn effects(&self) -> Vec<String> {
        self.effects.lock().unwrap().clone()
    }
}

impl Gate for Switch {
    fn before(&self, effect: &Effect) -> Fate {
        let mut effects = self.effects.lock().unwrap();
        effects.push(effect.to_string());
        if effects.len() == self.before.load(Ordering::SeqCst) {
            self.kill();
        }
        self.fate()
    }

    fn after(&self, _: &Effect) -> Fate {
        if self.effects.lock().unwrap().len() == self.after.load(Ordering::SeqCst) {
            self.kill();
        }
        self.fate()
    }

    fn fate(&self) -> Fate {
        if self.dead.load(Ordering::SeqCst) { Fate::Dead } else { Fate::Alive }
    }
}

/// Serves an API server and records each request.
#[derive(Clone)]
pub struct Served {
    pub server: ApiServer,
    pub log: Arc<Mutex<Vec<String>>>,
}

impl Service<Request<Incoming>> for Served {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let line = format!("{} {}", request.method(), request.uri());
        self.log.lock().unwrap().push(line);
        let answer = self.server.call(request);
        Box::pin(async move {
            Ok(answer.await.unwrap_or_else(|error| {
                let broken = futures::stream::iter([Err(error)]);
                Response::new(http_body_util::StreamBody::new(broken).boxed_unsync())
            }))
        })
    }
}

/// Counts handshakes.
#[derive(Debug)]
struct Counting(Arc<ReloadableCert>, Arc<AtomicUsize>);

impl ResolvesServerCert for Counting {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.resolve(hello)
    }
}

pub struct World {
    pub network: MemoryNetwork,
    pub server: ApiServer,
    pub pki: Pki,
    pub clock: Clock,
    pub log: Arc<Mutex<Vec<String>>>,
    pub handshakes: Arc<AtomicUsize>,
    serving: Mutex<Option<AbortHandle>>,
}

impl World {
    pub fn new() -> Self {
        Self::with_ring(10_000)
    }

    /// A world whose server remembers that many writes.
    pub fn with_ring(ring: usize) -> Self {
        let clock = Clock::simulated(epoch());
        let mut options = Options::new(Arc::new(move || clock.now()));
        options.ring = ring;
        let world = Self {
            network: MemoryNetwork::default(),
            server: ApiServer::new(options),
            pki: Pki::new(&[HOST]),
            clock,
            log: Arc::default(),
            handshakes: Arc::default(),
            serving: Mutex::default(),
        };
        world.start();
        world
    }

    /// Serves the API, in place of the previous server.
    pub fn start(&self) {
        let cert = ReloadableCert::new(&self.pki.server).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Counting(cert, self.handshakes.clone())));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let served = Served { server: self.server.clone(), log: self.log.clone() };
        let listener = self.network.listen(HOST, PORT);
        let serving = serve(listener, Some(Arc::new(tls)), served, std::future::pending());
        let task = tokio::spawn(serving).abort_handle();
        if let Some(old) = self.serving.lock().unwrap().replace(task) {
            old.abort();
        }
    }

    /// The API becomes unavailable: connections break, new ones are refused.
    pub fn stop(&self) {
        self.network.close(HOST, PORT);
        if let Some(old) = self.serving.lock().unwrap().take() {
            old.abort();
        }
    }

    pub fn url() -> String {
        format!("https://{HOST}:{PORT}")
    }

    pub async fn config(&self) -> Config {
        config(&kubeconfig(&Self::url(), self.pki.ca())).await
    }

    pub fn stack(&self, gate: Arc<dyn Gate>) -> ClientStack {
        let dialer = Dialer::Memory(self.network.clone(), gate.clone());
        ClientStack::new(dialer, gate, "test/1")
    }

    /// A client of a process with this gate.
    pub async fn client_of(&self, gate: Arc<dyn Gate>) -> Client {
        self.stack(gate).client(&self.config().await).unwrap()
    }

    pub async fn client(&self) -> Client {
        self.client_of(Arc::new(Open)).await
    }

    pub async fn configs(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client().await, "default")
    }

    /// A client in the server's own process that bypasses everything under test.
    pub fn direct(&self) -> Api<ConfigMap> {
        Api::namespaced(Client::new(self.server.clone(), "default"), "default")
    }

    pub fn stored(&self, name: &str) -> Option<serde_json::Value> {
        self.server.get_value("", "configmaps", "default", name)
    }

    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    pub fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::SeqCst)
    }
}

pub fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "data": {"value": value},
    }))
    .unwrap()
}

/// Whether the future is still waiting after an hour.
pub async fn hangs<T>(future: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_secs(3600), future).await.is_err()
}

/// Waits until `holds` returns true, for at most `seconds`.
pub async fn within(seconds: u64, what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(seconds), wait).await;
    assert!(waited.is_ok(), "not within {seconds} s: {what}");
}

/// Serves something other than an API over HTTPS.
pub fn serve_with<F, Fut, B>(listener: Listener, pki: &Pki, answer: F) -> AbortHandle
where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tower::BoxError>,
{
    let cert = ReloadableCert::new(&pki.server).unwrap();
    let tls = refit_runtime::tls::server_config(cert).unwrap();
    let service = tower::service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    tokio::spawn(serve(listener, Some(tls), service, std::future::pending())).abort_handle()
}
