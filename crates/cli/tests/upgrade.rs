//! `refit upgrade` against an API over TCP.

use serde_json::{Value, json};

use crate::stage::{
    CLUSTER, CONTROL_PLANE, DEPLOYMENT, Ended, MACHINES, NEW, OLD, Stage, UPGRADE_TASK,
};

fn version(stage: &Stage, kind: &str, name: &str) -> String {
    let object = stage.get(kind, name);
    let pointer = match kind {
        CONTROL_PLANE => "/spec/version",
        _ => "/spec/template/spec/version",
    };
    refit_kinds::json::text(&object, pointer).to_owned()
}

/// The UpgradeTask that a command has named first on a line.
fn task_of(stage: &Stage, ended: &Ended) -> Value {
    let line = ended.stdout.lines().find(|line| line.starts_with("UpgradeTask/"));
    let name = line.and_then(|line| line.strip_prefix("UpgradeTask/")?.split_once(':'));
    stage.get(UPGRADE_TASK, name.unwrap_or_else(|| panic!("{ended:?}")).0)
}

#[test]
fn the_upgrade_of_a_cluster_is_left_to_a_task() {
    let stage = Stage::new().with_cluster().with_managers();
    let first = stage.run(&["upgrade", "cluster/edge-1", "--to", NEW]);
    assert_eq!(first.code, Some(0), "{first:?}");
    let hint = "`refit watch Cluster/edge-1` shows the progress\n";
    assert!(first.stdout.ends_with(hint), "{first:?}");
    let task = task_of(&stage, &first);
    let wanted = json!({
        "clusterRef": {"name": "edge-1"}, "version": NEW, "via": "Spec", "stage": "Ongoing",
        "onAbort": "RollBack", "rollBack": false,
    });
    assert_eq!(task["spec"], wanted);
    assert_eq!(version(&stage, CONTROL_PLANE, "edge-1"), OLD, "the task sets it");

    // A second run writes nothing, also while a machine is being updated; with --watch it waits for all machines.
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    stage.update("edge-1-a", json!({"phase": "Upgrading", "progress": {"percent": 40}}));
    let before = stage.server().revision();
    let mut again = stage.start(&["upgrade", "cluster/edge-1", "--to", NEW, "--watch"]);
    again.until("works on it already");
    again.until("edge-1-a      40%  Upgrading");
    assert_eq!(stage.server().revision(), before);
    stage.updated("edge-1-a");
    for name in &MACHINES[1..] {
        stage.update(name, json!({"phase": "Draining"}));
        stage.updated(name);
    }
    stage.settle(CONTROL_PLANE, "edge-1", 3);
    stage.patch(DEPLOYMENT, "edge-1-md", json!({"spec": {"template": {"spec": {"version": NEW}}}}));
    stage.settle(DEPLOYMENT, "edge-1-md", 1);
    again.until("Cluster/edge-1: 4 machines run v1.35.0");
    assert_eq!(again.end().code, Some(0));

    let status = json!({"phase": "Complete"});
    stage.status(UPGRADE_TASK, task["metadata"]["name"].as_str().unwrap(), status);
    let done = stage.run(&["upgrade", "cluster/edge-1", "--to", NEW]);
    assert!(done.stdout.starts_with("Cluster/edge-1 already requests v1.35.0"), "{done:?}");
}

