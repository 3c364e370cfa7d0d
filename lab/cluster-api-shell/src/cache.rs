//! What watches saw, and what we wrote ourselves meanwhile.
//!
//! Two things make these caches differ from [`refit_runtime::Store`]: they keep the whole object
//! ([`Live`]), and an answer to a write goes in at once. Objects are ordered by resourceVersion, so
//! a watch that lags behind a write does not bring an older state back.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use futures::StreamExt as _;
use kube::{
    Api, Client,
    discovery::ApiResource,
    runtime::watcher::{self, Event},
};
use refit_runtime::ObjectKey;
use tokio::sync::watch;

use crate::live::{Live, Typed};

/// First wait after a broken watch.
const BACKOFF_FLOOR: Duration = Duration::from_millis(500);
/// Longest wait after a broken watch.
const BACKOFF_CEILING: Duration = Duration::from_secs(10);

/// The objects of one kind.
pub(crate) struct Cache<K>(Arc<Shared<K>>);

struct Shared<K> {
    resource: ApiResource,
    state: RwLock<State<K>>,
    ready: watch::Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<ObjectKey, Arc<Live<K>>>,
    /// At which revision objects went, so that a late answer does not bring one back.
    gone: BTreeMap<ObjectKey, u64>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({})", self.0.resource.kind)
    }
}

impl<K: Typed> Cache<K> {
    /// An empty cache.
    pub(crate) fn new(resource: ApiResource) -> Self {
        Self(Arc::new(Shared {
            resource,
            state: RwLock::new(State { objects: BTreeMap::new(), gone: BTreeMap::new() }),
            ready: watch::channel(false).0,
        }))
    }

    /// The kind of the objects.
    pub(crate) fn resource(&self) -> &ApiResource {
        &self.0.resource
    }

    /// Access to the objects of a namespace, or to cluster-scoped ones where it is empty.
    pub(crate) fn api(&self, client: &Client, namespace: &str) -> Api<Live<K>> {
        if namespace.is_empty() {
            Api::all_with(client.clone(), &self.0.resource)
        } else {
            Api::namespaced_with(client.clone(), namespace, &self.0.resource)
        }
    }

