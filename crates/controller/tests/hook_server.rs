//! The hook server over real TLS: in memory on a paused clock, and over TCP in real time.

use std::{sync::Arc, time::Duration};

use http::Method;
use refit_kinds::hooks::{CLIENT_FLAGS, MAX_BODY_BYTES, path};
use refit_runtime::{
    Clock,
    net::{Dialer, Listener, MemoryNetwork},
    tls::{self, Authority},
};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::{
    hooks::{Answer, CLIENT, HOST, InMemory, Server, call, request, side},
    objects::validity,
};

#[tokio::test(start_paused = true)]
async fn discovery_works_before_the_caches_are_synced() {
    let server = InMemory::without_api();
    let (status, body) = server.post(&path("Discovery", None), &json!({})).await;
    assert_eq!(status, 200);
    assert_eq!((&body["kind"], &body["status"]), (&json!("DiscoveryResponse"), &json!("Success")));
    assert_eq!(body["handlers"].as_array().unwrap().len(), 3);
    let (_, empty) = server.send(Method::POST, &path("Discovery", None), b"").await;
    assert_eq!(empty, body);
}

#[tokio::test(start_paused = true)]
async fn can_update_machine_answers_base64_patches() {
    let server = InMemory::ready().await;
    let (status, answer) = server.can_update().await;
    assert_eq!((status, &answer["status"]), (200, &json!("Success")));
    assert_eq!(answer["kind"], "CanUpdateMachineResponse");
    assert_eq!(answer["apiVersion"], "hooks.runtime.cluster.x-k8s.io/v1alpha1");
    assert_eq!(answer["machinePatch"]["patchType"], "JSONMergePatch");
    assert_eq!(answer["machinePatch"]["patch"], "eyJzcGVjIjp7InZlcnNpb24iOiJ2MS4zNS4wIn19");
    assert!(answer.get("bootstrapConfigPatch").is_none());
}

