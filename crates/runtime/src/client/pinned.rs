//! One POST of JSON by TLS over a given stream, to a server that is recognised by the fingerprint of
//! its certificate.

use std::{fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, error::Elapsed, timeout_at},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::BoxError;

use super::{ClientStack, post::chain};
use crate::{
    clock::instant,
    gate::{Effect, Fate, Gate, never},
    lease::{Leadership, NotLeader, Pass},
    tls::{CertificateChanged, Fingerprint, Pin, TlsError, pin::pinned_config},
};

/// How long a handshake and its POST may take together, unless the caller decides otherwise.
pub const PINNED_DEADLINE: Duration = Duration::from_mins(1);
/// Maximum size of the body of a response.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Why TLS with a pinned server could not be established. Nothing was sent to the server.
#[derive(Debug, thiserror::Error)]
pub enum PinnedOpenError {
    /// The server presents another certificate than the pinned one.
    #[error("{host}: {changed}")]
    Changed {
        /// The server.
        host: String,
        /// Both fingerprints.
        changed: CertificateChanged,
    },
    /// The handshake failed.
    #[error("TLS handshake with {host} failed: {}", chain(source))]
    Handshake {
        /// The server.
        host: String,
        /// The underlying error.
        source: io::Error,
    },
    /// The handshake took too long.
    #[error("no TLS handshake with {host} within {seconds} s")]
    Timeout {
        /// The server.
        host: String,
        /// The deadline in seconds.
        seconds: u64,
    },
    /// The server has no valid name.
    #[error("invalid server name {0:?}, expected HOST:PORT")]
    ServerName(String),
    /// TLS cannot be configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why a POST to a pinned server got no response. The server may have handled it all the same.
#[derive(Debug, thiserror::Error)]
pub enum PinnedPostError {
    /// This replica does not lead: nothing was sent.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The request is invalid: nothing was sent.
    #[error("invalid request POST {path}: {source}")]
    Request {
        /// The path.
        path: String,
        /// The underlying error.
        source: http::Error,
    },
    /// No response, or only a part of it, arrived.
    #[error("no answer from {host} to POST {path}: {}", chain(source.as_ref()))]
    Transport {
        /// The server.
        host: String,
        /// The path.
        path: String,
        /// The underlying error.
        source: BoxError,
    },
    /// The response took too long.
    #[error("no answer from {host} to POST {path} within {seconds} s")]
    Timeout {
        /// The server.
        host: String,
        /// The path.
        path: String,
        /// The deadline in seconds.
        seconds: u64,
    },
    /// The response is too large.
    #[error("{host} answers POST {path} with more than {} MiB", MAX_ANSWER_BYTES >> 20)]
    TooLarge {
        /// The server.
        host: String,
        /// The path.
        path: String,
    },
}

/// A POST of JSON.
#[derive(Clone)]
pub struct JsonPost {
    /// The path, which begins with a slash.
    pub path: String,
    /// Additional headers. Their values are secrets: they are never shown.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, as JSON.
    pub body: Vec<u8>,
    /// Whether the request changes the server: it then passes the process's gate as an effect, and
    /// only the leader may send it.
    pub changes: bool,
}

impl fmt::Debug for JsonPost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&HeaderName> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("JsonPost")
            .field("path", &self.path)
            .field("headers", &names)
            .field("changes", &self.changes)
            .finish_non_exhaustive()
    }
}

/// The response to a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedAnswer {
    /// HTTP status code.
    pub status: u16,
    /// The whole body, at most 1 MiB.
    pub body: Bytes,
    /// Fingerprint of the server's certificate.
    pub fingerprint: Fingerprint,
}

/// A TLS connection for one POST to a server whose certificate matches its pin.
///
/// Nothing but the handshake is sent before [`PinnedConnection::post`], so that a caller can store the
/// fingerprint of a first use before it sends a secret.
pub struct PinnedConnection<S> {
    stream: TlsStream<S>,
    host: String,
    fingerprint: Fingerprint,
    gate: Arc<dyn Gate>,
    fence: Option<Leadership>,
    deadline: Duration,
    until: Instant,
}

