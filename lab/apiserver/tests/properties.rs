//! A watch of any sequence of writes yields the listed state.

use std::collections::BTreeMap;

use crate::common::{CONFIGS, WatchReader, World, config, rv};
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
enum Write {
    Create(u8, u8),
    Merge(u8, u8),
    Label(u8, bool),
    Delete(u8),
    Hold(u8, bool),
    Owner(u8, u8),
    Apply(u8, u8, bool),
}

fn write() -> impl Strategy<Value = Write> {
    let name = 0..4_u8;
    prop_oneof![
        (name.clone(), any::<u8>()).prop_map(|(name, value)| Write::Create(name, value)),
        (name.clone(), 0..3_u8).prop_map(|(name, value)| Write::Merge(name, value)),
        (name.clone(), any::<bool>()).prop_map(|(name, on)| Write::Label(name, on)),
        name.clone().prop_map(Write::Delete),
        (name.clone(), any::<bool>()).prop_map(|(name, on)| Write::Hold(name, on)),
        (name.clone(), name.clone()).prop_map(|(name, owner)| Write::Owner(name, owner)),
        (name, 0..3_u8, any::<bool>())
            .prop_map(|(name, value, other)| Write::Apply(name, value, other)),
    ]
}

async fn perform(world: &World, write: &Write) {
    let path = |name: &u8| format!("{CONFIGS}/c{name}");
    match write {
        Write::Create(name, value) => {
            let mut object = config(&format!("c{name}"), &json!({"x": value.to_string()}));
            if value % 2 == 0 {
                object["metadata"]["labels"] = json!({"app": "web"});
            }
            world.post(CONFIGS, &object).await;
        }
        Write::Merge(name, value) => {
            world.merge(&path(name), &json!({"data": {"x": value.to_string()}})).await;
        }
        Write::Label(name, on) => {
            let value = if *on { json!("web") } else { Value::Null };
            world.merge(&path(name), &json!({"metadata": {"labels": {"app": value}}})).await;
        }
        Write::Delete(name) => {
            world.delete(&path(name), &Value::Null).await;
        }
        Write::Hold(name, on) => {
            let list = if *on { json!(["example.dev/hold"]) } else { Value::Null };
            world.merge(&path(name), &json!({"metadata": {"finalizers": list}})).await;
        }
        Write::Owner(name, owner) => {
            let (code, owner) = world.get(&path(owner)).await;
            if code == 200 {
                let list = json!([{"apiVersion": "v1", "kind": "ConfigMap",
                    "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]);
                world.merge(&path(name), &json!({"metadata": {"ownerReferences": list}})).await;
            }
        }
        Write::Apply(name, value, other) => {
            let mut object = config(&format!("c{name}"), &json!({"y": value.to_string()}));
            object["apiVersion"] = json!("v1");
            let manager = if *other { "two" } else { "one" };
            world.apply(&path(name), manager, &object).await;
        }
    }
}

type State = BTreeMap<String, Value>;

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Follows a watch up to a revision, and checks that event types are consistent and versions only
/// increase.
async fn follow(mut watch: WatchReader, mut state: State) -> State {
    let mut last = 0_u64;
    while let Ok(event) =
        tokio::time::timeout(std::time::Duration::from_secs(1), watch.next()).await
    {
        let event = event.expect("the watch goes on");
        let object = event["object"].clone();
        let name = name_of(&object);
        let version: u64 = rv(&object).parse().unwrap();
        assert!(version > last, "versions grow");
        last = version;
        match event["type"].as_str().unwrap() {
            "ADDED" => assert!(state.insert(name, object).is_none(), "added once"),
            "MODIFIED" => assert!(state.insert(name, object).is_some(), "known before"),
            "DELETED" => assert!(state.remove(&name).is_some(), "known before"),
            other => panic!("an event of type {other}"),
        }
    }
    state
}

async fn listed(world: &World, query: &str) -> State {
    let (_, list) = world.get(&format!("{CONFIGS}?{query}")).await;
    list["items"].as_array().unwrap().iter().map(|item| (name_of(item), item.clone())).collect()
}

async fn check(writes: Vec<Write>, split: usize) {
    let world = World::new();
    let start = world.server.revision();
    let middle = split.min(writes.len());
    for write in &writes[..middle] {
        perform(&world, write).await;
    }
    let (_, list) = world.get(CONFIGS).await;
    let at_middle = listed(&world, "").await;
    for write in &writes[middle..] {
        perform(&world, write).await;
    }
    for query in ["", "&labelSelector=app%3Dweb"] {
        let selector = query.trim_start_matches('&');
        let path = format!("{CONFIGS}?watch=1&resourceVersion={start}{query}");
        let seen = follow(world.watch(&path).await, State::new()).await;
        assert_eq!(seen, listed(&world, selector).await, "from the start, {query:?}");
    }
    let path = format!("{CONFIGS}?watch=1&resourceVersion={}", rv(&list));
    let seen = follow(world.watch(&path).await, at_middle.clone()).await;
    assert_eq!(seen, listed(&world, "").await, "from the middle");
    let exact = format!("resourceVersionMatch=Exact&resourceVersion={}", rv(&list));
    assert_eq!(listed(&world, &exact).await, at_middle, "looking back");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_watched_sequence_of_writes_gives_the_listed_state(
        writes in prop::collection::vec(write(), 0..40),
        split in 0..40_usize,
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(check(writes, split));
    }
}
