//! A MachineSet as its MachineDeployment wants it (`spec/capi.md 3.2`).

use kube::ResourceExt as _;
use refit_cluster_api::{kinds::MachineSet, rollout::RolloutPlan};
use refit_kinds::keys;
use serde_json::{Map, Value, json};

use super::Group;
use crate::{
    live::Live,
    names,
    templates::{Pairs, owner, pairs},
};

/// Annotations of a MachineDeployment that are not passed on to its MachineSets.
const NOT_PASSED_ON: [&str; 9] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    keys::PAUSED,
    keys::REVISION,
    keys::DESIRED_REPLICAS,
    keys::MAX_REPLICAS,
    keys::MOVE_MACHINES,
    keys::RECEIVE_MACHINES,
    keys::ACKNOWLEDGED_MOVE,
    keys::DISABLE_MACHINE_CREATE,
];
/// Fields of a machine template that only a rollout changes.
const ROLLOUT_FIELDS: [&str; 5] =
    ["clusterName", "version", "bootstrap", "infrastructureRef", "failureDomain"];

/// The full intent for a MachineSet of the plan, existing or to be created.
pub(super) fn machine_set(group: &Group, plan: &RolloutPlan, name: &str) -> Value {
    let existing = group.set(name).map(AsRef::as_ref);
    let (replicas, annotations) = match (&plan.create, plan.machine_sets.get(name)) {
        (_, Some(step)) => (step.replicas, step.annotations.clone()),
        (Some(new), None) => (new.replicas, new.annotations.clone()),
        (None, None) => (0, Pairs::new()),
    };
    let hash = hash_label(group, existing);
    let mut labels = pairs(group.json.pointer("/spec/template/metadata/labels"));
    labels.insert(keys::MACHINE_TEMPLATE_HASH.to_owned(), hash.clone());
    let passed_on = group.deployment.annotations().iter();
    let mut all_annotations: Pairs = passed_on
        .filter(|(key, _)| !NOT_PASSED_ON.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    all_annotations.extend(annotations);
    let resource =
        kube::discovery::ApiResource::erase::<refit_cluster_api::kinds::MachineDeployment>(&());
    let deployment = &group.deployment;
    let controller = owner(&resource, &deployment.name_any(), deployment.uid_text(), true);
    json!({
        "metadata": {
            "namespace": group.namespace,
            "name": name,
            "labels": labels,
            "annotations": all_annotations,
            "ownerReferences": [controller],
        },
        "spec": spec(group, existing, replicas, &hash),
    })
}

/// The label that tells the MachineSets of one MachineDeployment apart.
fn hash_label(group: &Group, existing: Option<&Live<MachineSet>>) -> String {
    let known = existing.and_then(|set| set.labels().get(keys::MACHINE_TEMPLATE_HASH));
    known.cloned().unwrap_or_else(|| {
        let hash = names::short_hash(&group.json["spec"]["template"]);
        format!("{hash}-{}", group.new_suffix)
    })
}

fn spec(group: &Group, existing: Option<&Live<MachineSet>>, replicas: i64, hash: &str) -> Value {
    let from = &group.json["spec"];
    let mut labels = pairs(from.pointer("/template/metadata/labels"));
    labels.insert(keys::MACHINE_TEMPLATE_HASH.to_owned(), hash.to_owned());
    let mut template_metadata = json!({ "labels": labels });
    let annotations = pairs(from.pointer("/template/metadata/annotations"));
    if !annotations.is_empty() {
        template_metadata["annotations"] = json!(annotations);
    }
    let mut template_spec = from["template"]["spec"].clone();
    if let Some(set) = existing {
        keep(&mut template_spec, set.at("/spec/template/spec"), &ROLLOUT_FIELDS);
    }
    let selector = existing.map_or_else(
        || {
            let mut selector = from["selector"].clone();
            selector["matchLabels"][keys::MACHINE_TEMPLATE_HASH] = json!(hash);
            selector
        },
        |set| set.at("/spec/selector").clone(),
    );
    let mut spec = json!({
        "clusterName": from["clusterName"],
        "replicas": replicas,
        "selector": selector,
        "template": {"metadata": template_metadata, "spec": template_spec},
    });
    for key in ["deletion", "machineNaming"] {
        if let Some(value) = from.get(key).filter(|value| !value.is_null()) {
            spec[key] = value.clone();
        }
    }
    spec
}

/// Puts the given fields of `from` into `into`, or removes them where `from` has none.
fn keep(into: &mut Value, from: &Value, fields: &[&str]) {
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(map) = into.as_object_mut() else {
        return;
    };
    for field in fields {
        match from.get(field) {
            Some(value) => map.insert((*field).to_owned(), value.clone()),
            None => map.remove(*field),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_rollout_are_kept_and_others_follow_the_deployment() {
        let mut into = json!({"version": "v2", "deletion": {"a": 1}, "failureDomain": "x"});
        keep(&mut into, &json!({"version": "v1", "deletion": {"a": 0}}), &ROLLOUT_FIELDS);
        assert_eq!(into, json!({"version": "v1", "deletion": {"a": 1}}));
    }
}
