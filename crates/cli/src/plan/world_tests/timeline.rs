//! Predicted turns and times, and those that machines then have.

use refit_kinds::refit::NodeUpdate;
use refit_predict::timeline::{Action, Source, Timeline};

use super::*;

/// A Machine, when its update took its slot, and when it ended.
type Update = (String, jiff::Timestamp, jiff::Timestamp);

/// The updates that have begun since a time, in the order in which they were begun.
fn updates(world: &World, since: jiff::Timestamp) -> Vec<Update> {
    let updates = world.node_updates();
    let updates = updates.iter().map(|update| NodeUpdate::deserialize(&**update).unwrap());
    let mut found: Vec<Update> = updates
        .filter_map(|update| {
            let status = update.status?;
            let begun =
                status.steps.iter().filter_map(|step| step.started_at.as_ref()).map(|at| at.0);
            Some((update.spec.machine_ref.name, begun.min()?, status.finished_at?.0))
        })
        .filter(|(_, begun, _)| *begun >= since)
        .collect();
    found.sort_by_key(|(_, begun, _)| *begun);
    found
}

fn timeline(group: &GroupPrediction) -> Timeline {
    group.timeline.clone().unwrap_or_else(|| panic!("no timeline: {group:#?}"))
}

fn updated(timeline: &Timeline) -> Vec<String> {
    let turns = timeline.turns.iter().filter(|turn| turn.action == Action::Update);
    turns.filter_map(|turn| turn.machine.clone()).collect()
}

/// Plans a version of the whole Cluster, makes the change, and returns the groups, and the updates that then were.
async fn upgraded(
    world: &World,
    version: &str,
) -> (Vec<GroupPrediction>, Vec<Update>, jiff::Timestamp) {
    let target = "cluster/edge-1".parse().unwrap();
    let to = version.parse().unwrap();
    let input = gather(&mut reader(world), &Change::Version(&target, &to)).await.unwrap();
    let predicted = predict(&input);
    let since = world.now();
    for object in [plane(&json!({"version": version})), version_of_workers(version)] {
        apply(world, &object).await;
    }
    world
        .until("it has the version", Duration::from_hours(2), |world| world.is_updated(version))
        .await
        .unwrap();
    (predicted.groups, updates(world, since), since)
}

#[test]
fn machines_have_their_turns_in_the_predicted_order_and_time() {
    in_world(async {
        let world = up();
        let (groups, first, _) = upgraded(&world, MINOR).await;
        let order: Vec<String> =
            groups.iter().flat_map(|group| updated(&timeline(group))).collect();
        let happened: Vec<String> = first.iter().map(|(machine, ..)| machine.clone()).collect();
        assert_eq!(order, happened);
        assert!(groups.iter().all(|group| timeline(group).takes.source == Source::Assumed));
        world.pass(Duration::from_mins(1)).await;
        // The past updates show how long the next ones take.
        let (groups, second, since) = upgraded(&world, "v1.36.0").await;
        let end = groups.iter().map(|group| timeline(group).end()).max().unwrap();
        let took =
            second.iter().map(|(_, _, end)| *end).max().unwrap().duration_since(since).as_secs();
        assert!(
            groups.iter().all(|group| timeline(group).takes.source == Source::History),
            "{groups:#?}"
        );
        eprintln!("predicted {end} s, took {took} s");
        assert!((took - end).abs() * 4 <= took, "predicted {end} s, took {took} s");
    });
}

