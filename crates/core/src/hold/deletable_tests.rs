use proptest::prelude::*;
use refit_cluster_api::rollout::keys::{MOVE_MACHINES, UPDATE_IN_PROGRESS};
use serde_json::{Value, json};

use super::*;

const NOW: Timestamp = Timestamp::constant(1_772_438_400, 0);

/// A MachineSet that asks for this many Machines, with what a case adds to it.
fn set(name: &str, replicas: i64, metadata: &Value) -> MachineSet {
    let mut body =
        json!({"metadata": metadata, "spec": {"clusterName": "edge-1", "replicas": replicas}});
    body["metadata"]["name"] = name.into();
    serde_json::from_value(body).unwrap()
}

fn plain(name: &str, replicas: i64) -> MachineSet {
    set(name, replicas, &json!({}))
}

/// A Machine of a MachineSet with a Node, with what a case adds to its metadata. Its name begins with that of its MachineSet.
fn machine(name: &str, metadata: &Value) -> Machine {
    let (set, _) = name.split_once('-').unwrap();
    let owner = json!([{
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": set, "uid": "1",
        "controller": true,
    }]);
    let mut body = json!({
        "metadata": metadata, "spec": {"clusterName": "edge-1"}, "status": {"nodeRef": {"name": name}},
    });
    body["metadata"]["name"] = name.into();
    body["metadata"]["ownerReferences"] = owner;
    serde_json::from_value(body).unwrap()
}

fn ordinary(names: &[&str]) -> Vec<Machine> {
    names.iter().map(|name| machine(name, &json!({}))).collect()
}

/// The names of the Machines that may be deleted, and of the MachineSets all of whose Machines may, with an asterisk.
fn named(machines: &[Machine], sets: &[MachineSet], replicas: i64) -> String {
    let machines: Vec<&Machine> = machines.iter().collect();
    let sets: Vec<&MachineSet> = sets.iter().collect();
    let template = MachineSpec::default();
    let Deletable { mut machines, sets } =
        Deletable::of(&machines, &sets, replicas, &template, NOW);
    machines.extend(sets.into_iter().map(|set| format!("{set}*")));
    machines.join(" ")
}

fn leaving() -> Value {
    json!({"deletionTimestamp": "2026-03-02T08:00:00Z"})
}

#[test]
fn a_machine_set_alone_chooses_what_a_scale_down_deletes() {
    let machines = ordinary(&["a-1", "a-2", "a-3"]);
    for (replicas, wanted) in [(4, ""), (3, ""), (2, "a*"), (0, "a*")] {
        let sets = [plain("a", replicas), plain("old", 0)];
        assert_eq!(named(&machines, &sets, replicas), wanted, "{replicas}");
    }
    // It has not been asked for yet.
    assert_eq!(named(&machines, &[plain("a", 3)], 2), "");
}

#[test]
fn a_machine_set_that_a_rollout_is_to_replace_deletes_only_named_machines() {
    let machines = ordinary(&["a-1", "a-2", "a-3"]);
    let mut set = plain("a", 2);
    set.spec.template.spec.version = "v1.34.0".into();
    assert_eq!(named(&machines, &[set], 2), "a-1");
}

#[test]
fn as_many_machines_are_named_as_there_are_too_many_if_more_are_to_be_deleted() {
    let machines = ordinary(&["a-1", "a-2", "a-3"]);
    assert_eq!(named(&machines, &[plain("a", 0)], 2), "a-1");
    assert_eq!(named(&machines, &[plain("a", 0)], 1), "a-1 a-2");
    assert_eq!(named(&machines, &[plain("a", 0)], 3), "");
}

#[test]
fn machines_that_are_being_deleted_are_not_too_many_and_need_no_name() {
    let mut machines = ordinary(&["a-1", "a-2", "a-3"]);
    machines.push(machine("a-0", &leaving()));
    assert_eq!(named(&machines, &[plain("a", 3)], 3), "");
    assert_eq!(named(&machines, &[plain("a", 2)], 2), "a*");
    assert_eq!(named(&machines, &[plain("a", 1)], 2), "a-1");
}

#[test]
fn in_a_rollout_the_machines_are_named_that_machine_sets_are_about_to_delete() {
    let machines = ordinary(&["a-1", "a-2", "b-1", "b-2"]);
    assert_eq!(named(&machines, &[plain("a", 2), plain("b", 2)], 3), "");
    assert_eq!(named(&machines, &[plain("a", 2), plain("b", 1)], 3), "b-1");
    assert_eq!(named(&machines, &[plain("a", 2), plain("b", 1)], 2), "b-1");
    assert_eq!(named(&machines, &[plain("a", 1), plain("b", 1)], 2), "a-1 b-1");
    assert_eq!(named(&machines, &[plain("a", 2), plain("b", 0)], 3), "b-1");
    for idle in [MOVE_MACHINES, keys::PAUSED] {
        let idle = set("a", 0, &json!({"annotations": {idle: "b"}}));
        assert_eq!(named(&machines, &[idle, plain("b", 1)], 3), "b-1");
    }
    // A MachineSet without Machines that wants one is in the middle of a rollout, too.
    let machines = ordinary(&["a-1", "a-2"]);
    assert_eq!(named(&machines, &[plain("a", 1), plain("b", 1)], 1), "a-1");
}

