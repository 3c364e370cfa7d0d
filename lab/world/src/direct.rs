//! Requests to an embedded API server from inside its process, bypassing TLS and kill switches.
//!
//! Used only by the simulated environment and the loader. Components that are measured or may be
//! killed use the client stack.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use lab_apiserver::{ApiServer, auth::Identity};
use serde_json::Value;
use tower::Service as _;

/// User agent of the simulated environment.
pub(crate) const ENVIRONMENT: &str = "sandbox-env";
/// User agent of the simulated user, who loads manifests and changes versions.
pub(crate) const USER: &str = "sandbox-user";

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// HTTP method.
    pub(crate) method: Method,
    /// Path with its query.
    pub(crate) path: String,
    /// Body, `Null` for none.
    pub(crate) body: Value,
}

impl Call {
    /// Creates an object in a collection.
    pub(crate) fn create(collection: impl Into<String>, body: Value) -> Self {
        Self { method: Method::POST, path: collection.into(), body }
    }

    /// Merges a patch into an object.
    pub(crate) fn merge(path: impl Into<String>, body: Value) -> Self {
        Self { method: Method::PATCH, path: path.into(), body }
    }

    /// Deletes an object at once.
    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self {
            method: Method::DELETE,
            path: path.into(),
            body: serde_json::json!({"gracePeriodSeconds": 0}),
        }
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The server responded with an error.
    #[error("{method} {path}: {code} {message}")]
    Status {
        /// Method of the request.
        method: Method,
        /// Path of the request.
        path: String,
        /// HTTP status code.
        code: u16,
        /// Error message of the server.
        message: String,
        /// Field and message of each cause that the server named.
        causes: Vec<(String, String)>,
    },
    /// The server did not respond.
    #[error("{method} {path}: {source}")]
    Transport {
        /// Method of the request.
        method: Method,
        /// Path of the request.
        path: String,
        /// The underlying error.
        source: std::io::Error,
    },
}

impl DirectError {
    /// The HTTP status code, if the server responded.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Transport { .. } => None,
        }
    }
}

/// Sends requests under one user agent.
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    server: ApiServer,
    agent: &'static str,
}

impl Direct {
    pub(crate) fn new(server: ApiServer, agent: &'static str) -> Self {
        Self { server, agent }
    }

    /// Sends a request and returns the object in the response.
    pub(crate) async fn send(&self, call: Call) -> Result<Value, DirectError> {
        let Call { method, path, body } = call;
        let content_type = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let bytes = if body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(serde_json::to_vec(&body).expect("a JSON value has no keys but strings"))
        };
        let request = Request::builder()
            .method(method.clone())
            .uri(&path)
            .header(header::USER_AGENT, self.agent)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::ACCEPT, "application/json")
            .body(Full::new(bytes))
            .expect("paths are made of object names, which are URL-safe");
        let mut request = request;
        // Callers in this process have full access.
        request.extensions_mut().insert(Identity::admin());
        let transport =
            |source| DirectError::Transport { method: method.clone(), path: path.clone(), source };
        let answer = self.server.clone().call(request).await.map_err(transport)?;
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.map_err(transport)?.to_bytes();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if code < 300 {
            return Ok(value);
        }
        let message = value["message"]
            .as_str()
            .map_or_else(|| String::from_utf8_lossy(&bytes).into_owned(), str::to_owned);
        Err(DirectError::Status { method, path, code, message, causes: causes(&value) })
    }
}

/// Field and message of each cause that a `metav1.Status` names.
fn causes(status: &Value) -> Vec<(String, String)> {
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
    let causes = status["details"]["causes"].as_array();
    causes
        .into_iter()
        .flatten()
        .map(|cause| (text(cause, "field"), text(cause, "message")))
        .collect()
}

/// Options of an API server in a sandbox: simulated time, seeded names.
pub(crate) fn server_options(clock: refit_runtime::Clock, seed: u64) -> lab_apiserver::Options {
    let now = Arc::new(move || -> Timestamp { clock.now() });
    lab_apiserver::Options { seed, ..lab_apiserver::Options::new(now) }
}
