//! `cargo xtask sweep demo`: kills every process at every effect.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use lab_world::{
    manifests,
    sweep::{Event, Failure, Sabotage, Scenario, SweepOptions, continue_from, sweep},
};

use crate::{print, simulate::one_of};

/// Options of a sweep.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepArgs {
    /// Select the scenario to sweep.
    #[arg(value_parser = ["demo", "replicas", "updaters", "providers", "task", "managed", "k8sd"], default_value = "demo")]
    scenario: String,
    /// Run only this many points, evenly spread.
    #[arg(long, value_name = "K")]
    points: Option<usize>,
    /// Leave one safeguard out: slot, journal, ordinal or, with two replicas, lease. The sweep must
    /// detect it.
    #[arg(long, value_name = "SAFEGUARD", value_parser = one_of::<Sabotage>)]
    sabotage: Option<Sabotage>,
    /// Continue one point that failed before.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Use this many threads.
    #[arg(long, value_name = "T", default_value_t = 2)]
    threads: usize,
}

/// Runs the sweep; the exit code reports whether it found a problem.
pub(crate) fn run(root: &Path, args: &SweepArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.from {
        return again(file);
    }
    let file = match args.scenario.as_str() {
        "k8sd" => "examples/canonical.yaml",
        _ => "examples/cluster.yaml",
    };
    let file = root.join(file);
    let manifests = manifests::load(&[file])?;
    let options = SweepOptions {
        scenario: match args.scenario.as_str() {
            "replicas" => Scenario::replicas(),
            "updaters" => Scenario::updaters(),
            "providers" => Scenario::providers(),
            "task" => Scenario::tasks(),
            "managed" => Scenario::managed(),
            "k8sd" => Scenario::snaps(),
            _ => Scenario::demo(),
        },
        sabotage: args.sabotage,
        points: args.points,
        threads: args.threads,
        directory: root.join("target/sweep"),
        ..SweepOptions::new(manifests.into_iter().map(|m| m.object).collect())
    };
    let report = sweep(&options, print_event)?;
    print::result(&report.counts.to_string());
    let failures = report.failures.len();
    print::result(&format!("{} points, {failures} failures", report.points));
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn again(file: &Path) -> anyhow::Result<ExitCode> {
    let (point, problems) = continue_from(file)?;
    if problems.is_empty() {
        print::result(&format!("{point}: no problems found"));
        return Ok(ExitCode::SUCCESS);
    }
    let failure = Failure { point, problems, file: None };
    print::result(&failure.to_string());
    Ok(ExitCode::FAILURE)
}

fn print_event(event: &Event<'_>) {
    match event {
        Event::Recorded { counts, points } => {
            print::progress(&format!("{counts}; {points} points to run"));
        }
        Event::Point { done, points, failure } => {
            if let Some(failure) = failure {
                print::progress(&format!("FAILED {failure}"));
            }
            if done % 50 == 0 || done == points {
                print::progress(&format!("{done} of {points} points"));
            }
        }
    }
}
