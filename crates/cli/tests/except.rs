//! `refit hold`, `skip` and `release`.

use serde_json::json;

use crate::stage::{DEPLOYMENT, MACHINE, NEW, Stage, UPDATE_GROUP, UPGRADE_TASK};

const WORKER: &str = "edge-1-md-a";

#[test]
fn a_machine_is_held_with_a_reason_and_released() {
    let stage = Stage::new().with_cluster();
    let held = stage.run(&["hold", WORKER, "--reason", "its disk is replaced"]);
    assert_eq!((held.code, held.stdout.as_str()), (Some(0), "edge-1-md-a: held\n"), "{held:?}");
    let annotations = &stage.get(MACHINE, WORKER)["metadata"]["annotations"];
    assert_eq!(annotations["refit.dev/hold"], "its disk is replaced");
    let again = stage.run(&["hold", WORKER, "--reason", "its disk is replaced", "-o", "json"]);
    assert!(again.stdout.contains(r#""action": "already""#), "{again:?}");
    let released = stage.run(&["release", "machine/edge-1-md-a"]);
    assert_eq!(released.stdout, "edge-1-md-a: may begin\n", "{released:?}");
    let annotations = &stage.get(MACHINE, WORKER)["metadata"]["annotations"];
    assert!(annotations["refit.dev/hold"].is_null(), "{annotations}");
    assert_eq!(stage.run(&["release", WORKER]).code, Some(3));
}

#[test]
fn a_machine_is_skipped_in_the_present_rollout() {
    let stage = Stage::new().with_cluster();
    assert_eq!(stage.run(&["pause", "md/edge-1-md"]).code, Some(0));
    let name = "machinedeployment-edge-1-md";
    let rollout = json!({"number": 4, "origin": "Hook", "target": "v1.30.0 (old)",
        "since": "2026-03-02T08:00:00Z"});
    stage.status(UPDATE_GROUP, name, json!({"rollout": rollout}));
    let before = stage.server().revision();
    let rehearsed = stage.run(&["skip", WORKER, "--reason", "fair", "--dry-run"]);
    assert!(rehearsed.stdout.contains("skipped in rollout 5 (dry run"), "{rehearsed:?}");
    assert_eq!(stage.server().revision(), before);
    let skipped = stage.run(&["skip", WORKER, "--reason", "fair"]);
    assert_eq!(skipped.stdout, "edge-1-md-a: skipped in rollout 5\n", "{skipped:?}");
    let annotations = &stage.get(MACHINE, WORKER)["metadata"]["annotations"];
    assert_eq!(annotations["refit.dev/skip"], "fair");
    assert_eq!(annotations["refit.dev/skip-rollout"], "5");
}

#[test]
fn a_release_removes_the_machine_from_the_exceptions_of_its_group() {
    let stage = Stage::new().with_cluster();
    assert_eq!(stage.run(&["pause", "md/edge-1-md"]).code, Some(0));
    let name = "machinedeployment-edge-1-md";
    let listed = |machine| json!({"machine": machine, "rule": "Hold", "reason": "r"});
    let exceptions = [listed(WORKER), listed("other")];
    stage.patch(UPDATE_GROUP, name, json!({"spec": {"pacing": {"exceptions": exceptions}}}));
    let released = stage.run(&["release", WORKER]);
    assert_eq!(released.stdout, "edge-1-md-a: may begin\n", "{released:?}");
    let group = stage.get(UPDATE_GROUP, name);
    assert_eq!(group["spec"]["pacing"]["exceptions"], json!([listed("other")]));
}

#[test]
fn a_machine_that_cluster_api_has_chosen_is_neither_held_nor_skipped() {
    let stage = Stage::new().with_cluster();
    let mark = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
    stage.patch(MACHINE, WORKER, json!({"metadata": {"annotations": {mark: ""}}}));
    for verb in ["hold", "skip"] {
        let refused = stage.run(&[verb, WORKER, "--reason", "late"]);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        for way in ["refit retry", "refit adopt", "--revert"] {
            assert!(refused.stdout.contains(way), "{refused:?}");
        }
        let annotations = &stage.get(MACHINE, WORKER)["metadata"]["annotations"];
        assert!(annotations[format!("refit.dev/{verb}")].is_null(), "{annotations}");
    }
}

#[test]
fn a_reason_and_a_machine_are_required() {
    let stage = Stage::new().with_cluster();
    let table = [
        (&["hold", WORKER][..], "--reason"),
        (&["hold", WORKER, "--reason", " "], "a reason is required"),
        (&["skip", "md/edge-1-md", "--reason", "x"], "is not a Machine"),
    ];
    for (args, wanted) in table {
        let ended = stage.run(args);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(wanted), "{ended:?}");
    }
    let missing = stage.run(&["hold", "other", "--reason", "x"]);
    assert!(missing.stderr.contains("Machine/other does not exist"), "{missing:?}");
}

#[test]
fn release_lets_cluster_api_go_on_with_an_owner_once_replacement_is_accepted() {
    let stage = Stage::new().with_cluster();
    let release = |more: &[&str]| stage.run(&[&["release", "md/edge-1-md"], more].concat());
    let nothing = release(&["--accept-replacement"]);
    assert_eq!(
        (nothing.code, nothing.stdout.as_str()),
        (Some(3), "MachineDeployment/edge-1-md: not paused by Refit\n")
    );

    stage.create(
        UPGRADE_TASK,
        json!({
            "metadata": {"name": "old"},
            "spec": {
                "clusterRef": {"name": "edge-1"}, "version": NEW, "via": "Machines", "stage": "Ongoing",
                "ownerRef": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
                    "name": "edge-1-md"},
            },
            "status": {"phase": "Ongoing"},
        }),
    );
    stage.left_paused(DEPLOYMENT, "edge-1-md", "old");
    stage.patch(DEPLOYMENT, "edge-1-md", json!({"spec": {"template": {"spec": {"version": NEW}}}}));
    let unfinished = release(&["--accept-replacement"]);
    assert_eq!(unfinished.code, Some(3), "{unfinished:?}");
    assert!(unfinished.stdout.contains("kubectl patch upgradetask old"), "{unfinished:?}");

    stage.status(UPGRADE_TASK, "old", json!({"phase": "Aborted"}));
    let before = stage.server().revision();
    let refused = release(&["-o", "json"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let rows: serde_json::Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(rows[0]["action"], "refused");
    let message = rows[0]["message"].as_str().unwrap();
    assert!(message.starts_with("Cluster API would replace edge-1-md-a, and others"), "{message}");
    let rehearsed = release(&["--accept-replacement", "--dry-run"]);
    assert!(rehearsed.stdout.contains("(dry run: nothing was written)"), "{rehearsed:?}");
    assert_eq!(stage.server().revision(), before);

    let released = release(&["--accept-replacement"]);
    assert_eq!(released.code, Some(0), "{released:?}");
    let annotations = &stage.get(DEPLOYMENT, "edge-1-md")["metadata"]["annotations"];
    for key in ["cluster.x-k8s.io/paused", "refit.dev/task"] {
        assert!(annotations[key].is_null(), "{annotations}");
    }
}

#[test]
fn release_of_a_machine_accepts_no_replacement() {
    let stage = Stage::new().with_cluster();
    let ended = stage.run(&["release", WORKER, "--accept-replacement"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("replaces no machine"), "{ended:?}");
}
