//! A runtime extension of a test's own, over HTTPS: for what ours must never say.

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

/// What it answers: the path and the request, to the answer.
type Answer = Arc<dyn Fn(&str, Value) -> Value + Send + Sync>;

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Extension {
    /// Its port on 127.0.0.1.
    pub port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Extension {
    /// Serves what `answer` says.
    pub async fn start(
        cert: &KeyAndCert,
        answer: impl Fn(&str, Value) -> Value + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let acceptor = TlsAcceptor::from(server_config(ReloadableCert::new(cert)?, None)?);
        let answer: Answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(move |request| reply(answer.clone(), request));
                    // Whoever hangs up is free to.
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
    answer: Answer,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let mut response = Response::new(Full::default());
    match body.collect().await {
        Ok(body) => {
            let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
            let said = answer(parts.uri.path(), body).to_string();
            *response.body_mut() = Full::from(said);
        }
        Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}
