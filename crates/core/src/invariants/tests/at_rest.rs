//! What must hold when nothing happens any more: invariants 6, 7 and 8.

use super::*;

#[test]
fn a_world_in_which_nothing_happened_is_at_rest() {
    assert_eq!(rest(&world()), OK);
}

#[test]
fn an_unfinished_update_must_name_a_blocker() {
    let mut world = world();
    observe_update(&mut world, &update("w-0", 1, "Staging"));
    assert_eq!(rest(&world), [6]);
    let blocked = json!({"status": {"blockedBy": [{"reason": "Paused"}]}});
    observe_update(&mut world, &with(update("w-0", 1, "Staging"), blocked));
    assert_eq!(rest(&world), OK);
}

#[test]
fn a_failure_needs_a_reason_and_a_success_the_version() {
    let mut world = world();
    observe_update(&mut world, &update("w-0", 1, "Failed"));
    observe_update(&mut world, &update("w-1", 1, "Succeeded"));
    assert_eq!(rest(&world), [6, 6]);
    let reason = json!({"status": {"failureReason": "DiskFull"}});
    observe_update(&mut world, &with(update("w-0", 1, "Failed"), reason));
    let runs = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.35.0"}}});
    kubelet(&mut world, &with(node("w-1"), runs));
    assert_eq!(rest(&world), OK);
}

#[test]
fn a_marked_machine_without_an_update_is_found() {
    let mut world = world();
    let marked = json!({"metadata": {"annotations": {keys::UPDATE_IN_PROGRESS: ""}}});
    put(&mut world, CAPI, "Machine", &with(machine("w-0", "MachineSet", "md-abc"), marked));
    assert_eq!(rest(&world), [6]);
}

#[test]
fn a_machine_behind_its_machine_set_must_be_marked() {
    let mut world = world();
    let set = json!({
        "metadata": with(meta("md-def"), json!({"ownerReferences": owner("MachineDeployment", "md")})),
        "spec": {"replicas": 1, "template": {"spec": {"version": "v1.35.1"}}},
    });
    put(&mut world, CAPI, "MachineSet", &set);
    let behind =
        with(machine("w-0", "MachineSet", "md-def"), json!({"spec": {"version": "v1.35.0"}}));
    put(&mut world, CAPI, "Machine", &behind);
    assert_eq!(rest(&world), [6]);
    let current = with(behind.clone(), json!({"spec": {"version": "v1.35.1"}}));
    put(&mut world, CAPI, "Machine", &current);
    assert_eq!(rest(&world), OK);
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:59:00Z"}});
    put(&mut world, CAPI, "Machine", &with(behind.clone(), leaving));
    assert_eq!(rest(&world), OK);
    put(&mut world, CAPI, "Machine", &behind);
    let unowned = with(set, json!({"metadata": {"ownerReferences": []}}));
    put(&mut world, CAPI, "MachineSet", &unowned);
    assert_eq!(rest(&world), OK, "its template is for new Machines only");
}

#[test]
fn a_leftover_cordon_must_be_reported() {
    let mut world = world();
    kubelet(&mut world, &cordoned("w-0"));
    assert_eq!(rest(&world), [7]);
    let reported = json!({"status": {"failureReason": "DiskFull", "cordonedByUs": true}});
    observe_update(&mut world, &with(update("w-0", 1, "Failed"), reported.clone()));
    assert_eq!(rest(&world), OK);
    observe_update(&mut world, &with(update("w-0", 1, "Stopped"), reported));
    assert_eq!(rest(&world), [7]);
    let leaving = with(
        machine("w-0", "MachineSet", "md-abc"),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    put(&mut world, CAPI, "Machine", &leaving);
    assert!(
        !rest(&world).contains(&7),
        "Cluster API cordons the Node of a Machine that it deletes"
    );
}

#[test]
fn a_leftover_guard_or_slot_is_found() {
    let mut world = world();
    let guarded = json!({"metadata": {"annotations": {keys::GUARDED_BY_US: keys::PRE_DRAIN_HOOK}}});
    put(&mut world, CAPI, "Machine", &with(machine("w-0", "MachineSet", "md-abc"), guarded));
    let slots = json!({
        "metadata": meta("machinedeployment-md"),
        "status": {"slots": [
            {"machine": "w-1", "machineUid": "uid-w-1"},
            {"machine": "w-9", "machineUid": "uid-w-9"},
        ]},
    });
    put(&mut world, "refit.dev", "UpdateGroup", &slots);
    assert_eq!(rest(&world), [8, 8, 8]);
    kubelet(&mut world, &not_ready("w-1"));
    assert_eq!(rest(&world), [8, 8]);
}
