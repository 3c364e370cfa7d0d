use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use super::*;
use crate::guard::Raw;

fn config_map(namespace: &str, name: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some(namespace.into());
    object.metadata.name = Some(name.into());
    object
}

fn at(name: &str, version: u64) -> ConfigMap {
    let mut object = config_map("d", name);
    object.metadata.resource_version = Some(version.to_string());
    object
}

fn versions(store: &Store<ConfigMap>) -> Vec<(String, u64)> {
    let row = |object: &Arc<ConfigMap>| {
        let version = version(object.as_ref()).unwrap();
        (object.name_any(), version)
    };
    store.list().iter().map(row).collect()
}

fn read(object: ConfigMap) -> Guarded<ConfigMap> {
    Guarded(Ok(object))
}

fn live<const N: usize>(version: u64, objects: [ConfigMap; N]) -> LiveList<ConfigMap> {
    LiveList { read: objects.map(read).into(), held: BTreeSet::new(), version }
}

fn changed(changes: &[Change<ConfigMap>]) -> Vec<String> {
    let sign = |change: &Change<ConfigMap>| if change.now.is_some() { '+' } else { '-' };
    changes.iter().map(|one| format!("{}{}", sign(one), one.object().name_any())).collect()
}

#[test]
fn a_namespace_lists_only_its_own() {
    let store = Store::default();
    for (namespace, name) in [("a", "x"), ("b", "y"), ("b", "z"), ("bb", "w")] {
        store.insert(config_map(namespace, name));
    }
    let names: Vec<_> = store.list_in("b").iter().map(|c| c.name_any()).collect();
    assert_eq!(names, ["y", "z"]);
}

#[test]
fn cluster_scoped_keys_show_without_a_slash() {
    assert_eq!(ObjectKey::new("", "n").to_string(), "n");
    assert_eq!(ObjectKey::new("d", "n").to_string(), "d/n");
}

#[test]
fn a_late_event_does_not_undo_an_own_write() {
    let store = Store::default();
    store.insert(at("a", 5));
    assert!(store.applied(read(at("a", 4))).is_none());
    assert_eq!(versions(&store), [("a".to_owned(), 5)]);
    assert!(store.applied(read(at("a", 5))).is_some());
}

#[test]
fn a_late_event_does_not_undo_an_own_deletion() {
    let store = Store::default();
    store.applied(read(at("a", 5)));
    store.remove(&at("a", 5));
    assert!(store.applied(read(at("a", 5))).is_none());
    assert!(store.list().is_empty());
    assert!(store.applied(read(at("a", 8))).is_some(), "the name was used again");
}

#[test]
fn an_own_deletion_spares_the_next_object_of_that_name() {
    let store = Store::default();
    store.applied(read(at("a", 9)));
    store.remove(&at("a", 5));
    assert_eq!(versions(&store), [("a".to_owned(), 9)]);
}

#[test]
fn a_late_answer_does_not_undo_an_event_or_a_deletion() {
    let store = Store::default();
    store.applied(read(at("a", 6)));
    store.insert(at("a", 5));
    assert_eq!(versions(&store), [("a".to_owned(), 6)]);
    store.remove(&at("a", 7));
    store.insert(at("a", 7));
    assert!(store.list().is_empty());
}

#[test]
fn a_late_answer_does_not_bring_a_deleted_object_back() {
    let store = Store::default();
    store.applied(read(at("a", 5)));
    store.deleted(read(at("a", 7)));
    store.insert(at("a", 6));
    assert!(store.list().is_empty());
    store.insert(at("a", 8));
    assert_eq!(store.list().len(), 1, "a new one of that name");
}

#[test]
fn a_late_delete_spares_the_next_object_of_that_name() {
    let store = Store::default();
    store.applied(read(at("a", 5)));
    store.insert(at("a", 9));
    store.deleted(read(at("a", 7)));
    assert_eq!(versions(&store), [("a".to_owned(), 9)]);
}

#[test]
fn an_own_deletion_with_an_unreadable_event_is_reported() {
    let store = Store::default();
    store.applied(read(at("a", 5)));
    store.remove(&at("a", 5));
    let event = serde_json::json!({
        "metadata": {"namespace": "d", "name": "a", "resourceVersion": "7"}, "data": 1,
    });
    let event: Raw = serde_json::from_value(event).unwrap();
    let event: Guarded<ConfigMap> = event.into();
    assert!(event.0.is_err());
    let change = store.deleted(event).unwrap();
    assert_eq!(change.before.as_deref().and_then(version), Some(5));
}

