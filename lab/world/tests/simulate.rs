//! The fault simulation is repeatable, and its list of known failures is valid.

use lab_world::{
    simulate::{FaultKind, Known, Rule, SimulationOptions, simulate, transcript},
    sweep::Sabotage,
};

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
    for seed in [3, 12] {
        let options = options(seed);
        let run = transcript(&options, seed);
        assert!(run.lines().count() > 20, "{run}");
        assert_eq!(run, transcript(&options, seed));
    }
}

#[test]
fn cluster_api_that_replaces_a_held_machine_is_detected() {
    let options = SimulationOptions {
        kinds: vec![FaultKind::Absent],
        sabotage: Some(Sabotage::Holds),
        ..options(111)
    };
    let report = simulate(&options, |_, _| {});
    let problem = &report.failures[0].problems[0];
    assert_eq!(problem.rule, Rule::Invariant3);
    assert!(problem.text.contains("replacements are held, and it is created"), "{problem}");
}

#[test]
fn the_list_of_known_failures_is_valid() {
    Known::parse(include_str!("../known-failures.yaml")).unwrap();
    let error = Known::parse("[{finding: X, breaks: [invariant1], after: [earthquake]}]");
    let error = error.unwrap_err().to_string();
    assert!(error.contains("earthquake") && error.contains("half-open"), "{error}");
}
