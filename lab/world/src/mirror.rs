//! The environment's view of an API server: every object of the kinds that it uses, as of the last
//! committed write.
//!
//! The server's observer updates the view under the server's lock, so it never lags. Objects are
//! parsed on first access.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use lab_apiserver::{ApiServer, ChangeKind, Resource, StoreEvent};
use refit_cluster_api::kinds;
use serde_json::Value;
use tokio::sync::Notify;

use crate::env::canonical;

/// Namespace and name.
pub(crate) type Key = (String, String);
/// Objects by resource (`plural` or `plural.group`) and key.
pub(crate) type Changed = BTreeSet<(String, Key)>;

/// One object, parsed on demand.
#[derive(Debug)]
struct Item {
    bytes: Bytes,
    value: OnceLock<Arc<Value>>,
}

impl Item {
    fn value(&self) -> Arc<Value> {
        self.value
            .get_or_init(|| Arc::new(serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)))
            .clone()
    }
}

/// Where the objects of a kind are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// `plural` or `plural.group`.
    pub(crate) id: String,
    /// `/api/v1` or `/apis/group/version`.
    pub(crate) base: String,
    /// Plural name.
    pub(crate) plural: String,
}

#[derive(Default)]
struct Tables {
    objects: BTreeMap<String, BTreeMap<Key, Item>>,
    revision: Revision,
    /// The objects for the environment that changed since it last asked; `None` where it never does.
    changed: Option<Changed>,
    places: BTreeMap<(String, String), Place>,
}

/// Which consumers need the objects of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// No consumer.
    None,
    /// Queries of the world's state.
    Status,
    /// Queries and the environment, which reacts to changes.
    Environment,
}

/// The number of changes so far: equal revisions of a view mean equal objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Revision {
    /// Of all objects in the view.
    pub(crate) whole: u64,
    /// Of those that the environment uses.
    pub(crate) environment: u64,
    /// Of those that the environment uses, other than Machines.
    pub(crate) around_machines: u64,
}

/// A view of one server.
#[derive(Clone)]
pub(crate) struct Mirror {
    tables: Arc<Mutex<Tables>>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mirror")
    }
}

impl Mirror {
    /// Follows a server. `interest` selects the resources; `woken` is notified of each change to a
    /// resource that the environment uses.
    pub(crate) fn follow(
        server: &ApiServer,
        interest: fn(&Resource) -> Interest,
        woken: Arc<Notify>,
    ) -> Self {
        let tables = Arc::new(Mutex::new(Tables::default()));
        let mirror = Self { tables: tables.clone() };
        for (resource, value) in server.dump() {
            if interest(&resource) != Interest::None {
                let text = |pointer| {
                    let text = value.pointer(pointer).and_then(Value::as_str);
                    text.unwrap_or_default().to_owned()
                };
                let key = (text("/metadata/namespace"), text("/metadata/name"));
                let value = OnceLock::from(Arc::new(value));
                let item = Item { bytes: Bytes::new(), value };
                mirror.lock().put(&resource, key, item);
            }
        }
        server.observe(Box::new(move |event: &StoreEvent<'_>| {
            let interest = interest(event.resource);
            if interest == Interest::None {
                return;
            }
            let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (event.namespace.to_owned(), event.name.to_owned());
            if interest == Interest::Environment
                && let Some(changed) = &mut tables.changed
            {
                changed.insert((event.resource.id.to_string(), key.clone()));
            }
            if event.kind == ChangeKind::Deleted {
                tables.remove(event.resource, &key);
            } else {
                let item = Item { bytes: event.new.clone(), value: OnceLock::new() };
                tables.put(event.resource, key, item);
            }
            tables.revision.whole += 1;
            if interest == Interest::Environment {
                tables.revision.environment += 1;
                tables.revision.around_machines += u64::from(&*event.resource.kind != "Machine");
            }
            drop(tables);
            if interest == Interest::Environment {
                woken.notify_one();
            }
        }));
        mirror
    }

    /// Notes from now on which objects for the environment change.
    pub(crate) fn noting_changes(self) -> Self {
        self.lock().changed = Some(Changed::new());
        self
    }

    /// The objects for the environment that changed since the last call.
    pub(crate) fn take_changed(&self) -> Changed {
        self.lock().changed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of changes so far.
    pub(crate) fn revision(&self) -> Revision {
        self.lock().revision
    }

    /// One object.
    pub(crate) fn get(&self, id: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let tables = self.lock();
        let key = (namespace.to_owned(), name.to_owned());
        tables.objects.get(id)?.get(&key).map(Item::value)
    }

    /// The keys of a resource's objects.
    pub(crate) fn keys(&self, id: &str) -> BTreeSet<Key> {
        let tables = self.lock();
        tables.objects.get(id).into_iter().flat_map(|table| table.keys().cloned()).collect()
    }

    /// The objects of a resource, in order of namespace and name.
    pub(crate) fn list(&self, id: &str) -> Vec<Arc<Value>> {
        let tables = self.lock();
        tables
            .objects
            .get(id)
            .map(|table| table.values().map(Item::value).collect())
            .unwrap_or_default()
    }

    /// Where the objects of a kind are stored; `None` until one has been observed.
    pub(crate) fn place(&self, group: &str, kind: &str) -> Option<Place> {
        let key = (group.to_owned(), kind.to_owned());
        self.lock().places.get(&key).cloned()
    }

    /// The object that a contract reference of an object in `namespace` names, and where it is
    /// stored.
    pub(crate) fn referred(
        &self,
        reference: &Value,
        namespace: &str,
    ) -> Option<(Place, Arc<Value>)> {
        let text = |key: &str| reference[key].as_str();
        let place = self.place(text("apiGroup")?, text("kind")?)?;
        let value = self.get(&place.id, namespace, text("name")?)?;
        Some((place, value))
    }
}

