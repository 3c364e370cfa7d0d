//! The machine API: a MachineSet has as many Machines as it asks for.

use refit_kinds::json::{is_deleting, labels, name, pairs, text};
use serde_json::{Value, json};

use crate::cluster::{
    plan::Plan,
    view::{Kind, View, is_ready, uid},
};

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    let view = plan.view;
    for set in view.list(Kind::MachineSet).iter().filter(|set| !is_deleting(set)) {
        let machines = machines_of(view, set);
        let staying: Vec<&&Value> =
            machines.iter().filter(|machine| !is_deleting(machine)).collect();
        let wanted =
            set["spec"]["replicas"].as_u64().and_then(|count| count.try_into().ok()).unwrap_or(1);
        for _ in staying.len()..wanted {
            plan.create(Kind::Machine, new(set));
        }
        for machine in staying.iter().skip(wanted) {
            plan.delete(Kind::Machine, machine);
        }
        let adopted = json!({"metadata": {"ownerReferences": [owner(set)]}});
        for machine in staying.iter().filter(|one| one["metadata"]["ownerReferences"].is_null()) {
            plan.merge(Kind::Machine, machine, adopted.clone());
        }
        let ready = machines.iter().filter(|machine| has_ready_node(view, machine)).count();
        let status = json!({
            "replicas": machines.len(), "fullyLabeledReplicas": machines.len(), "readyReplicas": ready,
            "availableReplicas": ready, "observedGeneration": set["metadata"]["generation"],
        });
        plan.status(Kind::MachineSet, set, &status);
    }
    // Kubernetes' garbage collector does the same, where it runs.
    for machine in view.list(Kind::Machine).iter().filter(|machine| !is_deleting(machine)) {
        let owners = machine["metadata"]["ownerReferences"].as_array();
        let exists =
            |owner: &Value| view.list(Kind::MachineSet).iter().any(|set| owner["uid"] == uid(set));
        if owners.is_some_and(|owners| !owners.is_empty() && !owners.iter().any(exists)) {
            plan.delete(Kind::Machine, machine);
        }
    }
}

fn machines_of<'a>(view: &'a View, set: &Value) -> Vec<&'a Value> {
    let wanted = pairs(set.pointer("/spec/selector/matchLabels"));
    let selects = |machine: &&Value| {
        let labels = labels(machine);
        text(machine, "/metadata/namespace") == text(set, "/metadata/namespace")
            && !wanted.is_empty()
            && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    view.list(Kind::Machine).iter().filter(selects).collect()
}

fn has_ready_node(view: &View, machine: &Value) -> bool {
    view.node(text(machine, "/status/nodeRef/name")).is_some_and(is_ready)
}

fn new(set: &Value) -> Value {
    let template = &set["spec"]["template"];
    json!({
        "metadata": {
            "generateName": format!("{}-", name(set)),
            "namespace": set["metadata"]["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
            "finalizers": ["machine.machine.openshift.io"],
            "ownerReferences": [owner(set)],
        },
        "spec": template["spec"],
    })
}

fn owner(set: &Value) -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "name": name(set),
        "uid": uid(set), "controller": true, "blockOwnerDeletion": true,
    })
}
