//! The desired Machine of a MachineSet.

use refit_kinds::{
    json::{label, name, namespace, pairs, text},
    keys,
};
use serde_json::{Value, json};

use super::{Pairs, controlled_by, keep};
use crate::kinds::{ContractRef, MachineSet};

/// Returns the labels of a MachineSet's Machines and of their bootstrap and infrastructure objects.
pub fn labels(set: &Value) -> Pairs {
    let mut labels = pairs(set.pointer("/spec/template/metadata/labels"));
    labels.extend(pairs(set.pointer("/spec/selector/matchLabels")));
    labels.insert(keys::CLUSTER_NAME.to_owned(), text(set, "/spec/clusterName").to_owned());
    labels.insert(keys::SET_NAME.to_owned(), name(set).to_owned());
    if let Some(deployment) = label(set, keys::DEPLOYMENT_NAME) {
        labels.insert(keys::DEPLOYMENT_NAME.to_owned(), deployment.to_owned());
    }
    labels
}

/// Builds the part of a Machine that all Machines of the MachineSet share.
fn base(set: &Value, name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": namespace(set),
            "name": name,
            "labels": labels(set),
            "annotations": pairs(set.pointer("/spec/template/metadata/annotations")),
            "finalizers": [keys::MACHINE_FINALIZER],
            "ownerReferences": [controlled_by::<MachineSet>(set)],
        },
        "spec": set["spec"]["template"]["spec"].as_object().cloned().unwrap_or_default(),
    })
}

/// Builds a Machine that does not exist yet.
pub fn new_machine(
    set: &Value,
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

/// Builds an existing Machine; fields that change only by a rollout keep their values.
pub fn existing_machine(set: &Value, live: &Value) -> Value {
    let mut intent = moved_machine(set, live);
    keep(&mut intent["spec"], &live["spec"], &["version", "failureDomain"]);
    intent
}

/// Builds the metadata patch that hands a Machine over to the MachineSet: owner and label, in one patch.
pub fn hand_over(set: &Value, machine: &Value) -> Value {
    let owners = machine["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let mut owners: Vec<Value> =
        owners.filter(|owner| owner["controller"] != true).cloned().collect();
    owners.push(controlled_by::<MachineSet>(set));
    json!({
        "ownerReferences": owners,
        "labels": {keys::MACHINE_TEMPLATE_HASH: label(set, keys::MACHINE_TEMPLATE_HASH)},
    })
}

/// Builds a Machine that was moved here, with version and failure domain of the MachineSet.
pub fn moved_machine(set: &Value, live: &Value) -> Value {
    let mut intent = base(set, name(live));
    keep(&mut intent["spec"], &live["spec"], &["infrastructureRef"]);
    if let Some(reference) = live.pointer("/spec/bootstrap/configRef") {
        intent["spec"]["bootstrap"] = json!({ "configRef": reference });
    }
    intent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> Value {
        json!({
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
        })
    }

    fn machine() -> Value {
        json!({
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
        })
    }

    #[test]
    fn an_existing_machine_keeps_its_version_and_its_references() {
        let intent = existing_machine(&set(), &machine());
        let spec = &intent["spec"];
        assert_eq!(spec["version"], "v1.34.2");
        assert_eq!(spec["failureDomain"], "fd-1");
        assert_eq!(spec["infrastructureRef"]["kind"], "DockerMachine");
        assert_eq!(spec["bootstrap"]["configRef"]["name"], "m-1");
        assert_eq!(spec["deletion"]["nodeDeletionTimeoutSeconds"], 10);
    }

    #[test]
    fn fields_of_the_machine_controller_are_not_claimed() {
        let intent = existing_machine(&set(), &machine());
        assert!(intent["spec"].get("providerID").is_none());
        assert!(intent["spec"]["bootstrap"].get("dataSecretName").is_none());
    }

    #[test]
    fn a_moved_machine_gets_version_and_domain_of_its_new_set() {
        let intent = moved_machine(&set(), &machine());
        assert_eq!(intent["spec"]["version"], "v1.35.0");
        assert!(intent["spec"].get("failureDomain").is_none());
        assert_eq!(intent["spec"]["infrastructureRef"]["name"], "m-1");
    }

    #[test]
    fn labels_say_where_a_machine_belongs() {
        let intent = existing_machine(&set(), &machine());
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
