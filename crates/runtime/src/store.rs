//! One watch per kind: store and trigger come from the same stream, deletes included
//! (`design/rust.md 2.3`; kube's shared reflectors can hang, 0.2).

mod reflect;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use kube::Resource;
use tokio::sync::watch;

use crate::guard::Guarded;

pub use reflect::{everything, reflect};

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
        Self { namespace: namespace.into(), name: name.into() }
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
///
/// managedFields are left out: nobody reads them here, and they are half of most objects.
pub struct Store<K>(Arc<Shared<K>>);

struct Shared<K> {
    state: RwLock<State<K>>,
    ready: watch::Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// Objects of which the last version could not be read, with the reason.
    unreadable: BTreeMap<ObjectKey, String>,
    /// The newest resourceVersion that the watch brought. What is not here and not newer is gone.
    seen: u64,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("len", &self.read().objects.len()).finish_non_exhaustive()
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: RwLock::new(State {
                objects: BTreeMap::new(),
                unreadable: BTreeMap::new(),
                seen: 0,
            }),
            ready: watch::channel(false).0,
        }))
    }
}

fn version(object: &impl Resource) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}

/// Whether `known` is certainly newer than `other`.
fn newer<K: Resource>(known: &K, other: &K) -> bool {
    version(known).is_some_and(|known| version(other).is_some_and(|other| known > other))
}

impl<K> Store<K> {
    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// All objects, in order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// The objects of one namespace, in order.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        self.list_prefixed(namespace, "")
    }

    /// The objects of one namespace whose names start with `prefix`, in order.
    pub fn list_prefixed(&self, namespace: &str, prefix: &str) -> Vec<Arc<K>> {
        let start = ObjectKey::new(namespace, prefix);
        self.read()
            .objects
            .range(start..)
            .take_while(|(key, _)| key.namespace == namespace && key.name.starts_with(prefix))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The objects whose last version could not be read, with the reason. For them the store holds
    /// the version before, or nothing.
    pub fn unreadable(&self) -> BTreeMap<ObjectKey, String> {
        self.read().unreadable.clone()
    }

    /// Whether the first list is complete.
    pub fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Waits until the first list is complete.
    pub async fn ready(&self) {
        let mut receiver = self.0.ready.subscribe();
        // The sender lives in this store, so the channel cannot be closed while we wait.
        let _ = receiver.wait_for(|ready| *ready).await;
    }

    /// Marks the first list as complete.
    pub fn mark_ready(&self) {
        self.0.ready.send_replace(true);
    }
}

impl<K: Resource> Store<K> {
    /// Puts in what a write of ours returned, unless the watch has brought something newer or has
    /// seen the object go.
    pub fn insert(&self, mut object: K) {
        object.meta_mut().managed_fields = None;
        let mut state = self.write();
        let key = key_of(&object);
        let outdated = match state.objects.get(&key) {
            Some(known) => newer(known.as_ref(), &object),
            None => version(&object).is_some_and(|version| version <= state.seen),
        };
        if !outdated {
            state.objects.insert(key, Arc::new(object));
        }
    }

    /// Takes in what the watch brought; `None` if we knew better already.
    fn applied(&self, object: Guarded<K>) -> Option<Arc<K>> {
        let key = key_of(&object);
        let mut state = self.write();
        state.seen = state.seen.max(version(&object).unwrap_or_default());
        match object.0 {
            Err(unreadable) => {
                tracing::warn!(kind = kind::<K>(), %key, reason = unreadable.reason, "an object cannot be read");
                state.unreadable.insert(key, unreadable.reason);
                None
            }
            Ok(mut object) => {
                state.unreadable.remove(&key);
                if state.objects.get(&key).is_some_and(|known| newer(known.as_ref(), &object)) {
                    return None;
                }
                object.meta_mut().managed_fields = None;
                let object = Arc::new(object);
                state.objects.insert(key, object.clone());
                Some(object)
            }
        }
    }

    /// Takes out what the watch saw go, and returns its last state that we can read.
    fn deleted(&self, object: Guarded<K>) -> Option<Arc<K>> {
        let key = key_of(&object);
        let gone = version(&object).unwrap_or(u64::MAX);
        let mut state = self.write();
        state.seen = state.seen.max(version(&object).unwrap_or_default());
        state.unreadable.remove(&key);
        // One of the same name may have been made since, and be known from its create.
        let known = match state.objects.get(&key) {
            Some(known) if version(known.as_ref()).is_some_and(|known| known > gone) => None,
            Some(_) => state.objects.remove(&key),
            None => None,
        };
        object.0.ok().map(Arc::new).or(known)
    }

