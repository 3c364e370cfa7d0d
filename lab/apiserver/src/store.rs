//! The store: one revision, one table per resource, serialised objects, and indexes for selectors
//! and garbage collection. Every change goes through `Store::commit`, under one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use crate::admission;
use crate::auth::Identity;
use crate::gc::Work;
use crate::history::{Change, ChangeKind, History};
use crate::object::{finalizers, member, meta_text, set_meta};
use crate::resources::{Registry, Resource};
use crate::selector::{FieldSelector, LabelSelector};

/// The objects of one resource, by `namespace NUL name`.
pub(crate) type Table = BTreeMap<Arc<str>, Arc<Entry>>;

/// The location of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectId {
    pub(crate) resource: Arc<str>,
    pub(crate) key: Arc<str>,
}

/// An owner reference, as garbage collection reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Box<str>,
    pub(crate) blocks: bool,
}

/// One stored state of one object.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The object as JSON, with its resourceVersion.
    pub(crate) bytes: Bytes,
    pub(crate) revision: u64,
    /// `apiVersion` of the bytes.
    pub(crate) api_version: Arc<str>,
    pub(crate) uid: Arc<str>,
    pub(crate) labels: Box<[(Box<str>, Box<str>)]>,
    pub(crate) owners: Box<[Owner]>,
    pub(crate) fields: Box<[Box<str>]>,
    pub(crate) finalizers: Box<[Box<str>]>,
    pub(crate) deleting: bool,
}

impl Entry {
    /// Serialises an object whose resourceVersion is already set.
    pub(crate) fn new(fields: &[String], revision: u64, value: &Value) -> Self {
        let bytes = serde_json::to_vec(value).expect("a JSON value has no keys but strings");
        let bytes = Bytes::from(bytes.into_boxed_slice());
        let labels = member(value, &["metadata", "labels"]).and_then(Value::as_object);
        let owners = member(value, &["metadata", "ownerReferences"]).and_then(Value::as_array);
        let api_version = value["apiVersion"].as_str().unwrap_or_default();
        Self {
            bytes,
            revision,
            api_version: api_version.into(),
            uid: meta_text(value, "uid").into(),
            labels: labels
                .into_iter()
                .flatten()
                .map(|(key, item)| (key.as_str().into(), item.as_str().unwrap_or_default().into()))
                .collect(),
            owners: owners
                .into_iter()
                .flatten()
                .map(|owner| Owner {
                    uid: owner["uid"].as_str().unwrap_or_default().into(),
                    blocks: owner["blockOwnerDeletion"] == Value::Bool(true),
                })
                .collect(),
            fields: fields.iter().map(|path| field_text(value, path)).collect(),
            finalizers: finalizers(value).into_iter().map(Into::into).collect(),
            deleting: !meta_text(value, "deletionTimestamp").is_empty(),
        }
    }

    /// The object, parsed.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("the store wrote these bytes itself")
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| &**name == key).map(|(_, value)| &**value)
    }

    pub(crate) fn matches(
        &self,
        resource: &Resource,
        key: &str,
        labels: &LabelSelector,
        fields: &FieldSelector,
    ) -> bool {
        if !labels.is_empty() && !labels.matches(|name| self.label(name)) {
            return false;
        }
        fields.is_empty()
            || fields.matches(|field| match field {
                "metadata.name" => name_of(key),
                "metadata.namespace" => namespace_of(key),
                _ => resource
                    .fields
                    .iter()
                    .position(|path| path == field)
                    .and_then(|index| self.fields.get(index))
                    .map_or("", |text| &**text),
            })
    }
}

fn field_text(value: &Value, path: &str) -> Box<str> {
    match path.split('.').try_fold(value, |value, key| value.get(key)) {
        Some(Value::String(text)) => text.as_str().into(),
        Some(Value::Bool(flag)) => flag.to_string().into(),
        Some(Value::Number(number)) => number.to_string().into(),
        _ if path == "spec.unschedulable" => "false".into(),
        _ => "".into(),
    }
}

/// The key of an object in its table.
pub(crate) fn key_of(namespace: &str, name: &str) -> String {
    format!("{namespace}\0{name}")
}

/// Namespace of a key, `""` for cluster-scoped objects.
pub(crate) fn namespace_of(key: &str) -> &str {
    key.split_once('\0').map_or("", |(namespace, _)| namespace)
}

/// Name of a key.
pub(crate) fn name_of(key: &str) -> &str {
    key.split_once('\0').map_or(key, |(_, name)| name)
}