#[tokio::test(start_paused = true)]
async fn paths_are_served_in_mixed_case_and_others_are_not_found() {
    let server = InMemory::ready().await;
    let mixed = "/Hooks.Runtime.Cluster.x-k8s.io/v1Alpha1/UpdateMachine/Update-Machine";
    let (status, answer) = server.post(mixed, &json!({"desired": side("v1.35.0")})).await;
    assert_eq!((status, &answer["status"]), (200, &json!("Success")));
    assert!(answer["retryAfterSeconds"].as_i64().unwrap() > 0);
    for unknown in ["/nothing", "/hooks.runtime.cluster.x-k8s.io/v1beta1/discovery"] {
        let (status, answer) = server.post(unknown, &json!({})).await;
        assert_eq!((status, &answer["kind"]), (404, &json!("Status")));
    }
    let (status, _) = server.send(Method::GET, &path("Discovery", None), b"").await;
    assert_eq!(status, 405);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_request_is_a_failure_that_names_what_is_wrong() {
    let server = InMemory::ready().await;
    let hooks = [
        ("CanUpdateMachine", "can-update-machine", "CanUpdateMachineResponse"),
        ("CanUpdateMachineSet", "can-update-machineset", "CanUpdateMachineSetResponse"),
        ("UpdateMachine", "update-machine", "UpdateMachineResponse"),
    ];
    for (hook, handler, kind) in hooks {
        let hook = path(hook, Some(handler));
        for body in ["", "{", "[]", "{}", "null", "\"text\""] {
            let (status, answer) = server.send(Method::POST, &hook, body.as_bytes()).await;
            assert_eq!((status, &answer["status"]), (200, &json!("Failure")), "{hook} {body}");
            assert_eq!(answer["kind"], kind);
            assert!(answer["message"].as_str().unwrap().contains("cannot be served"), "{answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_up_to_the_limit_are_taken_and_larger_ones_refused() {
    let server = InMemory::ready().await;
    let hook = path("UpdateMachine", Some("update-machine"));
    let mut body = json!({"desired": side("v1.35.0")}).to_string().into_bytes();
    body.resize(MAX_BODY_BYTES, b' ');
    let (status, answer) = server.send(Method::POST, &hook, &body).await;
    assert_eq!((status, &answer["status"]), (200, &json!("Success")));
    body.push(b' ');
    let (status, answer) = server.send(Method::POST, &hook, &body).await;
    assert_eq!((status, &answer["kind"]), (413, &json!("Status")));
}

#[tokio::test(start_paused = true)]
async fn probes_are_served_next_to_the_hooks_and_metrics_apart_from_them() {
    let server = InMemory::without_api();
    assert_eq!(server.send(Method::GET, "/healthz", b"").await.0, 200);
    assert_eq!(server.send(Method::GET, "/readyz", b"").await.0, 503);
    let server = InMemory::ready().await;
    assert_eq!(server.send(Method::GET, "/readyz", b"").await.0, 200);
    server.post(&path("Discovery", None), &json!({})).await;
    assert_eq!(server.send(Method::GET, "/metrics", b"").await.0, 404);
    let text = server.metrics().await;
    for wanted in [
        "refit_build_info{version=",
        r#"refit_hook_duration_seconds_count{hook="Discovery",verdict="Success"} 1"#,
        r#"refit_workqueue_depth{controller="node-update"} 0"#,
        "refit_synced 1",
        "# EOF",
    ] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_body_gets_a_response_before_the_deadline() {
    let server = InMemory::ready().await;
    let dialer = server.dialer.clone();
    let stream = dialer.dial(HOST, 443).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(server.server.trust()));
    let mut stream = tls.connect(name, stream).await.unwrap();
    let hook = path("UpdateMachine", Some("update-machine"));
    let head =
        format!("POST {hook}?timeout=4s HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 10\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await.unwrap();
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let waited = clock.now_seconds().to_string();
    assert_eq!(waited, "2026-01-01T00:00:03Z");
}

/// Starts a request whose body of `length` bytes stops one byte short.
async fn stalled(server: &InMemory, length: usize) -> impl Sized {
    let stream = server.dialer.dial(HOST, 443).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(server.server.trust()));
    let mut stream = tls.connect(name, stream).await.unwrap();
    let hook = path("UpdateMachine", Some("update-machine"));
    let head = format!(
        "POST {hook}?timeout=20s HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; length - 1]).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn large_bodies_are_limited_and_small_ones_pass() {
    const LARGE: usize = 2 * 1024 * 1024;
    let server = InMemory::ready().await;
    let mut held = Vec::new();
    for _ in 0..7 {
        held.push(stalled(&server, LARGE).await);
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let hook = path("CanUpdateMachine", Some("can-update-machine"));
    let small = json!({"current": side("v1.34.2"), "desired": side("v1.35.0")});
    let (_, answer) = server.post(&hook, &small).await;
    assert_eq!(answer["status"], "Success", "{answer}");
    let large = [small.to_string().into_bytes(), vec![b' '; LARGE]].concat();
    let freed = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(held);
    };
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let ((), (_, answer)) = futures::join!(freed, server.send(Method::POST, &hook, &large));
    assert_eq!(answer["status"], "Success", "{answer}");
    assert_eq!(clock.now_seconds().to_string(), "2026-01-01T00:00:01Z", "it waits for its turn");
}

async fn over_tcp() -> (Server, u16) {
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (Server::start(&MemoryNetwork::default(), listener, None), port)
}

async fn discover(port: u16, tls: rustls::ClientConfig) -> Answer {
    let request = request(Method::POST, &path("Discovery", None), "{}");
    let call = call(&Dialer::Tcp, ("localhost", port), tls, request);
    tokio::time::timeout(Duration::from_secs(20), call).await?
}

#[tokio::test]
async fn https_over_tcp_reloads_its_certificate() {
    let (server, port) = over_tcp().await;
    let (status, body) = discover(port, server.trust()).await.unwrap();
    assert_eq!(status, 200);
    assert!(body.contains("can-update-machineset"));
    let next = Authority::new("next", validity()).unwrap();
    server.cert.reload(&next.server(&["localhost"], validity()).unwrap()).unwrap();
    assert!(discover(port, server.trust()).await.is_err());
    let trust = tls::client_config(next.material().cert_pem.as_bytes()).unwrap();
    assert_eq!(discover(port, trust).await.unwrap().0, 200);
}

/// What a client with this certificate gets from every hook but Discovery.
async fn forged(server: &InMemory, tls: &rustls::ClientConfig, why: &str) {
    let side = side("v1.35.0");
    let hooks = [
        ("CanUpdateMachine", "can-update-machine"),
        ("CanUpdateMachineSet", "can-update-machineset"),
        ("UpdateMachine", "update-machine"),
    ];
    for (hook, handler) in hooks {
        let body = json!({"current": side, "desired": side}).to_string();
        let request = request(Method::POST, &path(hook, Some(handler)), body);
        let (status, answer) = server.send_with(tls.clone(), request).await;
        assert_eq!((status, &answer["status"]), (200, &json!("Failure")), "{hook} {answer}");
        assert_eq!(answer["kind"], format!("{hook}Response"));
        let message = answer["message"].as_str().unwrap();
        for wanted in [why, CLIENT_FLAGS[0], CLIENT_FLAGS[1]] {
            assert!(message.contains(wanted), "{wanted} in {message}");
        }
    }
    let discovery = request(Method::POST, &path("Discovery", None), "{}");
    let (status, answer) = server.send_with(tls.clone(), discovery).await;
    assert_eq!((status, &answer["status"]), (200, &json!("Success")), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_forged_request_changes_nothing_and_is_counted() {
    let clients = Authority::new("clients", validity()).unwrap();
    let strangers = Authority::new("strangers", validity()).unwrap();
    let (server, api) = InMemory::ready_for(Some(&clients)).await;
    let before = api.revision();
    let showing = |authority: &Authority, name: &str| {
        let client = authority.client(name, validity()).unwrap();
        server.server.trust_with_identity(&client)
    };
    forged(&server, &server.server.trust(), "no client certificate").await;
    forged(&server, &showing(&strangers, CLIENT), "UnknownIssuer").await;
    forged(&server, &showing(&clients, "other"), "is for other, not for capi").await;
    assert_eq!(api.revision(), before);
    let metrics = server.metrics().await;
    for hook in ["CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"] {
        for (verdict, count) in [("NoClientCertificate", 1), ("ClientNotTrusted", 2)] {
            let line = format!(
                "refit_hook_duration_seconds_count{{hook=\"{hook}\",verdict=\"{verdict}\"}} {count}"
            );
            assert!(metrics.contains(&line), "{line} in {metrics}");
        }
    }
    let body = json!({"current": side("v1.34.2"), "desired": side("v1.35.0")}).to_string();
    let can_update = path("CanUpdateMachine", Some("can-update-machine"));
    let request = request(Method::POST, &can_update, body);
    let (_, answer) = server.send_with(showing(&clients, CLIENT), request).await;
    assert_eq!(answer["status"], "Success", "{answer}");
}
