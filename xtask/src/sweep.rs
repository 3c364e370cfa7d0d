//! `cargo xtask sweep demo`: kills every process at every effect.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use lab_world::{
    manifests, openshift,
    sweep::{
        Event, Failure, Sabotage, Scenario, SweepOptions, continue_from, hold_manifests,
        plan_manifests, sweep,
    },
};
use refit_kinds::refit::CapacityMethod;

use crate::{print, simulate::one_of};

/// Options of a sweep.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepArgs {
    /// Select the scenario to sweep.
    #[arg(value_parser = ["demo", "replicas", "updaters", "providers", "task", "managed", "plans", "extra", "k8sd", "holds", "configuration", "openshift"], default_value = "demo")]
    scenario: String,
    /// Run only this many points, evenly spread.
    #[arg(long, value_name = "K")]
    points: Option<usize>,
    /// Leave one safeguard out: slot, journal, ordinal, with two replicas lease, or with held replacements
    /// holds. The sweep must detect it.
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
    if args.scenario == "openshift" {
        return of_openshift(args);
    }
    // Whatever a ClusterUpgrade is requested by.
    let names = match args.scenario.as_str() {
        "managed" => vec!["managed", "plans", "extra-clone", "extra-replicas"],
        "extra" => vec!["extra-clone", "extra-replicas"],
        name => vec![name],
    };
    let (mut points, mut failures) = (0, 0);
    for name in &names {
        let options = SweepOptions {
            sabotage: args.sabotage,
            points: args.points.map(|points| points.div_ceil(names.len())),
            threads: args.threads,
            directory: root.join("target/sweep").join(name),
            ..scenario(root, name)?
        };
        let report = sweep(&options, print_event)?;
        print::result(&format!("{name}: {}", report.counts));
        points += report.points;
        failures += report.failures.len();
    }
    print::result(&format!("{points} points, {failures} failures"));
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An upgrade of an OpenShift cluster by refit-managed.
fn of_openshift(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    if args.sabotage.is_some() {
        anyhow::bail!(
            "--sabotage is for safeguards of the controller, and openshift runs without it"
        );
    }
    let report = openshift::sweep::sweep(args.points, args.threads, |done, points, failure| {
        if let Some(failure) = failure {
            print::progress(&format!("FAILED {}\n    {}", failure.point, failure.problem));
        }
        if done % 50 == 0 || done == points {
            print::progress(&format!("{done} of {points} points"));
        }
    })?;
    let (points, failures) = (report.points, report.failures.len());
    print::result(&format!("openshift: {} writes", report.writes));
    print::result(&format!("{points} points, {failures} failures"));
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A scenario and its manifests.
fn scenario(root: &Path, name: &str) -> anyhow::Result<SweepOptions> {
    let manifests = match name {
        "plans" => manifests::parse([("fleet.yaml", plan_manifests().as_bytes())])?,
        "holds" => manifests::parse([("held.yaml", hold_manifests().as_bytes())])?,
        "k8sd" => manifests::load(&[root.join("examples/canonical.yaml")])?,
        _ => manifests::load(&[root.join("examples/cluster.yaml")])?,
    };
    let scenario = match name {
        "replicas" => Scenario::replicas(),
        "updaters" => Scenario::updaters(),
        "providers" => Scenario::providers(),
        "task" => Scenario::tasks(),
        "managed" => Scenario::managed(),
        "plans" => Scenario::plans(),
        "extra-clone" => Scenario::extra(CapacityMethod::Clone),
        "extra-replicas" => Scenario::extra(CapacityMethod::Replicas),
        "k8sd" => Scenario::snaps(),
        "holds" => Scenario::holds(),
        "configuration" => Scenario::configuration(),
        _ => Scenario::demo(),
    };
    let objects = manifests.into_iter().map(|manifest| manifest.object).collect();
    Ok(SweepOptions { scenario, ..SweepOptions::new(objects) })
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
