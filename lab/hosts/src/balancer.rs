//! Access to the API servers of a real cluster: a balancer on the bridge that routes to ready API
//! servers, and a probe that records whether requests through it succeed.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Request;
use kube::Client;
use refit_runtime::{client::ClientStack, clock::instant, tls::Authority};
use tokio::net::{TcpListener, TcpStream};

use crate::{management::admin_config_at, net};

/// Port of the balancer.
pub const PORT: u16 = 6444;
/// Port of each API server.
const BACKEND_PORT: u16 = 6443;
/// Interval between readiness checks of an API server, and timeout of a check.
const CHECK: Duration = Duration::from_millis(200);
const DEADLINE: Duration = Duration::from_secs(1);
/// Number of consecutive failed checks before callers are disconnected.
const UNREADY_LOOKS: u32 = 3;
/// Interval between the probe requests through the balancer.
const PROBE: Duration = Duration::from_millis(200);

/// A balancer that runs until the runtime ends.
#[derive(Clone, Debug)]
pub struct Balancer(Arc<Vec<Backend>>);

#[derive(Debug)]
struct Backend {
    address: String,
    /// Number of consecutive failed checks.
    unready: AtomicU32,
}

impl Backend {
    fn is_ready(&self) -> bool {
        self.unready.load(Ordering::SeqCst) == 0
    }

    /// Waits until several consecutive checks have failed, as balancers commonly do.
    async fn until_unready(&self) {
        while self.unready.load(Ordering::SeqCst) < UNREADY_LOOKS {
            tokio::time::sleep(CHECK).await;
        }
    }
}

impl Balancer {
    /// Starts a balancer for the API servers at these addresses.
    pub async fn start(addresses: Vec<String>, authority: &Authority) -> anyhow::Result<Self> {
        let backends =
            addresses.into_iter().map(|address| Backend { address, unready: AtomicU32::new(1) });
        let balancer = Self(Arc::new(backends.collect()));
        let stack = ClientStack::production("refit-hosts-balancer").with_deadline(DEADLINE);
        for (at, backend) in balancer.0.iter().enumerate() {
            let url = format!("https://{}:{BACKEND_PORT}", backend.address);
            let config = admin_config_at(authority, &url).await?;
            tokio::spawn(balancer.clone().check(at, stack.clone(), config));
        }
        let listener = TcpListener::bind(format!("{}:{PORT}", net::SWITCH)).await?;
        tokio::spawn(balancer.clone().accept(listener));
        Ok(balancer)
    }

    /// Checks an API server repeatedly, each time on a new connection.
    async fn check(self, at: usize, stack: ClientStack, config: kube::Config) {
        let Some(backend) = self.0.get(at) else {
            return;
        };
        loop {
            let ready = match stack.client(&config) {
                Ok(client) => is_ready(&client).await,
                Err(_) => false,
            };
            let looks = backend.unready.load(Ordering::SeqCst);
            let looks = if ready { 0 } else { looks.saturating_add(1) };
            backend.unready.store(looks, Ordering::SeqCst);
            tokio::time::sleep(CHECK).await;
        }
    }

    async fn accept(self, listener: TcpListener) {
        let next = AtomicUsize::new(0);
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let turn = next.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(self.clone().pass(stream, turn));
        }
    }

    /// Connects a caller to a ready API server, and disconnects the caller when that server is no
    /// longer ready: an API server that shuts down or has lost its etcd would keep its callers
    /// waiting for most of a minute.
    async fn pass(self, mut caller: TcpStream, turn: usize) {
        for at in 0..self.0.len() {
            let Some(backend) = self.0.get((turn + at) % self.0.len()) else {
                continue;
            };
            if !backend.is_ready() {
                continue;
            }
            let address = format!("{}:{BACKEND_PORT}", backend.address);
            let dialled = tokio::time::timeout(DEADLINE, TcpStream::connect(address)).await;
            if let Ok(Ok(mut server)) = dialled {
                // Either end may close the connection; there is no caller to report an error to.
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut caller, &mut server) => {}
                    () = backend.until_unready() => {}
                }
                return;
            }
        }
    }
}

async fn is_ready(client: &Client) -> bool {
    let request = Request::get("/readyz").body(Vec::new());
    match request {
        Ok(request) => client.request_text(request).await.is_ok(),
        Err(_) => false,
    }
}

/// Continuous probe of an API.
#[derive(Clone, Debug, Default)]
pub struct Availability(Arc<Mutex<ProbeResults>>);

/// Results of the probe requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeResults {
    /// Number of successful requests.
    pub answered: u32,
    /// Number of failed requests.
    pub failed: u32,
    /// Longest time between two successful requests.
    pub longest_gap: Duration,
}

impl Availability {
    /// Probes until the runtime ends.
    pub fn watch(client: Client) -> Self {
        let availability = Self::default();
        tokio::spawn(availability.clone().probe(client));
        availability
    }

    /// Returns the results so far.
    pub fn results(&self) -> ProbeResults {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn probe(self, client: Client) {
        let mut last = instant();
        loop {
            let request = Request::get("/api/v1/namespaces/default/configmaps?limit=1");
            let answered = match request.body(Vec::new()) {
                Ok(request) => {
                    let asked = tokio::time::timeout(DEADLINE, client.request_text(request)).await;
                    matches!(asked, Ok(Ok(_)))
                }
                Err(_) => false,
            };
            {
                let mut results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if answered {
                    results.answered += 1;
                    results.longest_gap = results.longest_gap.max(last.elapsed());
                } else {
                    results.failed += 1;
                }
            }
            if answered {
                last = instant();
            }
            tokio::time::sleep(PROBE).await;
        }
    }
}
