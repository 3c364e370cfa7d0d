//! `refit schedule`, `upgrades`, `history` and `cancel`.

use serde_json::{Value, json};

use crate::stage::{CLUSTER_UPGRADE, DEPLOYMENT, NEW, OLD, Stage, UPDATE_GROUP};

const AT: &str = "2999-12-05T22:00:00Z";

fn scheduled() -> Stage {
    let stage = Stage::new().with_cluster();
    let ended = stage.run(&["schedule", "edge-1", "--to", NEW, "--at", AT, "--hops", "v1.34.9"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let line = format!("ClusterUpgrade/edge-1: to {NEW} at {AT}, or up to 120 minutes later");
    assert!(ended.stdout.contains(&line), "{ended:?}");
    assert!(ended.stdout.contains("`refit history edge-1`"), "what comes next: {ended:?}");
    stage
}

fn step(name: &str, status: &str, reason: &str, minute: u32) -> Value {
    let at = format!("2026-03-02T08:{minute:02}:00Z");
    let mut step = json!({
        "type": name, "status": status, "reason": reason, "message": format!("{name} waits"),
        "startTime": at, "lastTransitionTime": at,
    });
    if status == "True" {
        step["completeTime"] = json!("2026-03-02T08:30:00Z");
    }
    step
}

/// What the controller would show.
fn show(stage: &Stage, phase: &str, record: Value) {
    let mut record = record;
    record["version"] = json!(NEW);
    record["precedingVersion"] = json!("v1.34.2");
    record["phase"] = json!(phase);
    record["requestedTime"] = json!("2026-03-02T08:00:00Z");
    record["requestedBy"] = json!("jane");
    record["generation"] = json!(1);
    stage.status(
        CLUSTER_UPGRADE,
        "edge-1",
        json!({
            "phase": phase, "observedGeneration": 1, "history": [record],
            "conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "as it is",
                "lastTransitionTime": "2026-03-02T08:00:00Z"}],
        }),
    );
}

#[test]
fn schedule_writes_a_request_and_replaces_an_earlier_one() {
    let stage = scheduled();
    let spec = &stage.get(CLUSTER_UPGRADE, "edge-1")["spec"];
    assert_eq!((&spec["version"], &spec["startAt"]), (&json!(NEW), &json!(AT)));
    assert_eq!((&spec["stage"], &spec["hops"]), (&json!("Ongoing"), &json!(["v1.34.9"])));
    stage.patch(CLUSTER_UPGRADE, "edge-1", json!({"spec": {"stage": "Abort"}}));
    let args = "schedule cluster/edge-1 --to v1.36.0 --at now --within 0 --channel stable --accept-risk A,B";
    let ended = stage.run(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let spec = &stage.get(CLUSTER_UPGRADE, "edge-1")["spec"];
    assert_eq!((&spec["version"], &spec["stage"]), (&json!("v1.36.0"), &json!("Ongoing")));
    assert_eq!((&spec["hops"], &spec["startWithinMinutes"]), (&Value::Null, &json!(0)));
    let graph = (&spec["channel"], &spec["acceptedRisks"]);
    assert_eq!(graph, (&json!("stable"), &json!(["A", "B"])));
}

#[test]
fn schedule_checks_before_it_writes() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["other", "--at", "now"], 1, "other does not exist"),
        (&["edge-1", "--at", "soon"], 1, "invalid value \"soon\" for --at"),
        (&["edge-1", "--at", "2020-01-01T00:00:00Z"], 4, "nothing was written: 2020-01-01"),
        (&["edge-1", "--window", "nightly"], 4, "no window \"nightly\"; no window of its"),
        (&["edge-1"], 2, "--at"),
        (&["md/edge-1-md", "--at", "now"], 2, "only a whole cluster has a schedule"),
    ];
    for (args, code, message) in cases {
        let args: Vec<&str> = ["schedule", "--to", NEW].iter().chain(args).copied().collect();
        let ended = stage.run(&args);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(message), "{ended:?}");
    }
    let lower = stage.run(&["schedule", "edge-1", "--to", "v1.30.0", "--at", "now"]);
    assert_eq!(lower.code, Some(4), "{lower:?}");
    assert!(lower.stderr.contains("nothing was written: "), "{lower:?}");
    assert!(lower.stderr.contains("v1.30.0"), "{lower:?}");
    let rehearsed = stage.run(&["schedule", "edge-1", "--to", NEW, "--at", "now", "--dry-run"]);
    assert!(rehearsed.stdout.contains("(dry run: nothing was written)"), "{rehearsed:?}");
    assert_eq!(stage.server().revision(), before);
}

