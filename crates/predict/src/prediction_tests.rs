use refit_cluster_api::kubeadm_config;
use refit_core::change::{OnUncovered, Provider};
use serde_json::{Value, json};

use super::{preflight::WorkloadFacts, *};

const OLD: &str = "v1.34.2";
const NEW: &str = "v1.35.0";

fn now() -> jiff::Timestamp {
    "2026-03-02T08:00:00Z".parse().unwrap()
}

fn template(kind: &str, name: &str, image: &str) -> Value {
    json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": {"template": image}}}})
}

fn cluster() -> Value {
    json!({"kind": "Cluster", "metadata": {"name": "edge-1", "namespace": "default"},
        "spec": {"controlPlaneRef": {"kind": "KubeadmControlPlane", "name": "edge-1"}}})
}

fn control_plane(replicas: i64, surge: i64) -> Value {
    json!({"kind": "KubeadmControlPlane", "metadata": {"name": "edge-1", "namespace": "default"},
        "spec": {"replicas": replicas, "version": OLD,
            "rollout": {"strategy": {"rollingUpdate": {"maxSurge": surge}}},
            "kubeadmConfigSpec": {"joinConfiguration": {}, "initConfiguration": {}},
            "machineTemplate": {"spec": {"infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "VSphereMachineTemplate", "name": "cp"}}}}})
}

fn deployment(replicas: i64, surge: i64, unavailable: i64) -> Value {
    json!({"kind": "MachineDeployment", "metadata": {"name": "md", "namespace": "default"},
        "spec": {"clusterName": "edge-1", "replicas": replicas,
            "rollout": {"strategy": {"rollingUpdate":
                {"maxSurge": surge, "maxUnavailable": unavailable}}},
            "template": {"spec": {"clusterName": "edge-1", "version": OLD,
                "bootstrap": {"configRef": {"kind": "KubeadmConfigTemplate", "name": "w"}},
                "infrastructureRef": {"kind": "VSphereMachineTemplate", "name": "w"}}}}})
}

fn world(objects: &[Value]) -> Objects {
    let mut all: Objects = [
        cluster(),
        template("VSphereMachineTemplate", "cp", "A"),
        template("VSphereMachineTemplate", "w", "A"),
        template("KubeadmConfigTemplate", "w", "same"),
    ]
    .into_iter()
    .collect();
    all.extend(objects.iter().cloned());
    all
}

fn set(object: &Value, pointer: &str, to: Value) -> Value {
    let mut object = object.clone();
    *object.pointer_mut(pointer).unwrap() = to;
    object
}

/// An input in which all groups are upgraded to [`NEW`].
fn upgrade(objects: &[Value]) -> Input {
    let current = world(objects);
    let mut desired = current.clone();
    let mut targets = Vec::new();
    for object in objects {
        let target = GroupRef::of(object);
        if !matches!(refit_kinds::json::kind(object), "KubeadmControlPlane" | "MachineDeployment") {
            continue;
        }
        desired.insert(set(object, view::version_at(&target), json!(NEW)));
        targets.push(target);
    }
    Input::offline(now(), current, desired, targets)
}

fn counts(plan: &GroupPrediction) -> (i64, i64, i64, i64) {
    let Counts { now, in_place, new, deleted } = plan.machines;
    (now, in_place, new, deleted)
}

fn reasons(plan: &GroupPrediction) -> Vec<CauseReason> {
    plan.causes.iter().map(|cause| cause.reason).collect()
}

fn only(plan: Prediction) -> GroupPrediction {
    assert_eq!(plan.groups.len(), 1, "{plan:#?}");
    plan.groups.into_iter().next().unwrap()
}

#[test]
fn a_version_without_surge_goes_in_place_and_names_its_updater() {
    let found = predict(&upgrade(&[control_plane(3, 0), deployment(5, 0, 1)]));
    assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
    let [plane, workers] = &found.groups[..] else {
        panic!("two groups");
    };
    assert_eq!((plane.turn, workers.turn), (1, 2));
    assert_eq!(counts(plane), (3, 3, 0, 0));
    assert_eq!(counts(workers), (5, 5, 0, 0));
    assert_eq!(
        plane.paths[0].to_string(),
        "Machine/edge-1-0 spec.version: \"v1.34.2\" -> \"v1.35.0\" (kubeadm), and 2 more machines"
    );
    assert_eq!(
        workers.paths[0].line,
        "MachineSet/md spec.template.spec.version: \"v1.34.2\" -> \"v1.35.0\" (kubeadm)"
    );
    assert!(plane.causes.is_empty() && workers.blocked_by.is_empty());
}

#[test]
fn surge_is_predicted_with_the_field_to_set() {
    let table = [
        (control_plane(3, 1), (3, 2, 1, 1), "maxSurge to 0"),
        (control_plane(1, 1), (1, 0, 1, 1), "spec.replicas to 3"),
        (deployment(3, 1, 0), (3, 2, 1, 1), "maxUnavailable 1"),
        (deployment(1, 1, 0), (1, 0, 1, 1), "maxUnavailable 1"),
    ];
    for (object, want, remedy) in table {
        let found = only(predict(&upgrade(std::slice::from_ref(&object))));
        assert_eq!(counts(&found), want, "{found:#?}");
        assert_eq!(found.outcome, PredictedOutcome::Replaced);
        assert_eq!(reasons(&found), [CauseReason::Surge]);
        assert!(found.causes[0].remedy.contains(remedy), "{found:#?}");
    }
}

#[test]
fn on_delete_waits_for_a_user() {
    let object = set(&deployment(3, 0, 1), "/spec/rollout/strategy", json!({"type": "OnDelete"}));
    let found = only(predict(&upgrade(&[object])));
    assert_eq!(counts(&found), (3, 0, 0, 0));
    assert_eq!(found.outcome, PredictedOutcome::Replaced);
    assert_eq!(reasons(&found), [CauseReason::OnDelete]);
}

/// A group whose template changed.
fn rotated(object: &Value, pointer: &str, image: &str, policy: &str) -> Input {
    let mut input = upgrade(&[]);
    let current = world(std::slice::from_ref(object));
    let mut wanted = set(object, pointer, json!("next"));
    if !policy.is_empty() {
        wanted["metadata"]["annotations"] = json!({"refit.dev/on-uncovered": policy});
    }
    input.targets = vec![GroupRef::of(object)];
    input.namespaces =
        Input::offline(now(), Objects::new(), Objects::new(), input.targets.clone()).namespaces;
    input.desired = current.clone();
    input.desired.insert(wanted);
    input.desired.insert(template("VSphereMachineTemplate", "next", image));
    input.current = current;
    input
}

const PLANE_REF: &str = "/spec/machineTemplate/spec/infrastructureRef/name";
const WORKER_REF: &str = "/spec/template/spec/infrastructureRef/name";

#[test]
fn a_template_of_equal_spec_goes_in_place() {
    for (object, pointer) in [(control_plane(3, 0), PLANE_REF), (deployment(3, 0, 1), WORKER_REF)] {
        let found = only(predict(&rotated(&object, pointer, "A", "")));
        assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
        assert_eq!(counts(&found), (3, 3, 0, 0));
    }
}

#[test]
fn an_uncovered_change_stops_or_replaces_by_policy() {
    for (object, pointer, kind) in [
        (control_plane(3, 0), PLANE_REF, "VSphereMachine/edge-1-0 spec.template"),
        (deployment(3, 0, 1), WORKER_REF, "VSphereMachineTemplate/w spec.template.spec.template"),
    ] {
        let found = only(predict(&rotated(&object, pointer, "B", "")));
        assert_eq!(found.outcome, PredictedOutcome::Blocked, "{found:#?}");
        assert_eq!(counts(&found), (3, 0, 0, 0));
        assert_eq!(found.blocked_by[0].reason, "UncoveredPreserve");
        assert_eq!(found.paths[0].line, format!("{kind}: \"A\" -> \"B\" (no updater)"));
        let found = only(predict(&rotated(&object, pointer, "B", "Replace")));
        assert_eq!(found.outcome, PredictedOutcome::Replaced, "{found:#?}");
        assert_eq!(counts(&found), (3, 0, 3, 3));
        assert_eq!(reasons(&found), [CauseReason::Uncovered]);
    }
}

/// An Updater that leaves the image of vSphere machines.
fn leaves_image() -> Value {
    json!({"apiVersion": "refit.dev/v1alpha1", "kind": "Updater", "metadata": {"name": "image"},
    "spec": {"action": "Leave", "order": 1, "claims": [{
        "group": "infrastructure.cluster.x-k8s.io", "kind": "VSphereMachine", "paths": ["/spec/template"],
    }]}})
}

#[test]
fn a_change_that_an_updater_leaves_is_made_in_place_where_the_provider_accepts_it() {
    for (object, pointer) in [(control_plane(3, 0), PLANE_REF), (deployment(3, 0, 1), WORKER_REF)] {
        let mut input = rotated(&object, pointer, "B", "");
        input.desired.insert(leaves_image());
        let offline = only(predict(&input));
        assert_eq!(offline.outcome, PredictedOutcome::InPlace, "{offline:#?}");
        assert_eq!(counts(&offline), (3, 3, 0, 0));
        assert!(offline.paths[0].line.ends_with("(left as it is by image)"), "{offline:#?}");
        assert!(offline.notes[0].contains("assumes that the provider"), "{offline:#?}");
        let question = offline.questions[0].clone();

        let answered = |answer: Provider| {
            let answers = offline.questions.iter().map(|q| (q.machine.clone(), answer.clone()));
            let providers = Providers::Asked(answers.collect());
            only(predict(&Input { providers, ..input.clone() }))
        };
        let accepted = answered(question.change.accepted);
        assert_eq!(accepted.outcome, PredictedOutcome::InPlace);
        let refused = answered(Provider::Refuses { why: "spec is immutable".into() });
        assert_eq!(refused.blocked_by[0].reason, "UncoveredPreserve");
        assert!(
            refused.paths[0].line.ends_with("(the API server refuses it: spec is immutable)"),
            "{refused:#?}"
        );
        let forbidden = answered(Provider::Forbidden { why: "cannot get".into() });
        assert_eq!(forbidden.blocked_by[0].reason, "ProviderForbidden");
    }
}

#[test]
fn the_controllers_default_policy_applies_if_unset() {
    let mut input = rotated(&deployment(3, 0, 1), WORKER_REF, "B", "");
    input.on_uncovered = OnUncovered::Replace;
    assert_eq!(only(predict(&input)).outcome, PredictedOutcome::Replaced);
}

#[test]
fn a_missing_template_blocks_by_name() {
    let mut input = rotated(&deployment(3, 0, 1), WORKER_REF, "B", "");
    let wanted = input.desired.get("MachineDeployment", "default", "md").unwrap();
    let wanted = set(wanted, WORKER_REF, json!("nowhere"));
    input.desired.insert(wanted);
    let found = only(predict(&input));
    assert_eq!(found.outcome, PredictedOutcome::Blocked);
    assert_eq!(found.blocked_by[0].object, "VSphereMachineTemplate/nowhere");
}

#[test]
fn without_hook_calls_every_machine_is_replaced() {
    let mut input = upgrade(&[control_plane(3, 0), deployment(3, 0, 1)]);
    input.extensions = Read::Known(Vec::new());
    let found = predict(&input);
    for group in &found.groups {
        assert_eq!(counts(group), (3, 0, 3, 3), "{group:#?}");
        assert_eq!(reasons(group), [CauseReason::NotAsked]);
        assert!(group.causes[0].message.contains("refit install"));
        assert!(group.blocked_by.is_empty());
    }
}

#[test]
fn a_paused_cluster_blocks_everything() {
    let mut input = upgrade(&[control_plane(3, 1)]);
    let mut cluster = cluster();
    cluster["spec"]["paused"] = json!(true);
    input.desired.insert(cluster);
    let found = only(predict(&input));
    assert_eq!(found.outcome, PredictedOutcome::Blocked);
    assert_eq!(found.blocked_by[0].reason, "Paused");
    assert_eq!(counts(&found), (3, 0, 0, 0));
}

#[test]
fn a_group_in_the_desired_state_is_unchanged() {
    let mut input = upgrade(&[control_plane(3, 0), deployment(3, 1, 0)]);
    input.desired = input.current.clone();
    let found = predict(&input);
    assert_eq!(found.outcome, PredictedOutcome::Unchanged, "{found:#?}");
    assert!(found.groups.iter().all(|group| group.paths.is_empty()));
}

#[test]
fn two_minors_at_once_are_not_covered() {
    let mut input = upgrade(&[deployment(3, 0, 1)]);
    let wanted = input.desired.get("MachineDeployment", "default", "md").unwrap();
    let wanted = set(wanted, "/spec/template/spec/version", json!("v1.36.0"));
    input.desired.insert(wanted);
    let found = only(predict(&input));
    assert_eq!(found.blocked_by[0].reason, "UncoveredPreserve");
    assert!(found.paths[0].line.ends_with("(no updater)"));
}

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
fn live() -> Input {
    let mut input = upgrade(&[control_plane(3, 0)]);
    for index in 0..3 {
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

fn node(name: &str) -> Value {
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

fn change_machine(input: &mut Input, index: usize, change: impl FnOnce(&mut Value)) {
    let name = format!("edge-1-{index}");
    let machine = input.current.get("Machine", "default", &name).unwrap();
    let mut machine = machine.clone();
    change(&mut machine);
    input.current.insert(machine);
}

fn hosts(input: &mut Input) -> &mut Hosts {
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
        "../../cluster-api/testdata/kubeadm_config_verdicts.json"
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
    assert_eq!(only(predict(&input)).seconds, None);
    let steps =
        refit_core::node::plan_steps(refit_kinds::refit::Role::ControlPlane, &NEW.parse().unwrap());
    let durations: Vec<Value> = refit_core::node::step_names(&steps)
        .into_iter()
        .map(|step| json!({"step": step, "seconds": [10]}))
        .collect();
    let one = i64::try_from(durations.len()).unwrap() * 10;
    input.current.insert(json!({"kind": "UpdateGroup",
        "metadata": {"name": "kubeadmcontrolplane-edge-1", "namespace": "default"},
        "status": {"durations": durations}}));
    assert_eq!(only(predict(&input)).seconds, Some(3 * one));
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
