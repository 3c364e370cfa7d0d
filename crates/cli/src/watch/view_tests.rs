use refit_kinds::refit::{Phase, StepDurations};
use serde_json::json;

use super::*;

const OLD: &str = "v1.34.2";
const NEW: &str = "v1.35.0";

fn machine(name: &str, wanted: &str, kubelet: &str) -> Arc<Machine> {
    let machine = json!({
        "metadata": {"name": name, "namespace": "n", "uid": name,
            "labels": {"cluster.x-k8s.io/deployment-name": "md", "cluster.x-k8s.io/cluster-name": "c"}},
        "spec": {"clusterName": "c", "version": wanted},
        "status": {"phase": "Running", "nodeRef": {"name": name},
            "nodeInfo": {"kubeletVersion": kubelet, "bootID": "b"}},
    });
    Arc::new(serde_json::from_value(machine).unwrap())
}

fn deployment(generation: i64, up_to_date: i32) -> Arc<MachineDeployment> {
    let deployment = json!({
        "metadata": {"name": "md", "namespace": "n", "generation": generation},
        "spec": {"clusterName": "c", "replicas": 2, "template": {"spec": {"clusterName": "c", "version": NEW}}},
        "status": {"observedGeneration": 2, "replicas": 2, "upToDateReplicas": up_to_date},
    });
    Arc::new(serde_json::from_value(deployment).unwrap())
}

fn update(machine: &str, phase: Phase) -> Arc<NodeUpdate> {
    let update = json!({
        "metadata": {"name": format!("{machine}-1"), "namespace": "n"},
        "spec": {"machineRef": {"name": machine, "uid": machine}, "origin": "Hook",
            "goal": {"kubernetesVersion": NEW}, "goalHash": "h"},
        "status": {"phase": phase, "progress": {"percent": 40, "remainingSeconds": 30}},
    });
    Arc::new(serde_json::from_value(update).unwrap())
}

fn objects(machines: Vec<Arc<Machine>>, updates: Vec<Arc<NodeUpdate>>) -> Objects {
    Objects { machines, updates, deployments: vec![deployment(2, 2)], ..Objects::default() }
}

fn standing(objects: &Objects, scope: &Scope) -> Standing {
    View::of(objects, scope).standing(scope)
}

fn on(target: &str) -> Scope {
    Scope { target: Some(target.parse().unwrap()), ..Scope::default() }
}

fn group() -> UpdateGroup {
    let group = json!({
        "metadata": {"name": "machinedeployment-md", "namespace": "n"},
        "spec": {"clusterName": "c", "controlPlane": false,
            "owner": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": "md"}},
        "status": {"limit": 1},
    });
    serde_json::from_value(group).unwrap()
}

fn blocked_group(reason: &str) -> Arc<UpdateGroup> {
    let mut group = group();
    let condition = ("Blocked", "True", reason, "words");
    let status = group.status.as_mut().unwrap();
    conditions::set(
        &mut status.conditions,
        "2026-03-02T08:00:00Z".parse().unwrap(),
        None,
        condition,
    );
    Arc::new(group)
}

#[test]
fn owner_and_machines_decide_when_it_is_done() {
    let both = vec![machine("a", NEW, NEW), machine("b", NEW, NEW)];
    let mut objects = objects(both, vec![update("a", Phase::Succeeded)]);
    for target in ["md/md", "cluster/c", "machine/a"] {
        assert_eq!(standing(&objects, &on(target)), Standing::Done, "{target}");
    }
    objects.deployments = vec![deployment(3, 2)];
    assert_eq!(standing(&objects, &on("md/md")), Standing::Going, "spec not seen yet");
    objects.deployments = vec![deployment(2, 1)];
    assert_eq!(standing(&objects, &on("md/md")), Standing::Going);
}

#[test]
fn a_machine_alone_waits_for_the_version_of_its_owner() {
    let objects = objects(vec![machine("a", OLD, OLD)], Vec::new());
    assert_eq!(standing(&objects, &on("machine/a")), Standing::Going);
    let view = View::of(&objects, &on("machine/a"));
    assert_eq!(view.machines[0].target, NEW.into());
}

#[test]
fn a_version_not_written_yet_is_waited_for() {
    let both = vec![machine("a", NEW, NEW), machine("b", NEW, NEW)];
    let objects = objects(both, Vec::new());
    let mut scope = on("md/md");
    scope.wanted = "v1.35.1".parse().ok();
    assert_eq!(standing(&objects, &scope), Standing::Going);
    scope.wanted = NEW.parse().ok();
    assert_eq!(standing(&objects, &scope), Standing::Done);
}

#[test]
fn a_failure_is_final_only_when_no_other_update_runs() {
    let machines = vec![machine("a", NEW, OLD), machine("b", NEW, OLD)];
    let failed = update("a", Phase::Failed);
    let going = objects(machines.clone(), vec![failed.clone(), update("b", Phase::Draining)]);
    assert_eq!(standing(&going, &on("md/md")), Standing::Going);
    let over = objects(machines, vec![failed]);
    let loose = Standing::Failed { held_up: false };
    assert_eq!(standing(&over, &on("md/md")), loose);
    assert_eq!(standing(&over, &on("machine/b")), Standing::Going);
    let held = Objects { groups: vec![blocked_group("Failed")], ..over };
    assert_eq!(standing(&held, &on("md/md")), Standing::Failed { held_up: true });
}

#[test]
fn other_targets_are_left_out() {
    let objects = objects(vec![machine("a", NEW, NEW)], Vec::new());
    let view = View::of(&objects, &on("cluster/other"));
    assert_eq!(view, View::default());
}

#[test]
fn the_rest_is_predicted_from_what_past_updates_took() {
    let mut objects = objects(
        vec![machine("a", NEW, OLD), machine("b", OLD, OLD), machine("c", OLD, OLD)],
        vec![update("a", Phase::Draining)],
    );
    assert_eq!(View::of(&objects, &on("md/md")).rest_seconds(), None);
    let durations = [("drain", vec![10, 20, 30]), ("kubeadm-upgrade", vec![40])];
    let mut group = group();
    group.status.as_mut().unwrap().durations =
        durations.map(|(step, seconds)| StepDurations { step: step.into(), seconds }).to_vec();
    objects.groups = vec![Arc::new(group)];
    // 30 s for the running update, then two rounds of 20 + 40 s.
    assert_eq!(View::of(&objects, &on("md/md")).rest_seconds(), Some(150));
}
