//! A stand-in for Alertmanager: its API for silences, with their matchers as they were posted. It hides no alerts: the real
//! program does, in the test bed. The world of Cluster API uses it, too.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::body::Incoming;
use jiff::Timestamp;
use refit_runtime::{Clock, net::Listener, serve};
use serde::Deserialize;
use serde_json::{Value, json};

/// Its host name on OpenShift.
pub const HOST: &str = "alertmanager-main.openshift-monitoring.svc.cluster.local";
/// Its port there.
pub const PORT: u16 = 9094;

/// What it knows.
#[derive(Clone, Debug, Default)]
pub struct Alertmanager(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By their IDs.
    silences: BTreeMap<String, Posted>,
    is_down: bool,
    is_read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Posted {
    #[serde(default, skip_serializing)]
    id: Option<String>,
    matchers: Vec<Value>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    created_by: String,
    comment: String,
}

impl Alertmanager {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether it answers with HTTP status 503.
    pub fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    /// Sets whether it refuses to create and end silences.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.lock().is_read_only = is_read_only;
    }

    /// Ends the silences whose comment contains a text, as an operator does; returns how many.
    pub fn expire(&self, text: &str, now: Timestamp) -> usize {
        let mut state = self.lock();
        let found = state
            .silences
            .values_mut()
            .filter(|silence| silence.ends_at > now && silence.comment.contains(text));
        found.map(|silence| silence.ends_at = now).count()
    }

    /// The silences, by their IDs, with the state that they have now.
    pub fn silences(&self, now: Timestamp) -> Vec<Value> {
        let state = self.lock();
        state.silences.iter().map(|(id, silence)| silence.shown(id, now)).collect()
    }

    /// Serves it, without end.
    pub async fn serve(
        self,
        listener: Listener,
        tls: Option<Arc<rustls::ServerConfig>>,
        clock: Clock,
    ) {
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let (state, now) = (self.clone(), clock.now_seconds());
            async move { Ok::<_, Infallible>(state.answer(request, now).await) }
        });
        serve::serve(listener, tls, service, std::future::pending()).await;
    }

    async fn answer(&self, request: Request<Incoming>, now: Timestamp) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default();
        let (status, answer) =
            self.lock().answer(&parts.method, parts.uri.path(), query, &body, now);
        let mut response = Response::new(Full::from(answer.to_string()));
        *response.status_mut() = status;
        response
    }
}

impl State {
    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        body: &[u8],
        now: Timestamp,
    ) -> (StatusCode, Value) {
        if self.is_down {
            return (StatusCode::SERVICE_UNAVAILABLE, json!("shutting down"));
        }
        if self.is_read_only && method != Method::GET {
            return (StatusCode::FORBIDDEN, json!("silences are read-only"));
        }
        let one = path.strip_prefix("/api/v2/silence/");
        match (method, one) {
            (&Method::GET, Some(id)) => match self.silences.get(id) {
                Some(silence) => (StatusCode::OK, silence.shown(id, now)),
                None => (StatusCode::NOT_FOUND, Value::Null),
            },
            (&Method::DELETE, Some(id)) => match self.silences.get_mut(id) {
                Some(silence) if silence.ends_at > now => {
                    silence.ends_at = now;
                    (StatusCode::OK, Value::Null)
                }
                Some(_) => (StatusCode::INTERNAL_SERVER_ERROR, json!("silence already expired")),
                None => (StatusCode::NOT_FOUND, Value::Null),
            },
            (&Method::GET, None) if path == "/api/v2/silences" => {
                let filters: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
                    .filter_map(|(_, filter)| {
                        let (name, value) = filter.split_once('=')?;
                        Some((name.to_owned(), serde_json::from_str(value).ok()?))
                    })
                    .collect();
                let found = self.silences.iter().filter(|(_, one)| one.has(&filters));
                (StatusCode::OK, found.map(|(id, silence)| silence.shown(id, now)).collect())
            }
            (&Method::POST, None) if path == "/api/v2/silences" => self.post(body, now),
            _ => (StatusCode::NOT_FOUND, Value::Null),
        }
    }

    fn post(&mut self, body: &[u8], now: Timestamp) -> (StatusCode, Value) {
        let posted: Posted = match serde_json::from_slice(body) {
            Ok(posted) => posted,
            Err(error) => return (StatusCode::BAD_REQUEST, json!(error.to_string())),
        };
        if posted.ends_at <= now || posted.matchers.is_empty() {
            return (StatusCode::BAD_REQUEST, json!("end time can't be in the past"));
        }
        let number = self.silences.len() + 1;
        let id = match &posted.id {
            Some(id) => {
                let Some(known) = self.silences.get_mut(id) else {
                    return (StatusCode::NOT_FOUND, json!("silence not found"));
                };
                let is_same = known.matchers == posted.matchers
                    && known.starts_at == posted.starts_at
                    && known.ends_at > now;
                if !is_same {
                    known.ends_at = known.ends_at.min(now);
                }
                if is_same { id.clone() } else { number.to_string() }
            }
            None => number.to_string(),
        };
        self.silences.insert(id.clone(), Posted { id: None, ..posted });
        (StatusCode::OK, json!({"silenceID": id}))
    }
}

impl Posted {
    fn has(&self, filters: &[(String, String)]) -> bool {
        filters.iter().all(|(name, value)| {
            let is = |matcher: &Value| matcher["name"] == **name && matcher["value"] == **value;
            self.matchers.iter().any(is)
        })
    }

    fn shown(&self, id: &str, now: Timestamp) -> Value {
        let state = if self.ends_at <= now {
            "expired"
        } else if self.starts_at > now {
            "pending"
        } else {
            "active"
        };
        json!({
            "id": id, "status": {"state": state}, "updatedAt": now, "matchers": self.matchers,
            "startsAt": self.starts_at, "endsAt": self.ends_at, "createdBy": self.created_by,
            "comment": self.comment,
        })
    }
}