/// The part of a table in one namespace, or the whole table.
pub(crate) fn range<'a>(
    table: &'a Table,
    namespace: Option<&str>,
) -> Box<dyn Iterator<Item = (&'a Arc<str>, &'a Arc<Entry>)> + 'a> {
    match namespace {
        None => Box::new(table.iter()),
        Some(namespace) => {
            let low: Arc<str> = format!("{namespace}\0").into();
            let high: Arc<str> = format!("{namespace}\u{1}").into();
            Box::new(table.range(low..high))
        }
    }
}

/// A committed write, as passed to an observer.
#[derive(Debug, Clone, Copy)]
pub struct StoreEvent<'a> {
    /// Group, version, kind and plural of the object.
    pub resource: &'a Resource,
    /// Namespace, `""` for cluster-scoped objects.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The previous object, as JSON; `None` for `Added`.
    pub old: Option<&'a Bytes>,
    /// The new object, as JSON; for `Deleted` its last state.
    pub new: &'a Bytes,
    /// The store's revision of this write.
    pub revision: u64,
    /// User agent of the request that caused it (also for consequences such as garbage collection).
    pub user_agent: &'a str,
    /// The server's time.
    pub now: Timestamp,
}

/// Called under the lock after each committed write; must not call the server.
pub type Observer = Box<dyn FnMut(&StoreEvent<'_>) + Send>;

/// Stands in for the mutating webhooks of custom kinds: called with each object before it is
/// written.
pub type Webhook = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// The state of the server.
pub(crate) struct Store {
    pub(crate) revision: u64,
    pub(crate) seed: u64,
    pub(crate) now: Timestamp,
    pub(crate) actor: String,
    pub(crate) git_version: String,
    pub(crate) tables: BTreeMap<Arc<str>, Arc<Table>>,
    pub(crate) history: History,
    pub(crate) registry: Arc<Registry>,
    /// How many objects had a name before, so that later ones get different uids.
    pub(crate) incarnations: Arc<BTreeMap<String, u64>>,
    /// How many names each `generateName` has generated.
    pub(crate) generated: Arc<BTreeMap<String, u64>>,
    pub(crate) uids: BTreeMap<Arc<str>, ObjectId>,
    pub(crate) dependents: BTreeMap<Box<str>, BTreeSet<ObjectId>>,
    pub(crate) pending: VecDeque<Work>,
    notifies: BTreeMap<Arc<str>, Arc<Notify>>,
    observers: Vec<Observer>,
    pub(crate) webhook: Option<Webhook>,
    /// The caller whose request is handled.
    pub(crate) requester: Option<Arc<Identity>>,
    pub(crate) policies: admission::Compiled,
}

impl Store {
    pub(crate) fn new(seed: u64, ring: usize, now: Timestamp, git_version: String) -> Self {
        Self {
            revision: 0,
            seed,
            now,
            actor: String::new(),
            git_version,
            tables: BTreeMap::new(),
            history: History::new(ring),
            registry: Arc::new(Registry::builtin()),
            incarnations: Arc::default(),
            generated: Arc::default(),
            uids: BTreeMap::new(),
            dependents: BTreeMap::new(),
            pending: VecDeque::new(),
            notifies: BTreeMap::new(),
            observers: Vec::new(),
            webhook: None,
            requester: None,
            policies: admission::Compiled::default(),
        }
    }

    pub(crate) fn observe(&mut self, observer: Observer) {
        self.observers.push(observer);
    }

    pub(crate) fn table(&self, resource: &str) -> Option<&Arc<Table>> {
        self.tables.get(resource)
    }

    pub(crate) fn get(&self, resource: &str, key: &str) -> Option<Arc<Entry>> {
        self.tables.get(resource)?.get(key).cloned()
    }

    pub(crate) fn get_id(&self, id: &ObjectId) -> Option<Arc<Entry>> {
        self.get(&id.resource, &id.key)
    }

    /// The notification that watches of a resource wait for.
    pub(crate) fn notify(&mut self, resource: &Arc<str>) -> Arc<Notify> {
        self.notifies.entry(resource.clone()).or_default().clone()
    }

    /// Wakes every watch, so that each checks its state again.
    pub(crate) fn wake_all(&self) {
        for notify in self.notifies.values() {
            notify.notify_waiters();
        }
    }

    /// Commits one write: sets the revision, stores, records, and notifies. The caller holds the
    /// lock, so watches see the state of the store.
    pub(crate) fn commit(
        &mut self,
        resource: &Arc<Resource>,
        key: &Arc<str>,
        kind: ChangeKind,
        mut value: Value,
    ) -> Arc<Entry> {
        self.revision += 1;
        let revision = self.revision;
        set_meta(&mut value, "resourceVersion", revision.to_string());
        let entry = Arc::new(Entry::new(&resource.fields, revision, &value));
        let table = self.tables.entry(resource.id.clone()).or_default();
        let table = Arc::make_mut(table);
        let old = if kind == ChangeKind::Deleted {
            table.remove(key)
        } else {
            table.insert(key.clone(), entry.clone())
        };
        let id = ObjectId { resource: resource.id.clone(), key: key.clone() };
        if let Some(old) = &old {
            self.unindex(&id, old);
        }
        if kind == ChangeKind::Deleted {
            let used = Arc::make_mut(&mut self.incarnations);
            *used.entry(format!("{}/{key}", resource.id)).or_default() += 1;
        } else {
            self.index(&id, &entry);
        }
        let change = Arc::new(Change {
            revision,
            resource: resource.id.clone(),
            key: key.clone(),
            kind,
            old,
            new: entry.clone(),
        });
        self.enqueue(resource, &id, &change);
        self.history.push(change.clone());
        if let Some(notify) = self.notifies.get(&resource.id) {
            notify.notify_waiters();
        }
        let event = StoreEvent {
            resource,
            namespace: namespace_of(key),
            name: name_of(key),
            kind,
            old: change.old.as_ref().map(|old| &old.bytes),
            new: &entry.bytes,
            revision,
            user_agent: &self.actor,
            now: self.now,
        };
        for observer in &mut self.observers {
            observer(&event);
        }
        if &*resource.id == crate::crd::CRDS {
            crate::crd::register(self, key, kind, &value, change.old.as_deref());
        }
        entry
    }

    pub(crate) fn index(&mut self, id: &ObjectId, entry: &Entry) {
        self.uids.insert(entry.uid.clone(), id.clone());
        for owner in &entry.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(id.clone());
        }
    }

    fn unindex(&mut self, id: &ObjectId, entry: &Entry) {
        self.uids.remove(&entry.uid);
        for owner in &entry.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(id);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
    }

    /// A uid in UUID version 4 format, determined only by the seed, the resource, the name and the
    /// number of earlier objects with that name.
    pub(crate) fn new_uid(&self, resource: &str, key: &str) -> String {
        let used = self.incarnations.get(&format!("{resource}/{key}")).copied().unwrap_or(0);
        let high = mix(hash(self.seed, &[resource, key]) ^ used.wrapping_mul(0x9E37_79B9));
        let low = mix(high ^ 0xD1B5_4A32_D192_ED03);
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | ((low >> 48) & 0x3fff),
            low & 0xffff_ffff_ffff,
        )
    }

    /// Generates an unused name for a `generateName`.
    pub(crate) fn generate_name(
        &mut self,
        resource: &str,
        namespace: &str,
        base: &str,
        dry_run: bool,
    ) -> String {
        let base: String = base.chars().take(GENERATED_BASE).collect();
        let counter = format!("{resource}/{namespace}/{base}");
        let mut count = self.generated.get(&counter).copied().unwrap_or(0);
        loop {
            let name = generated_name(self.seed, [resource, namespace, &base], count);
            count += 1;
            if self.get(resource, &key_of(namespace, &name)).is_none() {
                if !dry_run {
                    Arc::make_mut(&mut self.generated).insert(counter, count);
                }
                return name;
            }
        }
    }
}

/// Maximum length of a `generateName`; longer ones are cut.
pub(crate) const GENERATED_BASE: usize = 58;

/// The `count`th name of a `generateName`; the parts are resource, namespace and the base of the
/// name.
pub(crate) fn generated_name(seed: u64, parts: [&str; 3], count: u64) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut bits = mix(hash(seed, &parts) ^ mix(count));
    let mut name = parts[2].to_owned();
    for _ in 0..5 {
        let letter = usize::try_from(bits % ALPHABET.len() as u64).unwrap_or(0);
        name.push(char::from(ALPHABET[letter]));
        bits /= ALPHABET.len() as u64;
    }
    name
}

pub(crate) fn hash(seed: u64, parts: &[&str]) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325 ^ mix(seed);
    for part in parts {
        for byte in part.bytes().chain([0xff]) {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    state
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A timestamp in Kubernetes' format: RFC 3339 with whole seconds.
pub(crate) fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