#[test]
fn schedule_takes_the_next_window_of_a_name() {
    let stage = Stage::new().with_cluster();
    assert_eq!(stage.run(&["pause", "md/edge-1-md"]).code, Some(0));
    let once =
        json!([{"name": "move", "from": "2999-12-05T22:00:00Z", "until": "2999-12-06T00:30:00Z"}]);
    let windows = json!({"once": once});
    let group = "machinedeployment-edge-1-md";
    stage.patch(UPDATE_GROUP, group, json!({"spec": {"pacing": {"windows": windows}}}));
    let args = ["schedule", "edge-1", "--to", NEW, "--window", "move", "-o", "json"];
    let ended = stage.run(&args);
    let shown: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&shown["startAt"], &shown["startWithinMinutes"]), (&json!(AT), &json!(150)));
}

#[test]
fn upgrades_and_history_show_what_becomes_of_a_cluster() {
    let stage = scheduled();
    let waiting = stage.run(&["history", "edge-1"]);
    assert_eq!((waiting.code, &*waiting.stdout), (Some(3), "nothing was begun yet.\n"));
    show(
        &stage,
        "Upgrading",
        json!({
            "startTime": "2026-03-02T08:10:00Z", "task": "edge-1-task",
            "conditions": [
                step("ControlPlaneUpgraded", "False", "StepInProgress", 30),
                step("UpgradeCommenced", "True", "StepDone", 10),
            ],
        }),
    );
    let listed = stage.run(&["upgrades"]);
    let row = listed.stdout.lines().nth(1).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(&words[..5], ["edge-1", NEW, "v1.34.2", "Upgrading", "ControlPlaneUpgraded"]);
    assert!(row.ends_with("as it is"), "{row}");
    let history = stage.run(&["history", "edge-1"]);
    assert_eq!(history.code, Some(0));
    let lines: Vec<&str> = history.stdout.lines().collect();
    assert_eq!(lines[0], format!("{NEW} from v1.34.2: Upgrading"));
    assert_eq!(lines[1], "  requested by jane at 2026-03-02T08:00:00Z");
    assert!(lines[2].ends_with("so far; UpgradeTask edge-1-task"), "{}", lines[2]);
    assert!(
        lines[4].starts_with("  UpgradeCommenced      Done        2026-03-02T08:10:00Z  20m00s")
    );
    assert!(lines[5].ends_with("ControlPlaneUpgraded waits"), "{}", lines[5]);
    let failed = json!({
        "startTime": "2026-03-02T08:10:00Z", "completeTime": "2026-03-02T08:25:00Z",
        "reason": "NotBegunInTime", "message": "it did not begin", "hops": ["v1.34.8", "v1.34.9"],
    });
    show(&stage, "Failed", failed);
    let history = stage.run(&["history", "edge-1"]);
    let heading = format!("{NEW} from v1.34.2: Failed (NotBegunInTime)\n");
    assert!(history.stdout.starts_with(&heading), "{history:?}");
    assert!(history.stdout.contains(&format!("  over v1.34.8, v1.34.9, then {NEW}\n")));
    assert!(history.stdout.contains("took 15m00s\n  it did not begin\n"), "{history:?}");
    let rows: Value =
        serde_json::from_str(&stage.run(&["upgrades", "-A", "-o", "json"]).stdout).unwrap();
    assert_eq!((&rows[0]["cluster"], &rows[0]["phase"]), (&json!("edge-1"), &json!("Failed")));
    assert_eq!(rows[0]["hops"], json!(["v1.34.8", "v1.34.9"]));
    let none = Stage::new().with_cluster();
    assert_eq!(none.run(&["upgrades"]).stdout, "no cluster has a ClusterUpgrade\n");
    let missing = none.run(&["history", "edge-1"]);
    assert_eq!(missing.code, Some(3), "{missing:?}");
    assert!(missing.stderr.contains("`refit schedule edge-1 --to VERSION"), "{missing:?}");
}

