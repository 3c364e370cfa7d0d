//! What servers of JSON have in common: how they are served, and their troubles.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Collected, StreamBody};
use hyper::body::{Frame, Incoming};
use jiff::Timestamp;
use lab_apiserver::ClockFn;
use refit_runtime::{net::Listener, serve};
use serde_json::Value;

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It answers with this status of HTTP, and does nothing.
    Status(u16),
    /// It answers only after this.
    Slow(Duration),
    /// It does what is asked, and the connection breaks before the answer is complete.
    Lost,
}

/// The troubles of a server, and what was asked of it.
#[derive(Clone, Debug, Default)]
pub struct Troubles(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    once: VecDeque<Trouble>,
    lasting: Option<Trouble>,
    asked: Vec<String>,
}

impl Troubles {
    /// From now on, each request meets this trouble, or none.
    pub fn set(&self, trouble: Option<Trouble>) {
        lock(&self.0).lasting = trouble;
    }

    /// The next requests meet these troubles, each one.
    pub fn queue(&self, troubles: impl IntoIterator<Item = Trouble>) {
        lock(&self.0).once.extend(troubles);
    }

    /// The requests so far, `METHOD PATH?QUERY` as they were sent.
    pub fn asked(&self) -> Vec<String> {
        lock(&self.0).asked.clone()
    }

    fn meet(&self, request: String) -> Option<Trouble> {
        let mut state = lock(&self.0);
        state.asked.push(request);
        state.once.pop_front().or(state.lasting)
    }
}

/// A request, received in whole.
#[derive(Debug)]
pub struct Asked {
    /// The method.
    pub method: Method,
    /// The path.
    pub path: String,
    /// Names and values of the query, decoded.
    pub query: Vec<(String, String)>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// When it was received.
    pub now: Timestamp,
}

impl Asked {
    /// The value of a part of the query, empty if it is missing.
    pub fn parameter(&self, name: &str) -> &str {
        let mut found = self.query.iter().filter(|(known, _)| known == name);
        found.next().map_or("", |(_, value)| value)
    }

    /// The value of a header, empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A server of JSON.
pub trait Answers: Clone + Send + Sync + 'static {
    /// Its troubles.
    fn troubles(&self) -> &Troubles;
    /// Answers a request.
    fn answer(&self, asked: &Asked) -> (StatusCode, Value);
    /// The answer of a server with [`Trouble::Status`].
    fn failed(&self, status: StatusCode) -> Value;
}

/// Serves without end. `clock` is read for each request.
pub async fn serve(
    server: impl Answers,
    listener: Listener,
    tls: Option<Arc<rustls::ServerConfig>>,
    clock: ClockFn,
) {
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let (server, clock) = (server.clone(), clock.clone());
        async move { Ok::<_, Infallible>(respond(server, request, &clock).await) }
    });
    serve::serve(listener, tls, service, std::future::pending()).await;
}

type Chunk = Result<Frame<Bytes>, io::Error>;

async fn respond(
    server: impl Answers,
    request: Request<Incoming>,
    clock: &ClockFn,
) -> Response<StreamBody<stream::Iter<std::vec::IntoIter<Chunk>>>> {
    let now = clock();
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default();
    let asked = Asked {
        path: parts.uri.path().to_owned(),
        query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
        method: parts.method,
        headers: parts.headers,
        body,
        now: Timestamp::from_second(now.as_second()).unwrap_or(now),
    };
    let trouble = server.troubles().meet(format!("{} {}", asked.method, parts.uri));
    if let Some(Trouble::Slow(duration)) = trouble {
        tokio::time::sleep(duration).await;
    }
    let (status, body) = match trouble {
        Some(Trouble::Status(code)) => {
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            (status, server.failed(status))
        }
        Some(Trouble::Slow(_) | Trouble::Lost) | None => server.answer(&asked),
    };
    let body = Frame::data(Bytes::from(body.to_string()));
    let chunks: Vec<Chunk> = match trouble {
        Some(Trouble::Lost) => vec![Err(io::ErrorKind::ConnectionReset.into())],
        Some(Trouble::Status(_) | Trouble::Slow(_)) | None => vec![Ok(body)],
    };
    let mut response = Response::new(StreamBody::new(stream::iter(chunks)));
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Locks, also after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
