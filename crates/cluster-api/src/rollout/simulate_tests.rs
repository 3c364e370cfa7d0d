use super::super::predict;
use super::super::types::{Strategy, Template};
use super::*;
use crate::IntOrPercent;

fn template(version: &str) -> Template {
    Template { version: version.into(), ..Template::default() }
}

fn workers(replicas: i64, surge: i64, unavailable: i64) -> Workers {
    Workers {
        deployment: MachineDeployment {
            name: "md".into(),
            replicas,
            strategy: Strategy::rolling_update(
                IntOrPercent::Int(surge),
                IntOrPercent::Int(unavailable),
            ),
            template: template("v2"),
            rollout_after: None,
        },
        sets: vec![MachineSet {
            name: "old".into(),
            spec_replicas: replicas,
            status_replicas: replicas,
            available_replicas: replicas,
            template: template("v1"),
            ..MachineSet::default()
        }],
        machines: (0..replicas)
            .map(|index| Machine {
                name: format!("m{index}"),
                owner: "old".into(),
                created_at: Timestamp::from_second(index).unwrap(),
                has_node: true,
                ..Machine::default()
            })
            .collect(),
        unavailable: BTreeSet::new(),
        answers: [("old".to_owned(), Answer::InPlace)].into(),
        in_place_updates: true,
        order: DeletionOrder::default(),
        now: Timestamp::from_second(1000).unwrap(),
    }
}

fn counts(outcome: &SimulatedRollout) -> (usize, i64, usize, End) {
    (outcome.in_place.len(), outcome.created, outcome.deleted.len(), outcome.end)
}

#[test]
fn a_healthy_group_ends_as_predicted() {
    for replicas in 0..6 {
        for (surge, unavailable) in [(0, 1), (1, 0), (1, 1), (0, 3), (2, 0), (3, 2)] {
            let outcome = workers(replicas, surge, unavailable).run();
            let strategy = workers(replicas, surge, unavailable).deployment.strategy;
            let predicted = predict::machine_deployment(replicas, &strategy);
            let kept = i64::try_from(outcome.in_place.len()).unwrap();
            assert_eq!(kept, predicted.kept, "{replicas} {surge}/{unavailable}");
            assert_eq!(outcome.end == End::Done, predicted.ends);
            assert_eq!(outcome.total, replicas);
        }
    }
}

#[test]
fn the_response_of_the_extension_decides() {
    let with = |answer| {
        let mut workers = workers(3, 0, 1);
        workers.answers.insert("old".into(), answer);
        counts(&workers.run())
    };
    assert_eq!(with(Answer::InPlace), (3, 0, 0, End::Done));
    assert_eq!(with(Answer::Replace), (0, 3, 3, End::Done));
    assert_eq!(with(Answer::Wait), (0, 0, 0, End::Waits));
}

#[test]
fn without_the_gate_all_are_replaced_without_a_call() {
    let mut off = workers(3, 1, 0);
    off.in_place_updates = false;
    let outcome = off.run();
    assert!(!outcome.asked);
    assert_eq!(counts(&outcome), (0, 3, 3, End::Done));
}

#[test]
fn on_delete_does_nothing_by_itself() {
    let mut group = workers(3, 0, 1);
    group.deployment.strategy = Strategy::OnDelete;
    assert_eq!(counts(&group.run()), (0, 0, 0, End::Stuck));
}

#[test]
fn a_machine_awaiting_remediation_is_deleted_not_moved() {
    let mut group = workers(3, 0, 1);
    group.machines[1].needs_remediation = true;
    group.machines[1].unhealthy = true;
    group.unavailable.insert("m1".into());
    let outcome = group.run();
    assert_eq!(outcome.deleted, BTreeSet::from(["m1".to_owned()]));
    assert_eq!(counts(&outcome), (2, 1, 1, End::Done));
}

#[test]
fn a_group_that_is_up_to_date_stays_as_it_is() {
    let mut group = workers(3, 1, 0);
    group.deployment.template = template("v1");
    assert_eq!(counts(&group.run()), (0, 0, 0, End::Done));
}

/// Every update takes a hundred seconds, and every new machine a thousand.
struct Hundred;

impl Durations for Hundred {
    fn update(&mut self, _machine: &str, asked: i64) -> Span {
        Span { start: asked, end: asked + 100 }
    }

    fn creation(&self) -> i64 {
        1000
    }
}

/// When each machine of a group is updated, created or deleted.
fn times(outcome: &SimulatedRollout) -> Vec<(&str, Act, i64, i64)> {
    let of = |event: &Event| (event.act, event.span.start, event.span.end);
    let events = outcome.events.iter();
    events
        .map(|event| {
            let (act, start, end) = of(event);
            (event.machine.as_deref().unwrap_or("new"), act, start, end)
        })
        .collect()
}

#[test]
fn updates_follow_each_other_as_far_as_machines_may_be_unavailable() {
    use Act::Update;
    let one = workers(3, 0, 1).run_timed(&mut Hundred);
    assert_eq!(
        times(&one),
        [("m0", Update, 0, 100), ("m1", Update, 100, 200), ("m2", Update, 200, 300)]
    );
    let two = workers(3, 0, 2).run_timed(&mut Hundred);
    assert_eq!(
        times(&two),
        [("m0", Update, 0, 100), ("m1", Update, 0, 100), ("m2", Update, 100, 200)]
    );
}

#[test]
fn a_surge_waits_for_its_machine_before_any_is_updated() {
    use Act::{Create, Delete, Update};
    let surged = workers(2, 1, 0).run_timed(&mut Hundred);
    assert_eq!(
        times(&surged),
        [("new", Create, 0, 1000), ("m0", Update, 1000, 1100), ("m1", Delete, 1100, 1100)]
    );
}

#[test]
fn a_machine_that_returns_early_makes_room_for_the_next() {
    struct Uneven;
    impl Durations for Uneven {
        fn update(&mut self, machine: &str, asked: i64) -> Span {
            Span { start: asked, end: asked + if machine == "m0" { 100 } else { 40 } }
        }
        fn creation(&self) -> i64 {
            0
        }
    }
    let outcome = workers(4, 0, 2).run_timed(&mut Uneven);
    let ends: Vec<(&str, i64)> =
        times(&outcome).into_iter().map(|(machine, _, _, end)| (machine, end)).collect();
    assert_eq!(ends, [("m0", 100), ("m1", 40), ("m2", 80), ("m3", 120)]);
    assert_eq!(counts(&outcome), (4, 0, 0, End::Done));
}
