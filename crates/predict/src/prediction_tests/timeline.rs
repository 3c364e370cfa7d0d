//! When machines have their turns, and how many are available meanwhile.

use super::*;
use refit_kinds::refit::Disruption;

use crate::timeline::{Action, Timeline};

fn timeline(group: &GroupPrediction) -> &Timeline {
    group.timeline.as_ref().unwrap_or_else(|| panic!("no timeline: {group:#?}"))
}

/// How many updates have their turn in each wave.
fn waves(timeline: &Timeline) -> Vec<usize> {
    let mut waves = std::collections::BTreeMap::new();
    for turn in &timeline.turns {
        *waves.entry(turn.disturbed_seconds).or_insert(0) += 1;
    }
    waves.into_values().collect()
}

fn update_group(pacing: &Value) -> Value {
    json!({"kind": "UpdateGroup",
    "metadata": {"name": "machinedeployment-md", "namespace": "default"},
    "spec": {
        "clusterName": "edge-1", "controlPlane": false,
        "owner": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": "md"},
        "pacing": pacing,
    }})
}

#[test]
fn workers_have_their_turns_after_the_control_plane() {
    let found = predict(&upgrade(&[control_plane(3, 0), deployment(4, 0, 2)]));
    let (plane, workers) = (&found.groups[0], &found.groups[1]);
    assert_eq!(waves(timeline(plane)), [1, 1, 1]);
    assert_eq!(waves(timeline(workers)), [2, 2]);
    assert_eq!(timeline(workers).start(), timeline(plane).end());
    assert_eq!(workers.after.as_deref(), Some("KubeadmControlPlane/edge-1"));
    assert_eq!(plane.after, None);
    assert_eq!(timeline(workers).availability.least, 2);
    let length = timeline(workers).end() - timeline(workers).start();
    assert_eq!(workers.seconds, Some(length));
}

#[test]
fn a_group_never_has_more_turns_at_a_time_than_its_pacing_allows() {
    let mut input = upgrade(&[deployment(6, 0, 3)]);
    assert_eq!(waves(timeline(&predict(&input).groups[0])), [3, 3]);
    input.current.insert(update_group(&json!({"maxUnavailable": 1})));
    let paced = predict(&input);
    assert_eq!(waves(timeline(&paced.groups[0])), [1, 1, 1, 1, 1, 1]);
    assert_eq!(timeline(&paced.groups[0]).availability.least, 5);
    // The others prepare meanwhile, so that they have their turns one right after the other.
    let turns = &timeline(&paced.groups[0]).turns;
    assert_eq!(turns[1].disturbed_seconds, turns[0].end_seconds);
    assert!(turns[1].start_seconds < turns[0].end_seconds);
}

