//! An API server in process, its objects and its names.

use std::{convert::Infallible, future::Future, io, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use lab_apiserver::{AnswerBody, ApiServer, Options};
use refit_kinds::{crds, keys};
use refit_runtime::{Clock, client::ClientStack, net::MemoryNetwork, serve, tls::Validity};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tower::Service;

/// Host name of a controller's probes and metrics, on port 80.
pub(crate) const PROBES: &str = "probes.test";

/// Whether a controller reports itself as ready.
pub(crate) async fn is_ready(stack: &ClientStack) -> bool {
    let config = kube::Config::new(format!("http://{PROBES}:80").parse().unwrap());
    let client = stack.client(&config).unwrap();
    let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
    client.request_text(request).await.is_ok()
}

/// The content of `/metrics`.
pub(crate) async fn scraped(stack: &ClientStack) -> String {
    let config = kube::Config::new(format!("http://{PROBES}:80").parse().unwrap());
    let client = stack.client(&config).unwrap();
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap()
}

pub(crate) fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().unwrap(),
        until: "2120-01-01T00:00:00Z".parse().unwrap(),
    }
}

pub(crate) fn server(clock: Clock) -> ApiServer {
    ApiServer::new(Options::new(Arc::new(move || clock.now())))
}

/// Serves the API server over plain HTTP until the task is dropped.
pub(crate) fn serve_api<S>(
    network: &MemoryNetwork,
    host: &str,
    server: &S,
) -> impl Future<Output = ()> + Send + 'static
where
    S: Service<Request<Incoming>, Response = Response<AnswerBody>, Error = io::Error>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let server = server.clone();
    let service = tower::service_fn(move |request| {
        let mut server = server.clone();
        async move {
            let answer = server.call(request).await;
            Ok::<_, Infallible>(answer.expect("no connection is cut here"))
        }
    });
    serve::serve(network.listen(host, 80), None, service, std::future::pending())
}

/// Installs the kinds of Refit and Cluster API, and opts the namespace `default` in.
pub(crate) async fn install_kinds(client: &Client) {
    install_kinds_with(client, &refit_cluster_api::crds()).await;
}

/// Installs the kinds of Refit and these, and opts the namespace `default` in.
pub(crate) async fn install_kinds_with(client: &Client, others: &[CustomResourceDefinition]) {
    let api = Api::all(client.clone());
    for crd in crds::refit_crds().iter().chain(others) {
        api.create(&PostParams::default(), crd).await.unwrap();
    }
    label_default(client, json!({keys::IN_PLACE: keys::OPTED_IN})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Sets labels of the namespace `default`.
pub(crate) async fn label_default(client: &Client, labels: Value) {
    let body = json!({"metadata": {"labels": labels}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
}

/// A reference to the object as a controller, for its dependents.
pub(crate) fn owner<K: Resource<DynamicType = ()>>(object: &K) -> Value {
    serde_json::to_value(object.controller_owner_ref(&()).unwrap()).unwrap()
}

/// Creates an object in the namespace `default`.
pub(crate) async fn made<K>(client: &Client, body: Value) -> K
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    made_in(&Api::default_namespaced(client.clone()), body).await
}

/// Creates an object.
pub(crate) async fn made_in<K>(api: &Api<K>, mut body: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    body["apiVersion"] = K::api_version(&()).into();
    body["kind"] = K::kind(&()).into();
    let object: K = serde_json::from_value(body).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

/// Sets an object's status.
pub(crate) async fn status<K>(client: &Client, object: &K, status: Value)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::default_namespaced(client.clone());
    let body = json!({ "status": status });
    api.patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
}

/// What Cluster API writes to a Machine before it calls UpdateMachine.
pub(crate) fn update_asked(version: &str) -> Value {
    let annotations = json!({
        keys::UPDATE_IN_PROGRESS: "", keys::PENDING_HOOKS: keys::UPDATE_MACHINE_HOOK,
    });
    json!({"metadata": {"annotations": annotations}, "spec": {"version": version}})
}
