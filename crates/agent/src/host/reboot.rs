//! Reboots the host, but not in the middle of another program's work.
//!
//! A package transaction that a reboot cuts off leaves half-installed packages, kernels without an
//! initramfs, or a broken database. Root's reboot does not wait for it by itself
//! (`docs/facts/hosts.md#reboots`). So the locks of dpkg and rpm are taken first and held until the
//! host goes down, and block inhibitors of the shutdown are waited for.

use std::{fs::File, io, os::unix::fs::OpenOptionsExt as _, time::Duration};

use refit_runtime::clock::instant;
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
    process::{Flock, FlockType, fcntl_getlk},
};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use super::{Program, ProgramError, Site, work::WorkError};

/// Locks of package managers: dpkg's in the order of apt, and rpm's transaction lock for both places
/// of its database.
const LOCKS: [&str; 4] = [
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/usr/lib/sysimage/rpm/.rpm.lock",
    "/var/lib/rpm/.rpm.lock",
];

/// How long to wait for others, and to hold the locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Longest wait for locks and inhibitors of others.
    pub(super) most: Duration,
    /// Time between two attempts, in which no lock is held.
    pub(super) poll: Duration,
    /// How long the locks are held after systemd has accepted the reboot; the shutdown ends it.
    pub(super) hold: Duration,
}

impl Patience {
    /// Together less than the timeout of the step.
    pub(super) const USUAL: Self = Self {
        most: Duration::from_mins(8),
        poll: Duration::from_secs(2),
        hold: Duration::from_mins(5),
    };
}

/// What the reboot waits for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Obstacle {
    /// A package manager is working.
    #[error("Could not get lock {path}: it is held by {holder}")]
    Locked { path: String, holder: String },
    /// A program inhibits the shutdown.
    #[error("process {pid} ({who}) inhibits the reboot: {why}")]
    Inhibited { who: String, why: String, pid: u32 },
    /// systemd refuses because of an inhibitor that was not listed.
    #[error("systemd inhibits the reboot: {0}")]
    Refused(String),
}

/// Why an attempt did not request the reboot.
enum NotYet {
    Obstacle(Obstacle),
    Failed(WorkError),
}

impl From<Obstacle> for NotYet {
    fn from(obstacle: Obstacle) -> Self {
        Self::Obstacle(obstacle)
    }
}

/// An inhibitor of logind, in the order of its fields: what, who, why, mode, uid, pid.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Inhibitor(String, String, String, String, u32, u32);

/// The answer of logind's `ListInhibitors` as `busctl` writes it.
#[derive(Deserialize)]
struct Inhibitors {
    data: (Vec<Inhibitor>,),
}

/// Waits until no other program must finish first, and reboots the host. Returns once the shutdown
/// stops this process, or after the time for which the locks are held.
pub(super) async fn reboot(site: &Site, patience: Patience) -> Result<(), WorkError> {
    let since = instant();
    let mut logged = None;
    loop {
        let obstacle = match attempt(site, patience.hold).await {
            Ok(()) => return Ok(()),
            Err(NotYet::Failed(error)) => return Err(error),
            Err(NotYet::Obstacle(obstacle)) => obstacle,
        };
        if since.elapsed() >= patience.most {
            let waited = patience.most.as_secs();
            let message = format!("the host was not rebooted within {waited} s: {obstacle}");
            return Err(WorkError::retriable(message));
        }
        if logged.as_ref() != Some(&obstacle) {
            site.log(&format!("waiting: {obstacle}"));
            logged = Some(obstacle);
        }
        tokio::time::sleep(patience.poll).await;
    }
}

/// Requests the reboot, if nothing is in its way.
async fn attempt(site: &Site, hold: Duration) -> Result<(), NotYet> {
    let _held = take_locks(site)?;
    if let Some(obstacle) = inhibitors(site).await.into_iter().find_map(Inhibitor::obstacle) {
        return Err(obstacle.into());
    }
    match site.run(&site.call(Program::Systemctl, ["reboot"])).await {
        Ok(_) => {
            stopped(hold).await;
            Ok(())
        }
        Err(error) if is_inhibited(&error) => {
            Err(Obstacle::Refused(error.output_tail().to_owned()).into())
        }
        Err(error) => Err(NotYet::Failed(error.into())),
    }
}

/// Takes the locks of the package managers that the host has. They end with the returned files.
fn take_locks(site: &Site) -> Result<Vec<File>, Obstacle> {
    let mut held = Vec::new();
    for path in LOCKS {
        let Some(file) = open(site, path) else {
            continue;
        };
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => held.push(file),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let holder = holder(site, &file);
                return Err(Obstacle::Locked { path: path.to_owned(), holder });
            }
            Err(error) => site.log_and_go_on(&format!("cannot lock {path}: {error}")),
        }
    }
    Ok(held)
}

/// Opens a lock file like its package manager does; `None` if the host does not have its database,
/// or cannot change it because it is on a read-only file system.
fn open(site: &Site, path: &str) -> Option<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o640);
    match options.open(site.path(path)) {
        Ok(file) => Some(file),
        Err(error) => {
            let usual = [io::ErrorKind::NotFound, io::ErrorKind::ReadOnlyFilesystem];
            if !usual.contains(&error.kind()) {
                site.log_and_go_on(&format!("cannot open {path}: {error}"));
            }
            None
        }
    }
}

/// The process that holds a lock.
fn holder(site: &Site, file: &File) -> String {
    let found = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok().flatten();
    let Some(pid) = found.and_then(|lock| lock.pid) else {
        return "another process".to_owned();
    };
    let pid = pid.as_raw_nonzero();
    let name = site.read(&format!("/proc/{pid}/comm"));
    format!("process {pid} ({})", name.trim())
}

/// The inhibitors of logind; none on a host without it.
async fn inhibitors(site: &Site) -> Vec<Inhibitor> {
    let call = [
        "--json=short",
        "call",
        "org.freedesktop.login1",
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
        "ListInhibitors",
    ];
    let found = match site.ask(Program::Busctl, call).await {
        Ok(answer) => parse(&answer).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    found.unwrap_or_else(|error| {
        site.log_and_go_on(&format!("cannot list inhibitors of the shutdown: {error}"));
        Vec::new()
    })
}

fn parse(answer: &str) -> serde_json::Result<Vec<Inhibitor>> {
    serde_json::from_str::<Inhibitors>(answer).map(|answer| answer.data.0)
}

impl Inhibitor {
    /// What the reboot waits for, if this inhibits it. `delay` needs no wait: logind itself delays a
    /// shutdown for it.
    fn obstacle(self) -> Option<Obstacle> {
        let Self(what, who, why, mode, _, pid) = self;
        let blocks = ["block", "block-weak"].contains(&mode.as_str());
        let is_shutdown = what.split(':').any(|what| what == "shutdown");
        (blocks && is_shutdown).then_some(Obstacle::Inhibited { who, why, pid })
    }
}

/// Whether systemd refused the reboot because of an inhibitor.
fn is_inhibited(error: &ProgramError) -> bool {
    error.output_tail().contains("nhibit")
}

/// Waits until the shutdown stops this process, but not for longer than `at_most`.
async fn stopped(at_most: Duration) {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                () = tokio::time::sleep(at_most) => {}
            }
        }
        Err(_) => tokio::time::sleep(at_most).await,
    }
}

#[cfg(test)]
#[path = "reboot_tests.rs"]
mod tests;
