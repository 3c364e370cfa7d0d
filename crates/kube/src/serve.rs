//! HTTP over TLS over any stream.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use crate::net::{Listener, Stream};

/// Drives a connection to its end, gracefully once the server closes.
macro_rules! drive {
    ($connection:expr, $closing:expr) => {{
        let connection = $connection;
        tokio::pin!(connection);
        tokio::select! {
            biased;
            outcome = connection.as_mut() => outcome,
            () = $closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }};
}

/// How long a handshake may take.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How many connections are served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;

/// Serves until `stop` completes, then ends open connections gracefully for at most 5 s.
///
/// With `tls` absent the streams carry plain HTTP. Dropping the future ends everything at once.
pub async fn serve<S, B>(
    mut listener: Listener,
    tls: Option<Arc<rustls::ServerConfig>>,
    service: S,
    stop: impl Future<Output = ()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let acceptor = tls.map(TlsAcceptor::from);
    let mut connections = JoinSet::new();
    let closing = CancellationToken::new();
    tokio::pin!(stop);
    loop {
        let room = connections.len() < MAX_CONNECTIONS;
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if room => match accepted {
                None => break,
                Some(Err(error)) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Some(Ok(stream)) => {
                    let connection =
                        connection(stream, acceptor.clone(), service.clone(), closing.clone());
                    connections.spawn(connection);
                }
            },
        }
    }
    closing.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_secs(5), drained)
        .await
        .is_err()
    {
        tracing::debug!("open connections were cut at shutdown");
    }
}

async fn connection<S, B>(
    stream: Stream,
    acceptor: Option<TlsAcceptor>,
    service: S,
    closing: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = TowerToHyperService::new(service);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30));
    builder.http2().timer(TokioTimer::new());
    let outcome: Result<(), BoxError> = match acceptor {
        None => {
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            drive!(connection, closing)
        }
        Some(acceptor) => {
            match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
                Err(_) => Err("the TLS handshake took too long".into()),
                Ok(Err(error)) => Err(error.into()),
                Ok(Ok(stream)) => {
                    let connection = builder.serve_connection(TokioIo::new(stream), service);
                    drive!(connection, closing)
                }
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended early");
    }
}
