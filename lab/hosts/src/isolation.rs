//! Runs a test in its own namespaces, so that it leaves nothing behind on the machine.
//!
//! The test program starts itself again in new process, mount and network namespaces. When the
//! outer process ends for any reason, the inner one is killed, and with it every process, mount,
//! loop device and interface. Only control groups have to be removed; the next run removes those of
//! a killed run.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use libtest_mimic::{Arguments, Failed, Trial};
use refit_runtime::process::{LogFormat, init_logs};
use tokio::{process::Command, signal::unix::SignalKind};

use crate::{
    base::{self, Debian},
    host, net, print_line, run,
};

/// Set inside the namespaces; the value is the name of the run.
const INSIDE: &str = "REFIT_HOSTS_INSIDE";
/// Path of the Debian root.
const BASE: &str = "REFIT_HOSTS_BASE";
const PREFIX: &str = "refit-hosts-";
/// Programs that the tests call, with their packages.
const PROGRAMS: [(&str, &str); 9] = [
    ("dpkg-deb", "dpkg"),
    ("ip", "iproute2"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("strip", "binutils"),
    ("systemd-nspawn", "systemd-container"),
    ("xfs_io", "xfsprogs"),
];

/// The environment of a test.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The Debian root.
    pub base: PathBuf,
    /// Directory for all files of the test; in memory, and removed with the test.
    pub directory: PathBuf,
    /// Name of the run and of its control groups.
    pub name: String,
}

/// A test: its name, and the function to run inside.
pub type Test = (&'static str, fn(&Isolation) -> anyhow::Result<()>);

/// Main function of a test program: run outside, it runs its tests inside, one after another.
pub fn main(tests: &[Test]) -> ExitCode {
    main_on(Debian::NEWEST, tests)
}

/// Like [`main`], on hosts with this Debian.
pub fn main_on(debian: Debian<'_>, tests: &[Test]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The tests share the machine's two cores, and each starts several hosts.
    arguments.test_threads = Some(1);
    if arguments.list {
        return libtest_mimic::run(&arguments, trials(tests, None)).exit_code();
    }
    let outcome = match env::var(INSIDE) {
        Ok(name) => inside(name).map(|isolation| {
            libtest_mimic::run(&arguments, trials(tests, Some(&isolation))).exit_code()
        }),
        Err(_) => outside(debian),
    };
    outcome.unwrap_or_else(|error| {
        print_line(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

fn trials(tests: &[Test], isolation: Option<&Isolation>) -> Vec<Trial> {
    let one = |&(name, test): &Test| {
        let isolation = isolation.cloned();
        Trial::test(name, move || {
            let isolation =
                isolation.ok_or_else(|| Failed::from("tests do not run in list mode"))?;
            test(&isolation).map_err(|error| Failed::from(format!("{error:#}")))
        })
    };
    tests.iter().map(one).collect()
}

fn outside(debian: Debian<'_>) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("root is required for systemd-nspawn, mounts and network namespaces");
    }
    let missing = missing();
    if !missing.is_empty() {
        bail!("missing packages; run `apt-get install {}`", missing.join(" "));
    }
    sweep();
    let base = base::ensure(debian)?;
    let name = format!("{PREFIX}{}", own_mark());
    // One thread: the child is killed when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(enclosed(&name, &base));
    let left = remove_groups(&name).into_iter().chain(loops(&name));
    let left: Vec<String> = left.collect();
    if !left.is_empty() {
        bail!("the run left resources behind: {}", left.join(", "));
    }
    outcome
}

async fn enclosed(name: &str, base: &Path) -> anyhow::Result<ExitCode> {
    let program = env::current_exe().context("failed to determine the path of this program")?;
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--net", "--pid"])
        .args(["--fork", "--kill-child", "--mount-proc", "--"])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(INSIDE, name)
        .env(BASE, base)
        .kill_on_drop(true)
        .spawn()
        .context("failed to run unshare")?;
    let mut interrupted = tokio::signal::unix::signal(SignalKind::interrupt())?;
    let mut terminated = tokio::signal::unix::signal(SignalKind::terminate())?;
    let code = tokio::select! {
        biased;
        _ = interrupted.recv() => 130,
        _ = terminated.recv() => 143,
        status = child.wait() => status?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
    };
    // The child may have exited already.
    let _ = child.start_kill();
    let _ = child.wait().await;
    Ok(ExitCode::from(code))
}

/// Prepares the inside: a directory in memory and a bridge.
fn inside(name: String) -> anyhow::Result<Isolation> {
    let base = env::var_os(BASE).map(PathBuf::from);
    let base = base.with_context(|| format!("{BASE} is not set"))?;
    let filter = env::var("REFIT_LOG").unwrap_or_else(|_| "warn,kube_client=error".to_owned());
    init_logs(&filter, LogFormat::Text)?;
    refit_runtime::tls::install_provider();
    let directory = PathBuf::from("/run").join(&name);
    runtime()?.block_on(async {
        // systemd-nspawn and ip store their state there; it must not be the machine's.
        run("mount", ["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"]).await?;
        fs::create_dir_all(&directory)?;
        net::bridge().await
    })?;
    Ok(Isolation { base, directory, name })
}

/// Creates a runtime for a test.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}

fn missing() -> Vec<&'static str> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| {
        let standard = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        let mut directories = env::split_paths(&paths).chain(standard);
        directories.any(|directory| directory.join(program).is_file())
    };
    let missing = PROGRAMS.iter().filter(|(program, _)| !found(program));
    missing.map(|(_, package)| *package).collect()
}

/// Process ID and start time: unique on this machine.
fn own_mark() -> String {
    let pid = std::process::id();
    format!("{pid}-{}", started(pid).unwrap_or_default())
}

/// Returns the start time of a process, in the kernel's ticks.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Removes the control groups of runs that were killed.
fn sweep() {
    let mut names: Vec<String> = host::group_parents()
        .iter()
        .filter_map(|parent| fs::read_dir(parent).ok())
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    names.sort();
    names.dedup();
    for name in names {
        let mark = name.trim_start_matches(PREFIX);
        let alive = mark.split_once('-').is_some_and(|(pid, start)| {
            let pid = pid.parse().unwrap_or_default();
            started(pid).is_some_and(|at| at.to_string() == start)
        });
        if !alive {
            remove_groups(&name);
        }
    }
}

/// Removes the control groups of a run; returns those that cannot be removed.
fn remove_groups(name: &str) -> Vec<String> {
    let mut left = Vec::new();
    for parent in host::group_parents() {
        let group = parent.join(name);
        for _ in 0..50 {
            remove_below(&group);
            if !group.exists() {
                break;
            }
            // Killed processes may not be gone yet.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if group.exists() {
            left.push(group.display().to_string());
        }
    }
    left
}

fn remove_below(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

/// Returns the loop devices whose file belonged to the run.
fn loops(name: &str) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter(|device| {
            let file = device.path().join("loop/backing_file");
            fs::read_to_string(file).is_ok_and(|path| path.contains(name))
        })
        .map(|device| device.path().display().to_string())
        .collect()
}
