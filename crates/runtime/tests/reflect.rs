//! Stores that follow an API server through outages, restarts and malformed objects.

use std::{
    borrow::Cow,
    cell::Cell,
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common::{World, config_map, within};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::watcher,
};
use lab_apiserver::Down;
use refit_runtime::{
    ObjectKey, Store,
    store::{
        Broken, Limits, everything, follow as follow_changes, read_now, reflect, reflect_within,
    },
};
use serde::Deserialize;
use serde_json::json;
use tokio::task::AbortHandle;

struct Follower<K> {
    store: Store<K>,
    changes: Arc<Mutex<Vec<String>>>,
    task: AbortHandle,
}

impl<K> Drop for Follower<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> Follower<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    fn new(api: Api<K>, config: watcher::Config) -> Self {
        let store = Store::default();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let (seen, into) = (store.clone(), changes.clone());
        let watching = reflect(api, config, store.clone(), move |object: &K| {
            let there = seen.get(&ObjectKey::of(object)).is_some();
            let sign = if there { '+' } else { '-' };
            into.lock().unwrap().push(format!("{sign}{}", object.name_any()));
        });
        Self { store, changes, task: tokio::spawn(watching).abort_handle() }
    }

    fn names(&self) -> Vec<String> {
        self.store.list().iter().map(|o| o.name_any()).collect()
    }

    fn changes(&self) -> Vec<String> {
        std::mem::take(&mut self.changes.lock().unwrap())
    }

    async fn holds(&self, seconds: u64, names: &[&str]) {
        within(seconds, &format!("{names:?} in the store"), || self.names() == names).await;
    }
}

async fn follow(world: &World) -> Follower<ConfigMap> {
    Follower::new(world.configs().await, everything())
}

async fn create(world: &World, name: &str) {
    let object = config_map(name, "1");
    world.direct().create(&PostParams::default(), &object).await.unwrap();
}

async fn change(world: &World, name: &str, value: &str) {
    let patch = Patch::Merge(json!({"data": {"value": value}}));
    let params = PatchParams::default();
    world.direct().patch(name, &params, &patch).await.unwrap();
}

