//! Decisions from views of independent age: a controller has one watch per kind, and any of them
//! may be behind the others, such as after an outage of an API server.
//!
//! A write is rejected if its own object is newer than the view. But whether the other machines are
//! healthy is in no object that is written. The tests state which kinds a controller must read live
//! before which write; all other views may be arbitrarily old. A live read happens in the same
//! instant as its write: what happens between the two is not part of the model.
//!
//! A claim requires no live read here, because it disturbs nothing: the gate after it is checked
//! again. Controllers read before it all the same: a useless slot keeps others waiting.

mod judge;
mod objects;
mod providers;
mod world;

use proptest::{
    prelude::*,
    test_runner::{RngSeed, TestError, TestRunner},
};
use refit_kinds::refit::Gate;

use self::{
    objects::{Fleet, MACHINES, Team},
    world::{CONTROLLERS, Finding, Move, Report, World},
};
use super::model::Kind;

const KINDS: [Kind; 10] = [
    Kind::NodeUpdate,
    Kind::UpdateGroup,
    Kind::Machine,
    Kind::HostPlan,
    Kind::Provider,
    Kind::OtherProvider,
    Kind::Node,
    Kind::MirrorPod,
    Kind::Owner,
    Kind::Cluster,
];

const UPGRADE: &str = "gate Upgrade";
const DISRUPT: &str = "gate Disrupt";
const CORDON: &str = "cordon";
const EVICT: &str = "evict";
const RELEASE: &str = "release";
/// The end of an update whose provider's object was deleted.
const DELETED: &str = "status ProviderObjectDeleted";

/// Seed and number of cases of a search; for longer ones, set `AGED_VIEWS_SEED` and
/// `AGED_VIEWS_CASES`.
fn sample() -> (u64, u32) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    (number("AGED_VIEWS_SEED").unwrap_or(1).into(), number("AGED_VIEWS_CASES").unwrap_or(500))
}

/// What a controller must read live before which write.
///
/// | kind | because of |
/// |---|---|
/// | Node, mirror pod | another machine that has failed |
/// | Machine | another Machine that is being deleted |
/// | owner | a lower `maxUnavailable` |
/// | UpdateGroup | a slot that another controller has claimed, if the group has several |
/// | NodeUpdate | an abort |
/// | provider's object | its first order, before it counts as missing |
const REQUIRED: [(Kind, &str); 18] = [
    (Kind::NodeUpdate, UPGRADE),
    (Kind::Node, UPGRADE),
    (Kind::MirrorPod, UPGRADE),
    (Kind::Machine, UPGRADE),
    (Kind::Owner, UPGRADE),
    (Kind::UpdateGroup, UPGRADE),
    (Kind::Node, CORDON),
    (Kind::MirrorPod, CORDON),
    (Kind::Node, EVICT),
    (Kind::MirrorPod, EVICT),
    (Kind::Node, DISRUPT),
    (Kind::MirrorPod, DISRUPT),
    (Kind::NodeUpdate, RELEASE),
    (Kind::Provider, RELEASE),
    (Kind::OtherProvider, RELEASE),
    (Kind::NodeUpdate, DELETED),
    (Kind::Provider, DELETED),
    (Kind::OtherProvider, DELETED),
];

/// The required live reads except one.
fn all_but(kind: Kind, write: &str) -> Vec<(Kind, &'static str)> {
    REQUIRED.into_iter().filter(|read| *read != (kind, write)).collect()
}

/// A move of a world in which views of these kinds may be aged.
fn any_move(fleet: Fleet, aged: &[Kind]) -> impl Strategy<Value = Move> + use<> {
    let aged = prop_oneof![
        2 => Just(Vec::new()),
        2 => prop::sample::subsequence(aged.to_vec(), 1),
        1 => prop::sample::subsequence(aged.to_vec(), 1..=aged.len()),
    ];
    let machines = prop_oneof![
        2 => prop::sample::subsequence(&[0, 1, 2][..], 1),
        1 => prop::sample::subsequence(&[0, 1, 2][..], 1..=MACHINES),
    ];
    let reconcile = (0..CONTROLLERS, machines, aged);
    let reconcile = reconcile.prop_map(|(controller, machines, aged)| Move::Reconcile {
        controller,
        machines,
        aged,
    });
    let who = || 0..MACHINES;
    let mirror_pods = u32::from(fleet == Fleet::ControlPlane);
    prop_oneof![
        20 => reconcile,
        8 => who().prop_map(Move::HostWorks),
        2 => who().prop_map(Move::NodeFails),
        2 * mirror_pods => who().prop_map(Move::ApiServerFails),
        1 => who().prop_map(Move::Delete),
        1 - mirror_pods => (1..3).prop_map(Move::MaxUnavailable),
        1 => prop_oneof![
            who().prop_map(Move::HostFails),
            who().prop_map(Move::MachineUpdated),
            who().prop_map(Move::Abort),
            any::<bool>().prop_map(Move::Pause),
        ],
    ]
}