#[test]
fn as_many_workers_have_their_turns_at_a_time_as_predicted() {
    in_world(async {
        for (unavailable, pacing) in [(2, None), (3, Some(1))] {
            let world = up();
            apply(&world, &strategy(0, unavailable)).await;
            if let Some(paced) = pacing {
                let group = json!({"apiVersion": "refit.dev/v1alpha1", "kind": "UpdateGroup",
                "metadata": {"name": "machinedeployment-edge-1-md-0", "namespace": "default"},
                "spec": {
                    "clusterName": "edge-1",
                    "controlPlane": false,
                    "owner": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
                        "name": "edge-1-md-0"},
                    "pacing": {"maxUnavailable": paced},
                }});
                apply(&world, &group).await;
            }
            let since = world.now();
            let groups = comes_true(&world, &[version_of_workers(PATCH)]).await;
            let predicted = timeline(&only(groups));
            let happened = updates(&world, since);
            let most = |spans: Vec<(i64, i64)>| {
                let at = |time: i64| {
                    spans.iter().filter(|(from, to)| *from <= time && time < *to).count()
                };
                spans.iter().map(|(from, _)| at(*from)).max().unwrap()
            };
            let turns = predicted.turns.iter();
            let wanted =
                most(turns.map(|turn| (turn.disturbed_seconds, turn.end_seconds)).collect());
            assert_eq!(i64::try_from(wanted).unwrap(), pacing.unwrap_or(unavailable));
            let disturbed: Vec<(i64, i64)> = disturbed(&world, &happened);
            assert_eq!(most(disturbed), wanted, "{unavailable} {pacing:?}");
            assert_eq!(predicted.availability.least, 3 - i64::try_from(wanted).unwrap());
        }
    });
}

/// From when to when each of these updates disturbed its machine: from the cordon on.
fn disturbed(world: &World, of: &[Update]) -> Vec<(i64, i64)> {
    let updates = world.node_updates();
    let updates = updates.iter().map(|update| NodeUpdate::deserialize(&**update).unwrap());
    let is_one = |update: &NodeUpdate| {
        of.iter().any(|(machine, ..)| *machine == update.spec.machine_ref.name)
    };
    updates
        .filter(is_one)
        .filter_map(|update| {
            let status = update.status?;
            let cordon = status.steps.iter().find(|step| step.name == "cordon")?;
            Some((cordon.started_at.as_ref()?.0.as_second(), status.finished_at?.0.as_second()))
        })
        .collect()
}

/// The seconds from the end of each update to the begin of the next one of the same group.
fn lost(updates: &[Update]) -> Vec<i64> {
    let pairs = updates.windows(2);
    pairs
        .filter_map(|pair| {
            let [(_, _, ended), (_, begun, _)] = pair else { return None };
            Some(begun.duration_since(*ended).as_secs())
        })
        .collect()
}

#[test]
fn the_next_machine_begins_as_soon_as_the_last_one_has_ended() {
    in_world(async {
        let is_plane = |world: &World, machine: &str| {
            let mut machines = world.machines().into_iter();
            machines.any(|one| {
                one["metadata"]["name"] == *machine
                    && one["metadata"]["labels"].get(keys::CONTROL_PLANE).is_some()
            })
        };
        // Where Refit decides: within the second in which times are kept.
        let world = up();
        let since = world.now();
        world.upgrade_by_tasks(MINOR).await.unwrap();
        let is_updated = |world: &World| world.is_updated(MINOR);
        world.until("it has the version", Duration::from_hours(2), is_updated).await.unwrap();
        let mut all = updates(&world, since);
        all.retain(|(machine, ..)| is_plane(&world, machine));
        assert_eq!(all.len(), 3);
        assert!(lost(&all).iter().all(|seconds| (0..=1).contains(seconds)), "{:?}", lost(&all));
        // Where Cluster API asks: as soon as it asks again, which follows the predicted end.
        let world = up();
        upgraded(&world, MINOR).await;
        world.pass(Duration::from_mins(1)).await;
        let (_, all, _) = upgraded(&world, "v1.36.0").await;
        let (planes, workers): (Vec<Update>, Vec<Update>) =
            all.into_iter().partition(|(machine, ..)| is_plane(&world, machine));
        for of_group in [planes, workers] {
            let lost = lost(&of_group);
            assert_eq!(lost.len(), 2);
            assert!(lost.iter().all(|seconds| (0..=2).contains(seconds)), "{lost:?}");
        }
    });
}
