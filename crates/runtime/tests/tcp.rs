//! A client and a store over real sockets in real time.

use std::{sync::Arc, time::Duration};

use crate::common::{Pki, Served, config, config_map, kubeconfig, within};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use lab_apiserver::{ApiServer, Options};
use refit_runtime::{
    Clock, Store,
    client::{ClientStack, HttpsPoster},
    net::Listener,
    serve::serve,
    store::{everything, reflect},
    tls::{ReloadableCert, server_config},
};
use serde_json::json;

#[tokio::test]
async fn over_tcp_a_client_writes_and_a_store_follows() {
    let clock = Clock::real();
    let server = ApiServer::new(Options::new(Arc::new(move || clock.now())));
    let pki = Pki::new(&["127.0.0.1", "localhost"]);
    let cert = ReloadableCert::new(&pki.server).unwrap();
    let tls = server_config(cert).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = Served { server, log: Arc::default() };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(serve(listener, Some(tls), served, async {
        let _ = stopped.await;
    }));

    let stack = ClientStack::production("test/1");
    let config = config(&kubeconfig(&format!("https://{address}"), pki.ca())).await;
    let client = stack.client(&config).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let store = Store::default();
    let following = tokio::spawn(reflect(api.clone(), everything(), store.clone(), |_| {}));
    store.ready().await;

    let created = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(created.creation_timestamp().is_some());
    within(10, "the new object", || store.list().len() == 1).await;
    let patch = Patch::Merge(json!({"data": {"value": "2"}}));
    api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    within(10, "the change", || {
        store.list().iter().all(|c| c.data.as_ref().unwrap()["value"] == "2")
    })
    .await;
    api.delete("a", &DeleteParams::default()).await.unwrap();
    within(10, "the delete", || store.list().is_empty()).await;

    let poster = HttpsPoster::new(&stack, pki.ca().as_bytes()).unwrap();
    let url = format!("https://localhost:{}/nowhere", address.port());
    let deadline = Duration::from_secs(10);
    assert_eq!(poster.post(&url, Vec::new(), deadline).await.unwrap().0, 404);

    following.abort();
    drop(api);
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
