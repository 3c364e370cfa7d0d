//! The sweep on a few points, and whether it detects disabled safeguards.

use std::{path::PathBuf, sync::OnceLock};

use crate::common::example;
use lab_world::{
    manifests,
    sweep::{
        Recording, Sabotage, Scenario, SweepOptions, SweepReport, continue_from, plan_manifests,
        record, record_scenario, sweep_recorded,
    },
};
use refit_kinds::refit::CapacityMethod;

/// The undisturbed run, once for all tests.
fn recording() -> &'static Recording {
    static RECORDING: OnceLock<Recording> = OnceLock::new();
    RECORDING.get_or_init(|| record(&example()).unwrap())
}

fn sweep(points: usize, sabotage: Option<Sabotage>) -> SweepReport {
    let options = SweepOptions {
        points: Some(points),
        sabotage,
        stop_at_first: sabotage.is_some(),
        directory: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sweep"),
        ..SweepOptions::new(Vec::new())
    };
    sweep_recorded(recording(), &options, |_| {})
}

#[test]
fn a_kill_at_some_points_changes_nothing() {
    let report = sweep(3, None);
    assert_eq!(report.points, 3);
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn each_kind_of_effect_gives_two_points() {
    let recording = recording();
    let counts = recording.counts;
    assert!(counts.api > 0 && counts.journal > 0 && counts.host > 0, "{counts}");
    assert_eq!(recording.points().len(), 2 * counts.total());
}

#[test]
fn the_end_of_a_run_has_its_machines_updates_and_machine_sets() {
    let end = &recording().end;
    assert_eq!((end.machines.len(), end.node_updates.len()), (8, 8));
    // Cluster API has removed the MachineDeployment's old MachineSet.
    assert_eq!(end.machine_sets.len(), 1, "{:?}", end.machine_sets);
    let sets = end.machine_sets.values().next().unwrap();
    assert_eq!(sets, &["5 machines at v1.35.0"]);
}

#[test]
fn a_saved_point_fails_again() {
    let report = sweep(8, Some(Sabotage::Slot));
    let failure = &report.failures[0];
    let (point, problems) = continue_from(failure.file.as_ref().unwrap()).unwrap();
    assert_eq!(point, failure.point);
    assert_eq!(problems, failure.problems);
}

#[test]
fn agents_without_a_journal_are_detected() {
    assert!(!sweep(8, Some(Sabotage::Journal)).failures.is_empty());
}

#[test]
fn updates_without_ordinals_are_detected() {
    assert!(!sweep(8, Some(Sabotage::Ordinal)).failures.is_empty());
}

#[test]
fn a_kill_while_a_plan_works_changes_nothing() {
    let loaded = manifests::parse([("fleet.yaml", plan_manifests().as_bytes())]).unwrap();
    let objects: Vec<_> = loaded.into_iter().map(|manifest| manifest.object).collect();
    let recording = record_scenario(&objects, Scenario::plans()).unwrap();
    let end = &recording.end;
    assert_eq!((end.plans.len(), end.cluster_upgrades.len()), (1, 4));
    let plan = &end.plans["spring"];
    let waves = ["canary has 1", "half has 2", "all has 1", "Stopped Sent/Sent", "Completed Sent"];
    assert!(waves.iter().all(|wave| plan.contains(wave)), "{plan}");
    assert_eq!(end.events["ClusterUpgradePlan/spring TooManyFailures"], 1);
    // An event or a request too many is a failure.
    let mut twice = end.clone();
    twice.events.values_mut().for_each(|count| *count += 1);
    assert_eq!(twice.differences(end).len(), end.events.len());
    let mut twice = end.clone();
    let requested =
        twice.cluster_upgrades["site-1"].replace("requested 1 times", "requested 2 times");
    twice.cluster_upgrades.insert("site-1".to_owned(), requested);
    assert_eq!(twice.differences(end).len(), 1);

    let options = SweepOptions {
        points: Some(4),
        directory: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sweep-plans"),
        ..SweepOptions::new(Vec::new())
    };
    let report = sweep_recorded(&recording, &options, |_| {});
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_kill_while_extra_machines_come_or_go_leaves_exactly_the_others() {
    for method in [CapacityMethod::Clone, CapacityMethod::Replicas] {
        let recording = record_scenario(&example(), Scenario::extra(method)).unwrap();
        let end = &recording.end;
        assert_eq!((end.machines.len(), end.node_updates.len()), (8, 8), "{method}");
        let options = SweepOptions {
            points: Some(2),
            directory: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sweep-extra"),
            ..SweepOptions::new(Vec::new())
        };
        let report = sweep_recorded(&recording, &options, |_| {});
        let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{method}: {}", failures.join("\n"));
    }
}
