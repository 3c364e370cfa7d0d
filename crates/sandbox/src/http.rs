//! An API server behind hyper: its transport errors become broken connections.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use refit_apiserver::{AnswerBody, ApiServer};
use tower::Service;

/// Serves an [`ApiServer`] on HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Served(pub(crate) ApiServer);

impl Service<Request<Incoming>> for Served {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let agent = request.headers().get(http::header::USER_AGENT);
        tracing::trace!(method = %request.method(), uri = %request.uri(), ?agent, "request");
        let answer = self.0.call(request);
        Box::pin(async move {
            Ok(answer.await.unwrap_or_else(|error| {
                // The head is out, then the stream breaks: the client sees a transport error.
                let broken = futures::stream::iter([Err(error)]);
                Response::new(http_body_util::StreamBody::new(broken).boxed_unsync())
            }))
        })
    }
}
