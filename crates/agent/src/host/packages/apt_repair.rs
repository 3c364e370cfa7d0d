//! The repair of an interrupted dpkg.

use std::fs;

use super::{
    apt::{Apt, STATUSES},
    locks,
};
use crate::host::{Program, work::WorkError};

/// States of packages that are not fully installed.
const HALF: [&str; 5] =
    ["half-configured", "half-installed", "triggers-awaited", "triggers-pending", "unpacked"];

impl Apt<'_> {
    /// Whether dpkg was interrupted, or a package is half installed.
    async fn is_broken(&self) -> Result<bool, WorkError> {
        let journal = self.site.path("/var/lib/dpkg/updates");
        let pending = fs::read_dir(journal).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(char::is_numeric))
            })
        });
        let answer = self.site.ask(Program::DpkgQuery, ["--show", STATUSES]).await?;
        Ok(pending || answer.lines().filter_map(status_of).any(|status| HALF.contains(&status)))
    }

    /// Completes the work of an interrupted dpkg.
    pub(super) async fn repair(&self) -> Result<(), WorkError> {
        if !self.is_broken().await? {
            return Ok(());
        }
        self.site.log("dpkg was interrupted, completing its work");
        // First, because apt-get refuses to continue without it.
        let configure =
            self.site.call(Program::Dpkg, ["--force-confold", "--configure", "--pending"]);
        let configured = locks::run(self.site, &configure).await;
        let mend = self.apt_get(["--fix-broken", "--no-remove", "install"]);
        let mended = locks::run(self.site, &mend).await;
        self.unpack_again().await?;
        if self.is_broken().await? {
            let error = configured.err().or(mended.err());
            let cause = error.map_or_else(String::new, |error| format!(": {error}"));
            return Err(WorkError::retriable(format!(
                "dpkg was interrupted, and neither `dpkg --configure -a` nor `apt-get -f install` \
                 completes its work{cause}"
            )));
        }
        // Failures of single calls do not count any more.
        self.site.log_and_go_on("the work of dpkg is complete");
        Ok(())
    }

    /// Unpacks packages again whose unpacking was interrupted. apt does not repair them by itself,
    /// and does not install the version that dpkg has recorded for them. A package that cannot be
    /// fetched again is left to the installation of another version.
    async fn unpack_again(&self) -> Result<(), WorkError> {
        let answer = self.site.ask(Program::DpkgQuery, ["--show", STATUSES]).await?;
        for line in answer.lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(version), Some("half-installed")) =
                (words.next(), words.next(), words.next())
            {
                let wanted = format!("{name}={version}");
                let again = self.apt_get([
                    "--reinstall",
                    "--allow-downgrades",
                    "--allow-change-held-packages",
                    "--no-remove",
                    "install",
                    &wanted,
                ]);
                if let Err(error) = locks::run(self.site, &again).await {
                    self.site.log_and_go_on(&format!("cannot unpack {wanted} again: {error}"));
                }
            }
        }
        Ok(())
    }
}

/// The status of a package. It is the last word, because a package that was never fully installed
/// has no version.
fn status_of(line: &str) -> Option<&str> {
    line.split_whitespace().next_back()
}
