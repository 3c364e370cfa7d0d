//! The fault simulation is repeatable, and its list of known failures is valid.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use lab_world::simulate::{FaultKind, Known, SimulationOptions, transcript};

fn options(seed: u64, kinds: &[FaultKind]) -> SimulationOptions {
    SimulationOptions {
        seeds: seed..seed + 1,
        faults: 3,
        kinds: kinds.to_vec(),
        sabotage: None,
        known: Vec::new(),
        threads: 1,
    }
}

#[test]
fn the_same_seed_gives_the_same_run_byte_for_byte() {
    let options = options(3, &[FaultKind::Outage, FaultKind::Kill]);
    let run = transcript(&options, 3);
    assert!(run.contains("is killed") || run.contains("does not answer"), "{run}");
    assert_eq!(run, transcript(&options, 3));
}

#[test]
fn the_list_of_known_failures_is_valid() {
    Known::parse(include_str!("../known-failures.yaml")).unwrap();
    let error = Known::parse("[{finding: X, breaks: [invariant1], after: [earthquake]}]");
    assert_eq!(
        error.unwrap_err().to_string(),
        "invalid list of known failures: unknown kind of fault \"earthquake\""
    );
}