impl Tables {
    fn put(&mut self, resource: &Resource, key: Key, item: Item) {
        let id = resource.id.to_string();
        let kind = (resource.group.to_string(), resource.kind.to_string());
        self.places.entry(kind).or_insert_with(|| place_of(resource));
        self.objects.entry(id).or_default().insert(key, item);
    }

    fn remove(&mut self, resource: &Resource, key: &Key) {
        if let Some(table) = self.objects.get_mut(&*resource.id) {
            table.remove(key);
        }
    }
}

fn place_of(resource: &Resource) -> Place {
    let api_version = resource.storage_api_version();
    let base = if resource.group.is_empty() {
        format!("/api/{api_version}")
    } else {
        format!("/apis/{api_version}")
    };
    Place { id: resource.id.to_string(), base, plural: resource.plural.to_string() }
}

impl Place {
    /// Path of one object.
    pub(crate) fn path(&self, namespace: &str, name: &str) -> String {
        let Self { base, plural, .. } = self;
        if namespace.is_empty() {
            format!("{base}/{plural}/{name}")
        } else {
            format!("{base}/namespaces/{namespace}/{plural}/{name}")
        }
    }
}

/// Resources of the management cluster that the environment and scenarios read.
pub(crate) fn management_resources(resource: &Resource) -> Interest {
    let group: &str = &resource.group;
    match (group, &*resource.plural) {
        (kinds::INFRASTRUCTURE_GROUP | kinds::BOOTSTRAP_GROUP, _)
        | (kinds::CORE_GROUP, "clusters" | "machines")
        | (kinds::CONTROL_PLANE_GROUP, canonical::CONTROL_PLANES) => Interest::Environment,
        (kinds::CONTROL_PLANE_GROUP, _)
        | (kinds::CORE_GROUP, "machinedeployments" | "machinesets")
        | (refit_kinds::refit::GROUP, "nodeupdates" | "updategroups") => Interest::Status,
        _ if resource.custom && group.contains("infrastructure") => Interest::Environment,
        _ => Interest::None,
    }
}

/// Resources of a workload cluster that the environment reads.
pub(crate) fn workload_resources(resource: &Resource) -> Interest {
    match &*resource.id {
        "nodes" | "pods" | "replicasets.apps" | "daemonsets.apps" => Interest::Environment,
        _ => Interest::None,
    }
}
