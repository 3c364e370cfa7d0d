//! Starts Cargo for a task.

use std::{
    env,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Context as _;

/// Cargo in a directory, for other packages than this one.
pub(crate) fn command(directory: &Path) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Cargo's variables about this package must not reach the new process: build scripts that
    // depend on them would rebuild half of all crates.
    for (key, _) in env::vars_os() {
        let key = key.to_string_lossy();
        if key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*key);
        }
    }
    command.current_dir(directory);
    command
}

/// Restarts this task in an optimised build: it does the work of some hundred upgrades.
pub(crate) fn optimised() -> anyhow::Result<ExitCode> {
    let status = command(Path::new("."))
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .status()
        .context("failed to start cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}
