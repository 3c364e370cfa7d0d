//! A k8sd through the port-forward of an API server, with the client of the product.

#![allow(clippy::unwrap_used, missing_docs, reason = "a panic fails the test")]

use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use lab_apiserver::{ApiServer, Options};
use lab_simhost::k8sd::{
    CERTIFICATES_APPROVE, CERTIFICATES_EXPIRY, CERTIFICATES_PLAN, CERTIFICATES_RUN, ChangeEnd,
    K8sd, REFRESH, REFRESH_STATUS, Reach, RefreshReply, RefreshScript, Restart, SigningRequests,
};
use refit_runtime::{
    Clock,
    client::{
        ClientStack, JsonPost, PINNED_DEADLINE, PinnedConnection, PinnedOpenError, PinnedPostError,
    },
    gate::Open,
    net::{Dialer, MemoryNetwork},
    port_forward::{PortStream, port_forward},
    serve::serve,
    tls::{Authority, Fingerprint, Pin, ReloadableCert, Validity, server_config},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const HOST: &str = "10.0.0.1:2380";

struct World {
    clock: Clock,
    k8sd: Arc<K8sd>,
    stack: ClientStack,
    client: Client,
}

/// Serves the API over TLS in memory, with the proxy pod of node `n1`.
async fn world() -> World {
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let server = ApiServer::new(Options::new(Arc::new(move || clock.now())));
    let direct = Client::new(server.clone(), "kube-system");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "k8sd-proxy-n1", "labels": {"app": "k8sd-proxy"}},
        "spec": {"containers": [{"name": "c", "image": "socat"}], "nodeName": "n1"},
    }))
    .unwrap();
    Api::default_namespaced(direct).create(&PostParams::default(), &pod).await.unwrap();
    let k8sd = K8sd::new(clock, "n1", TOKEN).unwrap();
    let node = k8sd.clone();
    server.serve_ports(Box::new(move |pod, port| {
        (pod.node == "n1" && port == 2380).then(|| node.connect()).flatten()
    }));
    let validity = Validity {
        from: "2020-01-01T00:00:00Z".parse().unwrap(),
        until: "2120-01-01T00:00:00Z".parse().unwrap(),
    };
    let authority = Authority::new("test", validity).unwrap();
    let cert = ReloadableCert::new(&authority.server(&["api.test"], validity).unwrap()).unwrap();
    let network = MemoryNetwork::default();
    let service =
        tower::util::MapErr::new(server, |error: std::io::Error| -> std::convert::Infallible {
            panic!("{error}")
        });
    let tls = Some(server_config(cert).unwrap());
    tokio::spawn(serve(network.listen("api.test", 6443), tls, service, std::future::pending()));
    let stack = ClientStack::new(Dialer::Memory(network, Arc::new(Open)), Arc::new(Open), "test/1");
    let mut config = kube::Config::new("https://api.test:6443".parse().unwrap());
    let root = CertificateDer::from_pem_slice(authority.material().cert_pem.as_bytes());
    config.root_cert = Some(vec![root.unwrap().to_vec()]);
    let client = stack.client(&config).unwrap();
    World { clock, k8sd, stack, client }
}

impl World {
    async fn connect(&self, pin: Pin) -> Result<PinnedConnection<PortStream>, PinnedOpenError> {
        let pod = "k8sd-proxy-n1";
        let stream = port_forward(&self.client, "kube-system", pod, 2380).await.unwrap();
        PinnedConnection::open(&self.stack, stream, HOST, pin, PINNED_DEADLINE).await
    }

