//! Snapshots of the whole store: cheap to take, restorable, and storable as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::crd::{self, CRDS};
use crate::history::{Change, ChangeKind, History};
use crate::object::meta_text;
use crate::resources::Registry;
use crate::store::{Entry, ObjectId, Store, Table};

/// The store at one moment: objects, history, counters, registrations. A snapshot clones pointers,
/// not objects.
#[derive(Clone)]
pub struct StoreSnapshot {
    revision: u64,
    seed: u64,
    git_version: String,
    tables: BTreeMap<Arc<str>, Arc<Table>>,
    history: History,
    incarnations: Arc<BTreeMap<String, u64>>,
    generated: Arc<BTreeMap<String, u64>>,
    registry: Arc<Registry>,
}

impl StoreSnapshot {
    /// The revision at which it was taken.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How many objects it holds.
    pub fn len(&self) -> usize {
        self.tables.values().map(|table| table.len()).sum()
    }

    /// Whether it holds no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for StoreSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreSnapshot(revision {}, {} objects)", self.revision, self.len())
    }
}

impl Store {
    pub(crate) fn snapshot(&self) -> StoreSnapshot {
        StoreSnapshot {
            revision: self.revision,
            seed: self.seed,
            git_version: self.git_version.clone(),
            tables: self.tables.clone(),
            history: self.history.clone(),
            incarnations: self.incarnations.clone(),
            generated: self.generated.clone(),
            registry: self.registry.clone(),
        }
    }

    pub(crate) fn from_snapshot(
        snapshot: StoreSnapshot,
        ring: usize,
        now: jiff::Timestamp,
    ) -> Self {
        let mut store = Self::new(snapshot.seed, ring, now, snapshot.git_version);
        store.revision = snapshot.revision;
        store.tables = snapshot.tables;
        store.history = snapshot.history;
        store.history.set_limit(ring);
        store.incarnations = snapshot.incarnations;
        store.generated = snapshot.generated;
        store.registry = snapshot.registry;
        let tables = store.tables.clone();
        for (resource, table) in &tables {
            for (key, entry) in table.iter() {
                let id = ObjectId { resource: resource.clone(), key: key.clone() };
                store.index(&id, entry);
            }
        }
        store
    }
}

/// The JSON form. Objects shared by tables and history are written once.
#[derive(Serialize, Deserialize)]
struct Wire {
    revision: u64,
    seed: u64,
    git_version: String,
    ring: usize,
    objects: Vec<Value>,
    tables: BTreeMap<String, BTreeMap<String, usize>>,
    history: Vec<WireChange>,
    forgotten: BTreeMap<String, u64>,
    incarnations: BTreeMap<String, u64>,
    generated: BTreeMap<String, u64>,
}

#[derive(Serialize, Deserialize)]
struct WireChange {
    revision: u64,
    resource: String,
    key: String,
    kind: ChangeKind,
    old: Option<usize>,
    new: usize,
}

#[derive(Default)]
struct Objects {
    list: Vec<Value>,
    places: BTreeMap<usize, usize>,
}

impl Objects {
    fn place(&mut self, entry: &Arc<Entry>) -> usize {
        let address = Arc::as_ptr(entry).addr();
        let list = &mut self.list;
        *self.places.entry(address).or_insert_with(|| {
            list.push(entry.value());
            list.len() - 1
        })
    }
}

impl Serialize for StoreSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut objects = Objects::default();
        let mut tables = BTreeMap::new();
        for (resource, table) in &self.tables {
            let rows: BTreeMap<String, usize> =
                table.iter().map(|(key, entry)| (key.to_string(), objects.place(entry))).collect();
            tables.insert(resource.to_string(), rows);
        }
        let history = self
            .history
            .iter()
            .map(|change| WireChange {
                revision: change.revision,
                resource: change.resource.to_string(),
                key: change.key.to_string(),
                kind: change.kind,
                old: change.old.as_ref().map(|old| objects.place(old)),
                new: objects.place(&change.new),
            })
            .collect();
        Wire {
            revision: self.revision,
            seed: self.seed,
            git_version: self.git_version.clone(),
            ring: self.history.limit(),
            objects: objects.list,
            tables,
            history,
            forgotten: self
                .history
                .forgotten()
                .iter()
                .map(|(resource, revision)| (resource.to_string(), *revision))
                .collect(),
            incarnations: (*self.incarnations).clone(),
            generated: (*self.generated).clone(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StoreSnapshot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        Self::from_wire(wire).map_err(serde::de::Error::custom)
    }
}

impl StoreSnapshot {
    fn from_wire(wire: Wire) -> Result<Self, String> {
        let mut registry = Registry::builtin();
        let object = |index: usize| {
            wire.objects.get(index).ok_or_else(|| format!("object {index} does not exist"))
        };
        for index in wire.tables.get(CRDS).into_iter().flat_map(BTreeMap::values) {
            crd::add_to(&mut registry, object(*index)?);
        }
        let mut entries: BTreeMap<usize, Arc<Entry>> = BTreeMap::new();
        let mut entry = |resource: &str, index: usize| -> Result<Arc<Entry>, String> {
            if let Some(entry) = entries.get(&index) {
                return Ok(entry.clone());
            }
            let value = object(index)?;
            let revision = meta_text(value, "resourceVersion");
            let revision = revision.parse().map_err(|_| {
                format!("object {index}: resourceVersion {revision:?} is not a whole number")
            })?;
            let fields = registry.stored(resource).map(|found| found.fields.clone());
            let made = Arc::new(Entry::new(&fields.unwrap_or_default(), revision, value));
            entries.insert(index, made.clone());
            Ok(made)
        };
        let mut tables = BTreeMap::new();
        for (resource, rows) in &wire.tables {
            let mut table = Table::new();
            for (key, index) in rows {
                table.insert(key.as_str().into(), entry(resource, *index)?);
            }
            tables.insert(Arc::from(resource.as_str()), Arc::new(table));
        }
        let mut history = History::new(wire.ring);
        history.set_forgotten(
            wire.forgotten
                .iter()
                .map(|(id, revision)| (Arc::from(id.as_str()), *revision))
                .collect(),
        );
        for (position, change) in wire.history.iter().enumerate() {
            let newer = (wire.history.len() - 1 - position) as u64;
            if change.revision == 0 || wire.revision.checked_sub(newer) != Some(change.revision) {
                return Err(format!("the history has a gap at revision {}", change.revision));
            }
            history.push(Arc::new(Change {
                revision: change.revision,
                resource: change.resource.as_str().into(),
                key: change.key.as_str().into(),
                kind: change.kind,
                old: change.old.map(|old| entry(&change.resource, old)).transpose()?,
                new: entry(&change.resource, change.new)?,
            }));
        }
        Ok(Self {
            revision: wire.revision,
            seed: wire.seed,
            git_version: wire.git_version,
            tables,
            history,
            incarnations: Arc::new(wire.incarnations),
            generated: Arc::new(wire.generated),
            registry: Arc::new(registry),
        })
    }
}
