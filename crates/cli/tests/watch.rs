//! `refit watch` against an API over TCP.

use crate::stage::{CONTROL_PLANE, MACHINES, NEW, NODE_UPDATE, Stage, UPDATE_GROUP};
use serde_json::{Value, json};

fn blocker() -> Value {
    json!([{"reason": "PodDisruptionBudget", "object": "default/web",
        "message": "waiting to evict pod default/web-1", "since": "2026-03-02T08:00:00Z"}])
}

/// Plays Refit: the control plane's group is blocked.
fn block(stage: &Stage, reason: &str, message: &str) {
    stage.create(UPDATE_GROUP, json!({
        "metadata": {"name": "kubeadmcontrolplane-edge-1"},
        "spec": {"clusterName": "edge-1", "controlPlane": true, "owner": {
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane", "name": "edge-1"}},
        "status": {"limit": 1, "conditions": [{"type": "Blocked", "status": "True", "reason": reason,
            "message": message, "lastTransitionTime": "2026-03-02T08:00:00Z"}]},
    }));
}

#[test]
fn piped_output_has_a_line_per_change_and_blocker() {
    let stage = Stage::new().with_cluster();
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    let mut watch = stage.start(&["watch", "kcp/edge-1"]);
    watch.until("edge-1-a    0%  Waiting: other machines go first");
    stage.update(
        "edge-1-a",
        json!({"phase": "Draining", "progress": {"percent": 60}, "blockedBy": blocker()}),
    );
    watch.until("edge-1-a   60%  Draining: waiting to evict pod default/web-1");
    block(
        &stage,
        "Uncovered",
        "VSphereMachineTemplate/x spec.template: \"A\" -> \"B\" (no updater)",
    );
    watch.until(
        "KubeadmControlPlane/edge-1: blocked (Uncovered): VSphereMachineTemplate/x spec.template",
    );
    let conditions = json!({"conditions": [{"type": "Blocked", "status": "False", "reason": "NotBlocked",
        "message": "", "lastTransitionTime": "2026-03-02T08:00:00Z"}]});
    stage.status(UPDATE_GROUP, "kubeadmcontrolplane-edge-1", conditions);
    watch.until("KubeadmControlPlane/edge-1: continuing");
    stage.updated("edge-1-a");
    watch.until("Updated: same machine");
    for name in &MACHINES[1..3] {
        stage.update(name, json!({"phase": "Pending"}));
        stage.updated(name);
    }
    stage.settle(CONTROL_PLANE, "edge-1", 3);
    watch.until("KubeadmControlPlane/edge-1: 3 machines run v1.35.0");
    let ended = watch.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stdout.contains('\x1b') && ended.stderr.is_empty(), "{ended:?}");
}

#[test]
fn json_lines_carry_each_change_and_the_end() {
    let stage = Stage::new().with_cluster();
    let ended = stage.run(&["watch", "-o", "json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = ended.json_lines();
    let count = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!((count("group"), count("machine"), count("end")), (2, 4, 1), "{ended:?}");
    let end = lines.last().unwrap();
    assert_eq!(end["outcome"], "done");
    assert_eq!((&end["machines"], &end["done"]), (&json!(4), &json!(4)));
    let machine = lines.iter().find(|line| line["name"] == "edge-1-a").unwrap();
    assert_eq!(machine["owner"], "KubeadmControlPlane/edge-1");
    assert_eq!(machine["done"], true);
}

#[test]
fn an_api_server_that_restarts_does_not_end_the_watch() {
    let mut stage = Stage::new().with_cluster();
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    let mut watch = stage.start(&["watch", "machine/edge-1-b"]);
    watch.until("Waiting: other machines go first");
    stage.restart();
    stage.update("edge-1-b", json!({"phase": "Upgrading"}));
    watch.until("Upgrading");
    stage.updated("edge-1-b");
    watch.until("Machine/edge-1-b: 1 machine runs v1.35.0");
    assert_eq!(watch.end().code, Some(0));
}

#[test]
fn a_timeout_ends_the_watch_with_its_own_code() {
    let stage = Stage::new().with_cluster();
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    let ended = stage.run(&["watch", "cluster/edge-1", "--timeout", "1s"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.stderr.contains("1 of 4 machines have finished after 1s"), "{ended:?}");
}

#[test]
fn a_final_failure_ends_the_watch_and_names_a_remedy() {
    let stage = Stage::new().with_cluster();
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    stage.update("edge-1-a", json!({"phase": "Upgrading"}));
    let mut watch = stage.start(&["watch", "kcp/edge-1"]);
    watch.until("Upgrading");
    stage.status(
        NODE_UPDATE,
        "edge-1-a-1",
        json!({"phase": "Failed", "failureReason": "HostStepFailed",
        "failureMessage": "step kubeadm-upgrade: no space left"}),
    );
    watch.until("Failed: step kubeadm-upgrade: no space left");
    block(&stage, "Failed", "the update of edge-1-a failed, and it is not available");
    let ended = watch.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("edge-1-a: failed (HostStepFailed): step kubeadm-upgrade"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("`refit retry machine/edge-1-a`"), "{ended:?}");
}

#[test]
fn a_deleted_machine_is_reported_as_gone() {
    let stage = Stage::new().with_cluster();
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    let mut watch = stage.start(&["watch", "kcp/edge-1"]);
    watch.until("edge-1-c");
    stage.delete(crate::stage::MACHINE, "edge-1-c");
    watch.until("edge-1-c  100%  Gone");
}
