//! The fault simulation is repeatable, and its list of known failures is valid.

use lab_world::simulate::{Known, SimulationOptions, transcript};

fn options(seed: u64) -> SimulationOptions {
    SimulationOptions {
        seeds: seed..seed + 1,
        faults: 3,
        kinds: Vec::new(),
        sabotage: None,
        known: Vec::new(),
        threads: 1,
    }
}

#[test]
fn the_same_seed_gives_the_same_run_byte_for_byte() {
    // The cluster of 12 has a provider.
    for seed in [3, 4, 5, 12] {
        let options = options(seed);
        let run = transcript(&options, seed);
        assert!(run.lines().count() > 20, "{run}");
        assert_eq!(run, transcript(&options, seed));
    }
}

#[test]
fn the_list_of_known_failures_is_valid() {
    Known::parse(include_str!("../known-failures.yaml")).unwrap();
    let error = Known::parse("[{finding: X, breaks: [invariant1], after: [earthquake]}]");
    let error = error.unwrap_err().to_string();
    assert!(error.contains("earthquake") && error.contains("half-open"), "{error}");
}
