//! The rules for every call of a process: its gate, its deadline, its user agent.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, header};
use kube::client::Body;
use tower::{BoxError, Layer, Service, ServiceExt as _};

use super::answer::{Answer, Room};
use crate::{
    gate::{Effect, Fate, Gate, never},
    lease::Leadership,
};

#[derive(Clone)]
pub(super) struct DisciplineLayer {
    pub(super) gate: Arc<dyn Gate>,
    pub(super) agent: HeaderValue,
    pub(super) deadline: Duration,
    pub(super) read_deadline: Option<Duration>,
    pub(super) max_answer: Option<usize>,
    pub(super) fence: Option<Leadership>,
}

impl<S> Layer<S> for DisciplineLayer {
    type Service = Discipline<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Discipline { inner, rules: self.clone() }
    }
}

/// Applies deadline, user agent, gate and fence to each request.
#[derive(Clone)]
pub(super) struct Discipline<S> {
    inner: S,
    rules: DisciplineLayer,
}

impl<S, B> Service<Request<Body>> for Discipline<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<Answer<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        let DisciplineLayer { gate, agent, deadline, read_deadline, max_answer, fence } =
            self.rules.clone();
        request.headers_mut().insert(header::USER_AGENT, agent);
        let effect = effect_of(&request);
        let deadline = match &effect {
            Some(_) => deadline,
            None => read_deadline.unwrap_or(deadline),
        };
        let watch = is_watch(&request);
        Box::pin(async move {
            let entry = match &effect {
                Some(effect) => gate.before(effect),
                None => gate.fate(),
            };
            if entry == Fate::Dead {
                return never().await;
            }
            // A process may be paused here and resume after it has lost its leadership.
            if effect.is_some()
                && let Some(stall) = gate.stall()
            {
                stall.await;
            }
            let pass = match &fence {
                Some(leadership) if effect.is_some() => Some(leadership.pass()?),
                _ => None,
            };
            let deadline = pass.as_ref().map_or(deadline, |pass| deadline.min(pass.within));
            // A watch has no end, but its start has a deadline.
            let outcome = match tokio::time::timeout(deadline, inner.oneshot(request)).await {
                Ok(outcome) => outcome.map_err(Into::into),
                Err(_) => Err(late("no answer from the API server within", deadline)),
            };
            drop(pass);
            let exit = match &effect {
                Some(effect) => gate.after(effect),
                None => gate.fate(),
            };
            if exit == Fate::Dead {
                return never().await;
            }
            let stall = (!watch).then_some(deadline);
            let room = max_answer.map(|bytes| Room::new(bytes, watch));
            outcome.map(|response| response.map(|inner| Answer::new(inner, gate, stall, room)))
        })
    }
}

pub(super) fn late(what: &str, deadline: Duration) -> BoxError {
    let text = format!("{what} {} s", deadline.as_secs_f64());
    io::Error::new(io::ErrorKind::TimedOut, text).into()
}

/// Whether a request begins a watch.
pub(super) fn is_watch(request: &Request<Body>) -> bool {
    asks(request, &["watch=true", "watch=1"])
}

fn asks(request: &Request<Body>, pairs: &[&str]) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pairs.contains(&pair))
}

/// The effect of a request on the cluster; `None` for reads and dry runs.
fn effect_of(request: &Request<Body>) -> Option<Effect> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    (!reads && !asks(request, &["dryRun=All"])).then(|| Effect::Api {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, uri: &str) -> Request<Body> {
        Request::builder().method(method).uri(uri).body(Body::empty()).unwrap()
    }

    #[test]
    fn reads_and_dry_runs_are_no_effects() {
        assert_eq!(effect_of(&request(Method::GET, "/api/v1/nodes")), None);
        let dry = request(Method::POST, "/api/v1/nodes?fieldManager=x&dryRun=All");
        assert_eq!(effect_of(&dry), None);
    }

    #[test]
    fn an_effect_names_method_and_path() {
        let effect = effect_of(&request(Method::PATCH, "/api/v1/nodes/n?force=true")).unwrap();
        assert_eq!(effect.to_string(), "api PATCH /api/v1/nodes/n");
    }

    #[test]
    fn a_watch_is_known_by_its_query() {
        assert!(is_watch(&request(Method::GET, "/x?a=b&watch=true")));
        assert!(!is_watch(&request(Method::GET, "/x?labelSelector=watch")));
        assert!(!is_watch(&request(Method::GET, "/watch")));
    }
}
