//! An API server and the servers outside of it, on an in-memory network and a paused clock.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::body::Incoming;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    client::Body,
    core::{ApiResource, GroupVersionKind},
};
use lab_apiserver::{
    ApiServer, Options,
    auth::{Authentication, Identity, Required},
};
use refit_managed::remote::Remote;
use refit_openshift::Compat;
use refit_runtime::{
    Clock,
    client::ClientStack,
    gate::{Effect, Fate, Gate},
    net::{Dialer, Listener, MemoryNetwork},
    serve,
    tls::{Authority, ReloadableCert, Validity, server_config},
};
use serde_json::{Value, json};
use tower::ServiceBuilder;

/// `spec.clusterID` of the ClusterVersion.
pub(crate) const CLUSTER_ID: &str = "5d1a0c3e-0001-4000-8000-000000000001";
/// The token for OCM.
pub(crate) const TOKEN: &str = "b2NtOnNlY3JldA==";

/// Counts the writes of the process.
#[derive(Default)]
pub(crate) struct Effects(Mutex<Vec<String>>);

impl Effects {
    /// The writes since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Gate for Effects {
    fn before(&self, effect: &Effect) -> Fate {
        self.0.lock().unwrap().push(effect.to_string());
        Fate::Alive
    }

    fn after(&self, _: &Effect) -> Fate {
        Fate::Alive
    }

    fn fate(&self) -> Fate {
        Fate::Alive
    }
}

/// A request that a server of [`Bed::answer`] has received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// `METHOD PATH?QUERY`.
    pub(crate) line: String,
    pub(crate) authorization: String,
    pub(crate) body: Value,
}

pub(crate) struct Bed {
    pub(crate) network: MemoryNetwork,
    pub(crate) server: ApiServer,
    pub(crate) clock: Clock,
    pub(crate) effects: Arc<Effects>,
    pub(crate) authority: Authority,
}

impl Bed {
    /// With the pull secret of the cluster.
    pub(crate) async fn new() -> Self {
        let clock = Clock::simulated("2026-08-14T12:00:00Z".parse().unwrap());
        let mut options = Options::new(Arc::new(move || clock.now()));
        let namespaces = [
            "openshift-config",
            "openshift-monitoring",
            "openshift-deployment-validation-operator",
        ];
        options.namespaces.extend(namespaces.map(ToOwned::to_owned));
        // Only then it issues tokens.
        options.authentication = Authentication::Required(Required::new("key"));
        let bed = Self {
            network: MemoryNetwork::default(),
            server: ApiServer::new(options),
            clock,
            effects: Arc::default(),
            authority: Authority::new("test", validity()).unwrap(),
        };
        let config = json!({"auths": {"cloud.openshift.com": {"auth": TOKEN}}}).to_string();
        bed.create(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": "pull-secret", "namespace": "openshift-config"},
            "stringData": {".dockerconfigjson": config},
        }))
        .await;
        bed
    }

    pub(crate) fn client(&self) -> Client {
        let as_admin = |mut request: Request<Body>| {
            request.extensions_mut().insert(Identity::admin());
            request
        };
        let service = ServiceBuilder::new().map_request(as_admin).service(self.server.clone());
        Client::new(service, "default")
    }

    /// Creates an object.
    pub(crate) async fn create(&self, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let types = object.types.clone().unwrap();
        let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client(), namespace, &kind),
            None => Api::all_with(self.client(), &kind),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    pub(crate) fn stack(&self) -> ClientStack {
        let dialer = Dialer::Memory(self.network.clone(), self.effects.clone());
        ClientStack::new(dialer, self.effects.clone(), "refit-managed/test")
    }

    pub(crate) fn remote(&self, compat: Compat) -> Remote {
        let stack = self.stack().with_extra_roots(self.authority.material().cert_pem.as_bytes());
        Remote::new(stack.unwrap(), self.client(), self.clock, compat).unwrap()
    }

    /// Answers requests to `https://HOST:PORT`, and records them.
    pub(crate) fn answer<F>(&self, host: &str, port: u16, answer: F) -> Arc<Mutex<Vec<Received>>>
    where
        F: Fn(&Received) -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
    {
        let listener = self.network.listen(host, port);
        let received = Arc::default();
        tokio::spawn(answering(listener, Some(self.tls(host)), Arc::clone(&received), answer));
        received
    }

    pub(crate) fn tls(&self, host: &str) -> Arc<rustls::ServerConfig> {
        tls(&self.authority, host)
    }
}

pub(crate) fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().unwrap(),
        until: "2120-01-01T00:00:00Z".parse().unwrap(),
    }
}

pub(crate) fn tls(authority: &Authority, host: &str) -> Arc<rustls::ServerConfig> {
    let material = authority.server(&[host], validity()).unwrap();
    server_config(ReloadableCert::new(&material).unwrap()).unwrap()
}

/// Answers requests, and records them.
pub(crate) async fn answering<F>(
    listener: Listener,
    tls: Option<Arc<rustls::ServerConfig>>,
    received: Arc<Mutex<Vec<Received>>>,
    answer: F,
) where
    F: Fn(&Received) -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
{
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let (received, answer) = (received.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            let authorization = parts.headers.get("authorization");
            let one = Received {
                line: format!("{} {}", parts.method, parts.uri),
                authorization: authorization
                    .and_then(|value| value.to_str().ok())
                    .unwrap_or_default()
                    .to_owned(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            received.lock().unwrap().push(one.clone());
            Ok::<_, Infallible>(answer(&one))
        }
    });
    serve::serve(listener, tls, service, std::future::pending()).await;
}

/// An answer.
pub(crate) fn reply(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}