    async fn call(
        &self,
        path: &str,
        token: Option<&'static str>,
        body: Value,
    ) -> Result<(u16, Value), PinnedPostError> {
        let token = token.map(HeaderValue::from_static);
        let is_approval = path == CERTIFICATES_APPROVE;
        let name = if is_approval { "capi-auth-token" } else { "node-token" };
        let name = HeaderName::from_static(name);
        let post = JsonPost {
            path: path.to_owned(),
            headers: token.map(|token| (name, token)).into_iter().collect(),
            body: body.to_string().into_bytes(),
            changes: path == REFRESH,
        };
        let connection = self.connect(Pin::FirstUse).await.unwrap();
        let answer = connection.post(post).await?;
        Ok((answer.status, serde_json::from_slice(&answer.body).unwrap()))
    }

    /// Begins a refresh to a channel and returns its change id.
    async fn refresh(&self, channel: &str) -> String {
        let body = json!({"channel": channel, "revision": "", "localPath": ""});
        let (code, answer) = self.call(REFRESH, Some(TOKEN), body).await.unwrap();
        assert_eq!(code, 200, "{answer}");
        answer["metadata"]["changeId"].as_str().unwrap().to_owned()
    }

    async fn status(&self, id: &str) -> Value {
        let body = json!({"changeId": id});
        let (code, answer) = self.call(REFRESH_STATUS, Some(TOKEN), body).await.unwrap();
        assert_eq!(code, 200, "{answer}");
        answer["metadata"].clone()
    }

