//! Lists, selectors and watches.

use std::time::Duration;

use crate::common::{CONFIGS, PODS, WIDGETS, World, config, rv};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

async fn list_names(world: &World, path: &str) -> Vec<String> {
    let (code, list) = world.get(path).await;
    assert_eq!(code, 200, "{list}");
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn labelled(name: &str, app: &str) -> Value {
    let mut object = config(name, &json!({}));
    object["metadata"]["labels"] = json!({"app": app});
    object
}

#[tokio::test(start_paused = true)]
async fn lists_select_by_label_and_field() {
    let world = World::new();
    for (name, app) in [("a", "web"), ("b", "db"), ("c", "web")] {
        world.create(CONFIGS, &labelled(name, app)).await;
    }
    assert_eq!(list_names(&world, &format!("{CONFIGS}?labelSelector=app%3Dweb")).await, ["a", "c"]);
    assert_eq!(
        list_names(&world, &format!("{CONFIGS}?labelSelector=app+in+(db,web)&limit=0")).await,
        ["a", "b", "c"]
    );
    assert_eq!(
        list_names(&world, &format!("{CONFIGS}?fieldSelector=metadata.name%3Db")).await,
        ["b"]
    );
    assert_eq!(
        list_names(&world, "/api/v1/configmaps?fieldSelector=metadata.namespace%3Ddefault").await,
        ["a", "b", "c"]
    );
    let (code, status) = world.get(&format!("{CONFIGS}?fieldSelector=data.x%3D1")).await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().contains("field label not supported: data.x"));
}

#[tokio::test(start_paused = true)]
async fn pods_select_by_node_and_phase() {
    let world = World::new();
    for (name, node) in [("a", "n1"), ("b", "n2")] {
        let pod = json!({"metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c"}]}});
        world.create(PODS, &pod).await;
    }
    world.merge(&format!("{PODS}/a/status"), &json!({"status": {"phase": "Running"}})).await;
    assert_eq!(list_names(&world, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await, ["a"]);
    assert_eq!(
        list_names(&world, "/api/v1/pods?fieldSelector=status.phase!%3DRunning").await,
        ["b"]
    );
}