/// The same in a world with providers.
fn any_move_with_providers(fleet: Fleet, team: Team, aged: &[Kind]) -> BoxedStrategy<Move> {
    let who = || 0..MACHINES;
    let of_providers = prop_oneof![
        8 => (provider(team), who()).prop_map(|(kind, who)| Move::ProviderWorks(kind, who)),
        3 => (provider(team), who(), any_report())
            .prop_map(|(kind, who, report)| Move::ProviderReports(kind, who, report)),
        1 => (provider(team), who()).prop_map(|(kind, who)| Move::ProviderDeleting(kind, who)),
    ];
    prop_oneof![3 => any_move(fleet, aged), 1 => of_providers].boxed()
}

fn provider(team: Team) -> impl Strategy<Value = Kind> {
    let all = [Kind::Provider, Kind::OtherProvider].into_iter().filter(move |kind| team.has(*kind));
    let all: Vec<Kind> = all.collect();
    prop::sample::select(if all.is_empty() { vec![Kind::Provider] } else { all })
}

/// Anything that a provider may report, true or not.
fn any_report() -> impl Strategy<Value = Report> {
    let gate = prop::sample::select(vec![Gate::Closed, Gate::Stage, Gate::Upgrade, Gate::Disrupt]);
    let fails = prop_oneof![4 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let past = prop::bool::weighted(0.2);
    (gate, any::<bool>(), past, prop::bool::weighted(0.8), fails).prop_map(
        |(passed, ready, past_no_return, is_new, fails)| Report {
            passed,
            ready,
            past_no_return,
            is_new,
            fails,
        },
    )
}

/// A controller has sent the plans that it may send, and the hosts have staged them.
fn staged(fleet: Fleet, team: Team, max_unavailable: i32) -> World {
    let mut world = World::new(fleet, team, max_unavailable);
    // The first orders of all, one after the other.
    for _ in 0..=team.size() {
        world.make(&reconcile(0, &[0, 1, 2], &[]), &[]);
    }
    for who in 0..MACHINES {
        if team.has(Kind::HostPlan) {
            world.make(&Move::HostWorks(who), &[]);
        }
        for kind in [Kind::Provider, Kind::OtherProvider] {
            world.make(&Move::ProviderWorks(kind, who), &[]);
        }
    }
    world
}

fn reconcile(controller: usize, machines: &[usize], aged: &[Kind]) -> Move {
    Move::Reconcile { controller, machines: machines.to_vec(), aged: aged.to_vec() }
}

/// Searches for moves that end with a violation.
fn search(
    fleet: Fleet,
    team: Team,
    aged: &[Kind],
    live: &[(Kind, &str)],
) -> Result<(), TestError<(usize, Vec<Move>)>> {
    let (seed, cases) = sample();
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::default()
    };
    let worlds = [1, 2].map(|max_unavailable| staged(fleet, team, max_unavailable));
    let moves = match team {
        Team::Agent => prop::collection::vec(any_move(fleet, aged).boxed(), 0..40),
        Team::Provider | Team::AgentAndProvider | Team::AgentAndTwoProviders => {
            prop::collection::vec(any_move_with_providers(fleet, team, aged), 0..70)
        }
    };
    TestRunner::new(config).run(&(prop::sample::select(vec![0, 1]), moves), |(world, moves)| {
        let mut world = worlds[world].clone();
        let mut found = moves.iter().flat_map(|what| world.make(what, live));
        let fail =
            |found: Finding| TestCaseError::fail(format!("{}: {}", found.write, found.violation));
        found.next().map_or(Ok(()), |found| Err(fail(found)))
    })
}

