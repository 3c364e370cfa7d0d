//! The program itself: two replicas against an API server over TCP, in real time.

use std::{
    convert::Infallible,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper_util::{client::legacy::Client as HttpClient, rt::TokioExecutor};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, api::PostParams};
use lab_apiserver::{ApiServer, Options};
use refit_kinds::{crds, hooks, keys};
use refit_runtime::{
    Clock,
    client::{ClientStack, HttpsPoster},
    net::Listener,
    serve,
    tls::{self, Authority, ClientIdentity, KeyAndCert, ReloadableCert, Validity},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Timeout of every wait, for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

struct Setup {
    directory: tempfile::TempDir,
    authority: Authority,
    client: Client,
}

/// A running program; it is killed when its test ends.
struct Replica {
    child: Child,
    hooks: SocketAddr,
    probes: SocketAddr,
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

impl Setup {
    async fn new() -> Self {
        tls::install_provider();
        let clock = Clock::real();
        let server = ApiServer::new(Options::new(Arc::new(move || clock.now_seconds())));
        let client = Client::new(server.clone(), "default");
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for crd in crds::refit_crds().into_iter().chain(refit_cluster_api::crds()) {
            definitions.create(&PostParams::default(), &crd).await.unwrap();
        }
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
        let system = json!({"metadata": {"name": "refit-system"}});
        let system = serde_json::from_value(system).unwrap();
        namespaces.create(&PostParams::default(), &system).await.unwrap();
        let validity = Validity {
            from: "2020-01-01T00:00:00Z".parse().unwrap(),
            until: "2120-01-01T00:00:00Z".parse().unwrap(),
        };
        let authority = Authority::new("test", validity).unwrap();
        let cert = authority.server(&["127.0.0.1", "localhost"], validity).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tls.crt"), &cert.cert_pem).unwrap();
        fs::write(directory.path().join("tls.key"), &cert.key_pem).unwrap();
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = tls::server_config(ReloadableCert::new(&cert).unwrap()).unwrap();
        let service = tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let answer = server.clone().oneshot(request);
            async { Ok::<_, Infallible>(answer.await.expect("no connection is cut here")) }
        });
        tokio::spawn(serve::serve(listener, Some(config), service, std::future::pending()));
        let ca = STANDARD.encode(authority.material().cert_pem.as_bytes());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{address}"), "certificate-authority-data": ca,
            }}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        });
        fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self { directory, authority, client }
    }

    fn start(&self, name: &str) -> Replica {
        let (hooks, probes) = (free_port(), free_port());
        let path = |file: &str| self.directory.path().join(file);
        let child = Command::new(Path::new(env!("CARGO_BIN_EXE_refit-controller")))
            .arg("--kubeconfig")
            .arg(path("kubeconfig"))
            .arg("--cert-dir")
            .arg(self.directory.path())
            .args(["--webhook-bind", &hooks.to_string()])
            .args(["--health-bind", &probes.to_string()])
            .args(["--identity", name, "--namespace", "refit-system"])
            .args(["--lease-duration-seconds", "5"])
            .args(["--lease-renew-deadline-seconds", "3"])
            .args(["--lease-retry-period-seconds", "1"])
            .args(["--shutdown-delay-seconds", "0", "--log-format", "json"])
            .stderr(Stdio::from(fs::File::create(path(&format!("{name}.log"))).unwrap()))
            .spawn()
            .unwrap();
        Replica { child, hooks, probes }
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(format!("{name}.log"))).unwrap()
    }

    async fn holder(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "refit-system");
        let lease = leases.get_opt("refit-controller").await.unwrap();
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        holder.unwrap_or_else(|| "no holder".to_owned())
    }

    async fn held_by(&self, name: &str) {
        let prefix = format!("{name}_");
        until(&format!("{name} leads"), async || self.holder().await.starts_with(&prefix)).await;
    }

    async fn discovery(&self, replica: &Replica) -> Value {
        self.post(replica, &hooks::path("Discovery", None), None).await
    }

    /// The client certificate that the replicas keep for Cluster API's managers.
    async fn hook_client(&self) -> ClientIdentity {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "refit-system");
        let data = secrets.get(keys::HOOK_CLIENT).await.unwrap().data.unwrap();
        let part = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
        KeyAndCert { cert_pem: part("tls.crt"), key_pem: part("tls.key") }.into()
    }

    async fn post(&self, replica: &Replica, path: &str, client: Option<ClientIdentity>) -> Value {
        let stack = ClientStack::production("test/1");
        let pem = self.authority.material().cert_pem.as_bytes();
        let poster = HttpsPoster::presenting(&stack, pem, client).unwrap();
        let url = format!("https://{}{path}?timeout=10s", replica.hooks);
        let answer = poster.post(&url, b"{}".to_vec(), Duration::from_secs(10)).await;
        let (status, body) = answer.unwrap();
        assert_eq!(status, 200);
        serde_json::from_slice(&body).unwrap()
    }
}

