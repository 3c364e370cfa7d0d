//! Clients that try to take the hook server away from all others: Discovery still answers, because
//! Cluster API does not start without it (`docs/facts/hooks.md#manager-startup`).
//!
//! All deadlines pass on the paused clock.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _, future::join_all, stream};
use http::{Method, Request};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::Frame,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use refit_kinds::hooks::{MAX_BODY_BYTES, path};
use refit_runtime::net::{Listener, MemoryNetwork};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsConnector;

use crate::common::hooks::{HOST, InMemory, Server, request, side};

const MIB: usize = 1024 * 1024;
/// The number of connections that the server serves at once.
const CONNECTIONS: usize = 4096;
/// The number of connections that one address may open.
const CONNECTIONS_PER_PEER: usize = 256;
/// What `docs/operations.md` allows for all bodies together.
const BODIES: usize = 8 * MAX_BODY_BYTES;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// An open HTTP/2 connection, and the task that answers its pings until the server closes it.
type Open = (SendRequest<Body>, JoinHandle<()>);

async fn h2(server: &InMemory, builder: &http2::Builder<TokioExecutor>) -> Open {
    let mut tls = server.server.trust();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let stream = server.dialer.dial(HOST, 443).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap();
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection.map(drop)))
}

async fn h2_connections(server: &InMemory, count: usize) -> Vec<Open> {
    let builder = http2::Builder::new(TokioExecutor::new());
    stream::iter(0..count).then(|_| h2(server, &builder)).collect().await
}

fn post(hook: &str, body: impl Stream<Item = Bytes> + Send + 'static) -> Request<Body> {
    let body = StreamBody::new(body.map(|data| Ok::<_, Infallible>(Frame::data(data))));
    let uri = format!("https://{HOST}{hook}?timeout=30s");
    Request::post(uri).body(body.boxed_unsync()).unwrap()
}

fn update_machine() -> String {
    path("UpdateMachine", Some("update-machine"))
}

/// Bytes of a body that never ends.
fn stalled(bytes: usize) -> impl Stream<Item = Bytes> + Send {
    let chunk = Bytes::from(vec![b' '; 16 * 1024]);
    stream::iter(std::iter::repeat_n(chunk, bytes / (16 * 1024))).chain(stream::pending())
}

/// Sends the same request on many streams of each connection.
fn flood(
    connections: &[Open],
    streams: usize,
    request: impl Fn() -> Request<Body>,
) -> Vec<JoinHandle<hyper::Result<Value>>> {
    let senders = connections.iter().flat_map(|(sender, _)| std::iter::repeat_n(sender, streams));
    senders
        .map(|sender| {
            let response = sender.clone().send_request(request());
            tokio::spawn(async move {
                let body = response.await?.into_body().collect().await?.to_bytes();
                Ok(serde_json::from_slice(&body).unwrap_or_default())
            })
        })
        .collect()
}

/// A client that behaves gets its response within a few minutes, however many connections are open.
async fn discovery_answers(server: &InMemory) {
    let discovery = path("Discovery", None);
    let discovery = server.send(Method::POST, &discovery, b"{}");
    let (status, answer) =
        tokio::time::timeout(Duration::from_mins(5), discovery).await.expect("a response");
    assert_eq!((status, &answer["status"]), (200, &json!("Success")), "{answer}");
}

