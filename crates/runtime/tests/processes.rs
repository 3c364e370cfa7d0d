//! How processes use their clients: workload clusters, events, patches, hook calls.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common::{HOST, Pki, Switch, World, config_map, hangs, kubeconfig, serve_with};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, ObjectReference, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use refit_runtime::{
    apply::{
        Ensured, annotate, apply, apply_status, create_or_get, is_conflict, is_not_found, merge,
        merge_diff, optional, swap_status,
    },
    client::{HttpsPoster, PostError},
    events::{Announcement, EventType, Recorder},
    gate::Open,
    workload::{WorkloadError, Workloads, kubeconfig_secret_name},
};
use serde_json::{Value, json};

// === Workload clusters ===

/// A management cluster with the kubeconfig of a workload cluster, which is the same server.
struct Fleet {
    world: World,
    workloads: Workloads,
}

impl Fleet {
    async fn new() -> Self {
        let world = World::new();
        let stack = world.stack(Arc::new(Open));
        let workloads = Workloads::new(world.client().await, stack, world.clock);
        Self { world, workloads }
    }

    async fn write(&self, text: &str) {
        let api: Api<Secret> = Api::namespaced(self.world.client().await, "default");
        let body = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": kubeconfig_secret_name("edge")},
            "data": {"value": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text)},
        });
        apply(&api, "test", &kubeconfig_secret_name("edge"), &body).await.unwrap();
        self.world.log();
    }

    async fn write_good(&self) {
        self.write(&kubeconfig(&World::url(), self.world.pki.ca())).await;
    }

    async fn refused(&self) -> WorkloadError {
        match self.workloads.client("default", "edge").await {
            Ok(_) => panic!("it was reached"),
            Err(error) => error,
        }
    }

    fn secret_reads(&self) -> usize {
        let log = self.world.log();
        log.iter().filter(|line| line.contains("/secrets/edge-kubeconfig")).count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_workload_cluster_is_reached_through_its_secret_which_is_read_once() {
    let fleet = Fleet::new().await;
    fleet.write_good().await;
    for _ in 0..5 {
        let client = fleet.workloads.client("default", "edge").await.unwrap();
        client.apiserver_version().await.unwrap();
    }
    assert_eq!(fleet.secret_reads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_secret_is_read_again_after_ten_minutes_and_after_a_refusal() {
    let fleet = Fleet::new().await;
    fleet.write_good().await;
    fleet.workloads.client("default", "edge").await.unwrap();
    tokio::time::sleep(Duration::from_secs(599)).await;
    fleet.workloads.client("default", "edge").await.unwrap();
    assert_eq!(fleet.secret_reads(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    fleet.workloads.client("default", "edge").await.unwrap();
    assert_eq!(fleet.secret_reads(), 1);
    fleet.workloads.forget("default", "edge");
    fleet.workloads.client("default", "edge").await.unwrap();
    assert_eq!(fleet.secret_reads(), 1);
    fleet.workloads.client("default", "edge").await.unwrap();
    assert_eq!(fleet.secret_reads(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_secret_keeps_the_connections() {
    let fleet = Fleet::new().await;
    fleet.write_good().await;
    for _ in 0..5 {
        let client = fleet.workloads.client("default", "edge").await.unwrap();
        client.apiserver_version().await.unwrap();
        fleet.workloads.forget("default", "edge");
    }
    // One for the writer in this test, one for the management cluster and one for the workload
    // cluster.
    assert_eq!(fleet.world.handshakes(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_client_of_a_removed_cluster_is_not_kept() {
    let fleet = Fleet::new().await;
    fleet.write_good().await;
    for _ in 0..2 {
        let client = fleet.workloads.client("default", "edge").await.unwrap();
        client.apiserver_version().await.unwrap();
        assert_eq!(fleet.secret_reads(), 1);
        fleet.workloads.remove("default", "edge");
    }
    // One for the writer in this test, one for the management cluster and two for the workload cluster.
    assert_eq!(fleet.world.handshakes(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_rotated_authority_is_used() {
    let fleet = Fleet::new().await;
    fleet.write(&kubeconfig(&World::url(), Pki::new(&[HOST]).ca())).await;
    let client = fleet.workloads.client("default", "edge").await.unwrap();
    assert!(client.apiserver_version().await.is_err());
    fleet.write_good().await;
    fleet.workloads.forget("default", "edge");
    let client = fleet.workloads.client("default", "edge").await.unwrap();
    client.apiserver_version().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_unusable_secret_is_named_in_the_error() {
    let fleet = Fleet::new().await;
    let error = fleet.refused().await;
    assert!(matches!(&error, WorkloadError::Secret { source, .. } if is_not_found(source)));
    assert!(error.to_string().contains("default/edge-kubeconfig of cluster edge"));
    fleet.write("users: 7").await;
    let error = fleet.refused().await;
    assert!(matches!(error, WorkloadError::Content { .. }), "{error}");
    let program = kubeconfig(&World::url(), fleet.world.pki.ca())
        .replace("\"token\":\"sesame\"", "\"exec\":{\"command\":\"id\"}");
    fleet.write(&program).await;
    let error = fleet.refused().await;
    assert!(error.to_string().contains("a program (exec)"), "{error}");
    fleet.write_good().await;
    fleet.workloads.client("default", "edge").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cluster_with_a_deleted_secret_is_unreachable() {
    let fleet = Fleet::new().await;
    fleet.write_good().await;
    fleet.workloads.client("default", "edge").await.unwrap();
    let api: Api<Secret> = Api::namespaced(fleet.world.client().await, "default");
    api.delete("edge-kubeconfig", &DeleteParams::default()).await.unwrap();
    fleet.workloads.forget("default", "edge");
    for _ in 0..2 {
        assert!(fleet.workloads.client("default", "edge").await.is_err());
    }
}

// === Events ===

fn announcement(occurrence: &str) -> Announcement {
    Announcement {
        about: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("ConfigMap".into()),
            name: Some("a".into()),
            namespace: Some("default".into()),
            uid: Some("u".into()),
            ..ObjectReference::default()
        },
        type_: EventType::Warning,
        reason: "Draining".into(),
        message: "The node is drained.".into(),
        occurrence: occurrence.into(),
    }
}

async fn events(world: &World) -> Vec<Event> {
    let api: Api<Event> = Api::namespaced(world.client().await, "default");
    api.list(&ListParams::default()).await.unwrap().items
}

#[tokio::test(start_paused = true)]
async fn the_same_occurrence_is_announced_once_by_all_processes() {
    let world = World::new();
    for _ in 0..3 {
        // A new process each time.
        let recorder = Recorder::new(world.client().await, world.clock, "refit-controller");
        recorder.announce(&announcement("a-1")).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let recorder = Recorder::new(world.client().await, world.clock, "refit-controller");
    recorder.announce(&announcement("a-2")).await;
    let events = events(&world).await;
    assert_eq!(events.len(), 2);
    let first = events.iter().min_by_key(|event| event.first_timestamp.clone()).unwrap();
    assert_eq!(first.type_.as_deref(), Some("Warning"));
    assert_eq!(first.involved_object.name.as_deref(), Some("a"));
    assert_eq!(first.reporting_component.as_deref(), Some("refit-controller"));
    assert_eq!(first.first_timestamp.as_ref().unwrap().0, crate::common::epoch());
    assert!(first.name_any().starts_with("a."));
}

#[tokio::test(start_paused = true)]
async fn an_event_about_a_cluster_scoped_object_is_taken() {
    let world = World::new();
    let mut node = announcement("n-1");
    node.about.kind = Some("Node".into());
    node.about.namespace = None;
    let recorder = Recorder::new(world.client().await, world.clock, "refit-controller");
    recorder.announce(&node).await;
    assert_eq!(events(&world).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_event_stops_no_work() {
    let world = World::new();
    let recorder = Recorder::new(world.client().await, world.clock, "refit-controller");
    world.stop();
    recorder.announce(&announcement("a-1")).await;
}

// === Patches ===

async fn node(world: &World) -> (Api<Node>, Node) {
    let api: Api<Node> = Api::all(world.client().await);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let node: Node = serde_json::from_value(node).unwrap();
    let (node, outcome) = create_or_get(&api, &node).await.unwrap();
    assert_eq!(outcome, Ensured::Created);
    (api, node)
}

fn status_of(world: &World) -> Value {
    world.server.get_value("", "nodes", "", "n").unwrap()["status"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_status_is_swapped_only_if_unchanged() {
    let world = World::new();
    let (api, read) = node(&world).await;
    let version = read.resource_version().unwrap();
    let old = json!({"phase": "Pending", "capacity": {"cpu": "4"}});
    let written = swap_status(&api, "n", &version, &old).await.unwrap();
    let new = json!({"phase": "Running", "capacity": {"memory": "1Gi"}});
    let error = swap_status(&api, "n", &version, &new).await.unwrap_err();
    assert!(is_conflict(&error), "{error}");
    assert_eq!(status_of(&world)["phase"], "Pending");
    let version = written.resource_version().unwrap();
    let patch = merge_diff(&old, &new).unwrap();
    swap_status(&api, "n", &version, &patch).await.unwrap();
    assert_eq!(status_of(&world), new);
}

#[tokio::test(start_paused = true)]
async fn one_of_two_concurrent_swaps_wins() {
    let world = World::new();
    let (api, read) = node(&world).await;
    let version = read.resource_version().unwrap();
    let (pending, running) = (json!({"phase": "Pending"}), json!({"phase": "Running"}));
    let (first, second) = futures::join!(
        swap_status(&api, "n", &version, &pending),
        swap_status(&api, "n", &version, &running),
    );
    assert_ne!(first.is_ok(), second.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_swap_touches_nothing_but_the_status() {
    let world = World::new();
    let (api, read) = node(&world).await;
    annotate(&api, "n", &[("a", Some("1"))]).await.unwrap();
    let read = optional(api.get(&read.name_any()).await).unwrap().unwrap();
    let version = read.resource_version().unwrap();
    let written = swap_status(&api, "n", &version, &json!({"phase": "Running"})).await.unwrap();
    assert_eq!(written.annotations()["a"], "1");
    assert_eq!(written.uid(), read.uid());
}

#[tokio::test(start_paused = true)]
async fn applying_the_same_twice_writes_once() {
    let world = World::new();
    let api = world.configs().await;
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"},
        "data": {"x": "1"}});
    let first = apply(&api, "us", "a", &body).await.unwrap();
    let again = apply(&api, "us", "a", &body).await.unwrap();
    assert_eq!(first.resource_version(), again.resource_version());
    // A field of another manager is taken over.
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"},
        "data": {"x": "2"}});
    let taken = apply(&api, "them", "a", &other).await.unwrap();
    assert_eq!(taken.data.unwrap()["x"], "2");
    let (nodes, _) = node(&world).await;
    let status = json!({"phase": "Running"});
    let first = apply_status(&nodes, "us", "n", &status).await.unwrap();
    let again = apply_status(&nodes, "us", "n", &status).await.unwrap();
    assert_eq!(first.resource_version(), again.resource_version());
}

#[tokio::test(start_paused = true)]
async fn a_create_of_an_existing_object_reads_it() {
    let world = World::new();
    let api = world.configs().await;
    let (first, outcome) = create_or_get(&api, &config_map("a", "1")).await.unwrap();
    assert_eq!(outcome, Ensured::Created);
    let (second, outcome) = create_or_get(&api, &config_map("a", "2")).await.unwrap();
    assert_eq!(outcome, Ensured::Found);
    assert_eq!((first.uid(), &first.data), (second.uid(), &second.data));
}

#[tokio::test(start_paused = true)]
async fn annotations_are_set_and_removed_and_404_is_optional() {
    let world = World::new();
    let api = world.configs().await;
    api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let set = [("x/y", Some("1")), ("x/z", Some("2"))];
    annotate(&api, "a", &set).await.unwrap();
    let changed = annotate(&api, "a", &[("x/y", None)]).await.unwrap();
    assert_eq!(changed.annotations().len(), 1);
    let missing: kube::Result<ConfigMap> = merge(&api, "b", &json!({"data": {}})).await;
    assert!(optional(missing).unwrap().is_none());
}

// === Hook calls ===

const HOOKS: &str = "hooks.test";

fn poster(world: &World, pki: &Pki) -> HttpsPoster {
    HttpsPoster::new(&world.stack(Arc::new(Open)), pki.ca().as_bytes()).unwrap()
}

async fn post(poster: &HttpsPoster, path: &str, body: &str) -> Result<(u16, Bytes), PostError> {
    let url = format!("https://{HOOKS}{path}");
    poster.post(&url, body.into(), Duration::from_secs(10)).await
}

/// Echoes; `/big/N` returns N bytes, `/slow` responds after a minute, `/moved` redirects.
async fn hook(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let typed = request.headers().contains_key("content-type");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    if path == "/slow" {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let body = match path.strip_prefix("/big/") {
        Some(size) => Bytes::from(vec![b'x'; size.parse().unwrap()]),
        None => Bytes::from(format!("{} {typed}", String::from_utf8_lossy(&body))),
    };
    let mut response = Response::new(Full::new(body));
    if path == "/moved" {
        *response.status_mut() = http::StatusCode::FOUND;
        let elsewhere = http::HeaderValue::from_static("https://hooks.test/ok");
        response.headers_mut().insert("location", elsewhere);
    }
    response
}

fn hooks(world: &World) -> Pki {
    let pki = Pki::new(&[HOOKS]);
    serve_with(world.network.listen(HOOKS, 443), &pki, hook);
    pki
}

#[tokio::test(start_paused = true)]
async fn a_hook_gets_the_body_without_a_content_type() {
    let world = World::new();
    let poster = poster(&world, &hooks(&world));
    let (status, body) = post(&poster, "/ok", "{}").await.unwrap();
    assert_eq!((status, &body[..]), (200, &b"{} false"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_hook_server_of_an_unknown_authority_is_refused() {
    let world = World::new();
    hooks(&world);
    let poster = poster(&world, &Pki::new(&[HOOKS]));
    let error = post(&poster, "/ok", "{}").await.unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_ca_bundle_without_certificates_is_refused() {
    let stack = World::new().stack(Arc::new(Open));
    for bundle in ["", "rubbish", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    {
        let error = HttpsPoster::new(&stack, bundle.as_bytes()).unwrap_err();
        assert!(matches!(error, PostError::CaBundle { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_more_than_twenty_mebibytes_is_refused() {
    let world = World::new();
    let poster = poster(&world, &hooks(&world));
    let limit = refit_kinds::hooks::MAX_BODY_BYTES;
    assert_eq!(limit, 20 * 1024 * 1024);
    let (_, body) = post(&poster, &format!("/big/{limit}"), "").await.unwrap();
    assert_eq!(body.len(), limit);
    let error = post(&poster, &format!("/big/{}", limit + 1), "").await.unwrap_err();
    assert!(error.to_string().contains("length limit exceeded"), "{error}");
    post(&poster, "/ok", "{}").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hook_call_ends_at_its_deadline() {
    let world = World::new();
    let poster = poster(&world, &hooks(&world));
    let error = post(&poster, "/slow", "{}").await.unwrap_err();
    assert!(matches!(error, PostError::Timeout { seconds: 10, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_redirect_is_not_followed_and_plain_http_not_spoken() {
    let world = World::new();
    let poster = poster(&world, &hooks(&world));
    assert_eq!(post(&poster, "/moved", "{}").await.unwrap().0, 302);
    for url in ["http://hooks.test/ok", "hooks.test", "/ok", "https://"] {
        let outcome = poster.post(url, Vec::new(), Duration::from_secs(10)).await;
        assert!(matches!(outcome, Err(PostError::Transport { .. })), "{url}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_gets_no_hook_responses() {
    let world = World::new();
    let pki = hooks(&world);
    let switch = Arc::new(Switch::default());
    let poster = HttpsPoster::new(&world.stack(switch.clone()), pki.ca().as_bytes()).unwrap();
    post(&poster, "/ok", "{}").await.unwrap();
    let kill = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        switch.kill();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = kill => unreachable!(),
        hung = hangs(post(&poster, "/slow", "{}")) => assert!(hung),
    }
    assert!(hangs(post(&poster, "/ok", "{}")).await);
}

#[tokio::test(start_paused = true)]
async fn a_hook_server_that_was_killed_does_not_answer() {
    let world = World::new();
    let pki = Pki::new(&[HOOKS]);
    let switch = Arc::new(Switch::default());
    let listener = world.network.listen(HOOKS, 443).behind(switch.clone());
    let calls = Arc::new(Mutex::new(0));
    let (count, gate) = (calls.clone(), switch.clone());
    serve_with(listener, &pki, move |request| {
        *count.lock().unwrap() += 1;
        // It dies while it prepares the response.
        gate.kill();
        hook(request)
    });
    let poster = poster(&world, &pki);
    assert!(post(&poster, "/ok", "{}").await.is_err());
    assert_eq!(*calls.lock().unwrap(), 1);
}
