//! Adopts Machines without a controller that match a MachineSet's selector.

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::owner,
    kinds::{Machine, MachineSet},
};
use serde_json::{Value, json};

use crate::{
    context::{Context, controller_uid, namespace_of},
    error::Error,
    hooks::selects,
    live::Live,
};

/// Adopts the orphans of a MachineSet.
pub(super) async fn adopt(context: &Arc<Context>, set: &Live<MachineSet>) -> Result<(), Error> {
    for machine in context.machines.list_in(&namespace_of(set)) {
        if !is_orphan_of(set, &machine) {
            continue;
        }
        tracing::info!(machine = machine.name_any(), set = set.name_any(), "adopting Machine");
        let mut owners: Vec<Value> =
            machine.at("/metadata/ownerReferences").as_array().cloned().unwrap_or_default();
        let resource = context.sets.resource();
        owners.push(owner(resource, &set.name_any(), set.uid_text(), true));
        // Another MachineSet may adopt it at the same time.
        let body = json!({"metadata": {
            "resourceVersion": machine.resource_version(),
            "ownerReferences": owners,
        }});
        context.merge(&context.machines, &machine, &body).await?;
    }
    Ok(())
}

/// Whether a Machine has no controller and matches the MachineSet's selector. An empty selector
/// matches nothing here: it would adopt every orphan.
fn is_orphan_of(set: &Live<MachineSet>, machine: &Live<Machine>) -> bool {
    let labels = set.spec.selector.match_labels.as_ref();
    controller_uid(machine).is_none()
        && !machine.is_deleting()
        && machine.spec.cluster_name == set.spec.cluster_name
        && labels.is_some_and(|labels| !labels.is_empty())
        && selects(Some(&set.spec.selector), machine.labels())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(labels: Value, owners: Value) -> Live<Machine> {
        Live::read(json!({
            "metadata": {"name": "m", "labels": labels, "ownerReferences": owners},
            "spec": {"clusterName": "c"},
        }))
        .unwrap()
    }

    #[test]
    fn only_an_orphan_that_is_selected_is_taken() {
        let set = |labels: Value| {
            Live::read(json!({
                "metadata": {"name": "ms", "uid": "u"},
                "spec": {"clusterName": "c", "selector": {"matchLabels": labels}},
            }))
            .unwrap()
        };
        let pool = set(json!({"pool": "a"}));
        let owned = json!([{
            "apiVersion": "v1", "kind": "MachineSet", "name": "x", "uid": "x", "controller": true,
        }]);
        let free = json!([]);
        assert!(is_orphan_of(&pool, &machine(json!({"pool": "a", "b": "c"}), free.clone())));
        assert!(!is_orphan_of(&pool, &machine(json!({"pool": "b"}), free.clone())));
        assert!(!is_orphan_of(&pool, &machine(json!({"pool": "a"}), owned)));
        let everything = set(json!({}));
        assert!(!is_orphan_of(&everything, &machine(json!({"pool": "a"}), free)));
    }
}
