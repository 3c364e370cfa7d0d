//! The same service behind a real HTTP connection.

use crate::common::{CONFIGS, World, config};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};

#[tokio::test]
async fn the_server_speaks_http_through_hyper() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({"x": "y".repeat(100_000)}))).await;
    let (client_end, server_end) = tokio::io::duplex(64 * 1024);
    let service = TowerToHyperService::new(world.server.clone());
    let server = tokio::spawn(async move {
        let builder = Builder::new(TokioExecutor::new());
        builder.serve_connection(TokioIo::new(server_end), service).await
    });
    let (mut send, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(client_end)).await.unwrap();
    let client = tokio::spawn(connection);
    let request =
        Request::builder().uri(CONFIGS).header("host", "x").body(Empty::<bytes::Bytes>::new());
    let answer = send.send_request(request.unwrap()).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let list: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(list["items"][0]["metadata"]["name"], "a");

    let path = format!("{CONFIGS}?watch=1&resourceVersion={}", world.server.revision());
    let request = Request::builder().uri(path).header("host", "x").body(Empty::new()).unwrap();
    let mut answer = send.send_request(request).await.unwrap();
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    let frame = answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    let event: Value = serde_json::from_slice(&frame).unwrap_or_default();
    let text = String::from_utf8_lossy(&frame);
    assert!(event["type"] == "DELETED" || text.starts_with("{\"type\":\"DELETED\""));
    drop((answer, send));
    client.abort();
    server.abort();
}
