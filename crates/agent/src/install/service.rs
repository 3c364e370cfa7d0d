//! Installing and removing the service. Both may be run again at any time and end the same.

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
    layout::{FileError, Layout, Link, id_of, remove, write_atomic},
    unit::{INSTALLED_SETTINGS, SERVICE, UNIT_FILE, settings_file, unit},
};
use crate::host::{Invocation, Program, ProgramError, bundle::KEYS};

/// For how long a version that was rejected on this host is not tried again there.
pub(super) const REJECTED_FOR: Duration = Duration::from_hours(1);
/// For how many seconds another installation is waited for.
const LOCK_TRIES: u32 = 30;
/// Labels files, where the host has SELinux.
const RESTORECON: &str = "/usr/sbin/restorecon";

/// Why the agent could not be installed, exchanged or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// systemd refused.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The program does not run on this host.
    #[error(
        "{program} does not run on this host ({reason}); it needs the same processor and a C library \
         that is not older than the one it was built with"
    )]
    DoesNotRun {
        /// The program.
        program: String,
        /// What it said.
        reason: String,
    },
    /// Another installation is under way.
    #[error("another installation is under way on this host; try again when it has ended")]
    Busy,
    /// It was tried here and did not report.
    #[error(
        "version {id} was rejected on this host {minutes} min ago: {why}; it is tried again after an \
         hour, or at once where {} is removed",
        file.display()
    )]
    Rejected {
        /// The version.
        id: String,
        /// Since when.
        minutes: i64,
        /// Why.
        why: String,
        /// The file that says so.
        file: PathBuf,
    },
}

/// What systemd is told about the service: a trait, so that a test needs no systemd.
pub trait Units: Send + Sync {
    /// Reads unit files anew.
    fn reload(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Starts the service now and at every boot.
    fn enable(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Stops it now and at every boot; one that is not there is fine.
    fn disable(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Starts it anew.
    fn restart(&self) -> BoxFuture<'_, Result<(), ProgramError>>;
    /// Whether it runs.
    fn is_active(&self) -> BoxFuture<'_, Result<bool, ProgramError>>;
    /// Has `program end-trial` run after some seconds, unless that is so already.
    fn watch_trial<'a>(
        &'a self,
        program: &'a Path,
        seconds: u64,
    ) -> BoxFuture<'a, Result<(), ProgramError>>;
    /// Takes that back.
    fn forget_trial(&self) -> BoxFuture<'_, ()>;
    /// Runs a program of the host and returns what it says.
    fn run<'a>(
        &'a self,
        program: &'a Path,
        arguments: &'a [&'a str],
    ) -> BoxFuture<'a, Result<String, ProgramError>>;
}

/// Timer that ends a trial.
const TRIAL: &str = "refit-agent-trial";

/// The host's systemd; in a container after the host's root has been entered.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemdUnits;

async fn systemctl(arguments: &[&str]) -> Result<String, ProgramError> {
    let call = Invocation::new(Program::Systemctl, arguments.iter().copied());
    // In a container that has entered the host's root it takes that for a chroot.
    let call = call.with_environment("SYSTEMD_IGNORE_CHROOT", "1");
    call.output().await
}

async fn told(arguments: &[&str]) -> Result<(), ProgramError> {
    systemctl(arguments).await.map(|_| ())
}

async fn says_active(unit: &str) -> Result<bool, ProgramError> {
    match told(&["is-active", "--quiet", unit]).await {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.code(), Some(NOT_ACTIVE | NO_SUCH_UNIT)) => Ok(false),
        // systemd that does not answer says nothing about the unit.
        Err(error) => Err(error),
    }
}

impl Units for SystemdUnits {
    fn reload(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(told(&["daemon-reload"]))
    }

    fn enable(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(told(&["enable", "--now", SERVICE]))
    }

    fn disable(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(async {
            let known = systemctl(&["show", SERVICE, "--property=LoadState", "--value"]).await?;
            if known.trim() == "not-found" {
                return Ok(());
            }
            told(&["disable", "--now", SERVICE]).await
        })
    }

