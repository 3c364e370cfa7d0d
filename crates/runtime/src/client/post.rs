//! POSTs to a server that is not Kubernetes: how Cluster API calls a hook.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Uri, uri::Scheme};
use http_body_util::{BodyExt as _, Full, Limited};
use tower::BoxError;

use super::{ClientStack, connect::Connector, pooled};
use crate::{
    gate::{Fate, Gate, never},
    tls::{ClientIdentity, client_config},
};

/// Posts JSON over HTTPS to a server that is not Kubernetes: how Cluster API calls a hook.
///
/// Like Cluster API, it sets no Content-Type and follows no redirect
/// (`docs/facts/hooks.md#paths-and-http`).
#[derive(Clone)]
pub struct HttpsPoster {
    client: hyper_util::client::legacy::Client<Connector, Full<Bytes>>,
    gate: Arc<dyn Gate>,
}

impl std::fmt::Debug for HttpsPoster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpsPoster")
    }
}

/// Why a POST got no response.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// No response arrived.
    #[error("no answer from {url}: {}", chain(source.as_ref()))]
    Transport {
        /// The URL.
        url: String,
        /// The underlying error.
        source: BoxError,
    },
    /// The response took too long.
    #[error("no answer from {url} within {seconds} s")]
    Timeout {
        /// The URL.
        url: String,
        /// The deadline in seconds.
        seconds: u64,
    },
    /// The trust roots cannot be used.
    #[error("invalid CA bundle: {reason}")]
    CaBundle {
        /// The URL; empty if it is not known yet.
        url: String,
        /// The reason.
        reason: String,
    },
}

/// An error with its sources: the outermost error alone reads only `client error`.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

impl HttpsPoster {
    /// A poster that trusts only the given PEM bundle.
    pub fn new(stack: &ClientStack, ca_bundle_pem: &[u8]) -> Result<Self, PostError> {
        Self::presenting(stack, ca_bundle_pem, None)
    }

    /// The same, and presents a client certificate.
    pub fn presenting(
        stack: &ClientStack,
        ca_bundle_pem: &[u8],
        identity: Option<ClientIdentity>,
    ) -> Result<Self, PostError> {
        let mut tls = client_config(ca_bundle_pem)
            .map_err(|e| PostError::CaBundle { url: String::new(), reason: e.to_string() })?;
        if let Some(identity) = identity {
            tls.client_auth_cert_resolver = Arc::new(identity);
        }
        let connector = Connector {
            dialer: stack.dialer.clone(),
            tls: Arc::new(tls),
            server_name: None,
            #[cfg(feature = "web")]
            proxies: None,
        };
        Ok(Self { client: pooled(connector), gate: stack.gate.clone() })
    }

    /// Posts `body` and returns the status and the whole response, at most 20 MiB.
    pub async fn post(
        &self,
        url: &str,
        body: Vec<u8>,
        deadline: Duration,
    ) -> Result<(u16, Bytes), PostError> {
        if self.gate.fate() == Fate::Dead {
            return never().await;
        }
        let transport = |source: BoxError| PostError::Transport { url: url.to_owned(), source };
        let target: Uri = url.parse().map_err(|e: http::uri::InvalidUri| transport(e.into()))?;
        if target.scheme() != Some(&Scheme::HTTPS) {
            return Err(transport("not an https URL".into()));
        }
        let request = Request::post(target)
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| transport(e.into()))?;
        let call = async {
            let response = self.client.request(request).await.map_err(|e| transport(e.into()))?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), refit_kinds::hooks::MAX_BODY_BYTES);
            let body = body.collect().await.map_err(transport)?.to_bytes();
            Ok((status, body))
        };
        let outcome = tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| {
            Err(PostError::Timeout { url: url.to_owned(), seconds: deadline.as_secs() })
        });
        if self.gate.fate() == Fate::Dead { never().await } else { outcome }
    }
}
