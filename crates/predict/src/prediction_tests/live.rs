//! Predictions for Machines that exist, with what their hosts and clusters show.

use super::*;
use crate::timeline::Source;

fn machine(index: usize, owner: &str, kind: &str, version: &str) -> Value {
    let name = format!("{owner}-{index}");
    let conditions: Vec<Value> = [
        "Available",
        "APIServerPodHealthy",
        "ControllerManagerPodHealthy",
        "SchedulerPodHealthy",
        "EtcdPodHealthy",
        "EtcdMemberHealthy",
    ]
    .iter()
    .map(|type_| {
        json!({"type": type_, "status": "True", "reason": "Ok", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    })
    .collect();
    json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "namespace": "default", "uid": name,
            "creationTimestamp": format!("2026-01-01T00:00:0{index}Z"),
            "labels": {"cluster.x-k8s.io/cluster-name": "edge-1"},
            "ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": owner, "uid": owner,
                "controller": true}]},
        "spec": {"clusterName": "edge-1", "version": version,
            "bootstrap": {"configRef":
                {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name}},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "VSphereMachine", "name": name}},
        "status": {"nodeRef": {"name": name}, "conditions": conditions,
            "nodeInfo": {"kubeletVersion": version}}})
}

/// A control plane of three machines with all their objects.
pub(super) fn live() -> Input {
    live_of(control_plane(3, 0), 3)
}

/// A control plane of so many machines with all their objects.
fn live_of(plane: Value, machines: usize) -> Input {
    let mut input = upgrade(&[plane]);
    for index in 0..machines {
        let name = format!("edge-1-{index}");
        let mut machine = machine(index, "edge-1", "KubeadmControlPlane", OLD);
        machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"] = json!("");
        let infrastructure = json!({"kind": "VSphereMachine",
            "metadata": {"name": name, "namespace": "default", "annotations": {
                "cluster.x-k8s.io/cloned-from-name": "cp",
                "cluster.x-k8s.io/cloned-from-groupkind":
                    "VSphereMachineTemplate.infrastructure.cluster.x-k8s.io"}},
            "spec": {"template": "A", "providerID": "vsphere://1"}});
        let config = json!({"kind": "KubeadmConfig",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"format": "cloud-config",
                "clusterConfiguration": {"featureGates": {"ControlPlaneKubeletLocalMode": true}},
                "joinConfiguration": {
                    "controlPlane": {}, "discovery": {"bootstrapToken": {"token": "abc"}}}}});
        input.current.extend([machine, infrastructure, config]);
    }
    let names = (0..3).flat_map(|i| [format!("edge-1-{i}"), format!("md-a-{i}")]);
    let mut nodes: Vec<Value> = names.map(|name| node(&name)).collect();
    nodes.sort_by_key(|node| node["metadata"]["name"].to_string());
    let hosts = Hosts {
        reported_at: (0..3).map(|i| (format!("edge-1-{i}"), now())).collect(),
        ..Hosts::of(&[], &nodes, &[], &[])
    };
    let key = ("default".to_owned(), "edge-1".to_owned());
    input.hosts.insert(key, Read::Known(hosts));
    input
}

#[test]
fn a_plan_for_what_is_requested_already_names_the_task_that_pauses_the_control_plane() {
    let mut plane = control_plane(1, 1);
    plane["metadata"]["annotations"] = json!({
        keys::SINGLE_REPLICA: "InPlace", keys::PAUSED: keys::TASK, keys::TASK: "old",
    });
    let mut input = held(live_of(plane, 1));
    let names_task = |input: &Input| {
        let found = only(predict(input));
        assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
        found.notes.iter().any(|note| note.contains("UpgradeTask/old"))
    };
    assert!(!names_task(&input), "another version gets a task of its own");
    let wanted = input.desired.get("KubeadmControlPlane", "default", "edge-1").unwrap().clone();
    input.current.insert(wanted);
    assert!(names_task(&input));
}

pub(super) fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// A budget without room protects the only pod of a node.
fn exhaust(input: &mut Input, node: &str, healthy: i64) {
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 0, "expectedPods": 2, "currentHealthy": healthy,
            "desiredHealthy": 2}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
                "uid": "u", "controller": true}]},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let facts = WorkloadFacts::of(&[], &[], &[budget], &[pod]);
    let known = &mut hosts(input).preflight;
    (known.budgets, known.pods) = (facts.budgets, facts.pods);
}

pub(super) fn change_machine(input: &mut Input, index: usize, change: impl FnOnce(&mut Value)) {
    let name = format!("edge-1-{index}");
    let machine = input.current.get("Machine", "default", &name).unwrap();
    let mut machine = machine.clone();
    change(&mut machine);
    input.current.insert(machine);
}