    /// Takes in a whole list, and returns what it changes: first what went, then what came.
    fn replaced(&self, list: Vec<Guarded<K>>) -> Vec<Arc<K>> {
        let mut state = self.write();
        let mut old = std::mem::take(&mut state.objects);
        state.unreadable.clear();
        let mut came = Vec::new();
        for object in list {
            let key = key_of(&object);
            state.seen = state.seen.max(version(&object).unwrap_or_default());
            let known = old.remove(&key);
            match object.0 {
                Err(unreadable) => {
                    tracing::warn!(kind = kind::<K>(), %key, reason = unreadable.reason, "an object cannot be read");
                    state.unreadable.insert(key.clone(), unreadable.reason);
                    state.objects.extend(known.map(|known| (key, known)));
                }
                Ok(mut object) => {
                    let same = |known: &Arc<K>| {
                        version(known.as_ref()).is_some()
                            && version(known.as_ref()) == version(&object)
                    };
                    let same = known.as_ref().is_some_and(same);
                    object.meta_mut().managed_fields = None;
                    let object = Arc::new(object);
                    if !same {
                        came.push((key.clone(), object.clone()));
                    }
                    state.objects.insert(key, object);
                }
            }
        }
        came.sort_by(|(a, _), (b, _)| a.cmp(b));
        let came = came.into_iter().map(|(_, object)| object);
        old.into_values().chain(came).collect()
    }
}

fn key_of(object: &impl Resource) -> ObjectKey {
    let meta = object.meta();
    ObjectKey::new(
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

fn kind<K: Resource>() -> &'static str {
    std::any::type_name::<K>().rsplit("::").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt as _;

    use super::*;

    fn config_map(namespace: &str, name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object
    }

    fn at(name: &str, version: u64) -> ConfigMap {
        let mut object = config_map("d", name);
        object.metadata.resource_version = Some(version.to_string());
        object
    }

    fn versions(store: &Store<ConfigMap>) -> Vec<(String, u64)> {
        let row = |object: &Arc<ConfigMap>| {
            let version = version(object.as_ref()).unwrap();
            (object.name_any(), version)
        };
        store.list().iter().map(row).collect()
    }

    fn read(object: ConfigMap) -> Guarded<ConfigMap> {
        Guarded(Ok(object))
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

    #[test]
    fn a_late_event_does_not_undo_our_own_write() {
        let store = Store::default();
        store.insert(at("a", 5));
        assert!(store.applied(read(at("a", 4))).is_none());
        assert_eq!(versions(&store), [("a".to_owned(), 5)]);
        assert!(store.applied(read(at("a", 5))).is_some());
    }

    #[test]
    fn a_late_answer_does_not_undo_an_event() {
        let store = Store::default();
        store.applied(read(at("a", 6)));
        store.insert(at("a", 5));
        assert_eq!(versions(&store), [("a".to_owned(), 6)]);
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let store = Store::default();
        store.applied(read(at("a", 5)));
        store.deleted(read(at("a", 7)));
        store.insert(at("a", 6));
        assert!(store.list().is_empty());
        store.insert(at("a", 8));
        assert_eq!(store.list().len(), 1, "a new one of that name");
    }

    #[test]
    fn a_late_delete_does_not_take_the_next_object_of_that_name() {
        let store = Store::default();
        store.applied(read(at("a", 5)));
        store.insert(at("a", 9));
        store.deleted(read(at("a", 7)));
        assert_eq!(versions(&store), [("a".to_owned(), 9)]);
    }

    #[test]
    fn a_list_tells_first_what_went_then_what_came_in_order() {
        let store = Store::default();
        for name in ["c", "b", "a"] {
            store.applied(read(at(name, 5)));
        }
        let list = vec![read(at("z", 8)), read(at("b", 5)), read(at("d", 7))];
        let names: Vec<_> = store.replaced(list).iter().map(|c| c.name_any()).collect();
        assert_eq!(names, ["a", "c", "d", "z"]);
    }

    #[test]
    fn a_list_may_go_back_in_time() {
        // As after a restored backup: the list is the truth.
        let store = Store::default();
        store.applied(read(at("a", 50)));
        assert_eq!(store.replaced(vec![read(at("a", 9))]).len(), 1);
        assert_eq!(versions(&store), [("a".to_owned(), 9)]);
    }

    #[test]
    fn managed_fields_are_not_kept() {
        let store = Store::default();
        let mut object = at("a", 5);
        object.metadata.managed_fields = Some(vec![
            k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry::default(),
        ]);
        store.insert(object.clone());
        assert!(store.list()[0].managed_fields().is_empty());
        object.metadata.resource_version = Some("6".into());
        assert!(store.applied(read(object)).unwrap().managed_fields().is_empty());
    }
}
