//! The MachineDeployment of extra Machines.

use refit_kinds::{keys, refit::hash_json};
use serde_json::{Map, Value, json};

/// What a name ends with.
const END: &str = "-extra";
/// Cluster API uses the name of a MachineDeployment as the value of a label.
const MAX_NAME: usize = 63;
/// How many characters of a hash make names distinct that had to be cut.
const HASH: usize = 8;
/// Prefix of the labels by which a topology finds its objects.
const OF_TOPOLOGY: &str = "topology.cluster.x-k8s.io/";

/// Name of the MachineDeployment with the extra Machines of another one.
pub fn clone_name(deployment: &str) -> String {
    if deployment.len() + END.len() <= MAX_NAME {
        return format!("{deployment}{END}");
    }
    let hash: String = hash_json(&json!(deployment)).chars().take(HASH).collect();
    let kept: String = deployment.chars().take(MAX_NAME - END.len() - HASH - 1).collect();
    format!("{}-{hash}{END}", kept.trim_end_matches(['-', '.']))
}

/// The MachineDeployment with the extra Machines of another one, as it is to be created.
///
/// It has the template and nothing else of the other: annotations and labels of its metadata would make it part of a
/// topology, of an autoscaler's node groups, or of what a GitOps controller prunes. Its Machines keep the labels of the
/// template, which Nodes and MachineHealthChecks may need, but those by which Cluster API knows the other's.
pub fn clone_of(deployment: &Value, machines: i32) -> Value {
    let metadata = &deployment["metadata"];
    let name = clone_name(metadata["name"].as_str().unwrap_or_default());
    let spec = &deployment["spec"];
    let own = [
        (keys::CLUSTER_NAME, spec["clusterName"].clone()),
        (keys::EXTRA_CAPACITY, json!("true")),
        (keys::DEPLOYMENT_NAME, json!(name)),
    ];
    let own: Map<String, Value> =
        own.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut template = spec["template"].clone();
    let given = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let kept = given.into_iter().filter(|(key, _)| !key.starts_with(OF_TOPOLOGY));
    let labels: Map<String, Value> = kept.chain(own.clone()).collect();
    template["metadata"]["labels"] = Value::Object(labels);
    json!({
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "metadata": {"name": name, "namespace": metadata["namespace"], "labels": own},
        "spec": {
            "clusterName": spec["clusterName"],
            "replicas": machines,
            "selector": {"matchLabels": own},
            "template": template,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_has_the_template_and_no_tie_to_its_original() {
        let deployment = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment",
            "metadata": {
                "name": "md-0", "namespace": "edge", "uid": "1", "resourceVersion": "7",
                "labels": {"topology.cluster.x-k8s.io/owned": "", "argocd": "edge"},
                "annotations": {"cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "9"},
                "ownerReferences": [{"kind": "Cluster", "name": "edge-1"}],
            },
            "spec": {
                "clusterName": "edge-1",
                "replicas": 7,
                "paused": true,
                "rollout": {"after": "2026-03-02T08:00:00Z"},
                "selector": {"matchLabels": {"pool": "a"}},
                "template": {
                    "metadata": {
                        "labels": {
                            "pool": "a",
                            "cluster.x-k8s.io/deployment-name": "md-0",
                            "topology.cluster.x-k8s.io/deployment-name": "md",
                        },
                        "annotations": {"a": "b"},
                    },
                    "spec": {"clusterName": "edge-1", "version": "v1.34.2", "future": {"kept": 1}},
                },
            },
            "status": {"replicas": 7},
        });
        let own = json!({
            "cluster.x-k8s.io/cluster-name": "edge-1",
            "cluster.x-k8s.io/deployment-name": "md-0-extra",
            "refit.dev/extra-capacity": "true",
        });
        let mut labels = own.clone();
        labels["pool"] = json!("a");
        let wanted = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment",
            "metadata": {"name": "md-0-extra", "namespace": "edge", "labels": own},
            "spec": {
                "clusterName": "edge-1",
                "replicas": 2,
                "selector": {"matchLabels": own},
                "template": {
                    "metadata": {"labels": labels, "annotations": {"a": "b"}},
                    "spec": {"clusterName": "edge-1", "version": "v1.34.2", "future": {"kept": 1}},
                },
            },
        });
        assert_eq!(clone_of(&deployment, 2), wanted);
    }

    #[test]
    fn the_name_of_a_clone_is_a_label_and_distinct() {
        let long = |end: &str| format!("{}{end}", "m".repeat(70));
        let (a, b) = (clone_name(&long("a")), clone_name(&long("b")));
        assert!(a.len() <= MAX_NAME && a.ends_with(END), "{a}");
        assert_ne!(a, b);
        assert_eq!(clone_name(&"m".repeat(57)).len(), MAX_NAME);
    }
}