pub(super) fn hosts(input: &mut Input) -> &mut Hosts {
    match input.hosts.values_mut().next() {
        Some(Read::Known(hosts)) => hosts,
        other => panic!("{other:?}"),
    }
}

#[test]
fn live_machines_are_predicted_one_by_one() {
    let found = only(predict(&live()));
    assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
    assert_eq!(counts(&found), (3, 3, 0, 0));
    assert_eq!(found.paths.len(), 1, "{:#?}", found.paths);
    assert_eq!(found.paths[0].objects.len(), 3);
}

/// The table that the model of Cluster API and the test bed also check.
#[test]
fn kubeadm_config_changes_are_predicted() {
    let table: Value = serde_json::from_str(include_str!(
        "../../../cluster-api/testdata/kubeadm_config_verdicts.json"
    ))
    .unwrap();
    for row in table["changes"].as_array().unwrap() {
        let mut input = live();
        for (objects, change) in [(true, None), (false, Some(&row["change"]))] {
            let objects = if objects { &mut input.current } else { &mut input.desired };
            let plane = objects.get("KubeadmControlPlane", "default", "edge-1");
            let mut plane = plane.unwrap().clone();
            plane["spec"]["version"] = json!(OLD);
            plane["spec"]["kubeadmConfigSpec"] = table["base"].clone();
            if let Some(change) = change {
                json_patch::merge(&mut plane["spec"]["kubeadmConfigSpec"], change);
            }
            objects.insert(plane);
        }
        let plane = input.current.get("KubeadmControlPlane", "default", "edge-1").unwrap();
        let spec = kubeadm_config::desired_spec(plane, kubeadm_config::Entry::Join);
        for index in 0..3 {
            let name = format!("edge-1-{index}");
            input.current.insert(json!({"kind": "KubeadmConfig",
                "metadata": {"name": name, "namespace": "default"}, "spec": spec}));
        }
        let found = only(predict(&input));
        let unchanged = found.outcome == PredictedOutcome::Unchanged;
        assert_eq!(unchanged, row["counts"] == false, "{}: {found:#?}", row["what"]);
    }
}

#[test]
fn blockers_are_named() {
    let mut silent = live();
    hosts(&mut silent).reported_at.remove("edge-1-0");
    let mut old = live();
    hosts(&mut old).kubelets.insert("w-0".into(), "v1.31.0".into());
    let mut exhausted = live();
    exhaust(&mut exhausted, "edge-1-1", 2);
    let mut cordoned = live();
    let mut view = hosts(&mut cordoned).preflight.nodes[1].as_ref().clone();
    view.unschedulable = true;
    hosts(&mut cordoned).preflight.nodes[1] = view.into();
    let mut busy = live();
    change_machine(&mut busy, 1, |machine| {
        machine["metadata"]["annotations"] =
            json!({"in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""});
    });
    let mut failed = busy.clone();
    failed.current.insert(json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "NodeUpdate",
        "metadata": {"name": "edge-1-1-1", "namespace": "default", "uid": "u-1"},
        "spec": {"machineRef": {"name": "edge-1-1", "uid": "edge-1-1"},
            "origin": "Hook", "goal": {"kubernetesVersion": NEW}, "goalHash": "h"},
        "status": {"phase": "Failed", "failureReason": "CommandFailed",
            "failureMessage": "kubeadm upgrade node ended with 1"},
    }));
    let mut sick = live();
    for index in [1, 2] {
        change_machine(&mut sick, index, |machine| {
            machine["status"]["conditions"] = json!([]);
        });
    }
    let mut owned = live();
    let mut wanted = owned.desired.get("KubeadmControlPlane", "default", "edge-1").unwrap().clone();
    wanted["metadata"]["labels"] = json!({"topology.cluster.x-k8s.io/owned": ""});
    owned.desired.insert(wanted);
    let table = vec![
        (silent, "NoFreshReport"),
        (old, "KubeletTooOld"),
        (exhausted, "PodDisruptionBudget"),
        (cordoned, "NodeCordoned"),
        (busy, "AnotherMachineUpdating"),
        (failed, "Failed"),
        (sick, "ControlPlaneUnhealthy"),
        (owned, "ManagedByTopology"),
    ];
    for (input, reason) in table {
        let found = only(predict(&input));
        assert_eq!(found.outcome, PredictedOutcome::Blocked, "{reason}: {found:#?}");
        assert!(
            found.blocked_by.iter().any(|blocked| blocked.reason == reason),
            "{reason}: {found:#?}"
        );
    }
}

