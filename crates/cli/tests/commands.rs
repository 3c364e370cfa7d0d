//! Behaviour that all commands share, and the short commands: `abort`, `retry`, `completions`,
//! `man`.

use std::{os::unix::fs::PermissionsExt as _, process::Command};

use crate::stage::{
    CONTROL_PLANE, DEPLOYMENT, Ended, MACHINE, NEW, NODE_UPDATE, OLD, Stage, refit,
};
use serde_json::json;

fn run(command: &mut Command) -> Ended {
    Ended::of(command.output().expect("the binary runs"))
}

#[test]
fn abort_stops_every_unfinished_update_and_reports_it() {
    let stage = Stage::new().with_cluster();
    stage.update("edge-1-a", json!({"phase": "Staging"}));
    stage.update("edge-1-b", json!({"phase": "Draining"}));
    stage.update("edge-1-c", json!({"phase": "Succeeded"}));
    let before = stage.server().revision();
    let rehearsed = stage.run(&["abort", "cluster/edge-1", "--dry-run"]);
    assert!(
        rehearsed.stdout.contains("edge-1-a-1 (Staging): stop would be requested"),
        "{rehearsed:?}"
    );
    assert_eq!(stage.server().revision(), before);
    let ended = stage.run(&["abort", "cluster/edge-1"]);
    assert_eq!(ended.code, Some(3), "one goes on: {ended:?}");
    assert!(
        ended
            .stdout
            .contains("edge-1-a-1 (Staging): stop requested; before the point of no return")
    );
    assert!(
        ended.stdout.contains("edge-1-b-1 (Draining): too late to stop; the host is being changed")
    );
    assert!(!ended.stdout.contains("edge-1-c-1"), "{ended:?}");
    for name in ["edge-1-a-1", "edge-1-b-1"] {
        assert_eq!(stage.get(NODE_UPDATE, name)["spec"]["stage"], "Abort");
    }
    let before = stage.server().revision();
    let again = stage.run(&["abort", "machine/edge-1-a", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(rows[0]["action"], "already", "{again:?}");
    assert_eq!(stage.server().revision(), before, "nothing is written twice");
}

#[test]
fn abort_with_revert_waits_for_the_end_and_sets_the_version_back() {
    let stage = Stage::new().with_cluster();
    stage.patch(DEPLOYMENT, "edge-1-md", json!({"spec": {"template": {"spec": {"version": NEW}}}}));
    stage.update("edge-1-md-a", json!({"phase": "Draining", "role": "Worker"}));
    let rehearsed = stage.run(&["abort", "md/edge-1-md", "--revert", "--dry-run"]);
    assert!(rehearsed.stdout.contains("edge-1-md-a-1 (Draining): stop would be requested"));
    let mut running = stage.start(&["abort", "md/edge-1-md", "--revert"]);
    running.until("stop requested");
    assert_eq!(stage.get(DEPLOYMENT, "edge-1-md")["spec"]["template"]["spec"]["version"], NEW);
    let stopped = json!({"phase": "Stopped", "failureReason": "Aborted"});
    stage.status(NODE_UPDATE, "edge-1-md-a-1", stopped);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let line = "MachineDeployment/edge-1-md: spec.template.spec.version v1.35.0 -> v1.34.2";
    assert!(ended.stdout.contains(line), "{ended:?}");
    assert_eq!(stage.get(DEPLOYMENT, "edge-1-md")["spec"]["template"]["spec"]["version"], OLD);
}

#[test]
fn revert_keeps_a_version_that_a_machine_runs() {
    let stage = Stage::new().with_cluster();
    stage.patch(CONTROL_PLANE, "edge-1", json!({"spec": {"version": NEW}}));
    stage.update("edge-1-a", json!({"phase": "Succeeded"}));
    stage.updated("edge-1-a");
    stage.update("edge-1-b", json!({"phase": "Stopped", "failureReason": "Aborted"}));
    let ended = stage.run(&["abort", "kcp/edge-1", "--revert", "-o", "json"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let rows: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(rows[0]["action"], "kept", "{ended:?}");
    let message = rows[0]["message"].as_str().unwrap();
    assert!(message.contains("some machines of KubeadmControlPlane/edge-1 run v1.35.0 already"));
    assert_eq!(stage.get(CONTROL_PLANE, "edge-1")["spec"]["version"], NEW);
}

#[test]
fn an_invalid_log_filter_is_reported_first() {
    let ended = run(refit(&["man", "--help"]).env("REFIT_LOG", "refit=loud"));
    assert_eq!(ended.code, Some(0), "help needs no logs: {ended:?}");
    let ended = run(refit(&["completions", "bash"]).env("REFIT_LOG", "refit=loud"));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.starts_with("error: invalid log filter \"refit=loud\": "), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

#[test]
fn retry_annotates_the_machines_with_a_failed_update() {
    let stage = Stage::new().with_cluster();
    stage.update("edge-1-a", json!({"phase": "Failed", "failureReason": "HostStepFailed"}));
    stage.update("edge-1-b", json!({"phase": "Stopped", "failureReason": "Aborted"}));
    let ended = stage.run(&["retry", "kcp/edge-1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("edge-1-a: will be retried: edge-1-a-1 failed (HostStepFailed)"));
    assert!(ended.stdout.contains("edge-1-c: nothing to retry: it was never updated"), "{ended:?}");
    for name in ["edge-1-a", "edge-1-b"] {
        let annotations = &stage.get(MACHINE, name)["metadata"]["annotations"];
        assert_eq!(annotations["refit.dev/retry"], format!("{name}-1"));
    }
    let before = stage.server().revision();
    assert_eq!(stage.run(&["retry", "kcp/edge-1"]).code, Some(0));
    assert_eq!(stage.server().revision(), before, "nothing is written twice");
    let ended = stage.run(&["retry", "machine/edge-1-c"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
}

#[test]
fn without_a_cluster_the_error_names_a_remedy() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let none = run(refit(&["watch"]).env("HOME", directory.path()));
    assert_eq!(none.code, Some(1));
    assert!(
        none.stderr.contains("--kubeconfig FILE") && none.stderr.contains("`refit sandbox`"),
        "{none:?}"
    );
    let missing = run(refit(&["watch"]).env("KUBECONFIG", directory.path().join("none")));
    assert!(missing.stderr.contains("which does not exist"), "{missing:?}");
    let named = run(&mut refit(&["watch", "--kubeconfig", "/none"]));
    assert!(named.stderr.contains("kubeconfig /none does not exist"), "{named:?}");
}

#[test]
fn an_unknown_context_lists_the_known_ones() {
    let stage = Stage::new();
    let ended = stage.run(&["watch", "--context", "other"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("no context \"other\"; contexts: stage"), "{ended:?}");
}

#[test]
fn several_kubeconfigs_are_read_as_kubectl_reads_them() {
    let stage = Stage::new();
    let missing = stage.path("missing");
    let paths = std::env::join_paths([missing, stage.path("kubeconfig")]).unwrap();
    let mut command = stage.command(&["watch", "-q"]);
    let ended = run(command.env("KUBECONFIG", paths));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout, "all groups: no machines\n");
}

#[test]
fn a_cluster_without_refit_or_cluster_api_is_reported() {
    let bare = Stage::bare();
    let ended = bare.run(&["watch"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("does not serve machines.cluster.x-k8s.io"), "{ended:?}");
    let crds = refit_cluster_api::crds();
    for crd in crds {
        let crd = serde_json::to_value(crd).unwrap();
        bare.create("apiextensions.k8s.io/v1/CustomResourceDefinition", crd);
    }
    let ended = bare.run(&["watch"]);
    assert!(ended.stderr.contains("Install it with `refit install`"), "{ended:?}");
}

#[test]
fn credentials_from_a_plugin_are_used() {
    let stage = Stage::new();
    let token = stage.path("token");
    let plugin = stage.path("plugin");
    let script = format!(
        "#!/bin/sh\ntouch {}\necho '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
         \"status\":{{\"token\":\"t\"}}}}'\n",
        token.display()
    );
    std::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = stage.path("kubeconfig");
    let mut kubeconfig: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    kubeconfig["users"][0]["user"] = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never",
    }});
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let ended = stage.run(&["watch"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(token.exists(), "the plugin was asked");
}

#[test]
fn interrupting_a_watch_ends_it_as_shells_expect() {
    let stage = Stage::new().with_cluster();
    stage.update("edge-1-a", json!({"phase": "Draining"}));
    let mut watch = stage.start(&["watch"]);
    watch.until("Draining");
    let kill = Command::new("kill").args(["-INT", &watch.id().to_string()]).status();
    assert!(kill.unwrap().success());
    assert_eq!(watch.end().code, Some(130));
}

#[test]
fn the_usage_shows_the_kubectl_plugin() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let plugin = directory.path().join("kubectl-refit");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_refit"), &plugin).unwrap();
    let help = run(Command::new(&plugin).args(["watch", "--help"]));
    assert!(help.stdout.contains("Usage: kubectl refit watch"), "{help:?}");
    assert!(help.stdout.contains("\n  kubectl refit watch cluster/edge-1"), "{help:?}");
    let wrong = run(Command::new(&plugin).args(["watch", "nothing"]));
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("expected cluster/NAME"), "{wrong:?}");
}

#[test]
fn completions_and_man_pages_are_written() {
    let bash = run(&mut refit(&["completions", "bash"]));
    assert_eq!(bash.code, Some(0));
    assert!(bash.stdout.contains("_refit()") && bash.stdout.contains("upgrade"));
    let page = run(&mut refit(&["man"]));
    assert!(page.stdout.contains(".TH refit 1"), "{page:?}");
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = directory.path().join("man1");
    let pages = run(&mut refit(&["man", "--dir", dir.to_str().unwrap()]));
    assert_eq!(pages.code, Some(0), "{pages:?}");
    assert!(dir.join("refit-upgrade.1").exists() && dir.join("refit.1").exists());
}
