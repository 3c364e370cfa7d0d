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
    proxy::{Proxies, ProxyError, Route},
};
use crate::{net::Dialer, tls::TlsError};

/// What [`ClientStack::web_client`] adds to the rules of a stack.
#[derive(Clone, Default)]
pub(super) struct Web {
    proxies: Option<Arc<Proxies>>,
    roots: Vec<CertificateDer<'static>>,
}

impl ClientStack {
    /// Returns the stack whose web clients use the proxies of `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, or of
    /// the same variables in lower case. They are reached with or without TLS, as their URL has it. Streams in memory, and clients
    /// of Kubernetes, use none.
    ///
    /// # Errors
    /// A variable has a proxy of another kind.
    pub fn with_proxies_of_environment(mut self) -> Result<Self, ProxyError> {
        self.web.proxies = match self.dialer {
            Dialer::Tcp => Some(Arc::new(Proxies::of_environment()?)),
            Dialer::Memory(..) => None,
        };
        Ok(self)
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

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::tls::{Authority, ReloadableCert, Validity, server_config};

    #[tokio::test]
    async fn a_proxy_with_https_is_reached_with_tls() {
        let validity = || Validity {
            from: "2020-01-01T00:00:00Z".parse().unwrap(),
            until: "2120-01-01T00:00:00Z".parse().unwrap(),
        };
        let authority = Authority::new("test", validity()).unwrap();
        let certificate = authority.server(&["localhost"], validity()).unwrap();
        let tls = server_config(ReloadableCert::new(&certificate).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy =
            format!("https://me:secret@localhost:{}", listener.local_addr().unwrap().port());
        let mut stack = ClientStack::production("refit-test")
            .with_extra_roots(authority.material().cert_pem.as_bytes())
            .unwrap();
        let proxies = Proxies::of(|name| (name == "ALL_PROXY").then(|| proxy.clone()));
        stack.web.proxies = Some(Arc::new(proxies.unwrap()));
        let client = stack.web_client().unwrap();
        for (url, line, response) in [
            ("http://plain.test/x", "get http://plain.test/x http/1.1", "200 OK"),
            ("https://secure.test/x", "connect secure.test:443 http/1.1", "403 Forbidden"),
        ] {
            let serving = async {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = TlsAcceptor::from(tls.clone()).accept(stream).await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let answer = format!("HTTP/1.1 {response}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
                String::from_utf8(head).unwrap().to_lowercase()
            };
            let request = Request::get(url).body(Body::empty()).unwrap();
            let (head, outcome) = tokio::join!(serving, client.send(request));
            assert!(head.starts_with(line), "{head}");
            assert!(head.contains("proxy-authorization: basic bwu6c2vjcmv0"), "{head}");
            assert_eq!(outcome.is_ok(), response == "200 OK", "{url}");
        }
    }
}
