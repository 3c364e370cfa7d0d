//! Trident's command line. The packaged version has neither state nor rollback in its gRPC API
//! (`docs/facts/trident.md#command-line`).

use std::path::Path;

use futures::future::BoxFuture;
use serde_json::Value;

use super::status::HostStatus;
use crate::host::{Program, ProgramError, Site, work::WorkError};

/// Exit code of Trident: the requested reboot did not happen.
const EXIT_REBOOT: i32 = 3;
/// Without arguments `efibootmgr` lists the firmware's boot entries.
const NO_ARGUMENTS: [&str; 0] = [];

/// A phase of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes the image, without disruption.
    Stage,
    /// Makes the image the next to boot.
    Finalize,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Finalize => "finalize",
        }
    }
}

/// The operations of Trident that Refit uses.
pub trait Trident: Send + Sync {
    /// Trident's status of the host; `None` if Trident does not manage the host.
    fn status(&self) -> BoxFuture<'_, Result<Option<HostStatus>, WorkError>>;
    /// The complete configuration of the host.
    fn configuration(&self) -> BoxFuture<'_, Result<Value, WorkError>>;
    /// Checks a configuration.
    fn validate<'a>(&'a self, file: &'a Path) -> BoxFuture<'a, Result<(), WorkError>>;
    /// Runs one phase of an update. The host is not rebooted.
    fn update<'a>(
        &'a self,
        file: &'a Path,
        operation: Operation,
    ) -> BoxFuture<'a, Result<(), WorkError>>;
    /// Commits the booted image, or starts a rollback if its health checks fail.
    fn commit(&self) -> BoxFuture<'_, Result<(), WorkError>>;
    /// Makes the previous image the next to boot.
    fn rollback(&self) -> BoxFuture<'_, Result<(), WorkError>>;
    /// Deletes the firmware's setting to boot another volume next.
    fn forget_next_boot(&self) -> BoxFuture<'_, Result<(), WorkError>>;
}

/// The program `trident` of a host.
#[derive(Clone, Copy, Debug)]
pub struct TridentCli<'a> {
    site: &'a Site,
}

impl<'a> TridentCli<'a> {
    /// The program of a host.
    pub fn new(site: &'a Site) -> Self {
        Self { site }
    }

    async fn run(&self, arguments: &[&str]) -> Result<(), WorkError> {
        let call = self.site.call(Program::Trident, arguments.iter().copied());
        self.site.run(&call).await.map_err(|error| explain(&error))?;
        Ok(())
    }

    /// Runs a query. Its deadline is long enough, because servicing holds Trident's lock only
    /// briefly.
    async fn ask(&self, what: &str) -> Result<String, ProgramError> {
        self.site.ask(Program::Trident, ["get", what]).await
    }
}

impl Trident for TridentCli<'_> {
    fn status(&self) -> BoxFuture<'_, Result<Option<HostStatus>, WorkError>> {
        Box::pin(async move {
            if !self.site.has(Program::Trident) {
                return Ok(None);
            }
            match self.ask("status").await {
                Ok(text) => HostStatus::parse(&text).map(Some),
                Err(error) if has_no_datastore(error.output_tail()) => Ok(None),
                Err(error) => Err(explain(&error)),
            }
        })
    }

    fn configuration(&self) -> BoxFuture<'_, Result<Value, WorkError>> {
        Box::pin(async move {
            let text = self.ask("configuration").await.map_err(|error| explain(&error))?;
            serde_saphyr::from_str(&text).map_err(|error| {
                WorkError::needs_person(format!(
                    "cannot parse the output of `trident get configuration`: {error}"
                ))
            })
        })
    }

    fn validate<'a>(&'a self, file: &'a Path) -> BoxFuture<'a, Result<(), WorkError>> {
        Box::pin(async move {
            let file = file.display().to_string();
            let call = self.site.call(Program::Trident, ["validate", &file]);
            match self.site.run(&call).await {
                Ok(_) => Ok(()),
                Err(error) if is_busy(&error) => Err(explain(&error)),
                Err(error) => {
                    let message = format!("Trident rejects the configuration: {error}");
                    Err(WorkError::permanent(message))
                }
            }
        })
    }

    fn update<'a>(
        &'a self,
        file: &'a Path,
        operation: Operation,
    ) -> BoxFuture<'a, Result<(), WorkError>> {
        Box::pin(async move {
            let file = file.display().to_string();
            self.run(&["update", &file, "--allowed-operations", operation.word()]).await
        })
    }

    fn commit(&self) -> BoxFuture<'_, Result<(), WorkError>> {
        Box::pin(async move { self.run(&["commit"]).await })
    }

    fn rollback(&self) -> BoxFuture<'_, Result<(), WorkError>> {
        Box::pin(async move {
            self.run(&["rollback", "--check"]).await.map_err(|error| {
                WorkError::needs_person(format!(
                    "Trident cannot roll back from this state: {error}"
                ))
            })?;
            self.run(&["rollback", "--ab", "--allowed-operations", "stage,finalize"]).await
        })
    }

    fn forget_next_boot(&self) -> BoxFuture<'_, Result<(), WorkError>> {
        Box::pin(async move {
            // Deleting an entry that is not set is an error, and a retry may find it deleted.
            let set = self.site.ask(Program::Efibootmgr, NO_ARGUMENTS).await?;
            if set.lines().any(|line| line.starts_with("BootNext:")) {
                let call = self.site.call(Program::Efibootmgr, ["--delete-bootnext"]);
                self.site.run(&call).await?;
            }
            Ok(())
        })
    }
}

fn has_no_datastore(output: &str) -> bool {
    ["datastore does not exist", "No such file or directory", "not provisioned"]
        .iter()
        .any(|words| output.contains(words))
}

fn is_busy(error: &ProgramError) -> bool {
    ["Trident is busy", "Servicing is active", "database is locked"]
        .iter()
        .any(|words| error.output_tail().contains(words))
}

/// Classifies a failure of Trident.
fn explain(error: &ProgramError) -> WorkError {
    let output = error.output_tail();
    let mentions = |words: &[&str]| words.iter().any(|words| output.contains(words));
    if error.code() == Some(EXIT_REBOOT) {
        return WorkError::needs_person(format!(
            "Trident requested a reboot that did not happen: {error}; reboot the host"
        ));
    }
    if is_busy(error) {
        return WorkError::retriable(format!("Trident is busy with another operation: {error}"));
    }
    if mentions(&["distro", "architecture"]) {
        return WorkError::permanent(format!("the image does not match this host: {error}"));
    }
    if mentions(&[
        "Failed to load COSI",
        "failed to load image",
        "error sending request",
        "404 Not Found",
    ]) {
        return WorkError::retriable(format!(
            "cannot fetch the image; its server must also be reachable when the image is \
             finalized: {error}"
        ));
    }
    WorkError::retriable(error.to_string())
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::FailureKind;

    use super::*;

    #[test]
    fn failures_are_classified() {
        let failed = |code, tail: &str| {
            explain(&ProgramError::Failed {
                command: "trident update".to_owned(),
                code: Some(code),
                tail: tail.to_owned(),
            })
            .kind
        };
        assert_eq!(failed(3, "reboot did not happen"), FailureKind::NeedsPerson);
        assert_eq!(failed(2, "Servicing is active"), FailureKind::Retriable);
        assert_eq!(failed(2, "image distro 'ubuntu' does not match host"), FailureKind::Final);
        assert_eq!(failed(2, "Failed to load COSI metadata"), FailureKind::Retriable);
    }
}
