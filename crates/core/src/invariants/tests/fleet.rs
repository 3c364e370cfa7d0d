//! Invariant 10: histories of a plan that violate it, next to those that do not.

use super::*;

/// A plan of waves `canary` and `all`, with these fields.
fn fleet_plan(spec: Value, begun: usize) -> Value {
    let waves = json!([{"name": "canary", "count": 1, "soakMinutes": 30}, {"name": "all"}]);
    let base = json!({
        "version": "v1.35.0", "clustersAtOnce": 2, "stopAfterFailures": 1, "waves": waves,
    });
    let begun: Vec<Value> = (0..begun).map(|at| json!({"name": at.to_string()})).collect();
    json!({
        "metadata": {"name": "spring", "generation": 1},
        "spec": with(base, spec),
        "status": {"version": "v1.35.0", "observedGeneration": 1, "waves": begun},
    })
}

/// The ClusterUpgrade of a Cluster, as the plan requests it so many minutes after midnight.
fn requested(cluster: &str, wave: usize, minute: u32) -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": cluster, "generation": 1,
            "labels": {keys::PLAN: "spring"}, "annotations": {keys::WAVE: wave.to_string()},
        },
        "spec": {"version": "v1.35.0", "startAt": moment(minute)},
    })
}

fn moment(minute: u32) -> String {
    format!("2026-01-01T{:02}:{:02}:00Z", minute / 60, minute % 60)
}

fn ended(upgrade: Value, phase: &str, minute: u32) -> Value {
    let record = json!({
        "version": "v1.35.0", "phase": phase, "completeTime": moment(minute), "reason": "Cancelled",
    });
    let status = json!({"observedGeneration": 1, "phase": phase, "history": [record]});
    with(upgrade, json!({"status": status}))
}

fn stuck(upgrade: Value) -> Value {
    let record = json!({"version": "v1.35.0", "phase": "Upgrading"});
    let ready = json!({"type": "Ready", "status": "False", "reason": "StepError"});
    let status = json!({"observedGeneration": 1, "history": [record], "conditions": [ready]});
    with(upgrade, json!({"status": status}))
}

/// What is wrong with the last of the ClusterUpgrades if the controller writes them in this order under a plan.
fn wrong(plan: &Value, upgrades: &[Value]) -> Vec<String> {
    let mut world = World::new();
    put(&mut world, "refit.dev", "ClusterUpgradePlan", plan);
    let (last, others) = upgrades.split_last().unwrap();
    for upgrade in others {
        put(&mut world, "refit.dev", "ClusterUpgrade", upgrade);
    }
    write(&mut world, last)
}

fn write(world: &mut World, upgrade: &Value) -> Vec<String> {
    let found = world.observe("refit.dev", "ClusterUpgrade", None, None, Some(upgrade), CONTROLLER);
    assert!(found.iter().all(|one| one.invariant == Invariant::WavesKept), "{found:?}");
    found.into_iter().map(|one| one.message).collect()
}

fn canary() -> Value {
    ended(requested("c-0", 0, 0), "Completed", 10)
}

#[test]
fn a_plan_that_keeps_to_its_spec_violates_nothing() {
    let plan = fleet_plan(json!({}), 1);
    assert!(wrong(&plan, &[requested("c-0", 0, 0)]).is_empty());
    let plan = fleet_plan(json!({}), 2);
    let all = [canary(), requested("c-1", 1, 40), requested("c-2", 1, 40)];
    assert!(wrong(&plan, &all).is_empty());
}

#[test]
fn so_many_clusters_are_upgraded_at_once() {
    let plan = fleet_plan(json!({}), 2);
    let [one, two, three] = ["c-1", "c-2", "c-3"].map(|name| requested(name, 1, 40));
    let third = [canary(), one.clone(), two.clone(), three.clone()];
    assert!(wrong(&plan, &third)[0].contains("2 others are under way, at most 2"));
    // One that has ended leaves room for another one.
    let done = ended(one, "Completed", 45);
    assert!(wrong(&plan, &[canary(), done, two, three]).is_empty());
}

