//! Features for simulation: snapshots, observers, faults, lagging views.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{CONFIGS, START, WIDGETS, World, config, options, rv, widget};
use lab_apiserver::{
    ApiServer, ChangeKind, Down, FaultAction, FaultRule, StaleView, StoreSnapshot,
};
use serde_json::{Value, json};

fn restored(world: &World, snapshot: StoreSnapshot) -> World {
    let options = options(&world.seconds, 10_000);
    World { server: ApiServer::restore(snapshot, options), ..world.clone() }
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_continues_unchanged() {
    let world = World::new();
    world.widgets().await;
    world.widget("w", &json!({"size": 1})).await;
    world.create(CONFIGS, &json!({"metadata": {"generateName": "c-"}})).await;
    world.create(CONFIGS, &config("old", &json!({}))).await;
    world.delete(&format!("{CONFIGS}/old"), &Value::Null).await;
    let snapshot = world.server.snapshot();
    let text = serde_json::to_string(&snapshot).unwrap();
    let read: StoreSnapshot = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text, "the file form is stable");
    let mut dumps = Vec::new();
    for world in [world.clone(), restored(&world, snapshot), restored(&world, read)] {
        world.widget("v", &json!({"size": 2, "bogus": 1})).await;
        world.create(CONFIGS, &json!({"metadata": {"generateName": "c-"}})).await;
        world.create(CONFIGS, &config("old", &json!({}))).await;
        world.merge(&format!("{WIDGETS}/w/status"), &json!({"status": {"phase": "Up"}})).await;
        let dump: Vec<Value> = world.server.dump().into_iter().map(|(_, value)| value).collect();
        dumps.push((world.server.revision(), dump));
    }
    assert_eq!(dumps[0], dumps[1]);
    assert_eq!(dumps[0], dumps[2]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_untouched_by_later_writes() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let snapshot = world.server.snapshot();
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    let before = restored(&world, snapshot);
    before.object(&format!("{CONFIGS}/a")).await;
    world.gone(&format!("{CONFIGS}/a")).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_on_a_restored_server() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let (_, list) = world.get(CONFIGS).await;
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    let text = serde_json::to_string(&world.server.snapshot()).unwrap();
    let world = restored(&world, serde_json::from_str(&text).unwrap());
    let path = format!("{CONFIGS}?watch=1&resourceVersion={}", rv(&list));
    world.watch(&path).await.expect("DELETED", "a").await;
}

#[tokio::test(start_paused = true)]
async fn garbage_collection_knows_owners_after_a_restore() {
    let world = World::new();
    let owner = world.create(CONFIGS, &config("a", &json!({}))).await;
    let mut child = config("child", &json!({}));
    child["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "a", "uid": owner["metadata"]["uid"]}]);
    world.create(CONFIGS, &child).await;
    let world = restored(&world, world.server.snapshot());
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    world.gone(&format!("{CONFIGS}/child")).await;
}

#[test]
fn a_broken_snapshot_is_refused_with_a_reason() {
    for text in [
        "{}",
        "[]",
        r#"{"revision":1,"seed":1,"git_version":"v1","ring":5,"objects":[],
        "tables":{"configmaps":{"a":0}},"history":[],"forgotten":{},"incarnations":{},"generated":{}}"#,
    ] {
        assert!(serde_json::from_str::<StoreSnapshot>(text).is_err(), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn observers_see_every_write_and_what_follows_from_it() {
    let world = World::new().as_agent("refit-controller/2");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    world.server.observe(Box::new(move |event| {
        let object: Value = serde_json::from_slice(event.new).unwrap();
        assert_eq!(object["metadata"]["resourceVersion"], event.revision.to_string());
        into.lock().unwrap().push((
            event.kind,
            event.resource.plural.to_string(),
            event.name.to_owned(),
            event.old.is_some(),
            event.user_agent.to_owned(),
        ));
    }));
    let owner = world.create(CONFIGS, &config("a", &json!({}))).await;
    let mut child = config("child", &json!({}));
    child["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "a", "uid": owner["metadata"]["uid"]}]);
    world.create(CONFIGS, &child).await;
    world.merge(&format!("{CONFIGS}/a"), &json!({"data": {"x": "1"}})).await;
    world.merge(&format!("{CONFIGS}/a"), &json!({"data": {"x": "1"}})).await;
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    let row = |kind, name: &str, old| {
        (kind, "configmaps".to_owned(), name.to_owned(), old, "refit-controller/2".to_owned())
    };
    assert_eq!(
        *seen.lock().unwrap(),
        [
            row(ChangeKind::Added, "a", false),
            row(ChangeKind::Added, "child", false),
            row(ChangeKind::Modified, "a", true),
            row(ChangeKind::Deleted, "a", true),
            row(ChangeKind::Deleted, "child", true),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_api_that_is_down_refuses_and_breaks_watches() {
    let world = World::new();
    let mut watch = world.watch(&format!("{CONFIGS}?watch=1")).await;
    world.server.faults().set_down(Some(Down::Refuse));
    assert!(world.raw("GET", CONFIGS, &[], Vec::new()).await.is_err());
    assert_eq!(watch.next().await, None);
    world.server.faults().set_down(Some(Down::Unavailable));
    assert_eq!(world.get(CONFIGS).await.0, 503);
    world.server.faults().set_down(None);
    assert_eq!(world.get(CONFIGS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_fault_affects_only_matching_requests_a_set_number_of_times() {
    let world = World::new();
    let faults = world.server.faults();
    faults.add(
        FaultRule::next(FaultAction::Status(409))
            .verb("patch")
            .resource("configmaps")
            .name("a")
            .user_agent("refit-controller/2")
            .after(1)
            .times(2),
    );
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let controller = world.as_agent("refit-controller/2");
    let path = format!("{CONFIGS}/a");
    let patch = json!({"data": {"x": "1"}});
    assert_eq!(world.merge(&path, &patch).await.0, 200);
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(controller.merge(&path, &patch).await.0);
    }
    assert_eq!(codes, [200, 409, 409, 200]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_be_lost_after_the_commit() {
    let world = World::new();
    world.server.faults().add(FaultRule::next(FaultAction::StatusAfterCommit(504)).verb("create"));
    let (code, status) = world.post(CONFIGS, &config("a", &json!({}))).await;
    assert_eq!((code, &status["reason"]), (504, &json!("Timeout")));
    world.object(&format!("{CONFIGS}/a")).await;
    world.server.faults().add(FaultRule::next(FaultAction::RefuseAfterCommit).verb("create"));
    let body = config("b", &json!({})).to_string().into_bytes();
    assert!(world.raw("POST", CONFIGS, &[], body).await.is_err());
    world.object(&format!("{CONFIGS}/b")).await;
}

#[tokio::test(start_paused = true)]
async fn requests_can_be_slow() {
    let world = World::new();
    world.server.faults().set_latency(Duration::from_secs(3));
    let quick = tokio::time::timeout(Duration::from_secs(2), world.get(CONFIGS)).await;
    assert!(quick.is_err());
    let slow = tokio::time::timeout(Duration::from_secs(4), world.get(CONFIGS)).await;
    assert_eq!(slow.unwrap().0, 200);
    world.server.faults().clear();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_has_no_effect_any_more() {
    let world = World::new();
    let controller = world.as_agent("refit-controller/2");
    let mut watch = controller.watch(&format!("{CONFIGS}?watch=1")).await;
    world.server.faults().set_latency(Duration::from_secs(3));
    let body = config("late", &json!({})).to_string().into_bytes();
    let late = async { controller.raw("POST", CONFIGS, &[], body).await.is_err() };
    let cut = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.server.faults().set_cut("refit-controller/2", true);
    };
    assert!(futures::join!(late, cut).0, "a request under way is refused");
    assert_eq!(watch.next().await, None);
    world.server.faults().set_latency(Duration::ZERO);
    assert!(controller.raw("GET", CONFIGS, &[], Vec::new()).await.is_err());
    world.gone(&format!("{CONFIGS}/late")).await;
    world.server.faults().set_cut("refit-controller/2", false);
    assert_eq!(controller.get(CONFIGS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn dropped_watches_end_cleanly_and_can_resume() {
    let world = World::new();
    let mut watch = world.watch(&format!("{CONFIGS}?watch=1")).await;
    world.server.faults().drop_watches();
    assert_eq!(watch.next().await, None);
    let mut watch = world.watch(&format!("{CONFIGS}?watch=1")).await;
    world.create(CONFIGS, &config("a", &json!({}))).await;
    watch.expect("ADDED", "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_lagging_cache_shows_one_client_the_past() {
    let world = World::new();
    world.widgets().await;
    world.widget("a", &json!({"size": 1})).await;
    let revision = world.server.revision();
    let until = jiff::Timestamp::from_second(START + 60).unwrap();
    world.server.faults().add_stale(StaleView {
        user_agent: "refit-controller/2".to_owned(),
        resource: "widgets.example.dev".to_owned(),
        revision,
        until,
    });
    world.widget("b", &json!({"size": 1})).await;
    world.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"size": 2}})).await;
    world.delete(&format!("{WIDGETS}/b"), &Value::Null).await;
    world.create(WIDGETS, &widget("c", &json!({"size": 1}))).await;
    let controller = world.as_agent("refit-controller/2");
    let (_, stale) = controller.get(&format!("{WIDGETS}?resourceVersion=0")).await;
    assert_eq!(rv(&stale), revision.to_string());
    assert_eq!(stale["items"].as_array().unwrap().len(), 1);
    assert_eq!(stale["items"][0]["spec"]["size"], 1);
    let (_, fresh) = controller.get(WIDGETS).await;
    assert_eq!(fresh["items"].as_array().unwrap().len(), 2, "a consistent list is not stale");
    let (_, other) = world.get(&format!("{WIDGETS}?resourceVersion=0")).await;
    assert_eq!(other["items"].as_array().unwrap().len(), 2, "other clients are not affected");

    let path = format!("{WIDGETS}?watch=1&resourceVersion={revision}");
    let mut watch = controller.watch(&path).await;
    watch.quiet().await;
    world.pass(61);
    watch.expect("ADDED", "b").await;
    watch.expect("MODIFIED", "a").await;
    watch.expect("DELETED", "b").await;
    watch.expect("ADDED", "c").await;
    let (_, caught_up) = controller.get(&format!("{WIDGETS}?resourceVersion=0")).await;
    assert_eq!(caught_up["items"].as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn values_can_be_read_past_http() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({"x": "1"}))).await;
    world.server.faults().set_down(Some(Down::Refuse));
    let value = world.server.get_value("", "configmaps", "default", "a").unwrap();
    assert_eq!(value["data"]["x"], "1");
    assert_eq!(world.server.list_values("", "configmaps", Some("default")).len(), 1);
    assert_eq!(world.server.list_values("", "namespaces", None).len(), 4);
    assert!(world.server.get_value("", "configmaps", "default", "b").is_none());
    assert_eq!(world.server.dump().len(), 5);
}
