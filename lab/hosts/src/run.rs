//! Programs of the machine, and waiting.

use std::{ffi::OsStr, process::Stdio, time::Duration};

use anyhow::{Context as _, bail};
use tokio::process::Command;

/// Runs a program to its end; its output is the answer, and part of the error.
pub async fn run<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let shown = format!("{:?}", command.as_std());
    let output = command.output().await.with_context(|| format!("{shown} did not run"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} ended with {}: {out}{errors}", output.status);
    }
    Ok(out)
}

/// Asks until there is an answer; after `seconds` the last thing that was said instead is the
/// error. Asks ten times a second.
pub async fn eventually<T, F>(what: &str, seconds: u64, mut ask: F) -> anyhow::Result<T>
where
    F: AsyncFnMut() -> Result<T, String>,
{
    let mut last = "it was not asked".to_owned();
    let asking = async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(why) => last = why,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(seconds), asking).await;
    outcome.map_err(|_| anyhow::anyhow!("{what}: not within {seconds} s; last: {last}"))
}

/// Writes a line of progress.
#[expect(clippy::print_stderr, reason = "people wait for what takes long")]
pub fn say(line: &str) {
    eprintln!("{line}");
}
