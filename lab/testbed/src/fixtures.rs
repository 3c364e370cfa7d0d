//! Recordings of real runs, and how to record them again.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// If set to 1, the flows write their results to `lab/testbed/fixtures` instead of comparing them.
pub const RECORD: &str = "REFIT_TESTBED_RECORD";

/// Whether fixtures are recorded.
pub fn recording() -> bool {
    env::var_os(RECORD).is_some_and(|value| value == "1")
}

/// The directory of all fixtures.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Reads a fixture.
pub fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| {
        format!("failed to read {}; run the flow with {RECORD}=1 to write it", path.display())
    })
}

/// Writes a fixture.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written =
        path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, text));
    written.with_context(|| format!("failed to write {}", path.display()))
}
