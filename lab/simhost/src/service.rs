//! An HTTP API that upgrades hosts without their agents. It stands for the API of those who own the
//! hosts, which `examples/provider-go` calls.
//!
//! | request | does |
//! |---|---|
//! | `GET /hosts/NODE` | returns `version`, `prepared` and `underway` |
//! | `PUT /hosts/NODE/prepared` `{"version"}` | downloads a version |
//! | `DELETE /hosts/NODE/prepared` | removes what was downloaded |
//! | `PUT /hosts/NODE/version` `{"version", "role"}` | starts an upgrade, which nothing stops |

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use jiff::{SignedDuration, Timestamp};
use refit_runtime::{Clock, net::Listener, serve};
use serde_json::{Value, json};
use tower::service_fn;

use crate::HostState;

/// How long a real host takes for an upgrade.
const UPGRADE: SignedDuration = SignedDuration::from_secs(90);
const MAX_BODY_BYTES: usize = 4096;

/// Changes the host of a node; returns false if the node has no host.
pub type Hosts = Box<dyn Fn(&str, &mut dyn FnMut(&mut HostState)) -> bool + Send + Sync>;
/// Why a request is not done, with the code of the response.
type Refusal = (StatusCode, String);

/// The API, for the hosts that `Hosts` finds.
pub struct HostService {
    hosts: Hosts,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<String, HostRecord>,
    refusal: Option<&'static str>,
    is_down: bool,
}

/// What the service has recorded of a host.
#[derive(Clone, Debug, Default)]
pub struct HostRecord {
    prepared: String,
    /// The version of the upgrade that runs, and when it ends.
    underway: Option<(String, Timestamp)>,
    /// All upgrades that were started: version and role.
    pub upgrades: Vec<(String, String)>,
}

impl fmt::Debug for HostService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostService").field("state", &self.state).finish_non_exhaustive()
    }
}

impl HostService {
    /// Creates the API.
    pub fn new(hosts: Hosts) -> Self {
        Self { hosts, state: Mutex::default() }
    }

    /// Refuses every change from now on, with this text; `None` ends that.
    pub fn refuse(&self, why: Option<&'static str>) {
        self.state().refusal = why;
    }

    /// While it is down, every response is an error of the server.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// Returns what is recorded of a host.
    pub fn record(&self, node: &str) -> HostRecord {
        self.state().records.get(node).cloned().unwrap_or_default()
    }

    /// Serves plain HTTP until the future is dropped.
    pub async fn serve(self: Arc<Self>, listener: Listener) {
        let service = service_fn(move |request: Request<Incoming>| {
            let service = self.clone();
            async move { Ok::<_, Infallible>(service.respond(request).await) }
        });
        serve::serve(listener, None, service, std::future::pending()).await;
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let outcome = match Limited::new(body, MAX_BODY_BYTES).collect().await {
            Ok(body) => {
                self.handle(&head.method, head.uri.path(), &body.to_bytes(), Clock::real().now())
            }
            Err(error) => Err((StatusCode::BAD_REQUEST, error.to_string())),
        };
        let (code, text) = outcome.map_or_else(|refusal| refusal, |text| (StatusCode::OK, text));
        let mut response = Response::new(text.into());
        *response.status_mut() = code;
        response
    }

