//! Tests of the `refit-agent` program.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

const AGENT: &str = env!("CARGO_BIN_EXE_refit-agent");

#[test]
fn it_waits_for_credentials_and_stops_cleanly_on_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let mut agent = Command::new(AGENT)
        .args(["--node-name", "n1", "--kubeconfig", "/nonexistent/kubelet.conf"])
        .arg("--state-dir")
        .arg(&state)
        .args(["--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines();
    let waits = lines.by_ref().map(Result::unwrap).find(|line| {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
        line.contains("invalid kubeconfig /nonexistent/kubelet.conf")
    });
    assert!(waits.is_some());
    let mode = fs::metadata(&state).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "snapshots in it are secrets");
    let pid = agent.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(agent.wait().unwrap().success());
}

#[test]
fn help_has_examples() {
    let out = Command::new(AGENT).arg("--help").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("Examples:") && text.contains("NODE_NAME"), "{text}");
}
