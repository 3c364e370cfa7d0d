//! Follow-up of a write: owner garbage collection, namespace and CRD termination, budgets. In
//! Kubernetes controllers do this; here it completes under the lock of the write.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::crd::{CLEANUP, CRDS};
use crate::delete::{DeleteOptions, Propagation};
use crate::history::{Change, ChangeKind};
use crate::object::{finalizers, meta_mut, remove_finalizer, set_meta};
use crate::resources::Resource;
use crate::store::{Entry, ObjectId, Store, key_of, name_of, namespace_of, range};

pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const NAMESPACES: &str = "namespaces";
const PODS: &str = "pods";
const BUDGETS: &str = "poddisruptionbudgets.policy";

/// One check after a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// Check whether the owners of this object still exist.
    Owners(ObjectId),
    /// Check whether the dependents of this object, which waits for them, are gone.
    Foreground(ObjectId),
    /// Remove this object from the ownerReferences of its dependents.
    Orphan(ObjectId),
    /// Check whether this terminating namespace is empty.
    Namespace(String),
    /// Check whether this terminating CRD has no objects left.
    Definition(String),
    /// Recompute the disruption budgets of a namespace.
    Budgets(String),
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum OwnerState {
    Absent,
    Waiting,
    Solid,
}

fn has_finalizer(entry: &Entry, name: &str) -> bool {
    entry.finalizers.iter().any(|item| &**item == name)
}

impl Store {
    /// Queues the checks that a change requires.
    pub(crate) fn enqueue(&mut self, resource: &Resource, id: &ObjectId, change: &Change) {
        let namespace = namespace_of(&id.key).to_owned();
        if change.kind == ChangeKind::Deleted {
            if let Some(dependents) = self.dependents.get(&*change.new.uid) {
                self.pending.extend(dependents.iter().cloned().map(Work::Owners));
            }
            if resource.namespaced && self.is_terminating(NAMESPACES, &key_of("", &namespace)) {
                self.pending.push_back(Work::Namespace(namespace.clone()));
            }
            if resource.custom && self.is_terminating(CRDS, &key_of("", &resource.id)) {
                self.pending.push_back(Work::Definition(resource.id.to_string()));
            }
        } else {
            if !change.new.owners.is_empty() && !change.new.deleting {
                self.pending.push_back(Work::Owners(id.clone()));
            }
            if change.new.deleting {
                self.enqueue_termination(id, &change.new);
            }
        }
        for owner in change.old.iter().flat_map(|old| old.owners.iter()) {
            if let Some(owner) = self.uids.get(&*owner.uid).cloned()
                && self.get_id(&owner).is_some_and(|entry| entry.deleting)
            {
                self.pending.push_back(Work::Foreground(owner));
            }
        }
        // Whatever can be scaled can be the controller of pods.
        if matches!(&*id.resource, PODS | BUDGETS) || (resource.scale.is_some() && !resource.custom)
        {
            let work = Work::Budgets(namespace);
            if !self.pending.contains(&work) {
                self.pending.push_back(work);
            }
        }
    }

    fn enqueue_termination(&mut self, id: &ObjectId, entry: &Entry) {
        if has_finalizer(entry, FOREGROUND) {
            self.pending.push_back(Work::Foreground(id.clone()));
        }
        if has_finalizer(entry, ORPHAN) {
            self.pending.push_back(Work::Orphan(id.clone()));
        }
        if &*id.resource == NAMESPACES {
            self.pending.push_back(Work::Namespace(name_of(&id.key).to_owned()));
        }
        if &*id.resource == CRDS && has_finalizer(entry, CLEANUP) {
            self.pending.push_back(Work::Definition(name_of(&id.key).to_owned()));
        }
    }

    pub(crate) fn is_terminating(&self, resource: &str, key: &str) -> bool {
        self.get(resource, key).is_some_and(|entry| entry.deleting)
    }

