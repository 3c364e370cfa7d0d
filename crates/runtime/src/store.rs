//! One watch per kind: store and trigger come from the same stream, deletes included
//! (`docs/facts/kube-rs.md#one-watch-per-kind`; kube's shared reflectors can hang).

mod objects;
mod reflect;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Debug},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use tokio::sync::watch;

use self::objects::Objects;
use crate::guard::Guarded;

pub use objects::Index;
pub use reflect::{
    Broken, Limits, everything, follow, read_now, read_now_of, reflect, reflect_within,
};

/// Namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key for this namespace and name.
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

/// The objects of one kind as a watch delivered them, in order of namespace and name.
///
/// managedFields are removed from the typed metadata: no user of a store reads them, and they make
/// up half of most objects.
pub struct Store<K>(Arc<Shared<K>>);

struct Shared<K> {
    state: RwLock<State<K>>,
    ready: watch::Sender<bool>,
    /// How often all objects, or those of a namespace, were listed.
    scans: AtomicU64,
}

struct State<K> {
    objects: Objects<K>,
    /// Objects whose latest version could not be read, with the reason.
    unreadable: BTreeMap<ObjectKey, String>,
    /// The newest resourceVersion from the watch. An object that is not in the store and not newer
    /// is deleted.
    seen: u64,
    /// Refit's own writes, and what it read live, that the watch has not delivered yet.
    ahead: BTreeMap<ObjectKey, Ahead<K>>,
}

/// An own write, or a live read, that is in the store before its event arrives.
struct Ahead<K> {
    /// The object that the watch had delivered before.
    before: Option<Arc<K>>,
    /// The resourceVersion of the response; for a deletion, the last known one of the object.
    version: u64,
    /// Whether the response arrived after the list in progress was requested.
    since_list: bool,
}

/// A list that was requested apart from the watch.
#[derive(Debug)]
pub(crate) struct LiveList<K> {
    /// Its objects, except those of `held`.
    pub(crate) read: Vec<Guarded<K>>,
    /// Its objects that the store has had in this version, or a newer one, since the list arrived.
    pub(crate) held: BTreeSet<ObjectKey>,
    /// Its resourceVersion.
    pub(crate) version: u64,
}

/// An object that was added (`before` is `None`), changed, or deleted (`now` is `None`). At least
/// one of the two is set.
#[derive(Debug)]
pub struct Change<K> {
    /// The previous object from the watch.
    pub before: Option<Arc<K>>,
    /// What is in the store now.
    pub now: Option<Arc<K>>,
}

impl<K> Change<K> {
    fn of(before: Option<Arc<K>>, now: Option<Arc<K>>) -> Option<Self> {
        (before.is_some() || now.is_some()).then_some(Self { before, now })
    }

    /// The current object, or the last one before its deletion.
    pub fn object(&self) -> &K {
        let object = self.now.as_ref().or(self.before.as_ref());
        object.expect("a change concerns an object that exists or existed")
    }
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("len", &self.read().objects.all().len())
            .finish_non_exhaustive()
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self::indexed(&[])
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
    /// A store that keeps these indexes.
    pub fn indexed(indexes: &[Index<K>]) -> Self {
        Self(Arc::new(Shared {
            state: RwLock::new(State {
                objects: Objects::new(indexes),
                unreadable: BTreeMap::new(),
                seen: 0,
                ahead: BTreeMap::new(),
            }),
            ready: watch::channel(false).0,
            scans: AtomicU64::new(0),
        }))
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns one object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// All objects, in order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.0.scans.fetch_add(1, Ordering::Relaxed);
        self.read().objects.all().values().cloned().collect()
    }

    /// The objects of one namespace, in order.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        self.0.scans.fetch_add(1, Ordering::Relaxed);
        let start = ObjectKey::new(namespace, "");
        self.read()
            .objects
            .all()
            .range(start..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The objects that an index lists under a key, in order.
    ///
    /// # Panics
    /// If the store was created without this index.
    pub fn listed(&self, index: &Index<K>, key: &ObjectKey) -> Vec<Arc<K>> {
        self.read().objects.listed(index, key)
    }

    /// How often [`Store::list`] and [`Store::list_in`] were called. Tests ensure with it that the
    /// cost of an event does not grow with the number of objects.
    pub fn scans(&self) -> u64 {
        self.0.scans.load(Ordering::Relaxed)
    }

    /// The objects whose latest version could not be read, with the reason. For these the store
    /// holds the previous version, or nothing.
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
        // This store owns the sender, so the channel stays open during the wait.
        let _ = receiver.wait_for(|ready| *ready).await;
    }

    /// Marks the first list as complete.
    pub fn mark_ready(&self) {
        self.0.ready.send_replace(true);
    }

    /// Requires another complete list before the store is ready again, such as after an outage. The
    /// objects stay.
    pub fn expect_list(&self) {
        self.0.ready.send_replace(false);
    }
}

impl<K: Resource> Store<K> {
    /// Stores the object that a write returned, unless the watch has delivered a newer version or
    /// its deletion.
    pub fn insert(&self, object: K) {
        self.write().learn(object);
    }

    /// Whether the store has this version of an object, and has read every newer one.
    fn holds(&self, key: &ObjectKey, meta: &ObjectMeta) -> bool {
        let state = self.read();
        let known = state.objects.get(key).map(|known| known.meta());
        let same = |known: &ObjectMeta| {
            known.uid == meta.uid && known.resource_version == meta.resource_version
        };
        meta.resource_version.is_some()
            && !state.unreadable.contains_key(key)
            && known.is_some_and(same)
    }