/// Status and text of a probe; `None` while the server does not respond.
async fn probe(replica: &Replica, path: &str) -> Option<(u16, String)> {
    use http_body_util::BodyExt as _;
    let client: HttpClient<_, http_body_util::Empty<bytes::Bytes>> =
        HttpClient::builder(TokioExecutor::new()).build_http();
    let url = format!("http://{}{path}", replica.probes).parse().unwrap();
    let answer = client.get(url).await.ok()?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    Some((status, String::from_utf8(body.to_vec()).unwrap()))
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let outcome = tokio::time::timeout(PATIENCE, wait).await;
    outcome.unwrap_or_else(|_| panic!("not in time: {what}"));
}

async fn ready(replica: &Replica) {
    until("ready", async || {
        probe(replica, "/readyz").await.is_some_and(|(status, _)| status == 200)
    })
    .await;
}

fn terminate(replica: &Replica) {
    let pid = replica.child.id().to_string();
    let status = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(status.success());
}

async fn ended(replica: &mut Replica) -> ExitStatus {
    let mut status = None;
    until("the end", async || {
        status = replica.child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    status.unwrap()
}

async fn leads(replica: &Replica) -> bool {
    let (_, text) = probe(replica, "/metrics").await.unwrap_or_default();
    text.lines().any(|line| line == "refit_leader 1")
}

#[tokio::test]
async fn one_of_two_replicas_leads_and_the_other_takes_over() {
    let setup = Setup::new().await;
    let mut a = setup.start("a");
    setup.held_by("a").await;
    let mut b = setup.start("b");
    ready(&a).await;
    ready(&b).await;
    for replica in [&a, &b] {
        let answer = setup.discovery(replica).await;
        assert_eq!(answer["status"], "Success", "{answer}");
        assert_eq!(probe(replica, "/healthz").await.unwrap().0, 200);
        let hook = format!("/{}", hooks::path("Discovery", None).trim_start_matches('/'));
        assert_eq!(probe(replica, &hook).await.unwrap().0, 404, "no hooks without TLS");
    }
    assert!(leads(&a).await && !leads(&b).await);

    a.child.kill().unwrap();
    ended(&mut a).await;
    setup.held_by("b").await;
    until("b reports that it leads", async || leads(&b).await).await;

    let c = setup.start("c");
    ready(&c).await;
    terminate(&b);
    let asked = Clock::real().now();
    assert!(ended(&mut b).await.success(), "{}", setup.log("b"));
    setup.held_by("c").await;
    let took = Clock::real().elapsed(asked);
    assert!(setup.log("b").contains("Lease released"), "{}", setup.log("b"));
    assert!(took < PATIENCE, "{took:?}");
    for line in setup.log("b").lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

#[tokio::test]
async fn by_default_only_the_managers_certificate_is_accepted() {
    let setup = Setup::new().await;
    let replica = setup.start("a");
    ready(&replica).await;
    let hook = hooks::path("UpdateMachine", Some("update-machine"));
    let refused = setup.post(&replica, &hook, None).await;
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("--runtime-extension-client-cert-file"), "{refused}");
    let known = setup.post(&replica, &hook, Some(setup.hook_client().await)).await;
    let message = known["message"].as_str().unwrap();
    assert!(message.contains("the request cannot be served"), "{known}");
    assert_eq!(setup.discovery(&replica).await["status"], "Success");
}

#[test]
fn a_command_line_error_names_a_remedy() {
    let out = Command::new(env!("CARGO_BIN_EXE_refit-controller"))
        .args(["--kubeconfig", "/nonexistent/kubeconfig", "--log", "off"])
        .args(["--webhook-bind", "127.0.0.1:0", "--health-bind", "127.0.0.1:0"])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success());
    assert!(text.contains("invalid kubeconfig /nonexistent/kubeconfig"), "{text}");
}