impl<S> fmt::Debug for PinnedConnection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedConnection")
            .field("host", &self.host)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl<S> PinnedConnection<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    /// Performs the TLS handshake over `stream`. `host` is the server's `HOST:PORT`, for the `Host`
    /// header. `deadline` covers the handshake and the POST.
    pub async fn open(
        stack: &ClientStack,
        stream: S,
        host: &str,
        pin: Pin,
        deadline: Duration,
    ) -> Result<Self, PinnedOpenError> {
        if stack.gate.fate() == Fate::Dead {
            return never().await;
        }
        let until = instant() + deadline;
        let (config, verifier) = pinned_config(pin)?;
        let name = host.rsplit_once(':').map(|(name, _)| name.trim_matches(['[', ']']));
        let name = name.and_then(|name| ServerName::try_from(name.to_owned()).ok());
        let name = name.ok_or_else(|| PinnedOpenError::ServerName(host.to_owned()))?;
        let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let outcome = timeout_at(until, handshake).await;
        if stack.gate.fate() == Fate::Dead {
            return never().await;
        }
        let host = host.to_owned();
        let stream = match outcome {
            Ok(Ok(stream)) => stream,
            Ok(Err(source)) => {
                return Err(match CertificateChanged::cause_of(&source) {
                    Some(changed) => PinnedOpenError::Changed { host, changed },
                    None => PinnedOpenError::Handshake { host, source },
                });
            }
            Err(_) => {
                return Err(PinnedOpenError::Timeout { host, seconds: deadline.as_secs() });
            }
        };
        let fingerprint = verifier.seen().ok_or_else(|| PinnedOpenError::Handshake {
            host: host.clone(),
            source: io::Error::other("the server presented no certificate"),
        })?;
        let (gate, fence) = (stack.gate.clone(), stack.fence.clone());
        Ok(Self { stream, host, fingerprint, gate, fence, deadline, until })
    }

    /// Fingerprint of the server's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Sends the request and returns the whole response.
    pub async fn post(self, post: JsonPost) -> Result<PinnedAnswer, PinnedPostError>
    where
        S: 'static,
    {
        let Self { stream, host, fingerprint, gate, fence, deadline, until } = self;
        let JsonPost { path, headers, body, changes } = post;
        let effect = changes
            .then(|| Effect::Api { method: "POST".to_owned(), path: format!("{host}{path}") });
        let entry = effect.as_ref().map_or_else(|| gate.fate(), |effect| gate.before(effect));
        if entry == Fate::Dead {
            return never().await;
        }
        if effect.is_some()
            && let Some(stall) = gate.stall()
        {
            stall.await;
        }
        let fence = fence.filter(|_| changes);
        let pass = fence.as_ref().map(Leadership::pass).transpose()?;
        let outcome = match request(&host, &path, headers, body) {
            Ok(request) => {
                let exchange = Box::pin(exchange(stream, request));
                while_leading(exchange, fence, pass, until).await
            }
            Err(source) => return Err(PinnedPostError::Request { path, source }),
        };
        let exit = effect.as_ref().map_or_else(|| gate.fate(), |effect| gate.after(effect));
        if exit == Fate::Dead {
            return never().await;
        }
        match outcome {
            Ok(Ok((status, body))) => Ok(PinnedAnswer { status, body, fingerprint }),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                Err(PinnedPostError::TooLarge { host, path })
            }
            Ok(Err(source)) => Err(PinnedPostError::Transport { host, path, source }),
            Err(_) => Err(PinnedPostError::Timeout { host, path, seconds: deadline.as_secs() }),
        }
    }
}

/// Awaits an exchange until a deadline. It is dropped when the Lease that it began with ends, unless that was renewed
/// meanwhile: a server may take longer than a Lease.
async fn while_leading<T>(
    mut exchange: impl Future<Output = T> + Unpin,
    fence: Option<Leadership>,
    mut pass: Option<Pass>,
    deadline: Instant,
) -> Result<T, Elapsed> {
    loop {
        let lease_ends = pass.as_ref().and_then(|pass| instant().checked_add(pass.within));
        let until = lease_ends.map_or(deadline, |ends| deadline.min(ends));
        let late = match timeout_at(until, &mut exchange).await {
            Ok(outcome) => return Ok(outcome),
            Err(late) => late,
        };
        let renewed = fence.as_ref().filter(|_| until < deadline).map(Leadership::pass);
        let Some(Ok(renewed)) = renewed else { return Err(late) };
        pass = Some(renewed);
    }
}

fn request(
    host: &str,
    path: &str,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Vec<u8>,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    for (name, mut value) in headers {
        value.set_sensitive(true);
        request.headers_mut().insert(name, value);
    }
    Ok(request)
}

/// Sends one request and reads the whole response. The connection runs in this future, so dropping it
/// closes the connection.
async fn exchange<S>(
    stream: TlsStream<S>,
    request: Request<Full<Bytes>>,
) -> Result<(u16, Bytes), BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await?;
        Ok::<_, BoxError>((status, body.to_bytes()))
    };
    tokio::pin!(answer);
    tokio::select! {
        biased;
        outcome = &mut answer => outcome,
        // A server that closes the connection may have sent the response before.
        _ = connection => answer.await,
    }
}