    /// Processes all queued checks and their consequences.
    pub(crate) fn settle(&mut self) {
        while let Some(work) = self.pending.pop_front() {
            match work {
                Work::Owners(id) => self.check_owners(&id),
                Work::Foreground(id) => self.finish_foreground(&id),
                Work::Orphan(id) => self.finish_orphan(&id),
                Work::Namespace(name) => self.finish_namespace(&name),
                Work::Definition(name) => self.finish_definition(&name),
                Work::Budgets(namespace) => self.refresh_budgets(&namespace),
            }
        }
    }

    fn owner_state(&self, uid: &str, namespace: &str) -> OwnerState {
        let Some(id) = self.uids.get(uid) else {
            return OwnerState::Absent;
        };
        let home = namespace_of(&id.key);
        if !home.is_empty() && home != namespace {
            return OwnerState::Absent;
        }
        match self.get_id(id) {
            None => OwnerState::Absent,
            Some(entry) if entry.deleting && has_finalizer(&entry, FOREGROUND) => {
                OwnerState::Waiting
            }
            Some(_) => OwnerState::Solid,
        }
    }

    fn check_owners(&mut self, id: &ObjectId) {
        let Some(entry) = self.get_id(id) else { return };
        if entry.deleting || entry.owners.is_empty() {
            return;
        }
        let namespace = namespace_of(&id.key);
        let states: Vec<OwnerState> =
            entry.owners.iter().map(|owner| self.owner_state(&owner.uid, namespace)).collect();
        if states.iter().all(|state| *state == OwnerState::Solid) {
            return;
        }
        if states.contains(&OwnerState::Solid) {
            let gone: BTreeSet<&str> = entry
                .owners
                .iter()
                .zip(&states)
                .filter(|(_, state)| **state != OwnerState::Solid)
                .map(|(owner, _)| &*owner.uid)
                .collect();
            self.drop_owners(id, &entry, &gone);
            return;
        }
        let has_dependents = self.dependents.contains_key(&*entry.uid);
        let propagation = if states.contains(&OwnerState::Waiting) && has_dependents {
            Propagation::Foreground
        } else if has_finalizer(&entry, ORPHAN) {
            Propagation::Orphan
        } else {
            Propagation::Background
        };
        self.collect(id, propagation);
    }

    fn drop_owners(&mut self, id: &ObjectId, entry: &Entry, gone: &BTreeSet<&str>) {
        let Some(resource) = self.registry.stored(&id.resource).cloned() else {
            return;
        };
        let mut value = entry.value();
        let meta = meta_mut(&mut value);
        if let Some(owners) = meta.get_mut("ownerReferences").and_then(Value::as_array_mut) {
            owners.retain(|owner| !gone.contains(owner["uid"].as_str().unwrap_or_default()));
            if owners.is_empty() {
                meta.remove("ownerReferences");
            }
        }
        self.commit(&resource, &id.key, ChangeKind::Modified, value);
    }

    fn collect(&mut self, id: &ObjectId, propagation: Propagation) {
        let Some(resource) = self.registry.stored(&id.resource).cloned() else {
            return;
        };
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        // An object that is already gone needs no collection.
        let _ = self.delete_entry(&resource, &id.key, &options);
    }

    fn finish_foreground(&mut self, id: &ObjectId) {
        let Some(entry) = self.get_id(id) else { return };
        if !entry.deleting || !has_finalizer(&entry, FOREGROUND) {
            return;
        }
        let dependents = self.dependents.get(&*entry.uid).cloned().unwrap_or_default();
        let blocking: Vec<ObjectId> = dependents
            .into_iter()
            .filter(|dependent| {
                self.get_id(dependent).is_some_and(|found| {
                    found.owners.iter().any(|owner| *owner.uid == *entry.uid && owner.blocks)
                })
            })
            .collect();
        if blocking.is_empty() {
            self.release(id, &entry, FOREGROUND);
            return;
        }
        for dependent in blocking {
            if !self.get_id(&dependent).is_some_and(|found| found.deleting) {
                self.pending.push_back(Work::Owners(dependent));
            }
        }
    }

