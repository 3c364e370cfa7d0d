//! A k8sd in process: the API through which Canonical Kubernetes refreshes the snap of a node.
//!
//! | module | is for |
//! |---|---|
//! | `mod` | one node's k8sd: its connections, restarts and certificates |
//! | `api` | requests and responses |
//! | `certificates` | the refresh of a node's certificates |
//! | `snapd` | changes of the snap, and how tests script them |
//!
//! The endpoints for the snap and for certificates are served, as `docs/facts/k8sd.md` describes them;
//! those for join tokens and members are not.
//!
//! A test registers [`K8sd::connect`] as the port 2380 of the node's `k8sd-proxy` pod.

mod api;
mod certificates;
mod snapd;

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, KeyPair, SanType};
use refit_runtime::{
    Clock,
    tls::{KeyAndCert, ReloadableCert, TlsError, server_config},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::DuplexStream,
    sync::{Notify, watch},
};
use tokio_rustls::TlsAcceptor;

use certificates::Certificates;
use snapd::Snapd;

pub use api::{REFRESH, REFRESH_STATUS, Received};
pub use certificates::{
    CERTIFICATES_APPROVE, CERTIFICATES_EXPIRY, CERTIFICATES_PLAN, CERTIFICATES_RUN, SigningRequests,
};
pub use snapd::{ChangeEnd, RefreshReply, RefreshScript, Restart};

/// Capacity of a stream to a k8sd.
const STREAM_BYTES: usize = 64 * 1024;

/// The k8sd of one node.
pub struct K8sd {
    node: String,
    token: Mutex<String>,
    clock: Clock,
    certificate: Arc<ReloadableCert>,
    /// Certificate and key in PEM, as they are stored on the node.
    stored_certificate: Mutex<(String, String)>,
    tls: Arc<rustls::ServerConfig>,
    snapd: Mutex<Snapd>,
    certificates: Certificates,
    received: Mutex<Vec<Received>>,
    /// How connections are treated; a change to `Down` breaks the open ones.
    state: watch::Sender<Reach>,
    /// Notified of each change of the snap that begins.
    begun: Arc<Notify>,
}

/// What a node keeps while k8sd does not run. It contains a private key, but only one of a test.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct K8sdState {
    node: String,
    token: String,
    certificate: (String, String),
    certificates_expire: Timestamp,
    snapd: Snapd,
}

impl fmt::Debug for K8sdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("K8sdState").field("node", &self.node).finish_non_exhaustive()
    }
}

/// What a client that connects gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// The API.
    Up,
    /// A refused connection: the node's proxy pod does not run.
    Refused,
    /// A connection that ends at once: the proxy runs, k8sd does not.
    HangsUp,
    /// A connection on which nothing is answered.
    Silent,
}

impl fmt::Debug for K8sd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("K8sd").field("node", &self.node).finish_non_exhaustive()
    }
}

impl K8sd {
    /// The k8sd of a node, with a new certificate. Clients must present `token`.
    pub fn new(clock: Clock, node: &str, token: &str) -> Result<Arc<Self>, TlsError> {
        let KeyAndCert { cert_pem, key_pem } = self_signed(node)?;
        let state = K8sdState {
            node: node.to_owned(),
            token: token.to_owned(),
            certificate: (cert_pem, key_pem),
            certificates_expire: a_year_after(clock.now()),
            snapd: Snapd::default(),
        };
        Self::restore(clock, state, Arc::default())
    }

    /// The k8sd of a node on which this was stored. `begun` is notified of each change of the snap that
    /// begins. Must be called inside a tokio runtime if a restart of k8sd is under way or to come.
    pub fn restore(
        clock: Clock,
        state: K8sdState,
        begun: Arc<Notify>,
    ) -> Result<Arc<Self>, TlsError> {
        let (cert_pem, key_pem) = state.certificate.clone();
        let certificate = ReloadableCert::new(&KeyAndCert { cert_pem, key_pem })?;
        let restart = state.snapd.unfinished_restart(clock.now());
        let k8sd = Arc::new(Self {
            node: state.node,
            token: Mutex::new(state.token),
            clock,
            tls: server_config(certificate.clone())?,
            certificate,
            stored_certificate: Mutex::new(state.certificate),
            snapd: Mutex::new(state.snapd),
            certificates: Certificates::new(state.certificates_expire),
            received: Mutex::default(),
            state: watch::channel(Reach::Up).0,
            begun,
        });
        if let Some((restart, begin)) = restart {
            k8sd.schedule(restart, begin);
        }
        Ok(k8sd)
    }

