//! The one client stack: every Kubernetes client of every process is built here.
//!
//! No retry by itself, a deadline on every call but watches, each write past the process's
//! [`Gate`] (`design/rust.md 0.3, 0.4`).

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, Uri, header};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt as _};

use crate::{
    gate::{Effect, Fate, Gate, never},
    net::{Dialer, Stream},
};

/// How long a call other than a watch may take.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// How long a connection may take to be made.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Why a client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration names credentials that cannot be used.
    #[error("the client configuration for {url} cannot be used: {source}")]
    Config {
        /// URL of the API server.
        url: String,
        /// What is wrong.
        source: Box<kube::Error>,
    },
    /// The user agent is not a header value.
    #[error("{0:?} cannot be a user agent")]
    UserAgent(String),
}

/// Builds clients for one process.
#[derive(Clone)]
pub struct ClientStack {
    dialer: Dialer,
    gate: Arc<dyn Gate>,
    user_agent: String,
    deadline: Duration,
}

impl std::fmt::Debug for ClientStack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientStack")
            .field("user_agent", &self.user_agent)
            .finish_non_exhaustive()
    }
}

impl ClientStack {
    /// A stack for a process of this name (`refit-controller/0.1.0`).
    pub fn new(dialer: Dialer, gate: Arc<dyn Gate>, user_agent: impl Into<String>) -> Self {
        Self {
            dialer,
            gate,
            user_agent: user_agent.into(),
            deadline: CALL_DEADLINE,
        }
    }

    /// A stack over TCP with nothing in its way.
    pub fn production(user_agent: impl Into<String>) -> Self {
        Self::new(Dialer::Tcp, Arc::new(crate::gate::Open), user_agent)
    }

    /// The same stack with another deadline for calls other than watches.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How this process opens streams.
    pub fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// The process's gate.
    pub fn gate(&self) -> &Arc<dyn Gate> {
        &self.gate
    }

    /// A client for the cluster that `config` names.
    pub fn client(&self, config: &Config) -> Result<Client, ClientError> {
        let wrong = |source: kube::Error| ClientError::Config {
            url: config.cluster_url.to_string(),
            source: Box::new(source),
        };
        let agent = HeaderValue::from_str(&self.user_agent)
            .map_err(|_| ClientError::UserAgent(self.user_agent.clone()))?;
        let tls = config.rustls_client_config().map_err(wrong)?;
        let connector = Connector {
            dialer: self.dialer.clone(),
            tls: Arc::new(tls),
            server_name: config.tls_server_name.clone(),
        };
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer().map_err(wrong)?)
            .layer(config.extra_headers_layer().map_err(wrong)?)
            .layer(DisciplineLayer {
                gate: self.gate.clone(),
                agent,
                deadline: self.deadline,
            })
            .map_err(BoxError::from)
            .service(http);
        Ok(Client::new(service, config.default_namespace.clone()))
    }
}

#[derive(Clone)]
struct DisciplineLayer {
    gate: Arc<dyn Gate>,
    agent: HeaderValue,
    deadline: Duration,
}

impl<S> Layer<S> for DisciplineLayer {
    type Service = Discipline<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Discipline {
            inner,
            rules: self.clone(),
        }
    }
}

/// Applies deadline, user agent and gate to each request.
#[derive(Clone)]
struct Discipline<S> {
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
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        let DisciplineLayer {
            gate,
            agent,
            deadline,
        } = self.rules.clone();
        request.headers_mut().insert(header::USER_AGENT, agent);
        let effect = effect_of(&request);
        let watch = request.uri().query().is_some_and(is_watch);
        Box::pin(async move {
            let entry = match &effect {
                Some(effect) => gate.before(effect),
                None => gate.fate(),
            };
            if entry == Fate::Dead {
                return never().await;
            }
            let call = inner.oneshot(request);
            let outcome = if watch {
                call.await.map_err(Into::into)
            } else {
                match tokio::time::timeout(deadline, call).await {
                    Ok(outcome) => outcome.map_err(Into::into),
                    Err(_) => Err(Box::new(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "no answer from the API server within {} s",
                            deadline.as_secs()
                        ),
                    )) as BoxError),
                }
            };
            let exit = match &effect {
                Some(effect) => gate.after(effect),
                None => gate.fate(),
            };
            if exit == Fate::Dead {
                never().await
            } else {
                outcome
            }
        })
    }
}

fn is_watch(query: &str) -> bool {
    query
        .split('&')
        .any(|pair| pair == "watch=true" || pair == "watch=1")
}

fn effect_of(request: &Request<Body>) -> Option<Effect> {
    let mutates = !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    mutates.then(|| Effect::Api {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    })
}

/// Opens TLS streams through a [`Dialer`].
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) dialer: Dialer,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) server_name: Option<String>,
}

