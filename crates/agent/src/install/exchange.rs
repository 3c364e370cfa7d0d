//! Replaces one version by another, and restores the previous one if the new one does not report.
//!
//! ```text
//! running agent    no step in progress, it has reported itself, `wanted` names another version
//!                  -> trial = new, previous = old, current = new, exits; systemd restarts it
//! systemd          starts `previous/refit-agent guard` first: a trial gets a timer
//! new agent        has reported -> the trial is over
//! timer            `end-trial` of the old one: still a trial -> current = old, new one rejected
//! ```
//!
//! The timer is set before every start, so a trial outlives a reboot. The whole state is on disk,
//! so the host may lose power at any point.

use std::{fs, path::Path, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    layout::{FileError, Layout, Link, at, remove, write_atomic},
    service::{InstallError, Units},
    unit::UNIT_FILE,
};

/// How long a new version may take to report. The agent reports at its start and every five
/// minutes.
pub const TRIAL_SECONDS: u64 = 600;
/// How often the wanted version is checked.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Why a replacement failed.
pub type ExchangeError = InstallError;

/// Makes another version the current one, on trial if there is a previous version.
pub(crate) fn switch(layout: &Layout, id: &str) -> Result<(), FileError> {
    match layout.get(Link::Current) {
        // Every start of the unit runs the previous version first; this one then finds no trial.
        None => layout.set(Link::Previous, id)?,
        Some(old) if old != id => {
            layout.begin_trial(id)?;
            layout.set(Link::Previous, &old)?;
        }
        Some(_) => {}
    }
    layout.set(Link::Current, id)?;
    layout.clear(Link::Wanted)
}

/// Waits until another version is wanted and may take over: this version has reported, and no step
/// is in progress. Then makes the wanted version the current one. The caller exits, and systemd
/// starts the new version.
///
/// `own` is the version of this process. If another version is current, this process does nothing.
pub async fn exchanged(
    layout: &Layout,
    own: &str,
    mut reported: watch::Receiver<bool>,
    mut between_steps: watch::Receiver<bool>,
) -> Result<String, FileError> {
    wait_until_true(&mut reported).await;
    loop {
        let wanted = layout.get(Link::Wanted).filter(|wanted| wanted != own);
        let own_is_current = layout.get(Link::Current).as_deref() == Some(own);
        // A version on trial has to end its trial first.
        if let Some(wanted) = wanted.filter(|_| own_is_current && layout.trial().is_none()) {
            wait_until_true(&mut between_steps).await;
            switch(layout, &wanted)?;
            return Ok(wanted);
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Ends the trial of the running version once it has reported.
pub async fn confirmed(
    layout: &Layout,
    own: &str,
    mut reported: watch::Receiver<bool>,
    units: &dyn Units,
) -> Result<(), FileError> {
    wait_until_true(&mut reported).await;
    if layout.trial().as_deref() == Some(own) {
        layout.end_trial()?;
        remove(&layout.previous_unit())?;
        units.forget_trial().await;
        layout.prune();
        tracing::info!(version = own, "new agent version has reported, trial ended");
    }
    Ok(())
}

async fn wait_until_true(value: &mut watch::Receiver<bool>) {
    if value.wait_for(|value| *value).await.is_err() {
        // The sender is gone, and the agent with it.
        std::future::pending::<()>().await;
    }
}

/// Starts the timer that ends a trial. The previous version runs it before each start of the
/// service.
pub async fn guard(layout: &Layout, units: &dyn Units) -> Result<(), InstallError> {
    let Some(trial) = layout.trial() else {
        return Ok(());
    };
    let previous = layout.get(Link::Previous).filter(|id| *id != trial);
    let current = layout.get(Link::Current);
    // If the power failed before the links were changed, the trial has not begun.
    let Some(previous) = previous.filter(|_| current.as_deref() == Some(trial.as_str())) else {
        units.forget_trial().await;
        return Ok(layout.end_trial()?);
    };
    let program = layout.program(&previous);
    Ok(units.watch_trial(&program, TRIAL_SECONDS).await?)
}

/// Restores the previous version if the new one has not reported. Returns whether it did. `root` is
/// the host's root, for the unit.
pub async fn end_trial(
    layout: &Layout,
    root: &Path,
    units: &dyn Units,
    now: Timestamp,
) -> Result<bool, InstallError> {
    let Some(trial) = layout.trial() else {
        return Ok(false);
    };
    // Otherwise the timer of this trial would end the next trial too early.
    units.forget_trial().await;
    let previous = layout.get(Link::Previous).filter(|id| *id != trial);
    let current = layout.get(Link::Current);
    let Some(previous) = previous.filter(|_| current.as_deref() == Some(trial.as_str())) else {
        layout.end_trial()?;
        return Ok(false);
    };
    let why = format!("the version did not report within {TRIAL_SECONDS} s");
    reject(&layout.rejection(&trial), now, &why)?;
    layout.set(Link::Current, &previous)?;
    if layout.get(Link::Wanted).as_deref() == Some(trial.as_str()) {
        layout.clear(Link::Wanted)?;
    }
    restore_unit(layout, root, units).await?;
    layout.end_trial()?;
    units.restart().await?;
    Ok(true)
}

/// Restores the unit of the previous version. The unit of the new version may start the program
/// differently, or may forbid what the previous version needs.
async fn restore_unit(layout: &Layout, root: &Path, units: &dyn Units) -> Result<(), InstallError> {
    let kept = layout.previous_unit();
    let text = match fs::read(&kept) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(&kept)(error).into()),
    };
    let unit = root.join(UNIT_FILE.trim_start_matches('/'));
    write_atomic(&unit, &text, 0o644)?;
    units.reload().await?;
    Ok(remove(&kept)?)
}

fn reject(file: &Path, now: Timestamp, why: &str) -> Result<(), FileError> {
    write_atomic(file, format!("{now}\n{why}\n").as_bytes(), 0o644)
}

/// Reads when and why a version was rejected.
pub(super) fn read_rejection(text: &str) -> Option<(Timestamp, String)> {
    let (at, why) = text.split_once('\n')?;
    Some((at.parse().ok()?, why.trim().to_owned()))
}

/// Returns the version of this process, if its program is in the layout.
pub fn own_version(layout: &Layout, program: &Path) -> Option<String> {
    let id = program.parent()?.file_name()?.to_str()?;
    (layout.program(id) == program).then(|| id.to_owned())
}
