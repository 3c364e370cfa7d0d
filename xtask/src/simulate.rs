//! `cargo xtask simulate`: seeded fault simulation.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

use anyhow::Context as _;
use clap::Args;
use lab_world::{
    simulate::{Failure, FaultKind, Known, SimulationOptions, simulate, transcript},
    sweep::Sabotage,
};
use strum::VariantNames;

use crate::print;

/// Options of a simulation.
#[derive(Args, Clone, Debug)]
pub(crate) struct SimulateArgs {
    /// Run the seeds from A to B; B itself is not run.
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    seeds: Range<u64>,
    /// Inject this number of faults in each run.
    #[arg(long, value_name = "N", default_value_t = 6)]
    steps: usize,
    /// Inject only faults of these kinds.
    #[arg(long = "fault", value_name = "KIND", value_delimiter = ',',
          value_parser = one_of::<FaultKind>)]
    kinds: Vec<FaultKind>,
    /// Leave one safeguard out: slot, journal, ordinal, lease, liveread, hostlost or holds. The simulation
    /// must detect it.
    #[arg(long, value_name = "SAFEGUARD", value_parser = one_of::<Sabotage>)]
    sabotage: Option<Sabotage>,
    /// Fail if a fault, a phase or a reason of a wait never occurred.
    #[arg(long, conflicts_with = "kinds")]
    complete: bool,
    /// Print the output of the first seed instead, as a script would.
    #[arg(long)]
    print: bool,
    /// Use this many threads.
    #[arg(long, value_name = "T", default_value_t = 2)]
    threads: usize,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let invalid = || format!("invalid range {text:?}, expected A..B, such as 0..100");
    let (a, b) = text.split_once("..").ok_or_else(invalid)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| invalid());
    let range = number(a)?..number(b)?;
    if range.is_empty() { Err(invalid()) } else { Ok(range) }
}

/// Parses the name of a variant.
pub(crate) fn one_of<T: FromStr + VariantNames>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("expected one of {}", T::VARIANTS.join(", ")))
}

/// Runs the simulation; the exit code reports whether it found an unknown failure.
pub(crate) fn run(root: &Path, args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let file = root.join("lab/world/known-failures.yaml");
    let text = fs::read_to_string(&file).context(file.display().to_string())?;
    let options = SimulationOptions {
        seeds: args.seeds.clone(),
        faults: args.steps,
        kinds: args.kinds.clone(),
        sabotage: args.sabotage,
        known: Known::parse(&text).with_context(|| file.display().to_string())?,
        threads: args.threads,
    };
    if args.print {
        print::result(&transcript(&options, args.seeds.start));
        return Ok(ExitCode::SUCCESS);
    }
    let directory = root.join("target/simulate");
    let total = args.seeds.end - args.seeds.start;
    let report = simulate(&options, |done, failure| {
        if let Some(failure) = failure {
            print::progress(&format!("FAILED {failure}{}", saved(&directory, failure, args)));
        }
        if done % 50 == 0 || done == total {
            print::progress(&format!("{done} of {total} seeds"));
        }
    });
    print::result(&report.counts.to_string());
    let unknown = report.unknown().count();
    for (finding, count) in report.known() {
        print::result(&format!("known: {finding} {count}"));
    }
    let missing = if args.complete { report.counts.missing() } else { Vec::new() };
    if !missing.is_empty() {
        print::result(&format!("never occurred: {}", missing.join(", ")));
    }
    print::result(&format!("{} seeds, {unknown} failures", report.seeds));
    let good = unknown == 0 && missing.is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Saves the script of a failure; returns how to repeat it.
fn saved(directory: &Path, failure: &Failure, args: &SimulateArgs) -> String {
    let directory = directory.join(format!("seed-{}", failure.seed));
    let script: PathBuf = directory.join("script.txt");
    let written = fs::create_dir_all(&directory)
        .and_then(|()| fs::write(directory.join("cluster.yaml"), &failure.manifests))
        .and_then(|()| fs::write(&script, &failure.script));
    let seed = failure.seed;
    let kinds: Vec<String> = args.kinds.iter().map(ToString::to_string).collect();
    let kinds = (!kinds.is_empty()).then(|| format!(" --fault {}", kinds.join(",")));
    let sabotage = args.sabotage.map(|safeguard| format!(" --sabotage {safeguard}"));
    let options = format!(
        "--seeds {seed}..{} --steps {}{}{}",
        seed + 1,
        args.steps,
        kinds.unwrap_or_default(),
        sabotage.unwrap_or_default()
    );
    let repeat = format!("\n    repeat: cargo xtask simulate {options}");
    match written {
        Ok(()) => format!("{repeat}\n    script: refit sandbox --script {}", script.display()),
        Err(error) => format!("{repeat}\n    failed to save the script: {error}"),
    }
}
