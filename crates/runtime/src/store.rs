//! One watch per kind: store and trigger come from the same stream, deletes included
//! (`docs/facts/kube-rs.md#one-watch-per-kind`; kube's shared reflectors can hang).

mod reflect;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use tokio::sync::watch;

use crate::guard::Guarded;

pub use reflect::{everything, follow, reflect};

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
/// managedFields of the typed metadata are left out: no user of a store reads them there, and they
/// are half of most objects.
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
    /// Our own writes that the watch has not brought yet.
    ahead: BTreeMap<ObjectKey, Ahead<K>>,
}

/// A write of ours that is in the store before its event.
struct Ahead<K> {
    /// What the watch had brought before.
    before: Option<Arc<K>>,
    /// The resourceVersion of the answer; for a deletion, the last one known of the object.
    version: u64,
    /// Whether it was answered after the list that is under way was requested.
    since_list: bool,
}

/// An object that came (`before` is empty), changed, or went (`now` is empty). One of the two is
/// always there.
#[derive(Debug)]
pub struct Change<K> {
    /// What the watch brought before.
    pub before: Option<Arc<K>>,
    /// What is in the store now.
    pub now: Option<Arc<K>>,
}

impl<K> Change<K> {
    fn of(before: Option<Arc<K>>, now: Option<Arc<K>>) -> Option<Self> {
        (before.is_some() || now.is_some()).then_some(Self { before, now })
    }

    /// The object as it is, or as it was last.
    pub fn object(&self) -> &K {
        let object = self.now.as_ref().or(self.before.as_ref());
        object.expect("a change is about an object that is or was there")
    }
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
                ahead: BTreeMap::new(),
            }),
            ready: watch::channel(false).0,
        }))
    }
}

fn version(object: &impl Resource) -> Option<u64> {
    version_of(object.meta())
}

fn version_of(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_ref()?.parse().ok()
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
    /// Stores the object that a write returned, unless the watch has delivered a newer version or
    /// its deletion.
    pub fn insert(&self, mut object: K) {
        object.meta_mut().managed_fields = None;
        let mut state = self.write();
        let key = key_of(object.meta());
        let answered = version(&object);
        let outdated = answered.is_some() && answered <= state.newest(&key);
        if !outdated {
            let before = state.objects.insert(key.clone(), Arc::new(object));
            state.note_write(key, before, answered);
        }
    }

    /// Removes an object that a write deleted, unless a newer one of that name is known.
    pub fn remove(&self, object: &K) {
        let mut state = self.write();
        let key = key_of(object.meta());
        if state.objects.get(&key).is_none_or(|known| newer(known.as_ref(), object)) {
            return;
        }
        let before = state.objects.remove(&key);
        state.note_write(key, before, version(object));
    }

    /// Notes that a list is requested: what we write from now on may not be in it.
    fn list_begins(&self) {
        for ahead in self.write().ahead.values_mut() {
            ahead.since_list = false;
        }
    }

    /// Stores what the watch delivered; `None` if the store holds a newer version.
    fn applied(&self, object: Guarded<K>) -> Option<Change<K>> {
        let key = key_of(object.metadata());
        let mut state = self.write();
        state.saw(&object);
        let mut object = match object.0 {
            Err(unreadable) => {
                state.unreadable.insert(key, unreadable.reason);
                return None;
            }
            Ok(object) => object,
        };
        state.unreadable.remove(&key);
        if state.is_older_than_ours(&key, &object) {
            return None;
        }
        object.meta_mut().managed_fields = None;
        let now = Arc::new(object);
        let known = state.objects.insert(key.clone(), now.clone());
        let before = state.ahead.remove(&key).map_or(known, |ahead| ahead.before);
        Change::of(before, Some(now))
    }

    /// Removes an object that the watch reports as deleted; returns its last readable state.
    fn deleted(&self, object: Guarded<K>) -> Option<Change<K>> {
        let key = key_of(object.metadata());
        let gone = version_of(object.metadata()).unwrap_or(u64::MAX);
        let mut state = self.write();
        state.saw(&object);
        state.unreadable.remove(&key);
        // One of the same name may have been made since, and be known from its create.
        let known = state.objects.get(&key).and_then(|known| version(known.as_ref()));
        if known.is_some_and(|known| known > gone) {
            let ahead = state.ahead.get_mut(&key);
            let before = ahead.and_then(|ahead| ahead.before.take());
            return Change::of(object.0.ok().map(Arc::new).or(before), None);
        }
        let before = state.ahead.remove(&key).and_then(|ahead| ahead.before);
        let known = state.objects.remove(&key);
        Change::of(object.0.ok().map(Arc::new).or(known).or(before), None)
    }

    /// Stores a whole list and returns what it changes: first what went, then what came. An object
    /// that was changed or deleted by us since the list was requested stays so.
    fn replaced(&self, list: Vec<Guarded<K>>) -> Vec<Change<K>> {
        let mut state = self.write();
        let mut old = std::mem::take(&mut state.objects);
        state.unreadable.clear();
        let (mut came, mut kept) = (BTreeMap::new(), BTreeMap::new());
        for object in list {
            let key = key_of(object.metadata());
            state.saw(&object);
            let known = old.remove(&key);
            let mut object = match object.0 {
                Err(unreadable) => {
                    state.unreadable.insert(key.clone(), unreadable.reason);
                    state.objects.extend(known.map(|known| (key, known)));
                    continue;
                }
                Ok(object) => object,
            };
            if state.wrote_since(&key, known.as_ref(), &object) {
                kept.extend(state.ahead.remove_entry(&key));
                state.objects.extend(known.map(|known| (key, known)));
                continue;
            }
            let ahead = state.ahead.remove(&key);
            let before = ahead.map_or_else(|| known.clone(), |ahead| ahead.before);
            object.meta_mut().managed_fields = None;
            let now = Arc::new(object);
            state.objects.insert(key.clone(), now.clone());
            let same = |other: &Option<Arc<K>>| {
                let other = other.as_deref().and_then(version);
                other.is_some() && other == version(now.as_ref())
            };
            if !same(&before) || !same(&known) {
                came.insert(key, Change { before, now: Some(now) });
            }
        }
        let mut changes = state.not_listed(old);
        state.ahead.extend(kept);
        changes.extend(came.into_values());
        changes
    }
}

