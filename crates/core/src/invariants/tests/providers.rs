//! The gates of the objects of providers: invariants 4 and 8.

use super::*;

/// The object of a provider for `w-0`, and its NodeUpdate.
fn order(gate: &str, stage: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": "w-0-1-firmware", "generation": 1,
            "annotations": {keys::UPDATER: "firmware"},
            "ownerReferences": [{
                "kind": "NodeUpdate", "name": "w-0-1", "uid": "uid-w-0-1", "controller": true,
            }],
        },
        "spec": {"machineRef": {"name": "w-0", "uid": "uid-w-0"}, "gate": gate, "stage": stage},
    })
}

#[test]
fn the_gates_of_a_provider_open_in_order_and_not_after_an_abort() {
    let made = |world: &mut World, object: &Value| {
        numbers(&world.observe("a.example", "Thing", None, None, Some(object), "controller"))
    };
    for (before, after, violated) in [
        (("Stage", "Ongoing"), ("Upgrade", "Ongoing"), vec![]),
        (("Upgrade", "Ongoing"), ("Stage", "Ongoing"), vec![4]),
        (("Stage", "Ongoing"), ("Stage", "Abort"), vec![]),
        (("Stage", "Abort"), ("Upgrade", "Abort"), vec![8]),
        (("Stage", "Abort"), ("Stage", "Ongoing"), vec![8]),
    ] {
        let mut world = world();
        assert_eq!(made(&mut world, &order(before.0, before.1)), OK);
        assert_eq!(made(&mut world, &order(after.0, after.1)), violated, "{before:?} {after:?}");
    }
}

#[test]
fn a_provider_waits_until_the_one_before_has_passed_the_gate() {
    for (passed, violated) in [("Stage", vec![4]), ("Upgrade", vec![])] {
        let mut world = world();
        let other = json!({
            "metadata": {"name": "w-0-1-other"},
            "status": {"passed": passed, "observedGeneration": 1},
        });
        let object = with(order("Upgrade", "Ongoing"), other);
        put(&mut world, "a.example", "Thing", &object);
        let next = order("Upgrade", "Ongoing");
        let found = world.observe("a.example", "Thing", None, None, Some(&next), "controller");
        assert_eq!(numbers(&found), violated, "{passed}");
    }
}
