//! Table tests of a MachineSet's actions.

use super::*;

const DAY: i64 = 86_400;
const NOW: Timestamp = Timestamp::constant(1_000, 0);

fn set(replicas: i64, annotations: &[(&str, &str)]) -> MachineSet {
    MachineSet {
        name: "old".into(),
        spec_replicas: replicas,
        annotations: annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..MachineSet::default()
    }
}

fn machine(name: &str) -> Machine {
    Machine { name: name.into(), has_node: true, ..Machine::default() }
}

fn with(mut machine: Machine, key: &str) -> Machine {
    machine.annotations.insert(key.into(), String::new());
    machine
}

fn sync(set: &MachineSet, machines: &[Machine]) -> MachineSetAction {
    sync_replicas(set, machines, None, DeletionOrder::Random, NOW).unwrap()
}

fn target(accepts: &str) -> MachineSet {
    let mut target = set(0, &[(keys::RECEIVE_MACHINES, accepts)]);
    target.name = "new".into();
    target
}

fn moved(set: &MachineSet, machines: &[Machine]) -> Move {
    let target = target("old");
    match sync_replicas(set, machines, Some(&target), DeletionOrder::Random, NOW).unwrap() {
        MachineSetAction::Move(result) => result,
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_machines_are_created_unless_that_is_disabled() {
    assert_eq!(sync(&set(3, &[]), &[machine("a")]), MachineSetAction::Create(2));
    let disabled = set(3, &[(keys::DISABLE_MACHINE_CREATE, "true")]);
    assert_eq!(sync(&disabled, &[machine("a")]), MachineSetAction::CreateDisabled { missing: 2 });
    let enabled = set(1, &[(keys::DISABLE_MACHINE_CREATE, "false")]);
    assert_eq!(sync(&enabled, &[]), MachineSetAction::Create(1));
}

#[test]
fn the_right_number_of_machines_needs_nothing() {
    assert_eq!(sync(&set(1, &[]), &[machine("a")]), MachineSetAction::None);
}

#[test]
fn updating_machines_are_deleted_before_unhealthy_ones() {
    let mut unhealthy = machine("b");
    unhealthy.unhealthy = true;
    let mut deleting = machine("e");
    deleting.deleting = true;
    let machines = [
        machine("a"),
        unhealthy,
        with(machine("c"), keys::UPDATE_IN_PROGRESS),
        with(machine("d"), keys::DELETE_MACHINE),
        deleting,
    ];
    let names = ["e", "d", "c", "b", "a"].map(str::to_owned).to_vec();
    assert_eq!(sync(&set(0, &[]), &machines), MachineSetAction::Delete(names));
}

/// A machine: its name, its age in days, and what a case adds to it.
type Aged = (&'static str, i64, fn(Machine) -> Machine);

/// The names of machines in order of deletion.
fn deletion_order(order: &str, machines: &[Aged]) -> String {
    let now = Timestamp::from_second(500 * DAY).unwrap();
    let machines: Vec<Machine> = machines
        .iter()
        .map(|(name, days, with)| {
            let created_at = Timestamp::from_second((500 - days) * DAY).unwrap();
            with(Machine { created_at, ..machine(name) })
        })
        .collect();
    let sorted = in_deletion_order(&machines, DeletionOrder::from_spec(order), now);
    sorted.iter().map(|machine| machine.name.as_str()).collect()
}

#[test]
fn the_order_of_a_spec_decides_among_ordinary_machines() {
    let names = |order| {
        let as_is = |machine| machine;
        deletion_order(order, &[("b", 3, as_is), ("c", 2, as_is), ("a", 1, as_is)])
    };
    assert_eq!(names("Oldest"), "bca");
    assert_eq!(names("Newest"), "acb");
    assert_eq!(names("Random"), "abc");
    assert_eq!(names(""), "abc");
}

#[test]
fn age_counts_neither_among_preferred_machines_nor_after_a_year() {
    let annotated = |machine| with(machine, keys::DELETE_MACHINE);
    let updating = |machine| with(machine, keys::UPDATE_IN_PROGRESS);
    let unhealthy = |machine| Machine { unhealthy: true, ..machine };
    let as_is = |machine| machine;
    for order in ["Oldest", "Newest", "Random"] {
        for same in [annotated, updating, unhealthy] {
            for days in [1, 3] {
                assert_eq!(deletion_order(order, &[("b", 2, same), ("a", days, same)]), "ab");
            }
        }
    }
    let old =
        [("c", 450, as_is as fn(Machine) -> Machine), ("b", 400, unhealthy), ("a", 400, as_is)];
    assert_eq!(deletion_order("Oldest", &old), "abc");
    assert_eq!(deletion_order("Newest", &old), "bac");
}

#[test]
fn machines_not_counted_yet_are_not_surplus() {
    let receiving = set(1, &[(keys::RECEIVE_MACHINES, "other")]);
    let machines = [machine("a"), with(machine("b"), keys::PENDING_ACKNOWLEDGE_MOVE)];
    assert_eq!(sync(&receiving, &machines), MachineSetAction::None);
    // A set that receives nothing counts them like any other machine.
    assert_eq!(sync(&set(1, &[]), &machines), MachineSetAction::Delete(vec!["a".into()]));
    // More pending machines than surplus: nothing to move.
    let behind = set(2, &[(keys::RECEIVE_MACHINES, "other")]);
    let machines = [
        machine("a"),
        with(machine("b"), keys::PENDING_ACKNOWLEDGE_MOVE),
        with(machine("c"), keys::PENDING_ACKNOWLEDGE_MOVE),
    ];
    assert_eq!(sync(&behind, &machines), MachineSetAction::None);
}

#[test]
fn surplus_machines_move_to_the_annotated_set() {
    let moving = set(1, &[(keys::MOVE_MACHINES, "new")]);
    let result = moved(&moving, &[machine("a"), machine("b"), machine("c")]);
    assert_eq!(result.target, "new");
    assert_eq!(result.machines, ["a", "b"]);
    assert_eq!(result.held_back, 0);
}

#[test]
fn a_move_needs_the_consent_of_the_target() {
    let moving = set(0, &[(keys::MOVE_MACHINES, "new")]);
    let refused = target("x,y");
    let error = sync_replicas(&moving, &[machine("a")], Some(&refused), DeletionOrder::Random, NOW);
    assert_eq!(
        error.unwrap_err().to_string(),
        "MachineSet old is set to move replicas to new, but new only accepts Machines from x,y"
    );
    let error = sync_replicas(&moving, &[machine("a")], None, DeletionOrder::Random, NOW);
    assert!(matches!(error, Err(SyncError::TargetMissing { .. })));
}

#[test]
fn a_deleting_machine_counts_as_gone_and_is_not_moved() {
    let mut deleting = machine("z");
    deleting.deleting = true;
    let result =
        moved(&set(1, &[(keys::MOVE_MACHINES, "new")]), &[machine("a"), machine("b"), deleting]);
    assert_eq!(result.machines, ["a"]);
}

#[test]
fn machines_in_an_update_or_without_a_node_are_not_moved() {
    let mut homeless = machine("b");
    homeless.has_node = false;
    let result = moved(
        &set(0, &[(keys::MOVE_MACHINES, "new")]),
        &[with(machine("a"), keys::UPDATE_IN_PROGRESS), homeless, machine("c")],
    );
    assert_eq!(result.machines, ["c"]);
    assert_eq!(result.held_back, 2);
}

#[test]
fn a_machine_awaiting_remediation_is_deleted_not_moved() {
    let mut broken = machine("b");
    broken.needs_remediation = true;
    broken.unhealthy = true;
    let result =
        moved(&set(1, &[(keys::MOVE_MACHINES, "new")]), &[machine("a"), broken, machine("c")]);
    assert_eq!(result.delete, ["b"]);
    assert_eq!(result.machines, ["a"]);
}

#[test]
fn an_update_is_triggered_once_the_move_is_acknowledged() {
    let moved = with(with(machine("a"), keys::UPDATE_IN_PROGRESS), keys::PENDING_ACKNOWLEDGE_MOVE);
    let waiting = set(0, &[(keys::RECEIVE_MACHINES, "other")]);
    assert_eq!(
        trigger_in_place(&waiting, std::slice::from_ref(&moved)),
        [Trigger::WaitForAcknowledge { machine: "a".into() }]
    );
    let complete = [Trigger::CompleteMove { machine: "a".into(), drop_pending_acknowledge: true }];
    let acknowledged =
        set(1, &[(keys::RECEIVE_MACHINES, "other"), (keys::ACKNOWLEDGED_MOVE, "a,b")]);
    assert_eq!(trigger_in_place(&acknowledged, std::slice::from_ref(&moved)), complete);
    // The spec changed in the meantime: this set no longer receives machines.
    assert_eq!(trigger_in_place(&set(1, &[]), std::slice::from_ref(&moved)), complete);
}

#[test]
fn a_half_done_trigger_is_completed_and_a_done_one_left_alone() {
    let half = with(machine("a"), keys::UPDATE_IN_PROGRESS);
    let mut done = half.clone();
    done.annotations.insert(keys::PENDING_HOOKS.into(), keys::UPDATE_MACHINE_HOOK.into());
    let triggers = trigger_in_place(&set(2, &[]), &[half, done, machine("c")]);
    assert_eq!(
        triggers,
        [Trigger::CompleteMove { machine: "a".into(), drop_pending_acknowledge: false }]
    );
}

#[test]
fn a_machine_in_an_update_counts_as_nothing_but_existing() {
    let good = MachineFacts { ready: true, available: true, up_to_date: true };
    let updating = with(machine("b"), keys::UPDATE_IN_PROGRESS);
    let counted = counts([(&machine("a"), good), (&updating, good)]);
    assert_eq!(counted, Counts { replicas: 2, ready: 1, available: 1, up_to_date: 1 });
}
