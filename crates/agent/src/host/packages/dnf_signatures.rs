//! Signatures of fetched packages.
//!
//! dnf 5 does not verify packages that it only downloads, and whether each tdnf does is not documented, so rpm
//! verifies them here (`docs/facts/hosts.md#dnf`): before a program in one runs, and before tdnf installs
//! them from a repository that has no signatures of its own. Without a valid signature, tdnf takes the
//! packages from the repositories of the host, and verifies them.

use std::path::PathBuf;

use super::dnf_sources::{self, Section};
use crate::host::{Program, Site, work::WorkError};

/// Ends of the answers of `rpm --checksig` about a package with a valid signature: rpm 4.14 and newer,
/// and older ones.
const VALID: [&str; 2] = ["signatures OK", "pgp md5 OK"];

/// Checks that a trusted key has signed each package, if a repository of the host requires signatures.
pub(super) async fn check(site: &Site, files: &[PathBuf]) -> Result<(), WorkError> {
    if !dnf_sources::sections(site).iter().any(Section::checks_signatures) {
        return Ok(());
    }
    for file in files {
        let shown = file.display().to_string();
        let answer = match site.ask(Program::Rpm, ["--checksig", &shown]).await {
            // rpm reports success for a package without a signature.
            Ok(answer) if VALID.iter().any(|end| answer.trim_end().ends_with(end)) => continue,
            Ok(answer) => answer,
            Err(error) => error.to_string(),
        };
        return Err(WorkError::needs_person(format!(
            "{shown} is not signed by a key that this host trusts ({}): import the key of its \
             repository with `rpm --import`",
            answer.trim()
        )));
    }
    Ok(())
}
