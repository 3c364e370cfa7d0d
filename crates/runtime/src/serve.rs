//! HTTP over TLS over any stream.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    rt::{Executor, Read, Write},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service, util::MapRequest};

use crate::net::{Listener, Stream};

const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long the head of the next HTTP/1 request may take, and thus how long a connection may be
/// idle: longer than clients keep idle connections, so that no request meets a closing connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(100);
/// How often a silent HTTP/2 peer is pinged, and how long it may take to respond.
const PING: (Duration, Duration) = (Duration::from_mins(1), Duration::from_secs(20));
/// How long open connections may continue after the server stops: longer than the 10 s that Cluster
/// API gives a hook by default.
const DRAIN_DEADLINE: Duration = Duration::from_secs(11);
/// Maximum number of connections served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;

/// The verified client certificate of a connection, as DER, in the extensions of each of its
/// requests. TLS has checked it against the client CA.
#[derive(Clone, Debug)]
pub struct PeerCertificate(pub Arc<[u8]>);

/// Serves until `stop` completes, then ends open connections gracefully for at most 11 s.
///
/// Without `tls` the streams carry plain HTTP/1. Dropping the future ends everything at once.
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
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Some(Ok(stream)) => {
                    let connection =
                        connection(stream, acceptor.clone(), service.clone(), closing.clone());
                    connections.spawn(async move {
                        if let Err(error) = connection.await {
                            tracing::debug!(%error, "connection ended early");
                        }
                    });
                }
            },
        }
    }
    // Clients that dial from now on are refused at once instead of waiting for a response.
    drop(listener);
    closing.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_DEADLINE, drained).await.is_err() {
        tracing::debug!("closed open connections at shutdown");
    }
}

async fn connection<S, B>(
    stream: Stream,
    acceptor: Option<TlsAcceptor>,
    service: S,
    closing: CancellationToken,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let Some(acceptor) = acceptor else {
        return talk(TokioIo::new(stream), false, service, closing).await;
    };
    let handshake = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream));
    let stream = tokio::select! {
        biased;
        () = closing.cancelled() => return Ok(()),
        outcome = handshake => outcome.map_err(|_| "the TLS handshake took too long")??,
    };
    let tls = stream.get_ref().1;
    let h2 = tls.alpn_protocol() == Some(b"h2");
    let shown = tls.peer_certificates().and_then(<[_]>::first);
    let Some(peer) = shown.map(|der| PeerCertificate(Arc::from(der.as_ref()))) else {
        return talk(TokioIo::new(stream), h2, service, closing).await;
    };
    let service = MapRequest::new(service, move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request
    });
    talk(TokioIo::new(stream), h2, service, closing).await
}

/// Serves HTTP until the connection ends. The HTTP version is the one negotiated by TLS: detecting
/// it from the first bytes would have no deadline.
async fn talk<I, S, B>(
    io: I,
    h2: bool,
    service: S,
    closing: CancellationToken,
) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let ended = CancellationToken::new();
    let _guard = ended.clone().drop_guard();
    let mut builder = Builder::new(Owned(ended));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let builder = if h2 { builder.http2_only() } else { builder.http1_only() };
    let connection = builder.serve_connection(io, TowerToHyperService::new(service));
    tokio::pin!(connection);
    tokio::select! {
        biased;
        outcome = connection.as_mut() => return outcome,
        () = closing.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// Runs the streams of an HTTP/2 connection while the connection lives: dropping the server leaves
/// none behind.
#[derive(Clone)]
struct Owned(CancellationToken);

impl<F> Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let ended = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = ended.cancelled() => {}
                _ = stream => {}
            }
        });
    }
}