#[test]
fn a_refused_upgrade_writes_nothing() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let table = [
        ("kcp/edge-1", "v1.36.0", "`refit upgrade cluster/edge-1 --to v1.36.0` takes them"),
        ("cluster/edge-1", "v1.33.0", "does not downgrade"),
        ("kcp/edge-1", "v1.33.0", "does not downgrade"),
        ("md/edge-1-md", NEW, "the control plane goes first"),
        ("machine/edge-1-a", NEW, "gets its version from its owner"),
    ];
    for (target, to, words) in table {
        let ended = stage.run(&["upgrade", target, "--to", to]);
        assert_eq!(ended.code, Some(4), "{target}: {ended:?}");
        assert!(ended.stderr.contains(words), "{target}: {ended:?}");
        assert_eq!(ended.stdout, "", "{target}");
    }
    let ended = stage.run(&["upgrade", "kcp/none", "--to", NEW]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("KubeadmControlPlane/none does not exist in namespace default"));
    let ended = stage.run(&["upgrade", "kcp/edge-1", "--to", "1.35"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let ended = stage.run(&["upgrade", "kcp/edge-1", "--to", NEW, "--hops", NEW]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--hops is for a whole cluster"), "{ended:?}");
    assert_eq!(stage.server().revision(), before);
}

#[test]
fn an_upgrade_by_a_task_is_requested_once_and_waits_for_nothing() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let upgrade = |more: &[&str]| {
        let words = ["upgrade", "cluster/edge-1", "--to", "v1.36.1"];
        stage.run(&[&words[..], more].concat())
    };
    let rehearsed = upgrade(&["--dry-run"]);
    assert_eq!(rehearsed.code, Some(0), "{rehearsed:?}");
    assert!(rehearsed.stdout.contains("dry run: nothing was written"), "{rehearsed:?}");
    let unknown = "no Deployment of Cluster API (label cluster.x-k8s.io/provider) shows";
    assert!(rehearsed.stdout.contains(unknown), "{rehearsed:?}");
    assert_eq!(stage.server().revision(), before);

    let first = upgrade(&["--hops", "v1.35.2"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    let task = task_of(&stage, &first);
    let name = task["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("edge-1-v1.36.1-"), "{first:?}");
    assert_eq!(
        task["spec"],
        json!({
            "clusterRef": {"name": "edge-1"}, "version": "v1.36.1", "hops": ["v1.35.2"],
            "via": "Machines", "stage": "Ongoing",
            "onAbort": "RollBack", "rollBack": false,
        })
    );
    let again = upgrade(&["--hops", "v1.35.2"]);
    let at_work = format!("UpgradeTask/{name} works on it already");
    assert!(again.stdout.starts_with(&at_work), "{again:?}");
    let group =
        stage.run(&["upgrade", "md/edge-1-md", "--to", NEW, "--via", "machines", "-o", "json"]);
    let line: serde_json::Value = serde_json::from_str(&group.stdout).unwrap();
    let task = stage.get(UPGRADE_TASK, line["task"].as_str().unwrap());
    assert_eq!(task["spec"]["ownerRef"]["name"], "edge-1-md");
}

#[test]
fn without_calls_from_cluster_api_nothing_is_written() {
    let stage = Stage::new().with_cluster();
    let in_place = |value: Value| json!({"metadata": {"labels": {"refit.dev/in-place": value}}});
    let disabled =
        |value: Value| json!({"metadata": {"annotations": {"refit.dev/in-place": value}}});
    let refused = |words: &str| {
        let before = stage.server().revision();
        for target in ["cluster/edge-1", "kcp/edge-1"] {
            let ended = stage.run(&["upgrade", target, "--to", NEW]);
            assert_eq!(ended.code, Some(4), "{ended:?}");
            assert!(ended.stderr.contains(words), "{ended:?}");
            assert!(ended.stderr.contains("Cluster API would replace the machines"), "{ended:?}");
        }
        assert_eq!(stage.server().revision(), before);
    };
    stage.patch("v1/Namespace", "default", in_place(Value::Null));
    refused("kubectl label namespace default refit.dev/in-place=enabled");
    stage.patch("v1/Namespace", "default", in_place("enabled".into()));
    stage.patch(CLUSTER, "edge-1", disabled("Disabled".into()));
    refused("refit.dev/in-place: Disabled");
}

#[test]
fn a_task_upgrades_what_cluster_api_would_replace() {
    let stage = Stage::new().with_cluster().with_managers();
    let by_task = |target: &str, words: &str| {
        let ended = stage.run(&["upgrade", target, "--to", NEW]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let why = ended.stdout.lines().next().unwrap();
        assert!(why.starts_with("Cluster API would replace machines because "), "{ended:?}");
        assert!(why.contains(words), "{ended:?}");
        let task = task_of(&stage, &ended);
        let name = task["metadata"]["name"].as_str().unwrap();
        let rest = format!(": UpgradeTask/{name} works through the machines instead");
        assert!(why.ends_with(&rest), "{ended:?}");
        assert_eq!(task["spec"]["via"], "Machines");
        assert_eq!(task["spec"]["clusterRef"]["name"], "edge-1");
    };
    let surge = json!({"spec": {"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}});
    stage.patch(DEPLOYMENT, "edge-1-md", surge);
    by_task("cluster/edge-1", "maxSurge");
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"replicas": 1, "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}}}));
    by_task("kcp/edge-1", "1 replica(s)");
    stage.delete("runtime.cluster.x-k8s.io/v1beta2/ExtensionConfig", "refit");
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"replicas": 3}}));
    let again = stage.run(&["upgrade", "kcp/edge-1", "--to", NEW]);
    assert!(again.stdout.contains("works on it already"), "{again:?}");
    assert_eq!(version(&stage, CONTROL_PLANE, "edge-1"), OLD, "the task sets it");
}

#[test]
fn a_dry_run_is_checked_by_the_api_server_and_writes_nothing() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let ended = stage.run(&["upgrade", "kcp/edge-1", "--to", NEW, "--dry-run", "-o", "json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = ended.json_lines();
    assert_eq!(
        lines,
        [
            json!({"type": "written", "object": "KubeadmControlPlane/edge-1", "field": "spec.version",
            "from": OLD, "to": NEW, "dryRun": true})
        ]
    );
    let ended = stage.run(&["upgrade", "cluster/edge-1", "--to", NEW, "--dry-run", "-o", "json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let line = &ended.json_lines()[0];
    assert_eq!((&line["type"], &line["dryRun"]), (&json!("task"), &json!(true)), "{line}");
    assert_eq!(stage.server().revision(), before);
}

#[test]
fn a_topology_is_upgraded_by_the_task_of_its_cluster() {
    let stage = Stage::new().with_cluster().with_managers();
    stage.patch(
        CLUSTER,
        "edge-1",
        json!({"spec": {"topology": {"classRef": {"name": "c"}, "version": OLD}}}),
    );
    let owned = json!({"metadata": {"labels": {"topology.cluster.x-k8s.io/owned": ""}}});
    stage.patch(CONTROL_PLANE, "edge-1", owned.clone());
    stage.patch(DEPLOYMENT, "edge-1-md", owned);
    let ended = stage.run(&["upgrade", "kcp/edge-1", "--to", NEW]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("upgrade cluster/edge-1 instead"), "{ended:?}");
    let ended = stage.run(&["upgrade", "cl/edge-1", "--to", NEW]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(task_of(&stage, &ended)["spec"]["via"], "Spec");
    let topology = &stage.get(CLUSTER, "edge-1")["spec"]["topology"];
    assert_eq!(topology["version"], OLD, "the task sets it");
}

#[test]
fn an_upgrade_that_is_under_way_is_named() {
    let stage = Stage::new().with_cluster();
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    stage.update("edge-1-a", json!({"phase": "Draining"}));
    let ended = stage.run(&["upgrade", "kcp/edge-1", "--to", "v1.35.1"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("edge-1-a is Draining"), "{ended:?}");
}

#[test]
fn the_manager_that_applied_the_version_is_named() {
    let stage = Stage::new().with_cluster();
    stage.apply(CONTROL_PLANE, "edge-1", "gitops", json!({"spec": {"version": OLD}}));
    let ended = stage.run(&["upgrade", "kcp/edge-1", "--to", NEW]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains("KubeadmControlPlane/edge-1 spec.version was applied by gitops"),
        "{ended:?}"
    );
}