    async fn fingerprint(&self) -> Fingerprint {
        self.connect(Pin::FirstUse).await.unwrap().fingerprint()
    }
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn status(status: &str, completed: bool, error: &str) -> Value {
    json!({"status": status, "completed": completed, "errorMessage": error})
}

#[tokio::test(start_paused = true)]
async fn a_refresh_returns_a_change_that_is_done_after_its_duration() {
    let world = world().await;
    let begun = world.clock.now();
    let body = json!({"channel": "1.34-classic/stable", "revision": "", "localPath": ""});
    let (code, answer) = world.call(REFRESH, Some(TOKEN), body.clone()).await.unwrap();
    let envelope = json!({
        "type": "sync", "status": "Success", "status_code": 200, "operation": "",
        "error_code": 0, "error": "", "metadata": {"changeId": "1"},
    });
    assert_eq!((code, &answer), (200, &envelope));
    assert_eq!(world.status("1").await, status("Doing", false, ""));
    assert!(world.k8sd.is_busy());
    pass(60).await;
    assert_eq!(world.status("1").await, status("Done", true, ""));
    assert_eq!(world.k8sd.installed().as_deref(), Some("channel=1.34-classic/stable"));
    let received = world.k8sd.received();
    assert_eq!((received.len(), world.k8sd.count(REFRESH)), (3, 1));
    assert_eq!((received[0].at, &received[0].body, received[0].status), (begun, &body, 200));
}

#[tokio::test(start_paused = true)]
async fn changes_end_as_scripted() {
    let world = world().await;
    let ends = [
        (ChangeEnd::Error("no space".to_owned()), status("Error", true, "no space")),
        (ChangeEnd::Undone, status("Undone", true, "")),
        (ChangeEnd::Hold, status("Hold", true, "")),
    ];
    for (end, wanted) in ends {
        let duration = Duration::from_secs(5);
        world.k8sd.script(RefreshScript { end, duration, ..RefreshScript::default() });
        let id = world.refresh("1.34").await;
        pass(5).await;
        assert_eq!(world.status(&id).await, wanted);
        assert_eq!(world.k8sd.installed(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_requests_are_rejected_with_their_reason() {
    let world = world().await;
    let one_of = "only one of localPath, channel or revision can be specified";
    let cases = [
        (Some(TOKEN), json!({}), 400, "empty snap refresh target"),
        (Some(TOKEN), json!({"channel": "a", "revision": "1"}), 400, one_of),
        (Some(TOKEN), json!({"channel": "a", "extra": "1"}), 400, "unknown field `extra`"),
        (Some(TOKEN), json!("text"), 400, "failed to parse request"),
        (None, json!({"channel": "a"}), 401, "missing header \"node-token\""),
        (Some("wrong"), json!({"channel": "a"}), 401, "invalid token"),
    ];
    for (token, body, wanted, text) in cases {
        let (code, answer) = world.call(REFRESH, token, body.clone()).await.unwrap();
        assert_eq!((code, &answer["error_code"]), (wanted, &json!(wanted)), "{body}");
        assert!(answer["error"].as_str().unwrap().contains(text), "{body}: {answer}");
        assert_eq!((&answer["type"], &answer["metadata"]), (&json!("error"), &Value::Null));
    }
    let (code, _) = world.call(REFRESH_STATUS, None, json!({"changeId": "1"})).await.unwrap();
    assert_eq!(code, 401);
    let (code, _) = world.call("/1.0/snap", Some(TOKEN), json!({})).await.unwrap();
    assert_eq!(code, 404);
    assert_eq!(world.k8sd.changes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_refresh_fails_while_one_runs() {
    let world = world().await;
    world.refresh("1.34").await;
    let body = json!({"channel": "1.35"});
    let (code, answer) = world.call(REFRESH, Some(TOKEN), body).await.unwrap();
    assert_eq!(code, 500);
    let text = answer["error"].as_str().unwrap();
    assert!(text.contains("snap \"k8s\" has \"refresh-snap\" change in progress"), "{text}");
    pass(60).await;
    assert_eq!(world.refresh("1.35").await, "2");
}

#[tokio::test(start_paused = true)]
async fn a_refresh_to_what_is_installed_has_no_change_id() {
    let world = world().await;
    world.k8sd.install("channel=1.34");
    assert_eq!(world.refresh("1.34").await, "");
    assert_eq!(world.status("").await, status("", false, ""));
    world
        .k8sd
        .script(RefreshScript { reply: RefreshReply::NothingToDo, ..RefreshScript::default() });
    assert_eq!(world.refresh("1.35").await, "");
    assert_eq!(world.k8sd.changes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pruned_change_is_unknown() {
    let world = world().await;
    let id = world.refresh("1.34").await;
    pass(60).await;
    world.k8sd.forget_changes();
    assert_eq!(world.status(&id).await, status("", false, ""));
    assert_eq!(world.status("99").await, status("", false, ""));
}

#[tokio::test(start_paused = true)]
async fn a_failing_command_begins_no_change() {
    let world = world().await;
    let reply = RefreshReply::Fails("error: no such channel".to_owned());
    world.k8sd.script(RefreshScript { reply, ..RefreshScript::default() });
    let (code, answer) = world.call(REFRESH, Some(TOKEN), json!({"channel": "x"})).await.unwrap();
    assert_eq!((code, world.k8sd.changes()), (500, 0));
    assert_eq!(answer["error"], "failed to refresh snap: error: no such channel");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_a_running_change() {
    let world = world().await;
    let reply = RefreshReply::Lost;
    world.k8sd.script(RefreshScript { reply, ..RefreshScript::default() });
    let outcome = world.call(REFRESH, Some(TOKEN), json!({"channel": "1.34"})).await;
    assert!(matches!(outcome, Err(PinnedPostError::Transport { .. })));
    assert!(world.k8sd.is_busy());
    assert!(world.k8sd.received()[0].lost);
    assert_eq!(world.status("1").await, status("Doing", false, ""));
}

#[tokio::test(start_paused = true)]
async fn a_restart_refuses_connections_and_may_replace_the_certificate() {
    for (reach, text) in [(Reach::Refused, "connection refused"), (Reach::HangsUp, "eof")] {
        let world = world().await;
        let restart = Restart {
            after: Duration::from_secs(10),
            lasts: Duration::from_secs(20),
            reach,
            replaces_certificate: true,
        };
        world.k8sd.script(RefreshScript { restart: Some(restart), ..RefreshScript::default() });
        let before = world.fingerprint().await;
        let id = world.refresh("1.34").await;
        pass(15).await;
        let error = world.connect(Pin::Known(before)).await.unwrap_err();
        assert!(matches!(error, PinnedOpenError::Handshake { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        pass(20).await;
        let error = world.connect(Pin::Known(before)).await.unwrap_err();
        let PinnedOpenError::Changed { changed, .. } = error else { panic!("{error}") };
        assert_eq!((changed.known, changed.seen), (before, world.fingerprint().await));
        pass(30).await;
        assert_eq!(world.status(&id).await, status("Done", true, ""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_breaks_open_connections() {
    let world = world().await;
    let open = world.connect(Pin::FirstUse).await.unwrap();
    world.k8sd.set_reach(Reach::Refused);
    pass(1).await;
    world.k8sd.set_reach(Reach::Up);
    let post = JsonPost {
        path: REFRESH.to_owned(),
        headers: vec![(HeaderName::from_static("node-token"), HeaderValue::from_static(TOKEN))],
        body: json!({"channel": "1.34"}).to_string().into_bytes(),
        changes: true,
    };
    assert!(matches!(open.post(post).await, Err(PinnedPostError::Transport { .. })));
    assert_eq!(world.k8sd.count(REFRESH), 0);
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_node_refreshes_its_certificates_alone() {
    let world = world().await;
    let node = Some(TOKEN);
    let (_, answer) = world.call(CERTIFICATES_EXPIRY, node, json!({})).await.unwrap();
    assert_eq!(answer["metadata"], json!({"expiry-date": "2027-01-01T00:00:00Z"}));
    let (_, answer) = world.call(CERTIFICATES_PLAN, node, json!({})).await.unwrap();
    let seed = &answer["metadata"]["seconds"];
    assert!(answer["metadata"]["certificate-signing-requests"].is_null());
    let run = json!({"seed": seed, "expiration-seconds": 3600, "extra-sans": ["api.test"]});
    let (_, answer) = world.call(CERTIFICATES_RUN, node, run).await.unwrap();
    assert_eq!(world.k8sd.certificates_expire().to_string(), "2026-01-01T01:00:00Z");
    let unix = world.k8sd.certificates_expire().as_second();
    assert_eq!(answer["metadata"], json!({"expiration-seconds": unix}));
}

#[tokio::test(start_paused = true)]
async fn a_worker_gets_certificates_once_its_requests_are_approved() {
    let world = world().await;
    world.k8sd.join(SigningRequests::new("cluster"), true);
    let (_, answer) = world.call(CERTIFICATES_PLAN, Some(TOKEN), json!({})).await.unwrap();
    let seed = answer["metadata"]["seconds"].clone();
    let first = format!("k8sd-{seed}-worker-kubelet-serving");
    assert_eq!(answer["metadata"]["certificate-signing-requests"][0], first);
    let approval = json!({"seed": seed});
    let approve = |token| world.call(CERTIFICATES_APPROVE, token, approval.clone());
    assert_eq!(approve(None).await.unwrap().0, 401);
    assert_eq!(approve(Some(TOKEN)).await.unwrap().0, 401);
    let (code, answer) = approve(Some("cluster")).await.unwrap();
    assert_eq!(code, 500);
    assert!(answer["error"].as_str().unwrap().ends_with("not found"), "{answer}");
    let run = json!({"seed": seed, "expiration-seconds": 60, "extra-sans": null});
    let approved = async {
        pass(5).await;
        assert_eq!(world.k8sd.certificates_expire().to_string(), "2027-01-01T00:00:00Z");
        approve(Some("cluster")).await.unwrap()
    };
    let (ran, approved) = tokio::join!(world.call(CERTIFICATES_RUN, Some(TOKEN), run), approved);
    let (code, ran) = ran.unwrap();
    assert_eq!((code, approved.0), (200, 200));
    assert_eq!(ran["metadata"], json!({"expiration-seconds": 60}), "as an older k8sd answers");
    assert_eq!(approve(Some("cluster")).await.unwrap().0, 500);
}
