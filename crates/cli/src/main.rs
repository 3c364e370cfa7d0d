//! The `refit` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use refit_sandbox::manifests::LoadError;

mod demo;
mod printer;

/// Upgrades Kubernetes machines where they stand.
///
/// Refit takes fleets that Cluster API manages from version to version without replacing a machine.
#[derive(Debug, Parser)]
#[command(name = "refit", version, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Tell more about what goes on, on stderr (-v: info, -vv: debug). REFIT_LOG sets filters.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Upgrade a simulated cluster in place and show that every machine was kept.
    Demo(demo::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    init_logs(args.verbose);
    refit_kube::tls::install_provider();
    let outcome = match args.command {
        Command::Demo(args) => demo::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Says what went wrong. Problems of manifests stand on lines of their own, as a compiler's do.
#[expect(clippy::print_stderr, reason = "the program's own last word")]
fn complain(error: &anyhow::Error) {
    if let Some(LoadError::Invalid(problems)) = error.downcast_ref() {
        for problem in problems {
            eprintln!("{problem}");
        }
        let count = problems.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        eprintln!("error: {count} {noun} in the manifests; nothing was written");
    } else {
        eprintln!("error: {error:#}");
    }
}

/// Logs go to stderr, and only where somebody asked for them: progress is shown otherwise.
fn init_logs(verbose: u8) {
    let level = match verbose {
        0 => "off",
        1 => "info",
        _ => "debug,hyper=info,hyper_util=info,rustls=info,tower=info,h2=info",
    };
    let filter = std::env::var("REFIT_LOG").unwrap_or_else(|_| level.to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .without_time()
        .init();
}

/// Whether whoever read our output went away, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
