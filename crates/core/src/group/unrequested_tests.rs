use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_cluster_api::kinds::{MachineStatus, NodeInfo, NodeRef};
use refit_kinds::keys;

use super::*;
use crate::group::{BLOCKED, Limits, Outside, summarise};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn machine(name: &str, up_to_date: &str, available: &str) -> Machine {
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    let mut status = MachineStatus {
        node_ref: Some(NodeRef { name: name.to_owned() }),
        ..MachineStatus::default()
    };
    for (kind, word) in [(conditions::UP_TO_DATE, up_to_date), (conditions::AVAILABLE, available)] {
        conditions::set(&mut status.conditions, at(0), None, (kind, word, "Because", ""));
    }
    machine.status = Some(status);
    machine
}

fn rollout(since: Option<i64>, replicas: i32, machines: &[Machine]) -> Rollout<'_> {
    Rollout {
        owner: "MachineDeployment edge-1-md-0".to_owned(),
        control_plane: false,
        version: "v1.34.2".into(),
        unchanged_since: since.map(at),
        scales: false,
        replicas,
        machines: machines.iter().collect(),
    }
}

/// Reason and message of `Blocked` at a time, for a group that has been idle since second 100 in a
/// rollout that began at second 0.
fn blocked_at(
    second: i64,
    since: Option<i64>,
    machines: &[Machine],
    covered: &str,
) -> Option<(String, String)> {
    let mut status = UpdateGroupStatus::default();
    let idle = (PROGRESSING, "False", "Idle", "no machine is being updated");
    conditions::set(&mut status.conditions, at(100), None, idle);
    if !covered.is_empty() {
        let (word, reason) = covered.split_once('/').unwrap();
        conditions::set(&mut status.conditions, at(0), None, (COVERED, word, reason, ""));
    }
    let rollout = rollout(since, 3, machines);
    let outside = Outside { rollout: Some(rollout), ..Outside::default() };
    let limits = Limits { replicas: 3, max_unavailable: 1 };
    let next = summarise(&status, limits, &[], &outside, None, at(second));
    let condition = conditions::get(&next.conditions, BLOCKED).unwrap();
    (condition.status == "True").then(|| (condition.reason.clone(), condition.message.clone()))
}

fn one_is_down() -> Vec<Machine> {
    vec![
        machine("m-1", "True", "False"),
        machine("m-2", "False", "True"),
        machine("m-3", "False", "True"),
    ]
}

#[test]
fn a_rollout_for_which_no_update_is_requested_for_5_minutes_is_blocked() {
    assert_eq!(blocked_at(399, Some(0), &one_is_down(), ""), None);
    let (reason, message) = blocked_at(400, Some(0), &one_is_down(), "").unwrap();
    assert_eq!(reason, REASON_NOT_REQUESTED);
    assert_eq!(
        message,
        "MachineDeployment edge-1-md-0 is rolling out a change, and Cluster API has requested no update \
         of m-2, m-3 for 5 minutes; it requests none while too few machines are available: repair m-1, \
         or delete what cannot be repaired"
    );
    assert_eq!(blocked_at(500, Some(201), &one_is_down(), ""), None);
    assert!(blocked_at(501, Some(201), &one_is_down(), "").is_some());
}

#[test]
fn a_message_names_a_few_machines_and_where_to_look() {
    let machines: Vec<Machine> =
        (1..=5).map(|n| machine(&format!("m-{n}"), "False", "True")).collect();
    let message = rollout(None, 5, &machines).message();
    assert!(message.contains("no update of m-1, m-2, m-3 and 2 more for 5 minutes"), "{message}");
    assert!(message.ends_with("see the conditions of MachineDeployment edge-1-md-0"), "{message}");
}

/// [`one_is_down`] with a change of the last Machine.
fn edited(edit: fn(&mut Machine)) -> Vec<Machine> {
    let mut machines = one_is_down();
    edit(&mut machines[2]);
    machines
}

