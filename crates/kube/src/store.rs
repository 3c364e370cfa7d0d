//! One watch per kind: store and trigger come from the same stream, deletes included
//! (`design/rust.md 2.3`; kube's shared reflectors can hang, 0.2).

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    hash::Hash,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use futures::StreamExt as _;
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// First wait after a broken watch.
const BACKOFF_FLOOR: Duration = Duration::from_millis(500);
/// Longest wait after a broken watch.
const BACKOFF_CEILING: Duration = Duration::from_secs(20);

/// Namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of these two.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of an object.
    pub fn of(object: &impl kube::ResourceExt) -> Self {
        Self::new(object.namespace().unwrap_or_default(), object.name_any())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// What a watch saw of one kind, in order of namespace and name.
pub struct Store<K> {
    objects: Arc<RwLock<BTreeMap<ObjectKey, Arc<K>>>>,
    ready: Arc<watch::Sender<bool>>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            ready: self.ready.clone(),
        }
    }
}

impl<K> Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("len", &self.read().len())
            .finish_non_exhaustive()
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            objects: Arc::default(),
            ready: Arc::new(watch::channel(false).0),
        }
    }
}

impl<K> Store<K> {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<ObjectKey, Arc<K>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<ObjectKey, Arc<K>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().get(key).cloned()
    }

    /// All objects, in order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().values().cloned().collect()
    }

    /// The objects of one namespace, in order.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        let start = ObjectKey::new(namespace, "");
        self.read()
            .range(start..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The objects of one namespace whose names start with `prefix`, in order.
    pub fn list_prefixed(&self, namespace: &str, prefix: &str) -> Vec<Arc<K>> {
        let start = ObjectKey::new(namespace, prefix);
        self.read()
            .range(start..)
            .take_while(|(key, _)| key.namespace == namespace && key.name.starts_with(prefix))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Whether the first list is complete.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits until the first list is complete.
    pub async fn ready(&self) {
        let mut receiver = self.ready.subscribe();
        // The sender lives in this store, so the channel cannot be closed while we wait.
        let _ = receiver.wait_for(|ready| *ready).await;
    }

    /// Puts an object in place of the watch; for tests and for a value that was just written.
    pub fn insert(&self, object: K)
    where
        K: kube::ResourceExt,
    {
        self.write()
            .insert(ObjectKey::of(&object), Arc::new(object));
    }

    /// Marks the first list as complete.
    pub fn mark_ready(&self) {
        self.ready.send_replace(true);
    }
}

/// Watches a kind for ever into `store` and calls `changed` with each object that came, changed or
/// went, after the store has it. Dropping the future ends the watch.
pub async fn reflect<K>(
    api: Api<K>,
    config: watcher::Config,
    store: Store<K>,
    mut changed: impl FnMut(&K),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default + Eq + Hash,
{
    let mut backoff = BACKOFF_FLOOR;
    let mut fresh: Option<BTreeMap<ObjectKey, Arc<K>>> = None;
    let stream = watcher::watcher(api, config);
    tokio::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Err(error) => {
                let kind = K::kind(&K::DynamicType::default()).into_owned();
                tracing::debug!(kind, %error, "a watch broke off and starts again");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_CEILING);
                continue;
            }
            Ok(Event::Init) => fresh = Some(BTreeMap::new()),
            Ok(Event::InitApply(object)) => {
                if let Some(fresh) = &mut fresh {
                    fresh.insert(ObjectKey::of(&object), Arc::new(object));
                }
            }
            Ok(Event::InitDone) => {
                let new = fresh.take().unwrap_or_default();
                let old = std::mem::replace(&mut *store.write(), new.clone());
                store.mark_ready();
                for object in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
                    changed(object.1);
                }
                for (key, object) in &new {
                    let same = old.get(key).is_some_and(|o| {
                        o.resource_version().is_some()
                            && o.resource_version() == object.resource_version()
                    });
                    if !same {
                        changed(object);
                    }
                }
            }
            Ok(Event::Apply(object)) => {
                let object = Arc::new(object);
                store
                    .write()
                    .insert(ObjectKey::of(object.as_ref()), object.clone());
                changed(&object);
            }
            Ok(Event::Delete(object)) => {
                store.write().remove(&ObjectKey::of(&object));
                changed(&object);
            }
        }
        backoff = BACKOFF_FLOOR;
    }
}

/// Watch configuration for a whole kind: a list from the API server's cache, then the watch.
pub fn everything() -> watcher::Config {
    watcher::Config::default().any_semantic()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn config_map(namespace: &str, name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object
    }

    #[test]
    fn a_namespace_lists_only_its_own() {
        let store = Store::default();
        for (namespace, name) in [("a", "x"), ("b", "y"), ("b", "z"), ("bb", "w")] {
            store.insert(config_map(namespace, name));
        }
        let names: Vec<_> = store.list_in("b").iter().map(|c| c.name_any()).collect();
        assert_eq!(names, ["y", "z"]);
    }

    #[test]
    fn cluster_scoped_keys_show_without_a_slash() {
        assert_eq!(ObjectKey::new("", "n").to_string(), "n");
        assert_eq!(ObjectKey::new("d", "n").to_string(), "d/n");
    }
}
