//! `refit sandbox --script`: a scenario on simulated time.

use std::{fs, io, path::Path, process::ExitCode};

use anyhow::Context as _;
use lab_world::script::{self, ScriptOutcome};

/// Runs a script and prints its output; exits with 1 if a wait times out.
pub(super) fn run(file: &Path) -> anyhow::Result<ExitCode> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let outcome = script::run(&text, file, &mut io::stdout().lock())?;
    Ok(match outcome {
        ScriptOutcome::Passed => ExitCode::SUCCESS,
        ScriptOutcome::WaitRanOut { .. } => ExitCode::FAILURE,
    })
}
