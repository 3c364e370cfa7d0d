//! The API of those who run the hosts, which `examples/provider-go` calls: it upgrades simulated hosts without
//! their agents.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use lab_simhost::HostState;
use lab_testbed::Bed;
use refit_runtime::Clock;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How long an upgrade takes.
const UPGRADE: SignedDuration = SignedDuration::from_secs(4);

/// The service, for the hosts of one namespace.
pub(super) struct HostService<'a> {
    bed: &'a Bed,
    namespace: String,
    listener: TcpListener,
    hosts: RefCell<BTreeMap<String, HostRecord>>,
    refusal: Cell<Option<&'static str>>,
    is_down: Cell<bool>,
}

/// What the service knows of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct HostRecord {
    prepared: String,
    /// The version of the upgrade that runs, and when it ends.
    underway: Option<(String, Timestamp)>,
    /// All upgrades that were started: version and role.
    pub(super) upgrades: Vec<(String, String)>,
}

impl<'a> HostService<'a> {
    pub(super) async fn bind(bed: &'a Bed, namespace: &str) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(address).await.context("failed to listen on 127.0.0.1")?;
        Ok(Self {
            bed,
            namespace: namespace.to_owned(),
            listener,
            hosts: RefCell::default(),
            refusal: Cell::default(),
            is_down: Cell::default(),
        })
    }

    pub(super) fn url(&self) -> anyhow::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// Refuses every change from now on, with this text.
    pub(super) fn refuse(&self, why: &'static str) {
        self.refusal.set(Some(why));
    }

    /// Refuses nothing any more.
    pub(super) fn accept(&self) {
        self.refusal.set(None);
    }

    /// Answers nothing but an error of the server.
    pub(super) fn set_down(&self, is_down: bool) {
        self.is_down.set(is_down);
    }

    /// Returns what is known of a host.
    pub(super) fn host(&self, node: &str) -> HostRecord {
        self.hosts.borrow().get(node).cloned().unwrap_or_default()
    }

    /// Serves until the future is dropped.
    pub(super) async fn serve(&self) -> anyhow::Error {
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => connections.push(async move {
                        let answer = service_fn(|request| self.answer(request));
                        let server = hyper::server::conn::http1::Builder::new();
                        let _ = server.serve_connection(TokioIo::new(stream), answer).await;
                    }),
                    Err(error) => return error.into(),
                },
                Some(()) = connections.next() => {}
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> anyhow::Result<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (code, text) = match self.handle(&head.method, head.uri.path(), &body) {
            Ok(text) => (StatusCode::OK, text),
            Err(refused) => refused,
        };
        Ok(Response::builder().status(code).body(text.into())?)
    }

    fn handle(
        &self,
        method: &Method,
        path: &str,
        body: &Value,
    ) -> Result<String, (StatusCode, String)> {
        if self.is_down.get() {
            return Err((StatusCode::SERVICE_UNAVAILABLE, String::new()));
        }
        let unknown = || (StatusCode::NOT_FOUND, format!("there is no {path}"));
        let (node, what) = match path.split('/').collect::<Vec<_>>()[..] {
            ["", "hosts", node] => (node, ""),
            ["", "hosts", node, what] => (node, what),
            _ => return Err(unknown()),
        };
        let machine = self.machine(node).ok_or_else(unknown)?;
        let now = Clock::real().now();
        let mut hosts = self.hosts.borrow_mut();
        let host = hosts.entry(node.to_owned()).or_default();
        if let Some((version, _)) = host.underway.take_if(|(_, ends)| *ends <= now) {
            self.change(&machine, |host| upgrade(host, &version, now)).ok_or_else(unknown)?;
            host.prepared.clear();
        }
        if *method == Method::GET {
            let version = self.change(&machine, |host| host.kubelet_version.clone());
            let underway = host.underway.as_ref().map_or("", |(version, _)| version);
            let state = json!({
                "version": version.ok_or_else(unknown)?,
                "prepared": host.prepared,
                "underway": underway,
            });
            return Ok(state.to_string());
        }
        if let Some(why) = self.refusal.get() {
            return Err((StatusCode::CONFLICT, why.to_owned()));
        }
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        match (method, what) {
            (&Method::PUT, "prepared") => host.prepared = text("version"),
            (&Method::DELETE, "prepared") => host.prepared.clear(),
            (&Method::PUT, "version") if host.underway.is_none() => {
                host.upgrades.push((text("version"), text("role")));
                host.underway = Some((text("version"), now + UPGRADE));
            }
            (&Method::PUT, "version") => {}
            _ => return Err(unknown()),
        }
        Ok(String::new())
    }

    fn machine(&self, node: &str) -> Option<String> {
        let mut machines = self.bed.hosts().machines(&self.namespace).into_iter();
        machines.find(|machine| self.change(machine, |host| host.node == node) == Some(true))
    }

    fn change<T>(&self, machine: &str, act: impl FnOnce(&mut HostState) -> T) -> Option<T> {
        self.bed.hosts().with(&self.namespace, machine, act).ok()
    }
}

/// Brings a host to a version, as if another operating system image had been booted.
fn upgrade(host: &mut HostState, version: &str, now: Timestamp) {
    let upgraded = HostState::new(&host.node, host.control_plane, version, now);
    host.root.extend(upgraded.root);
    host.kubelet_version = upgraded.kubelet_version;
    host.kubelet_up_at = now;
}
