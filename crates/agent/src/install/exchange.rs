//! One version for another, and back where the new one does not report.
//!
//! ```text
//! running agent    no step is under way, it has reported itself, `wanted` names another version
//!                  -> trial = new, previous = old, current = new, ends; systemd starts it again
//! systemd          starts `previous/refit-agent guard` first: a trial gets a timer
//! new agent        has reported -> no trial any more
//! timer            `end-trial` of the old one: still a trial -> current = old, new one rejected
//! ```
//!
//! The timer is set before every start, so a trial outlives a reboot; and all of it is on disk, so
//! it does not matter when the power goes.

use std::{fs, path::Path, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    layout::{FileError, Layout, Link, at, remove, write_atomic},
    service::{InstallError, Units},
    unit::UNIT_FILE,
};

/// How long a new version may take to report. The agent reports at once and every five minutes.
pub const TRIAL_SECONDS: u64 = 600;
/// How often it is looked whether another version is wanted.
const LOOK: Duration = Duration::from_mins(1);

/// What an exchange ends with.
pub type ExchangeError = InstallError;

/// Makes another version the current one, on trial where there is one to go back to.
pub(crate) fn switch(layout: &Layout, id: &str) -> Result<(), FileError> {
    match layout.get(Link::Current) {
        // The unit starts it before each start, and it then finds nothing to do.
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

/// Waits until another version is wanted and may take over: this one has reported, and no step is
/// under way. Then makes it the current one; whoever called ends, and systemd starts it.
///
/// `own` is the version that runs; any other current version is none of its business.
pub async fn exchanged(
    layout: &Layout,
    own: &str,
    mut reported: watch::Receiver<bool>,
    mut between_steps: watch::Receiver<bool>,
) -> Result<String, FileError> {
    holds(&mut reported).await;
    loop {
        let wanted = layout.get(Link::Wanted).filter(|wanted| wanted != own);
        let ours = layout.get(Link::Current).as_deref() == Some(own);
        // One on trial has to end that first.
        if let Some(wanted) = wanted.filter(|_| ours && layout.trial().is_none()) {
            holds(&mut between_steps).await;
            switch(layout, &wanted)?;
            return Ok(wanted);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends the trial of the version that runs, once it has reported.
pub async fn confirmed(
    layout: &Layout,
    own: &str,
    mut reported: watch::Receiver<bool>,
    units: &dyn Units,
) -> Result<(), FileError> {
    holds(&mut reported).await;
    if layout.trial().as_deref() == Some(own) {
        layout.end_trial()?;
        remove(&layout.previous_unit())?;
        units.forget_trial().await;
        layout.prune();
        tracing::info!(version = own, "this version has reported and stays");
    }
    Ok(())
}

async fn holds(value: &mut watch::Receiver<bool>) {
    if value.wait_for(|value| *value).await.is_err() {
        // Whoever would tell is gone, and with it the agent.
        std::future::pending::<()>().await;
    }
}

/// Has a trial ended after its time; run before each start of the service, by the version of before.
pub async fn guard(layout: &Layout, units: &dyn Units) -> Result<(), InstallError> {
    let Some(trial) = layout.trial() else {
        return Ok(());
    };
    let previous = layout.get(Link::Previous).filter(|id| *id != trial);
    let current = layout.get(Link::Current);
    // Not switched where the power went before the links were changed.
    let Some(previous) = previous.filter(|_| current.as_deref() == Some(trial.as_str())) else {
        units.forget_trial().await;
        return Ok(layout.end_trial()?);
    };
    let program = layout.program(&previous);
    Ok(units.watch_trial(&program, TRIAL_SECONDS).await?)
}

/// Goes back to the version of before where the new one has not reported; whether it did. `root` is
/// the host's, for the unit.
pub async fn end_trial(
    layout: &Layout,
    root: &Path,
    units: &dyn Units,
    now: Timestamp,
) -> Result<bool, InstallError> {
    let Some(trial) = layout.trial() else {
        return Ok(false);
    };
    // Else the timer of this trial would end the next one before its time.
    units.forget_trial().await;
    let previous = layout.get(Link::Previous).filter(|id| *id != trial);
    let current = layout.get(Link::Current);
    let Some(previous) = previous.filter(|_| current.as_deref() == Some(trial.as_str())) else {
        layout.end_trial()?;
        return Ok(false);
    };
    let why = format!("it did not report within {TRIAL_SECONDS} s");
    reject(&layout.rejection(&trial), now, &why)?;
    layout.set(Link::Current, &previous)?;
    if layout.get(Link::Wanted).as_deref() == Some(trial.as_str()) {
        layout.clear(Link::Wanted)?;
    }
    put_unit_back(layout, root, units).await?;
    layout.end_trial()?;
    units.restart().await?;
    Ok(true)
}

/// The unit that the version of before was started by: the new one's may start it otherwise, or
/// forbid it what it needs.
async fn put_unit_back(
    layout: &Layout,
    root: &Path,
    units: &dyn Units,
) -> Result<(), InstallError> {
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

/// When and why a version was rejected.
pub(super) fn read_rejection(text: &str) -> Option<(Timestamp, String)> {
    let (at, why) = text.split_once('\n')?;
    Some((at.parse().ok()?, why.trim().to_owned()))
}

/// The version that this process is, where it was started from the layout.
pub fn own_version(layout: &Layout, program: &Path) -> Option<String> {
    let id = program.parent()?.file_name()?.to_str()?;
    (layout.program(id) == program).then(|| id.to_owned())
}
