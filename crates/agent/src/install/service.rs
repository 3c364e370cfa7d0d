//! Installs and removes the service. Both are idempotent.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::Timestamp;

use super::{
    exchange,
    layout::{FileError, Layout, Link, Lock, id_of, remove, write_atomic},
    unit::{INSTALLED_SETTINGS, SERVICE, UNIT_FILE, settings_file, unit},
};
use crate::host::{FETCHED, Invocation, Program, ProgramError, bundle::KEYS};

/// How long a rejected version is not tried again on the same host.
pub(super) const REJECTED_FOR: Duration = Duration::from_hours(1);
/// How many seconds to wait for the lock of another installation.
const LOCK_TRIES: u32 = 30;
/// The oldest systemd that works: older ones cannot append the output of a unit to a file
/// (docs/facts/hosts.md#systemd).
const SYSTEMD: u32 = 240;
/// The program that sets file labels on a host with SELinux.
const RESTORECON: &str = "/usr/sbin/restorecon";

/// Why the agent could not be installed, replaced or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A systemd command failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The program does not run on this host.
    #[error(
        "{program} does not run on this host ({reason}); it needs the same CPU architecture and a \
         C library at least as new as the one it was built with"
    )]
    DoesNotRun {
        /// Path of the program.
        program: String,
        /// Its output or error.
        reason: String,
    },
    /// The host's systemd is too old.
    #[error(
        "this host has systemd {found}, and the agent needs {SYSTEMD} or newer: upgrade the host's \
         operating system, or replace the machine"
    )]
    SystemdTooOld {
        /// The host's version.
        found: u32,
    },
    /// Another installation is in progress.
    #[error("another installation is in progress on this host; try again when it has finished")]
    Busy,
    /// The version was tried on this host and did not report.
    #[error(
        "version {id} was rejected on this host {minutes} min ago: {why}; it is tried again after \
         an hour, or immediately after {} is removed",
        file.display()
    )]
    Rejected {
        /// Id of the version.
        id: String,
        /// Minutes since it was rejected.
        minutes: i64,
        /// Why it was rejected.
        why: String,
        /// The file that records the rejection.
        file: PathBuf,
    },
}

/// The systemd calls for the service; a trait, so that a test needs no systemd.
pub trait Units: Send + Sync {
    /// The host's version of systemd, as `systemctl --version` prints it.
    fn version(&self) -> BoxFuture<'_, Result<String, ProgramError>>;
    /// Reloads unit files.
    fn reload(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Starts the service now and at every boot.
    fn enable(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Stops the service now and at every boot. A missing service is not an error.
    fn disable(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Restarts the service.
    fn restart(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Whether the service is active.
    fn is_active(&self) -> BoxFuture<'_, Result<bool, ProgramError>>;
    /// Starts a timer that runs `program end-trial` after some seconds, unless the timer is already
    /// active.
    fn watch_trial<'a>(
        &'a self,
        program: &'a Path,
        seconds: u64,
    ) -> BoxFuture<'a, Result<(), ProgramError>>;
    /// Stops that timer.
    fn forget_trial(&self) -> BoxFuture<'_, ()>;
    /// Runs a program of the host and returns its output.
    fn run<'a>(
        &'a self,
        program: &'a Path,
        arguments: &'a [&'a str],
    ) -> BoxFuture<'a, Result<String, ProgramError>>;
}

/// Unit name of the timer that ends a trial.
const TRIAL: &str = "refit-agent-trial";

/// The host's systemd. In a container it is only usable after the host's root has been entered.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemdUnits;

async fn systemctl(arguments: &[&str]) -> Result<String, ProgramError> {
    let call = Invocation::new(Program::Systemctl, arguments.iter().copied());
    // In a container that has entered the host's root, systemctl would detect a chroot.
    let call = call.with_environment("SYSTEMD_IGNORE_CHROOT", "1");
    call.output().await
}

async fn run_systemctl(arguments: &[&str]) -> Result<(), ProgramError> {
    systemctl(arguments).await.map(|_| ())
}

async fn is_unit_active(unit: &str) -> Result<bool, ProgramError> {
    match run_systemctl(&["is-active", "--quiet", unit]).await {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.code(), Some(NOT_ACTIVE | NO_SUCH_UNIT)) => Ok(false),
        // If systemd does not respond, the state of the unit is unknown.
        Err(error) => Err(error),
    }
}

