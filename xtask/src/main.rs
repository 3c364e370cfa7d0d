//! Project tasks: `cargo xtask <task>`. The result is the last line on stdout, progress goes to
//! stderr.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod crds;
mod sweep;

/// What can be done.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Generates what is generated and runs what takes long"
)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Writes the CustomResourceDefinitions of refit.dev to deploy/crds/.
    Crds {
        /// Only says whether they are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Kills every process at every effect of a demo run and looks whether the end is the same.
    Sweep(sweep::SweepArgs),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().task {
        Task::Crds { check } => crds::run(&root().join("deploy/crds"), check),
        Task::Sweep(args) => sweep::run(&root(), &args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the program's own last word")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// The project's root.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}