impl<K: Resource> State<K> {
    fn saw(&mut self, object: &Guarded<K>) {
        self.seen = self.seen.max(version_of(object.metadata()).unwrap_or_default());
    }

    /// The newest resourceVersion that is known of an object, or of its being gone.
    fn newest(&self, key: &ObjectKey) -> Option<u64> {
        if let Some(known) = self.objects.get(key) {
            return version(known.as_ref());
        }
        let deleted = self.ahead.get(key).map_or(0, |ahead| ahead.version);
        Some(self.seen.max(deleted))
    }

    /// Notes a write of ours, after which the watch lags behind the store.
    fn note_write(&mut self, key: ObjectKey, before: Option<Arc<K>>, version: Option<u64>) {
        let ahead = self.ahead.entry(key).or_insert(Ahead { before, version: 0, since_list: true });
        ahead.version = version.unwrap_or_default();
        ahead.since_list = true;
    }

    /// Whether an event is older than what a write of ours returned.
    fn is_older_than_ours(&self, key: &ObjectKey, object: &K) -> bool {
        match self.objects.get(key) {
            Some(known) => newer(known.as_ref(), object),
            None => self.ahead.get(key).is_some_and(|deleted| is_at_most(object, deleted.version)),
        }
    }

    /// Whether we changed or deleted an object after the list was requested that has an older state.
    fn wrote_since(&self, key: &ObjectKey, known: Option<&Arc<K>>, listed: &K) -> bool {
        let Some(ahead) = self.ahead.get(key).filter(|ahead| ahead.since_list) else {
            return false;
        };
        match known {
            Some(known) => newer(known.as_ref(), listed),
            None => is_at_most(listed, ahead.version),
        }
    }

    /// What goes because a list does not have it: all of `old`, and what we deleted ourselves. An
    /// object that we created since the list was requested comes back with its event.
    fn not_listed(&mut self, old: BTreeMap<ObjectKey, Arc<K>>) -> Vec<Change<K>> {
        let mut went = BTreeMap::new();
        for (key, known) in old {
            let before = self.ahead.remove(&key).and_then(|ahead| ahead.before);
            went.insert(key, Change { before: before.or(Some(known)), now: None });
        }
        let objects = &self.objects;
        let deleted = self.ahead.extract_if(.., |key, _| !objects.contains_key(key));
        went.extend(
            deleted.filter_map(|(key, ahead)| Some((key, Change::of(ahead.before, None)?))),
        );
        went.into_values().collect()
    }
}

fn is_at_most(object: &impl Resource, limit: u64) -> bool {
    version(object).is_some_and(|version| version <= limit)
}