#[test]
fn an_undrainable_node_is_noted_and_not_held_by_a_budget() {
    let mut alone = live();
    exhaust(&mut alone, "edge-1-1", 2);
    let facts = hosts(&mut alone);
    facts.alone = ["edge-1-1".to_owned()].into();
    for index in [0, 2, 3, 4, 5] {
        let mut view = facts.preflight.nodes[index].as_ref().clone();
        view.taints = vec!["example.com/storage".into()];
        facts.preflight.nodes[index] = view.into();
    }
    let found = only(predict(&alone));
    assert!(found.blocked_by.iter().all(|b| b.reason != "PodDisruptionBudget"), "{found:#?}");
    let note_start = "Node edge-1-1 is not drained: no other node can run its pods";
    assert!(found.notes.iter().any(|note| note.starts_with(note_start)), "{found:#?}");
}

#[test]
fn a_budget_that_recovers_by_itself_is_a_note() {
    let mut input = live();
    exhaust(&mut input, "edge-1-1", 1);
    let found = only(predict(&input));
    assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
    let note = "PodDisruptionBudget default/web does not allow it now; this may pass by itself";
    assert!(found.notes.iter().any(|line| line.ends_with(note)), "{found:#?}");
}

#[test]
fn machines_that_wait_for_the_same_are_one_line() {
    let mut input = live();
    for index in [0, 1, 2] {
        let mut view = hosts(&mut input).preflight.nodes[index].as_ref().clone();
        view.unschedulable = true;
        hosts(&mut input).preflight.nodes[index] = view.into();
    }
    let found = only(predict(&input));
    let cordoned: Vec<_> =
        found.blocked_by.iter().filter(|one| one.reason == "NodeCordoned").collect();
    assert_eq!(cordoned.len(), 1, "{found:#?}");
    assert_eq!(
        cordoned[0].message,
        "3 machines (edge-1-0, edge-1-1, edge-1-2): waiting until node edge-1-0 is uncordoned, which \
         an administrator or another program has cordoned: kubectl uncordon edge-1-0"
    );
}

