//! `refit demo` from the user's side: output, exit codes, refusals.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

const EXAMPLE: &str = include_str!("../../../examples/cluster.yaml");

/// A word that may appear only for an unexpected replacement.
const ALARM: &str = "REPLACED";

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refit"));
    command.arg("demo").args(args);
    if !args.contains(&"--speed") {
        command.args(["--speed", "100000"]);
    }
    command.env_remove("CARGO").env_remove("REFIT_LOG");
    command
}

fn run(args: &[&str]) -> Output {
    demo(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Writes a manifest file for this test run.
fn file(name: &str, content: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("the directory is cargo's own");
    path.display().to_string()
}

/// One control plane machine and one worker with Cluster API's default strategies.
fn small_with_surge() -> String {
    EXAMPLE
        .replace("replicas: 3", "replicas: 1")
        .replace("replicas: 5", "replicas: 1")
        .replace("maxSurge: 0\n        maxUnavailable: 1", "maxSurge: 1")
        .replace("maxSurge: 0", "maxSurge: 1")
}

#[test]
fn piped_each_machine_has_one_line_with_both_versions() {
    let output = run(&["--to", "v1.34.3"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert_eq!(text(&output.stderr), "");
    let both: Vec<&str> = stdout
        .lines()
        .filter(|line| line.contains("v1.34.2") && line.contains("v1.34.3"))
        .collect();
    assert_eq!(both.len(), 8, "{stdout}");
    let heading = stdout.find("\nMACHINE ").unwrap();
    for line in both {
        assert!(line.contains("v1.34.2 -> v1.34.3"), "{line}");
        assert!(line.ends_with("yes"), "{line}");
        assert!(stdout.find(line).unwrap() > heading, "{line}");
    }
    assert!(stdout.contains("8 of 8 machines were updated in place."));
    assert!(!stdout.contains(ALARM) && !stdout.contains('\x1b'), "{stdout}");
}

#[test]
fn json_is_alone_on_stdout_and_lists_surge_replacements() {
    let manifests = file("surge.yaml", &small_with_surge());
    let output = run(&["-o", "json", "--manifests", &manifests]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["target"], "v1.35.0");
    assert_eq!(json["replacedByMaxSurge"], 2);
    assert_eq!(json["replacedUnasked"], 0);
    for machine in json["machines"].as_array().unwrap() {
        assert_eq!(machine["sameMachine"], false);
        assert_eq!(machine["verdict"], "replaced (maxSurge 1)");
        assert_eq!(machine["versions"]["before"], "v1.34.2");
        assert_eq!(machine["versions"]["after"], "v1.35.0");
        assert_ne!(machine["before"]["uid"], machine["after"]["uid"]);
        for field in ["uid", "providerID", "nodeName"] {
            assert!(!machine[field].as_str().unwrap().is_empty(), "{field}");
        }
    }
    let stderr = text(&output.stderr);
    assert!(stderr.contains("Gone: replaced by a new machine"), "{stderr}");
    assert!(!stderr.contains(ALARM));
}

#[test]
fn all_errors_in_manifests_are_reported_before_the_run() {
    let broken = EXAMPLE
        .replacen("replicas: 3\n  version: v1.34.2", "replicas: three\n  version: 1.34.2", 1)
        .replacen(
            "    kind: SandboxCluster\n    name: edge-1",
            "    kind: SandboxCluster\n    name: x",
            1,
        )
        .replacen(
            "kind: KubeadmConfigTemplate\nmetadata:\n  name: edge-1-md-0",
            "kind: KubeadmConfigTemplate\nmetadata:",
            1,
        );
    let name = file("broken.yaml", &format!("{broken}\n---\na: [\n"));
    let output = run(&["--manifests", &name]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let stderr = text(&output.stderr);
    for want in [
        "Cluster/edge-1: spec.infrastructureRef: got SandboxCluster/x",
        "KubeadmControlPlane/edge-1: spec.replicas: got \"three\", want an integer",
        "KubeadmControlPlane/edge-1: spec.version: got \"1.34.2\", want a version vX.Y.Z",
        "KubeadmConfigTemplate/(no name): metadata.name: got nothing, want a name",
        "document: YAML: got unclosed bracket",
    ] {
        assert!(stderr.contains(want), "no {want:?} in\n{stderr}");
    }
    assert!(stderr.ends_with("error: 5 problems in the manifests; nothing was written\n"));
    let prefix = format!("{name}:");
    assert!(stderr.lines().take(5).all(|line| line.starts_with(&prefix)), "{stderr}");
}

#[test]
fn objects_the_api_server_would_refuse_are_reported_with_line() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\ndata:\n  a: \"%%%\"\n";
    let name = file("secret.yaml", &format!("{secret}---\n{EXAMPLE}"));
    let output = run(&["--manifests", &name]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let want = format!("{name}:6: Secret/x: data.a: got \"%%%\", want ");
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with(&want), "{stderr}");
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    for args in [&["--speed", "0"][..], &["--no-such-flag"], &["-o", "yaml"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_target_out_of_reach_is_refused() {
    let output = run(&["--to", "v1.37.0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("kubeadm does not skip minor versions"));
}

#[test]
fn a_missing_file_is_named() {
    let output = run(&["--manifests", "/nonexistent/cluster.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read /nonexistent/cluster.yaml"));
}

#[test]
fn the_help_does_not_contain_the_alarm_word() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!text(&output.stdout).contains(ALARM));
}

#[test]
fn an_interrupt_ends_it_at_once() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut child = demo(&["--speed", "1"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("Setting version")));
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(rest.last().unwrap(), "interrupted; the simulated cluster was removed");
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = demo(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}
