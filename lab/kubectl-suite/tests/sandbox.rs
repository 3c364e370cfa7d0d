//! The real kubectl against `refit sandbox`: its management cluster and a workload cluster, and a cluster of OpenShift.
//!
//! `REFIT_PROGRAMS` is the directory of the program; the default is that of the tests.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{BufRead as _, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{env, fs};

use lab_kubectl_suite::Kubectl;

/// The last output of the sandbox before it waits.
const UP: &str = "Press Ctrl-C to stop.";

struct Sandbox {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    kubeconfig: PathBuf,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> PathBuf {
    let tests = env::current_exe().unwrap();
    let directory = env::var_os("REFIT_PROGRAMS").map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| tests.ancestors().nth(2).unwrap().to_owned());
    let path = directory.join("refit");
    assert!(path.is_file(), "{} does not exist; run `cargo build -p refit`", path.display());
    path
}

fn start(flags: &[&str]) -> Sandbox {
    let mut process = Command::new(program())
        .arg("sandbox")
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let kubeconfig = PathBuf::from(lines.next().unwrap().unwrap());
    loop {
        let line = lines.next().expect("the sandbox ended early").unwrap();
        if line.contains(UP) {
            break;
        }
    }
    Sandbox { process, lines, kubeconfig }
}

impl Sandbox {
    fn kubectl(&self) -> Kubectl {
        let directory = format!("sandbox-{}", self.process.id());
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(directory);
        fs::create_dir_all(&home).unwrap();
        Kubectl::new(&self.kubeconfig, &home).unwrap_or_else(|missing| panic!("{missing}"))
    }

    fn end(mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
        assert!(self.lines.by_ref().all(|line| line.is_ok()));
    }
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn kubectl_works_with_both_clusters_of_a_sandbox() {
    let sandbox = start(&[]);
    let kubectl = sandbox.kubectl();
    assert_eq!(kubectl.run("config current-context").ok(), "refit\n");
    let machines = kubectl.run("get machines").ok();
    has(&machines, &["NAME", "CLUSTER", "PHASE", "VERSION", "Running"]);
    assert_eq!(machines.lines().count(), 9, "{machines}");
    has(
        &kubectl.run("get kcp,md").ok(),
        &["kubeadmcontrolplane.controlplane.cluster.x-k8s.io/edge-1"],
    );
    kubectl.run("wait machines --all --for=condition=Ready --timeout=60s").ok();
    has(
        &kubectl.run("describe md edge-1-md-0").ok(),
        &["Kind:         MachineDeployment", "Replicas:"],
    );
    has(&kubectl.run("explain machinedeployments.spec").ok(), &["replicas"]);
    has(&kubectl.run("get all -A").ok(), &["NAMESPACE"]);

    let workload = kubectl.with("--context=edge-1");
    workload.run("wait nodes --all --for=condition=Ready --timeout=60s").ok();
    let nodes = workload.run("get nodes -o name -l !node-role.kubernetes.io/control-plane").ok();
    let node = nodes.lines().next().unwrap().trim_start_matches("node/").to_owned();
    has(
        &workload.run(&format!("describe node {node}")).ok(),
        &["Kubelet Version:", "Non-terminated Pods"],
    );
    let drained = workload.run(&format!(
        "drain {node} --ignore-daemonsets --delete-emptydir-data --force --timeout=90s"
    ));
    has(&drained.ok(), &["drained"]);
    let selector = format!("get pods -n default --field-selector spec.nodeName={node} -o name");
    assert_eq!(workload.run(&selector).ok(), "");
    has(&workload.run(&format!("get node {node}")).ok(), &["Ready,SchedulingDisabled"]);
    workload.run(&format!("uncordon {node}")).ok();
    has(&workload.run("get pods -A -o wide").ok(), &["etcd-edge-1-", "kube-system"]);
    sandbox.end();
}

#[test]
fn kubectl_shows_the_upgrade_of_a_sandbox_of_openshift() {
    let sandbox = start(&["--platform", "openshift", "--speed", "200"]);
    let kubectl = sandbox.kubectl();
    assert_eq!(kubectl.run("config current-context").ok(), "openshift\n");
    let namespace = "-n openshift-managed-upgrade-operator";
    let upgrade = format!("upgradeconfig/managed-upgrade-config {namespace}");
    kubectl.run(&format!("wait {upgrade} --for=create --timeout=60s")).ok();
    let phase = "jsonpath={.status.history[0].phase}=Upgrading";
    kubectl.run(&format!("wait {upgrade} --for={phase} --timeout=60s")).ok();
    let shown = kubectl.run(&format!("get upgrade {namespace}")).ok();
    let columns = ["NAME", "DESIRED_VERSION", "PHASE", "STAGE", "STATUS", "REASON", "MESSAGE"];
    has(&shown, &columns);
    has(&shown, &["managed-upgrade-config", "4.16.4", "Upgrading"]);
    has(&kubectl.run("get clusterversion").ok(), &["VERSION", "AVAILABLE", "SINCE", "4.16.3"]);
    has(&kubectl.run("get machineconfigpools").ok(), &["rendered-worker-4.16.3", "MACHINECOUNT"]);
    has(&kubectl.run("get nodes").ok(), &["control-plane,master", "v1.29.3"]);
    sandbox.end();
}
