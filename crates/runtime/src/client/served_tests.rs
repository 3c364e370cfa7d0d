use std::convert::Infallible;

use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::json;

use super::*;

const KINDS: &[VersionedKind] = &[
    VersionedKind {
        group: "a.example",
        kind: "Thing",
        plural: "things",
        newer: "v2",
        older: "v1",
        required: true,
        read: |object| object["form"] = "v2".into(),
    },
    VersionedKind {
        group: "a.example",
        kind: "Other",
        plural: "others",
        newer: "v2",
        older: "v1",
        required: false,
        read: |_| {},
    },
];

fn with(found: [Served; 2]) -> ServedVersions {
    let served = ServedVersions::new(KINDS);
    served.learn(found.into());
    served
}

/// The request that reaches the API server, with its body.
async fn sent(served: &ServedVersions, method: Method, uri: &str, body: Value) -> (String, Value) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let server = tower::service_fn(move |request: Request<Body>| {
        let sender = sender.clone();
        async move {
            let uri = request.uri().to_string();
            let body = request.into_body().collect_bytes().await.unwrap();
            sender.send((uri, serde_json::from_slice(&body).unwrap_or_default())).unwrap();
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        }
    });
    let body = Body::from(body.to_string().into_bytes());
    let request = Request::builder().method(method).uri(uri).body(body).unwrap();
    ServedLayer(Some(served.clone())).layer(server).oneshot(request).await.unwrap();
    receiver.recv().unwrap()
}

/// What a client reads of a response that arrives in these chunks.
async fn read(uri: &str, status: u16, chunks: &'static [&'static str]) -> String {
    let server = tower::service_fn(move |_: Request<Body>| async move {
        let frames = chunks
            .iter()
            .map(|chunk| Ok::<_, Infallible>(Frame::data(Bytes::from_static(chunk.as_bytes()))));
        let body = StreamBody::new(futures::stream::iter(frames));
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        Ok::<_, Infallible>(response)
    });
    let served = with([Served::Older, Served::Newer]);
    let request = Request::get(uri).body(Body::empty()).unwrap();
    let answer = ServedLayer(Some(served)).layer(server).oneshot(request).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.into()).unwrap()
}

#[tokio::test]
async fn a_kind_of_an_older_version_is_requested_in_that_version() {
    let older = with([Served::Older, Served::Newer]);
    for (path, wanted) in [
        ("/apis/a.example/v2/things?watch=1", "/apis/a.example/v1/things?watch=1"),
        (
            "/apis/a.example/v2/namespaces/v2/things/v2/status",
            "/apis/a.example/v1/namespaces/v2/things/v2/status",
        ),
        ("/apis/a.example/v2/others", "/apis/a.example/v2/others"),
        ("/apis/a.example/v1/things", "/apis/a.example/v1/things"),
        ("/apis/a.example/v2", "/apis/a.example/v2"),
        ("/api/v1/namespaces/x/pods", "/api/v1/namespaces/x/pods"),
    ] {
        assert_eq!(sent(&older, Method::GET, path, json!({})).await.0, wanted);
        for found in [Served::Newer, Served::Missing] {
            let served = with([found, Served::Newer]);
            assert_eq!(sent(&served, Method::GET, path, json!({})).await.0, path);
        }
        let unknown = ServedVersions::new(KINDS);
        assert_eq!(sent(&unknown, Method::GET, path, json!({})).await.0, path);
    }
}

#[tokio::test]
async fn a_write_names_the_version_that_is_served_as_its_own_and_as_that_of_owners() {
    let older = with([Served::Older, Served::Newer]);
    let owned = |version| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"ownerReferences": [
            {"apiVersion": version, "kind": "Thing", "name": "t"},
            {"apiVersion": "a.example/v2", "kind": "Other", "name": "o"},
        ]}})
    };
    let path = "/api/v1/namespaces/x/secrets";
    let (_, body) = sent(&older, Method::POST, path, owned("a.example/v2")).await;
    assert_eq!(body, owned("a.example/v1"));
    let path = "/apis/a.example/v2/namespaces/x/things/t";
    let thing = |version| json!({"apiVersion": version, "kind": "Thing", "spec": {"a": [1]}});
    let (uri, body) = sent(&older, Method::PATCH, path, thing("a.example/v2")).await;
    assert_eq!((uri.contains("/v1/"), body), (true, thing("a.example/v1")));
    let newer = with([Served::Newer, Served::Newer]);
    let (_, body) = sent(&newer, Method::PATCH, path, thing("a.example/v2")).await;
    assert_eq!(body, thing("a.example/v2"));
}

#[tokio::test]
async fn objects_and_lists_are_read_in_the_newer_form() {
    let one = read("/apis/a.example/v2/namespaces/x/things/t", 200, &[r#"{"a""#, ": 1}"]).await;
    assert_eq!(one, r#"{"a":1,"form":"v2"}"#);
    let list = read("/apis/a.example/v2/things", 200, &[r#"{"items": [{"a": 1}, {}]}"#]).await;
    assert_eq!(list, r#"{"items":[{"a":1,"form":"v2"},{"form":"v2"}]}"#);
    let other = read("/apis/a.example/v2/others", 200, &[r#"{"items": [{}]}"#]).await;
    assert_eq!(other, r#"{"items": [{}]}"#);
}

#[tokio::test]
async fn a_watch_is_converted_line_by_line_wherever_its_chunks_end() {
    const LINE: &str = "{\"type\":\"ADDED\",\"object\":{}}\n";
    let uri = "/apis/a.example/v2/things?watch=true";
    let wanted = "{\"type\":\"ADDED\",\"object\":{\"form\":\"v2\"}}\n";
    let twice = wanted.repeat(2);
    assert_eq!(read(uri, 200, &[LINE, LINE]).await, twice);
    let chunks =
        &["{\"type\":\"ADDED\",", "\"object\":{}}\n{\"type\":\"ADD", "ED\",\"object\":{}}\n"];
    assert_eq!(read(uri, 200, chunks).await, twice);
    // A stream that is cut ends with a part of an event.
    assert_eq!(read(uri, 200, &[LINE, "{\"ty"]).await, format!("{wanted}{{\"ty"));
}

#[tokio::test]
async fn an_error_is_passed_on_as_it_is() {
    let text = r#"{"kind": "Status", "code": 409}"#;
    assert_eq!(
        read("/apis/a.example/v2/things", 409, &[r#"{"kind": "Status", "code": 409}"#]).await,
        text
    );
}

#[tokio::test(start_paused = true)]
async fn a_missing_kind_is_waited_for() {
    let served = ServedVersions::new(KINDS);
    assert_eq!(served.of("Other"), Served::Newer);
    served.learn(vec![Served::Older, Served::Missing]);
    served.known().await;
    assert_eq!(served.of("Other"), Served::Missing);
    let wait = served.changed("Other", Served::Missing);
    tokio::pin!(wait);
    assert!(tokio::time::timeout(Duration::from_secs(1), wait.as_mut()).await.is_err());
    served.learn(vec![Served::Older, Served::Older]);
    wait.await;
    assert_eq!(served.api_version("a.example/v2", "Thing"), "a.example/v1");
    assert_eq!(served.api_version("a.example/v3", "Thing"), "a.example/v3");
    assert_eq!(served.api_version("b.example/v2", "Thing"), "b.example/v2");
}
