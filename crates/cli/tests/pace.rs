//! `refit pause`, `resume` and `approve`.

use serde_json::json;

use crate::stage::{Stage, UPDATE_GROUP};

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
