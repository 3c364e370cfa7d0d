//! What the process serves over plain HTTP: probes and metrics.

use std::{convert::Infallible, future::pending, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use refit_runtime::{
    liveness::{Heartbeat, Liveness},
    net::Listener,
    serve,
};
use tokio_util::sync::CancellationToken;

use crate::{context::Context, metrics::scrape};

/// The text format of Prometheus, which all of its versions read.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const METRICS: &str = "/metrics";

type Answer = Response<Full<Bytes>>;

/// Serves the probes until the future is dropped.
pub(crate) async fn probes(
    listener: Listener,
    ctx: Arc<Context>,
    heartbeat: Arc<Heartbeat>,
    stop: CancellationToken,
) {
    let probes = tower::service_fn(move |request: Request<_>| {
        let _: &Request<hyper::body::Incoming> = &request;
        let ready = is_ready(&ctx, &stop);
        async move {
            Ok::<_, Infallible>(match (request.uri().path(), ready) {
                ("/healthz" | "/livez", _) | ("/readyz", Ok(())) => {
                    answer(StatusCode::OK, PLAIN, "ok")
                }
                ("/readyz", Err(why)) => answer(StatusCode::SERVICE_UNAVAILABLE, PLAIN, why),
                _ => unknown("/healthz and /readyz"),
            })
        }
    });
    serve::serve(listener, None, Liveness { probes, heartbeat }, pending()).await;
}

/// Ready once the first lists of all watches are complete, until the process shuts down.
fn is_ready(ctx: &Context, stop: &CancellationToken) -> Result<(), &'static str> {
    if stop.is_cancelled() {
        return Err("the process is shutting down");
    }
    let shared = &ctx.shared;
    if shared.upgrades.is_ready() && shared.pools.is_ready() && shared.nodes.is_ready() {
        Ok(())
    } else {
        Err("the watches are not synced yet")
    }
}

/// Serves the metrics that steps set until the future is dropped.
pub(crate) async fn metrics(listener: Listener, ctx: Arc<Context>) {
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        let text = ctx.shared.metrics.render();
        async move {
            Ok::<_, Infallible>(match request.uri().path() {
                METRICS => answer(StatusCode::OK, TEXT_FORMAT, text),
                _ => unknown(METRICS),
            })
        }
    });
    serve::serve(listener, None, service, pending()).await;
}

/// Serves the metrics that are read from the UpgradeConfig until the future is dropped.
pub(crate) async fn custom_metrics(listener: Listener, ctx: Arc<Context>) {
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        let ctx = ctx.clone();
        async move {
            Ok::<_, Infallible>(match request.uri().path() {
                METRICS => match scrape(&ctx).await {
                    Ok(text) => answer(StatusCode::OK, TEXT_FORMAT, text),
                    Err(why) => answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, why),
                },
                _ => unknown(METRICS),
            })
        }
    });
    serve::serve(listener, None, service, pending()).await;
}

fn unknown(served: &str) -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN, format!("unknown path, expected {served}"))
}

fn answer(status: StatusCode, format: &'static str, text: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format));
    response
}