#[test]
fn machines_may_be_created_and_deleted_for_20_minutes() {
    let deleted = edited(|machine| machine.metadata.deletion_timestamp = Some(Time(at(1))));
    let created = edited(|machine| machine.status.as_mut().unwrap().node_ref = None);
    let missing = one_is_down()[..2].to_vec();
    let surge = [one_is_down(), vec![machine("m-4", "True", "True")]].concat();
    for (part, machines) in [
        ("20 minutes; being deleted: m-3", deleted),
        ("without a Node: m-3", created),
        ("2 of 3 Machines exist", missing),
        ("4 of 3 Machines exist", surge),
    ] {
        assert_eq!(blocked_at(1299, Some(0), &machines, ""), None, "{part}");
        let (_, message) = blocked_at(1300, Some(0), &machines, "").unwrap();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn nothing_is_blocked_while_cluster_api_or_refit_is_at_it() {
    let requested = edited(|machine| {
        let mark = (keys::UPDATE_IN_PROGRESS.to_owned(), String::new());
        machine.metadata.annotations = Some(BTreeMap::from([mark]));
    });
    let becoming = edited(|machine| {
        let shown = (conditions::AVAILABLE, "False", WAITS_FOR_MIN_READY_SECONDS, "");
        let conditions = &mut machine.status.as_mut().unwrap().conditions;
        conditions::set(conditions, at(0), None, shown);
    });
    let done: Vec<Machine> = (1..=3).map(|n| machine(&format!("m-{n}"), "True", "True")).collect();
    for (what, machines) in [
        ("an update is requested", requested),
        ("a Machine is becoming available", becoming),
        ("all are up to date", done),
    ] {
        assert_eq!(blocked_at(9000, Some(0), &machines, ""), None, "{what}");
    }
    assert_eq!(blocked_at(9000, None, &one_is_down(), ""), None, "no rollout");
    for answer in [
        "Unknown/NotSynced",
        "Unknown/ControlPlaneBehind",
        "False/UncoveredReplace",
        "False/Disabled",
    ] {
        assert_eq!(blocked_at(9000, Some(0), &one_is_down(), answer), None, "{answer}");
    }
    for answer in ["Unknown/OwnerChanged", "True/Covered"] {
        assert!(blocked_at(9000, Some(0), &one_is_down(), answer).is_some(), "{answer}");
    }
}

#[test]
fn the_time_begins_with_the_last_change_of_a_machine() {
    let mut machines = one_is_down();
    let conditions = &mut machines[1].status.as_mut().unwrap().conditions;
    conditions::set(conditions, at(1000), None, ("Ready", "True", "Ready", ""));
    assert_eq!(blocked_at(1299, Some(0), &machines, ""), None);
    assert!(blocked_at(1300, Some(0), &machines, "").is_some());
    machines[2].metadata.creation_timestamp = Some(Time(at(2000)));
    assert_eq!(blocked_at(2299, Some(0), &machines, ""), None);
    assert!(blocked_at(2300, Some(0), &machines, "").is_some());
}

#[test]
fn no_one_is_advised_to_delete_what_may_be_healthy() {
    let unreachable: Vec<Machine> =
        (1..=3).map(|n| machine(&format!("m-{n}"), "False", "False")).collect();
    let (_, message) = blocked_at(9000, Some(0), &unreachable, "").unwrap();
    assert!(!message.contains("delete"), "{message}");
    let members = one_is_down();
    let members = Rollout { control_plane: true, ..rollout(None, 3, &members) };
    let message = members.message();
    assert!(!message.contains("delete") && message.contains("unavailable: m-1;"), "{message}");
}

#[test]
fn a_machine_that_was_updated_by_hand_is_named_with_the_way_out() {
    let runs = |name: &str, version: &str| {
        let mut machine = machine(name, "False", "True");
        machine.spec.version = "v1.34.2".into();
        let info = NodeInfo { kubelet_version: version.into(), ..NodeInfo::default() };
        machine.status.as_mut().unwrap().node_info = Some(info);
        machine
    };
    let others = |up_to_date| ["m-2", "m-3"].map(|name| machine(name, up_to_date, "True"));
    for (version, remedy) in [
        ("v1.34.3", "request v1.34.3 of MachineDeployment edge-1-md-0"),
        ("v1.34.1", "create a NodeUpdate that takes it to v1.34.2"),
    ] {
        let [two, three] = others("True");
        let (reason, message) =
            blocked_at(9000, Some(0), &[runs("m-1", version), two, three], "").unwrap();
        assert_eq!(reason, REASON_NOT_REQUESTED);
        assert!(message.starts_with("m-1 runs another") && message.ends_with(remedy), "{message}");
    }
    let [two, three] = others("False");
    let (_, message) =
        blocked_at(9000, Some(0), &[runs("m-1", "v1.34.3"), two, three], "").unwrap();
    assert!(message.contains("has requested no update of m-1, m-2"), "{message}");
}