    fn handle(
        &self,
        method: &Method,
        path: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<String, Refusal> {
        let unknown = || (StatusCode::NOT_FOUND, format!("there is no {path}"));
        let (node, subject) = match path.split('/').collect::<Vec<_>>()[..] {
            ["", "hosts", node] => (node, ""),
            ["", "hosts", node, subject] => (node, subject),
            _ => return Err(unknown()),
        };
        let mut state = self.state();
        if state.is_down {
            return Err((StatusCode::SERVICE_UNAVAILABLE, String::new()));
        }
        let refusal = state.refusal;
        let record = state.records.entry(node.to_owned()).or_default();
        let ended = record.underway.take_if(|(_, ends)| *ends <= now);
        if ended.is_some() {
            record.prepared.clear();
        }
        let host = self.host(node, ended.as_ref(), now).ok_or_else(unknown)?;
        if *method == Method::GET && subject.is_empty() {
            let underway = record.underway.as_ref().map_or("", |(version, _)| version);
            let (version, prepared) = (host.kubelet_version, &record.prepared);
            let shown = json!({"version": version, "prepared": prepared, "underway": underway});
            return Ok(shown.to_string());
        }
        if let Some(why) = refusal {
            return Err((StatusCode::CONFLICT, why.to_owned()));
        }
        let text = |field: &str| text(body, field);
        match (method, subject) {
            (&Method::PUT, "prepared") => record.prepared = text("version")?,
            (&Method::DELETE, "prepared") => record.prepared.clear(),
            // A repeated request changes nothing.
            (&Method::PUT, "version") if record.underway.is_some() => {}
            (&Method::PUT, "version") => {
                let (version, role) = (text("version")?, text("role")?);
                let takes = UPGRADE / i32::try_from(host.hurry).unwrap_or(1).max(1);
                record.upgrades.push((version.clone(), role));
                record.underway = Some((version, now + takes));
            }
            _ => return Err(unknown()),
        }
        Ok(String::new())
    }

    /// Returns the host of a node as it is once an upgrade that has ended is carried out.
    fn host(
        &self,
        node: &str,
        ended: Option<&(String, Timestamp)>,
        now: Timestamp,
    ) -> Option<HostState> {
        let mut found = None;
        (self.hosts)(node, &mut |host| {
            if let Some((version, _)) = ended {
                host.upgrade(version, now);
            }
            found = Some(host.clone());
        });
        found
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a field of a JSON object, which must be a text and not empty.
fn text(body: &[u8], field: &str) -> Result<String, Refusal> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = body[field].as_str().filter(|text| !text.is_empty());
    let missing = || (StatusCode::BAD_REQUEST, format!("the body has no text {field:?}"));
    text.map(str::to_owned).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> HostService {
        let host = HostState::new("n-1", false, "v1.34.2", Timestamp::UNIX_EPOCH);
        let host = Mutex::new(host);
        HostService::new(Box::new(move |node, act| {
            let mut host = host.lock().unwrap();
            let is_own = host.node == node;
            if is_own {
                act(&mut host);
            }
            is_own
        }))
    }

    fn get(service: &HostService, now: Timestamp) -> Value {
        let text = service.handle(&Method::GET, "/hosts/n-1", b"", now).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_service_prepares_and_upgrades_a_host() {
        let (service, start) = (service(), Timestamp::UNIX_EPOCH);
        let put = |path: &str, body: &str| {
            service.handle(&Method::PUT, path, body.as_bytes(), start).unwrap();
        };
        let shown = |version: &str, prepared: &str, underway: &str| json!({"version": version, "prepared": prepared, "underway": underway});
        put("/hosts/n-1/prepared", r#"{"version": "v1.35.0"}"#);
        assert_eq!(get(&service, start), shown("v1.34.2", "v1.35.0", ""));
        let upgrade = r#"{"version": "v1.35.0", "role": "Worker"}"#;
        put("/hosts/n-1/version", upgrade);
        put("/hosts/n-1/version", upgrade);
        assert_eq!(get(&service, start), shown("v1.34.2", "v1.35.0", "v1.35.0"));
        assert_eq!(get(&service, start + UPGRADE), shown("v1.35.0", "", ""));
        let upgrades = service.record("n-1").upgrades;
        assert_eq!(upgrades, [("v1.35.0".to_owned(), "Worker".to_owned())]);
    }

    #[test]
    fn the_service_refuses_what_it_cannot_do() {
        let service = service();
        let code = |method: &Method, path: &str, body: &str| {
            service.handle(method, path, body.as_bytes(), Timestamp::UNIX_EPOCH).unwrap_err().0
        };
        assert_eq!(code(&Method::GET, "/hosts/n-2", ""), StatusCode::NOT_FOUND);
        assert_eq!(code(&Method::GET, "/", ""), StatusCode::NOT_FOUND);
        assert_eq!(code(&Method::POST, "/hosts/n-1/version", ""), StatusCode::NOT_FOUND);
        assert_eq!(code(&Method::PUT, "/hosts/n-1/version", "{"), StatusCode::BAD_REQUEST);
        service.refuse(Some("frozen"));
        assert_eq!(code(&Method::DELETE, "/hosts/n-1/prepared", ""), StatusCode::CONFLICT);
        service.set_down(true);
        assert_eq!(code(&Method::GET, "/hosts/n-1", ""), StatusCode::SERVICE_UNAVAILABLE);
    }
}