    /// What the node stores.
    pub fn state(&self) -> K8sdState {
        K8sdState {
            node: self.node.clone(),
            token: locked(&self.token).clone(),
            certificate: locked(&self.stored_certificate).clone(),
            certificates_expire: self.certificates.expire(),
            snapd: self.snapd().clone(),
        }
    }

    /// Adds the behaviour of one more refresh. Without one, a refresh behaves as [`K8sd::usual`].
    pub fn script(&self, script: RefreshScript) {
        self.snapd().scripts.push_back(script);
    }

    /// How a refresh behaves for which there is no script.
    pub fn usual(&self) -> RefreshScript {
        self.snapd().usual.clone()
    }

    /// Sets how refreshes behave for which there is no script.
    pub fn set_usual(&self, usual: RefreshScript) {
        self.snapd().usual = usual;
    }

    /// Drops the scripts of refreshes to come.
    pub fn clear_scripts(&self) {
        self.snapd().scripts.clear();
    }

    /// What is installed: the option of the last refresh that succeeded, such as `channel=1.33`.
    pub fn installed(&self) -> Option<String> {
        let now = self.clock.now();
        self.snapd().installed(now)
    }

    /// Sets what is installed, in the same form.
    pub fn install(&self, option: &str) {
        self.snapd().baseline = Some(option.to_owned());
    }

    /// Whether a change runs now.
    pub fn is_busy(&self) -> bool {
        let now = self.clock.now();
        self.snapd().running(now).is_some()
    }

    /// The option of the last refresh that succeeded, and when it ended.
    pub fn refreshed(&self) -> Option<(String, Timestamp)> {
        let now = self.clock.now();
        self.snapd().succeeded(now)
    }

    /// When the change that runs now ends.
    pub fn change_ends(&self) -> Option<Timestamp> {
        let now = self.clock.now();
        self.snapd().running(now).map(snapd::Change::ends)
    }

    /// Begin and end of each change that was begun, in order.
    pub fn spans(&self) -> Vec<(Timestamp, Timestamp)> {
        self.snapd().spans()
    }

    /// Number of changes that were begun.
    pub fn changes(&self) -> usize {
        self.snapd().begun()
    }

    /// Forgets all changes, as snapd does a day after they end: their ids become unknown.
    pub fn forget_changes(&self) {
        self.snapd().pruned = true;
    }

    /// Makes the node a member of a cluster, in which workers and control plane nodes share signing
    /// requests. Without this it is a control plane node alone.
    pub fn join(&self, requests: Arc<SigningRequests>, is_worker: bool) {
        self.certificates.join(requests, is_worker);
    }

    /// From now on, issuing certificates takes this long.
    pub fn slow_certificates(&self, time: std::time::Duration) {
        self.certificates.take(time);
    }

    /// When the certificates of the node expire.
    pub fn certificates_expire(&self) -> jiff::Timestamp {
        self.certificates.expire()
    }

    /// All requests so far, also those that were rejected.
    pub fn received(&self) -> Vec<Received> {
        locked(&self.received).clone()
    }

    /// Number of requests so far to this path.
    pub fn count(&self, path: &str) -> usize {
        self.received().iter().filter(|request| request.path == path).count()
    }

    /// Changes the token that clients must present.
    pub fn set_token(&self, token: &str) {
        token.clone_into(&mut locked(&self.token));
    }

    /// Sets how connections are treated from now on; all but [`Reach::Up`] also breaks the open ones.
    pub fn set_reach(&self, reach: Reach) {
        self.state.send_replace(reach);
    }