#[tokio::test(start_paused = true)]
async fn crds_name_further_fields_for_selectors() {
    let world = World::new();
    world.widgets().await;
    world.widget("a", &json!({"size": 1, "colour": "red"})).await;
    world.widget("b", &json!({"size": 1})).await;
    assert_eq!(
        list_names(&world, &format!("{WIDGETS}?fieldSelector=spec.colour%3Dred")).await,
        ["a"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_paged_list_shows_one_revision() {
    let world = World::new();
    for index in 0..5 {
        world.create(CONFIGS, &config(&format!("c{index}"), &json!({}))).await;
    }
    let (_, first) = world.get(&format!("{CONFIGS}?limit=2")).await;
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    world.delete(&format!("{CONFIGS}/c3"), &Value::Null).await;
    world.create(CONFIGS, &config("c9", &json!({}))).await;
    let mut names = Vec::new();
    let mut next = first["metadata"]["continue"].as_str().map(str::to_owned);
    while let Some(token) = next {
        let (code, page) = world.get(&format!("{CONFIGS}?limit=2&continue={token}")).await;
        assert_eq!(code, 200);
        assert_eq!(rv(&page), rv(&first));
        for item in page["items"].as_array().unwrap() {
            names.push(item["metadata"]["name"].as_str().unwrap().to_owned());
        }
        next = page["metadata"]["continue"].as_str().map(str::to_owned);
    }
    assert_eq!(names, ["c2", "c3", "c4"]);
    assert_eq!(world.get(&format!("{CONFIGS}?continue=nonsense")).await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn an_exact_list_looks_back_until_history_ends() {
    let world = World::with_ring(3);
    let first = world.create(CONFIGS, &config("a", &json!({"x": "1"}))).await;
    world.merge(&format!("{CONFIGS}/a"), &json!({"data": {"x": "2"}})).await;
    let path = format!("{CONFIGS}?resourceVersionMatch=Exact&resourceVersion={}", rv(&first));
    let (_, list) = world.get(&path).await;
    assert_eq!(list["items"][0]["data"]["x"], "1");
    for index in 0..5 {
        world.create(CONFIGS, &config(&format!("c{index}"), &json!({}))).await;
    }
    let (code, status) = world.get(&path).await;
    assert_eq!(code, 410);
    assert_eq!(status["reason"], "Expired");
}

#[tokio::test(start_paused = true)]
async fn a_list_in_the_future_is_too_large_a_version() {
    let world = World::new();
    let (code, status) = world.get(&format!("{CONFIGS}?resourceVersion=999")).await;
    assert_eq!(code, 504);
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(world.get(&format!("{CONFIGS}?resourceVersion=x")).await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn a_watch_delivers_writes() {
    let world = World::new();
    let mut watch = world.watch(&format!("{CONFIGS}?watch=true")).await;
    world.create(CONFIGS, &config("a", &json!({}))).await;
    watch.expect("ADDED", "a").await;
    world.merge(&format!("{CONFIGS}/a"), &json!({"data": {"x": "1"}})).await;
    watch.expect("MODIFIED", "a").await;
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(rv(&event["object"]), world.server.revision().to_string());
    watch.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_resumed_watch_loses_no_delete_in_the_gap() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let (_, list) = world.get(CONFIGS).await;
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    world.create(CONFIGS, &config("b", &json!({}))).await;
    world.delete(&format!("{CONFIGS}/b"), &Value::Null).await;
    let path = format!("{CONFIGS}?watch=1&resourceVersion={}", rv(&list));
    let mut watch = world.watch(&path).await;
    watch.expect("DELETED", "a").await;
    watch.expect("ADDED", "b").await;
    watch.expect("DELETED", "b").await;
    watch.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_past_the_ring_is_gone() {
    let world = World::with_ring(2);
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let (_, list) = world.get(CONFIGS).await;
    for index in 0..3 {
        world.create(CONFIGS, &config(&format!("c{index}"), &json!({}))).await;
    }
    let path = format!("{CONFIGS}?watch=1&resourceVersion={}", rv(&list));
    let mut watch = world.watch(&path).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_out_of_the_ring_gets_410() {
    let world = World::with_ring(3);
    let mut watch = world.watch(&format!("{CONFIGS}?watch=1")).await;
    for index in 0..9 {
        world.create(CONFIGS, &config(&format!("c{index}"), &json!({}))).await;
    }
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_outlives_a_busy_ring() {
    let world = World::with_ring(3);
    let mut watch = world.watch("/api/v1/nodes?watch=1").await;
    let start = world.server.revision();
    let mut late = world.watch(&format!("/api/v1/nodes?watch=1&resourceVersion={start}")).await;
    for index in 0..9 {
        world.create(CONFIGS, &config(&format!("c{index}"), &json!({}))).await;
    }
    world.create("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await;
    watch.expect("ADDED", "n").await;
    late.expect("ADDED", "n").await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_version_zero_starts_with_current_objects() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({}))).await;
    for path in [format!("{CONFIGS}?watch=1&resourceVersion=0"), format!("{CONFIGS}?watch=1")] {
        let mut watch = world.watch(&path).await;
        watch.expect("ADDED", "a").await;
        watch.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_selective_watch_turns_changes_into_added_and_deleted() {
    let world = World::new();
    let mut watch = world.watch(&format!("{CONFIGS}?watch=1&labelSelector=app%3Dweb")).await;
    world.create(CONFIGS, &labelled("a", "db")).await;
    watch.quiet().await;
    let path = format!("{CONFIGS}/a");
    world.merge(&path, &json!({"metadata": {"labels": {"app": "web"}}})).await;
    watch.expect("ADDED", "a").await;
    world.merge(&path, &json!({"data": {"x": "1"}})).await;
    watch.expect("MODIFIED", "a").await;
    world.merge(&path, &json!({"metadata": {"labels": {"app": "db"}}})).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["metadata"]["labels"]["app"], "web");
    assert_eq!(rv(&event["object"]), world.server.revision().to_string());
    world.delete(&path, &Value::Null).await;
    watch.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_stays_in_its_namespace() {
    let world = World::new();
    let mut watch = world.watch(&format!("{CONFIGS}?watch=1")).await;
    world.create("/api/v1/namespaces/kube-system/configmaps", &config("a", &json!({}))).await;
    watch.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end() {
    let world = World::new();
    let path = format!("{CONFIGS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=90");
    let mut watch = world.watch(&path).await;
    world.create("/api/v1/namespaces", &json!({"metadata": {"name": "x"}})).await;
    for _ in 0..2 {
        let event = watch.next().await.unwrap();
        assert_eq!(event["type"], "BOOKMARK");
        assert_eq!(event["object"]["kind"], "ConfigMap");
        assert_eq!(rv(&event["object"]), world.server.revision().to_string());
    }
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_an_annotated_bookmark() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let path = format!(
        "{CONFIGS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
         &allowWatchBookmarks=true"
    );
    let mut watch = world.watch(&path).await;
    watch.expect("ADDED", "a").await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "BOOKMARK");
    assert_eq!(event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(rv(&event["object"]), world.server.revision().to_string());
    world.create(CONFIGS, &config("b", &json!({}))).await;
    watch.expect("ADDED", "b").await;
    let (code, _) = world.get(&format!("{CONFIGS}?watch=1&sendInitialEvents=true")).await;
    assert_eq!(code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_cleanly_at_its_timeout() {
    let world = World::new();
    let mut watch = world.watch(&format!("{CONFIGS}?watch=1&timeoutSeconds=5")).await;
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn other_served_versions_see_the_same_objects() {
    let world = World::new();
    world.widgets().await;
    world.widget("w", &json!({"size": 1})).await;
    let other = "/apis/example.dev/v1alpha1/namespaces/default/widgets";
    assert_eq!(world.object(&format!("{other}/w")).await["apiVersion"], "example.dev/v1alpha1");
    let mut watch = world.watch(&format!("{other}?watch=1")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["apiVersion"], "example.dev/v1alpha1");
    let (code, patched) = world.merge(&format!("{other}/w"), &json!({"spec": {"size": 2}})).await;
    assert_eq!((code, &patched["apiVersion"]), (200, &json!("example.dev/v1alpha1")));
    let stored = world.object(&format!("{WIDGETS}/w")).await;
    assert_eq!(
        (&stored["apiVersion"], &stored["spec"]["size"]),
        (&json!("example.dev/v1"), &json!(2))
    );
}

async fn follow(config: watcher::Config) {
    let world = World::new();
    world.create(CONFIGS, &crate::common::config("a", &json!({}))).await;
    let api: Api<ConfigMap> = Api::namespaced(world.client(), "default");
    let mut events = Box::pin(watcher(api.clone(), config).default_backoff());
    let mut seen = Vec::new();
    while seen.last().map(String::as_str) != Some("deleted b") {
        let event = tokio::time::timeout(Duration::from_mins(15), events.next()).await.unwrap();
        match event.unwrap().unwrap() {
            watcher::Event::InitDone => {
                seen.push("done".to_owned());
                let b: ConfigMap =
                    serde_json::from_value(crate::common::config("b", &json!({}))).unwrap();
                api.create(&PostParams::default(), &b).await.unwrap();
                tokio::time::sleep(Duration::from_mins(10)).await;
                world.delete(&format!("{CONFIGS}/b"), &Value::Null).await;
            }
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                seen.push(format!("applied {}", object.metadata.name.unwrap()));
            }
            watcher::Event::Delete(object) => {
                seen.push(format!("deleted {}", object.metadata.name.unwrap()));
            }
            watcher::Event::Init => {}
        }
    }
    assert_eq!(seen, ["applied a", "done", "applied b", "deleted b"]);
}

#[tokio::test(start_paused = true)]
async fn kube_watchers_follow_by_list_and_watch() {
    follow(watcher::Config::default()).await;
}

#[tokio::test(start_paused = true)]
async fn kube_watchers_follow_by_streaming_lists() {
    follow(watcher::Config::default().streaming_lists()).await;
}

#[tokio::test(start_paused = true)]
async fn kube_pages_through_a_large_list() {
    let world = World::new();
    for index in 0..25 {
        world.create(CONFIGS, &config(&format!("c{index:02}"), &json!({}))).await;
    }
    let api: Api<ConfigMap> = Api::namespaced(world.client(), "default");
    let mut params = ListParams::default().limit(10);
    let mut count = 0;
    loop {
        let page = api.list(&params).await.unwrap();
        count += page.items.len();
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(count, 25);
}
