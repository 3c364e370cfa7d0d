//! Two replicas of the controller.

use std::{path::PathBuf, sync::OnceLock, time::Duration};

use crate::common::{NEW, assert_clean, example, in_world, up_with, upgraded, who};
use lab_world::{
    sweep::{
        Recording, Sabotage, Scenario, SweepOptions, SweepReport, record_scenario, sweep_recorded,
    },
    world::{Actor, WorldOptions},
};

fn two() -> WorldOptions {
    WorldOptions { two_controllers: true, ..WorldOptions::new(example()) }
}

#[test]
fn an_upgrade_continues_while_leader_after_leader_dies() {
    in_world(async {
        let world = up_with(two()).await;
        let before = who(&world).await;
        world.upgrade(NEW).await.unwrap();
        for turn in 0..20 {
            world.pass(Duration::from_secs(61)).await;
            let victim = if turn % 2 == 0 { Actor::Controller } else { Actor::Standby };
            assert!(world.kill(&victim));
        }
        upgraded(&world, NEW).await;
        assert_eq!(world.fence_breaks(), []);
        assert_clean(&world);
        crate::common::assert_same_machines(&before, &who(&world).await);
    });
}

/// The undisturbed run, once for all tests.
fn recording() -> &'static Recording {
    static RECORDING: OnceLock<Recording> = OnceLock::new();
    RECORDING.get_or_init(|| record_scenario(&example(), Scenario::replicas()).unwrap())
}

fn sweep(points: usize, sabotage: Option<Sabotage>) -> SweepReport {
    let options = SweepOptions {
        points: Some(points),
        sabotage,
        stop_at_first: sabotage.is_some(),
        directory: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("replicas"),
        ..SweepOptions::new(Vec::new())
    };
    sweep_recorded(recording(), &options, |_| {})
}

#[test]
fn failures_of_a_replica_at_some_points_change_nothing() {
    let report = sweep(2, None);
    assert_eq!(report.points, 2);
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_replica_that_continues_without_its_lease_is_detected() {
    assert!(!sweep(1, Some(Sabotage::Lease)).failures.is_empty());
}
