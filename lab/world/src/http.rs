//! Serves an API server through hyper: its transport errors become broken connections.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use lab_apiserver::{AnswerBody, ApiServer, auth::PeerCertificate};
use refit_runtime::serve::PeerCertificates;
use tower::Service;

/// Serves an [`ApiServer`] over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    server: ApiServer,
    callers: Callers,
}

/// The callers that are accepted.
#[derive(Clone, Copy, Debug)]
enum Callers {
    /// Components of this process, with full access.
    Inside,
    /// Components of this process, restricted to their RBAC permissions.
    Enforced {
        /// Whether this is the management API.
        management: bool,
    },
    /// Any client; it must authenticate.
    Outside,
}

impl Served {
    /// For components of this process, with full access.
    pub(crate) fn inside(server: ApiServer) -> Self {
        Self { server, callers: Callers::Inside }
    }

    /// For components of this process, restricted to their RBAC permissions.
    pub(crate) fn enforced(server: ApiServer, management: bool) -> Self {
        Self { server, callers: Callers::Enforced { management } }
    }

    /// For clients outside this process, which must authenticate.
    pub(crate) fn outside(server: ApiServer) -> Self {
        Self { server, callers: Callers::Outside }
    }

    /// Attaches the caller's identity to the request.
    fn introduce(&self, request: &mut Request<Incoming>) {
        let identity = match self.callers {
            Callers::Inside => Some(crate::world::insider(user_agent(request))),
            Callers::Enforced { management } => {
                crate::world::caller(user_agent(request), management)
            }
            Callers::Outside => None,
        };
        let extensions = request.extensions_mut();
        if let Some(identity) = identity {
            extensions.insert(identity);
        } else if let Some(PeerCertificates(chain)) = extensions.remove()
            && let Some(own) = chain.first()
        {
            extensions.insert(PeerCertificate(Arc::from(own.as_ref())));
        }
    }
}

fn user_agent(request: &Request<Incoming>) -> &str {
    let agent = request.headers().get(http::header::USER_AGENT);
    agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default()
}

impl Service<Request<Incoming>> for Served {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        self.introduce(&mut request);
        let agent = request.headers().get(http::header::USER_AGENT);
        tracing::trace!(method = %request.method(), uri = %request.uri(), ?agent, "request");
        let answer = self.server.call(request);
        Box::pin(async move {
            Ok(answer.await.unwrap_or_else(|error| {
                // The headers are sent, then the stream breaks: the client sees a transport error.
                let broken = futures::stream::iter([Err(error)]);
                Response::new(http_body_util::StreamBody::new(broken).boxed_unsync())
            }))
        })
    }
}