impl Service<Uri> for Connector {
    type Response = ClientStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<ClientStream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self {
            dialer,
            tls,
            server_name,
        } = self.clone();
        Box::pin(async move {
            let connect = connect(&dialer, tls, server_name.as_deref(), &uri);
            tokio::time::timeout(CONNECT_DEADLINE, connect)
                .await
                .unwrap_or_else(|_| {
                    Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("no connection to {uri}"),
                    ))
                })
        })
    }
}

async fn connect(
    dialer: &Dialer,
    tls: Arc<rustls::ClientConfig>,
    server_name: Option<&str>,
    uri: &Uri,
) -> io::Result<ClientStream> {
    let invalid =
        |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{uri}: {what}"));
    let host = uri
        .host()
        .ok_or_else(|| invalid("no host"))?
        .trim_matches(['[', ']']);
    if uri.scheme_str() == Some("http") {
        let stream = dialer.dial(host, uri.port_u16().unwrap_or(80)).await?;
        return Ok(ClientStream::Plain(TokioIo::new(stream)));
    }
    let name = ServerName::try_from(server_name.unwrap_or(host).to_owned())
        .map_err(|_| invalid("not a server name"))?;
    let stream = dialer.dial(host, uri.port_u16().unwrap_or(443)).await?;
    let stream = TlsConnector::from(tls).connect(name, stream).await?;
    Ok(ClientStream::Tls(Box::new(TokioIo::new(stream))))
}

/// A stream to a server, with or without TLS.
pub(crate) enum ClientStream {
    Plain(TokioIo<Stream>),
    Tls(Box<TokioIo<TlsStream<Stream>>>),
}

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        let h2 = match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.inner().get_ref().1.alpn_protocol() == Some(b"h2"),
        };
        if h2 {
            Connected::new().negotiated_h2()
        } else {
            Connected::new()
        }
    }
}

impl Read for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_read(cx, buf),
        }
    }
}

impl Write for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write(cx, data),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_shutdown(cx),
        }
    }
}

/// Posts JSON over HTTPS to a server that is not Kubernetes: how Cluster API calls a hook.
///
/// As there, no Content-Type is set and no redirect is followed (`spec/capi.md 1.1`).
#[derive(Clone)]
pub struct HttpsPoster {
    client: hyper_util::client::legacy::Client<Connector, http_body_util::Full<bytes::Bytes>>,
    gate: Arc<dyn Gate>,
}

impl std::fmt::Debug for HttpsPoster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpsPoster")
    }
}

/// Why a POST gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// Nothing came back.
    #[error("no answer from {url}: {source}")]
    Transport {
        /// Where to.
        url: String,
        /// Why.
        source: BoxError,
    },
    /// It took too long.
    #[error("no answer from {url} within {seconds} s")]
    Timeout {
        /// Where to.
        url: String,
        /// The deadline.
        seconds: u64,
    },
    /// The trust roots cannot be used.
    #[error("the CA bundle for {url} cannot be used: {reason}")]
    CaBundle {
        /// Where to.
        url: String,
        /// Why.
        reason: String,
    },
}

impl HttpsPoster {
    /// A poster that trusts the given PEM bundle, and nothing else.
    pub fn new(stack: &ClientStack, ca_bundle_pem: &[u8]) -> Result<Self, PostError> {
        let tls = crate::tls::client_config(ca_bundle_pem).map_err(|e| PostError::CaBundle {
            url: String::new(),
            reason: e.to_string(),
        })?;
        let connector = Connector {
            dialer: stack.dialer.clone(),
            tls: Arc::new(tls),
            server_name: None,
        };
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self {
            client,
            gate: stack.gate.clone(),
        })
    }

    /// Posts `body` and returns the status and the whole answer, at most 20 MiB.
    pub async fn post(
        &self,
        url: &str,
        body: Vec<u8>,
        deadline: Duration,
    ) -> Result<(u16, bytes::Bytes), PostError> {
        use http_body_util::{BodyExt as _, Limited};
        if self.gate.fate() == Fate::Dead {
            return never().await;
        }
        let transport = |source: BoxError| PostError::Transport {
            url: url.to_owned(),
            source,
        };
        let request = Request::post(url)
            .body(http_body_util::Full::new(bytes::Bytes::from(body)))
            .map_err(|e| transport(Box::new(e)))?;
        let call = async {
            let response = self
                .client
                .request(request)
                .await
                .map_err(|e| transport(Box::new(e)))?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), refit_api::hooks::MAX_BODY_BYTES);
            let body = body.collect().await.map_err(transport)?.to_bytes();
            Ok((status, body))
        };
        let outcome = tokio::time::timeout(deadline, call)
            .await
            .unwrap_or_else(|_| {
                Err(PostError::Timeout {
                    url: url.to_owned(),
                    seconds: deadline.as_secs(),
                })
            });
        if self.gate.fate() == Fate::Dead {
            never().await
        } else {
            outcome
        }
    }
}