    fn restart(&self) -> BoxFuture<'_, Result<(), ProgramError>> {
        Box::pin(told(&["restart", SERVICE]))
    }

    fn is_active(&self) -> BoxFuture<'_, Result<bool, ProgramError>> {
        Box::pin(says_active(SERVICE))
    }

    fn watch_trial<'a>(
        &'a self,
        program: &'a Path,
        seconds: u64,
    ) -> BoxFuture<'a, Result<(), ProgramError>> {
        Box::pin(async move {
            let timer = format!("{TRIAL}.timer");
            if says_active(&timer).await? {
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
            if let Err(error) = told(&["stop", &timer]).await {
                tracing::debug!(%error, "no trial was watched");
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
/// The same for one that it does not know.
const NO_SUCH_UNIT: i32 = 4;

/// What an installation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// The service runs this version; it ran none before.
    Installed,
    /// The service ran this version already.
    Unchanged,
    /// It ran this version already, and was started anew with other settings or another unit.
    Reconfigured,
    /// Another version runs, and exchanges itself once no step is under way.
    Wanted {
        /// That version.
        running: String,
    },
    /// Another version was there and did not run, or one of a package ran: this one does now.
    Replaced,
}

/// An installation on a host.
pub struct Installation<'a> {
    /// Where the program's versions are.
    pub layout: Layout,
    /// The host's root, for the unit and its settings.
    pub root: PathBuf,
    /// systemd.
    pub units: &'a dyn Units,
}

impl std::fmt::Debug for Installation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Installation").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Installation<'_> {
    /// Puts a program on the host and has it run as the service, now or once no step is under way.
    pub async fn install(
        &self,
        program: &[u8],
        settings: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<ExchangeOutcome, InstallError> {
        let id = id_of(program);
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
        // One that fails again and again is not active, and would not be started by that; one of a
        // package runs, and would go on. What it has under way goes on without it.
        self.units.restart().await?;
        Ok(ExchangeOutcome::Replaced)
    }

    /// The version stays that is there; its service gets what has changed.
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
        // Steps run in units of their own, and are found again.
        self.units.restart().await?;
        Ok(ExchangeOutcome::Reconfigured)
    }

    /// Has keys trusted to sign bundles for this host, each by the name of its file.
    pub fn trust(&self, keys: &BTreeMap<String, String>) -> Result<(), FileError> {
        for (name, key) in keys {
            self.file(&format!("{KEYS}/{name}"), key, 0o644)?;
        }
        Ok(())
    }

    async fn lock(&self) -> Result<fs::File, InstallError> {
        for _ in 0..LOCK_TRIES {
            if let Some(locked) = self.layout.lock()? {
                return Ok(locked);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Err(InstallError::Busy)
    }

    /// Whether the host runs this program, and it has reported.
    pub async fn is_settled(&self, program: &[u8]) -> bool {
        self.layout.get(Link::Current).as_deref() == Some(id_of(program).as_str())
            && self.layout.trial().is_none()
            && self.units.is_active().await.unwrap_or(false)
    }

    /// Removes service and program. With `state` its journal, snapshots and settings too.
    pub async fn uninstall(&self, state: Option<&Path>) -> Result<(), InstallError> {
        self.units.disable().await?;
        self.units.forget_trial().await;
        remove(&self.path(UNIT_FILE))?;
        remove(&self.path(INSTALLED_SETTINGS))?;
        self.units.reload().await?;
        remove_all(self.layout.base())?;
        if let Some(state) = state {
            remove_all(&self.path(state))?;
            let settings = self.path(INSTALLED_SETTINGS);
            if let Some(folder) = settings.parent() {
                remove_all(folder)?;
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
        // One of the future was written before the clock was set back: nobody knows how old it is.
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
        let said = self.units.run(&path, &["--version"]).await;
        let said = said.map_err(|error| broken(error.to_string()))?;
        if said.starts_with("refit-agent ") {
            Ok(())
        } else {
            Err(broken(format!("it says {:?}", said.trim())))
        }
    }

    /// Whether a file was written. The unit of another version that runs is kept until the new one
    /// has reported.
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
        // Without settings those of an earlier installation stay.
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

    /// Where SELinux is in force, systemd starts only what is labelled as a program.
    async fn label(&self) {
        if !self.path(RESTORECON).exists() {
            return;
        }
        let base = self.layout.base().display().to_string();
        if let Err(error) = self.units.run(Path::new(RESTORECON), &["-RF", &base]).await {
            tracing::warn!(%error, "the program may not be labelled for SELinux");
        }
    }
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
