//! A test runtime extension over HTTPS, for responses that Refit must never give.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use refit_runtime::tls::{KeyAndCert, ReloadableCert, server_config};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Maps the path and the request to the response.
type Handler = Arc<dyn Fn(&str, Value) -> Value + Send + Sync>;

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Extension {
    /// Port on 127.0.0.1.
    pub port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Extension {
    /// Serves the responses of `handler`.
    pub async fn start(
        cert: &KeyAndCert,
        handler: impl Fn(&str, Value) -> Value + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let acceptor = TlsAcceptor::from(server_config(ReloadableCert::new(cert)?)?);
        let handler: Handler = Arc::new(handler);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(move |request| reply(handler.clone(), request));
                    // A client may close the connection at any time.
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { port, task })
    }
}

async fn reply(
    handler: Handler,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let mut response = Response::new(Full::default());
    match body.collect().await {
        Ok(body) => {
            let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
            let response_body = handler(parts.uri.path(), body).to_string();
            *response.body_mut() = Full::from(response_body);
        }
        Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}
