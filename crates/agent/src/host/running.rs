//! Whether the kubelet runs: waiting until it does, and stays.
//!
//! After a boot or a restart a kubelet may take minutes: the container runtime loads its snapshots, a
//! mount is slow, and systemd starts the kubelet again and again meanwhile.

use std::{fs, time::Duration};

use refit_kinds::version::KubernetesVersion;

use super::{HostError, Invocation, Program, Site, work::WorkError};

/// How long to wait, and how often to look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Time until the wait is given up.
    pub(super) limit: Duration,
    /// Time between two looks. A kubelet that ends sooner than this after each start does not count as
    /// running.
    pub(super) pause: Duration,
}

const PAUSE: Duration = Duration::from_secs(5);
/// After a restart: runtime and mounts are there already.
pub(super) const RESTART: Patience = Patience { limit: Duration::from_mins(2), pause: PAUSE };
/// At the end of a plan, possibly after a boot. Less than the timeout of the step.
pub(super) const VERIFY: Patience = Patience { limit: Duration::from_mins(10), pause: PAUSE };

/// What one look at the kubelet's service shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sight {
    /// State of the service, as systemd names it.
    state: String,
    /// Main process of the service; 0 without one.
    main: u32,
    /// Version of the running kubelet.
    version: Option<KubernetesVersion>,
}

/// Waits until the kubelet runs, in this version if there is one: two looks in a row have to see the
/// same process.
pub(super) async fn wait(
    site: &Site,
    wanted: Option<&KubernetesVersion>,
    patience: Patience,
) -> Result<(), WorkError> {
    let mut lack = String::new();
    let settled = async {
        let mut before = None;
        loop {
            let now = match look(site).await {
                Ok(now) => now,
                Err(error) => Sight { state: error.to_string(), ..Sight::default() },
            };
            match judge(before.as_ref(), &now, wanted) {
                None => return,
                Some(why) => lack = why,
            }
            before = Some(now);
            tokio::time::sleep(patience.pause).await;
        }
    };
    let settled = tokio::time::timeout(patience.limit, settled).await;
    settled.map_err(|_| {
        WorkError::retriable(format!(
            "the kubelet does not run {} s after it was to start: {lack}; see journalctl -u kubelet \
             on the host",
            patience.limit.as_secs()
        ))
    })
}

async fn look(site: &Site) -> Result<Sight, HostError> {
    let show = ["show", "kubelet.service", "--property=ActiveState,MainPID"];
    let answer = site.ask(Program::Systemctl, show).await?;
    let field = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name));
    let main = field("MainPID=").and_then(|pid| pid.trim().parse().ok()).unwrap_or_default();
    let version = match process(site, main) {
        Some(pid) => Some(version(site, pid).await?),
        None => None,
    };
    let state = field("ActiveState=").unwrap_or("unknown to systemd").trim().to_owned();
    Ok(Sight { state, main, version })
}

/// What a look lacks after the one before it; `None` if the kubelet runs.
fn judge(
    before: Option<&Sight>,
    now: &Sight,
    wanted: Option<&KubernetesVersion>,
) -> Option<String> {
    if now.state != "active" {
        return Some(format!("its service is {}", now.state));
    }
    let Some(version) = &now.version else {
        return Some("the main process of its service is not a kubelet".to_owned());
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != version) {
        return Some(format!("it has version {version}, expected {wanted}"));
    }
    match before {
        Some(before) if before.main == now.main => None,
        Some(before) if before.main != 0 => Some("it ends soon after each start".to_owned()),
        Some(_) | None => Some("it has just started".to_owned()),
    }
}

/// The version of a running kubelet, even after a package has replaced its file.
pub(super) async fn version(site: &Site, pid: u32) -> Result<KubernetesVersion, HostError> {
    let program = site.path(format!("/proc/{pid}/exe")).display().to_string();
    parse_version(&Invocation::at(program, ["--version"]).output().await?)
}

/// Parses `Kubernetes v1.35.0`.
fn parse_version(answer: &str) -> Result<KubernetesVersion, HostError> {
    answer.split_whitespace().last().and_then(|word| word.parse().ok()).ok_or_else(|| {
        HostError::Answer { program: "kubelet --version".to_owned(), answer: answer.to_owned() }
    })
}

/// The process of the kubelet: the main process of its service, or a descendant of it if the main
/// process is a wrapper such as a script.
pub(super) fn process(site: &Site, main: u32) -> Option<u32> {
    const MOST: usize = 64;
    let mut ahead = vec![main];
    for at in 0..MOST {
        let pid = *ahead.get(at)?;
        if pid == 0 {
            continue;
        }
        let program = fs::read_link(site.path(format!("/proc/{pid}/exe"))).unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        // A replaced file has the name `kubelet (deleted)`.
        if name.starts_with("kubelet") || name.starts_with("hyperkube") {
            return Some(pid);
        }
        let children = site.read(&format!("/proc/{pid}/task/{pid}/children"));
        ahead.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    None
}

#[cfg(test)]
#[path = "running_tests.rs"]
mod tests;
