//! Machine, infrastructure machine and KubeadmConfig as a control plane wants them.

use kube::{ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::{
    kinds::{BOOTSTRAP_GROUP, ContractRef, KubeadmControlPlane, Machine},
    kubeadm_config::{self, Entry},
    rollout::control_plane::Component,
};
use refit_kinds::keys;
use serde_json::{Value, json};

use super::{Plane, remediation::REMEDIATION_FOR};
use crate::{
    live::Live,
    templates::{Pairs, Template, owner, pairs},
};

/// Conditions that have to be true before a control plane Machine is Ready.
pub(super) fn components(plane: &Plane) -> Vec<Component> {
    let mut all = vec![Component::ApiServer, Component::ControllerManager, Component::Scheduler];
    if plane.has_managed_etcd() {
        all.extend([Component::EtcdPod, Component::EtcdMember]);
    }
    all
}

/// Labels of control plane Machines and of what they are made of.
pub(super) fn labels(plane: &Plane) -> Pairs {
    let mut labels = pairs(plane.json.pointer("/spec/machineTemplate/metadata/labels"));
    labels.insert(keys::CLUSTER_NAME.to_owned(), plane.cluster.name_any());
    labels.insert(keys::CONTROL_PLANE.to_owned(), String::new());
    labels.insert(keys::CONTROL_PLANE_NAME.to_owned(), plane.object.name_any());
    labels
}

fn annotations(plane: &Plane) -> Pairs {
    pairs(plane.json.pointer("/spec/machineTemplate/metadata/annotations"))
}

/// Reference to the template of infrastructure machines.
pub(super) fn infrastructure_template(plane: &Plane) -> &ContractRef {
    &plane.object.spec.machine_template.spec.infrastructure_ref
}

/// Reference to the KubeadmConfig of this name.
pub(super) fn bootstrap_reference(name: &str) -> ContractRef {
    ContractRef {
        api_group: BOOTSTRAP_GROUP.to_owned(),
        kind: "KubeadmConfig".to_owned(),
        name: name.to_owned(),
    }
}

/// What makes an object of one machine differ from those of the others.
struct Own<'a> {
    name: &'a str,
    version: Value,
    failure_domain: Value,
    infrastructure: Value,
    bootstrap: Value,
}

fn machine(plane: &Plane, own: &Own<'_>) -> Value {
    let template = &plane.json["spec"]["machineTemplate"]["spec"];
    let mut gates: Vec<Value> = components(plane)
        .into_iter()
        .map(|component| json!({"conditionType": component.condition()}))
        .collect();
    gates.extend(template["readinessGates"].as_array().cloned().unwrap_or_default());
    let resource = ApiResource::erase::<KubeadmControlPlane>(&());
    let object = &plane.object;
    let controller = owner(&resource, &object.name_any(), object.uid_text(), true);
    let mut machine = json!({
        "metadata": {
            "namespace": plane.namespace,
            "name": own.name,
            "labels": labels(plane),
            "annotations": annotations(plane),
            "finalizers": [keys::MACHINE_FINALIZER],
            "ownerReferences": [controller],
        },
        "spec": {
            "clusterName": plane.cluster.name_any(),
            "bootstrap": {"configRef": own.bootstrap},
            "infrastructureRef": own.infrastructure,
            "readinessGates": gates,
        },
    });
    let optional = [
        ("version", &own.version),
        ("failureDomain", &own.failure_domain),
        ("deletion", &template["deletion"]),
        ("taints", &template["taints"]),
    ];
    for (key, value) in optional {
        if !value.is_null() {
            machine["spec"][key] = value.clone();
        }
    }
    machine
}

/// A Machine that does not exist yet.
pub(super) fn new(
    plane: &Plane,
    name: &str,
    infrastructure: &ContractRef,
    failure_domain: Option<&str>,
) -> Value {
    machine(
        plane,
        &Own {
            name,
            version: json!(plane.object.spec.version),
            failure_domain: json!(failure_domain),
            infrastructure: json!(infrastructure),
            bootstrap: json!(bootstrap_reference(name)),
        },
    )
}

/// A Machine that exists: its version stays as it is.
pub(super) fn existing(plane: &Plane, live: &Live<Machine>) -> Value {
    let version = live.at("/spec/version").clone();
    of_live(plane, live, version)
}

/// A Machine that is to be updated: its failure domain stays as it is.
pub(super) fn updated(plane: &Plane, live: &Live<Machine>) -> Value {
    of_live(plane, live, json!(plane.object.spec.version))
}

fn of_live(plane: &Plane, live: &Live<Machine>, version: Value) -> Value {
    let mut intent = machine(
        plane,
        &Own {
            name: &live.name_any(),
            version,
            failure_domain: live.at("/spec/failureDomain").clone(),
            infrastructure: live.at("/spec/infrastructureRef").clone(),
            bootstrap: live.at("/spec/bootstrap/configRef").clone(),
        },
    );
    // Given at its creation, by the same manager: an intent without it would take it away.
    if let Some(made_for) = live.annotations().get(REMEDIATION_FOR) {
        intent["metadata"]["annotations"][REMEDIATION_FOR] = json!(made_for);
    }
    intent
}

/// An infrastructure machine; `marked` while it is being updated.
pub(super) fn infrastructure(
    plane: &Plane,
    template: &Template,
    name: &str,
    marked: bool,
) -> Value {
    let annotations = with_mark(annotations(plane), marked);
    template.instance(&plane.namespace, name, &labels(plane), &annotations)
}

/// A KubeadmConfig; `marked` while its machine is being updated.
pub(super) fn bootstrap(plane: &Plane, name: &str, entry: Entry, marked: bool) -> Value {
    json!({
        "metadata": {
            "namespace": plane.namespace,
            "name": name,
            "labels": labels(plane),
            "annotations": with_mark(annotations(plane), marked),
        },
        "spec": kubeadm_config::desired_spec(&plane.json, entry),
    })
}

fn with_mark(mut annotations: Pairs, marked: bool) -> Pairs {
    if marked {
        annotations.insert(keys::UPDATE_IN_PROGRESS.to_owned(), String::new());
    }
    annotations
}
