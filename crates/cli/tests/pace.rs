//! `refit pause`, `resume` and `approve`.

use serde_json::json;

use crate::stage::{CONTROL_PLANE, DEPLOYMENT, NEW, Stage, UPDATE_GROUP, UPGRADE_TASK};

#[test]
fn a_group_is_paused_before_its_first_update_and_resumed() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let rehearsed = stage.run(&["pause", "cluster/edge-1", "--dry-run"]);
    assert!(rehearsed.stdout.contains("(dry run: nothing was written)"), "{rehearsed:?}");
    assert_eq!(stage.server().revision(), before);
    let ended = stage.run(&["pause", "cluster/edge-1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let workers = "MachineDeployment/edge-1-md: paused; no machine holds a slot";
    let control_plane = "KubeadmControlPlane/edge-1: paused; no machine holds a slot";
    assert!(ended.stdout.contains(workers) && ended.stdout.contains(control_plane), "{ended:?}");
    let group = stage.get(UPDATE_GROUP, "machinedeployment-edge-1-md");
    assert_eq!(group["spec"]["pacing"]["paused"], true);
    assert_eq!(group["spec"]["clusterName"], "edge-1");
    assert_eq!(group["metadata"]["ownerReferences"][0]["name"], "edge-1-md");
    let group = stage.get(UPDATE_GROUP, "kubeadmcontrolplane-edge-1");
    assert_eq!(group["spec"]["controlPlane"], true);
    let again = stage.run(&["pause", "md/edge-1-md", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((again.code, &rows[0]["action"]), (Some(0), &json!("already")));
    let resumed = stage.run(&["resume", "md/edge-1-md"]);
    assert_eq!(resumed.stdout, "MachineDeployment/edge-1-md: goes on\n");
    let group = stage.get(UPDATE_GROUP, "machinedeployment-edge-1-md");
    assert!(group["spec"]["pacing"]["paused"] != true, "{group}");
    let nothing = stage.run(&["resume", "md/edge-1-md"]);
    assert_eq!(nothing.code, Some(3), "{nothing:?}");
}

#[test]
fn the_rollout_that_waits_is_approved_and_a_machine_is_not_paced() {
    let stage = Stage::new().with_cluster();
    let none = stage.run(&["approve", "md/edge-1-md"]);
    assert_eq!(none.code, Some(3), "{none:?}");
    assert!(none.stdout.contains("its rollouts need no approval"), "{none:?}");
    assert!(stage.run(&["pause", "md/edge-1-md"]).code == Some(0));
    let name = "machinedeployment-edge-1-md";
    stage.patch(UPDATE_GROUP, name, json!({"spec": {"pacing": {"pauseAfter": 0}}}));
    stage.status(UPDATE_GROUP, name, json!({"awaitsApproval": 4}));
    let ended = stage.run(&["approve", "md/edge-1-md"]);
    assert_eq!(ended.stdout, "MachineDeployment/edge-1-md: rollout 4 is approved\n");
    assert_eq!(stage.get(UPDATE_GROUP, name)["spec"]["pacing"]["approve"], 4);
    let machine = stage.run(&["pause", "machine/edge-1-md-a"]);
    assert_eq!(machine.code, Some(1), "{machine:?}");
    assert!(machine.stderr.contains("name its owner, here MachineDeployment/edge-1-md"));
    let missing = stage.run(&["approve", "md/other"]);
    assert!(missing.stderr.contains("MachineDeployment/other does not exist"), "{missing:?}");
}

/// A cluster whose workers an UpgradeTask `old` has left paused, with this phase.
fn with_task(phase: &str) -> Stage {
    let stage = Stage::new().with_cluster();
    stage.create(
        UPGRADE_TASK,
        json!({
            "metadata": {"name": "old"},
            "spec": {
                "clusterRef": {"name": "edge-1"}, "version": NEW, "via": "Machines", "stage": "Ongoing",
                "ownerRef": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
                    "name": "edge-1-md"},
            },
            "status": {"phase": phase},
        }),
    );
    stage.left_paused(DEPLOYMENT, "edge-1-md", "old");
    stage
}

#[test]
fn resume_continues_what_a_task_has_left() {
    let stage = with_task("Aborted");
    let before = stage.server().revision();
    let rehearsed = stage.run(&["resume", "md/edge-1-md", "--dry-run"]);
    let wanted = "MachineDeployment/edge-1-md: an UpgradeTask continues in place what UpgradeTask/old left (dry run";
    assert!(rehearsed.stdout.starts_with(wanted), "{rehearsed:?}");
    assert_eq!(stage.server().revision(), before);

    assert_eq!(stage.run(&["pause", "md/edge-1-md"]).code, Some(0));
    let resumed = stage.run(&["resume", "cluster/edge-1", "-o", "json"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let rows: serde_json::Value = serde_json::from_str(&resumed.stdout).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["action"] == "set").unwrap();
    let message = row["message"].as_str().unwrap();
    let name = message
        .strip_prefix("goes on; UpgradeTask/")
        .and_then(|rest| rest.strip_suffix(" continues in place what UpgradeTask/old left"))
        .unwrap_or_else(|| panic!("{message}"));
    let task = stage.get(UPGRADE_TASK, name);
    assert_eq!(task["spec"], stage.get(UPGRADE_TASK, "old")["spec"]);

    let again = stage.run(&["resume", "md/edge-1-md"]);
    let wanted = format!("MachineDeployment/edge-1-md: UpgradeTask/{name} works on it already\n");
    assert_eq!((again.code, again.stdout), (Some(0), wanted));
}

#[test]
fn resume_stops_a_failed_task_and_continues_a_deleted_one() {
    let stage = with_task("Failed");
    let resumed = stage.run(&["resume", "md/edge-1-md"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert_eq!(stage.get(UPGRADE_TASK, "old")["spec"]["stage"], "Abort");

    stage.left_paused(CONTROL_PLANE, "edge-1", "gone");
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    let resumed = stage.run(&["resume", "kcp/edge-1"]);
    assert!(resumed.stdout.contains("what UpgradeTask/gone left"), "{resumed:?}");
    let tasks = stage.list(UPGRADE_TASK);
    let of_plane = tasks.iter().find(|task| task.data["spec"]["ownerRef"]["name"] == "edge-1");
    let spec = &of_plane.unwrap().data["spec"];
    assert_eq!(
        (&spec["version"], &spec["via"], &spec["clusterRef"]["name"]),
        (&json!(NEW), &json!("Machines"), &json!("edge-1"))
    );
}
