//! Rollouts with random parameters in random order keep within their limits and finish.

#![allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "small numbers")]

#[path = "rollout_goldens/gorand.rs"]
mod gorand;
#[path = "rollout_goldens/lines.rs"]
mod lines;
#[path = "rollout_goldens/set_controller.rs"]
mod set_controller;
#[path = "rollout_goldens/simulator.rs"]
mod simulator;
#[path = "rollout_goldens/world.rs"]
mod world;

use proptest::prelude::*;
use refit_cluster_api::{
    IntOrPercent,
    rollout::{Strategy as Rollout, predict},
};

use gorand::GoRand;
use simulator::{Order, Simulator};
use world::Setup;

fn rolling(surge: i64, unavailable: i64) -> Rollout {
    Rollout::rolling_update(IntOrPercent::Int(surge), IntOrPercent::Int(unavailable))
}

fn setup(strategy: Rollout, sets: &[&[i64]], in_place: bool) -> Setup {
    let machines: usize = sets.iter().map(|set| set.len()).sum();
    Setup {
        replicas: machines as i64,
        strategy,
        version: 2,
        sets: sets.iter().map(|set| set.to_vec()).collect(),
        in_place,
        max_user_unavailable: 1,
        tolerate_unavailable: false,
        tolerate_surge: false,
        unhealthy: None,
    }
}

fn names(numbers: impl IntoIterator<Item = i64>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("m{number}")).collect()
}

/// Runs a scenario in upstream's random order for some seeds; it must end with these machines.
fn ends_with(setup: &Setup, expected: &[String]) {
    for seed in 0..60 {
        let mut simulator = Simulator::new(setup);
        if let Err(error) = simulator.run("", Order::Seeded(GoRand::new(seed))) {
            panic!(
                "seed {seed}: {error}
{}",
                simulator.log_so_far()
            );
        }
        assert_eq!(simulator.machine_names(), expected, "seed {seed}: {setup:?}");
    }
}

#[test]
fn regular_rollouts_replace_every_machine_in_any_order() {
    let six: [i64; 6] = [1, 2, 3, 4, 5, 6];
    for (surge, unavailable) in [(1, 0), (0, 1)] {
        ends_with(&setup(rolling(surge, unavailable), &[&[1, 2, 3]], false), &names(4..=6));
    }
    for (surge, unavailable) in [(3, 1), (1, 3), (10, 0), (0, 10)] {
        ends_with(&setup(rolling(surge, unavailable), &[&six], false), &names(7..=12));
    }
}

#[test]
fn in_place_rollouts_keep_machines_in_any_order() {
    let six: [i64; 6] = [1, 2, 3, 4, 5, 6];
    ends_with(&setup(rolling(1, 0), &[&[1, 2, 3]], true), &names([1, 2, 4]));
    ends_with(&setup(rolling(0, 1), &[&[1, 2, 3]], true), &names(1..=3));
    ends_with(&setup(rolling(10, 0), &[&six], true), &names([1, 2, 3, 4, 5, 7]));
    for (surge, unavailable) in [(3, 1), (1, 3), (0, 10)] {
        ends_with(&setup(rolling(surge, unavailable), &[&six], true), &names(1..=6));
    }
}

#[test]
fn scaling_during_a_rollout_succeeds_in_any_order() {
    let nine: [i64; 9] = [4, 5, 6, 7, 8, 9, 10, 11, 12];
    let up = |sets: &[&[i64]], in_place| Setup {
        replicas: 12,
        tolerate_unavailable: true,
        ..setup(rolling(3, 1), sets, in_place)
    };
    ends_with(&up(&[&[4, 5, 6], &[7, 8, 9]], false), &names(7..=18));
    let sorted_by_set = up(&[&[4, 5, 6], &[1, 2, 3]], true);
    ends_with(&sorted_by_set, &names(1..=12));
    let down = |sets: &[&[i64]], in_place| Setup {
        replicas: 6,
        tolerate_surge: true,
        ..setup(rolling(3, 1), sets, in_place)
    };
    ends_with(&down(&[&nine, &[13, 14, 15]], false), &names(13..=18));
    ends_with(&down(&[&nine, &[1, 2, 3]], true), &names(1..=6));
}