#[test]
fn people_who_hold_a_group_or_a_machine_block_its_plan() {
    let of = |pacing: Value, owner: &[(&str, &str)], machine: &[(&str, &str)]| {
        let mut input = upgrade(&[deployment(2, 0, 1)]);
        let (set, mut machines) = crate::workers::imagined(&deployment(2, 0, 1), None);
        let mut set = set;
        set["metadata"]["ownerReferences"] = json!([{"apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment", "name": "md", "controller": true, "uid": "md"}]);
        set["metadata"]["namespace"] = json!("default");
        for (key, value) in machine {
            machines[0]["metadata"]["annotations"][key] = json!(value);
        }
        input.current.insert(set);
        for (index, mut machine) in machines.into_iter().enumerate() {
            machine["metadata"]["namespace"] = json!("default");
            machine["metadata"]["uid"] = json!(format!("uid-{index}"));
            machine["spec"]["bootstrap"]["configRef"]["apiGroup"] =
                json!("bootstrap.cluster.x-k8s.io");
            machine["status"]["conditions"] = json!([{"type": "Available", "status": "True", "reason": "Ok",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            input.current.insert(machine);
        }
        for objects in [&mut input.current, &mut input.desired] {
            let mut group = objects.get("MachineDeployment", "default", "md").unwrap().clone();
            for (key, value) in owner {
                group["metadata"]["annotations"][key] = json!(value);
            }
            objects.insert(group);
        }
        input.current.insert(update_group(&pacing));
        let group = predict(&input).groups.remove(0);
        let reasons: Vec<String> = group.blocked_by.iter().map(|one| one.reason.clone()).collect();
        (reasons.join(" "), group.notes.join(" "))
    };
    assert_eq!(of(json!({}), &[], &[]).0, "");
    assert_eq!(of(json!({"paused": true}), &[], &[]).0, "Paused");
    assert_eq!(of(json!({}), &[(keys::GROUP_PAUSED, "true")], &[]).0, "Paused");
    assert_eq!(of(json!({}), &[], &[(keys::HOLD, "disk")]).0, "Held");
    let listed = json!({"exceptions": [{"machine": "md-1", "rule": "Hold", "reason": "disk"}]});
    assert_eq!(of(listed, &[], &[]).0, "Held");
    let (blocked, notes) = of(json!({}), &[], &[(keys::SKIP, "disk")]);
    assert_eq!(blocked, "");
    assert!(notes.contains("Machine/md-0"), "{notes}");
    let (blocked, notes) = of(json!({"pauseAfter": 1}), &[], &[]);
    assert_eq!(blocked, "");
    assert!(notes.contains("refit approve machinedeployment/md"), "{notes}");
}

#[test]
fn settings_of_hosts_add_what_they_disturb() {
    let of = |settings: &[Value]| {
        let mut input = upgrade(&[deployment(1, 0, 1)]);
        for (index, settings) in settings.iter().enumerate() {
            input.desired.insert(json!({"kind": "HostSettings",
                "metadata": {"name": format!("s-{index}"), "namespace": "default"},
                "spec": {"appliesTo": {"all": {}}, "settings": settings}}));
        }
        predict(&input).groups.remove(0)
    };
    let image =
        json!({"osImage": {"name": "edge-42", "url": "https://a/b.raw", "sha384": "0".repeat(96)}});
    let security = json!({"osPackages": {"security": true}});
    let plain = of(&[]);
    assert_eq!(plain.disruption, Some(Disruption::Drain));
    let booted = of(std::slice::from_ref(&image));
    assert_eq!(booted.disruption, Some(Disruption::Reboot), "{booted:#?}");
    assert!(booted.seconds > plain.seconds);
    let maybe = of(std::slice::from_ref(&security));
    assert!(maybe.notes.iter().any(|note| note.contains("boot if")), "{:?}", maybe.notes);
    let both = of(&[image, security]);
    assert_eq!(both.blocked_by[0].reason, "HostSettingsConflict");
    assert_eq!(both.outcome, PredictedOutcome::Blocked);
}

#[test]
fn a_surge_is_the_first_turn_and_a_deletion_the_last() {
    let found = predict(&upgrade(&[deployment(2, 1, 0)]));
    let turns = &timeline(&found.groups[0]).turns;
    let actions: Vec<Action> = turns.iter().map(|turn| turn.action).collect();
    assert_eq!(actions, [Action::Create, Action::Update, Action::Delete]);
    assert_eq!(turns[0].machine, None);
    assert_eq!(turns[1].start_seconds, turns[0].end_seconds);
}

#[test]
fn a_topology_upgrades_its_groups_in_its_own_order() {
    let mut second = deployment(1, 0, 1);
    second["metadata"]["name"] = json!("a");
    let mut input = upgrade(&[control_plane(3, 0), deployment(1, 0, 1), second]);
    for (name, topology) in [("md", "first"), ("a", "second")] {
        let mut object = input.desired.get("MachineDeployment", "default", name).unwrap().clone();
        object["metadata"]["labels"] = json!({
            keys::TOPOLOGY_OWNED: "", keys::TOPOLOGY_DEPLOYMENT_NAME: topology});
        input.desired.insert(object);
    }
    let mut cluster = cluster();
    cluster["spec"]["topology"] = json!({"version": NEW, "workers": {
        "machineDeployments": [{"name": "first"}, {"name": "second"}]}});
    input.desired.insert(cluster.clone());
    let starts = |input: &Input| {
        let found = predict(input);
        let of = |name: &str| {
            let group = found.groups.iter().find(|group| group.name == name).unwrap();
            (timeline(group).start(), timeline(group).end(), group.after.clone())
        };
        (of("edge-1"), of("md"), of("a"))
    };
    let (plane, first, second) = starts(&input);
    assert_eq!((first.0, second.0), (plane.1, first.1));
    assert_eq!(second.2.as_deref(), Some("MachineDeployment/md"));
    cluster["metadata"]["annotations"] = json!({keys::UPGRADE_CONCURRENCY: "2"});
    input.desired.insert(cluster);
    let (plane, first, second) = starts(&input);
    assert_eq!((first.0, second.0), (plane.1, plane.1));
}

#[test]
fn a_simulation_predicts_as_many_machines_as_it_is_given() {
    for (unavailable, least, count) in [(1, 2_999, 3_000), (30, 2_970, 100)] {
        let mut input = upgrade(&[deployment(5, 0, unavailable)]);
        input.simulate = Some(3_000);
        let found = predict(&input);
        let group = &found.groups[0];
        assert_eq!((group.machines.now, group.machines.in_place), (3_000, 3_000));
        assert_eq!(timeline(group).availability.least, least);
        assert_eq!(waves(timeline(group)).len(), count);
    }
}
