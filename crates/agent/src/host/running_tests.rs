use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::host::site::Tool;

fn sight(state: &str, main: u32, version: &str) -> Sight {
    Sight { state: state.to_owned(), main, version: version.parse().ok() }
}

#[test]
fn the_kubelet_runs_once_two_looks_see_the_same_process() {
    let wanted: KubernetesVersion = "v1.35.0".parse().unwrap();
    let new = |main| sight("active", main, "v1.35.0");
    let waiting = || sight("activating", 0, "");
    // A series of looks, and what the last one lacks.
    for (series, lack) in [
        (vec![new(7)], Some("it has just started")),
        (vec![new(7), new(7)], None),
        (vec![waiting(), waiting()], Some("its service is activating")),
        (vec![waiting(), new(7)], Some("it has just started")),
        (vec![waiting(), waiting(), new(8), new(8)], None),
        (vec![new(7), new(8)], Some("it ends soon after each start")),
        (vec![new(7), waiting(), new(8)], Some("it has just started")),
        (vec![new(7), sight("failed", 0, "")], Some("its service is failed")),
        (vec![new(7), sight("deactivating", 7, "v1.35.0")], Some("its service is deactivating")),
        (
            vec![sight("active", 7, "v1.34.2"), sight("active", 7, "v1.34.2")],
            Some("it has version v1.34.2, expected v1.35.0"),
        ),
        (
            vec![sight("active", 7, ""), sight("active", 7, "")],
            Some("the main process of its service is not a kubelet"),
        ),
    ] {
        let (now, earlier) = series.split_last().unwrap();
        assert_eq!(judge(earlier.last(), now, Some(&wanted)).as_deref(), lack, "{series:?}");
    }
    let old = sight("active", 7, "v1.34.2");
    assert_eq!(judge(Some(&old), &old, None), None, "any version");
}

#[test]
fn the_output_of_the_kubelet_is_parsed() {
    assert_eq!(parse_version("Kubernetes v1.35.0\n").ok(), "v1.35.0".parse().ok());
    assert!(parse_version("no kubelet").is_err());
}

#[test]
fn a_kubelet_started_by_a_script_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path().join("root"), directory.path().join("state"));
    let running = |pid: u32, program: &str, children: &str| {
        let tasks = site.path(format!("/proc/{pid}/task/{pid}"));
        fs::create_dir_all(&tasks).unwrap();
        fs::write(tasks.join("children"), children).unwrap();
        symlink(program, site.path(format!("/proc/{pid}/exe"))).unwrap();
    };
    running(7, "/usr/bin/bash", "8 9 ");
    running(8, "/usr/bin/sleep", "");
    running(9, "/usr/bin/kubelet (deleted)", "");
    assert_eq!(process(&site, 7), Some(9));
    assert_eq!(process(&site, 9), Some(9));
    assert_eq!(process(&site, 8), None, "no answer of another program");
    assert_eq!(process(&site, 0), None);
}

const QUICK: Duration = Duration::from_millis(20);

/// A host whose systemd shows the kubelet as active from the third query on.
fn slow_host() -> (tempfile::TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    let script = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let kubelet = script("kubelet", "echo Kubernetes v1.35.0".to_owned());
    let count = directory.path().join("count").display().to_string();
    let systemctl = script(
        "systemctl",
        format!(
            "echo x >> {count}; if [ $(wc -l < {count}) -lt 3 ]; then echo ActiveState=activating; \
             echo MainPID=0; else echo ActiveState=active; echo MainPID=7; fi"
        ),
    );
    let tool = Tool { path: systemctl.display().to_string(), ..Tool::default() };
    let site = Site::at(directory.path(), directory.path()).with_tool(Program::Systemctl, tool);
    fs::create_dir_all(site.path("/proc/7")).unwrap();
    symlink(kubelet, site.path("/proc/7/exe")).unwrap();
    (directory, site)
}

#[tokio::test]
async fn a_kubelet_that_starts_late_is_waited_for() {
    let (directory, site) = slow_host();
    let wanted = "v1.35.0".parse().unwrap();
    let patience = Patience { limit: Duration::from_mins(1), pause: QUICK };
    wait(&site, Some(&wanted), patience).await.unwrap();
    let looks = fs::read_to_string(directory.path().join("count")).unwrap().lines().count();
    assert_eq!(looks, 4, "two looks of a kubelet that runs");
}

#[tokio::test]
async fn a_kubelet_that_never_runs_is_given_up_with_its_state() {
    let (directory, site) = slow_host();
    fs::remove_file(directory.path().join("systemctl")).unwrap();
    let patience = Patience { limit: Duration::from_millis(200), pause: QUICK };
    let error = wait(&site, None, patience).await.unwrap_err();
    assert!(
        error.message.contains("0 s after it was to start: its service is cannot run"),
        "{error}"
    );
    let (_directory, site) = slow_host();
    let wanted = "v1.36.0".parse().unwrap();
    let patience = Patience { limit: Duration::from_secs(2), pause: QUICK };
    let error = wait(&site, Some(&wanted), patience).await.unwrap_err();
    assert!(error.message.contains("has version v1.35.0, expected v1.36.0"), "{error}");
    assert!(error.message.contains("journalctl -u kubelet"), "{error}");
}
