//! Clients for servers that are not Kubernetes.

use std::sync::Arc;

use http::{HeaderValue, Request, header::PROXY_AUTHORIZATION};
use kube::{Client, client::Body};
use rustls::{crypto::ring, pki_types::CertificateDer};
use rustls_platform_verifier::Verifier;
use tower::{BoxError, ServiceBuilder};

use super::{
    ClientError, ClientStack,
    connect::Connector,
    discipline::DisciplineLayer,
    pooled,
    proxy::{Proxies, Route},
};
use crate::{net::Dialer, tls::TlsError};

/// What [`ClientStack::web_client`] adds to the rules of a stack.
#[derive(Clone, Default)]
pub(super) struct Web {
    proxies: Option<Arc<Proxies>>,
    roots: Vec<CertificateDer<'static>>,
}

impl ClientStack {
    /// Returns the stack whose web clients use the proxies of `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, or of the same
    /// variables in lower case. Streams in memory, and clients of Kubernetes, do not.
    #[must_use]
    pub fn with_proxies_of_environment(mut self) -> Self {
        self.web.proxies = match self.dialer {
            Dialer::Tcp => Some(Arc::new(Proxies::of_environment())),
            Dialer::Memory(..) => None,
        };
        self
    }

    /// Returns the stack whose web clients trust this PEM bundle, too.
    pub fn with_extra_roots(mut self, pem: &[u8]) -> Result<Self, TlsError> {
        self.web.roots.extend(crate::tls::certificates(pem, "the CA bundle")?);
        Ok(self)
    }

    /// Builds a client for servers that are not Kubernetes: its requests have absolute URLs, of `http` or `https`. It trusts
    /// the authorities of the system.
    pub fn web_client(&self) -> Result<Client, ClientError> {
        let agent = HeaderValue::from_str(&self.user_agent)
            .map_err(|_| ClientError::UserAgent(self.user_agent.clone()))?;
        let provider = Arc::new(ring::default_provider());
        let verifier =
            Verifier::new_with_extra_roots(self.web.roots.iter().cloned(), provider.clone())?;
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let connector = Connector {
            dialer: self.dialer.clone(),
            tls: Arc::new(tls),
            server_name: None,
            proxies: self.web.proxies.clone(),
        };
        let proxies = self.web.proxies.clone();
        let authorized = move |mut request: Request<Body>| {
            let route = proxies.as_ref().map(|proxies| proxies.route(request.uri()));
            if let Some(Route::Forward(proxy)) = route
                && let Some(auth) = proxy.basic_auth()
            {
                request.headers_mut().insert(PROXY_AUTHORIZATION, auth.clone());
            }
            request
        };
        let service = ServiceBuilder::new()
            .layer(DisciplineLayer {
                gate: self.gate.clone(),
                agent,
                deadline: self.deadline,
                read_deadline: self.read_deadline,
                max_answer: self.max_answer,
                fence: self.fence.clone(),
            })
            .map_request(authorized)
            .map_err(BoxError::from)
            .service(pooled(connector));
        Ok(Client::new(service, ""))
    }
}
