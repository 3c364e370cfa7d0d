//! Stands between a process and the API server, and cuts the process off before or after one of its writes.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use anyhow::Context as _;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::{Client, client::Body};
use refit_runtime::{
    client::ClientStack,
    tls::{ReloadableCert, server_config},
};
use tokio::{net::TcpListener, sync::Notify, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::{
    certs::{Certs, NAMES},
    lock,
};

/// Resources that each process writes on its own account.
const OF_NO_CONSEQUENCE: [&str; 4] = ["/events", "/leases", "accessreviews", "/tokenreviews"];
/// Headers of a request that are passed on.
const HEADERS: [header::HeaderName; 2] = [header::ACCEPT, header::CONTENT_TYPE];

/// Where a process is cut off, counted in writes from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API server never sees this write.
    Before(usize),
    /// The API server has carried it out, and the process never sees the answer.
    After(usize),
}

/// A proxy in front of an API server that runs until it is dropped.
pub struct FaultProxy {
    /// URL of the proxy.
    pub url: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    client: Client,
    fault: Mutex<Option<Fault>>,
    /// The writes since the last [`FaultProxy::connect`].
    writes: Mutex<Vec<String>>,
    is_cut_off: AtomicBool,
    struck: Notify,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FaultProxy {
    /// Passes requests of any client on to an API server, as the user of this configuration.
    pub async fn start(certs: &Certs, config: &kube::Config) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((NAMES[1], 0)).await?;
        let url = format!("https://{}:{}", NAMES[1], listener.local_addr()?.port());
        let acceptor = TlsAcceptor::from(server_config(ReloadableCert::new(&certs.server()?)?)?);
        let state = Arc::new(State {
            client: ClientStack::production("refit-testbed-fault").client(config)?,
            fault: Mutex::default(),
            writes: Mutex::default(),
            is_cut_off: AtomicBool::default(),
            struck: Notify::new(),
        });
        let served = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), served.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| pass(state.clone(), request));
                    // An error of the service closes the connection: the client sees no answer.
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { url, state, task })
    }

    /// Connects the process, and counts its writes from here on.
    pub fn connect(&self, fault: Option<Fault>) {
        *lock(&self.state.fault) = fault;
        lock(&self.state.writes).clear();
        self.state.is_cut_off.store(false, Ordering::SeqCst);
    }

    /// Waits until the process is cut off.
    pub async fn struck(&self) {
        let struck = self.state.struck.notified();
        if !self.state.is_cut_off.load(Ordering::SeqCst) {
            struck.await;
        }
    }

    /// The writes since the last [`FaultProxy::connect`], as method and path.
    pub fn writes(&self) -> Vec<String> {
        lock(&self.state.writes).clone()
    }
}

impl State {
    fn cut_off(&self) -> anyhow::Error {
        self.is_cut_off.store(true, Ordering::SeqCst);
        self.struck.notify_waiters();
        anyhow::anyhow!("the process is cut off")
    }

    /// Counts a write; where the process is cut off because of it.
    fn count(&self, write: String) -> Option<Fault> {
        let mut writes = lock(&self.writes);
        writes.push(write);
        let number = writes.len();
        lock(&self.fault).filter(|fault| match fault {
            Fault::Before(at) | Fault::After(at) => *at == number,
        })
    }
}

async fn pass(state: Arc<State>, request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
    anyhow::ensure!(!state.is_cut_off.load(Ordering::SeqCst), "the process is cut off");
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let is_write = ![Method::GET, Method::HEAD].contains(&head.method)
        && !OF_NO_CONSEQUENCE.iter().any(|part| head.uri.path().contains(part));
    let fault = is_write.then(|| state.count(format!("{} {}", head.method, head.uri.path())));
    let fault = fault.flatten();
    if let Some(Fault::Before(_)) = fault {
        return Err(state.cut_off());
    }
    let mut onward = Request::builder().method(&head.method).uri(path);
    for name in HEADERS {
        if let Some(value) = head.headers.get(&name) {
            onward = onward.header(name, value);
        }
    }
    let onward = onward.body(Body::from(body.to_vec()))?;
    let response = state.client.send(onward).await.context("the API server does not answer")?;
    if let Some(Fault::After(_)) = fault {
        return Err(state.cut_off());
    }
    let (mut head, body) = response.into_parts();
    for name in [header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::CONTENT_ENCODING] {
        head.headers.remove(name);
    }
    Ok(Response::from_parts(head, body))
}