/// A gate may be raised although an invariant forbids it, if the view of this kind alone is aged.
fn assert_required(fleet: Fleet, kind: Kind, write: &str) {
    let found = search(fleet, Team::Agent, &[kind], &all_but(kind, write));
    let at_write =
        matches!(&found, Err(TestError::Fail(why, _)) if why.message().starts_with(write));
    assert!(at_write, "{kind:?} may be aged before {write}: {found:?}");
}

#[test]
fn a_workers_gate_requires_a_live_node_update_and_live_nodes_machines_and_owners() {
    for kind in [Kind::NodeUpdate, Kind::Node, Kind::Machine, Kind::Owner] {
        assert_required(Fleet::Workers, kind, UPGRADE);
    }
}

#[test]
fn the_gates_and_drains_of_a_control_plane_require_live_nodes_and_mirror_pods() {
    for kind in [Kind::Node, Kind::MirrorPod] {
        for write in [UPGRADE, CORDON, EVICT] {
            assert_required(Fleet::ControlPlane, kind, write);
        }
        let disrupts = |live: &[(Kind, &str)]| {
            let mut world = staged(Fleet::ControlPlane, Team::Agent, 1);
            let fails =
                if kind == Kind::Node { Move::NodeFails(1) } else { Move::ApiServerFails(1) };
            let drained = [
                reconcile(0, &[0], &[]),
                Move::HostWorks(0),
                reconcile(0, &[0], &[]),
                reconcile(0, &[0], &[]),
                fails,
            ];
            assert!(drained.iter().all(|what| world.make(what, live).is_empty()));
            let found = world.make(&reconcile(0, &[0], &[kind]), live);
            found.iter().any(|found| found.write == DISRUPT)
        };
        assert!(disrupts(&all_but(kind, DISRUPT)), "{kind:?} may be aged before {DISRUPT}");
        assert!(!disrupts(&REQUIRED));
    }
}

#[test]
fn a_gate_requires_the_slots_that_another_controller_has_claimed() {
    let raise = |other: usize, live: &[(Kind, &str)]| {
        let mut world = staged(Fleet::Workers, Team::Agent, 2);
        let moves = [
            reconcile(0, &[0], &[]),
            reconcile(other, &[1], &[]),
            reconcile(other, &[1], &[]),
            Move::NodeFails(2),
            reconcile(0, &[0], &[Kind::UpdateGroup]),
        ];
        moves.iter().any(|what| !world.make(what, live).is_empty())
    };
    assert!(raise(1, &all_but(Kind::UpdateGroup, UPGRADE)));
    assert!(!raise(1, &REQUIRED));
    assert!(!raise(0, &[]), "a controller sees its own claims");
}

#[test]
fn every_other_view_of_workers_may_be_arbitrarily_old() {
    assert_eq!(search(Fleet::Workers, Team::Agent, &KINDS, &REQUIRED), Ok(()));
}

#[test]
fn every_other_view_of_a_control_plane_may_be_arbitrarily_old() {
    assert_eq!(search(Fleet::ControlPlane, Team::Agent, &KINDS, &REQUIRED), Ok(()));
}

/// The providers lie, too.
#[test]
fn every_other_view_of_an_update_with_providers_may_be_arbitrarily_old() {
    for team in [Team::Provider, Team::AgentAndProvider, Team::AgentAndTwoProviders] {
        for fleet in [Fleet::Workers, Fleet::ControlPlane] {
            let found = search(fleet, team, &KINDS, &REQUIRED);
            assert_eq!(found, Ok(()), "{fleet:?} {team:?}");
        }
    }
}

#[test]
fn a_drain_waits_for_another_member_that_has_failed() {
    let mut world = staged(Fleet::ControlPlane, Team::Agent, 1);
    let mut is_cordoned_after = |what| {
        assert!(world.make(&what, &[]).is_empty());
        world.is_cordoned(0)
    };
    assert!(!is_cordoned_after(reconcile(0, &[0], &[])));
    assert!(!is_cordoned_after(Move::HostWorks(0)));
    assert!(!is_cordoned_after(Move::NodeFails(1)));
    assert!(!is_cordoned_after(reconcile(0, &[0], &[])));
    assert!(!is_cordoned_after(Move::HostWorks(1)));
    assert!(is_cordoned_after(reconcile(0, &[0], &[])));
}