impl Units for SystemdUnits {
    fn version(&self) -> BoxFuture<'_, Result<String, ProgramError>> {
        Box::pin(systemctl(&["--version"]))
    }

    fn reload(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(run_systemctl(&["daemon-reload"]))
    }

    fn enable(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(run_systemctl(&["enable", "--now", SERVICE]))
    }

    fn disable(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(async {
            let known = systemctl(&["show", SERVICE, "--property=LoadState", "--value"]).await?;
            if known.trim() == "not-found" {
                return Ok(());
            }
            run_systemctl(&["disable", "--now", SERVICE]).await
        })
    }

    fn restart(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(run_systemctl(&["restart", SERVICE]))
    }

    fn is_active(&self) -> BoxFuture<'_, Result<bool, ProgramError>> {
        Box::pin(is_unit_active(SERVICE))
    }

    fn watch_trial<'a>(
        &'a self,
        program: &'a Path,
        seconds: u64,
    ) -> BoxFuture<'a, Result<(), ProgramError>> {
        Box::pin(async move {
            let timer = format!("{TRIAL}.timer");
            if is_unit_active(&timer).await? {
                return Ok(());
            }
            let arguments = [
                format!("--unit={TRIAL}"),
                format!("--on-active={seconds}"),
                "--timer-property=AccuracySec=1s".to_owned(),
                "--collect".to_owned(),
                "--quiet".to_owned(),
                "--".to_owned(),
                program.display().to_string(),
                "end-trial".to_owned(),
            ];
            let call = Invocation::new(Program::SystemdRun, arguments);
            call.output().await.map(|_| ())
        })
    }

    fn forget_trial(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let timer = format!("{TRIAL}.timer");
            if let Err(error) = run_systemctl(&["stop", &timer]).await {
                tracing::debug!(%error, "no trial of an agent version was watched");
            }
        })
    }

    fn run<'a>(
        &'a self,
        program: &'a Path,
        arguments: &'a [&'a str],
    ) -> BoxFuture<'a, Result<String, ProgramError>> {
        Box::pin(async move {
            let call = Invocation::at(program.display().to_string(), arguments.iter().copied());
            call.output().await
        })
    }
}

/// Exit code of `systemctl is-active` for a unit that does not run.
const NOT_ACTIVE: i32 = 3;
/// Exit code of `systemctl is-active` for an unknown unit.
const NO_SUCH_UNIT: i32 = 4;

/// Result of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// The service runs this version, and was not running before.
    Installed,
    /// The service already ran this version.
    Unchanged,
    /// The service already ran this version, and was restarted with other settings or another unit.
    Reconfigured,
    /// Another version runs. It replaces itself once no step is in progress.
    Wanted {
        /// The running version.
        running: String,
    },
    /// Another version was installed but not running, or a packaged one was running; this version
    /// runs now.
    Replaced,
}

/// An installation of the agent on a host.
pub struct Installation<'a> {
    /// Paths of the program's versions.
    pub layout: Layout,
    /// The host's root, for the unit and its settings.
    pub root: PathBuf,
    /// The host's systemd.
    pub units: &'a dyn Units,
}

