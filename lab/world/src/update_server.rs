//! A stand-in for a server with a version graph: it answers with the document in a ConfigMap of the management cluster.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, uri::PathAndQuery};
use http_body_util::Full;
use hyper::body::Incoming;
use lab_apiserver::ApiServer;
use refit_controller::GraphSource;
use refit_kinds::json::text;
use refit_runtime::{net::Listener, serve};

/// Its host name.
pub(crate) const HOST: &str = "updates.release.svc";
/// Its port.
pub(crate) const PORT: u16 = 80;
const PATH: &str = "/v1/graph?token=secret";
/// The ConfigMap in the namespace default.
const CONFIG_MAP: &str = "version-graph";

/// Whether it answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpdateServer {
    is_down: Arc<AtomicBool>,
}

impl UpdateServer {
    /// How the controller reaches it.
    pub(crate) fn source() -> GraphSource {
        let url = format!("http://{HOST}:{PORT}").parse().expect("it is a constant URL");
        let path = PathAndQuery::from_static(PATH);
        GraphSource::Url { config: Box::new(kube::Config::new(url)), path }
    }

    /// Sets whether it answers with HTTP status 503.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Serves it, without end.
    pub(crate) async fn serve(self, listener: Listener, management: ApiServer) {
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let asked = request.uri().path_and_query().map(PathAndQuery::as_str);
            let response = self.answer(asked.unwrap_or_default(), &management);
            std::future::ready(Ok::<_, Infallible>(response))
        });
        serve::serve(listener, None, service, std::future::pending()).await;
    }

    fn answer(&self, asked: &str, management: &ApiServer) -> Response<Full<Bytes>> {
        let published = management.get_value("", "configmaps", "default", CONFIG_MAP);
        let (status, body) = match published {
            _ if self.is_down.load(Ordering::Relaxed) => {
                (StatusCode::SERVICE_UNAVAILABLE, String::new())
            }
            Some(object) if asked == PATH => {
                (StatusCode::OK, text(&object, "/data/graph.json").to_owned())
            }
            Some(_) | None => (StatusCode::NOT_FOUND, String::new()),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        response
    }
}
