//! The OS image, by Trident: written beside the one that runs, booted once, kept or left.
//!
//! | step | asks first | does |
//! |---|---|---|
//! | stage | is it there or running already? | `update --allowed-operations stage` |
//! | finalize | is it the one that is staged? | `update --allowed-operations finalize`; the host is rebooted by a step of its own |
//! | commit | has the host booted since? | `commit`, and reads back how it went |
//! | undo | how far did it come? | leaves it staged, takes the next boot back, or rolls back |
//!
//! Nothing is submitted unless another image is wanted: an identical configuration with scripts
//! would be one more whole update (`spec/node.md 1.9 c`), and a change of anything else would be
//! recorded and not applied (`1.9 d`).

mod cli;
mod config;
mod status;

use std::{fs, path::PathBuf, time::Duration};

use refit_kinds::refit::OsImageArgs;

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

/// How long a commit of Trident's own service, or a rollback, is waited for.
const SETTLE: Duration = Duration::from_mins(10);
const POLL: Duration = Duration::from_secs(2);

/// An image on its way to a host.
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
        let text = serde_json::to_vec(before).expect("plain data can be written as JSON");
        atomic::replace(&self.before_path(), &text, Access::of_mode(0o600))?;
        Ok(())
    }

    fn boot_id(&self) -> String {
        self.site.read("/proc/sys/kernel/random/boot_id").trim().to_owned()
    }

    /// Where the host stands.
    pub async fn situation(&self) -> Result<Situation, WorkError> {
        Ok(match self.trident.status().await? {
            None => Situation::NotManaged,
            Some(status) => {
                situation(&status, self.wanted, self.before().as_ref(), &self.boot_id())
            }
        })
    }

    /// Writes the image to the volumes that do not run.
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
        // Of another image that is staged, `spec` is what was staged and `specOld` what runs.
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
        for warning in config::warnings(&current) {
            self.site.say(&format!("warning: {warning}"));
        }
        let config = config::configuration(&current, self.wanted)?;
        let file = self.config_path();
        // JSON is YAML. It may hold what others must not read: scripts, files.
        let text = format!("{config:#}\n");
        atomic::replace(&file, text.as_bytes(), Access::of_mode(0o600))?;
        self.trident.validate(&file).await?;
        self.trident.update(&file, Operation::Stage).await?;
        let found = self.situation().await?;
        if found != Situation::Staged {
            return Err(WorkError::retriable(format!(
                "Trident has staged the image and says {found:?} of the host"
            )));
        }
        Ok(())
    }

    /// Makes the staged image the next to boot.
    pub async fn finalize(&self) -> Result<(), WorkError> {
        match self.situation().await? {
            Situation::Done | Situation::AwaitsBoot => return Ok(()),
            Situation::Staged => {}
            // A finalize of anything else could stage, finalize and boot by itself.
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
                "{path} is not there any more, and Trident reads the image's metadata once more when \
                 it finalizes: put it back"
            )));
        }
        // Before the fact: after a kill it tells which boot was the last without the new image.
        let before = self.before().unwrap_or_default();
        self.keep(&Before { finalized_in: self.boot_id(), ..before })?;
        self.trident.update(&self.config_path(), Operation::Finalize).await?;
        let found = self.situation().await?;
        if found != Situation::AwaitsBoot {
            return Err(WorkError::retriable(format!(
                "Trident has finalized the image and says {found:?} of the host"
            )));
        }
        Ok(())
    }

    /// After the boot: keeps the image, and reads back whether it stayed.
    pub async fn commit(&self) -> Result<(), WorkError> {
        let tries = SETTLE.as_secs() / POLL.as_secs().max(1);
        let mut asked = false;
        for _ in 0..tries {
            match self.situation().await? {
                Situation::Done => return Ok(()),
                Situation::AwaitsCommit if !asked => {
                    asked = true;
                    // Trident's own service does so too; of two the second finds nothing to do.
                    if let Err(error) = self.trident.commit().await {
                        self.site.say(&format!("the commit says: {error}"));
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
            "the host has booted the image, but Trident has not said in 10 minutes whether it stays: \
             look at `journalctl -u trident`",
        ))
    }

    /// Takes back what was done: nothing of the image boots next.
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
                // It finds the old root running, as after a boot that failed, and says so.
                if let Err(error) = self.trident.commit().await {
                    self.site.say(&format!("the commit says, as it should: {error}"));
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
                    | Situation::Busy { .. }) => Err(refused(&other, "taken back")),
                }
            }
            other @ (Situation::AwaitsCommit | Situation::RollingBack | Situation::Busy { .. }) => {
                Err(refused(&other, "taken back"))
            }
        }
    }

    /// Nothing boots what is only staged. Where the old configuration has no scripts, submitting it
    /// makes Trident forget what is staged; with scripts it would be one more update.
    async fn unstage(&self) -> Result<(), WorkError> {
        let status = self.trident.status().await?.unwrap_or_default();
        if status.spec_old.is_null() || config::has_scripts(&status.spec_old) {
            self.site.say("the image stays staged; nothing boots it");
            return Ok(());
        }
        let file = self.config_path();
        let text = format!("{:#}\n", status.spec_old);
        atomic::replace(&file, text.as_bytes(), Access::of_mode(0o600))?;
        self.trident.update(&file, Operation::Stage).await
    }

    /// Whether the image is staged, or further.
    pub async fn is_staged(&self) -> Result<Evidence, WorkError> {
        let found = self.situation().await?;
        let done = matches!(found, Situation::Staged | Situation::AwaitsBoot | Situation::Done);
        Ok(Evidence::from_check(done, || what(&found)))
    }

    /// Whether the image is the next to boot, or has booted.
    pub async fn is_finalized(&self) -> Result<Evidence, WorkError> {
        let found = self.situation().await?;
        let done =
            matches!(found, Situation::AwaitsBoot | Situation::AwaitsCommit | Situation::Done);
        Ok(Evidence::from_check(done, || what(&found)))
    }

    /// Whether the image runs and stays.
    pub async fn is_committed(&self) -> Result<Evidence, WorkError> {
        let found = self.situation().await?;
        Ok(Evidence::from_check(found == Situation::Done, || what(&found)))
    }

    /// Whether nothing of the image boots next.
    pub async fn is_undone(&self) -> Result<Evidence, WorkError> {
        let status = self.trident.status().await?.unwrap_or_default();
        let back = [Servicing::ManualRollbackAbFinalized, Servicing::ManualRollbackAbStaged];
        if back.contains(&status.servicing_state) {
            return Ok(Evidence::Done);
        }
        let found = self.situation().await?;
        let ours = matches!(
            found,
            Situation::AwaitsBoot | Situation::AwaitsCommit | Situation::RollingBack
        );
        let kept = found == Situation::Done
            && self.before().is_some_and(|before| !before.finalized_in.is_empty());
        Ok(Evidence::from_check(!ours && !kept, || what(&found)))
    }
}

