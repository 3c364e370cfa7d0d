//! Whatever happens to a store, its indexes list what a scan finds.

use std::ops::Range;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::guard::Raw;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const OWNERS: [&str; 3] = ["x", "y", "z"];

/// So few versions that those of a list are often held.
const FEW: Range<u64> = 1..6;

/// By owner: an object may have several, or none.
const BY_OWNER: Index<ConfigMap> = Index {
    name: "owner",
    keys: |object| {
        let owners = object.data.iter().flat_map(BTreeMap::keys);
        owners.map(|owner| ObjectKey::new(object.namespace().unwrap_or_default(), owner)).collect()
    },
};

/// By the name, in any namespace.
const BY_NAME: Index<ConfigMap> =
    Index { name: "name", keys: |object| vec![ObjectKey::new("", object.name_any())] };

#[derive(Clone, Debug)]
struct Version {
    namespace: usize,
    name: usize,
    version: u64,
    uid: u8,
    owners: Vec<bool>,
    readable: bool,
}

impl Version {
    fn object(&self) -> ConfigMap {
        let owners = OWNERS.iter().zip(&self.owners).filter(|(_, is_owner)| **is_owner);
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(NAMES[self.namespace].to_owned());
        object.metadata.name = Some(NAMES[self.name].to_owned());
        object.metadata.resource_version = Some(self.version.to_string());
        object.metadata.uid = Some(self.uid.to_string());
        object.data = Some(owners.map(|(owner, _)| ((*owner).to_owned(), String::new())).collect());
        object
    }

    fn guarded(&self) -> Guarded<ConfigMap> {
        let object = self.object();
        if self.readable {
            return Guarded(Ok(object));
        }
        let malformed = serde_json::json!({ "metadata": object.metadata, "data": 1 });
        serde_json::from_value::<Raw>(malformed).unwrap().into()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(Version),
    Deletion(Version),
    Applied(Version),
    Deleted(Version),
    ListBegins,
    List(Vec<Version>),
    LiveList(Vec<Version>, u64),
}

fn version(versions: Range<u64>) -> impl Strategy<Value = Version> + Clone {
    let owners = vec(any::<bool>(), OWNERS.len());
    let parts = (0..2_usize, 0..NAMES.len(), versions, 0..2_u8, owners);
    let readable = prop::bool::weighted(0.8);
    (parts, readable).prop_map(|((namespace, name, version, uid, owners), readable)| Version {
        namespace,
        name,
        version,
        uid,
        owners,
        readable,
    })
}

fn step(versions: Range<u64>) -> impl Strategy<Value = Step> {
    let one = version(versions.clone());
    prop_oneof![
        4 => one.clone().prop_map(Step::Write),
        2 => one.clone().prop_map(Step::Deletion),
        4 => one.clone().prop_map(Step::Applied),
        2 => one.clone().prop_map(Step::Deleted),
        1 => Just(Step::ListBegins),
        1 => vec(one.clone(), 0..6).prop_map(Step::List),
        1 => (vec(one, 0..6), versions)
            .prop_map(|(list, version)| Step::LiveList(list, version)),
    ]
}

/// One object per name, as in a list of an API server.
fn distinct(list: &[Version]) -> Vec<Guarded<ConfigMap>> {
    let by_name: BTreeMap<_, _> = list.iter().map(|v| ((v.namespace, v.name), v)).collect();
    by_name.into_values().map(Version::guarded).collect()
}

fn is_covered(object: &ConfigMap) -> bool {
    object.name_any() != "d"
}

fn play(store: &Store<ConfigMap>, step: &Step) {
    match step {
        Step::Write(version) => store.insert(version.object()),
        Step::Deletion(version) => store.remove(&version.object()),
        Step::Applied(version) => drop(store.applied(version.guarded())),
        Step::Deleted(version) => drop(store.deleted(version.guarded())),
        Step::ListBegins => store.list_begins(),
        Step::List(list) => drop(store.replaced(distinct(list))),
        Step::LiveList(list, version) => {
            let (read, held) = (distinct(list), BTreeSet::new());
            store.learn_list(LiveList { read, held, version: *version }, is_covered);
        }
    }
}

proptest! {
    #[test]
    fn an_index_lists_what_a_scan_finds(steps in vec(step(1..60), 1..40)) {
        let store = Store::indexed(&[BY_OWNER, BY_NAME]);
        let names = |objects: Vec<Arc<ConfigMap>>| -> Vec<(ObjectKey, Option<String>)> {
            objects.iter().map(|o| (ObjectKey::of(o.as_ref()), o.resource_version())).collect()
        };
        for step in &steps {
            play(&store, step);
            for index in [BY_OWNER, BY_NAME] {
                for namespace in ["", "a", "b"] {
                    for name in OWNERS.iter().chain(&NAMES) {
                        let key = ObjectKey::new(namespace, *name);
                        let mut scanned = store.list();
                        scanned.retain(|object| (index.keys)(object).contains(&key));
                        prop_assert_eq!(names(store.listed(&index, &key)), names(scanned));
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn what_a_store_holds_need_not_be_read_again(
        steps in vec(step(FEW), 1..20),
        list in vec(version(FEW), 1..6),
        version in FEW,
    ) {
        let (reads, skips) = (Store::default(), Store::default());
        for step in &steps {
            play(&reads, step);
            play(&skips, step);
        }
        let (mut read, mut held) = (distinct(&list), BTreeSet::new());
        reads.learn_list(LiveList { read: read.clone(), held: held.clone(), version }, is_covered);
        read.retain(|object| {
            let key = key_of(object.metadata());
            let is_held = object.0.is_ok() && skips.holds(&key, object.metadata());
            !is_held || !held.insert(key)
        });
        skips.learn_list(LiveList { read, held, version }, is_covered);
        let known = |store: &Store<ConfigMap>| -> Vec<(ObjectKey, Option<String>)> {
            let objects = store.list().into_iter();
            objects.map(|o| (ObjectKey::of(o.as_ref()), o.resource_version())).collect()
        };
        prop_assert_eq!(known(&reads), known(&skips));
        prop_assert_eq!(reads.unreadable(), skips.unreadable());
    }
}

#[test]
fn lists_are_counted_and_lookups_are_not() {
    let store: Store<ConfigMap> = Store::indexed(&[BY_NAME]);
    store.listed(&BY_NAME, &ObjectKey::new("", "a"));
    assert_eq!(store.scans(), 0);
    store.list();
    store.list_in("a");
    assert_eq!(store.scans(), 2);
}
