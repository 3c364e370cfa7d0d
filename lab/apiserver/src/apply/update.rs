//! Ownership through writes that are not an apply: create, update, patch

use serde_json::Value;

use super::managers::{Managers, Writer, take_managed_fields, time};
use super::{diff, owned_by_request};
use crate::schema::Schema;

/// Brings the `managedFields` of a new object up to date after a create, an update or a patch
///
/// Fields that changed or came belong to the manager's Update entry and to nobody else; fields that
/// went leave all entries. Entries that the writer sends along count, as in Kubernetes: `[{}]`
/// clears them all. Nothing changed: the entries stay as they were.
pub fn track_update(
    old: Option<&Value>,
    new: &mut Value,
    manager: &str,
    api_version: &str,
    subresource: &str,
    now: jiff::Timestamp,
    schema: &Schema,
) {
    let sent = take_managed_fields(new);
    let stored = old.and_then(|old| old.pointer("/metadata/managedFields"));
    let mut changes = diff::diff(old, new, schema.root());
    changes.removed.strip_unowned();
    let mut touched = std::mem::take(&mut changes.modified);
    touched.merge(changes.added);
    touched.strip_unowned();

    let sent = sent.filter(|_| subresource.is_empty());
    let own_entries = sent.as_ref().is_none_or(|sent| Some(sent) == stored);
    if touched.is_empty() && changes.removed.is_empty() && own_entries {
        put(new, stored.cloned());
        return;
    }
    let mut managers = start(old, sent);
    managers.take_from_all(&touched);
    managers.take_from_all(&changes.removed);
    let mine = owned_by_request(touched, subresource);
    if !mine.is_empty() {
        let me = Writer::update(manager, api_version, subresource);
        managers.add(me, api_version, mine, time(now));
    }
    managers.drop_empty();
    managers.cap_updates();
    managers.write_to(new);
}

/// The entries to begin with: those that the writer sent, else those that are stored
fn start(old: Option<&Value>, sent: Option<Value>) -> Managers {
    let Some(sent) = sent else {
        return Managers::of_object(old);
    };
    let cleared = serde_json::json!([{}]);
    if sent == cleared {
        return Managers::default();
    }
    let sent = serde_json::json!({"metadata": {"managedFields": sent}});
    let managers = Managers::of_object(Some(&sent));
    if managers.is_empty() { Managers::of_object(old) } else { managers }
}

fn put(object: &mut Value, entries: Option<Value>) {
    let Some(entries) = entries else { return };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("managedFields".to_owned(), entries);
    }
}