async fn delete(world: &World, name: &str) {
    let params = DeleteParams::default();
    world.direct().delete(name, &params).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn changes_reach_the_store_before_they_are_reported() {
    let world = World::new();
    create(&world, "a").await;
    let follower = follow(&world).await;
    assert!(!follower.store.is_ready());
    follower.store.ready().await;
    assert_eq!(follower.names(), ["a"]);
    create(&world, "b").await;
    change(&world, "a", "2").await;
    delete(&world, "b").await;
    follower.holds(1, &["a"]).await;
    assert_eq!(follower.changes(), ["+a", "+b", "+a", "-b"]);
    let a = follower.store.get(&ObjectKey::new("default", "a")).unwrap();
    assert_eq!(a.data.as_ref().unwrap()["value"], "2");
    assert!(a.managed_fields().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_survives_an_unavailable_api() {
    let world = World::new();
    create(&world, "a").await;
    create(&world, "b").await;
    let follower = follow(&world).await;
    follower.store.ready().await;
    world.stop();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(follower.names(), ["a", "b"], "what was known stays known");
    delete(&world, "a").await;
    create(&world, "c").await;
    world.start();
    follower.holds(21, &["b", "c"]).await;
    assert_eq!(follower.changes(), ["+a", "+b", "-a", "+c"]);
}

#[tokio::test(start_paused = true)]
async fn a_store_notices_deletions_behind_an_expired_version() {
    let world = World::with_ring(4);
    create(&world, "a").await;
    create(&world, "b").await;
    let follower = follow(&world).await;
    follower.store.ready().await;
    world.stop();
    delete(&world, "a").await;
    for number in 0..20 {
        change(&world, "b", &number.to_string()).await;
    }
    create(&world, "c").await;
    world.log();
    world.start();
    follower.holds(25, &["b", "c"]).await;
    assert_eq!(follower.changes(), ["+a", "+b", "-a", "+b", "+c"]);
    let lists = world.log().iter().filter(|line| !line.contains("watch=true")).count();
    assert_eq!(lists, 1, "it listed again");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_resumes_at_its_position() {
    let world = World::new();
    create(&world, "a").await;
    let follower = follow(&world).await;
    follower.store.ready().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.log();
    for number in 0..5 {
        world.server.faults().drop_watches();
        delete(&world, "a").await;
        create(&world, "a").await;
        change(&world, "a", &format!("x{number}")).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    assert_eq!(follower.changes().len(), 1 + 5 * 3, "nothing lost, nothing doubled");
    assert!(world.log().iter().all(|line| line.contains("watch=true")));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_day_costs_a_watch_each_five_minutes_and_loses_nothing() {
    let world = World::new();
    let follower = follow(&world).await;
    follower.store.ready().await;
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    create(&world, "a").await;
    follower.holds(1, &["a"]).await;
    let requests = world.log().len();
    assert!((290..310).contains(&requests), "{requests} requests");
    assert_eq!(world.handshakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_that_is_down_from_the_start_is_retried_with_backoff() {
    let world = World::new();
    world.server.faults().set_down(Some(Down::Unavailable));
    create_past_faults(&world).await;
    let follower = follow(&world).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let asked = world.log().len();
    assert!((25..40).contains(&asked), "{asked} times in ten minutes");
    assert!(!follower.store.is_ready());
    world.server.faults().set_down(None);
    follower.holds(21, &["a"]).await;
    assert!(follower.store.is_ready());
}

async fn create_past_faults(world: &World) {
    world.server.faults().set_down(None);
    create(world, "a").await;
    world.server.faults().set_down(Some(Down::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_the_selection_leaves_the_store() {
    let world = World::new();
    for name in ["a", "b"] {
        create(&world, name).await;
    }
    let label = |value: &str| Patch::Merge(json!({"metadata": {"labels": {"role": value}}}));
    let params = PatchParams::default();
    world.direct().patch("a", &params, &label("x")).await.unwrap();
    let follower = Follower::new(world.configs().await, everything().labels("role=x"));
    follower.holds(1, &["a"]).await;
    world.direct().patch("b", &params, &label("x")).await.unwrap();
    world.direct().patch("a", &params, &label("y")).await.unwrap();
    follower.holds(1, &["b"]).await;
    assert_eq!(follower.changes(), ["+a", "+b", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_long_list_comes_in_pages() {
    let world = World::new();
    for number in 0..30 {
        create(&world, &format!("c-{number:02}")).await;
    }
    let config = watcher::Config::default().page_size(7);
    let follower = Follower::new(world.configs().await, config);
    follower.store.ready().await;
    assert_eq!(follower.names().len(), 30);
    let lists = world.log().iter().filter(|line| line.contains("limit=7")).count();
    assert_eq!(lists, 5);
}

/// A ConfigMap whose value must be a number.
#[derive(Clone, Debug, Deserialize)]
struct Counted {
    metadata: ObjectMeta,
    data: BTreeMap<String, Number>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Number(u32);

impl TryFrom<String> for Number {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        DECODED.set(DECODED.get() + 1);
        text.parse().map(Self)
    }
}

thread_local! {
    /// How many numbers were decoded.
    static DECODED: Cell<u32> = const { Cell::new(0) };
}

impl Resource for Counted {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ConfigMap".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "configmaps".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn numbers(follower: &Follower<Counted>) -> Vec<(String, u32)> {
    let row = |object: &Arc<Counted>| (object.name_any(), object.data["value"].0);
    follower.store.list().iter().map(row).collect()
}

#[tokio::test(start_paused = true)]
async fn one_malformed_object_does_not_hold_up_the_others() {
    let world = World::new();
    create(&world, "a").await;
    create(&world, "bad").await;
    change(&world, "bad", "many").await;
    let api: Api<Counted> = Api::namespaced(world.client().await, "default");
    let follower = Follower::new(api, everything());
    follower.store.ready().await;
    assert_eq!(follower.names(), ["a"]);
    let unreadable = follower.store.unreadable();
    assert_eq!(unreadable.len(), 1);
    assert!(unreadable[&ObjectKey::new("default", "bad")].contains("invalid digit"));

    change(&world, "a", "none").await;
    create(&world, "c").await;
    follower.holds(1, &["a", "c"]).await;
    let before = [("a".to_owned(), 1), ("c".to_owned(), 1)];
    assert_eq!(numbers(&follower), before, "the last version that could be read");
    assert_eq!(follower.store.unreadable().len(), 2);

    // Also through a list.
    world.stop();
    world.server.faults().drop_watches();
    world.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(numbers(&follower), before);

    change(&world, "a", "7").await;
    delete(&world, "bad").await;
    within(1, "all readable", || follower.store.unreadable().is_empty()).await;
    assert_eq!(numbers(&follower), [("a".to_owned(), 7), ("c".to_owned(), 1)]);
    assert_eq!(follower.changes(), ["+a", "+c", "+a"]);
}

#[tokio::test(start_paused = true)]
async fn a_live_list_decodes_only_what_the_store_lacks() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        create(&world, name).await;
    }
    let api: Api<Counted> = Api::default_namespaced(world.client().await);
    let follower = Follower::new(api.clone(), everything());
    follower.holds(5, &["a", "b", "c"]).await;
    follower.task.abort();
    change(&world, "b", "2").await;
    delete(&world, "c").await;
    create(&world, "d").await;
    DECODED.set(0);
    let unreadable = read_now(api, "", None, &follower.store, |_| true).await.unwrap();
    assert!(unreadable.is_empty());
    let expected = [("a", 1), ("b", 2), ("d", 1)].map(|(name, number)| (name.to_owned(), number));
    assert_eq!(numbers(&follower), expected);
    assert_eq!(DECODED.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_object_that_was_known_is_kept_through_a_new_list() {
    let world = World::with_ring(3);
    create(&world, "a").await;
    let api: Api<Counted> = Api::namespaced(world.client().await, "default");
    let follower = Follower::new(api, everything());
    follower.store.ready().await;
    world.stop();
    for value in ["2", "3", "4", "5", "6", "none"] {
        change(&world, "a", value).await;
    }
    world.start();
    within(25, "the new version is noticed", || follower.store.unreadable().len() == 1).await;
    assert_eq!(numbers(&follower), [("a".to_owned(), 1)]);
    delete(&world, "a").await;
    follower.holds(1, &[]).await;
    assert_eq!(follower.changes(), ["+a", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn an_own_write_is_in_the_store_at_once_and_stays() {
    let world = World::new();
    create(&world, "a").await;
    let follower = follow(&world).await;
    follower.store.ready().await;
    for number in 0..20 {
        let value = format!("v{number}");
        let patch = Patch::Merge(json!({"data": {"value": value}}));
        let params = PatchParams::default();
        let written = world.configs().await.patch("a", &params, &patch).await.unwrap();
        follower.store.insert(written);
        for _ in 0..3 {
            let known = follower.store.get(&ObjectKey::new("default", "a")).unwrap();
            assert_eq!(known.data.as_ref().unwrap()["value"], value);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_at_the_failure_chosen_by_its_callback() {
    let world = World::new();
    create(&world, "a").await;
    let store = Store::default();
    let mut left = 2;
    let broken = |_: Broken<'_>| {
        left -= 1;
        if left == 0 {
            ControlFlow::Break("enough")
        } else {
            ControlFlow::Continue(Duration::from_secs(1))
        }
    };
    let (api, config) = (world.configs().await, everything());
    let following = follow_changes(api, &(), config, None, store.clone(), |_| {}, broken);
    let outage = async {
        store.ready().await;
        world.server.faults().set_down(Some(Down::Unavailable));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        ended = following => assert_eq!(ended, "enough"),
        () = outage => {}
    }
    assert!(store.get(&ObjectKey::new("default", "a")).is_some(), "it keeps what it saw");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_there_is_more_than_its_limits_allow() {
    for (limits, wanted) in [
        (Limits { objects: 2, bytes: 1 << 20 }, "it has more than 2 ConfigMaps"),
        (Limits { objects: 10, bytes: 1 << 20 }, "its ConfigMaps take more than 1 MiB"),
    ] {
        let world = World::new();
        let big = "x".repeat((1 << 20) / 3);
        for name in ["a", "b"] {
            let object = config_map(name, &big);
            world.direct().create(&PostParams::default(), &object).await.unwrap();
        }
        let store = Store::default();
        let api = world.configs().await;
        let watch = reflect_within(api, everything(), limits, store.clone(), |_| {});
        let grow = async {
            store.ready().await;
            let object = config_map("c", &big);
            world.direct().create(&PostParams::default(), &object).await.unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            ended = watch => assert_eq!(ended.to_string(), wanted),
            () = grow => {}
        }
        assert_eq!(store.list().len(), 2, "what came before it stays");
        let (api, store) = (world.configs().await, Store::default());
        let again = reflect_within(api, everything(), limits, store.clone(), |_| {}).await;
        assert_eq!(again.to_string(), wanted, "the list is limited, too");
        assert!(!store.is_ready());
    }
}
