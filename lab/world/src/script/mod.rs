//! Scenario scripts: a world, what happens to it, and what can be seen of it, as text.
//!
//! A script is sandbox, documentation and test in one: `refit sandbox --script FILE` runs it, and
//! the project's own stand in `tests/scenarios` with the output that they must have. The language
//! is [`HELP`]; time is simulated, names follow from a seed, and the same script always prints the
//! same. After every write the invariants are checked, and a script that breaks one fails.
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

mod command;
mod field;
mod files;
mod look;
mod names;
mod objects;
mod parse;
mod quiet;
mod run;
mod session;
mod show;
mod table;
mod trouble;
mod words;

use std::{fmt, io::Write, path::Path};

use refit_manifests::LoadError;

use crate::world::{self, WorldError};

/// The language of scripts, as `help` prints it and the documentation has it.
pub const HELP: &str = include_str!("help.txt");

/// How a script ended that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// Every command did what it says.
    Passed,
    /// A wait ran out; the output says what was in the way.
    WaitRanOut {
        /// Line of the wait, from 1.
        line: usize,
        /// What was waited for.
        what: String,
    },
}

/// One thing that is wrong with a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The script.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What it is about.
    pub what: String,
    /// What the script says.
    pub got: String,
    /// What it should say.
    pub want: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, got, want } = self;
        write!(f, "{file}:{line}: {what}: got {got}, want {want}")
    }
}

/// Why a script was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The script is wrong, or asks for what is not there.
    #[error("{}", joined(.0))]
    Wrong(Vec<Problem>),
    /// Manifests that the script loads are wrong.
    #[error("{file}:{line}: the manifests cannot be loaded: {source}")]
    Load {
        /// The script.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Why.
        source: LoadError,
    },
    /// The world cannot be made.
    #[error("{file}:{line}: {source}")]
    World {
        /// The script.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Why.
        source: Box<WorldError>,
    },
    /// An invariant is broken.
    #[error("{file}:{line}: an invariant is broken:\n{}", .violations.join("\n"))]
    Violated {
        /// The script.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is broken, and who did it.
        violations: Vec<String>,
    },
    /// The output cannot be written.
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

fn joined(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Runs a script on simulated time and prints what it does to `out`.
///
/// `base` is the script's own path, which messages name, or the folder that it is in; files that
/// the script loads are looked for beside it, in the folders above, and in the current one.
///
/// Needs no runtime and opens no port.
pub fn run(text: &str, base: &Path, out: &mut dyn Write) -> Result<ScriptOutcome, ScriptError> {
    let (file, folder) = if base.is_dir() {
        ("script".to_owned(), base)
    } else {
        let name = base.file_name().unwrap_or(base.as_os_str());
        let folder = base.parent().unwrap_or(Path::new(""));
        (name.to_string_lossy().into_owned(), folder)
    };
    let script = parse::script(&file, text).map_err(ScriptError::Wrong)?;
    let runtime = world::runtime()?;
    let mut runner = run::Runner { file, folders: files::folders(folder), out, session: None };
    runtime.block_on(async {
        let outcome = runner.run(&script).await;
        // The world ends in its own runtime.
        runner.session = None;
        outcome
    })
}
