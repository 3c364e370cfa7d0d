use refit_kinds::refit::{HostStep, PackageArgs};

use super::*;
use crate::host::Tool;

fn host() -> RealHost {
    RealHost::new("/var/lib/refit").with_identity("/etc/kubernetes/kubelet.conf", "refit-system")
}

fn job() -> Job {
    let version = "v1.35.0".parse::<KubernetesVersion>().unwrap();
    let command = HostStep::KubeadmInstall { version, packages: PackageArgs::default() };
    Job::new("p", "refit-p-kubeadm-install-1", "kubeadm-install", command)
}

#[test]
fn a_unit_outlives_the_agent_and_runs_its_program() {
    let call = host().unit(&job(), Path::new("/usr/local/bin/refit-agent")).invocation();
    assert!(call.program.ends_with("/systemd-run"), "{call}");
    for expected in [
        "--unit=refit-p-kubeadm-install-1.service",
        "--property=RemainAfterExit=yes",
        "--property=TimeoutStartSec=1200",
        "--property=OOMScoreAdjust=-900",
        "--property=StandardOutput=append:/var/lib/refit/units/refit-p-kubeadm-install-1.log",
    ] {
        assert!(call.arguments.iter().any(|a| a == expected), "{expected}: {call}");
    }
    let rest = call.arguments.iter().skip_while(|a| *a != "--").skip(1);
    let rest: Vec<&str> = rest.map(String::as_str).collect();
    assert_eq!(
        rest,
        [
            "/usr/local/bin/refit-agent",
            "carry-out",
            "--job=/var/lib/refit/units/refit-p-kubeadm-install-1.json",
        ]
    );
}

#[test]
fn no_argument_holds_a_systemd_metacharacter() {
    let call = host().unit(&job(), Path::new("/usr/local/bin/refit-agent")).invocation();
    for argument in &call.arguments {
        let harmless = !argument.contains([' ', '"', '\'', '$', '%', '\\', ';']);
        assert!(harmless, "{argument}");
    }
}

#[test]
fn a_saved_job_loads_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("job.json");
    host().job_file(&job()).save(&path).unwrap();
    let read = JobFile::load(&path).unwrap();
    assert_eq!((&*read.plan, read.step.as_str()), ("p", "kubeadm-install"));
    assert_eq!(read.command, job().command);
    let mode = fs::metadata(&path).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn a_unit_runs_the_agents_own_program() {
    let directory = tempfile::tempdir().unwrap();
    let program = RealHost::new(directory.path()).program().unwrap();
    let own = fs::metadata(SELF).unwrap();
    assert_eq!(fs::metadata(program).unwrap().len(), own.len());
}

#[test]
fn outputs_of_host_programs_are_parsed() {
    assert_eq!(parse_os_image("ID=x\nPRETTY_NAME=\"Debian 13\"\n"), "Debian 13");
}

#[tokio::test]
async fn the_end_of_a_process_is_detected() {
    let child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let process = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let (early, late) = (process(), process());
    let ended = end_of(early, Duration::from_millis(20)).await.unwrap();
    assert!(!ended, "it has not ended yet");
    drop(child.stdin.take());
    let hour = Duration::from_hours(1);
    assert!(end_of(late, hour).await.unwrap());
    assert!(child.try_wait().unwrap().is_some());
}

#[test]
fn only_proxies_of_the_environment_reach_a_unit() {
    let pairs = [("HTTPS_PROXY", "http://p:1"), ("no_proxy", "10.0.0.0/8"), ("NODE_NAME", "a")];
    let environment = pairs.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let found = proxy_variables(environment.into_iter());
    assert_eq!(found.keys().collect::<Vec<_>>(), ["HTTPS_PROXY", "no_proxy"]);
}

#[tokio::test]
async fn fetched_packages_are_removed_at_the_end_of_a_plan() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let site = Site::at(directory.path().join("root"), directory.path().join("state"));
    let systemd_run = directory.path().join("systemd-run");
    let script = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n";
    fs::write(&systemd_run, script).unwrap();
    fs::set_permissions(&systemd_run, fs::Permissions::from_mode(0o755)).unwrap();
    let tool = Tool { path: systemd_run.display().to_string(), ..Tool::default() };
    let site = site.with_tool(Program::SystemdRun, tool);
    let host = RealHost { site: site.clone(), ..host() };
    // Nothing was fetched.
    host.remove_fetched().await;
    let store = site.path(packages::FETCHED);
    for path in ["p/partial", "q"].map(|plan| store.join(plan)) {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("kubelet.deb"), "").unwrap();
    }
    let snapshot = site.snapshot("p");
    fs::create_dir_all(snapshot.join("fetched-kubelet.all/usr")).unwrap();
    for name in ["fetched-kubelet", "pins"] {
        fs::write(snapshot.join(name), "").unwrap();
    }
    host.remove_fetched().await;
    let names = |directory: &Path| -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert!(names(&store).is_empty());
    assert_eq!(names(&snapshot), ["pins"]);
}
