//! Deletes old MachineSets once a rollout is complete.

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::kinds::MachineSet;
use serde_json::json;

use super::{Group, announce, status};
use crate::{
    context::{Context, lock, namespace_of},
    error::Error,
    live::Live,
};

/// Deletes the empty MachineSets of a MachineDeployment whose rollout is complete, except the
/// current one.
pub(super) async fn run(context: &Arc<Context>, group: &Group, current: &str) -> Result<(), Error> {
    if !status::is_complete(group) || group.deployment.spec.paused == Some(true) {
        return Ok(());
    }
    for set in &group.sets {
        let name = set.name_any();
        let machines = context.machines_of(&namespace_of(set), set.uid_text());
        if name == current || !is_empty(set) || !machines.is_empty() {
            continue;
        }
        tracing::info!(set = name, "deleting old MachineSet");
        let message = format!("Deleted MachineSet {name}");
        announce(context, group, ("SuccessfulDelete", message), set.uid_text()).await;
        context.delete(&context.sets, set).await?;
        // Its name may be used again.
        lock(&context.decisions).forget(&refit_runtime::ObjectKey::of(set.as_ref()));
    }
    Ok(())
}

/// Whether a MachineSet wants no Machines and reports none.
fn is_empty(set: &Live<MachineSet>) -> bool {
    let none = |pointer: &str| *set.at(pointer) == json!(0);
    let seen = set.at("/status/observedGeneration").as_i64();
    none("/spec/replicas") && none("/status/replicas") && seen == set.metadata.generation
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn only_a_set_known_to_be_empty_is_deleted() {
        let set = |replicas: i64, status: Value| {
            Live::<MachineSet>::read(json!({
                "metadata": {"name": "ms", "generation": 3},
                "spec": {"clusterName": "c", "replicas": replicas},
                "status": status,
            }))
            .unwrap()
        };
        assert!(is_empty(&set(0, json!({"replicas": 0, "observedGeneration": 3}))));
        assert!(!is_empty(&set(0, json!({"replicas": 0, "observedGeneration": 2}))));
        assert!(!is_empty(&set(0, json!({"replicas": 1, "observedGeneration": 3}))));
        assert!(!is_empty(&set(1, json!({"replicas": 0, "observedGeneration": 3}))));
        assert!(!is_empty(&set(0, json!({}))));
    }
}
