use serde_json::{Value, json};

use super::*;
use crate::kinds;

/// What Refit reads of an object of v1beta1.
fn read<K: serde::de::DeserializeOwned>(convert: fn(&mut Value), mut object: Value) -> K {
    object["metadata"] = json!({"namespace": "default", "name": "one"});
    convert(&mut object);
    serde_json::from_value(object).unwrap()
}

fn condition(type_: &str, status: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn old_condition(type_: &str, status: &str) -> Value {
    json!({"type": type_, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn machine_spec() -> Value {
    json!({
        "clusterName": "edge-1", "version": "v1.34.2", "nodeDrainTimeout": "1m30s",
        "nodeVolumeDetachTimeout": "0s", "nodeDeletionTimeout": "10s",
        "bootstrap": {"configRef": {
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "CK8sConfig", "name": "c",
            "namespace": "default", "uid": "u",
        }},
        "infrastructureRef": {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "DevMachine", "name": "i",
        },
    })
}

fn assert_machine_spec(spec: &kinds::MachineSpec) {
    let config = spec.bootstrap.config_ref.as_ref().unwrap();
    assert_eq!((&*config.api_group, &*config.kind), ("bootstrap.cluster.x-k8s.io", "CK8sConfig"));
    assert_eq!(spec.infrastructure_ref.api_group, "infrastructure.cluster.x-k8s.io");
    let deletion = spec.deletion.clone().unwrap();
    assert_eq!(deletion.node_drain_timeout_seconds, Some(90));
    assert_eq!(deletion.node_volume_detach_timeout_seconds, Some(0));
    assert_eq!(deletion.node_deletion_timeout_seconds, Some(10));
}

#[test]
fn a_machine_shows_the_conditions_of_v1beta2_alone() {
    let machine: kinds::Machine = read(
        machine,
        json!({"spec": machine_spec(), "status": {
            "bootstrapReady": true, "infrastructureReady": true, "phase": "Running",
            "nodeRef": {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"},
            "conditions": [old_condition("Ready", "True"), old_condition("NodeHealthy", "True")],
            "v1beta2": {"conditions": [condition("Available", "True")]},
        }}),
    );
    assert_machine_spec(&machine.spec);
    let status = machine.status.unwrap();
    let types: Vec<_> = status.conditions.iter().map(|one| one.type_.as_str()).collect();
    assert_eq!(types, ["Available"]);
    assert_eq!(status.node_ref.unwrap().name, "n");
    let initialization = status.initialization.unwrap();
    assert_eq!(initialization.bootstrap_data_secret_created, Some(true));
    assert_eq!(initialization.infrastructure_provisioned, Some(true));
}

#[test]
fn conditions_of_v1beta1_are_not_read_as_those_of_v1beta2() {
    let machine: kinds::Machine = read(
        machine,
        json!({"spec": machine_spec(), "status": {"conditions": [old_condition("Ready", "True")]}}),
    );
    assert!(machine.status.unwrap().conditions.is_empty());
}

#[test]
fn a_cluster_is_initialized_as_its_condition_or_its_status_shows() {
    let initialized = |status: Value| {
        let cluster: kinds::Cluster = read(cluster, json!({"spec": {}, "status": status}));
        cluster.status.unwrap().initialization.and_then(|all| all.control_plane_initialized)
    };
    assert_eq!(initialized(json!({"controlPlaneReady": true})), Some(true));
    let of_condition = json!([old_condition("ControlPlaneInitialized", "True")]);
    assert_eq!(
        initialized(json!({"controlPlaneReady": false, "conditions": of_condition})),
        Some(true)
    );
    let newer = json!({"conditions": [condition("ControlPlaneInitialized", "True")]});
    assert_eq!(initialized(json!({"v1beta2": newer})), Some(true));
    assert_eq!(initialized(json!({"controlPlaneReady": false})), Some(false));
    assert_eq!(initialized(json!({"infrastructureReady": true})), None);
}

#[test]
fn a_cluster_refers_to_its_control_plane_by_group() {
    let reference = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "CK8sControlPlane",
        "name": "cp", "namespace": "default",
    });
    let cluster: kinds::Cluster = read(
        cluster,
        json!({"spec": {"paused": true, "controlPlaneRef": reference,
            "controlPlaneEndpoint": {"host": "h", "port": 6443}}}),
    );
    let reference = cluster.spec.control_plane_ref.unwrap();
    assert_eq!(reference.api_group, "controlplane.cluster.x-k8s.io");
    assert_eq!(cluster.spec.paused, Some(true));
}

#[test]
fn a_machine_deployment_has_its_strategy_under_rollout() {
    let deployment: kinds::MachineDeployment = read(
        machine_deployment,
        json!({
            "spec": {
                "clusterName": "edge-1", "replicas": 4, "minReadySeconds": 30,
                "rolloutAfter": "2026-01-01T00:00:00Z", "selector": {},
                "template": {"spec": machine_spec()},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {
                    "maxSurge": 0, "maxUnavailable": "50%", "deletePolicy": "Oldest",
                }},
            },
            "status": {
                "replicas": 4, "readyReplicas": 1, "updatedReplicas": 2, "observedGeneration": 3,
                "conditions": [old_condition("Available", "True")],
                "v1beta2": {"conditions": [condition("RollingOut", "True")], "upToDateReplicas": 4},
            },
        }),
    );
    assert_eq!(deployment.max_unavailable(4), 2);
    assert!(!deployment.rolls_on_delete());
    assert_eq!(deployment.spec.deletion.unwrap().order.as_deref(), Some("Oldest"));
    let after = deployment.spec.rollout.unwrap().after;
    assert_eq!(after.as_deref(), Some("2026-01-01T00:00:00Z"));
    assert_machine_spec(&deployment.spec.template.spec);
    assert_eq!(deployment.spec.template.spec.min_ready_seconds, Some(30));
    let status = deployment.status.unwrap();
    assert_eq!((status.replicas, status.up_to_date_replicas), (Some(4), Some(4)));
    assert_eq!(status.ready_replicas, None, "the counter of v1beta1 has another meaning");
    assert_eq!(status.conditions[0].type_, "RollingOut");
}

#[test]
fn a_machine_set_has_its_delete_policy_under_deletion() {
    let set: kinds::MachineSet = read(
        machine_set,
        json!({"spec": {
            "clusterName": "edge-1", "deletePolicy": "Newest", "selector": {}, "minReadySeconds": 5,
            "template": {"spec": machine_spec()},
        }}),
    );
    assert_eq!(set.spec.deletion.unwrap().order.as_deref(), Some("Newest"));
    assert_machine_spec(&set.spec.template.spec);
    assert_eq!(set.spec.template.spec.min_ready_seconds, Some(5));
}

#[test]
fn a_control_plane_has_the_spec_of_its_machines_in_their_template() {
    let plane: kinds::KubeadmControlPlane = read(
        control_plane,
        json!({
            "spec": {
                "replicas": 3, "version": "v1.34.2", "kubeadmConfigSpec": {},
                "machineTemplate": {
                    "metadata": {"labels": {"a": "b"}}, "nodeDrainTimeout": "2m",
                    "infrastructureRef": {"apiVersion": "i.example/v1", "kind": "T", "name": "t"},
                },
                "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}},
            },
            "status": {"initialized": true, "ready": true, "updatedReplicas": 3, "v1beta2": {
                "upToDateReplicas": 2, "availableReplicas": 3,
            }},
        }),
    );
    let template = plane.spec.machine_template;
    assert_eq!(template.spec.infrastructure_ref.api_group, "i.example");
    assert_eq!(template.spec.deletion.unwrap().node_drain_timeout_seconds, Some(120));
    assert_eq!(template.metadata.labels["a"], "b");
    let strategy = plane.spec.rollout.unwrap().strategy.unwrap();
    assert!(strategy.rolling_update.unwrap().max_surge.is_some());
    let status = plane.status.unwrap();
    assert_eq!(status.initialization.unwrap().control_plane_initialized, Some(true));
    assert_eq!((status.up_to_date_replicas, status.available_replicas), (Some(2), Some(3)));
}

#[test]
fn durations_are_read_in_gos_notation() {
    for (text, seconds) in [
        ("10s", Some(10)),
        ("1h2m3s", Some(3723)),
        ("1.5m", Some(90)),
        ("1500ms", Some(1)),
        ("0", Some(0)),
        ("-5s", Some(-5)),
        ("300µs", Some(0)),
        ("9999999h", None),
        ("", None),
        ("10", None),
        ("s", None),
        ("1d", None),
        ("1..5s", None),
    ] {
        assert_eq!(whole_seconds(text), seconds, "{text}");
    }
}

#[test]
fn an_object_of_an_unexpected_form_is_left_alone() {
    for convert in [cluster, machine, machine_set, machine_deployment, control_plane] {
        for object in [
            json!({}),
            json!([]),
            json!({"spec": [], "status": "none"}),
            json!({"spec": {"template": 1, "strategy": [], "machineTemplate": null}, "status": null}),
            json!({"spec": {"nodeDrainTimeout": 3, "rollout": 5, "rolloutAfter": "x"}}),
        ] {
            convert(&mut object.clone());
        }
    }
}
