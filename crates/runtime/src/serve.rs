//! HTTP over TLS over any stream.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Either};
use hyper::{
    body::Incoming,
    rt::{Executor, Read, Write},
    server::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::pki_types::CertificateDer;
use tokio::{sync::watch, task::JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service, ServiceExt as _, util::MapRequest};

use crate::net::{Listener, Stream};

const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may serve no request: longer than the 90 s for which Go's clients keep idle
/// connections (`net/http.DefaultTransport`), so that no request meets a closing connection. The head of an HTTP/1 request may take as long.
const IDLE_DEADLINE: Duration = Duration::from_secs(100);
/// How often a silent HTTP/2 peer is pinged, and how long it may take to respond.
const PING: (Duration, Duration) = (Duration::from_mins(1), Duration::from_secs(20));
/// How long a connection may continue after it was idle or the server stops: longer than the 10 s
/// that Cluster API gives a hook by default.
const DRAIN_DEADLINE: Duration = Duration::from_secs(11);
/// Maximum number of connections served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;
/// Maximum number of connections of one address; further ones are closed. One client, or the
/// clients of one node behind its address, cannot take the connections of all others.
const MAX_CONNECTIONS_PER_PEER: usize = 256;
/// Maximum number of requests that an HTTP/2 connection serves at once. Go's clients
/// open another connection for more.
const MAX_STREAMS: u32 = 16;
/// Maximum number of bytes of an HTTP/2 request that are received before the service reads them. A
/// request that waits leaves room for the others of its connection.
const STREAM_WINDOW_BYTES: u32 = 16 * 1024;

/// Maximum size of the receive buffer of an HTTP/1 connection, which also limits its headers.
const MAX_HTTP1_BUFFER_BYTES: usize = 64 * 1024;

/// The certificates that a client presented, its own first, in the extensions of each of its
/// requests. The client holds the key of its own. Which authorities TLS has accepted depends on the
/// server's configuration: with `tls::hook_server_config`, any.
#[derive(Clone, Debug)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

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
    let mut peers = Peers::default();
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
                    let Some(place) = peers.place(stream.peer()) else {
                        tracing::debug!(peer = ?stream.peer(), "closed a connection over the limit");
                        continue;
                    };
                    let connection =
                        connection(stream, acceptor.clone(), service.clone(), closing.clone());
                    connections.spawn(async move {
                        if let Err(error) = connection.await {
                            tracing::debug!(%error, "connection ended early");
                        }
                        drop(place);
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
    let shown = tls.peer_certificates().filter(|chain| !chain.is_empty());
    let owned = |der: &CertificateDer<'_>| der.clone().into_owned();
    let Some(peer) = shown.map(|chain| PeerCertificates(chain.iter().map(owned).collect())) else {
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
    let (requests, idle) = watch::channel(0_usize);
    let counted = tower::service_fn(move |request| {
        let active = Active::new(&requests);
        let answer = service.clone().oneshot(request);
        async move {
            let response = answer.await?;
            // A response of unknown length, such as a watch, may pause for longer than a client
            // may take to receive one of known length.
            let length = http_body::Body::size_hint(response.body()).exact();
            Ok::<_, Infallible>(response.map(|body| match length {
                Some(_) => Either::Left(body),
                None => Either::Right(body.map_frame(move |frame| {
                    let _ = &active;
                    frame
                })),
            }))
        }
    });
    let service = TowerToHyperService::new(counted);
    let close = async {
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = idle_for_too_long(idle) => {}
        }
    };
    if h2 {
        let mut builder = http2::Builder::new(Owned(ended));
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_connection_window_size(MAX_STREAMS * STREAM_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES);
        let connection = builder.serve_connection(io, service);
        return run(connection, http2::Connection::graceful_shutdown, close).await;
    }
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_DEADLINE)
        .max_buf_size(MAX_HTTP1_BUFFER_BYTES);
    // A stream that switches to another protocol belongs to the service.
    let connection = builder.serve_connection(io, service).with_upgrades();
    run(connection, http1::UpgradeableConnection::graceful_shutdown, close).await
}

/// Runs a connection, and shuts it down gracefully once `close` completes.
async fn run<C>(
    connection: C,
    shut_down: fn(Pin<&mut C>),
    close: impl Future<Output = ()>,
) -> Result<(), BoxError>
where
    C: Future<Output = hyper::Result<()>>,
{
    tokio::pin!(connection);
    tokio::select! {
        biased;
        outcome = connection.as_mut() => return Ok(outcome?),
        () = close => {}
    }
    shut_down(connection.as_mut());
    let outcome = tokio::time::timeout(DRAIN_DEADLINE, connection).await;
    Ok(outcome.map_err(|_| "it did not close in time")??)
}

/// A request that is served or whose response is being streamed.
struct Active(watch::Sender<usize>);

impl Active {
    fn new(requests: &watch::Sender<usize>) -> Self {
        requests.send_modify(|active| *active += 1);
        Self(requests.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.send_modify(|active| *active -= 1);
    }
}

/// Completes once no request was active for [`IDLE_DEADLINE`].
async fn idle_for_too_long(mut requests: watch::Receiver<usize>) {
    while requests.wait_for(|active| *active == 0).await.is_ok() {
        if tokio::time::timeout(IDLE_DEADLINE, requests.changed()).await.is_err() {
            break;
        }
    }
}

/// The open connections of each address.
#[derive(Default)]
struct Peers(BTreeMap<IpAddr, Weak<()>>);

impl Peers {
    /// Counts a connection for as long as the place is held; `None` if its address has too many.
    /// In-memory streams have no address, and no limit.
    fn place(&mut self, peer: Option<IpAddr>) -> Option<Arc<()>> {
        self.0.retain(|_, open| open.strong_count() > 0);
        let Some(peer) = peer else {
            return Some(Arc::default());
        };
        let open = self.0.entry(peer).or_default();
        if open.strong_count() >= MAX_CONNECTIONS_PER_PEER {
            return None;
        }
        let place = open.upgrade().unwrap_or_default();
        *open = Arc::downgrade(&place);
        Some(place)
    }
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
