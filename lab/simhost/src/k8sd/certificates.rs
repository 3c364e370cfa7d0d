//! The refresh of a node's certificates. A worker's certificates are signed after a control plane
//! node has approved the requests for them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    K8sd,
    api::{Outcome, read},
};

/// Path that returns when the certificates expire.
pub const CERTIFICATES_EXPIRY: &str = "/1.0/x/capi/certificates-expiry";
/// Path that begins a refresh of certificates.
pub const CERTIFICATES_PLAN: &str = "/1.0/x/capi/refresh-certs/plan";
/// Path that issues the certificates, on a worker once they are approved.
pub const CERTIFICATES_RUN: &str = "/1.0/x/capi/refresh-certs/run";
/// Path of a control plane node that approves the requests of a worker.
pub const CERTIFICATES_APPROVE: &str = "/1.0/x/capi/refresh-certs/approve";
/// The certificates that a worker requests.
const REQUESTED: [&str; 3] = ["kubelet-serving", "kubelet-client", "kube-proxy-client"];

/// The certificate signing requests of one cluster by seed, and whether they are approved.
#[derive(Debug)]
pub struct SigningRequests {
    approved: watch::Sender<BTreeMap<u64, bool>>,
    token: String,
}

impl SigningRequests {
    /// None yet; a client presents `token` to approve one.
    pub fn new(token: &str) -> Arc<Self> {
        Arc::new(Self { approved: watch::Sender::default(), token: token.to_owned() })
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    fn approve(&self, seed: u64) -> Result<(), String> {
        let mut problem = None;
        self.approved.send_if_modified(|requests| match requests.get_mut(&seed) {
            Some(approved) if !*approved => {
                *approved = true;
                true
            }
            Some(_) => {
                problem = Some("already approved");
                false
            }
            None => {
                problem = Some("not found");
                false
            }
        });
        let name = format!("k8sd-{seed}-worker-{}", REQUESTED[0]);
        problem.map_or(Ok(()), |problem| Err(format!("CSR {name} {problem}")))
    }

    async fn signed(&self, seed: u64) {
        self.approved.send_modify(|requests| {
            requests.entry(seed).or_default();
        });
        let signed = |requests: &BTreeMap<u64, bool>| requests.get(&seed) == Some(&true);
        // The sender is part of this value, so the channel stays open.
        let _ = self.approved.subscribe().wait_for(signed).await;
    }
}

/// The certificates of one node.
#[derive(Debug)]
pub(super) struct Certificates {
    expire: Mutex<Timestamp>,
    plans: Mutex<u64>,
    /// How long a node works on its certificates.
    takes: Mutex<Duration>,
    cluster: Mutex<Cluster>,
}

#[derive(Clone, Debug)]
struct Cluster {
    requests: Arc<SigningRequests>,
    is_worker: bool,
}

impl Certificates {
    /// Certificates of a control plane node.
    pub(super) fn new(expire: Timestamp) -> Self {
        let cluster = Cluster { requests: SigningRequests::new(""), is_worker: false };
        Self {
            expire: Mutex::new(expire),
            plans: Mutex::default(),
            takes: Mutex::default(),
            cluster: Mutex::new(cluster),
        }
    }

    pub(super) fn join(&self, requests: Arc<SigningRequests>, is_worker: bool) {
        *locked(&self.cluster) = Cluster { requests, is_worker };
    }

    pub(super) fn requests(&self) -> Arc<SigningRequests> {
        locked(&self.cluster).requests.clone()
    }

    pub(super) fn take(&self, time: Duration) {
        *locked(&self.takes) = time;
    }

    pub(super) fn expire(&self) -> Timestamp {
        *locked(&self.expire)
    }

    fn is_worker(&self) -> bool {
        locked(&self.cluster).is_worker
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RunRequest {
    seed: u64,
    expiration_seconds: i64,
    #[serde(default, rename = "extra-sans")]
    _extra_sans: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApproveRequest {
    seed: u64,
}

/// Answers a request to one of the paths of this module.
pub(super) async fn handle(k8sd: &K8sd, path: &str, body: &[u8]) -> Outcome {
    let certificates = &k8sd.certificates;
    let metadata = match path {
        CERTIFICATES_EXPIRY => {
            let seconds = Timestamp::from_second(certificates.expire().as_second());
            json!({"expiry-date": seconds.unwrap_or_default().to_string()})
        }
        CERTIFICATES_PLAN => plan(k8sd),
        CERTIFICATES_RUN => {
            let RunRequest { seed, expiration_seconds, .. } = read(body)?;
            if certificates.is_worker() {
                certificates.requests().signed(seed).await;
            }
            let takes = *locked(&certificates.takes);
            tokio::time::sleep(takes).await;
            let expires =
                k8sd.clock.now().checked_add(SignedDuration::from_secs(expiration_seconds));
            let expires = expires.unwrap_or(Timestamp::MAX);
            *locked(&certificates.expire) = expires;
            // A worker answers as that of an older k8sd.
            let answered =
                if certificates.is_worker() { expiration_seconds } else { expires.as_second() };
            json!({"expiration-seconds": answered})
        }
        _ => {
            let ApproveRequest { seed } = read(body)?;
            certificates.requests().approve(seed).map_err(|problem| {
                let text = format!("failed to approve worker node CSR: {problem}");
                (StatusCode::INTERNAL_SERVER_ERROR, text)
            })?;
            json!({})
        }
    };
    Ok((metadata, false))
}

/// A new seed; its key on the wire is a slip of the real API.
fn plan(k8sd: &K8sd) -> Value {
    let seed = {
        let mut plans = locked(&k8sd.certificates.plans);
        *plans += 1;
        *plans
    };
    // Each node has its own seeds, as they are random in the real API.
    let seed = k8sd.node.bytes().fold(seed, |sum, byte| (sum * 31 + u64::from(byte)) % 1_000_003);
    let name = |what: &&str| format!("k8sd-{seed}-worker-{what}");
    let names: Option<Vec<String>> =
        k8sd.certificates.is_worker().then(|| REQUESTED.iter().map(name).collect());
    json!({"seconds": seed, "certificate-signing-requests": names})
}
