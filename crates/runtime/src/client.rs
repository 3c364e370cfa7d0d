//! The client stack: builds every Kubernetes client of every process.
//!
//! It never retries, sets a deadline on every call (for a watch: until it begins) and passes each
//! write through the process's [`Gate`] (`docs/facts/kube-rs.md`).

mod answer;
mod connect;
mod converted;
mod discipline;
#[cfg(feature = "port-forward")]
mod pinned;
mod post;
#[cfg(feature = "web")]
mod proxy;
mod served;
#[cfg(feature = "web")]
mod web;

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::{Client, Config, client::ConfigExt as _};
use tower::{BoxError, ServiceBuilder, limit::ConcurrencyLimitLayer};

use self::{connect::Connector, discipline::DisciplineLayer, served::ServedLayer};
use crate::{gate::Gate, lease::Leadership, net::Dialer};

pub use answer::{TooLarge, cause, too_large};
#[cfg(feature = "port-forward")]
pub use pinned::{
    JsonPost, PINNED_DEADLINE, PinnedAnswer, PinnedConnection, PinnedOpenError, PinnedPostError,
};
pub use post::{HttpsPoster, PostError, chain};
#[cfg(feature = "web")]
pub use proxy::ProxyError;
pub use served::{Served, ServedVersions, VersionedKind};

/// How long a call may take until the response begins, and how long the response may then stall.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// How long an idle connection is kept. API servers close idle connections after 90 s, Refit's own
/// server later still, load balancers after 60 s. Only the side that closes first closes safely:
/// the outcome of a write on a closing connection is unknown.
const POOL_IDLE: Duration = Duration::from_secs(55);

/// Why a client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration names unusable credentials.
    #[error("invalid client configuration for {url}: {source}")]
    Config {
        /// URL of the API server.
        url: String,
        /// The underlying error.
        source: Box<kube::Error>,
    },
    /// The user agent is not a valid header value.
    #[error("invalid user agent {0:?}")]
    UserAgent(String),
    /// The authorities that a web client trusts are unusable.
    #[error("cannot use the certificate authorities of the system: {0}")]
    Roots(#[from] rustls::Error),
}

/// Builds clients for one process.
#[derive(Clone)]
pub struct ClientStack {
    dialer: Dialer,
    gate: Arc<dyn Gate>,
    user_agent: String,
    deadline: Duration,
    read_deadline: Option<Duration>,
    max_answer: Option<usize>,
    concurrency: Option<usize>,
    fence: Option<Leadership>,
    served: Option<ServedVersions>,
    #[cfg(feature = "web")]
    web: web::Web,
}

impl std::fmt::Debug for ClientStack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientStack").field("user_agent", &self.user_agent).finish_non_exhaustive()
    }
}

impl ClientStack {
    /// A stack for the process with this user agent (`refit-controller/0.1.0`).
    pub fn new(dialer: Dialer, gate: Arc<dyn Gate>, user_agent: impl Into<String>) -> Self {
        Self {
            dialer,
            gate,
            user_agent: user_agent.into(),
            deadline: CALL_DEADLINE,
            read_deadline: None,
            max_answer: None,
            concurrency: None,
            fence: None,
            served: None,
            #[cfg(feature = "web")]
            web: web::Web::default(),
        }
    }

    /// A stack over TCP whose gate lets everything pass.
    pub fn production(user_agent: impl Into<String>) -> Self {
        Self::new(Dialer::Tcp, Arc::new(crate::gate::Open), user_agent)
    }

    /// Returns the stack with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Returns the stack with another deadline for calls that write nothing. A write may wait for
    /// admission webhooks, which take up to 30 s.
    #[must_use]
    pub fn with_read_deadline(mut self, deadline: Duration) -> Self {
        self.read_deadline = Some(deadline);
        self
    }

    /// Returns the stack for API servers that are not trusted to limit what they send: a response, or
    /// an event of a watch, of more than `bytes` fails as [`TooLarge`].
    #[must_use]
    pub fn with_max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = Some(bytes);
        self
    }

    /// Returns the stack for clients that each wait for a response, or for the beginning of a watch,
    /// in at most `calls` calls at once. More calls wait for their turn, within their deadline.
    #[must_use]
    pub fn with_concurrency(mut self, calls: usize) -> Self {
        self.concurrency = Some(calls);
        self
    }

    /// Returns the stack for writes that only the leader may make: each write checks the leadership
    /// first, and is dropped before another replica can lead. Reads pass.
    #[must_use]
    pub fn fenced(mut self, leadership: Leadership) -> Self {
        self.fence = Some(leadership);
        self
    }

    /// Returns the stack for an API server that may serve kinds in an older version only.
    #[must_use]
    pub fn with_served_versions(mut self, served: ServedVersions) -> Self {
        self.served = Some(served);
        self
    }

    /// The dialer of this process.
    pub fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// The gate of this process.
    pub fn gate(&self) -> &Arc<dyn Gate> {
        &self.gate
    }

    /// Builds a client for the cluster in `config`. API servers are called directly, without a proxy.
    pub fn client(&self, config: &Config) -> Result<Client, ClientError> {
        let wrong = |source: kube::Error| ClientError::Config {
            url: config.cluster_url.to_string(),
            source: Box::new(source),
        };
        let agent = HeaderValue::from_str(&self.user_agent)
            .map_err(|_| ClientError::UserAgent(self.user_agent.clone()))?;
        if matches!(self.dialer, Dialer::Tcp) && config.proxy_url.is_some() {
            tracing::warn!(
                cluster = %config.cluster_url,
                "ignoring the configured proxy, API servers are always called directly"
            );
        }
        crate::tls::install_provider();
        let tls = config.rustls_client_config().map_err(wrong)?;
        let connector = Connector {
            dialer: self.dialer.clone(),
            tls: Arc::new(tls),
            server_name: config.tls_server_name.clone(),
            #[cfg(feature = "web")]
            proxies: None,
        };
        // Outermost, so the deadline also covers fetching a credential.
        let service = ServiceBuilder::new()
            .layer(DisciplineLayer {
                gate: self.gate.clone(),
                agent,
                deadline: self.deadline,
                read_deadline: self.read_deadline,
                max_answer: self.max_answer,
                fence: self.fence.clone(),
            })
            .layer(ServedLayer(self.served.clone()))
            .option_layer(self.concurrency.map(ConcurrencyLimitLayer::new))
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer().map_err(wrong)?)
            .layer(config.extra_headers_layer().map_err(wrong)?)
            .map_err(BoxError::from)
            .service(pooled(connector));
        Ok(Client::new(service, config.default_namespace.clone()))
    }
}

/// An HTTP client that pools its connections.
fn pooled<B>(connector: Connector) -> hyper_util::client::legacy::Client<Connector, B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .build(connector)
}
