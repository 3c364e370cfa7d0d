//! The client stack against an API server behind TLS, in memory and on a paused clock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use crate::common::{
    HOST, PORT, Pki, Switch, World, config, config_map, hangs, kubeconfig, serve_with,
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use lab_apiserver::{FaultAction, FaultRule};
use refit_runtime::{client::too_large, gate::Open};
use serde_json::json;
use tokio::time::Instant;

fn post() -> PostParams {
    PostParams::default()
}

#[expect(clippy::disallowed_methods, reason = "measures a wait")]
fn instant() -> Instant {
    Instant::now()
}

async fn watch(
    api: &Api<ConfigMap>,
) -> futures::stream::BoxStream<'static, kube::Result<WatchEvent<ConfigMap>>> {
    let params = WatchParams::default().timeout(3600).disable_bookmarks();
    api.watch(&params, "0").await.unwrap().boxed()
}

#[tokio::test(start_paused = true)]
async fn a_client_from_a_kubeconfig_creates_reads_changes_and_deletes() {
    let world = World::new();
    let api = world.configs().await;
    api.create(&post(), &config_map("a", "1")).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"value": "2"}}));
    api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    let read = api.get("a").await.unwrap();
    assert_eq!(read.data.unwrap()["value"], "2");
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn one_handshake_serves_many_requests() {
    let world = World::new();
    let api = world.configs().await;
    for number in 0..100 {
        let name = format!("c-{number}");
        api.create(&post(), &config_map(&name, "1")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(number % 50)).await;
    }
    assert_eq!(world.handshakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_request_meets_a_connection_that_closes() {
    let world = World::new();
    let api = world.configs().await;
    for seconds in [54, 55, 56, 90, 99, 100, 101, 300] {
        for millis in [0, 1] {
            let name = format!("c-{seconds}-{millis}");
            api.create(&post(), &config_map(&name, "1")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(seconds * 1000 + millis)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_before_a_write_writes_nothing() {
    let world = World::new();
    let switch = Switch::before(2);
    let api: Api<ConfigMap> = Api::namespaced(world.client_of(switch.clone()).await, "default");
    api.create(&post(), &config_map("a", "1")).await.unwrap();
    assert!(hangs(api.create(&post(), &config_map("b", "1"))).await);
    assert!(world.stored("a").is_some());
    assert!(world.stored("b").is_none());
    assert_eq!(switch.effects(), ["api POST /api/v1/namespaces/default/configmaps"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_process_killed_after_a_write_gets_no_response() {
    let world = World::new();
    let api: Api<ConfigMap> = Api::namespaced(world.client_of(Switch::after(1)).await, "default");
    assert!(hangs(api.create(&post(), &config_map("a", "1"))).await);
    assert!(world.stored("a").is_some());
    assert!(hangs(api.delete("a", &DeleteParams::default())).await);
    assert!(world.stored("a").is_some());
}

#[tokio::test(start_paused = true)]
async fn reads_are_no_effects_and_are_held_back_after_the_kill() {
    let world = World::new();
    world.direct().create(&post(), &config_map("a", "1")).await.unwrap();
    let switch = Arc::new(Switch::default());
    let api: Api<ConfigMap> = Api::namespaced(world.client_of(switch.clone()).await, "default");
    api.get("a").await.unwrap();
    assert!(switch.effects().is_empty());
    switch.kill();
    assert!(hangs(api.get("a")).await);
    assert!(hangs(api.list(&ListParams::default())).await);
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_at_the_kill_get_no_response() {
    let world = World::new();
    let switch = Arc::new(Switch::default());
    let api: Api<ConfigMap> = Api::namespaced(world.client_of(switch.clone()).await, "default");
    world.direct().create(&post(), &config_map("a", "1")).await.unwrap();
    api.get("a").await.unwrap();
    world.server.faults().set_latency(Duration::from_secs(5));
    let kill = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        switch.kill();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = kill => unreachable!(),
        hung = hangs(api.get("a")) => assert!(hung),
    }
}

#[tokio::test(start_paused = true)]
async fn an_unprocessed_write_dies_with_its_process() {
    let world = World::new();
    world.server.faults().set_latency(Duration::from_secs(5));
    let switch = Arc::new(Switch::default());
    let client = world.client_of(switch.clone()).await;
    let process = tokio::spawn(async move {
        let api: Api<ConfigMap> = Api::namespaced(client, "default");
        api.create(&post(), &config_map("a", "1")).await
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.log().len(), 1, "the server has it in hand");
    switch.kill();
    process.abort();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.stored("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_sees_no_more_of_its_watches() {
    let world = World::new();
    let switch = Arc::new(Switch::default());
    let api: Api<ConfigMap> = Api::namespaced(world.client_of(switch.clone()).await, "default");
    let mut events = watch(&api).await;
    world.direct().create(&post(), &config_map("a", "1")).await.unwrap();
    assert!(events.next().await.unwrap().is_ok());
    world.direct().create(&post(), &config_map("b", "1")).await.unwrap();
    // The event is in the stream already, unread.
    tokio::time::sleep(Duration::from_secs(1)).await;
    switch.kill();
    assert!(hangs(events.next()).await);
}

#[tokio::test(start_paused = true)]
async fn two_processes_on_one_network_die_apart() {
    let world = World::new();
    let (first, second) = (Switch::before(1), Arc::new(Switch::default()));
    let dying: Api<ConfigMap> = Api::namespaced(world.client_of(first).await, "default");
    let living: Api<ConfigMap> = Api::namespaced(world.client_of(second).await, "default");
    assert!(hangs(dying.create(&post(), &config_map("a", "1"))).await);
    living.create(&post(), &config_map("a", "2")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_its_deadline() {
    let world = World::new();
    world.server.faults().set_latency(Duration::from_secs(3600));
    let begin = instant();
    let error = world.configs().await.get("a").await.unwrap_err();
    assert_eq!(begin.elapsed().as_secs(), 30);
    assert!(error.to_string().contains("within 30 s"), "{error}");
    let stack = world.stack(Arc::new(Open)).with_deadline(Duration::from_secs(7));
    let client = stack.client(&world.config().await).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    api.get("a").await.unwrap_err();
    assert_eq!(begin.elapsed().as_secs(), 37);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_begin_ends_at_the_deadline() {
    let world = World::new();
    world
        .server
        .faults()
        .add(FaultRule::next(FaultAction::Delay(Duration::from_secs(3600))).verb("watch"));
    let begin = instant();
    let params = WatchParams::default();
    assert!(world.configs().await.watch(&params, "0").await.is_err());
    assert_eq!(begin.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_has_begun_may_be_silent_for_long() {
    let world = World::new();
    let mut events = watch(&world.configs().await).await;
    tokio::time::sleep(Duration::from_secs(250)).await;
    world.direct().create(&post(), &config_map("a", "1")).await.unwrap();
    assert!(matches!(events.try_next().await.unwrap(), Some(WatchEvent::Added(_))));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stalls_ends_and_a_slow_one_does_not() {
    let world = World::new();
    world.stop();
    // One chunk every 20 s, and nothing after the given number of chunks.
    let answer = |pieces: usize| {
        move |_| async move {
            let text = json!({"metadata": {"name": "a"}}).to_string();
            let text: Vec<String> = text.chars().map(String::from).collect();
            let stream = futures::stream::iter(text.into_iter().enumerate()).then(
                move |(number, piece)| async move {
                    if number >= pieces {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    Ok::<_, std::io::Error>(Frame::data(Bytes::from(piece)))
                },
            );
            Response::new(StreamBody::new(stream))
        }
    };
    let task = serve_with(world.network.listen(HOST, PORT), &world.pki, answer(5));
    let begin = instant();
    let error = world.configs().await.get("a").await.unwrap_err();
    assert_eq!(begin.elapsed().as_secs(), 130);
    assert!(error.to_string().contains("stalled"), "{error}");
    task.abort();
    serve_with(world.network.listen(HOST, PORT), &world.pki, answer(1000));
    world.configs().await.get("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_of_another_authority_is_refused() {
    let world = World::new();
    let other = Pki::new(&[HOST]);
    let config = config(&kubeconfig(&World::url(), other.ca())).await;
    let client = world.stack(Arc::new(Open)).client(&config).unwrap();
    let error = client.apiserver_version().await.unwrap_err();
    assert!(format!("{error:?}").contains("InvalidCertificate"), "{error:?}");
    assert!(world.log().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_of_another_name_is_refused() {
    let world = World::new();
    world.stop();
    let pki = Pki::new(&["other.test"]);
    serve_with(world.network.listen(HOST, PORT), &pki, |_| async {
        Response::new(Full::new(Bytes::new()))
    });
    let config = config(&kubeconfig(&World::url(), pki.ca())).await;
    let client = world.stack(Arc::new(Open)).client(&config).unwrap();
    assert!(client.apiserver_version().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_unaccepted_connection_fails_after_ten_seconds() {
    let world = World::new();
    world.stop();
    let _listener = world.network.listen(HOST, PORT);
    let begin = instant();
    assert!(world.client().await.apiserver_version().await.is_err());
    assert_eq!(begin.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_api_fails_at_once_and_recovers() {
    let world = World::new();
    let api = world.configs().await;
    api.create(&post(), &config_map("a", "1")).await.unwrap();
    world.stop();
    let begin = instant();
    assert!(api.get("a").await.is_err());
    assert_eq!(begin.elapsed(), Duration::ZERO);
    world.start();
    api.get("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_carries_token_and_user_agent_and_nothing_is_retried() {
    let world = World::new();
    world.stop();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    serve_with(world.network.listen(HOST, PORT), &world.pki, move |request| {
        let headers: BTreeMap<String, String> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        into.lock().unwrap().push(headers);
        async {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": "later", "reason": "TooManyRequests", "code": 429});
            let mut response = Response::new(Full::new(Bytes::from(status.to_string())));
            *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
            response
        }
    });
    let begin = instant();
    let error = world.configs().await.get("a").await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 429));
    assert_eq!(begin.elapsed(), Duration::ZERO);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["authorization"], "Bearer sesame");
    assert_eq!(seen[0]["user-agent"], "test/1");
}

#[tokio::test(start_paused = true)]
async fn a_url_with_a_path_is_a_prefix_that_no_effect_shows() {
    let world = World::new();
    world.stop();
    let paths = Arc::new(Mutex::new(Vec::new()));
    let into = paths.clone();
    serve_with(world.network.listen(HOST, PORT), &world.pki, move |request| {
        into.lock().unwrap().push(request.uri().path().to_owned());
        async { Response::new(Full::new(Bytes::from("{}"))) }
    });
    let config = config(&kubeconfig(&format!("{}/clusters/x", World::url()), world.pki.ca())).await;
    let switch = Arc::new(Switch::default());
    let client = world.stack(switch.clone()).client(&config).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let _ = api.delete("a", &DeleteParams::default()).await;
    assert_eq!(*paths.lock().unwrap(), ["/clusters/x/api/v1/namespaces/default/configmaps/a"]);
    assert_eq!(switch.effects(), ["api DELETE /api/v1/namespaces/default/configmaps/a"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_leaves_the_client_usable() {
    let world = World::new();
    let api = world.configs().await;
    world.server.faults().set_latency(Duration::from_secs(5));
    for _ in 0..3 {
        let call = tokio::time::timeout(Duration::from_secs(1), api.get("a"));
        assert!(call.await.is_err());
    }
    world.server.faults().clear();
    assert!(api.get_opt("a").await.unwrap().is_none());
    let api: Api<ConfigMap> = Api::namespaced(world.client_of(Arc::new(Open)).await, "default");
    let (first, second) = futures::join!(api.get_opt("a"), api.get_opt("b"));
    assert!(first.unwrap().is_none() && second.unwrap().is_none());
    assert!(world.handshakes.load(Ordering::SeqCst) < 8);
}

#[tokio::test(start_paused = true)]
async fn a_body_of_many_megabytes_passes_both_ways() {
    let world = World::new();
    let api = world.configs().await;
    let value = "x".repeat(900_000);
    for name in ["a", "b", "c", "d"] {
        api.create(&post(), &config_map(name, &value)).await.unwrap();
    }
    let list = api.list(&ListParams::default()).await.unwrap();
    assert!(list.items.iter().all(|c| c.data.as_ref().unwrap()["value"].len() == 900_000));
    let body = world.client().await;
    let request = http::Request::get("/version").body(Vec::new()).unwrap();
    let response = body.send(request.map(kube::client::Body::from)).await.unwrap();
    assert!(!response.into_body().collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_response_of_more_than_the_limit_fails_as_too_large() {
    let world = World::new();
    let stack = world.stack(Arc::new(Open)).with_max_answer(1 << 20);
    let api: Api<ConfigMap> =
        Api::namespaced(stack.client(&world.config().await).unwrap(), "default");
    let half = "x".repeat(1 << 19);
    let mut events = watch(&api).await;
    world.direct().create(&post(), &config_map("a", &half)).await.unwrap();
    assert!(events.next().await.unwrap().is_ok());
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);

    world.direct().create(&post(), &config_map("b", &half)).await.unwrap();
    assert!(events.next().await.unwrap().is_ok(), "each event is limited by itself");
    let error = api.list(&ListParams::default()).await.unwrap_err();
    let what = too_large(&error).expect("the size is the cause");
    assert_eq!(what.to_string(), "it sends a response of more than 1 MiB");

    world.direct().create(&post(), &config_map("c", &half.repeat(3))).await.unwrap();
    let error = events.next().await.unwrap().unwrap_err();
    let what = too_large(&error).expect("the size is the cause");
    assert_eq!(what.to_string(), "it sends an event of more than 1 MiB");
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_concurrency_wait_for_their_turn() {
    let world = World::new();
    let stack = world.stack(Arc::new(Open)).with_concurrency(2);
    let api: Api<ConfigMap> =
        Api::namespaced(stack.client(&world.config().await).unwrap(), "default");
    // An open watch does not count as a call.
    let _events = [watch(&api).await, watch(&api).await];
    world.server.faults().set_latency(Duration::from_secs(1));
    let begin = instant();
    let list = async || {
        api.list(&ListParams::default()).await.unwrap();
        begin.elapsed().as_secs()
    };
    let ended = futures::join!(list(), list(), list(), list(), list());
    let seconds: Vec<u64> = [ended.0, ended.1, ended.2, ended.3, ended.4].into();
    assert_eq!(seconds, [1, 1, 2, 2, 3]);
}