    /// Presents a new certificate from the next connection on.
    pub fn replace_certificate(&self) -> Result<(), TlsError> {
        let new = self_signed(&self.node)?;
        self.certificate.reload(&new)?;
        *locked(&self.stored_certificate) = (new.cert_pem, new.key_pem);
        Ok(())
    }

    /// Makes a request without a connection, as one whose connection works: returns the result, or status code and
    /// text of a refusal.
    pub async fn request(
        self: &Arc<Self>,
        path: &str,
        node_token: &str,
        body: &Value,
    ) -> Result<Value, (u16, String)> {
        let request = Request::post(path).header(api::NODE_TOKEN, node_token).body(());
        let request = request.map_err(|error| (0, error.to_string()))?;
        let body = Ok(bytes::Bytes::from(body.to_string()));
        let outcome = api::recorded(self, request.into_parts().0, body).await;
        outcome.map(|(result, _)| result).map_err(|(code, text)| (code.as_u16(), text))
    }

    /// Opens a connection; `None` refuses it. Must be called inside a tokio runtime.
    pub fn connect(self: &Arc<Self>) -> Option<DuplexStream> {
        let reach = *self.state.borrow();
        let (near, far) = tokio::io::duplex(STREAM_BYTES);
        match reach {
            Reach::Refused => return None,
            Reach::HangsUp => drop(far),
            Reach::Up => drop(tokio::spawn(self.clone().serve(far))),
            Reach::Silent => {
                let mut state = self.state.subscribe();
                tokio::spawn(async move {
                    let _ = state.wait_for(|reach| *reach != Reach::Silent).await;
                    drop(far);
                });
            }
        }
        Some(near)
    }

    async fn serve(self: Arc<Self>, stream: DuplexStream) {
        let mut state = self.state.subscribe();
        let k8sd = self.clone();
        let connection = async move {
            let stream = TlsAcceptor::from(k8sd.tls.clone()).accept(stream).await.ok()?;
            let service = tower::service_fn(move |request| k8sd.clone().answer(request));
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                .await
                .ok()
        };
        tokio::select! {
            biased;
            _ = state.wait_for(|reach| *reach != Reach::Up) => {}
            _ = connection => {}
        }
    }

    /// Answers a request; an error closes the connection without a response.
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> io::Result<Response<Full<bytes::Bytes>>> {
        let (response, hang_up) = api::handle(&self, request).await;
        if hang_up {
            return Err(io::Error::other("the connection is closed instead of a response"));
        }
        Ok(response)
    }

    /// Restarts k8sd in the middle of a refresh that has begun at this time.
    fn schedule(self: &Arc<Self>, restart: Restart, begin: Timestamp) {
        let k8sd = self.clone();
        let (down, up) = restart.span(begin);
        if down <= self.clock.now() {
            self.set_reach(restart.reach);
        }
        tokio::spawn(async move {
            k8sd.clock.sleep_until(down).await;
            k8sd.set_reach(restart.reach);
            k8sd.clock.sleep_until(up).await;
            if restart.replaces_certificate {
                k8sd.replace_certificate().expect("the first certificate has the same name");
            }
            k8sd.set_reach(Reach::Up);
        });
    }

    fn snapd(&self) -> MutexGuard<'_, Snapd> {
        locked(&self.snapd)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn a_year_after(now: Timestamp) -> Timestamp {
    now.checked_add(SignedDuration::from_hours(365 * 24)).unwrap_or(Timestamp::MAX)
}

/// A certificate that no authority vouches for, as microcluster creates one for each member.
fn self_signed(node: &str) -> Result<KeyAndCert, TlsError> {
    let issue = |source| TlsError::Issue { name: node.to_owned(), source };
    let key = KeyPair::generate().map_err(issue)?;
    let mut params = CertificateParams::new(vec![node.to_owned()]).map_err(issue)?;
    params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
    let certificate = params.self_signed(&key).map_err(issue)?;
    Ok(KeyAndCert { cert_pem: certificate.pem(), key_pem: key.serialize_pem() })
}
