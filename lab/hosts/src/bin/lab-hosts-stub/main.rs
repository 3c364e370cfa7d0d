//! Stand-in for kubeadm, kubelet, kubectl, containerd and etcdctl in the tests' own packages.
//!
//! The last line of its own file defines which program it is, and in which version. At named points
//! it runs `/var/lib/stub/NAME.POINT` once, if a test created that file: the script makes the
//! program slow, sets its exit code, kills it or blocks it.

mod containerd;
mod etcdctl;
mod kubeadm;
mod kubelet;

use std::{
    env, fs,
    io::{self, Write as _},
    path::PathBuf,
    process::{Command, ExitCode},
    time::SystemTime,
};

const MANIFESTS: &str = "/etc/kubernetes/manifests";
const COMPONENTS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
const RUNTIME_SOCKET: &str = "/run/containerd/containerd.sock";

type Error = Box<dyn std::error::Error>;
type Outcome = Result<ExitCode, Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let (name, _) = identity();
    let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let outcome = match name.as_str() {
        "kubeadm" => kubeadm::run(&arguments),
        "kubelet" => kubelet::run(&arguments),
        "containerd" => containerd::run(&arguments),
        "etcdctl" => etcdctl::run(&arguments),
        _ => answer(&format!("Client Version: {}", version())),
    };
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "{name}: {error}");
        ExitCode::FAILURE
    })
}

fn answer(line: &str) -> Outcome {
    writeln!(io::stdout(), "{line}")?;
    Ok(ExitCode::SUCCESS)
}

fn version() -> String {
    identity().1
}

/// Reads the last line of this program's file, `NAME VERSION`. The path is not reliable: a program
/// that was replaced while it runs is started by its entry in `/proc`.
fn identity() -> (String, String) {
    let bytes = fs::read("/proc/self/exe").unwrap_or_default();
    let end = bytes.len().saturating_sub(64);
    let tail = String::from_utf8_lossy(bytes.get(end..).unwrap_or_default()).into_owned();
    let last = tail.trim_end().rsplit('\n').next().unwrap_or_default();
    let (name, version) = last.split_once(' ').unwrap_or_default();
    (name.to_owned(), version.to_owned())
}

/// Runs the script that a test left for this point, once; its exit code ends the program.
#[expect(clippy::exit, reason = "a scripted failure exits immediately")]
fn point(name: &str) -> Result<(), Error> {
    let ordered = PathBuf::from(format!("/var/lib/stub/{name}"));
    if !ordered.exists() {
        return Ok(());
    }
    let taken = ordered.with_extension("taken");
    fs::rename(&ordered, &taken)?;
    let status = Command::new("/bin/sh")
        .arg(&taken)
        .env("STUB_PID", std::process::id().to_string())
        .status()?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => std::process::exit(137),
    }
}

fn now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed();
    since.map(|since| since.as_secs()).unwrap_or_default()
}
