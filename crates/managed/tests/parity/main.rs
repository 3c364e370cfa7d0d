//! The behaviour that UpgradeConfigs have with OpenShift's managed-upgrade-operator, row by row
//! (`docs/facts/openshift-upgrades.md#rows`). Each row is a test that has its number; where the original has a fault, the test
//! covers both modes of `Compat`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{io::Write as _, process::ExitCode};

use libtest_mimic::{Arguments, Trial};

#[path = "../common/bed.rs"]
mod bed;
mod cluster_version;
mod config;
mod dependencies;
mod health;
mod kinds;
mod maintenance;
mod manager;
mod metrics;
mod nodes;
mod notify;
mod phases;
mod pools;
mod program;
mod providers;
mod remote;
mod scaler;
mod steps;
mod validation;

/// A row, and the test that shows that it holds.
struct Row {
    /// Its number.
    number: u8,
    /// What holds, as a statement.
    name: &'static str,
    test: fn(),
}

/// All rows that are covered, by area.
const ROWS: &[&[Row]] = &[
    cluster_version::ROWS,
    config::ROWS,
    dependencies::ROWS,
    health::ROWS,
    kinds::ROWS,
    maintenance::ROWS,
    manager::ROWS,
    metrics::ROWS,
    nodes::ROWS,
    notify::ROWS,
    phases::ROWS,
    pools::ROWS,
    program::ROWS,
    providers::ROWS,
    remote::ROWS,
    scaler::ROWS,
    steps::ROWS,
    validation::ROWS,
];

fn main() -> ExitCode {
    let rows: Vec<&Row> = ROWS.iter().copied().flatten().collect();
    let mut numbers: Vec<u8> = rows.iter().map(|row| row.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.iter().copied().eq(1..=110), "a row has no test: {numbers:?}");
    let trial = |row: &&Row| {
        let (name, test) = (format!("row {:03}: {}", row.number, row.name), row.test);
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let run = libtest_mimic::run(&Arguments::from_args(), rows.iter().map(trial).collect());
    let line = format!("{} rows, {} failed\n", numbers.len(), run.num_failed);
    // Nothing is left to be done if the output is closed.
    let _ = std::io::stdout().write_all(line.as_bytes());
    run.exit_code()
}
