//! Writes docs/cli.md, or reports whether it is stale.

use std::{path::Path, process::ExitCode};

use anyhow::Context as _;

use crate::cargo;

/// The test of the command line that compares docs/cli.md with its own definition, and writes the
/// file if requested by the environment.
const TEST: &str = "reference::tests::the_reference_in_docs_matches_the_command_line";

/// Runs that test; without `check` it writes the file first.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<ExitCode> {
    let mut test = cargo::command(root);
    test.args(["test", "--quiet", "--package", "refit", "--bin", "refit"])
        .args(["--", "--exact", TEST])
        .env_remove("UPDATE_DOCS")
        .stdout(std::io::stderr());
    if !check {
        test.env("UPDATE_DOCS", "1");
    }
    let status = test.status().context("failed to start cargo")?;
    let line = match (status.success(), check) {
        (true, true) => "up to date",
        (true, false) => "written: docs/cli.md",
        (false, _) => "failed: see above; `cargo xtask docs` rewrites docs/cli.md",
    };
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{line}");
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
