//! An API server over HTTPS on loopback, which ends deleted pods as a kubelet would.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, thread};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use lab_apiserver::auth::{Authentication, Identity, Required};
use lab_apiserver::{AnswerBody, ApiServer, Options};
use refit_runtime::Clock;
use refit_runtime::net::Listener;
use refit_runtime::serve::serve;
use refit_runtime::tls::{Authority, ReloadableCert, TlsError, Validity, server_config};
use serde_json::{Value, json};
use tower::{Service, ServiceExt as _};

/// How often it looks for deleted pods.
const KUBELET_PERIOD: Duration = Duration::from_millis(50);

/// Why a cluster could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The certificates could not be created.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The port, the thread or the files could not be created.
    #[error("the cluster cannot start: {0}")]
    Io(#[from] io::Error),
}

/// A served API server with a kubeconfig. It serves until the process exits.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
}

impl Cluster {
    /// Serves a new API server that enforces RBAC, and writes its kubeconfig into `directory`:
    /// context `admin` has all permissions, context `ann` those that RBAC gives to the user `ann`.
    pub fn start(directory: &Path) -> Result<Self, ClusterError> {
        let clock = Clock::real();
        let mut required = Required::new(*b"a key for tests, 32 bytes long..");
        required.tokens = BTreeMap::from([
            ("admin-token".to_owned(), Identity::admin()),
            ("ann-token".to_owned(), Identity::new("ann", &["team"])),
        ]);
        let mut options = Options::new(Arc::new(move || clock.now()));
        options.authentication = Authentication::Required(required);
        let server = ApiServer::new(options);
        let validity = Validity {
            from: "2020-01-01T00:00:00Z".parse().expect("a valid time"),
            until: "2120-01-01T00:00:00Z".parse().expect("a valid time"),
        };
        let authority = Authority::new("kubectl suite", validity)?;
        let material = authority.server(&["127.0.0.1"], validity)?;
        let tls = server_config(ReloadableCert::new(&material)?)?;
        let port = run(server, tls)?;
        let kubeconfig = directory.join("kubeconfig");
        let text = config(port, &authority.material().cert_pem).to_string();
        // The file holds tokens.
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&kubeconfig)?
            .write_all(text.as_bytes())?;
        Ok(Self { kubeconfig })
    }

    /// Path of the kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

fn config(port: u16, ca: &str) -> Value {
    let user = |name: &str| json!({"name": name, "user": {"token": format!("{name}-token")}});
    let context = |name: &str| json!({"name": name, "context": {"cluster": "suite", "user": name}});
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "suite", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "users": [user("admin"), user("ann")],
        "contexts": [context("admin"), context("ann")],
        "current-context": "admin",
    })
}

/// Serves on its own thread and returns the port.
fn run(server: ApiServer, tls: Arc<rustls::ServerConfig>) -> io::Result<u16> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("cluster".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let address = ([127, 0, 0, 1], 0).into();
            let listener = match Listener::tcp(address).await {
                Ok(listener) => listener,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            let port = listener.local_addr().map_or(0, |address| address.port());
            let _ = sender.send(Ok(port));
            tokio::spawn(end_pods(server.clone()));
            serve(listener, Some(tls), Served(server), std::future::pending()).await;
        });
    })?;
    receiver.recv().unwrap_or_else(|_| Err(io::Error::other("the cluster's thread ended")))
}

/// Deletes the pods that wait for their kubelet.
async fn end_pods(server: ApiServer) {
    loop {
        tokio::time::sleep(KUBELET_PERIOD).await;
        for pod in server.list_values("", "pods", None) {
            let meta = &pod["metadata"];
            let (Some(_), Some(namespace), Some(name)) = (
                meta["deletionTimestamp"].as_str(),
                meta["namespace"].as_str(),
                meta["name"].as_str(),
            ) else {
                continue;
            };
            let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0");
            let request = Request::builder()
                .method("DELETE")
                .uri(uri)
                .extension(Identity::admin())
                .body(Full::new(Bytes::new()))
                .expect("names of objects are URL-safe");
            // If another client deleted it first, the result is the same.
            let _ = server.clone().oneshot(request).await;
        }
    }
}

/// Adapts the server to hyper: its transport errors become broken connections.
#[derive(Clone)]
struct Served(ApiServer);

impl Service<Request<Incoming>> for Served {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            Ok(answer.await.unwrap_or_else(|error| {
                let text = Full::new(Bytes::from(error.to_string()));
                let body = text.map_err(|never: Infallible| match never {});
                let mut response = Response::new(body.boxed_unsync());
                *response.status_mut() = http::StatusCode::BAD_GATEWAY;
                response
            }))
        })
    }
}
