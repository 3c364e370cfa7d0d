//! Cargo, started by a task.

use std::{env, path::Path, process::Command};

/// Cargo in a folder, for other packages than this one.
pub(crate) fn command(folder: &Path) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo told this task of its own package is not for what it starts: build scripts that
    // watch such variables would have half of all crates built anew.
    for (key, _) in env::vars_os() {
        let key = key.to_string_lossy();
        if key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*key);
        }
    }
    command.current_dir(folder);
    command
}