#[test]
fn cancel_stops_an_upgrade_once() {
    let stage = scheduled();
    let rehearsed = stage.run(&["cancel", "edge-1", "--dry-run"]);
    assert!(rehearsed.stdout.contains("(dry run: nothing was written)"), "{rehearsed:?}");
    assert_eq!(stage.get(CLUSTER_UPGRADE, "edge-1")["spec"]["stage"], "Ongoing");
    let ended = stage.run(&["cancel", "edge-1"]);
    assert!(ended.stdout.contains("cancelled before it has begun"), "{ended:?}");
    assert_eq!(stage.get(CLUSTER_UPGRADE, "edge-1")["spec"]["stage"], "Abort");
    let again = stage.run(&["cancel", "edge-1", "-o", "json"]);
    let shown: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((again.code, &shown["action"]), (Some(0), &json!("already")));
    stage.patch(CLUSTER_UPGRADE, "edge-1", json!({"spec": {"stage": "Ongoing"}}));
    let generation = stage.get(CLUSTER_UPGRADE, "edge-1")["metadata"]["generation"].clone();
    show(&stage, "Completed", json!({"completeTime": "2026-03-02T08:25:00Z"}));
    stage.status(CLUSTER_UPGRADE, "edge-1", json!({"observedGeneration": generation}));
    let nothing = stage.run(&["cancel", "edge-1"]);
    assert_eq!(nothing.code, Some(3), "{nothing:?}");
    assert!(nothing.stdout.contains("has ended: as it is"), "{nothing:?}");
}

/// An upgrade that is under way, and has brought the worker from v1.34.2 to a version.
fn with_upgraded_worker(to: &str) -> Stage {
    let stage = scheduled();
    show(&stage, "Upgrading", json!({"startTime": "2020-03-02T08:10:00Z", "task": "edge-1-task"}));
    let spec = json!({"version": to});
    stage.patch(DEPLOYMENT, "edge-1-md", json!({"spec": {"template": {"spec": spec}}}));
    let status = json!({"phase": "Succeeded", "role": "Worker", "fromVersion": OLD});
    stage.update_to("edge-1-md-a", to, status);
    stage
}

fn way(stage: &Stage) -> Value {
    let spec = &stage.get(CLUSTER_UPGRADE, "edge-1")["spec"];
    json!([spec["stage"], spec["onAbort"], spec["rollBackWorkers"]])
}

#[test]
fn cancel_finishes_machines_and_changes_how_an_upgrade_stops() {
    let stage = with_upgraded_worker("v1.34.9");
    let ended = stage.run(&["cancel", "edge-1", "--finish"]);
    assert!(
        ended.stdout.contains("machines in progress are finished, and no further"),
        "{ended:?}"
    );
    assert_eq!(way(&stage), json!(["Abort", "Finish", false]));
    let again = stage.run(&["cancel", "edge-1"]);
    assert!(again.stdout.contains("was stopped before"), "{again:?}");
    assert_eq!(way(&stage), json!(["Abort", "Finish", false]), "without flags, it stays");
    let rehearsed = stage.run(&["cancel", "edge-1", "--roll-back-workers", "--dry-run"]);
    let line = "MachineDeployment/edge-1-md: returns to v1.34.2 (dry run: nothing was written)";
    assert!(rehearsed.stdout.contains(line), "{rehearsed:?}");
    assert_eq!(way(&stage), json!(["Abort", "Finish", false]));
    let changed = stage.run(&["cancel", "edge-1", "--roll-back-workers", "-o", "json"]);
    let shown: Value = serde_json::from_str(&changed.stdout).unwrap();
    let workers = json!([{"object": "MachineDeployment/edge-1-md", "to": OLD}]);
    assert_eq!((&shown["action"], &shown["workers"]), (&json!("cancelled"), &workers));
    assert_eq!(way(&stage), json!(["Abort", "RollBack", true]));
    let scheduled = stage.run(&["schedule", "edge-1", "--to", NEW, "--at", AT]);
    assert_eq!((scheduled.code, way(&stage)), (Some(0), json!(["Ongoing", "RollBack", false])));
}

#[test]
fn cancel_refuses_the_return_of_workers_that_cannot_before_it_writes() {
    let stage = with_upgraded_worker(NEW);
    let before = stage.server().revision();
    let refused = stage.run(&["cancel", "edge-1", "--roll-back-workers"]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let why =
        "nothing was written: MachineDeployment edge-1-md would go from v1.35.0 back to v1.34.2";
    assert!(refused.stderr.contains(why), "{refused:?}");
    assert_eq!(stage.server().revision(), before);
}
