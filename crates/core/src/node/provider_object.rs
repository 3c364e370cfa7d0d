//! What Refit makes of a provider's template.

use refit_kinds::{
    keys,
    refit::{NodeUpdate, PlanId, UpdaterTemplate, hash_json},
};
use serde_json::{Value, json};

use super::snapshot::ProviderOrder;

/// Longest name of an object in Kubernetes, in characters.
const NAME_CHARACTERS: usize = 253;

/// The object that is made from a provider's template for an update (`docs/contract/`). It belongs to the
/// NodeUpdate and goes with it.
pub fn provider_object(
    update: &NodeUpdate,
    template: &UpdaterTemplate,
    found: &Value,
    order: &ProviderOrder,
) -> Value {
    let inner = &found["spec"]["template"];
    let update_name = update.metadata.name.as_deref().unwrap_or_default();
    let map = |pointer: &str| inner.pointer(pointer).cloned().filter(Value::is_object);
    let mut labels = map("/metadata/labels").unwrap_or_else(|| json!({}));
    labels[keys::MACHINE_NAME] = json!(order.spec.machine_ref.name);
    let mut annotations = map("/metadata/annotations").unwrap_or_else(|| json!({}));
    annotations[keys::UPDATER] = json!(order.updater);
    annotations[keys::RETURNED_CLAIM] = json!(json!(order.returned_claim).to_string());
    let mut spec = map("/spec").unwrap_or_else(|| json!({}));
    merge(&mut spec, json!(order.spec));
    json!({
        "apiVersion": template.api_version,
        "kind": template.made_kind(),
        "metadata": {
            "name": provider_object_name(update_name, &order.updater),
            "namespace": update.metadata.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "refit.dev/v1alpha1",
                "kind": "NodeUpdate",
                "name": update_name,
                "uid": PlanId::of(&update.metadata),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    })
}

/// The name of that object: a long one is cut and gets a hash.
pub fn provider_object_name(node_update: &str, updater: &str) -> String {
    let whole = format!("{node_update}-{updater}");
    if whole.len() <= NAME_CHARACTERS {
        return whole;
    }
    let hash = hash_json(&json!(whole));
    let hash = &hash[..8];
    let cut = whole.floor_char_boundary(NAME_CHARACTERS - 9);
    format!("{}-{hash}", whole[..cut].trim_end_matches(['-', '.']))
}

/// The members of the contract replace those of the template.
fn merge(into: &mut Value, members: Value) {
    if let (Some(into), Value::Object(members)) = (into.as_object_mut(), members) {
        into.extend(members);
    }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{
        Goal, MachineRef, NodeUpdateSpec, Origin, ProviderGoal, ProviderSpec, Stage, Until,
    };

    use super::*;

    fn update() -> NodeUpdate {
        let spec = NodeUpdateSpec {
            stage: Stage::Ongoing,
            until: Until::Disrupt,
            machine_ref: MachineRef { name: "m-0".into(), uid: "u".into() },
            origin: Origin::Hook,
            goal: Goal::default(),
            goal_hash: String::new(),
            parts: None,
            bundle: None,
        };
        let mut update = NodeUpdate::new("m-0-1", spec);
        update.metadata.namespace = Some("edge".into());
        update.metadata.uid = Some("uid-of-update".into());
        update
    }

    #[test]
    fn the_object_has_the_templates_spec_and_the_contracts_fields() {
        let template = UpdaterTemplate {
            api_version: "update.example/v1".into(),
            kind: "ThingUpdateTemplate".into(),
            name: "thing".into(),
        };
        let found = json!({"spec": {"template": {
            "metadata": {"labels": {"team": "a", "refit.dev/machine": "other"}},
            "spec": {"mirror": "https://mirror.example", "stage": "Abort"},
        }}});
        let order = ProviderOrder {
            updater: "firmware".into(),
            spec: ProviderSpec {
                machine_ref: update().spec.machine_ref,
                node_name: "n-0".into(),
                goal: ProviderGoal { hash: "h".into(), ..ProviderGoal::default() },
                stage: Stage::Ongoing,
                gate: refit_kinds::refit::Gate::Stage,
            },
            returned_claim: 0.into(),
        };
        let made = provider_object(&update(), &template, &found, &order);
        let expected = json!({
            "mirror": "https://mirror.example",
            "machineRef": {"name": "m-0", "uid": "u"},
            "nodeName": "n-0",
            "goal": {"hash": "h"},
            "stage": "Ongoing",
            "gate": "Stage",
        });
        assert_eq!(made["spec"], expected);
        assert_eq!(made["kind"], "ThingUpdate");
        assert_eq!(made["metadata"]["name"], "m-0-1-firmware");
        assert_eq!(made["metadata"]["labels"], json!({"team": "a", "refit.dev/machine": "m-0"}));
        let annotations = json!({"refit.dev/updater": "firmware", "refit.dev/returned-claim": "0"});
        assert_eq!(made["metadata"]["annotations"], annotations);
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-of-update");
    }

    #[test]
    fn long_names_stay_valid_and_distinct() {
        let long = "a".repeat(250);
        let (one, other) =
            (provider_object_name(&long, "firmware"), provider_object_name(&long, "firmwarf"));
        assert_eq!((one.len(), other.len()), (253, 253));
        assert_ne!(one, other);
    }
}