fn what(found: &Situation) -> String {
    match found {
        Situation::NotManaged => "Trident does not manage the host".to_owned(),
        Situation::NeedsUpdate => {
            "the host runs another image, and this one is not staged".to_owned()
        }
        Situation::Staged => "the image is staged, and does not boot next".to_owned(),
        Situation::OtherStaged => "another image is staged".to_owned(),
        Situation::AwaitsBoot => "the host has not booted the image yet".to_owned(),
        Situation::AwaitsCommit => "the image has booted, and is not committed yet".to_owned(),
        Situation::RollingBack => {
            "the image failed its health checks; the old one boots again".to_owned()
        }
        Situation::Done => "the image runs".to_owned(),
        Situation::RolledBack { error } => {
            format!("the host is back on the image of before, because: {error}")
        }
        Situation::Busy { what } => format!("Trident is in state {what:?}, by somebody else"),
    }
}

fn refused(found: &Situation, verb: &str) -> WorkError {
    let what = what(found);
    match found {
        Situation::NotManaged => WorkError::needs_person(format!(
            "the OS image cannot be {verb}: {what}; install the host by Trident"
        )),
        Situation::RolledBack { .. } => WorkError::needs_person(format!(
            "the OS image cannot be {verb}: {what}. The old OS runs; mend the image, or what its \
             checks look at, and ask again"
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
