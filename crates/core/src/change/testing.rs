//! JSON for property tests.

use proptest::prelude::*;
use refit_kinds::refit::{Disruption, ProviderPart, UpdatePart, UpdaterAction, UpdaterTemplate};
use serde_json::{Map, Value};

use super::{AddedUpdater, Claim, Updater};

/// Any JSON value, including nulls, empty values and escapes, with few keys so that keys collide.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e6_f64..1e6).prop_map(Value::from),
        Just(Value::from(1.0)),
        "[a-z~/\"]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            any_map(inner),
        ]
    })
}

/// Any JSON object.
pub(crate) fn any_object() -> impl Strategy<Value = Value> {
    any_map(any_json())
}

fn any_map(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let key =
        prop_oneof!["[abc]", Just("a/b".to_owned()), Just("~".to_owned()), Just(String::new())];
    prop::collection::btree_map(key, inner, 0..5)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
}

/// An Updater whose provider brings machines to a version and makes what it claims.
pub(crate) fn provided(name: &str, claims: &[Claim]) -> Updater {
    let part = UpdatePart {
        updater: name.to_owned(),
        action: UpdaterAction::Update,
        disruption: Disruption::Drain,
        timeout_seconds: None,
        host: None,
        template: Some(ProviderPart {
            template: UpdaterTemplate {
                api_version: "a.example/v1".to_owned(),
                kind: "NodeUpdateTemplate".to_owned(),
                name: name.to_owned(),
            },
            brings_version: true,
        }),
    };
    Updater::Added(AddedUpdater { part, claims: claims.to_vec(), host: None })
}

/// An Updater that leaves what it claims.
pub(crate) fn leaving(name: &str, claims: &[Claim]) -> Updater {
    let part = UpdatePart {
        updater: name.to_owned(),
        action: UpdaterAction::Leave,
        disruption: Disruption::None,
        timeout_seconds: None,
        host: None,
        template: None,
    };
    Updater::Added(AddedUpdater { part, claims: claims.to_vec(), host: None })
}
