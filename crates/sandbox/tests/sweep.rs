//! The sweep on few points, and whether it would notice.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::path::PathBuf;

use common::example;
use refit_sandbox::sweep::{Sabotage, SweepOptions, sweep};

fn options(points: usize) -> SweepOptions {
    SweepOptions {
        points: Some(points),
        folder: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sweep"),
        ..SweepOptions::new(example())
    }
}

#[test]
fn a_kill_at_some_points_changes_nothing() {
    let report = sweep(&options(12), |_| {}).unwrap();
    assert_eq!(report.points, 12);
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let counts = report.counts;
    assert!(
        counts.api > 0 && counts.journal > 0 && counts.host > 0,
        "{counts}"
    );
}

fn is_found(sabotage: Sabotage, points: usize) {
    let options = SweepOptions {
        sabotage: Some(sabotage),
        stop_at_first: true,
        ..options(points)
    };
    let report = sweep(&options, |_| {}).unwrap();
    assert!(!report.failures.is_empty(), "nobody misses the {sabotage}");
}

#[test]
fn updates_without_slots_are_found() {
    is_found(Sabotage::Slot, 6);
}

#[test]
fn agents_without_a_journal_are_found() {
    is_found(Sabotage::Journal, 60);
}

#[test]
fn updates_without_ordinals_are_found() {
    is_found(Sabotage::Ordinal, 200);
}
