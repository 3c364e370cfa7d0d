//! `refit upgrade` against an API over TCP.

use crate::stage::{CLUSTER, CONTROL_PLANE, DEPLOYMENT, MACHINES, NEW, OLD, Stage};
use serde_json::json;

fn version(stage: &Stage, kind: &str, name: &str) -> String {
    let object = stage.get(kind, name);
    let pointer = match kind {
        CONTROL_PLANE => "/spec/version",
        DEPLOYMENT => "/spec/template/spec/version",
        _ => "/spec/topology/version",
    };
    refit_kinds::json::text(&object, pointer).to_owned()
}

#[test]
fn the_workers_follow_when_the_control_plane_is_done() {
    let stage = Stage::new().with_cluster();
    let mut upgrade = stage.start(&["upgrade", "cluster/edge-1", "--to", NEW]);
    let line = upgrade.until("spec.version");
    assert_eq!(line, format!("KubeadmControlPlane/edge-1: spec.version {OLD} -> {NEW}"));
    upgrade.until("run the same command to continue");
    for name in &MACHINES[..3] {
        stage.update(name, json!({"phase": "Upgrading", "progress": {"percent": 40}}));
        upgrade.until(&format!("{name}   40%  Upgrading"));
        assert_eq!(version(&stage, DEPLOYMENT, "edge-1-md"), OLD);
        stage.updated(name);
    }
    stage.settle(CONTROL_PLANE, "edge-1", 3);
    let line = upgrade.until("spec.template.spec.version");
    assert_eq!(
        line,
        format!("MachineDeployment/edge-1-md: spec.template.spec.version {OLD} -> {NEW}")
    );
    let ended = upgrade.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with("`refit watch Cluster/edge-1` shows the progress"), "{ended:?}");
    assert_eq!(version(&stage, DEPLOYMENT, "edge-1-md"), NEW);

    // A second run writes nothing; with --watch it waits for the workers.
    let before = stage.server().revision();
    let mut again = stage.start(&["upgrade", "cluster/edge-1", "--to", NEW, "--watch"]);
    again.until("already requests v1.35.0");
    again.until("Waiting: other machines go first");
    assert_eq!(stage.server().revision(), before);
    stage.update("edge-1-md-a", json!({"phase": "Draining"}));
    stage.updated("edge-1-md-a");
    stage.settle(DEPLOYMENT, "edge-1-md", 1);
    again.until("Cluster/edge-1: 4 machines run v1.35.0");
    assert_eq!(again.end().code, Some(0));
}

#[test]
fn a_refused_upgrade_writes_nothing() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let table = [
        ("kcp/edge-1", "v1.36.0", "upgrade to v1.35.0 first"),
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
    assert_eq!(stage.server().revision(), before);
}

#[test]
fn an_upgrade_by_a_task_is_requested_once_and_waits_for_nothing() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let upgrade = |more: &[&str]| {
        let words = ["upgrade", "cluster/edge-1", "--to", "v1.36.1", "--via", "machines"];
        stage.run(&[&words[..], more].concat())
    };
    let rehearsed = upgrade(&["--dry-run"]);
    assert_eq!(rehearsed.code, Some(0), "{rehearsed:?}");
    assert!(rehearsed.stdout.contains("dry run: nothing was written"), "{rehearsed:?}");
    assert_eq!(stage.server().revision(), before);

    let first = upgrade(&["--hops", "v1.35.2"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    let name = first.stdout.split_once(':').unwrap().0;
    assert!(name.starts_with("UpgradeTask/edge-1-v1.36.1-"), "{first:?}");
    let task = stage.get("refit.dev/v1alpha1/UpgradeTask", name.trim_start_matches("UpgradeTask/"));
    assert_eq!(
        task["spec"],
        json!({
            "clusterRef": {"name": "edge-1"}, "version": "v1.36.1", "hops": ["v1.35.2"],
            "via": "Machines", "stage": "Ongoing",
        })
    );
    let again = upgrade(&["--hops", "v1.35.2"]);
    assert!(again.stdout.starts_with(&format!("{name} works on it already")), "{again:?}");
    let group =
        stage.run(&["upgrade", "md/edge-1-md", "--to", NEW, "--via", "machines", "-o", "json"]);
    let line: serde_json::Value = serde_json::from_str(&group.stdout).unwrap();
    let task = stage.get("refit.dev/v1alpha1/UpgradeTask", line["task"].as_str().unwrap());
    assert_eq!(task["spec"]["ownerRef"]["name"], "edge-1-md");
}

#[test]
fn without_calls_from_cluster_api_nothing_is_written() {
    let stage = Stage::new().with_cluster();
    let refused = |words: &str| {
        let before = stage.server().revision();
        let ended = stage.run(&["upgrade", "cluster/edge-1", "--to", NEW]);
        assert_eq!(ended.code, Some(4), "{ended:?}");
        assert!(ended.stderr.contains(words), "{ended:?}");
        assert!(ended.stderr.contains("Cluster API would replace the machines"), "{ended:?}");
        assert_eq!(stage.server().revision(), before);
    };
    stage.patch(
        "v1/Namespace",
        "default",
        json!({"metadata": {"labels": {"refit.dev/in-place": null}}}),
    );
    refused("kubectl label namespace default refit.dev/in-place=enabled");
    stage.patch(
        "v1/Namespace",
        "default",
        json!({"metadata": {"labels": {"refit.dev/in-place": "enabled"}}}),
    );
    stage.patch(
        CLUSTER,
        "edge-1",
        json!({"metadata": {"annotations": {"refit.dev/in-place": "Disabled"}}}),
    );
    refused("refit.dev/in-place: Disabled");
    stage.patch(
        CLUSTER,
        "edge-1",
        json!({"metadata": {"annotations": {"refit.dev/in-place": null}}}),
    );
    let surge = json!({"spec": {"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}});
    stage.patch(DEPLOYMENT, "edge-1-md", surge);
    refused("maxSurge");
    stage.delete("runtime.cluster.x-k8s.io/v1beta2/ExtensionConfig", "refit");
    refused("there is no ExtensionConfig refit");
}

#[test]
fn a_dry_run_is_checked_by_the_api_server_and_writes_nothing() {
    let stage = Stage::new().with_cluster();
    let before = stage.server().revision();
    let ended = stage.run(&["upgrade", "cluster/edge-1", "--to", NEW, "--dry-run", "-o", "json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = ended.json_lines();
    assert_eq!(
        lines,
        [
            json!({"type": "written", "object": "KubeadmControlPlane/edge-1", "field": "spec.version",
            "from": OLD, "to": NEW, "dryRun": true})
        ]
    );
    assert_eq!(stage.server().revision(), before);
}

#[test]
fn a_topology_is_changed_at_its_cluster() {
    let stage = Stage::new().with_cluster();
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
    assert!(ended.stderr.contains("upgrade cluster/NAME instead"), "{ended:?}");
    let ended = stage.run(&["upgrade", "cl/edge-1", "--to", NEW]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(version(&stage, CLUSTER, "edge-1"), NEW);
    assert_eq!(version(&stage, CONTROL_PLANE, "edge-1"), OLD, "that is the topology's business");
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
