//! `metadata.managedFields`: which manager wrote which fields, how and when.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::path_set::PathSet;
use super::{Conflict, fields_v1};

/// Update entries beyond this number are folded into one, the oldest first.
const MAX_UPDATE_ENTRIES: usize = 10;

/// The manager of the folded entries.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// How a manager wrote its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The identity of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Writer {
    pub(crate) operation: Operation,
    pub(crate) manager: String,
    /// Empty for Apply: an applier keeps its entry across versions.
    pub(crate) api_version: String,
    pub(crate) subresource: String,
}

impl Writer {
    /// A manager that applies.
    pub(crate) fn apply(manager: &str, subresource: &str) -> Self {
        Self {
            operation: Operation::Apply,
            manager: manager.to_owned(),
            api_version: String::new(),
            subresource: subresource.to_owned(),
        }
    }

    /// A manager that creates, updates or patches.
    pub(crate) fn update(manager: &str, api_version: &str, subresource: &str) -> Self {
        Self {
            operation: Operation::Update,
            manager: manager.to_owned(),
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// The message of a conflict with this writer.
    fn conflict(&self) -> String {
        let mut text = format!("conflict with {:?}", self.manager);
        if !self.subresource.is_empty() {
            text = format!("{text} with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text = format!("{text} using {}", self.api_version);
        }
        text
    }
}

/// The fields that a writer owns.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) api_version: String,
    pub(crate) time: Option<String>,
    pub(crate) set: PathSet,
}

/// Entries are equal if they own the same fields; the time does not count.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.api_version == other.api_version && self.set == other.set
    }
}

/// All entries of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Managers(BTreeMap<Writer, Entry>);

impl Managers {
    /// Reads an object's entries; as in Kubernetes, invalid entries count as no entries.
    pub(crate) fn of_object(object: Option<&Value>) -> Self {
        let list = object.and_then(|object| object.pointer("/metadata/managedFields"));
        let entries = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        entries.iter().map(decode).collect::<Option<BTreeMap<_, _>>>().map(Self).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn set_of(&self, writer: &Writer) -> Option<&PathSet> {
        self.0.get(writer).map(|entry| &entry.set)
    }

    pub(crate) fn time_of(&self, writer: &Writer) -> Option<String> {
        self.0.get(writer)?.time.clone()
    }

    pub(crate) fn insert(&mut self, writer: Writer, entry: Entry) {
        self.0.insert(writer, entry);
    }

    /// Adds fields to a writer's entry.
    pub(crate) fn add(&mut self, writer: Writer, api_version: &str, set: PathSet, now: String) {
        let entry = self.0.entry(writer).or_insert_with(|| Entry {
            api_version: api_version.to_owned(),
            time: None,
            set: PathSet::default(),
        });
        entry.set.merge(set);
        entry.time = Some(now);
    }

    /// All fields that have an owner.
    pub(crate) fn union(&self) -> PathSet {
        let mut union = PathSet::default();
        for entry in self.0.values() {
            union.merge(entry.set.clone());
        }
        union
    }

    /// The fields of other writers among those that `me` would change.
    pub(crate) fn conflicts(&self, me: &Writer, touched: &PathSet) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        if touched.is_empty() {
            return conflicts;
        }
        for (writer, entry) in self.0.iter().filter(|(writer, _)| *writer != me) {
            for field in entry.set.intersection(touched).paths() {
                let (manager, message) = (writer.manager.clone(), writer.conflict());
                conflicts.push(Conflict { manager, field, message });
            }
        }
        conflicts.sort();
        conflicts
    }

    /// Removes the fields from all entries except that of `me`.
    pub(crate) fn take_from_others(&mut self, me: &Writer, set: &PathSet) {
        for (_, entry) in self.0.iter_mut().filter(|(writer, _)| *writer != me) {
            entry.set.subtract(set);
        }
    }

    /// Removes the fields from all entries.
    pub(crate) fn take_from_all(&mut self, set: &PathSet) {
        for entry in self.0.values_mut() {
            entry.set.subtract(set);
        }
    }

    /// Removes entries without fields.
    pub(crate) fn drop_empty(&mut self) {
        self.0.retain(|_, entry| !entry.set.is_empty());
    }

    /// Sets the time at which a writer last changed something.
    pub(crate) fn stamp(&mut self, writer: &Writer, now: jiff::Timestamp) {
        if let Some(entry) = self.0.get_mut(writer) {
            entry.time = Some(time(now));
        }
    }

    /// Folds the oldest Update entries of a version into one if there are too many.
    pub(crate) fn cap_updates(&mut self) {
        let mut updates: Vec<(Option<String>, Writer)> = self
            .0
            .iter()
            .filter(|(writer, _)| writer.operation == Operation::Update)
            .map(|(writer, entry)| (entry.time.clone(), writer.clone()))
            .collect();
        if updates.len() <= MAX_UPDATE_ENTRIES {
            return;
        }
        updates.sort();
        let excess = updates.len() - MAX_UPDATE_ENTRIES;
        // One more than the excess, because the folded entry counts too.
        for (time, writer) in updates.into_iter().take(excess + 1) {
            if let Some(entry) = self.0.remove(&writer) {
                let ancient = Writer { manager: ANCIENT_CHANGES.to_owned(), ..writer };
                self.add(ancient, &entry.api_version, entry.set, time.unwrap_or_default());
            }
        }
    }

    /// Writes the entries into an object's metadata, in Kubernetes' order.
    pub(crate) fn write_to(&self, object: &mut Value) {
        let Some(object) = object.as_object_mut() else {
            return;
        };
        if self.0.is_empty() {
            if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                metadata.remove("managedFields");
            }
            return;
        }
        let mut entries: Vec<(&Writer, &Entry)> = self.0.iter().collect();
        entries.sort_by_key(|(writer, entry)| {
            (writer.operation, &entry.time, &writer.manager, &entry.api_version)
        });
        let list = entries.into_iter().map(|(writer, entry)| encode(writer, entry)).collect();
        let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(metadata) = metadata {
            metadata.insert("managedFields".to_owned(), Value::Array(list));
        }
    }
}

/// A timestamp in the API's format: whole seconds in UTC.
pub(crate) fn time(now: jiff::Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Removes the entries from an object and returns them.
pub(crate) fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// A copy of an object without its entries.
pub(crate) fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    take_managed_fields(&mut object);
    object
}

fn decode(entry: &Value) -> Option<(Writer, Entry)> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    let api_version = text("apiVersion");
    let writer = match text("operation") {
        "Apply" => Writer::apply(text("manager"), text("subresource")),
        "Update" => Writer::update(text("manager"), api_version, text("subresource")),
        _ => return None,
    };
    let set = match entry.get("fieldsV1") {
        Some(fields) => fields_v1::decode(fields)?,
        None => PathSet::default(),
    };
    let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
    Some((writer, Entry { api_version: api_version.to_owned(), time, set }))
}

fn encode(writer: &Writer, entry: &Entry) -> Value {
    let mut fields = json!({
        "apiVersion": entry.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields_v1::encode(&entry.set),
        "manager": writer.manager,
        "operation": writer.operation.name(),
    });
    if !writer.subresource.is_empty() {
        fields["subresource"] = Value::from(writer.subresource.as_str());
    }
    if let Some(time) = entry.time.as_ref().filter(|time| !time.is_empty()) {
        fields["time"] = Value::from(time.as_str());
    }
    fields
}
