//! Whether the main task still runs. The probes are served by a task of their own, so without this
//! they would answer for a process that does nothing.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    task,
    time::Duration,
};

use bytes::Bytes;
use futures::future::{Either, Ready, ready};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tower::Service;

use crate::clock::instant;

/// How often the main task reports.
const BEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How long the main task may be silent. No turn of it takes seconds.
const SILENT_AFTER: Duration = Duration::from_mins(1);

/// When the main task last had a turn.
#[derive(Debug)]
pub struct Heartbeat(Mutex<Instant>);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Mutex::new(instant()))
    }
}

impl Heartbeat {
    /// Reports regularly, as part of the main task, until the future is dropped.
    pub async fn keep(&self) {
        loop {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = instant();
            tokio::time::sleep(BEAT_INTERVAL).await;
        }
    }

    fn is_silent(&self) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        instant().saturating_duration_since(last) > SILENT_AFTER
    }
}

/// Probes that report a silent main task under `/healthz` and `/livez`.
#[derive(Clone, Debug)]
pub struct Liveness<S> {
    /// Answers everything else.
    pub probes: S,
    /// What the main task reports to.
    pub heartbeat: Arc<Heartbeat>,
}

impl<S, B> Service<Request<B>> for Liveness<S>
where
    S: Service<Request<B>, Response = Response<Full<Bytes>>, Error = Infallible>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Either<Ready<Result<Self::Response, Infallible>>, S::Future>;

    fn poll_ready(
        &mut self,
        context: &mut task::Context<'_>,
    ) -> task::Poll<Result<(), Infallible>> {
        self.probes.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let asked = matches!(request.uri().path(), "/healthz" | "/livez");
        if !asked || !self.heartbeat.is_silent() {
            return Either::Right(self.probes.call(request));
        }
        let text = format!("the main task has had no turn for {} s", SILENT_AFTER.as_secs());
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        Either::Left(ready(Ok(response)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(heartbeat: &Arc<Heartbeat>, path: &str) -> u16 {
        let probes =
            tower::service_fn(|_: Request<()>| ready(Ok(Response::new(Full::from("served")))));
        let mut live = Liveness { probes, heartbeat: heartbeat.clone() };
        let request = Request::get(path).body(()).unwrap();
        live.call(request).await.unwrap().status().as_u16()
    }

    #[tokio::test(start_paused = true)]
    async fn a_main_task_without_a_turn_is_not_healthy() {
        let heartbeat = Arc::new(Heartbeat::default());
        let an_hour = Duration::from_hours(1);
        let _ = tokio::time::timeout(an_hour, heartbeat.keep()).await;
        assert_eq!(status(&heartbeat, "/healthz").await, 200);
        tokio::time::sleep(SILENT_AFTER + BEAT_INTERVAL).await;
        assert_eq!(status(&heartbeat, "/healthz").await, 503);
        assert_eq!(status(&heartbeat, "/livez").await, 503);
        assert_eq!(status(&heartbeat, "/readyz").await, 200, "its own answer");
        let _ = tokio::time::timeout(Duration::from_secs(1), heartbeat.keep()).await;
        assert_eq!(status(&heartbeat, "/healthz").await, 200);
    }
}
