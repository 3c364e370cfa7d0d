//! Scenario scripts: commands to a world, and its state as text.
//!
//! A script is sandbox, documentation and test in one. `refit sandbox --script FILE` runs it. The
//! project's own scripts and their expected output are in `tests/scenarios`. [`HELP`] describes the
//! language. Time is simulated, names are derived from a seed, and the same script always prints
//! the same output. The invariants are checked after every write, and a script that breaks one
//! fails.
//!
//! ```
//! use std::path::Path;
//!
//! let mut out = Vec::new();
//! let outcome = lab_world::script::run("help\n", Path::new("a.txt"), &mut out)?;
//! assert_eq!(outcome, lab_world::script::ScriptOutcome::Passed);
//! assert!(String::from_utf8_lossy(&out).contains("wait quiet"));
//! # Ok::<(), lab_world::script::ScriptError>(())
//! ```

pub(crate) mod command;
mod field;
pub(crate) mod files;
mod k8sd;
pub(crate) mod look;
pub(crate) mod names;
pub(crate) mod network;
mod objects;
mod openshift;
pub(crate) mod parse;
mod quiet;
mod request;
mod rest;
pub(crate) mod run;
pub(crate) mod session;
mod show;
mod table;
mod trouble;
pub(crate) mod words;

use std::{fmt, io::Write, path::Path};

use refit_manifests::LoadError;

use crate::world::{self, WorldError};

/// The description of the language, as printed by `help` and included in the documentation.
pub const HELP: &str = include_str!("help.txt");

/// Result of a script that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// Every command succeeded.
    Passed,
    /// A wait timed out; the output shows the cause.
    WaitRanOut {
        /// Line number of the wait, from 1.
        line: usize,
        /// The goal of the wait.
        what: String,
    },
}

/// An error in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File name of the script.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// The subject of the error.
    pub what: String,
    /// The actual value in the script.
    pub got: String,
    /// The expected value.
    pub want: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, got, want } = self;
        write!(f, "{file}:{line}: {what}: got {got}, want {want}")
    }
}

/// Why a script was not run.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The script is invalid, or names something that does not exist.
    #[error("{}", joined(.0))]
    Wrong(Vec<Problem>),
    /// Manifests that the script loads are invalid.
    #[error("{file}:{line}: failed to load the manifests: {source}")]
    Load {
        /// File name of the script.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// The underlying error.
        source: LoadError,
    },
    /// The world cannot be created.
    #[error("{file}:{line}: {source}")]
    World {
        /// File name of the script.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// The underlying error.
        source: Box<WorldError>,
    },
    /// An invariant is broken.
    #[error("{file}:{line}: an invariant is broken:\n{}", .violations.join("\n"))]
    Violated {
        /// File name of the script.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// The broken invariants, with the process that broke them.
        violations: Vec<String>,
    },
    /// The output cannot be written.
    #[error("failed to write the output: {0}")]
    Output(#[from] std::io::Error),
}

fn joined(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Runs a script on simulated time and writes its output to `out`.
///
/// `base` is the path of the script, which messages name, or its directory. Files that the script
/// loads are searched in that directory, in its parents, and in the current directory.
///
/// Needs no runtime and opens no port.
pub fn run(text: &str, base: &Path, out: &mut dyn Write) -> Result<ScriptOutcome, ScriptError> {
    let (file, directory) = if base.is_dir() {
        ("script".to_owned(), base)
    } else {
        let name = base.file_name().unwrap_or(base.as_os_str());
        let directory = base.parent().unwrap_or(Path::new(""));
        (name.to_string_lossy().into_owned(), directory)
    };
    let directories = files::directories(directory);
    let runtime = world::runtime()?;
    if openshift::is_meant(text) {
        return openshift::run(&runtime, file, directories, text, out);
    }
    let script = parse::script(&file, text).map_err(ScriptError::Wrong)?;
    let mut runner = run::Runner { file, directories, out, session: None };
    runtime.block_on(async {
        let outcome = runner.run(&script).await;
        // Drop the world inside its runtime.
        runner.session = None;
        outcome
    })
}
