//! The hook server over real TLS: in memory on a paused clock, and over TCP in real time.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "common/objects.rs"]
mod objects;

use std::{sync::Arc, time::Duration};

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use refit_cluster_api::kinds::{Cluster, KubeadmControlPlane, Machine};
use refit_controller::{ControllerOptions, HookServer, PlanLocation, Process, Settings, run};
use refit_kinds::{
    hooks::{MAX_BODY_BYTES, path},
    keys,
    refit::HostPlan,
};
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::Open,
    net::{Dialer, Listener, MemoryNetwork},
    tls::{self, Authority, KeyAndCert, ReloadableCert},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};

use self::objects::{install_kinds, made, made_in, owner, serve_api, server, status, validity};

const HOST: &str = "refit-webhook.refit-system.svc";

/// A controller that serves hooks at a listener; its management cluster is on `network`.
struct Server {
    ca: Authority,
    cert: Arc<ReloadableCert>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    fn start(network: &MemoryNetwork, listener: Listener, client_ca: Option<&Authority>) -> Self {
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
                client_ca_pem: client_ca.map(|ca| ca.material().cert_pem.clone().into_bytes()),
            },
            // Agents report in the management cluster, so that no workload cluster is needed.
            settings: Settings { plan_location: PlanLocation::Management, ..Settings::default() },
            process: Process::default(),
        });
        Self { ca, cert, task: tokio::spawn(controller) }
    }

    fn trust(&self) -> rustls::ClientConfig {
        tls::client_config(self.ca.material().cert_pem.as_bytes()).unwrap()
    }

    fn trust_with_identity(&self, identity: &KeyAndCert) -> rustls::ClientConfig {
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

type Answer = Result<(u16, String), Box<dyn std::error::Error + Send + Sync>>;

async fn call(
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

fn request(
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
struct InMemory {
    server: Server,
    dialer: Dialer,
}

impl InMemory {
    /// The management cluster does not respond.
    fn without_api() -> Self {
        let network = MemoryNetwork::default();
        let server = Server::start(&network, network.listen(HOST, 443), None);
        Self { server, dialer: Dialer::Memory(network, Arc::new(Open)) }
    }

    /// The controller has read a control plane of one Machine, whose agent has just reported.
    async fn ready() -> Self {
        let network = MemoryNetwork::default();
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let api = server(clock);
        let client = Client::new(api.clone(), "default");
        install_kinds(&client).await;
        control_plane(&client, clock).await;
        tokio::spawn(serve_api(&network, "management.test", &api));
        let server = Server::start(&network, network.listen(HOST, 443), None);
        let ready = Self { server, dialer: Dialer::Memory(network, Arc::new(Open)) };
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if ready.can_update().await.1["status"] == "Success" {
                return ready;
            }
        }
        panic!("it is never ready: {:?}", ready.can_update().await);
    }

    async fn can_update(&self) -> (u16, Value) {
        let body = json!({"current": side("v1.34.2"), "desired": side("v1.35.0")});
        let hook = path("CanUpdateMachine", Some("can-update-machine"));
        self.post(&format!("{hook}?timeout=10s"), &body).await
    }

    async fn send(&self, method: Method, path: &str, body: &[u8]) -> (u16, Value) {
        let request = request(method, path, body.to_vec());
        let tls = self.server.trust();
        let (status, text) = call(&self.dialer, (HOST, 443), tls, request).await.unwrap();
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (status, value)
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
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
        json!({"metadata": {"name": "edge-1"}, "spec": {"replicas": 1, "version": "v1.34.2"}}),
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

fn side(version: &str) -> Value {
    let meta = json!({"name": "edge-1-cp-0", "namespace": "default"});
    json!({
        "machine": {"kind": "Machine", "metadata": meta, "spec": {"version": version}},
        "infrastructureMachine": {"kind": "DockerMachine", "metadata": meta, "spec": {}},
        "bootstrapConfig": {"kind": "KubeadmConfig", "metadata": meta, "spec": {}},
    })
}

#[tokio::test(start_paused = true)]
async fn discovery_works_before_the_caches_are_synced() {
    let server = InMemory::without_api();
    let (status, body) = server.post(&path("Discovery", None), &json!({})).await;
    assert_eq!(status, 200);
    assert_eq!((&body["kind"], &body["status"]), (&json!("DiscoveryResponse"), &json!("Success")));
    assert_eq!(body["handlers"].as_array().unwrap().len(), 3);
    let (_, empty) = server.send(Method::POST, &path("Discovery", None), b"").await;
    assert_eq!(empty, body);
}

#[tokio::test(start_paused = true)]
async fn can_update_machine_answers_base64_patches() {
    let server = InMemory::ready().await;
    let (status, answer) = server.can_update().await;
    assert_eq!((status, &answer["status"]), (200, &json!("Success")));
    assert_eq!(answer["kind"], "CanUpdateMachineResponse");
    assert_eq!(answer["apiVersion"], "hooks.runtime.cluster.x-k8s.io/v1alpha1");
    assert_eq!(answer["machinePatch"]["patchType"], "JSONMergePatch");
    assert_eq!(answer["machinePatch"]["patch"], "eyJzcGVjIjp7InZlcnNpb24iOiJ2MS4zNS4wIn19");
    assert!(answer.get("bootstrapConfigPatch").is_none());
}

#[tokio::test(start_paused = true)]
async fn paths_are_served_in_mixed_case_and_others_are_not_found() {
    let server = InMemory::ready().await;
    let mixed = "/Hooks.Runtime.Cluster.x-k8s.io/v1Alpha1/UpdateMachine/Update-Machine";
    let (status, answer) = server.post(mixed, &json!({"desired": side("v1.35.0")})).await;
    assert_eq!((status, &answer["status"]), (200, &json!("Success")));
    assert!(answer["retryAfterSeconds"].as_i64().unwrap() > 0);
    for unknown in ["/nothing", "/hooks.runtime.cluster.x-k8s.io/v1beta1/discovery"] {
        let (status, answer) = server.post(unknown, &json!({})).await;
        assert_eq!((status, &answer["kind"]), (404, &json!("Status")));
    }
    let (status, _) = server.send(Method::GET, &path("Discovery", None), b"").await;
    assert_eq!(status, 405);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_request_is_a_failure_that_names_what_is_wrong() {
    let server = InMemory::ready().await;
    let hooks = [
        ("CanUpdateMachine", "can-update-machine", "CanUpdateMachineResponse"),
        ("CanUpdateMachineSet", "can-update-machineset", "CanUpdateMachineSetResponse"),
        ("UpdateMachine", "update-machine", "UpdateMachineResponse"),
    ];
    for (hook, handler, kind) in hooks {
        let hook = path(hook, Some(handler));
        for body in ["", "{", "[]", "{}", "null", "\"text\""] {
            let (status, answer) = server.send(Method::POST, &hook, body.as_bytes()).await;
            assert_eq!((status, &answer["status"]), (200, &json!("Failure")), "{hook} {body}");
            assert_eq!(answer["kind"], kind);
            assert!(answer["message"].as_str().unwrap().contains("cannot be served"), "{answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_up_to_the_limit_are_taken_and_larger_ones_refused() {
    let server = InMemory::ready().await;
    let hook = path("UpdateMachine", Some("update-machine"));
    let mut body = json!({"desired": side("v1.35.0")}).to_string().into_bytes();
    body.resize(MAX_BODY_BYTES, b' ');
    let (status, answer) = server.send(Method::POST, &hook, &body).await;
    assert_eq!((status, &answer["status"]), (200, &json!("Success")));
    body.push(b' ');
    let (status, answer) = server.send(Method::POST, &hook, &body).await;
    assert_eq!((status, &answer["kind"]), (413, &json!("Status")));
}

#[tokio::test(start_paused = true)]
async fn probes_and_metrics_are_served_next_to_the_hooks() {
    let server = InMemory::without_api();
    assert_eq!(server.send(Method::GET, "/healthz", b"").await.0, 200);
    assert_eq!(server.send(Method::GET, "/readyz", b"").await.0, 503);
    let server = InMemory::ready().await;
    assert_eq!(server.send(Method::GET, "/readyz", b"").await.0, 200);
    server.post(&path("Discovery", None), &json!({})).await;
    let (status, text) = server.send(Method::GET, "/metrics", b"").await;
    let text = text.as_str().unwrap();
    assert_eq!(status, 200);
    for wanted in [
        "refit_build_info{version=",
        r#"refit_hook_duration_seconds_count{hook="Discovery",verdict="Success"} 1"#,
        r#"refit_workqueue_depth{controller="node-update"} 0"#,
        "refit_synced 1",
        "# EOF",
    ] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_body_gets_a_response_before_the_deadline() {
    let server = InMemory::ready().await;
    let dialer = server.dialer.clone();
    let stream = dialer.dial(HOST, 443).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(server.server.trust()));
    let mut stream = tls.connect(name, stream).await.unwrap();
    let hook = path("UpdateMachine", Some("update-machine"));
    let head =
        format!("POST {hook}?timeout=4s HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 10\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await.unwrap();
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let waited = clock.now_seconds().to_string();
    assert_eq!(waited, "2026-01-01T00:00:03Z");
}

/// Starts a request whose body of `length` bytes stops one byte short.
async fn stalled(server: &InMemory, length: usize) -> impl Sized {
    let stream = server.dialer.dial(HOST, 443).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(server.server.trust()));
    let mut stream = tls.connect(name, stream).await.unwrap();
    let hook = path("UpdateMachine", Some("update-machine"));
    let head = format!(
        "POST {hook}?timeout=20s HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; length - 1]).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn large_bodies_are_limited_and_small_ones_pass() {
    const LARGE: usize = 2 * 1024 * 1024;
    let server = InMemory::ready().await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(stalled(&server, LARGE).await);
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let hook = path("CanUpdateMachine", Some("can-update-machine"));
    let small = json!({"current": side("v1.34.2"), "desired": side("v1.35.0")});
    let (_, answer) = server.post(&hook, &small).await;
    assert_eq!(answer["status"], "Success", "{answer}");
    let large = [small.to_string().into_bytes(), vec![b' '; LARGE]].concat();
    let freed = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(held);
    };
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let ((), (_, answer)) = futures::join!(freed, server.send(Method::POST, &hook, &large));
    assert_eq!(answer["status"], "Success", "{answer}");
    assert_eq!(clock.now_seconds().to_string(), "2026-01-01T00:00:01Z", "it waits for its turn");
}

async fn over_tcp(client_ca: Option<&Authority>) -> (Server, u16) {
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (Server::start(&MemoryNetwork::default(), listener, client_ca), port)
}

async fn discover(port: u16, tls: rustls::ClientConfig) -> Answer {
    let request = request(Method::POST, &path("Discovery", None), "{}");
    let call = call(&Dialer::Tcp, ("localhost", port), tls, request);
    tokio::time::timeout(Duration::from_secs(20), call).await?
}

#[tokio::test]
async fn https_over_tcp_reloads_its_certificate() {
    let (server, port) = over_tcp(None).await;
    let (status, body) = discover(port, server.trust()).await.unwrap();
    assert_eq!(status, 200);
    assert!(body.contains("can-update-machineset"));
    let next = Authority::new("next", validity()).unwrap();
    server.cert.reload(&next.server(&["localhost"], validity()).unwrap()).unwrap();
    assert!(discover(port, server.trust()).await.is_err());
    let trust = tls::client_config(next.material().cert_pem.as_bytes()).unwrap();
    assert_eq!(discover(port, trust).await.unwrap().0, 200);
}

#[tokio::test]
async fn a_client_ca_rejects_other_clients() {
    let clients = Authority::new("clients", validity()).unwrap();
    let strangers = Authority::new("strangers", validity()).unwrap();
    let (server, port) = over_tcp(Some(&clients)).await;
    assert!(discover(port, server.trust()).await.is_err());
    let stranger = strangers.client("capi", validity()).unwrap();
    assert!(discover(port, server.trust_with_identity(&stranger)).await.is_err());
    let known = clients.client("capi", validity()).unwrap();
    assert_eq!(discover(port, server.trust_with_identity(&known)).await.unwrap().0, 200);
}
