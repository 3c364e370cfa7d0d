//! Replays upstream's rollout logs.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, bail};

use crate::cargo;

/// Flags of the task.
#[derive(clap::Args)]
pub(crate) struct GoldensArgs {
    /// Directory of the logs (`*.golden`), searched recursively.
    dir: PathBuf,
}

/// Runs the test of the crate with the rollout decisions; its count is the last line on stdout.
pub(crate) fn run(root: &Path, args: &GoldensArgs) -> anyhow::Result<ExitCode> {
    let dir = args.dir.canonicalize();
    let dir = dir.with_context(|| format!("failed to read {}", args.dir.display()))?;
    // With the features of the whole workspace, so that the builds of its tests are reused.
    let output = cargo::command(root)
        .args(["test", "--quiet", "--workspace", "--test", "rollout_goldens"])
        .env("ROLLOUT_GOLDENS", dir)
        .env_remove("UPDATE_GOLDENS")
        .stderr(Stdio::inherit())
        .output()
        .context("failed to start cargo")?;
    std::io::stderr().write_all(&output.stdout)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(count) = text.lines().rev().find(|line| is_count(line)) else {
        bail!("the replay did not finish");
    };
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{count}");
    }
    Ok(if output.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `N goldens, F failed`.
fn is_count(line: &str) -> bool {
    let is_number = |text: &str| text.parse::<usize>().is_ok();
    line.strip_suffix(" failed")
        .and_then(|line| line.split_once(" goldens, "))
        .is_some_and(|(run, failed)| is_number(run) && is_number(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_line_is_recognised() {
        assert!(is_count("116 goldens, 0 failed"));
        assert!(!is_count("own goldens: 12, 0 failed"));
        assert!(!is_count("test result: ok. 0 goldens, x failed"));
    }
}