#[test]
fn a_change_during_a_rollout_succeeds_in_any_order() {
    let change =
        |sets: &[&[i64]], in_place| Setup { version: 3, ..setup(rolling(3, 1), sets, in_place) };
    ends_with(&change(&[&[4, 5, 6], &[7, 8, 9]], false), &names(10..=15));
    ends_with(&change(&[&[4, 5, 6], &[1, 2, 3]], true), &names(1..=6));
}

#[test]
fn machines_that_a_user_deletes_are_renewed_in_any_order() {
    let on_delete = |sets: &[&[i64]]| setup(Rollout::OnDelete, sets, false);
    let nine: [i64; 9] = [4, 5, 6, 7, 8, 9, 10, 11, 12];
    ends_with(&on_delete(&[&[1, 2, 3]]), &names(4..=6));
    let two = Setup { max_user_unavailable: 2, ..on_delete(&[&[1, 2, 3, 4, 5, 6]]) };
    ends_with(&two, &names(7..=12));
    let started: [&[i64]; 2] = [&[4, 5, 6], &[7, 8, 9]];
    ends_with(&Setup { replicas: 9, ..on_delete(&started) }, &names(7..=15));
    ends_with(&Setup { replicas: 6, ..on_delete(&[&nine, &[13, 14, 15]]) }, &names(13..=18));
    let change = on_delete(&[&[4, 5, 6], &[7, 8, 9], &[]]);
    ends_with(&Setup { version: 3, ..change }, &names(10..=15));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// The simulator refuses a step that leaves too few machines available or makes too many.
    #[test]
    fn any_rolling_update_keeps_within_its_limits_and_ends(
        replicas in 1_i64..=12,
        surge in 0_i64..=5,
        unavailable in 0_i64..=5,
        in_place in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let machines: Vec<i64> = (1..=replicas).collect();
        let setup = setup(rolling(surge, unavailable), &[&machines], in_place);
        let mut simulator = Simulator::new(&setup);
        let result = simulator.run("", Order::Seeded(GoRand::new(seed)));
        prop_assert!(result.is_ok(), "{}\n{}", result.unwrap_err(), simulator.log_so_far());
    }

    /// A log can be reproduced from its order alone.
    #[test]
    fn a_recorded_order_gives_the_same_log(
        replicas in 1_i64..=8,
        surge in 0_i64..=2,
        in_place in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let machines: Vec<i64> = (1..=replicas).collect();
        let setup = setup(rolling(surge, 1), &[&machines], in_place);
        let mut simulator = Simulator::new(&setup);
        let log = simulator.run("", Order::Seeded(GoRand::new(seed)));
        let trace = std::mem::take(&mut simulator.trace);
        prop_assert_eq!(Simulator::new(&setup).run("", Order::Recorded(trace)), log);
    }

    /// The prediction matches the real reconciles.
    #[test]
    fn a_prediction_is_what_happens(
        replicas in 1_i64..=12,
        surge in 0_i64..=3,
        unavailable in 0_i64..=3,
    ) {
        let machines: Vec<i64> = (1..=replicas).collect();
        let setup = setup(rolling(surge, unavailable), &[&machines], true);
        let mut simulator = Simulator::new(&setup);
        prop_assert!(simulator.run("", Order::Listed).is_ok());
        let names = simulator.machine_names();
        let kept = machines.iter().filter(|number| names.contains(&format!("m{number}"))).count();
        let prediction = predict::machine_deployment(replicas, &setup.strategy);
        prop_assert_eq!(prediction.kept, kept as i64);
    }

    /// Only the requested surge replaces machines: at most one for the whole rollout.
    #[test]
    fn an_in_place_rollout_replaces_at_most_one_machine(
        replicas in 1_i64..=12,
        surge in 0_i64..=5,
        unavailable in 0_i64..=5,
        seed in any::<u32>(),
    ) {
        let machines: Vec<i64> = (1..=replicas).collect();
        let setup = setup(rolling(surge, unavailable), &[&machines], true);
        let mut simulator = Simulator::new(&setup);
        let result = simulator.run("", Order::Seeded(GoRand::new(seed)));
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
        let kept = machines.iter().filter(|number| {
            simulator.machine_names().contains(&format!("m{number}"))
        });
        let replaced = replicas - kept.count() as i64;
        let allowed = i64::from(unavailable == 0 && surge > 0);
        prop_assert_eq!(replaced, allowed);
    }
}
