//! Runs programs of the machine.

use std::{ffi::OsStr, process::Stdio};

use anyhow::{Context as _, bail};
use tokio::process::Command;

/// Runs a program to its end; returns its output, which is also part of the error.
pub async fn run<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let shown = format!("{:?}", command.as_std());
    let output = command.output().await.with_context(|| format!("failed to run {shown}"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} failed with {}: {out}{errors}", output.status);
    }
    Ok(out)
}

/// Writes a line of progress.
#[expect(clippy::print_stderr, reason = "tests print their progress")]
pub fn print_line(line: &str) {
    eprintln!("{line}");
}