#[test]
fn a_wave_begins_when_the_one_before_it_has_ended_and_soaked() {
    let plan = fleet_plan(json!({}), 2);
    let early = [requested("c-0", 0, 0), requested("c-1", 1, 40)];
    assert!(wrong(&plan, &early)[0].contains("wave 0 has not ended"));
    assert!(wrong(&plan, &[canary(), requested("c-1", 1, 39)])[0].contains("soaks 30 minutes"));
    assert!(wrong(&plan, &[canary(), requested("c-1", 1, 40)]).is_empty());
    // One that does not go on keeps no wave waiting.
    assert!(wrong(&plan, &[stuck(requested("c-0", 0, 0)), requested("c-1", 1, 40)]).is_empty());
}

#[test]
fn no_wave_is_skipped() {
    let plan = fleet_plan(json!({}), 1);
    assert!(wrong(&plan, &[canary(), requested("c-1", 1, 40)])[0].contains("1 waves have begun"));
}

#[test]
fn a_plan_that_has_stopped_requests_nothing() {
    let failed = || ended(requested("c-1", 1, 40), "Failed", 50);
    let all = [canary(), failed(), requested("c-2", 1, 53)];
    assert!(wrong(&fleet_plan(json!({}), 2), &all)[0].contains("1 Clusters have failed"));
    let plan = fleet_plan(json!({"stopAfterFailures": 2}), 2);
    assert!(wrong(&plan, &all).is_empty());
    let plan = fleet_plan(json!({"stopAfterFailures": 0, "sameCauseStops": 1}), 2);
    assert!(wrong(&plan, &all)[0].contains("1 Clusters have failed"));
    let plan = fleet_plan(json!({"failuresSince": moment(50)}), 2);
    assert!(wrong(&plan, &all).is_empty());
    let plan = fleet_plan(json!({"paused": true}), 1);
    assert!(wrong(&plan, &[requested("c-0", 0, 0)])[0].contains("paused"));
}

#[test]
fn a_plan_may_follow_its_previous_spec_until_it_shows_the_next_one() {
    let mut world = World::new();
    put(&mut world, "refit.dev", "ClusterUpgradePlan", &fleet_plan(json!({}), 1));
    let pause = |observed: u64| {
        let paused = fleet_plan(json!({"paused": true}), 1);
        let paused = with(paused, json!({"metadata": {"name": "spring", "generation": 2}}));
        let status = json!({"observedGeneration": observed});
        with(paused, json!({"status": status}))
    };
    put(&mut world, "refit.dev", "ClusterUpgradePlan", &pause(1));
    assert!(write(&mut world.clone(), &requested("c-0", 0, 0)).is_empty());
    put(&mut world, "refit.dev", "ClusterUpgradePlan", &pause(2));
    assert!(write(&mut world, &requested("c-0", 0, 0))[0].contains("paused"));
}

#[test]
fn a_cluster_is_requested_once() {
    let plan = fleet_plan(json!({}), 1);
    let again = with(requested("c-0", 0, 20), json!({"spec": {"hops": ["v1.34.9"]}}));
    assert!(wrong(&plan, &[canary(), again])[0].contains("has requested before"));
}

#[test]
fn an_upgrade_of_another_client_is_replaced_only_when_it_has_ended() {
    let plan = fleet_plan(json!({}), 1);
    let own = || {
        let meta = json!({"namespace": "default", "name": "c-0", "generation": 1});
        json!({"metadata": meta, "spec": {"version": "v1.35.0"}})
    };
    assert!(wrong(&plan, &[own(), requested("c-0", 0, 0)])[0].contains("it has not ended"));
    let all = [stuck(own()), requested("c-0", 0, 0)];
    assert!(wrong(&plan, &all)[0].contains("it has not ended"));
    assert!(wrong(&plan, &[ended(own(), "Failed", 0), requested("c-0", 0, 0)]).is_empty());
    let other = with(own(), json!({"spec": {"version": "v1.34.9"}}));
    assert!(wrong(&plan, &[own(), other])[0].contains("no plan has requested it"));
}

#[test]
fn one_that_is_repaired_counts_as_under_way_only_for_its_plan() {
    let plan = fleet_plan(json!({"clustersAtOnce": 1}), 2);
    let repaired = requested("c-0", 0, 0);
    let all = [stuck(repaired.clone()), repaired, requested("c-1", 1, 40)];
    assert!(wrong(&plan, &all).is_empty());
}
