//! `cargo xtask sweep persistence`: a sandbox dies at every write, and goes on.

use std::{path::Path, process::ExitCode};

use lab_world::{manifests, persist::PersistenceRun};

use crate::sweep::{note, say};

/// Goes on from the prefixes of the demo's log; the exit code says whether one did not end well.
pub(crate) fn run(root: &Path, points: Option<usize>, threads: usize) -> anyhow::Result<ExitCode> {
    let manifests = manifests::load(&[root.join("examples/cluster.yaml")])?;
    let objects: Vec<_> = manifests.into_iter().map(|m| m.object).collect();
    let run = PersistenceRun::record(&objects)?;
    let prefixes = run.prefixes(points);
    note(&format!("{} records; {} prefixes to go on from", run.records(), prefixes.len()));
    let report = run.sweep(&prefixes, threads, |done, prefix, problems| {
        for problem in problems {
            note(&format!("FAILED {prefix}: {problem}"));
        }
        if done % 100 == 0 || done == prefixes.len() {
            note(&format!("{done} of {} prefixes", prefixes.len()));
        }
    });
    let failures = report.failures.len();
    say(&format!("{} points, {failures} failures", report.points));
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
