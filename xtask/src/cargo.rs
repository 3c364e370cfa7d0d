//! Starts Cargo for a task.

use std::{env, path::Path, process::Command};

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