/// How many bytes of bodies the server holds.
async fn held_bytes(server: &InMemory) -> usize {
    let text = server.metrics().await;
    let line = text.lines().find_map(|line| line.strip_prefix("refit_hook_body_bytes "));
    line.unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn idle_http_2_connections_are_closed_although_they_answer_pings() {
    let server = InMemory::without_api();
    let idle = h2_connections(&server, CONNECTIONS).await;
    discovery_answers(&server).await;
    for (_, connection) in idle {
        tokio::time::timeout(Duration::from_mins(5), connection).await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn half_open_handshakes_are_closed() {
    let server = InMemory::without_api();
    let dials = (0..CONNECTIONS).map(|_| server.dialer.dial(HOST, 443));
    let half_open: Vec<_> = join_all(dials).await;
    discovery_answers(&server).await;
    for stream in half_open {
        let read = stream.unwrap().read_to_end(&mut Vec::new()).await;
        assert_eq!(read.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_receive_its_response_is_disconnected() {
    let server = InMemory::without_api();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = h2(&server, builder.initial_stream_window_size(0)).await;
    let discovery = post(&path("Discovery", None), stream::empty());
    let response = sender.clone().send_request(discovery).await.unwrap();
    tokio::time::timeout(Duration::from_mins(5), connection).await.unwrap().unwrap();
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn bodies_of_a_byte_per_second_delay_no_other_hook() {
    let server = InMemory::ready().await;
    let connections = h2_connections(&server, 8).await;
    let slow = || {
        post(
            &update_machine(),
            stream::repeat(Bytes::from_static(b" ")).then(|byte| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                byte
            }),
        )
    };
    let answers = flood(&connections, 200, slow);
    tokio::time::sleep(Duration::from_secs(5)).await;
    discovery_answers(&server).await;
    assert_eq!(server.can_update().await.1["status"], "Success");
    // The streams of one connection; the others wait until these have ended.
    for answer in answers.into_iter().take(16) {
        let answer = answer.await.unwrap().unwrap();
        assert!(answer["retryAfterSeconds"].as_i64().unwrap() > 0, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_bodies_of_1_mib_per_connection_stay_within_the_budget() {
    let server = InMemory::without_api();
    let connections = h2_connections(&server, 6).await;
    let answers = flood(&connections, 200, || post(&update_machine(), stalled(MIB)));
    let mut most = 0;
    while answers.iter().any(|answer| !answer.is_finished()) {
        most = held_bytes(&server).await.max(most);
        discovery_answers(&server).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    // The budget of small bodies, and one for each turn of a large one.
    assert!((20 * MIB..=27 * MIB).contains(&most), "{most} bytes");
    assert_eq!(held_bytes(&server).await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_largest_bodies_stay_within_the_budget_together_with_small_ones() {
    let server = InMemory::without_api();
    let connections = h2_connections(&server, 3).await;
    let mut answers =
        flood(&connections[..2], 16, || post(&update_machine(), stalled(MAX_BODY_BYTES)));
    answers.extend(flood(&connections[2..], 16, || post(&update_machine(), stalled(MIB))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = held_bytes(&server).await;
    assert!((2 * MAX_BODY_BYTES..=BODIES).contains(&held), "{held} bytes");
    discovery_answers(&server).await;
    join_all(answers).await;
    assert_eq!(held_bytes(&server).await, 0);
}

#[tokio::test(start_paused = true)]
async fn json_of_90_000_levels_is_refused() {
    let server = InMemory::ready().await;
    let deep = |open: &str| format!("{{\"desired\":{}", open.repeat(90_000));
    for body in [deep("["), deep("{\"a\":")] {
        let (_, answer) = server.send(Method::POST, &update_machine(), body.as_bytes()).await;
        assert_eq!(answer["status"], "Failure", "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("not JSON"), "{answer}");
    }
    discovery_answers(&server).await;
}

#[tokio::test(start_paused = true)]
async fn json_of_many_small_values_is_refused() {
    let server = InMemory::ready().await;
    let wide = format!("{{\"desired\":[{}0]}}", "{\"\":0},".repeat(MIB / 8));
    let (_, answer) = server.send(Method::POST, &update_machine(), wide.as_bytes()).await;
    assert_eq!(answer["status"], "Failure", "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("more than 100000 values"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn stalled_bodies_do_not_keep_the_budget() {
    let server = InMemory::ready().await;
    let connections = h2_connections(&server, 2).await;
    let answers = flood(&connections, 16, || post(&update_machine(), stalled(MIB)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(held_bytes(&server).await > 20 * MIB);
    assert_eq!(server.can_update().await.1["status"], "Success");
    for answer in join_all(answers).await {
        assert_eq!(answer.unwrap().unwrap()["reason"], "Timeout");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_serves_sixteen_requests_at_once() {
    let server = InMemory::without_api();
    let connections = h2_connections(&server, 1).await;
    let stalled = flood(&connections, 16, || post(&update_machine(), stalled(MIB)));
    let discovery = || post(&path("Discovery", None), stream::empty());
    let next = flood(&connections, 1, discovery).remove(0);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!next.is_finished());
    join_all(stalled).await;
    assert_eq!(next.await.unwrap().unwrap()["status"], "Success");
}

#[tokio::test(start_paused = true)]
async fn bodies_over_the_limit_are_refused_and_leave_nothing_behind() {
    let server = InMemory::ready().await;
    let connections = h2_connections(&server, 2).await;
    let oversized = || {
        let chunk = Bytes::from(vec![b' '; 64 * 1024]);
        post(&update_machine(), stream::repeat(chunk).take(MAX_BODY_BYTES / 64 / 1024 + 1))
    };
    let answers = flood(&connections, 8, oversized);
    discovery_answers(&server).await;
    for answer in join_all(answers).await {
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer["reason"], "RequestEntityTooLarge", "{answer}");
    }
    assert_eq!(held_bytes(&server).await, 0);
    let request = json!({"desired": side("v1.35.0")});
    assert_eq!(server.post(&update_machine(), &request).await.1["status"], "Success");
}

#[tokio::test]
async fn one_address_cannot_take_the_connections_of_another() {
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::start(&MemoryNetwork::default(), listener, None);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS_PER_PEER + 10 {
        connections.push(TcpStream::connect(address).await.unwrap());
    }
    for over in &mut connections[CONNECTIONS_PER_PEER..] {
        let closed = tokio::time::timeout(Duration::from_secs(5), async {
            // An end of the stream, or a reset.
            assert_eq!(over.read(&mut [0]).await.unwrap_or_default(), 0);
        });
        closed.await.expect("a connection over the limit is closed at once");
    }
    let within = connections[CONNECTIONS_PER_PEER - 1].try_read(&mut [0]);
    assert_eq!(within.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let tls = TlsConnector::from(Arc::new(server.trust()));
    let stream = TokioIo::new(tls.connect(name, stream).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection.map(drop));
    let discovery = request(Method::POST, &path("Discovery", None), "{}");
    assert_eq!(sender.send_request(discovery).await.unwrap().status(), 200);
}