#[test]
fn an_own_writes_event_reports_the_previous_watched_object() {
    let store = Store::default();
    store.applied(read(at("a", 5)));
    store.insert(at("a", 6));
    store.insert(at("a", 7));
    assert!(store.applied(read(at("a", 6))).is_none(), "there is a newer one to come");
    let change = store.applied(read(at("a", 7))).unwrap();
    assert_eq!(change.before.as_deref().and_then(version), Some(5));
    assert_eq!(change.now.as_deref().and_then(version), Some(7));
}

#[test]
fn a_list_reports_deletions_first_then_additions_in_order() {
    let store = Store::default();
    for name in ["c", "b", "a"] {
        store.applied(read(at(name, 5)));
    }
    let list = vec![read(at("z", 8)), read(at("b", 5)), read(at("d", 7))];
    assert_eq!(changed(&store.replaced(list)), ["-a", "-c", "+d", "+z"]);
}

#[test]
fn a_list_may_go_back_in_time() {
    // As after a restored backup: the list is the truth, even for objects that were written
    // before it.
    let store = Store::default();
    store.applied(read(at("a", 50)));
    store.insert(at("b", 51));
    store.list_begins();
    assert_eq!(changed(&store.replaced(vec![read(at("a", 9))])), ["-b", "+a"]);
    assert_eq!(versions(&store), [("a".to_owned(), 9)]);
    store.insert(at("a", 12));
    store.list_begins();
    let restored = vec![read(at("a", 9))];
    assert_eq!(changed(&store.replaced(restored)), ["+a"], "our write is lost, too");
}

#[test]
fn a_list_does_not_undo_writes_since_its_request() {
    let store = Store::default();
    for name in ["changed", "deleted"] {
        store.applied(read(at(name, 3)));
    }
    store.list_begins();
    store.insert(at("changed", 9));
    store.insert(at("created", 8));
    store.remove(&at("deleted", 3));
    let list = vec![read(at("changed", 3)), read(at("deleted", 3))];
    assert_eq!(changed(&store.replaced(list)), ["-created"]);
    assert_eq!(versions(&store), [("changed".to_owned(), 9)]);
    let change = store.applied(read(at("created", 8))).unwrap();
    assert!(change.before.is_none(), "the watch delivers it for the first time");
    assert!(store.deleted(read(at("deleted", 10))).is_some());
    let own_writes = [("changed".to_owned(), 9), ("created".to_owned(), 8)];
    assert_eq!(versions(&store), own_writes);
}

#[test]
fn a_list_that_contains_own_writes_reports_them() {
    let store = Store::default();
    for name in ["changed", "deleted", "same"] {
        store.applied(read(at(name, 3)));
    }
    store.insert(at("changed", 9));
    store.remove(&at("deleted", 3));
    store.insert(at("same", 3));
    store.list_begins();
    let list = vec![read(at("changed", 9)), read(at("same", 3))];
    assert_eq!(changed(&store.replaced(list)), ["-deleted", "+changed"]);
}

#[test]
fn managed_fields_are_not_kept() {
    let store = Store::default();
    let mut object = at("a", 5);
    object.metadata.managed_fields =
        Some(vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry::default()]);
    store.insert(object.clone());
    assert!(store.list()[0].managed_fields().is_empty());
    object.metadata.resource_version = Some("6".into());
    assert!(store.applied(read(object)).unwrap().object().managed_fields().is_empty());
}

#[test]
fn a_live_list_brings_the_store_ahead_of_its_watch() {
    let store = Store::default();
    store.replaced(vec![read(at("a", 1)), read(at("b", 2)), read(at("c", 3))]);
    let list = live(8, [at("a", 6), at("d", 7)]);
    store.learn_list(list, |object| object.name_any() != "c");
    let now = [("a", 6), ("c", 3), ("d", 7)].map(|(name, version)| (name.to_owned(), version));
    assert_eq!(versions(&store), now, "a new version, a deletion, an object outside of the list");
    // The watch catches up: nothing returns, and every change is reported once.
    assert!(store.applied(read(at("a", 4))).is_none());
    assert!(store.applied(read(at("b", 5))).is_none());
    assert_eq!(versions(&store), now);
    let events = [store.applied(read(at("a", 6))), store.deleted(read(at("b", 8)))];
    assert_eq!(changed(&events.into_iter().flatten().collect::<Vec<_>>()), ["+a", "-b"]);
    assert_eq!(versions(&store), now);
}

#[test]
fn an_object_that_is_newer_than_a_live_list_stays() {
    let store = Store::default();
    store.replaced(vec![read(at("a", 9))]);
    store.insert(at("b", 10));
    store.learn_list(live(8, [at("a", 7)]), |_| true);
    assert_eq!(versions(&store), [("a".to_owned(), 9), ("b".to_owned(), 10)]);
}
