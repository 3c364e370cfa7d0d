//! The history ring: every committed write, in order, for resuming watches and lists at past
//! revisions. The events share their objects' bytes with the store.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::store::{Entry, Table};

/// The effect of a write on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ChangeKind {
    /// It was created.
    Added,
    /// It was changed.
    Modified,
    /// It was removed from the store.
    Deleted,
}

/// One committed write.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) resource: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) kind: ChangeKind,
    /// The previous state; `None` for `Added`.
    pub(crate) old: Option<Arc<Entry>>,
    /// The new state; for `Deleted` the last state, with the deletion's revision.
    pub(crate) new: Arc<Entry>,
}

/// The most recent writes, oldest first. Revisions have no gaps: each write is one change.
#[derive(Debug, Clone)]
pub(crate) struct History {
    changes: VecDeque<Arc<Change>>,
    limit: usize,
    /// The newest dropped change per resource: a quiet resource can be followed from far back,
    /// however busy other resources are.
    forgotten: BTreeMap<Arc<str>, u64>,
}

impl History {
    pub(crate) fn new(limit: usize) -> Self {
        Self { changes: VecDeque::new(), limit: limit.max(1), forgotten: BTreeMap::new() }
    }

    pub(crate) fn push(&mut self, change: Arc<Change>) {
        self.forget_beyond(self.limit - 1);
        self.changes.push_back(change);
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.max(1);
        self.forget_beyond(self.limit);
    }

    fn forget_beyond(&mut self, count: usize) {
        while self.changes.len() > count {
            if let Some(oldest) = self.changes.pop_front() {
                self.forgotten.insert(oldest.resource.clone(), oldest.revision);
            }
        }
    }

    pub(crate) fn forgotten(&self) -> &BTreeMap<Arc<str>, u64> {
        &self.forgotten
    }

    pub(crate) fn set_forgotten(&mut self, forgotten: BTreeMap<Arc<str>, u64>) {
        self.forgotten = forgotten;
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Change>> {
        self.changes.iter()
    }

    /// The oldest revision after which all changes of a resource are known.
    pub(crate) fn oldest_resumable(&self, resource: &str) -> u64 {
        self.forgotten.get(resource).copied().unwrap_or(0)
    }

    /// The changes of all resources after a revision; `None` if one of `resource` was dropped.
    pub(crate) fn after(
        &self,
        resource: &str,
        revision: u64,
    ) -> Option<impl Iterator<Item = &Arc<Change>>> {
        if revision < self.oldest_resumable(resource) {
            return None;
        }
        let before_first = self.changes.front().map_or(revision, |change| change.revision - 1);
        let skip = usize::try_from(revision.saturating_sub(before_first)).unwrap_or(usize::MAX);
        Some(self.changes.range(skip.min(self.changes.len())..))
    }

    /// A table at a past revision: undoes newer changes, newest first.
    pub(crate) fn rewind(&self, resource: &str, table: &Table, revision: u64) -> Option<Table> {
        if revision < self.oldest_resumable(resource) {
            return None;
        }
        let mut table = table.clone();
        let newer = self.changes.iter().rev().take_while(|change| change.revision > revision);
        for change in newer.filter(|change| &*change.resource == resource) {
            match &change.old {
                Some(old) => table.insert(change.key.clone(), old.clone()),
                None => table.remove(&change.key),
            };
        }
        Some(table)
    }
}
