//! The objects of a store, and its secondary indexes.

use std::{collections::BTreeMap, sync::Arc};

use super::ObjectKey;

/// A secondary index: finds the objects of a store without a scan.
pub struct Index<K> {
    /// Name, unique among the indexes of a store.
    pub name: &'static str,
    /// The keys under which the index lists an object, such as its owner. They depend on the object
    /// alone.
    pub keys: fn(&K) -> Vec<ObjectKey>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Index<K> {}

/// The objects by key. Every insertion and removal maintains the indexes.
pub(super) struct Objects<K> {
    by_key: BTreeMap<ObjectKey, Arc<K>>,
    indexes: Vec<(Index<K>, Entries<K>)>,
}

/// The listed objects by the key of the index and their own.
type Entries<K> = BTreeMap<ObjectKey, BTreeMap<ObjectKey, Arc<K>>>;

impl<K> Objects<K> {
    pub(super) fn new(indexes: &[Index<K>]) -> Self {
        let indexes = indexes.iter().map(|index| (*index, Entries::new())).collect();
        Self { by_key: BTreeMap::new(), indexes }
    }

    /// All objects by key.
    pub(super) fn all(&self) -> &BTreeMap<ObjectKey, Arc<K>> {
        &self.by_key
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.by_key.get(key)
    }

    /// The objects that an index lists under a key, in order.
    pub(super) fn listed(&self, index: &Index<K>, key: &ObjectKey) -> Vec<Arc<K>> {
        let entries = self.indexes.iter().find(|(known, _)| known.name == index.name);
        let (_, entries) = entries.expect("a store is created with every index that is used");
        entries.get(key).map(|objects| objects.values().cloned().collect()).unwrap_or_default()
    }

    /// Stores an object; returns the previous one.
    pub(super) fn insert(&mut self, key: ObjectKey, object: Arc<K>) -> Option<Arc<K>> {
        let before = self.by_key.get(&key).cloned();
        for (index, entries) in &mut self.indexes {
            if let Some(before) = &before {
                unlist(entries, (index.keys)(before), &key);
            }
            for listed_under in (index.keys)(&object) {
                entries.entry(listed_under).or_default().insert(key.clone(), object.clone());
            }
        }
        self.by_key.insert(key, object)
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<K>> {
        let object = self.by_key.remove(key)?;
        for (index, entries) in &mut self.indexes {
            unlist(entries, (index.keys)(&object), key);
        }
        Some(object)
    }

    /// Removes and returns all objects.
    pub(super) fn take(&mut self) -> BTreeMap<ObjectKey, Arc<K>> {
        for (_, entries) in &mut self.indexes {
            entries.clear();
        }
        std::mem::take(&mut self.by_key)
    }
}

fn unlist<K>(entries: &mut Entries<K>, listed_under: Vec<ObjectKey>, key: &ObjectKey) {
    for under in listed_under {
        if let Some(objects) = entries.get_mut(&under) {
            objects.remove(key);
            if objects.is_empty() {
                entries.remove(&under);
            }
        }
    }
}
