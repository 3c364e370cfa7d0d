use proptest::prelude::*;

use super::*;
use crate::resources::Registry;

/// A length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    all.extend_from_slice(bytes);
    all
}

fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &meta), field(2, raw)].concat()
}

#[test]
fn every_served_kind_but_those_of_extensions_is_in_the_table() {
    let tables = Tables::get();
    for resource in Registry::builtin().all() {
        if resource.group.starts_with("api") && resource.group.ends_with(".k8s.io") {
            continue;
        }
        // These come from manifests, as JSON; no kubectl command that a sandbox needs creates them.
        if matches!(
            &*resource.kind,
            "Endpoints"
                | "LimitRange"
                | "PersistentVolume"
                | "PodTemplate"
                | "ReplicationController"
                | "ResourceQuota"
        ) {
            continue;
        }
        let name = format!("{}/{}", resource.api_version(), resource.kind);
        assert!(tables.kinds.contains_key(name.as_str()), "{name}");
    }
    for name in
        ["policy/v1/Eviction", "authorization.k8s.io/v1/SelfSubjectAccessReview", "DeleteOptions"]
    {
        assert!(tables.kinds.contains_key(name), "{name}");
    }
}

#[test]
fn every_type_that_a_field_has_is_in_the_table() {
    fn inner(layout: &Layout) -> &Layout {
        match layout {
            Layout::List(item) | Layout::Map(item) => inner(item),
            other => other,
        }
    }
    let tables = Tables::get();
    for (name, fields) in &tables.types {
        for field in fields.values() {
            if let Layout::Message(of) = inner(&field.layout) {
                assert!(tables.types.contains_key(of), "{name}: {of}");
            }
        }
    }
}

#[test]
fn an_object_is_read_with_its_maps_lists_and_bytes() {
    let label = [field(1, b"a"), field(2, b"b")].concat();
    let meta = [field(1, b"m"), field(8, b""), field(11, &label), field(14, b"x/y")].concat();
    let data = [field(1, b"key"), field(2, b"value")].concat();
    let raw = [field(1, &meta), field(2, &data), field(4, b"Opaque")].concat();
    let secret = decode(&body("v1", "Secret", &raw));
    // `data` of a Secret is field 2, `type` is 3: field 4 is stringData.
    assert!(secret.is_err(), "a map entry is a message, not a word");
    let raw = [field(1, &meta), field(2, &data), field(3, b"Opaque")].concat();
    assert_eq!(
        decode(&body("v1", "Secret", &raw)).unwrap(),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "m", "labels": {"a": "b"}, "finalizers": ["x/y"]},
            "data": {"key": "dmFsdWU="}})
    );
}

#[test]
fn unset_values_stay_out_and_set_pointers_stay_in() {
    let port =
        [field(1, b""), number(3, 80), field(4, &[number(1, 1), field(3, b"http")].concat())]
            .concat();
    let spec = [field(1, &port), field(7, b"None")].concat();
    let service = decode(&body("v1", "Service", &field(2, &spec))).unwrap();
    assert_eq!(
        service["spec"],
        json!({"ports": [{"port": 80, "targetPort": "http"}], "sessionAffinity": "None"})
    );
    let spec = [number(1, 0), field(2, b"")].concat();
    let deployment = decode(&body("apps/v1", "Deployment", &field(2, &spec))).unwrap();
    assert_eq!(deployment["spec"], json!({"replicas": 0, "selector": {}}));
}

#[test]
fn fields_of_inline_messages_are_members_of_the_parent() {
    let volume = [field(1, b"v"), field(2, &field(2, &field(1, b"Memory")))].concat();
    let pod = decode(&body("v1", "Pod", &field(2, &field(1, &volume)))).unwrap();
    assert_eq!(pod["spec"]["volumes"], json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
}

#[test]
fn times_numbers_and_quantities_become_their_json() {
    let renewed = [number(1, 60), number(2, 100)].concat();
    let spec = [field(1, b"me"), field(4, &renewed)].concat();
    let lease = decode(&body("coordination.k8s.io/v1", "Lease", &field(2, &spec))).unwrap();
    assert_eq!(
        lease["spec"],
        json!({"holderIdentity": "me", "renewTime": "1970-01-01T00:01:00.000000Z"})
    );
    let limits = [field(1, b"cpu"), field(2, &field(1, b"10"))].concat();
    let resources = field(8, &field(1, &limits));
    let pod = decode(&body("v1", "Pod", &field(2, &field(2, &resources)))).unwrap();
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({"cpu": "10"}));
}

#[test]
fn a_body_without_an_object_is_rejected() {
    assert!(decode(b"{}").is_err());
    assert!(decode(&body("v1", "Wombat", b"")).unwrap_err().contains("Wombat"));
    assert!(decode(&body("v1", "Pod", &[0x0a, 0x7f])).unwrap_err().contains("ends early"));
    assert!(decode(&body("v1", "Pod", &[0x0b])).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = decode(&body("v1", "Pod", &raw[..raw.len().min(100)]));
        let _ = decode(&[MAGIC, &raw].concat());
    }
}