#[test]
fn unrequested_replacements_are_predicted() {
    let mut sick = live();
    change_machine(&mut sick, 1, |m| m["status"]["conditions"] = json!([]));
    let mut marked = live();
    change_machine(&mut marked, 1, |m| {
        m["metadata"]["annotations"] = json!({"cluster.x-k8s.io/delete-machine": ""});
    });
    let mut failed = live();
    change_machine(&mut failed, 1, |m| {
        let conditions = m["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "HealthCheckSucceeded", "status": "False"}));
        conditions.push(json!({"type": "OwnerRemediated", "status": "False"}));
    });
    let mut expiring = live();
    change_machine(&mut expiring, 1, |m| {
        m["status"]["certificatesExpiryDate"] = json!("2026-03-10T00:00:00Z");
    });
    let mut wanted =
        expiring.desired.get("KubeadmControlPlane", "default", "edge-1").unwrap().clone();
    wanted["spec"]["rollout"]["before"] = json!({"certificatesExpiryDays": 21});
    expiring.desired.insert(wanted);
    let mut adopted = live();
    adopted.current.insert(json!({"kind": "VSphereMachine",
        "metadata": {"name": "edge-1-1", "namespace": "default"}, "spec": {"template": "A"}}));
    let table = vec![
        (sick, CauseReason::FailsPreflight),
        (marked, CauseReason::Marked),
        (failed, CauseReason::Remediation),
        (expiring, CauseReason::CertificatesExpire),
        (adopted, CauseReason::NotCloned),
    ];
    for (input, reason) in table {
        let found = only(predict(&input));
        assert_eq!(reasons(&found), [reason], "{found:#?}");
        assert_eq!(counts(&found), (3, 2, 1, 1), "{reason:?}");
        assert_eq!(found.outcome, PredictedOutcome::Replaced);
        assert!(!found.causes[0].remedy.is_empty());
    }
    let mut old = live();
    let mut wanted = old.desired.get("KubeadmControlPlane", "default", "edge-1").unwrap().clone();
    wanted["spec"]["rollout"]["after"] = json!("2026-03-01T00:00:00Z");
    old.desired.insert(wanted);
    let found = only(predict(&old));
    assert_eq!(counts(&found), (3, 0, 3, 3));
    assert!(reasons(&found).iter().all(|r| *r == CauseReason::RolloutAfter));
}

#[test]
fn workers_wait_for_the_control_plane_or_follow_it() {
    let mut input = live();
    let md = deployment(3, 0, 1);
    input.current.insert(md.clone());
    let mut set_object = json!({"kind": "MachineSet",
        "metadata": {"name": "md-a", "namespace": "default",
            "ownerReferences": [{"kind": "MachineDeployment", "name": "md", "controller": true}]},
        "spec": {"replicas": 3}});
    set_object["spec"]["template"] = md["spec"]["template"].clone();
    input.current.insert(set_object);
    for index in 0..3 {
        input.current.insert(machine(index, "md-a", "MachineSet", OLD));
        hosts(&mut input).reported_at.insert(format!("md-a-{index}"), now());
    }
    input.desired.insert(set(&md, "/spec/template/spec/version", json!(NEW)));
    input.targets.push(GroupRef::of(&md));
    let found = predict(&input);
    assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
    assert_eq!(counts(&found.groups[1]), (3, 3, 0, 0));
    assert!(found.groups[1].notes.iter().any(|n| n.contains("follows the control plane")));
    // Without the control plane they would become newer than their API server.
    input.targets.remove(0);
    let found = only(predict(&input));
    assert_eq!(found.outcome, PredictedOutcome::Blocked);
    assert_eq!(found.blocked_by[0].reason, "ControlPlaneBehind");
}

#[test]
fn past_updates_determine_the_predicted_duration() {
    let mut input = live();
    let assumed = only(predict(&input)).timeline.unwrap();
    assert_eq!(assumed.takes.source, Source::Assumed);
    let steps =
        refit_core::node::plan_steps(refit_kinds::refit::Role::ControlPlane, &NEW.parse().unwrap());
    let durations: Vec<Value> = refit_core::node::step_names(&steps)
        .into_iter()
        .map(|step| json!({"step": step, "seconds": [10]}))
        .collect();
    let one = i64::try_from(durations.len()).unwrap() * 10;
    input.current.insert(json!({"kind": "UpdateGroup",
        "metadata": {"name": "kubeadmcontrolplane-edge-1", "namespace": "default"},
        "spec": {
            "clusterName": "edge-1", "controlPlane": true,
            "owner": {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
                "kind": "KubeadmControlPlane", "name": "edge-1"},
        },
        "status": {"durations": durations}}));
    let found = only(predict(&input));
    assert_eq!(found.seconds, Some(3 * one));
    assert_eq!(found.timeline.unwrap().takes.source, Source::History);
}

#[test]
fn a_plan_notes_the_next_window_and_is_blocked_if_no_update_fits() {
    let with = |from: &str, until: &str| {
        let mut input = live();
        input.current.insert(json!({"kind": "UpdateGroup",
        "metadata": {"name": "kubeadmcontrolplane-edge-1", "namespace": "default"},
        "spec": {
            "clusterName": "edge-1", "controlPlane": true,
            "owner": {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
                "kind": "KubeadmControlPlane", "name": "edge-1"},
            "pacing": {"windows": {"once": [{"from": from, "until": until}]}},
        }}));
        only(predict(&input))
    };
    let (before, soon, later) =
        ("2020-01-01T00:00:00Z", "2098-01-01T00:00:00Z", "2099-01-01T00:00:00Z");
    let open = with(before, later);
    let note =
        format!("machines begin only in maintenance windows: the present one closes at {later}");
    assert!(open.notes.contains(&note), "{open:#?}");
    let closed = with(soon, later);
    let note = format!("waiting for the maintenance window that opens at {soon}");
    assert!(closed.notes.iter().any(|one| one.starts_with(&note)), "{closed:#?}");
    assert_eq!(closed.outcome, PredictedOutcome::InPlace);
    let over = with(before, "2020-01-02T00:00:00Z");
    assert_eq!(over.outcome, PredictedOutcome::Blocked);
    let blocked = &over.blocked_by[0];
    assert_eq!(
        (&*blocked.reason, &*blocked.object),
        ("NoWindow", "UpdateGroup/kubeadmcontrolplane-edge-1")
    );
}

#[test]
fn lone_machine_sets_and_foreign_kinds_are_explained() {
    let lone = json!({"kind": "MachineSet", "metadata": {"name": "ms", "namespace": "default"},
        "spec": {"replicas": 2, "template": {"spec": {"version": OLD}}}});
    let pool = json!({"kind": "MachinePool", "metadata": {"name": "mp", "namespace": "default"},
        "spec": {"replicas": 2, "template": {"spec": {"version": OLD}}}});
    for (object, outcome) in [(lone, PredictedOutcome::Blocked), (pool, PredictedOutcome::Replaced)]
    {
        let mut input = upgrade(&[]);
        input.current.insert(object.clone());
        input.desired.insert(set(&object, "/spec/template/spec/version", json!(NEW)));
        input.targets = vec![GroupRef::of(&object)];
        input.namespaces =
            Input::offline(now(), Objects::new(), Objects::new(), input.targets.clone()).namespaces;
        assert_eq!(only(predict(&input)).outcome, outcome);
    }
}