    /// Takes over objects that were listed apart from the watch, right before a decision. `covers`
    /// decides which objects the list would contain: those that it lacks were deleted.
    pub(crate) fn learn_list(&self, list: LiveList<K>, covers: impl Fn(&K) -> bool) {
        let LiveList { read, held: mut listed, version: list_version } = list;
        let mut state = self.write();
        for object in read {
            let key = key_of(object.metadata());
            match object.0 {
                Ok(object) => {
                    state.unreadable.remove(&key);
                    state.learn(object);
                }
                Err(unreadable) => {
                    let answered = version_of(unreadable.metadata());
                    if answered.is_none() || answered > state.newest(&key) {
                        state.unreadable.insert(key.clone(), unreadable.reason);
                    }
                }
            }
            listed.insert(key);
        }
        let is_gone = |key: &ObjectKey, known: &K| {
            !listed.contains(key) && covers(known) && is_at_most(known, list_version)
        };
        let gone = state.objects.all().iter().filter(|(key, known)| is_gone(key, known.as_ref()));
        let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            let before = state.objects.remove(&key);
            state.note_write(key, before, Some(list_version));
        }
    }

    /// Removes an object that an own write deleted, unless a newer object of that name is known.
    pub fn remove(&self, object: &K) {
        let mut state = self.write();
        let key = key_of(object.meta());
        if state.objects.get(&key).is_none_or(|known| newer(known.as_ref(), object)) {
            return;
        }
        let before = state.objects.remove(&key);
        state.note_write(key, before, version(object));
    }

    /// Records that a list is requested: it may miss own writes from now on.
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
        if state.is_older_than_own_write(&key, &object) {
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
        // A new object of the same name may have been created since, and be known from its create.
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

    /// Stores a whole list and returns the changes: first deletions, then additions and updates. An
    /// object that Refit changed or deleted since the list was requested keeps that state.
    fn replaced(&self, list: Vec<Guarded<K>>) -> Vec<Change<K>> {
        let mut state = self.write();
        let mut old = state.objects.take();
        state.unreadable.clear();
        let (mut came, mut kept) = (BTreeMap::new(), BTreeMap::new());
        for object in list {
            let key = key_of(object.metadata());
            state.saw(&object);
            let known = old.remove(&key);
            let mut object = match object.0 {
                Err(unreadable) => {
                    state.unreadable.insert(key.clone(), unreadable.reason);
                    state.restore(key, known);
                    continue;
                }
                Ok(object) => object,
            };
            if state.wrote_since(&key, known.as_ref(), &object) {
                kept.extend(state.ahead.remove_entry(&key));
                state.restore(key, known);
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

    /// The newest known resourceVersion of an object, or of its deletion.
    fn newest(&self, key: &ObjectKey) -> Option<u64> {
        if let Some(known) = self.objects.get(key) {
            return version(known.as_ref());
        }
        let deleted = self.ahead.get(key).map_or(0, |ahead| ahead.version);
        Some(self.seen.max(deleted))
    }

    /// Stores an object that was not delivered by the watch, unless the watch has delivered a newer
    /// version or its deletion.
    fn learn(&mut self, mut object: K) {
        object.meta_mut().managed_fields = None;
        let key = key_of(object.meta());
        let answered = version(&object);
        let outdated = answered.is_some() && answered <= self.newest(&key);
        if !outdated {
            let before = self.objects.insert(key.clone(), Arc::new(object));
            self.note_write(key, before, answered);
        }
    }

    /// Stores the previous state of an object again.
    fn restore(&mut self, key: ObjectKey, known: Option<Arc<K>>) {
        if let Some(known) = known {
            self.objects.insert(key, known);
        }
    }

    /// Records what the store knows before the watch: the result of an own write, or of a read.
    fn note_write(&mut self, key: ObjectKey, before: Option<Arc<K>>, version: Option<u64>) {
        let ahead = self.ahead.entry(key).or_insert(Ahead { before, version: 0, since_list: true });
        ahead.version = version.unwrap_or_default();
        ahead.since_list = true;
    }

    /// Whether an event is older than the result of an own write.
    fn is_older_than_own_write(&self, key: &ObjectKey, object: &K) -> bool {
        match self.objects.get(key) {
            Some(known) => newer(known.as_ref(), object),
            None => self.ahead.get(key).is_some_and(|deleted| is_at_most(object, deleted.version)),
        }
    }

    /// Whether Refit changed or deleted an object after requesting the list that has an older
    /// state.
    fn wrote_since(&self, key: &ObjectKey, known: Option<&Arc<K>>, listed: &K) -> bool {
        let Some(ahead) = self.ahead.get(key).filter(|ahead| ahead.since_list) else {
            return false;
        };
        match known {
            Some(known) => newer(known.as_ref(), listed),
            None => is_at_most(listed, ahead.version),
        }
    }

    /// The deletions that follow from a list: all objects in `old`, and those that Refit itself
    /// deleted. An object that Refit created since the list was requested returns with its event.
    fn not_listed(&mut self, old: BTreeMap<ObjectKey, Arc<K>>) -> Vec<Change<K>> {
        let mut deletions = BTreeMap::new();
        for (key, known) in old {
            let before = self.ahead.remove(&key).and_then(|ahead| ahead.before);
            deletions.insert(key, Change { before: before.or(Some(known)), now: None });
        }
        let objects = &self.objects;
        let deleted = self.ahead.extract_if(.., |key, _| objects.get(key).is_none());
        deletions.extend(
            deleted.filter_map(|(key, ahead)| Some((key, Change::of(ahead.before, None)?))),
        );
        deletions.into_values().collect()
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
mod index_tests;
#[cfg(test)]
mod tests;
