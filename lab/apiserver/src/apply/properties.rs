//! Properties that hold for every configuration.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::path_set::PathSet;
use super::tests::{object, request, schema};
use super::{ApplyRequest, apply, fields_v1, merge, track_update};

/// A part of a spec whose names all start with a prefix, so that two parts are disjoint.
fn spec(prefix: &'static str) -> impl Strategy<Value = Value> {
    let name = move || (0..4u8).prop_map(move |n| format!("{prefix}{n}"));
    let text = "[a-c]{0,2}";
    let labels = prop::collection::btree_map(name(), text, 0..4);
    let set = prop::collection::btree_set(name(), 0..4);
    let items = prop::collection::btree_map(name(), prop::option::of(text), 0..4);
    let free = prop::collection::btree_map(name(), prop::collection::vec(0..3u8, 0..3), 0..3);
    (labels, set, items, free).prop_map(|(labels, set, items, free)| {
        let items: Vec<Value> = items
            .into_iter()
            .map(|(name, value)| match value {
                Some(value) => json!({"name": name, "value": value}),
                None => json!({"name": name}),
            })
            .collect();
        let mut spec = Map::new();
        for (key, value) in [
            ("labels", json!(labels)),
            ("set", json!(set)),
            ("items", json!(items)),
            ("free", json!(free)),
        ] {
            let empty = value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty);
            if !empty {
                spec.insert(key.to_owned(), value);
            }
        }
        Value::Object(spec)
    })
}

fn applied(live: Option<&Value>, spec: &Value, manager: &str, force: bool) -> Value {
    let config = object(spec);
    apply(ApplyRequest { force, ..request(live, &config, manager, &schema()) }).unwrap()
}

/// Whether `whole` contains all of `part`: fields, items of sets, and items with a name.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|part| whole.iter().any(|whole| contains(whole, part)))
        }
        _ => whole == part,
    }
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(live in spec("a"), config in spec("a")) {
        let mut stored = object(&live);
        track_update(None, &mut stored, "u", "v1", "", jiff::Timestamp::UNIX_EPOCH, &schema());
        let once = applied(Some(&stored), &config, "m", true);
        prop_assert_eq!(&applied(Some(&once), &config, "m", false), &once);
    }

    #[test]
    fn disjoint_configurations_of_two_managers_both_stay(a in spec("a"), b in spec("b")) {
        let live = applied(None, &a, "a", false);
        let live = applied(Some(&live), &b, "b", false);
        prop_assert!(contains(&live["spec"], &a));
        prop_assert!(contains(&live["spec"], &b));
        prop_assert_eq!(&applied(Some(&live), &a, "a", false), &live);
    }

    #[test]
    fn an_empty_apply_removes_a_second_managers_fields(a in spec("a"), b in spec("b")) {
        let before = applied(None, &a, "a", false);
        let live = applied(Some(&before), &b, "b", false);
        let after = applied(Some(&live), &json!({}), "b", false);
        let spec = |object: &Value| object.get("spec").cloned().unwrap_or_default();
        prop_assert_eq!(spec(&after), spec(&before));
    }

    #[test]
    fn a_new_configuration_replaces_the_managers_old_one(old in spec("a"), new in spec("a")) {
        let live = applied(None, &old, "a", false);
        let live = applied(Some(&live), &new, "a", false);
        let fresh = applied(None, &new, "a", false);
        let fields = |object: &Value| object["metadata"]["managedFields"][0]["fieldsV1"].clone();
        prop_assert_eq!(fields(&live), fields(&fresh));
        prop_assert!(contains(&live["spec"], &new));
        prop_assert!(contains(&fresh["spec"], &live["spec"]));
    }

    #[test]
    fn sets_of_paths_survive_fields_v1(a in spec("a")) {
        let value = object(&a);
        let schema = schema();
        for mut set in [
            merge::applied_fields(&value, schema.root()),
            merge::all_fields(&value, schema.root()),
        ] {
            set.own = false;
            prop_assert_eq!(fields_v1::decode(&fields_v1::encode(&set)), Some(set));
        }
    }

    #[test]
    fn sets_of_paths_obey_the_laws_of_sets(a in spec("a"), b in spec("a")) {
        let schema = schema();
        let set = |spec: &Value| merge::all_fields(&object(spec), schema.root());
        let (a, b) = (set(&a), set(&b));
        let mut union = a.clone();
        union.merge(b.clone());
        let mut rest = union.clone();
        rest.subtract(&b);
        prop_assert_eq!(rest.intersection(&b), PathSet::default());
        rest.merge(a.intersection(&b));
        prop_assert_eq!(rest, a);
    }

    #[test]
    fn an_update_owns_all_and_only_what_it_changed(old in spec("a"), new in spec("a")) {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let mut stored = object(&old);
        track_update(None, &mut stored, "first", "v1", "", now, &schema());
        let mut written = object(&new);
        track_update(Some(&stored), &mut written, "second", "v1", "", now, &schema());
        let mut all = merge::all_fields(&written, schema().root());
        all.strip_unowned();
        let entries = written["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let mut owned = PathSet::default();
        for entry in &entries {
            let set = fields_v1::decode(&entry["fieldsV1"]).unwrap();
            prop_assert!(owned.intersection(&set).is_empty(), "each field has one owner");
            owned.merge(set);
        }
        prop_assert_eq!(owned, all);
    }
}
