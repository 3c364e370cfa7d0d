//! The OS image, updated by Trident: written next to the running image, booted once, then committed
//! or rolled back.
//!
//! | step | precondition | action |
//! |---|---|---|
//! | stage | the image is neither staged nor running, and the agent's state outlives the update | `update --allowed-operations stage` |
//! | finalize | the image is staged | `update --allowed-operations finalize`; a separate step reboots the host |
//! | commit | the host has booted since | `commit`, then check the result |
//! | undo | any | depending on the progress: leave it staged, delete the next boot entry, or roll back |
//!
//! A configuration is submitted only if another image is wanted: an identical configuration with
//! scripts would be another full update (`docs/facts/trident.md#scripts-force-an-update`), and a
//! change of anything else would be recorded but not applied
//! (`docs/facts/trident.md#changes-that-are-not-applied`).

mod ab;
mod cli;
mod config;
mod status;

use std::{fs, path::PathBuf, time::Duration};

use refit_kinds::refit::OsImageArgs;
use serde_json::Value;

pub use self::{cli::TridentCli, status::Situation};
use self::{
    cli::{Operation, Trident},
    status::{Before, Servicing, situation},
};
use super::{
    Evidence, Site,
    files::atomic::{self, Access},
    work::WorkError,
};

/// How long to wait for a commit by Trident's own service, or for a rollback.
const SETTLE: Duration = Duration::from_mins(10);
const POLL: Duration = Duration::from_secs(2);

/// The update of a host to an OS image.
pub struct OsImage<'a> {
    site: &'a Site,
    trident: &'a dyn Trident,
    plan: &'a str,
    wanted: &'a OsImageArgs,
}

impl std::fmt::Debug for OsImage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OS image {} of plan {}", self.wanted.url, self.plan)
    }
}

impl<'a> OsImage<'a> {
    /// The image of a plan.
    pub fn new(
        site: &'a Site,
        trident: &'a dyn Trident,
        plan: &'a str,
        wanted: &'a OsImageArgs,
    ) -> Self {
        Self { site, trident, plan, wanted }
    }

    fn before_path(&self) -> PathBuf {
        self.site.snapshot(self.plan).join("os-image.json")
    }

    fn config_path(&self) -> PathBuf {
        self.site.snapshot(self.plan).join("host-configuration.yaml")
    }

