//! A Machine as its MachineSet wants it.

use kube::{ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::kinds::{ContractRef, Machine, MachineSet};
use refit_kinds::keys;
use serde_json::{Value, json};

use crate::{
    context::namespace_of,
    live::Live,
    templates::{Pairs, owner, pairs},
};

/// Labels of a MachineSet's Machines and of what they are made of.
pub(super) fn labels(set: &Live<MachineSet>) -> Pairs {
    let mut labels = pairs(Some(set.at("/spec/template/metadata/labels")));
    labels.extend(set.spec.selector.match_labels.clone().unwrap_or_default());
    labels.insert(keys::CLUSTER_NAME.to_owned(), set.spec.cluster_name.clone());
    labels.insert(keys::SET_NAME.to_owned(), set.name_any());
    if let Some(deployment) = set.labels().get(keys::DEPLOYMENT_NAME) {
        labels.insert(keys::DEPLOYMENT_NAME.to_owned(), deployment.clone());
    }
    labels
}

/// A Machine of a MachineSet, still without what is its own.
fn base(set: &Live<MachineSet>, name: &str) -> Value {
    let resource = ApiResource::erase::<MachineSet>(&());
    let controller = owner(&resource, &set.name_any(), set.uid_text(), true);
    json!({
        "metadata": {
            "namespace": namespace_of(set),
            "name": name,
            "labels": labels(set),
            "annotations": pairs(Some(set.at("/spec/template/metadata/annotations"))),
            "finalizers": [keys::MACHINE_FINALIZER],
            "ownerReferences": [controller],
        },
        "spec": set.at("/spec/template/spec").clone(),
    })
}

/// A Machine that does not exist yet.
pub(super) fn new(
    set: &Live<MachineSet>,
    name: &str,
    infrastructure: &ContractRef,
    bootstrap: Option<&ContractRef>,
) -> Value {
    let mut machine = base(set, name);
    machine["spec"]["infrastructureRef"] = json!(infrastructure);
    if let Some(bootstrap) = bootstrap {
        machine["spec"]["bootstrap"] = json!({ "configRef": bootstrap });
    }
    machine
}

/// A Machine that exists: what only a rollout changes stays as it is.
pub(super) fn existing(set: &Live<MachineSet>, machine: &Live<Machine>) -> Value {
    let mut intent = with_own_references(set, machine);
    for field in ["version", "failureDomain"] {
        put(&mut intent, field, machine.at("/spec").get(field));
    }
    intent
}

/// A Machine that was moved here: version and failure domain are the MachineSet's.
pub(super) fn moved(set: &Live<MachineSet>, machine: &Live<Machine>) -> Value {
    with_own_references(set, machine)
}

fn with_own_references(set: &Live<MachineSet>, machine: &Live<Machine>) -> Value {
    let mut intent = base(set, &machine.name_any());
    put(&mut intent, "infrastructureRef", machine.at("/spec").get("infrastructureRef"));
    if let Some(reference) = machine.at("/spec/bootstrap").get("configRef") {
        intent["spec"]["bootstrap"] = json!({ "configRef": reference });
    }
    intent
}

fn put(intent: &mut Value, field: &str, value: Option<&Value>) {
    if let Some(spec) = intent["spec"].as_object_mut() {
        match value {
            Some(value) => spec.insert(field.to_owned(), value.clone()),
            None => spec.remove(field),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> Live<MachineSet> {
        Live::read(json!({
            "metadata": {
                "namespace": "default", "name": "edge-1-md-0-bcdfg", "uid": "ms-uid",
                "labels": {"cluster.x-k8s.io/deployment-name": "edge-1-md-0"},
            },
            "spec": {
                "clusterName": "edge-1",
                "selector": {"matchLabels": {"machine-template-hash": "1-bcdfg"}},
                "template": {
                    "metadata": {"labels": {"zone": "a"}, "annotations": {"n": "1"}},
                    "spec": {
                        "clusterName": "edge-1", "version": "v1.35.0",
                        "bootstrap": {"configRef": {
                            "apiGroup": "b", "kind": "KubeadmConfigTemplate", "name": "t",
                        }},
                        "infrastructureRef": {
                            "apiGroup": "i", "kind": "DockerMachineTemplate", "name": "t",
                        },
                        "deletion": {"nodeDeletionTimeoutSeconds": 10},
                    },
                },
            },
        }))
        .unwrap()
    }

    fn machine() -> Live<Machine> {
        Live::read(json!({
            "metadata": {"namespace": "default", "name": "m-1", "uid": "m-uid"},
            "spec": {
                "clusterName": "edge-1", "version": "v1.34.2", "failureDomain": "fd-1",
                "providerID": "sandbox://m-1",
                "bootstrap": {
                    "configRef": {"apiGroup": "b", "kind": "KubeadmConfig", "name": "m-1"},
                    "dataSecretName": "m-1",
                },
                "infrastructureRef": {"apiGroup": "i", "kind": "DockerMachine", "name": "m-1"},
            },
        }))
        .unwrap()
    }

    #[test]
    fn an_existing_machine_keeps_its_version_and_its_references() {
        let intent = existing(&set(), &machine());
        let spec = &intent["spec"];
        assert_eq!(spec["version"], "v1.34.2");
        assert_eq!(spec["failureDomain"], "fd-1");
        assert_eq!(spec["infrastructureRef"]["kind"], "DockerMachine");
        assert_eq!(spec["bootstrap"]["configRef"]["name"], "m-1");
        assert_eq!(spec["deletion"]["nodeDeletionTimeoutSeconds"], 10);
    }

    #[test]
    fn what_the_machine_controller_writes_is_not_claimed() {
        let intent = existing(&set(), &machine());
        assert!(intent["spec"].get("providerID").is_none());
        assert!(intent["spec"]["bootstrap"].get("dataSecretName").is_none());
    }

    #[test]
    fn a_moved_machine_gets_version_and_failure_domain_of_its_new_set() {
        let intent = moved(&set(), &machine());
        assert_eq!(intent["spec"]["version"], "v1.35.0");
        assert!(intent["spec"].get("failureDomain").is_none());
        assert_eq!(intent["spec"]["infrastructureRef"]["name"], "m-1");
    }

    #[test]
    fn labels_say_where_a_machine_belongs() {
        let intent = existing(&set(), &machine());
        assert_eq!(
            intent["metadata"]["labels"],
            json!({
                "zone": "a",
                "machine-template-hash": "1-bcdfg",
                "cluster.x-k8s.io/cluster-name": "edge-1",
                "cluster.x-k8s.io/deployment-name": "edge-1-md-0",
                "cluster.x-k8s.io/set-name": "edge-1-md-0-bcdfg",
            })
        );
        assert_eq!(intent["metadata"]["ownerReferences"][0]["uid"], "ms-uid");
    }
}
