//! What was recorded of real runs, and how it is recorded anew.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// Set to 1, it makes the flows write what they see into `lab/testbed/fixtures` instead of comparing.
pub const RECORD: &str = "REFIT_TESTBED_RECORD";

/// Whether fixtures are written.
pub fn recording() -> bool {
    env::var_os(RECORD).is_some_and(|value| value == "1")
}

/// The folder of all fixtures.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Reads one.
pub fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| {
        format!("{} cannot be read; run the flow with {RECORD}=1 to write it", path.display())
    })
}

/// Writes one.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written =
        path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, text));
    written.with_context(|| format!("{} cannot be written", path.display()))
}