    fn before(&self) -> Option<Before> {
        let text = fs::read(self.before_path()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn keep(&self, before: &Before) -> Result<(), WorkError> {
        let text = serde_json::to_vec(before).expect("plain data serialises to JSON");
        atomic::replace(&self.before_path(), &text, Access::of_mode(0o600))?;
        Ok(())
    }

    fn boot_id(&self) -> String {
        self.site.read("/proc/sys/kernel/random/boot_id").trim().to_owned()
    }

    /// The progress of the update.
    pub async fn situation(&self) -> Result<Situation, WorkError> {
        Ok(match self.trident.status().await? {
            None => Situation::NotManaged,
            Some(status) => {
                situation(&status, self.wanted, self.before().as_ref(), &self.boot_id())
            }
        })
    }

    /// Writes the image to the inactive volumes.
    pub async fn stage(&self) -> Result<(), WorkError> {
        match self.situation().await? {
            Situation::Done | Situation::Staged | Situation::AwaitsBoot => return Ok(()),
            Situation::NeedsUpdate | Situation::OtherStaged => {}
            other @ (Situation::NotManaged
            | Situation::AwaitsCommit
            | Situation::RollingBack
            | Situation::RolledBack { .. }
            | Situation::Busy { .. }) => return Err(refused(&other, "staged")),
        }
        let status = self.trident.status().await?.unwrap_or_default();
        let is_staged = status.servicing_state == Servicing::AbUpdateStaged;
        // While another image is staged, `spec` is the staged and `specOld` the running
        // configuration.
        let running = if is_staged { &status.spec_old } else { &status.spec };
        let image = running.get("image").and_then(|image| image.get("sha384")?.as_str());
        let image = image.map(str::to_owned);
        self.keep(&Before {
            active_volume: status.ab_active_volume.clone(),
            image,
            finalized_in: String::new(),
        })?;
        let current =
            if is_staged { status.spec_old } else { self.trident.configuration().await? };
        self.require_lasting_state(&current)?;
        for warning in config::warnings(&current) {
            self.site.log(&format!("warning: {warning}"));
        }
        let config = config::configuration(&current, self.wanted)?;
        let file = self.config_path();
        // JSON is valid YAML. Scripts and files in it may be confidential.
        let text = format!("{config:#}\n");
        atomic::replace(&file, text.as_bytes(), Access::of_mode(0o600))?;
        self.trident.validate(&file).await?;
        self.trident.update(&file, Operation::Stage).await?;
        let found = self.situation().await?;
        if found != Situation::Staged {
            return Err(WorkError::retriable(format!(
                "Trident staged the image, but reports the host as {found:?}"
            )));
        }
        Ok(())
    }

    /// Refuses an update that would take the agent's journal away: the next system would find none,
    /// and would not know what was done.
    fn require_lasting_state(&self, config: &Value) -> Result<(), WorkError> {
        let state = self.site.state();
        let real = fs::canonicalize(state).map_err(|error| WorkError::file(state, &error))?;
        let mounts = self.site.read("/proc/self/mountinfo");
        match ab::exchanged_volume(config, &mounts, &real) {
            None => Ok(()),
            Some(volume) => Err(WorkError::needs_person(format!(
                "the state directory {} of the agent is on the A/B volume {volume}, which an update of \
                 the OS image exchanges; put it on a volume that both systems mount, or set \
                 REFIT_AGENT_STATE_DIR to a directory there",
                state.display()
            ))),
        }
    }

    /// Makes the staged image the next to boot.
    pub async fn finalize(&self) -> Result<(), WorkError> {
        match self.situation().await? {
            Situation::Done | Situation::AwaitsBoot => return Ok(()),
            Situation::Staged => {}
            // In any other state, finalize could stage, finalize and boot an image by itself.
            other @ (Situation::NotManaged
            | Situation::NeedsUpdate
            | Situation::OtherStaged
            | Situation::AwaitsCommit
            | Situation::RollingBack
            | Situation::RolledBack { .. }
            | Situation::Busy { .. }) => return Err(refused(&other, "finalized")),
        }
        if let Some(path) = self.wanted.url.strip_prefix("file://")
            && !self.site.path(path).exists()
        {
            return Err(WorkError::needs_person(format!(
                "{path} no longer exists, but Trident reads the image's metadata again when it \
                 finalizes; restore the file"
            )));
        }
        // Recorded first: after a kill it shows which boot was the last without the new image.
        let before = self.before().unwrap_or_default();
        self.keep(&Before { finalized_in: self.boot_id(), ..before })?;
        self.trident.update(&self.config_path(), Operation::Finalize).await?;
        let found = self.situation().await?;
        if found != Situation::AwaitsBoot {
            return Err(WorkError::retriable(format!(
                "Trident finalized the image, but reports the host as {found:?}"
            )));
        }
        Ok(())
    }

    /// Commits the image after the boot, and checks that it was kept.
    pub async fn commit(&self) -> Result<(), WorkError> {
        let tries = SETTLE.as_secs() / POLL.as_secs().max(1);
        let mut asked = false;
        for _ in 0..tries {
            match self.situation().await? {
                Situation::Done => return Ok(()),
                Situation::AwaitsCommit if !asked => {
                    asked = true;
                    // Trident's own service also commits. The second commit does nothing.
                    if let Err(error) = self.trident.commit().await {
                        self.site.log(&format!("the commit reports: {error}"));
                    }
                    continue;
                }
                Situation::AwaitsCommit | Situation::RollingBack => {}
                other @ (Situation::NotManaged
                | Situation::NeedsUpdate
                | Situation::Staged
                | Situation::OtherStaged
                | Situation::AwaitsBoot
                | Situation::RolledBack { .. }
                | Situation::Busy { .. }) => return Err(refused(&other, "committed")),
            }
            tokio::time::sleep(POLL).await;
        }
        Err(WorkError::retriable(
            "the host booted the image, but Trident did not commit or reject it within 10 \
             minutes; check `journalctl -u trident`",
        ))
    }

    /// Rolls back, so that the image is not booted next.
    pub async fn undo(&self) -> Result<(), WorkError> {
        match self.situation().await? {
            Situation::Done
                if self.before().is_some_and(|before| !before.finalized_in.is_empty()) =>
            {
                self.trident.rollback().await
            }
            Situation::NotManaged
            | Situation::NeedsUpdate
            | Situation::OtherStaged
            | Situation::Done
            | Situation::RolledBack { .. }
            | Situation::Busy {
                what: Servicing::ManualRollbackAbStaged | Servicing::ManualRollbackAbFinalized,
            } => Ok(()),
            Situation::Staged => self.unstage().await,
            Situation::AwaitsBoot => {
                self.trident.forget_next_boot().await?;
                // An error is expected: as after a failed boot, the commit finds the old root
                // running.
                if let Err(error) = self.trident.commit().await {
                    self.site.log(&format!("the commit reports, as expected: {error}"));
                }
                match self.situation().await? {
                    Situation::NeedsUpdate | Situation::RolledBack { .. } => Ok(()),
                    other @ (Situation::NotManaged
                    | Situation::Staged
                    | Situation::OtherStaged
                    | Situation::AwaitsBoot
                    | Situation::AwaitsCommit
                    | Situation::RollingBack
                    | Situation::Done
                    | Situation::Busy { .. }) => Err(refused(&other, "rolled back")),
                }
            }
            other @ (Situation::AwaitsCommit | Situation::RollingBack | Situation::Busy { .. }) => {
                Err(refused(&other, "rolled back"))
            }
        }
    }

    /// Discards a staged image, which is never booted by itself. If the old configuration has no
    /// scripts, submitting it makes Trident discard the staged image. With scripts this would be
    /// another update, so the image stays staged.
    async fn unstage(&self) -> Result<(), WorkError> {
        let status = self.trident.status().await?.unwrap_or_default();
        if status.spec_old.is_null() || config::has_scripts(&status.spec_old) {
            self.site.log("the image stays staged, but will not boot");
            return Ok(());
        }
        let file = self.config_path();
        let text = format!("{:#}\n", status.spec_old);
        atomic::replace(&file, text.as_bytes(), Access::of_mode(0o600))?;
        self.trident.update(&file, Operation::Stage).await
    }

    /// Whether the image is staged, or in a later state.
    pub async fn is_staged(&self) -> Result<Evidence, WorkError> {
        let found = self.situation().await?;
        let done = matches!(found, Situation::Staged | Situation::AwaitsBoot | Situation::Done);
        Ok(Evidence::from_check(done, || describe(&found)))
    }

    /// Whether the image is booted next, or was booted.
    pub async fn is_finalized(&self) -> Result<Evidence, WorkError> {
        let found = self.situation().await?;
        let done =
            matches!(found, Situation::AwaitsBoot | Situation::AwaitsCommit | Situation::Done);
        Ok(Evidence::from_check(done, || describe(&found)))
    }

    /// Whether the image is running and committed.
    pub async fn is_committed(&self) -> Result<Evidence, WorkError> {
        let found = self.situation().await?;
        Ok(Evidence::from_check(found == Situation::Done, || describe(&found)))
    }

    /// Whether the image is not booted next.
    pub async fn is_undone(&self) -> Result<Evidence, WorkError> {
        let status = self.trident.status().await?.unwrap_or_default();
        let back = [Servicing::ManualRollbackAbFinalized, Servicing::ManualRollbackAbStaged];
        if back.contains(&status.servicing_state) {
            return Ok(Evidence::Done);
        }
        let found = self.situation().await?;
        let in_progress = matches!(
            found,
            Situation::AwaitsBoot | Situation::AwaitsCommit | Situation::RollingBack
        );
        let kept = found == Situation::Done
            && self.before().is_some_and(|before| !before.finalized_in.is_empty());
        Ok(Evidence::from_check(!in_progress && !kept, || describe(&found)))
    }
}

fn describe(found: &Situation) -> String {
    match found {
        Situation::NotManaged => "Trident does not manage the host".to_owned(),
        Situation::NeedsUpdate => {
            "the host runs another image, and this one is not staged".to_owned()
        }
        Situation::Staged => "the image is staged, but the next boot does not use it".to_owned(),
        Situation::OtherStaged => "another image is staged".to_owned(),
        Situation::AwaitsBoot => "the host has not booted the image yet".to_owned(),
        Situation::AwaitsCommit => "the image has booted, but is not committed yet".to_owned(),
        Situation::RollingBack => {
            "the image failed its health checks; the old one boots again".to_owned()
        }
        Situation::Done => "the image runs".to_owned(),
        Situation::RolledBack { error } => {
            format!("the host has booted the previous image again: {error}")
        }
        Situation::Busy { what } => {
            format!("Trident is in state {what:?}, which Refit did not start")
        }
    }
}

fn refused(found: &Situation, verb: &str) -> WorkError {
    let what = describe(found);
    match found {
        Situation::NotManaged => WorkError::needs_person(format!(
            "the OS image cannot be {verb}: {what}; install the host with Trident"
        )),
        Situation::RolledBack { .. } => WorkError::needs_person(format!(
            "the OS image cannot be {verb}: {what}; the old OS runs: fix the image, or what its \
             health checks test, and try again"
        )),
        Situation::AwaitsCommit | Situation::RollingBack | Situation::AwaitsBoot => {
            WorkError::retriable(format!("the OS image cannot be {verb} yet: {what}"))
        }
        Situation::NeedsUpdate
        | Situation::Staged
        | Situation::OtherStaged
        | Situation::Done
        | Situation::Busy { .. } => {
            WorkError::needs_person(format!("the OS image cannot be {verb}: {what}"))
        }
    }
}
