//! Scripts whose world is an OpenShift cluster, which refit-managed upgrades: those that begin with `load openshift`.
//!
//! Words, fields, objects and tables are those of all scripts.

mod command;
mod history;
mod parse;
mod run;
mod show;
mod trouble;

use std::{io::Write, path::PathBuf};

use tokio::runtime::Runtime;

use self::run::Runner;
use super::{ScriptError, ScriptOutcome, words};

/// The first word after `load`.
const OPENSHIFT: &str = "openshift";

/// Whether the first `load` of a script asks for an OpenShift cluster.
pub(super) fn is_meant(text: &str) -> bool {
    let mut lines = text.lines().filter_map(|line| words::split(line).ok());
    let load = lines.find(|words| words.first().is_some_and(|word| word.text == "load"));
    load.is_some_and(|words| words.get(1).is_some_and(|word| word.text == OPENSHIFT))
}

pub(super) fn run(
    runtime: &Runtime,
    file: String,
    directories: Vec<PathBuf>,
    text: &str,
    out: &mut dyn Write,
) -> Result<ScriptOutcome, ScriptError> {
    let script = parse::script(&file, text).map_err(ScriptError::Wrong)?;
    let mut runner = Runner::new(file, directories, out);
    runtime.block_on(async {
        let outcome = runner.run(&script).await;
        // Drop the world inside its runtime.
        runner.session = None;
        outcome
    })
}