    /// One object.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<Live<K>>> {
        self.read().objects.get(key).cloned()
    }

    /// All objects, in order.
    pub(crate) fn list(&self) -> Vec<Arc<Live<K>>> {
        self.read().objects.values().cloned().collect()
    }

    /// The objects of one namespace, in order.
    pub(crate) fn list_in(&self, namespace: &str) -> Vec<Arc<Live<K>>> {
        let start = ObjectKey::new(namespace, "");
        self.read()
            .objects
            .range(start..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Whether the first list is complete.
    pub(crate) fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Waits until the first list is complete.
    pub(crate) async fn ready(&self) {
        let mut receiver = self.0.ready.subscribe();
        // The sender lives in this cache, so the channel cannot be closed while we wait.
        let _ = receiver.wait_for(|ready| *ready).await;
    }

    /// Takes an object in unless a newer state of it is known.
    pub(crate) fn put(&self, object: Arc<Live<K>>) {
        let key = ObjectKey::of(object.as_ref());
        let revision = object.revision();
        let mut state = self.write();
        let gone = state.gone.get(&key).is_some_and(|gone| *gone >= revision);
        let known = state.objects.get(&key);
        if !gone && known.is_none_or(|known| known.revision() < revision) {
            state.objects.insert(key, object);
        }
    }

    /// Takes an object out that is gone, unless a newer state of its name is known.
    pub(crate) fn remove(&self, object: &Live<K>) {
        let key = ObjectKey::of(object);
        let mut state = self.write();
        let newer = |known: &Arc<Live<K>>| known.revision() > object.revision();
        if !state.objects.get(&key).is_some_and(newer) {
            state.objects.remove(&key);
            state.gone.insert(key, object.revision());
        }
    }

    /// Takes a complete list in; a newer state that is known stays, and so does a deletion.
    fn reset(&self, listed: &BTreeMap<ObjectKey, Arc<Live<K>>>) {
        let mut state = self.write();
        let mut old = std::mem::take(&mut state.objects);
        for (key, object) in listed {
            let known = old.remove(key);
            let gone = state.gone.get(key).is_some_and(|gone| *gone >= object.revision());
            if gone && known.is_none() {
                continue;
            }
            let newer = known.filter(|known| known.revision() >= object.revision());
            let object = newer.unwrap_or_else(|| object.clone());
            state.objects.insert(key.clone(), object);
        }
        for (key, before) in old {
            // What we created after the list was made is not in it either. Its event is still to
            // come, with the revision that is known, and has to bring it back.
            let gone = before.revision().saturating_sub(1);
            state.gone.insert(key, gone);
        }
        drop(state);
        self.0.ready.send_replace(true);
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That an object came (`before` is empty), changed, or went (`now` is empty).
pub(crate) struct Change<K> {
    /// What was known.
    pub(crate) before: Option<Arc<Live<K>>>,
    /// What is known now.
    pub(crate) now: Option<Arc<Live<K>>>,
}

impl<K> Change<K> {
    /// The object, as it is or as it was last.
    pub(crate) fn object(&self) -> &Live<K> {
        self.now
            .as_ref()
            .or(self.before.as_ref())
            .expect("a change is about an object that is or was there")
    }
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The API server refuses our credentials.
    Unauthorized,
    /// Nobody wants it any more.
    Unwanted,
}

/// What a watch itself has seen. Our own writes are in the cache before their event comes, and that
/// event still has to make others look.
type View<K> = BTreeMap<ObjectKey, Arc<Live<K>>>;

/// Watches a kind into `cache` and calls `changed` with each change, after the cache took it in.
///
/// A broken watch starts again for as long as it is `wanted`.
pub(crate) async fn watch<K: Typed>(
    api: Api<Live<K>>,
    config: watcher::Config,
    cache: Cache<K>,
    wanted: impl Fn() -> bool,
    mut changed: impl FnMut(&Change<K>),
) -> Ended {
    let mut backoff = BACKOFF_FLOOR;
    let mut view = View::new();
    let mut fresh = View::new();
    let stream = watcher::watcher(api, config);
    tokio::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Err(error) => {
                let kind = cache.resource().kind.as_str();
                tracing::debug!(kind, %error, "a watch broke off and starts again");
                if is_unauthorized(&error) {
                    return Ended::Unauthorized;
                }
                if !wanted() {
                    return Ended::Unwanted;
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_CEILING);
                continue;
            }
            // It comes before each attempt at a list, a failed one too: nothing is well again yet.
            Ok(Event::Init) => {
                fresh.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                fresh.insert(ObjectKey::of(&object), Arc::new(object));
            }
            Ok(Event::InitDone) => {
                cache.reset(&fresh);
                let before = std::mem::replace(&mut view, std::mem::take(&mut fresh));
                for change in differences(before, &view) {
                    changed(&change);
                }
            }
            Ok(Event::Apply(object)) => {
                let object = Arc::new(object);
                cache.put(object.clone());
                let before = view.insert(ObjectKey::of(object.as_ref()), object.clone());
                let now = Some(object);
                changed(&Change { before, now });
            }
            Ok(Event::Delete(object)) => {
                cache.remove(&object);
                view.remove(&ObjectKey::of(&object));
                let before = Some(Arc::new(object));
                changed(&Change { before, now: None });
            }
        }
        backoff = BACKOFF_FLOOR;
    }
    Ended::Unwanted
}

/// What came, changed or went between two complete lists.
fn differences<K: Typed>(mut before: View<K>, after: &View<K>) -> Vec<Change<K>> {
    let mut changes = Vec::new();
    for (key, object) in after {
        let before = before.remove(key);
        let same = before.as_ref().is_some_and(|before| before.revision() == object.revision());
        if !same {
            let now = Some(object.clone());
            changes.push(Change { before, now });
        }
    }
    changes.extend(before.into_values().map(|object| Change { before: Some(object), now: None }));
    changes
}

fn is_unauthorized(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status.code == 401,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use refit_cluster_api::kinds::Machine;
    use serde_json::json;

    use super::*;

    fn cache() -> Cache<Machine> {
        Cache::new(ApiResource::erase::<Machine>(&()))
    }

    fn machine(name: &str, revision: u64) -> Arc<Live<Machine>> {
        let object = json!({
            "metadata": {"namespace": "d", "name": name, "resourceVersion": revision.to_string()},
            "spec": {"clusterName": "c"},
        });
        Arc::new(Live::read(object).unwrap())
    }

    fn view(objects: &[(&str, u64)]) -> View<Machine> {
        let entry =
            |(name, revision): &(&str, u64)| (ObjectKey::new("d", *name), machine(name, *revision));
        objects.iter().map(entry).collect()
    }

    fn revision(cache: &Cache<Machine>, name: &str) -> Option<u64> {
        cache.get(&ObjectKey::new("d", name)).map(|object| object.revision())
    }

    #[test]
    fn a_watch_that_lags_behind_a_write_brings_nothing_older_back() {
        let cache = cache();
        cache.put(machine("m", 5));
        cache.put(machine("m", 4));
        assert_eq!(revision(&cache, "m"), Some(5));
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let cache = cache();
        cache.put(machine("m", 5));
        cache.remove(&machine("m", 7));
        cache.put(machine("m", 6));
        assert_eq!(revision(&cache, "m"), None);
        cache.put(machine("m", 8));
        assert_eq!(revision(&cache, "m"), Some(8));
    }

    #[test]
    fn a_list_older_than_our_own_deletion_does_not_undo_it() {
        let cache = cache();
        cache.put(machine("a", 5));
        cache.remove(&machine("a", 5));
        cache.reset(&view(&[("a", 5)]));
        assert_eq!(revision(&cache, "a"), None);
        cache.reset(&view(&[("a", 7)]));
        assert_eq!(revision(&cache, "a"), Some(7), "the name was given again");
    }

    #[test]
    fn two_lists_say_what_came_changed_and_went() {
        let before = view(&[("gone", 1), ("same", 2), ("changed", 3)]);
        let after = view(&[("same", 2), ("changed", 9), ("new", 8)]);
        let seen: Vec<_> = differences(before, &after)
            .iter()
            .map(|change| {
                let name = change.object().metadata.name.clone().unwrap();
                (name, change.before.is_some(), change.now.is_some())
            })
            .collect();
        let want = [("changed", true, true), ("new", false, true), ("gone", true, false)];
        let want = want.map(|(name, before, now)| (name.to_owned(), before, now));
        assert_eq!(seen, want);
    }

    #[test]
    fn a_list_older_than_our_own_write_does_not_undo_it() {
        let cache = cache();
        cache.put(machine("m", 9));
        cache.put(machine("gone", 2));
        cache.reset(&view(&[("m", 3)]));
        assert_eq!(revision(&cache, "m"), Some(9));
        assert_eq!(revision(&cache, "gone"), None);
        assert!(cache.is_ready());
    }

    #[test]
    fn an_object_created_while_a_list_was_on_its_way_comes_back_with_its_event() {
        let cache = cache();
        cache.put(machine("new", 9));
        cache.reset(&view(&[]));
        assert_eq!(revision(&cache, "new"), None);
        cache.put(machine("new", 8));
        assert_eq!(revision(&cache, "new"), None, "a late answer is older");
        cache.put(machine("new", 9));
        assert_eq!(revision(&cache, "new"), Some(9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_again_and_again_is_asked_for_less_and_less() {
        let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let seen = calls.clone();
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let answer = http::Response::builder().status(500);
            async move { answer.body(kube::client::Body::empty()) }
        });
        let cache = cache();
        let api = cache.api(&Client::new(service, "d"), "d");
        let config = watcher::Config::default();
        let watching = watch(api, config, cache.clone(), || true, |_| {});
        let minute = Duration::from_mins(1);
        assert!(tokio::time::timeout(minute, watching).await.is_err());
        let calls = calls.load(std::sync::atomic::Ordering::Relaxed);
        assert!((2..=12).contains(&calls), "{calls} calls in a minute");
    }
}