impl std::fmt::Debug for Installation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Installation").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Installation<'_> {
    /// Installs a program and runs it as the service, now or once no step is in progress.
    pub async fn install(
        &self,
        program: &[u8],
        settings: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<ExchangeOutcome, InstallError> {
        let id = id_of(program);
        if let Some(found) = too_old(&self.units.version().await?) {
            return Err(InstallError::SystemdTooOld { found });
        }
        self.check_rejection(&id, now)?;
        let _locked = self.lock().await?;
        self.layout.put(program)?;
        self.label().await;
        self.check_runs(&id).await?;
        let current = self.layout.get(Link::Current);
        let files_changed = self.files(settings, current.as_deref().filter(|now| *now != id))?;
        if files_changed {
            self.units.reload().await?;
        }
        let ran = self.units.is_active().await?;
        if current.as_deref() == Some(id.as_str()) {
            return self.keep(ran, files_changed).await;
        }
        if let Some(running) = current.clone().filter(|_| ran) {
            self.layout.set(Link::Wanted, &id)?;
            return Ok(ExchangeOutcome::Wanted { running });
        }
        exchange::switch(&self.layout, &id)?;
        self.units.enable().await?;
        if current.is_none() && !ran {
            return Ok(ExchangeOutcome::Installed);
        }
        // Enabling does not start a service that keeps failing, nor replace a packaged one that
        // runs. Steps in progress continue without the agent.
        self.units.restart().await?;
        Ok(ExchangeOutcome::Replaced)
    }

    /// Keeps the current version and applies changes of its service files.
    async fn keep(&self, ran: bool, files_changed: bool) -> Result<ExchangeOutcome, InstallError> {
        self.layout.clear(Link::Wanted)?;
        if self.layout.trial().is_none() {
            remove(&self.layout.previous_unit())?;
        }
        self.units.enable().await?;
        if !ran {
            return Ok(ExchangeOutcome::Installed);
        }
        if !files_changed {
            return Ok(ExchangeOutcome::Unchanged);
        }
        // Steps run in their own units, and are found again.
        self.units.restart().await?;
        Ok(ExchangeOutcome::Reconfigured)
    }

    /// Installs keys that are trusted to sign bundles for this host, by file name.
    pub fn trust(&self, keys: &BTreeMap<String, String>) -> Result<(), FileError> {
        for (name, key) in keys {
            self.file(&format!("{KEYS}/{name}"), key, 0o644)?;
        }
        Ok(())
    }

    async fn lock(&self) -> Result<Lock, InstallError> {
        for _ in 0..LOCK_TRIES {
            if let Some(locked) = self.layout.lock()? {
                return Ok(locked);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Err(InstallError::Busy)
    }

    /// Whether the host runs this program and it has reported.
    pub async fn is_settled(&self, program: &[u8]) -> bool {
        self.layout.get(Link::Current).as_deref() == Some(id_of(program).as_str())
            && self.layout.trial().is_none()
            && self.units.is_active().await.unwrap_or(false)
    }

    /// Removes the service and the program; with `state` also the journal, snapshots and settings.
    pub async fn uninstall(&self, state: Option<&Path>) -> Result<(), InstallError> {
        self.units.disable().await?;
        self.units.forget_trial().await;
        remove(&self.path(UNIT_FILE))?;
        remove(&self.path(INSTALLED_SETTINGS))?;
        self.units.reload().await?;
        remove_all(self.layout.base())?;
        if let Some(state) = state {
            remove_all(&self.path(state))?;
            remove_all(&self.path(FETCHED))?;
            let settings = self.path(INSTALLED_SETTINGS);
            if let Some(directory) = settings.parent() {
                remove_all(directory)?;
            }
        }
        Ok(())
    }

    fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn check_rejection(&self, id: &str, now: Timestamp) -> Result<(), InstallError> {
        let file = self.layout.rejection(id);
        let Some((at, why)) =
            fs::read_to_string(&file).ok().and_then(|text| exchange::read_rejection(&text))
        else {
            return Ok(());
        };
        let age = now.duration_since(at);
        let minutes = age.as_mins();
        // A rejection in the future was written before the clock was set back: its age is unknown.
        if age.is_negative() || age.unsigned_abs() >= REJECTED_FOR {
            remove(&file)?;
            return Ok(());
        }
        Err(InstallError::Rejected { id: id.to_owned(), minutes, why, file })
    }

    async fn check_runs(&self, id: &str) -> Result<(), InstallError> {
        let path = self.layout.program(id);
        let broken = |reason: String| InstallError::DoesNotRun {
            program: path.display().to_string(),
            reason,
        };
        let output = self.units.run(&path, &["--version"]).await;
        let output = output.map_err(|error| broken(error.to_string()))?;
        if output.starts_with("refit-agent ") {
            Ok(())
        } else {
            Err(broken(format!("unexpected output {:?}", output.trim())))
        }
    }

    /// Writes the unit and the settings, and returns whether a file changed. If another version
    /// runs, its unit is saved until the new one has reported.
    fn files(
        &self,
        settings: &BTreeMap<String, String>,
        other: Option<&str>,
    ) -> Result<bool, FileError> {
        let kept = self.layout.previous_unit();
        let there = fs::read_to_string(self.path(UNIT_FILE)).ok();
        if let Some(old) = there.filter(|old| other.is_some() && *old != unit())
            && !kept.exists()
        {
            write_atomic(&kept, old.as_bytes(), 0o644)?;
        }
        let unit_changed = self.file(UNIT_FILE, &unit(), 0o644)?;
        let old = fs::read_to_string(self.path(INSTALLED_SETTINGS)).unwrap_or_default();
        // Without new settings, those of an earlier installation are kept.
        let settings_changed = !settings.is_empty()
            && self.file(INSTALLED_SETTINGS, &settings_file(&old, settings), 0o600)?;
        Ok(unit_changed || settings_changed)
    }

    fn file(&self, path: &str, text: &str, mode: u32) -> Result<bool, FileError> {
        let path = self.path(path);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(false);
        }
        write_atomic(&path, text.as_bytes(), mode)?;
        Ok(true)
    }

    /// Sets the SELinux labels: systemd starts only files that are labelled as programs.
    async fn label(&self) {
        if !self.path(RESTORECON).exists() {
            return;
        }
        let base = self.layout.base().display().to_string();
        if let Err(error) = self.units.run(Path::new(RESTORECON), &["-RF", &base]).await {
            tracing::warn!(%error, "cannot set the SELinux label of the program");
        }
    }
}

/// The version of systemd in the output of `systemctl --version`, if the agent cannot work with it.
fn too_old(output: &str) -> Option<u32> {
    let version = output.strip_prefix("systemd ")?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|&found| found < SYSTEMD)
}

fn remove_all(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(super::layout::at(path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