#[test]
fn machines_are_named_in_cluster_apis_order_of_deletion() {
    let created = |hour: u8| json!({"creationTimestamp": format!("2026-03-02T0{hour}:00:00Z")});
    let updating = json!({"annotations": {UPDATE_IN_PROGRESS: ""}});
    let mut oldest = plain("a", 1);
    oldest.spec.deletion = serde_json::from_value(json!({"order": "Oldest"})).unwrap();
    for (one, set) in [(updating, plain("a", 1)), (created(1), oldest)] {
        // By name, it would be the other one.
        let machines =
            [machine("a-1", &created(2)), machine("a-2", &one), machine("a-3", &created(3))];
        assert_eq!(named(&machines, &[set], 2), "a-2", "{one}");
    }
    let mut machines = ordinary(&["a-1", "a-2"]);
    machines[1].status = None;
    assert_eq!(named(&machines, &[plain("a", 0)], 1), "a-2", "it has no Node");
}

#[test]
fn the_machines_of_a_machine_set_that_is_being_deleted_go_with_it() {
    let machines = ordinary(&["a-1", "a-2", "b-1", "b-2"]);
    let sets = |asks| [set("a", 2, &leaving()), plain("b", asks)];
    assert_eq!(named(&machines, &sets(2), 4), "a*");
    assert_eq!(named(&machines, &sets(2), 2), "a*");
    assert_eq!(named(&machines, &sets(0), 1), "b-1 a*");
    assert_eq!(named(&machines, &sets(1), 1), "a* b*");
}

#[test]
fn a_hundred_machines_are_named_at_once() {
    let names: Vec<String> = (100..400).map(|number| format!("a-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sets = [plain("a", 1), plain("b", 1)];
    assert_eq!(named(&ordinary(&names), &sets, 1), names[..MAX_NAMED].join(" "));
}

/// What a MachineSet asks for, its Machines that stay, those that are being deleted, and whether it moves its Machines.
type Drawn = (i64, usize, usize, bool);

fn drawn(sets: &[Drawn]) -> (Vec<Machine>, Vec<MachineSet>) {
    let (mut machines, mut objects) = (Vec::new(), Vec::new());
    for (number, (asks, stay, leave, moves)) in sets.iter().enumerate() {
        let annotations = if *moves { json!({MOVE_MACHINES: "s0"}) } else { json!({}) };
        objects.push(set(&format!("s{number}"), *asks, &json!({"annotations": annotations})));
        for one in 0..stay + leave {
            let metadata = if one < *stay { json!({}) } else { leaving() };
            machines.push(machine(&format!("s{number}-{one}"), &metadata));
        }
    }
    (machines, objects)
}

proptest! {
    /// MachineSets delete all that they ask for and may delete, until they can go no further.
    #[test]
    fn machine_sets_delete_no_more_than_are_too_many_and_all_of_these_if_they_ask_for_them(
        replicas in 0_i64..8,
        sets in prop::collection::vec((0_i64..5, 0_usize..5, 0_usize..3, any::<bool>()), 1..4),
    ) {
        let (mut machines, objects) = drawn(&sets);
        let before = machines.iter().filter(|machine| stays(machine)).count();
        let asked: usize = sets.iter().filter(|(.., moves)| !moves).map(|(asks, stay, leave, _)| {
            (stay + leave).saturating_sub(usize::try_from(*asks).unwrap()).saturating_sub(*leave)
        }).sum();
        loop {
            let seen: Vec<&Machine> = machines.iter().collect();
            let of: Vec<&MachineSet> = objects.iter().collect();
            let may = Deletable::of(&seen, &of, replicas, &MachineSpec::default(), NOW);
            let asked: Vec<String> =
                members(&seen, &of).iter().flat_map(|one| one.about_to_delete(NOW)).collect();
            let is_admitted = |name: &String| {
                let (set, _) = name.split_once('-').unwrap();
                may.machines.contains(name) || may.sets.iter().any(|one| one == set)
            };
            let deleted: Vec<String> = asked.into_iter().filter(is_admitted).collect();
            if deleted.is_empty() {
                break;
            }
            for machine in machines.iter_mut().filter(|one| deleted.contains(&one.name_any())) {
                *machine = self::machine(&machine.name_any(), &leaving());
            }
        }
        let after = machines.iter().filter(|machine| stays(machine)).count();
        let too_many = before.saturating_sub(usize::try_from(replicas).unwrap());
        prop_assert_eq!(before - after, asked.min(too_many));
    }
}
