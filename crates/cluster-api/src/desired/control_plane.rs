//! The desired Machine, infrastructure machine and KubeadmConfig of a control plane.

use refit_kinds::{
    json::{name, namespace, pairs, text},
    keys,
};
use serde_json::{Value, json};

use super::{Pairs, Template, controlled_by};
use crate::{
    kinds::{BOOTSTRAP_GROUP, ContractRef, KubeadmControlPlane},
    kubeadm_config::{self, Entry},
    rollout::control_plane::Component,
};

/// Annotation of a Machine that replaces a remediated one: data about the remediation.
pub const REMEDIATION_FOR: &str = "controlplane.cluster.x-k8s.io/remediation-for";

/// A KubeadmControlPlane, with Cluster API's defaults where needed, and its Cluster.
#[derive(Clone, Copy, Debug)]
pub struct ControlPlane<'a> {
    /// The whole object.
    pub object: &'a Value,
    /// Name of its Cluster.
    pub cluster: &'a str,
}

/// The parts of an object that differ between machines.
struct MachineParts<'a> {
    name: &'a str,
    version: &'a Value,
    failure_domain: Value,
    infrastructure: Value,
    bootstrap: Value,
}

impl ControlPlane<'_> {
    /// Returns the labels of its Machines and of their bootstrap and infrastructure objects.
    pub fn labels(self) -> Pairs {
        let mut labels = pairs(self.object.pointer("/spec/machineTemplate/metadata/labels"));
        labels.insert(keys::CLUSTER_NAME.to_owned(), self.cluster.to_owned());
        labels.insert(keys::CONTROL_PLANE.to_owned(), String::new());
        labels.insert(keys::CONTROL_PLANE_NAME.to_owned(), name(self.object).to_owned());
        labels
    }

    fn annotations(self, marked: bool) -> Pairs {
        let mut annotations =
            pairs(self.object.pointer("/spec/machineTemplate/metadata/annotations"));
        if marked {
            annotations.insert(keys::UPDATE_IN_PROGRESS.to_owned(), String::new());
        }
        annotations
    }

    /// Reports whether kubeadm runs etcd on the machines.
    pub fn has_managed_etcd(self) -> bool {
        self.object
            .pointer("/spec/kubeadmConfigSpec/clusterConfiguration/etcd/external")
            .is_none_or(Value::is_null)
    }

    /// Returns the components that must be healthy before a Machine is Ready.
    pub fn components(self) -> Vec<Component> {
        let mut all =
            vec![Component::ApiServer, Component::ControllerManager, Component::Scheduler];
        if self.has_managed_etcd() {
            all.extend([Component::EtcdPod, Component::EtcdMember]);
        }
        all
    }

    fn machine(self, parts: &MachineParts<'_>) -> Value {
        let template = &self.object["spec"]["machineTemplate"]["spec"];
        let mut gates: Vec<Value> = self
            .components()
            .into_iter()
            .map(|component| json!({"conditionType": component.condition()}))
            .collect();
        gates.extend(template["readinessGates"].as_array().cloned().unwrap_or_default());
        let mut machine = json!({
            "metadata": {
                "namespace": namespace(self.object),
                "name": parts.name,
                "labels": self.labels(),
                "annotations": self.annotations(false),
                "finalizers": [keys::MACHINE_FINALIZER],
                "ownerReferences": [controlled_by::<KubeadmControlPlane>(self.object)],
            },
            "spec": {
                "clusterName": self.cluster,
                "bootstrap": {"configRef": parts.bootstrap},
                "infrastructureRef": parts.infrastructure,
                "readinessGates": gates,
            },
        });
        let optional = [
            ("version", parts.version),
            ("failureDomain", &parts.failure_domain),
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

    /// Builds a Machine that does not exist yet.
    pub fn new_machine(
        self,
        name: &str,
        infrastructure: &ContractRef,
        failure_domain: Option<&str>,
    ) -> Value {
        self.machine(&MachineParts {
            name,
            version: &self.object["spec"]["version"],
            failure_domain: json!(failure_domain),
            infrastructure: json!(infrastructure),
            bootstrap: json!(bootstrap_reference(name)),
        })
    }

    /// Builds an existing Machine; its version does not change.
    pub fn existing_machine(self, live: &Value) -> Value {
        self.of_live(live, &live["spec"]["version"])
    }

    /// Builds a Machine that is to be updated; its failure domain does not change.
    pub fn updated_machine(self, live: &Value) -> Value {
        self.of_live(live, &self.object["spec"]["version"])
    }

    fn of_live(self, live: &Value, version: &Value) -> Value {
        let mut intent = self.machine(&MachineParts {
            name: name(live),
            version,
            failure_domain: live["spec"]["failureDomain"].clone(),
            infrastructure: live["spec"]["infrastructureRef"].clone(),
            bootstrap: live["spec"]["bootstrap"]["configRef"].clone(),
        });
        // The same field manager set it at creation: an intent without it would remove it.
        if let Some(made_for) = refit_kinds::json::annotations(live).get(REMEDIATION_FOR) {
            intent["metadata"]["annotations"][REMEDIATION_FOR] = json!(made_for);
        }
        intent
    }

    /// Builds an infrastructure machine; `marked` while it is being updated.
    pub fn infrastructure(self, template: &Template, name: &str, marked: bool) -> Value {
        let annotations = self.annotations(marked);
        template.instance(namespace(self.object), name, &self.labels(), &annotations)
    }

    /// Builds a KubeadmConfig; `marked` while its machine is being updated.
    pub fn bootstrap(self, name: &str, entry: Entry, marked: bool) -> Value {
        json!({
            "metadata": {
                "namespace": namespace(self.object),
                "name": name,
                "labels": self.labels(),
                "annotations": self.annotations(marked),
            },
            "spec": kubeadm_config::desired_spec(self.object, entry),
        })
    }

    /// Returns the reference to the template of its infrastructure machines.
    pub fn infrastructure_template(self) -> ContractRef {
        let at = |field: &str| {
            let pointer = format!("/spec/machineTemplate/spec/infrastructureRef/{field}");
            text(self.object, &pointer).to_owned()
        };
        ContractRef { api_group: at("apiGroup"), kind: at("kind"), name: at("name") }
    }
}

/// Returns the reference to the KubeadmConfig of this name.
pub fn bootstrap_reference(name: &str) -> ContractRef {
    ContractRef {
        api_group: BOOTSTRAP_GROUP.to_owned(),
        kind: "KubeadmConfig".to_owned(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Value {
        json!({
            "metadata": {"namespace": "default", "name": "edge-1", "uid": "u"},
            "spec": {
                "version": "v1.35.0",
                "machineTemplate": {
                    "metadata": {"labels": {"zone": "a"}, "annotations": {"n": "1"}},
                    "spec": {
                        "infrastructureRef": {"apiGroup": "i", "kind": "XTemplate", "name": "t"},
                        "readinessGates": [{"conditionType": "Own"}],
                        "taints": [{"key": "k"}],
                    },
                },
            },
        })
    }

    fn live() -> Value {
        json!({
            "metadata": {"name": "m", "annotations": {REMEDIATION_FOR: "{}", "foreign": "x"}},
            "spec": {
                "version": "v1.34.2", "failureDomain": "fd-1", "providerID": "x://1",
                "bootstrap": {"configRef": {"kind": "KubeadmConfig", "name": "c"}},
                "infrastructureRef": {"kind": "X", "name": "i"},
            },
        })
    }

    #[test]
    fn only_an_update_changes_the_version() {
        let object = object();
        let plane = ControlPlane { object: &object, cluster: "edge" };
        let (existing, updated) = (plane.existing_machine(&live()), plane.updated_machine(&live()));
        assert_eq!(existing["spec"]["version"], "v1.34.2");
        assert_eq!(updated["spec"]["version"], "v1.35.0");
        for intent in [existing, updated] {
            assert_eq!(intent["spec"]["failureDomain"], "fd-1");
            assert_eq!(intent["spec"]["infrastructureRef"]["name"], "i");
            assert_eq!(intent["spec"]["bootstrap"]["configRef"]["name"], "c");
            assert_eq!(intent["spec"]["providerID"], Value::Null);
            assert_eq!(intent["metadata"]["annotations"], json!({"n": "1", REMEDIATION_FOR: "{}"}));
            assert_eq!(intent["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"], "edge");
            assert_eq!(intent["spec"]["readinessGates"].as_array().map(Vec::len), Some(6));
        }
    }

    #[test]
    fn external_etcd_is_not_waited_for() {
        let mut object = object();
        object["spec"]["kubeadmConfigSpec"]["clusterConfiguration"]["etcd"]["external"] =
            json!({"endpoints": ["e"]});
        let plane = ControlPlane { object: &object, cluster: "edge" };
        assert_eq!(plane.components().len(), 3);
        let made = plane.new_machine("m", &plane.infrastructure_template(), None);
        assert_eq!(made["spec"]["readinessGates"].as_array().map(Vec::len), Some(4));
        assert_eq!(made["spec"]["bootstrap"]["configRef"]["name"], "m");
        assert!(made["spec"].get("failureDomain").is_none());
    }

    #[test]
    fn objects_being_updated_are_marked() {
        let object = object();
        let plane = ControlPlane { object: &object, cluster: "edge" };
        for marked in [false, true] {
            let config = plane.bootstrap("c", Entry::Join, marked);
            let found = config["metadata"]["annotations"].get(keys::UPDATE_IN_PROGRESS);
            assert_eq!(found.is_some(), marked);
        }
    }
}
