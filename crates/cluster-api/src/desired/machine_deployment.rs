//! The desired MachineSet of a MachineDeployment
//! (`docs/facts/machine-deployment.md#machineset-intents`).

use std::collections::BTreeSet;

use refit_kinds::{
    json::{annotations, label, name, namespace, pairs, text},
    keys,
    refit::hash_json,
};
use serde_json::{Value, json};

use super::{Pairs, controlled_by, keep};
use crate::{
    kinds::MachineDeployment,
    names::{suffix, with_suffix},
};

/// Annotations of a MachineDeployment that are not propagated to its MachineSets.
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
/// Fields of a machine template that change only by a rollout.
const ROLLOUT_FIELDS: [&str; 5] =
    ["clusterName", "version", "bootstrap", "infrastructureRef", "failureDomain"];

/// The result of a rollout decision for one MachineSet.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// `spec.replicas`.
    pub replicas: i64,
    /// Annotations set by the rollout.
    pub annotations: Pairs,
}

/// Builds the full intent for an existing or new MachineSet. `deployment` has Cluster API's
/// defaults; `suffix` ends the label that makes a new MachineSet unique.
pub fn machine_set(
    deployment: &Value,
    existing: Option<&Value>,
    name: &str,
    step: Step,
    suffix: &str,
) -> Value {
    let known = existing.and_then(|set| label(set, keys::MACHINE_TEMPLATE_HASH));
    let hash = known.map_or_else(
        || format!("{}-{suffix}", short_hash(&deployment["spec"]["template"])),
        str::to_owned,
    );
    let mut labels = pairs(deployment.pointer("/spec/template/metadata/labels"));
    labels.insert(keys::MACHINE_TEMPLATE_HASH.to_owned(), hash.clone());
    let mut all_annotations = annotations(deployment);
    all_annotations.retain(|key, _| !NOT_PASSED_ON.contains(&key.as_str()));
    all_annotations.extend(step.annotations);
    json!({
        "metadata": {
            "namespace": namespace(deployment),
            "name": name,
            "labels": labels,
            "annotations": all_annotations,
            "ownerReferences": [controlled_by::<MachineDeployment>(deployment)],
        },
        "spec": spec(&deployment["spec"], existing, step.replicas, &hash),
    })
}

/// Returns name and suffix of a MachineSet for the current template, other than the names in use. They follow
/// from the MachineDeployment's uid and template: after a crash the result is the same.
pub fn new_name(deployment: &Value, taken: &BTreeSet<String>) -> (String, String) {
    let uid = text(deployment, "/metadata/uid");
    let spec = &deployment["spec"];
    let mut attempt = 0;
    loop {
        let seed = json!([uid, spec["template"]["spec"], spec["rollout"]["after"], attempt]);
        let suffix = suffix(&seed);
        let name = with_suffix(name(deployment), &suffix);
        if !taken.contains(&name) {
            return (name, suffix);
        }
        attempt += 1;
    }
}

/// Returns a hash of a value: the first half of the label `machine-template-hash`.
fn short_hash(template: &Value) -> u32 {
    u32::from_str_radix(&hash_json(template)[..8], 16).expect("a sha256 in hex has 64 digits")
}

fn spec(from: &Value, existing: Option<&Value>, replicas: i64, hash: &str) -> Value {
    let mut labels = pairs(from.pointer("/template/metadata/labels"));
    labels.insert(keys::MACHINE_TEMPLATE_HASH.to_owned(), hash.to_owned());
    let mut template_metadata = json!({ "labels": labels });
    let annotations = pairs(from.pointer("/template/metadata/annotations"));
    if !annotations.is_empty() {
        template_metadata["annotations"] = json!(annotations);
    }
    let mut template_spec = from["template"]["spec"].clone();
    let selector = if let Some(set) = existing {
        keep(&mut template_spec, &set["spec"]["template"]["spec"], &ROLLOUT_FIELDS);
        set["spec"]["selector"].clone()
    } else {
        let mut labels = pairs(from.pointer("/selector/matchLabels"));
        labels.insert(keys::MACHINE_TEMPLATE_HASH.to_owned(), hash.to_owned());
        let mut selector = Value::Object(from["selector"].as_object().cloned().unwrap_or_default());
        selector["matchLabels"] = json!(labels);
        selector
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_rollout_are_kept_and_others_follow_the_deployment() {
        let mut into = json!({"version": "v2", "deletion": {"a": 1}, "failureDomain": "x"});
        keep(&mut into, &json!({"version": "v1", "deletion": {"a": 0}}), &ROLLOUT_FIELDS);
        assert_eq!(into, json!({"version": "v1", "deletion": {"a": 1}}));
    }

    #[test]
    fn an_existing_set_keeps_its_selector_and_a_new_one_is_unique() {
        let deployment = json!({
            "metadata": {"name": "md", "annotations": {"n": "1", keys::REVISION: "3"}},
            "spec": {"clusterName": "c", "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"version": "v1.35.0"}}},
        });
        let step = Step { replicas: 3, annotations: Pairs::new() };
        let new = machine_set(&deployment, None, "md-x", step.clone(), "x");
        let hash = new["metadata"]["labels"][keys::MACHINE_TEMPLATE_HASH].as_str().unwrap();
        assert!(hash.ends_with("-x"), "{hash}");
        assert_eq!(new["spec"]["selector"]["matchLabels"][keys::MACHINE_TEMPLATE_HASH], hash);
        assert_eq!(new["metadata"]["annotations"], json!({"n": "1"}));
        let mut live = new.clone();
        live["spec"]["template"]["spec"]["version"] = json!("v1.34.2");
        let again = machine_set(&deployment, Some(&live), "md-x", step, "y");
        assert_eq!(again["spec"], live["spec"]);
        assert_eq!(again["metadata"]["labels"], live["metadata"]["labels"]);
    }
}
