//! Single writes as a log keeps them, and a snapshot that takes them up.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StoreSnapshot;
use crate::crd::{self, CRDS};
use crate::history::{Change, ChangeKind, History};
use crate::object::meta_text;
use crate::resources::Registry;
use crate::store::{Entry, GENERATED_BASE, StoreEvent, generated_name, key_of};

/// How far the counter of a `generateName` may have run ahead of the names that were stored:
/// creations that were refused take a number, too.
const NAMES_SEARCHED: u64 = 10_000;

/// One committed write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredWrite {
    /// `plural.group`, or `plural` for core.
    pub resource: String,
    /// Namespace, `""` for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What happened.
    pub kind: ChangeKind,
    /// The store's revision of this write.
    pub revision: u64,
    /// The object after; for `Deleted` its last state.
    pub object: Value,
}

/// Why a write does not follow a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a write with revision {found} follows revision {known}")]
pub struct ReplayError {
    /// Revision of the snapshot.
    pub known: u64,
    /// Revision of the write.
    pub found: u64,
}

impl StoredWrite {
    /// The write that an observer sees.
    pub fn of(event: &StoreEvent<'_>) -> Self {
        Self {
            resource: event.resource.id.to_string(),
            namespace: event.namespace.to_owned(),
            name: event.name.to_owned(),
            kind: event.kind,
            revision: event.revision,
            object: serde_json::from_slice(event.new).expect("the store wrote these bytes itself"),
        }
    }
}

impl StoreSnapshot {
    /// The same store without its history: watches cannot resume from before, as after a
    /// compaction of etcd. It is a small part of the size.
    #[must_use]
    pub fn without_history(mut self) -> Self {
        let mut forgotten = self.history.forgotten().clone();
        for resource in self.tables.keys() {
            forgotten.insert(resource.clone(), self.revision);
        }
        let mut history = History::new(self.history.limit());
        history.set_forgotten(forgotten);
        self.history = history;
        self
    }

    /// What `/version` says from now on.
    pub fn set_git_version(&mut self, version: &str) {
        version.clone_into(&mut self.git_version);
    }

    /// Takes up the write that came next.
    pub fn replay(&mut self, write: &StoredWrite) -> Result<(), ReplayError> {
        if write.revision != self.revision + 1 {
            return Err(ReplayError { known: self.revision, found: write.revision });
        }
        self.revision = write.revision;
        let resource: Arc<str> = write.resource.as_str().into();
        let key: Arc<str> = key_of(&write.namespace, &write.name).into();
        let found = self.registry.stored(&resource);
        let fields = found.map(|found| found.fields.clone()).unwrap_or_default();
        let new = Arc::new(Entry::new(&fields, write.revision, &write.object));
        let table = Arc::make_mut(self.tables.entry(resource.clone()).or_default());
        let old = if write.kind == ChangeKind::Deleted {
            let used = Arc::make_mut(&mut self.incarnations);
            *used.entry(format!("{resource}/{key}")).or_default() += 1;
            table.remove(&key)
        } else {
            table.insert(key.clone(), new.clone())
        };
        if write.kind == ChangeKind::Added {
            self.count_generated(write);
        }
        self.history.push(Arc::new(Change {
            revision: write.revision,
            resource,
            key,
            kind: write.kind,
            old,
            new,
        }));
        if write.resource == CRDS {
            if write.kind == ChangeKind::Deleted {
                self.tables.remove(write.name.as_str());
            }
            self.register_again();
        }
        Ok(())
    }

    /// Counts a generated name as given out, with all that came before it.
    fn count_generated(&mut self, write: &StoredWrite) {
        let base = meta_text(&write.object, "generateName");
        if base.is_empty() {
            return;
        }
        let base: String = base.chars().take(GENERATED_BASE).collect();
        let parts = [write.resource.as_str(), write.namespace.as_str(), &base];
        let counter = format!("{}/{}/{base}", write.resource, write.namespace);
        let known = self.generated.get(&counter).copied().unwrap_or(0);
        let found = (known..known.saturating_add(NAMES_SEARCHED))
            .find(|count| generated_name(self.seed, parts, *count) == write.name);
        // A name that its creator chose itself is none of ours.
        if let Some(count) = found {
            Arc::make_mut(&mut self.generated).insert(counter, count + 1);
        }
    }

    /// Registers what the definitions say now.
    fn register_again(&mut self) {
        let mut registry = Registry::builtin();
        let definitions = self.tables.get(CRDS).cloned().unwrap_or_default();
        for entry in definitions.values() {
            crd::add_to(&mut registry, &entry.value());
        }
        self.registry = Arc::new(registry);
    }
}