fn key_of(meta: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt as _;

    use super::*;
    use crate::guard::Raw;

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

    fn changed(changes: &[Change<ConfigMap>]) -> Vec<String> {
        let sign = |change: &Change<ConfigMap>| if change.now.is_some() { '+' } else { '-' };
        changes.iter().map(|one| format!("{}{}", sign(one), one.object().name_any())).collect()
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
    fn a_late_event_does_not_undo_our_own_deletion() {
        let store = Store::default();
        store.applied(read(at("a", 5)));
        store.remove(&at("a", 5));
        assert!(store.applied(read(at("a", 5))).is_none());
        assert!(store.list().is_empty());
        assert!(store.applied(read(at("a", 8))).is_some(), "the name was used again");
    }

    #[test]
    fn our_own_deletion_does_not_take_the_next_object_of_that_name() {
        let store = Store::default();
        store.applied(read(at("a", 9)));
        store.remove(&at("a", 5));
        assert_eq!(versions(&store), [("a".to_owned(), 9)]);
    }

    #[test]
    fn a_late_answer_does_not_undo_an_event_or_a_deletion() {
        let store = Store::default();
        store.applied(read(at("a", 6)));
        store.insert(at("a", 5));
        assert_eq!(versions(&store), [("a".to_owned(), 6)]);
        store.remove(&at("a", 7));
        store.insert(at("a", 7));
        assert!(store.list().is_empty());
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
    fn a_deletion_of_ours_is_announced_although_its_event_cannot_be_read() {
        let store = Store::default();
        store.applied(read(at("a", 5)));
        store.remove(&at("a", 5));
        let event = serde_json::json!({
            "metadata": {"namespace": "d", "name": "a", "resourceVersion": "7"}, "data": 1,
        });
        let event: Raw = serde_json::from_value(event).unwrap();
        let event: Guarded<ConfigMap> = event.into();
        assert!(event.0.is_err());
        let change = store.deleted(event).unwrap();
        assert_eq!(change.before.as_deref().and_then(version), Some(5));
    }

    #[test]
    fn an_event_of_our_own_write_reports_what_the_watch_had_brought_before() {
        let store = Store::default();
        store.applied(read(at("a", 5)));
        store.insert(at("a", 6));
        store.insert(at("a", 7));
        assert!(store.applied(read(at("a", 6))).is_none(), "there is a newer one to come");
        let change = store.applied(read(at("a", 7))).unwrap();
        assert_eq!(change.before.as_deref().and_then(version), Some(5));
        assert_eq!(change.now.as_deref().and_then(version), Some(7));
    }

    #[test]
    fn a_list_tells_first_what_went_then_what_came_in_order() {
        let store = Store::default();
        for name in ["c", "b", "a"] {
            store.applied(read(at(name, 5)));
        }
        let list = vec![read(at("z", 8)), read(at("b", 5)), read(at("d", 7))];
        assert_eq!(changed(&store.replaced(list)), ["-a", "-c", "+d", "+z"]);
    }

    #[test]
    fn a_list_may_go_back_in_time() {
        // As after a restored backup: the list is the truth, also about what we wrote before it.
        let store = Store::default();
        store.applied(read(at("a", 50)));
        store.insert(at("b", 51));
        store.list_begins();
        assert_eq!(changed(&store.replaced(vec![read(at("a", 9))])), ["-b", "+a"]);
        assert_eq!(versions(&store), [("a".to_owned(), 9)]);
        store.insert(at("a", 12));
        store.list_begins();
        let restored = vec![read(at("a", 9))];
        assert_eq!(changed(&store.replaced(restored)), ["+a"], "our write is lost, too");
    }

    #[test]
    fn a_list_does_not_undo_what_was_written_since_it_was_requested() {
        let store = Store::default();
        for name in ["changed", "deleted"] {
            store.applied(read(at(name, 3)));
        }
        store.list_begins();
        store.insert(at("changed", 9));
        store.insert(at("created", 8));
        store.remove(&at("deleted", 3));
        let list = vec![read(at("changed", 3)), read(at("deleted", 3))];
        assert_eq!(changed(&store.replaced(list)), ["-created"]);
        assert_eq!(versions(&store), [("changed".to_owned(), 9)]);
        let change = store.applied(read(at("created", 8))).unwrap();
        assert!(change.before.is_none(), "the watch delivers it for the first time");
        assert!(store.deleted(read(at("deleted", 10))).is_some());
        let ours = [("changed".to_owned(), 9), ("created".to_owned(), 8)];
        assert_eq!(versions(&store), ours);
    }

    #[test]
    fn a_list_that_brings_our_own_writes_announces_them() {
        let store = Store::default();
        for name in ["changed", "deleted", "same"] {
            store.applied(read(at(name, 3)));
        }
        store.insert(at("changed", 9));
        store.remove(&at("deleted", 3));
        store.insert(at("same", 3));
        store.list_begins();
        let list = vec![read(at("changed", 9)), read(at("same", 3))];
        assert_eq!(changed(&store.replaced(list)), ["-deleted", "+changed"]);
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
        assert!(store.applied(read(object)).unwrap().object().managed_fields().is_empty());
    }
}