    fn finish_orphan(&mut self, id: &ObjectId) {
        let Some(entry) = self.get_id(id) else { return };
        if !entry.deleting || !has_finalizer(&entry, ORPHAN) {
            return;
        }
        let gone = BTreeSet::from([&*entry.uid]);
        for dependent in self.dependents.get(&*entry.uid).cloned().unwrap_or_default() {
            if let Some(found) = self.get_id(&dependent) {
                self.drop_owners(&dependent, &found, &gone);
            }
        }
        self.release(id, &entry, ORPHAN);
    }

    /// Removes a finalizer, and the object with its last one.
    fn release(&mut self, id: &ObjectId, entry: &Entry, finalizer: &str) {
        let Some(resource) = self.registry.stored(&id.resource).cloned() else {
            return;
        };
        let mut value = entry.value();
        if remove_finalizer(&mut value, finalizer) {
            self.commit_or_remove(&resource, &id.key, value);
        }
    }

    /// Commits an object's new state; an object being deleted is removed if it has no finalizers.
    pub(crate) fn commit_or_remove(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        value: Value,
    ) -> Arc<Entry> {
        let meta = &value["metadata"];
        let deleting = meta.get("deletionTimestamp").is_some_and(Value::is_string);
        let grace = meta.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        let held = !finalizers(&value).is_empty()
            || (&*resource.id == NAMESPACES && !namespace_finalizers(&value).is_empty());
        let goes = deleting && grace == 0 && !held;
        let kind = if goes { ChangeKind::Deleted } else { ChangeKind::Modified };
        self.commit(resource, key, kind, value)
    }

    fn finish_namespace(&mut self, name: &str) {
        let key: Arc<str> = key_of("", name).into();
        let Some(entry) = self.get(NAMESPACES, &key) else {
            return;
        };
        if !entry.deleting {
            return;
        }
        let mut left = Vec::new();
        for resource in self.registry.all_stored().filter(|resource| resource.namespaced) {
            if let Some(table) = self.table(&resource.id) {
                left.extend(range(table, Some(name)).map(|(key, entry)| {
                    let id = ObjectId { resource: resource.id.clone(), key: key.clone() };
                    (id, entry.deleting)
                }));
            }
        }
        if left.is_empty() {
            let Some(resource) = self.registry.stored(NAMESPACES).cloned() else {
                return;
            };
            let mut value = entry.value();
            if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
                spec.remove("finalizers");
            }
            self.commit_or_remove(&resource, &key, value);
            return;
        }
        for (id, deleting) in left {
            if !deleting {
                self.collect(&id, Propagation::Background);
            }
        }
    }

    fn finish_definition(&mut self, name: &str) {
        let key: Arc<str> = key_of("", name).into();
        let Some(entry) = self.get(CRDS, &key) else {
            return;
        };
        if !entry.deleting {
            return;
        }
        let left: Vec<(ObjectId, bool)> = self.table(name).map_or_else(Vec::new, |table| {
            table
                .iter()
                .map(|(key, entry)| {
                    (ObjectId { resource: name.into(), key: key.clone() }, entry.deleting)
                })
                .collect()
        });
        if left.is_empty() {
            let id = ObjectId { resource: CRDS.into(), key };
            self.release(&id, &entry, CLEANUP);
            return;
        }
        for (id, deleting) in left {
            if !deleting {
                self.collect(&id, Propagation::Background);
            }
        }
    }

    /// Sets the status of a namespace that is being deleted.
    pub(crate) fn mark_terminating(value: &mut Value) {
        if !value["status"].is_object() {
            value["status"] = json!({});
        }
        value["status"]["phase"] = json!("Terminating");
    }
}

/// `spec.finalizers` of a namespace.
pub(crate) fn namespace_finalizers(value: &Value) -> Vec<&str> {
    value
        .get("spec")
        .and_then(|spec| spec.get("finalizers"))
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// Sets the deletion metadata of an object.
pub(crate) fn mark_deleting(value: &mut Value, at: &str, grace: i64) {
    set_meta(value, "deletionTimestamp", at);
    set_meta(value, "deletionGracePeriodSeconds", grace);
}
