//! Requests and responses, in the envelope of microcluster.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    K8sd,
    certificates::{
        self, CERTIFICATES_APPROVE, CERTIFICATES_EXPIRY, CERTIFICATES_PLAN, CERTIFICATES_RUN,
    },
    locked,
    snapd::{Begun, ChangeStatus, RefreshReply},
};

/// Path that begins a refresh.
pub const REFRESH: &str = "/1.0/snap/refresh";
/// Path that returns the status of a refresh.
pub const REFRESH_STATUS: &str = "/1.0/snap/refresh-status";
/// The header with the node's token.
pub(super) const NODE_TOKEN: &str = "node-token";
/// The header with the cluster's token.
const CLUSTER_TOKEN: &str = "capi-auth-token";
const MAX_BODY_BYTES: usize = 64 * 1024;

/// A request that a k8sd received. Tokens are not recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// When it arrived.
    pub at: Timestamp,
    /// HTTP method.
    pub method: Method,
    /// The path.
    pub path: String,
    /// The body; `Null` if it is not JSON.
    pub body: Value,
    /// The status code of the answer.
    pub status: u16,
    /// Whether the connection was closed instead of that answer.
    pub lost: bool,
}

/// A refusal: status code and text.
pub(super) type Refusal = (StatusCode, String);

/// The `metadata` of a response, and whether the connection closes instead of it.
pub(super) type Outcome = Result<(Value, bool), Refusal>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RefreshRequest {
    #[serde(default)]
    channel: String,
    #[serde(default)]
    revision: String,
    #[serde(default)]
    local_path: String,
}

impl RefreshRequest {
    /// The only option that is set, such as `channel=1.33`.
    fn option(&self) -> Result<String, Refusal> {
        let options = [
            ("channel", &self.channel),
            ("revision", &self.revision),
            ("localPath", &self.local_path),
        ];
        let mut set = options.iter().filter(|(_, value)| !value.is_empty());
        let bad = |text: &str| (StatusCode::BAD_REQUEST, text.to_owned());
        let (name, value) = set.next().ok_or_else(|| bad("empty snap refresh target"))?;
        if set.next().is_some() {
            return Err(bad("only one of localPath, channel or revision can be specified"));
        }
        Ok(format!("{name}={value}"))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StatusRequest {
    #[serde(default)]
    change_id: String,
}

/// Answers one request; the second value is whether the connection closes instead.
pub(super) async fn handle(
    k8sd: &Arc<K8sd>,
    request: Request<Incoming>,
) -> (Response<Full<Bytes>>, bool) {
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).map_err(|error| error.to_string());
    let outcome = recorded(k8sd, parts, body).await;
    let lost = matches!(outcome, Ok((_, true)));
    (respond(outcome.map(|(metadata, _)| metadata)), lost)
}

/// Performs a request, and records it.
pub(super) async fn recorded(
    k8sd: &Arc<K8sd>,
    parts: Parts,
    body: Result<Bytes, String>,
) -> Outcome {
    let outcome = match &body {
        Ok(body) => perform(k8sd, &parts, body).await,
        Err(error) => Err((StatusCode::BAD_REQUEST, error.clone())),
    };
    let status = outcome.as_ref().map_or_else(|(code, _)| *code, |_| StatusCode::OK);
    let received = Received {
        at: k8sd.clock.now(),
        method: parts.method,
        path: parts.uri.path().to_owned(),
        body: body.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default(),
        status: status.as_u16(),
        lost: matches!(outcome, Ok((_, true))),
    };
    locked(&k8sd.received).push(received);
    outcome
}

async fn perform(k8sd: &Arc<K8sd>, parts: &Parts, body: &[u8]) -> Outcome {
    let path = parts.uri.path();
    let certificates =
        [CERTIFICATES_APPROVE, CERTIFICATES_EXPIRY, CERTIFICATES_PLAN, CERTIFICATES_RUN];
    if !matches!(path, REFRESH | REFRESH_STATUS) && !certificates.contains(&path) {
        return Err((StatusCode::NOT_FOUND, "not found".to_owned()));
    }
    if parts.method != Method::POST {
        return Err((StatusCode::NOT_IMPLEMENTED, "not implemented".to_owned()));
    }
    if path == CERTIFICATES_APPROVE {
        authorise(&parts.headers, CLUSTER_TOKEN, k8sd.certificates.requests().token())?;
    } else {
        let token = locked(&k8sd.token).clone();
        authorise(&parts.headers, NODE_TOKEN, &token)?;
    }
    match path {
        REFRESH => refresh(k8sd, body),
        REFRESH_STATUS => status(k8sd, body),
        _ => certificates::handle(k8sd, path, body).await,
    }
}

fn authorise(headers: &HeaderMap, name: &str, expected: &str) -> Result<(), Refusal> {
    let token = headers.get(name).map(header::HeaderValue::as_bytes).unwrap_or_default();
    let refuse = |text: String| Err((StatusCode::UNAUTHORIZED, text));
    if token.is_empty() {
        return refuse(format!("missing header {name:?}"));
    }
    if token == expected.as_bytes() { Ok(()) } else { refuse("invalid token".to_owned()) }
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("failed to parse request: {error}")))
}

fn refresh(k8sd: &Arc<K8sd>, body: &[u8]) -> Outcome {
    let option = read::<RefreshRequest>(body)?.option()?;
    let now = k8sd.clock.now();
    let (begun, script) = k8sd.snapd().refresh(&option, now);
    match begun {
        Begun::Failed(text) => {
            let text = format!("failed to refresh snap: {text}");
            Err((StatusCode::INTERNAL_SERVER_ERROR, text))
        }
        Begun::Id(id) => {
            if let Some(restart) = script.restart.filter(|_| !id.is_empty()) {
                k8sd.schedule(restart, now);
            }
            k8sd.begun.notify_one();
            Ok((json!({"changeId": id}), script.reply == RefreshReply::Lost))
        }
    }
}

fn status(k8sd: &K8sd, body: &[u8]) -> Outcome {
    let StatusRequest { change_id } = read(body)?;
    let now = k8sd.clock.now();
    let ChangeStatus { status, completed, error } = k8sd.snapd().status(&change_id, now);
    Ok((json!({"status": status, "completed": completed, "errorMessage": error}), false))
}

/// The envelope of a result or of a refusal.
fn respond(outcome: Result<Value, Refusal>) -> Response<Full<Bytes>> {
    let (code, envelope) = match outcome {
        Ok(metadata) => (
            StatusCode::OK,
            json!({
                "type": "sync",
                "status": "Success",
                "status_code": 200,
                "operation": "",
                "error_code": 0,
                "error": "",
                "metadata": metadata,
            }),
        ),
        Err((code, error)) => (
            code,
            json!({
                "type": "error",
                "status": "",
                "status_code": 0,
                "operation": "",
                "error_code": code.as_u16(),
                "error": error,
                "metadata": null,
            }),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(envelope.to_string())));
    *response.status_mut() = code;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
