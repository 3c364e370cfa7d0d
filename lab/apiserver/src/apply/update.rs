//! Ownership through writes other than apply: create, update, patch.

use serde_json::Value;

use super::managers::{Managers, Writer, take_managed_fields, time};
use super::{diff, owned_by_request};
use crate::schema::Schema;

/// Updates the `managedFields` of a new object after a create, an update or a patch.
///
/// Changed and added fields belong only to the manager's Update entry; removed fields leave all
/// entries. As in Kubernetes, entries in the request are used: `[{}]` clears all entries. If
/// nothing changed, the entries do not change either.
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
    let owned = owned_by_request(touched, subresource);
    if !owned.is_empty() {
        let me = Writer::update(manager, api_version, subresource);
        managers.add(me, api_version, owned, time(now));
    }
    managers.drop_empty();
    managers.cap_updates();
    managers.write_to(new);
}

/// The initial entries: those in the request, otherwise the stored ones.
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
