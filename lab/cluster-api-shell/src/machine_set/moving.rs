//! Both sides of a move: hands a Machine over, and starts its update in the new MachineSet.

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::{
        Pairs,
        machine_set::{labels, moved_machine},
        owner,
    },
    kinds::{ContractRef, Machine, MachineSet},
    rollout::machine_set::{Trigger, trigger_in_place},
};
use refit_kinds::{keys, keys::MANAGER_MACHINE_SET};
use refit_runtime::ObjectKey;
use serde_json::{Value, json};

use super::machines;
use crate::{
    context::{Context, namespace_of},
    error::Error,
    live::Live,
    snapshot, templates,
};

/// The old MachineSet's side: hands a Machine over to another MachineSet, in one patch.
pub(super) async fn hand_over(
    context: &Arc<Context>,
    set: &Live<MachineSet>,
    target: &Live<MachineSet>,
    name: &str,
) -> Result<(), Error> {
    let key = ObjectKey::new(namespace_of(set), name);
    let Some(machine) = context.machines.get(&key) else {
        return Ok(());
    };
    tracing::info!(machine = name, to = target.name_any(), "moving Machine");
    let body = hand_over_patch(set, target, &machine, context.sets.resource());
    context.merge(&context.machines, &machine, &body).await?;
    Ok(())
}

fn hand_over_patch(
    set: &Live<MachineSet>,
    target: &Live<MachineSet>,
    machine: &Live<Machine>,
    resource: &kube::discovery::ApiResource,
) -> Value {
    let owners = machine.at("/metadata/ownerReferences").as_array();
    let others = owners.into_iter().flatten();
    let mut owners: Vec<Value> =
        others.filter(|owner| owner["uid"] != set.uid_text()).cloned().collect();
    owners.push(owner(resource, &target.name_any(), target.uid_text(), true));
    json!({"metadata": {
        "ownerReferences": owners,
        "labels": {
            keys::MACHINE_TEMPLATE_HASH: target.labels().get(keys::MACHINE_TEMPLATE_HASH),
        },
        "annotations": {keys::UPDATE_IN_PROGRESS: "", keys::PENDING_ACKNOWLEDGE_MOVE: ""},
    }})
}

/// The new MachineSet's side: starts the update of every Machine that has arrived and is counted.
pub(super) async fn trigger(context: &Arc<Context>, set: &Live<MachineSet>) -> Result<(), Error> {
    let machines = machines(context, set);
    let alive: Vec<_> = machines.iter().filter(|machine| !machine.is_deleting()).collect();
    let snapshots: Vec<_> = alive.iter().map(|machine| machine.snapshot().clone()).collect();
    for step in trigger_in_place(&snapshot::machine_set(set), &snapshots) {
        match step {
            Trigger::WaitForAcknowledge { machine } => {
                tracing::debug!(machine, "waiting for the MachineDeployment to count the Machine");
            }
            Trigger::CompleteMove { machine, drop_pending_acknowledge } => {
                let found = alive.iter().find(|one| one.name_any() == machine);
                if let Some(machine) = found {
                    complete_move(context, set, machine, drop_pending_acknowledge).await?;
                }
            }
        }
    }
    Ok(())
}

/// Writes the desired state of the Machine's parts and the Machine, then marks the hook as pending.
/// Parts that are already written are skipped.
async fn complete_move(
    context: &Arc<Context>,
    set: &Live<MachineSet>,
    machine: &Live<Machine>,
    drop_pending_acknowledge: bool,
) -> Result<(), Error> {
    let template = &set.spec.template.spec;
    let infrastructure = &machine.spec.infrastructure_ref;
    rewrite(context, set, &template.infrastructure_ref, infrastructure).await?;
    let references = (&template.bootstrap.config_ref, &machine.spec.bootstrap.config_ref);
    if let (Some(template), Some(bootstrap)) = references {
        rewrite(context, set, template, bootstrap).await?;
    }
    let intent = moved_machine(set.json(), machine.json());
    let cache = &context.machines;
    let machine = context.apply(cache, MANAGER_MACHINE_SET, Some(machine), intent).await?;
    mark_pending(context, &machine, drop_pending_acknowledge).await
}

async fn rewrite(
    context: &Arc<Context>,
    set: &Live<MachineSet>,
    template: &ContractRef,
    object: &ContractRef,
) -> Result<(), Error> {
    let namespace = namespace_of(set);
    let (cache, live) = context.provided(&namespace, object).await?;
    let live = live.ok_or_else(|| Error::Missing {
        kind: object.kind.clone(),
        name: format!("{namespace}/{}", object.name),
    })?;
    let template = templates::fetch(context, &namespace, template).await?;
    let marked = Pairs::from([(keys::UPDATE_IN_PROGRESS.to_owned(), String::new())]);
    let intent = template.instance(&namespace, &object.name, &labels(set.json()), &marked);
    context.apply(&cache, MANAGER_MACHINE_SET, Some(&live), intent).await?;
    Ok(())
}

/// Marks UpdateMachine as pending: from now on the Machine controller calls it.
pub(crate) async fn mark_pending(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    drop_pending_acknowledge: bool,
) -> Result<(), Error> {
    let what = ("SuccessfulStartInPlaceUpdate", "Machine starting in-place update".to_owned());
    // The spec is final here: its generation identifies this update.
    let generation = machine.metadata.generation.unwrap_or_default();
    let cache = &context.machines;
    context.announce(cache, machine, what, generation.to_string()).await;
    let known = machine.annotations().get(keys::PENDING_HOOKS);
    let mut hooks: BTreeSet<&str> = known
        .map(|hooks| hooks.split(',').filter(|hook| !hook.is_empty()).collect())
        .unwrap_or_default();
    hooks.insert(keys::UPDATE_MACHINE_HOOK);
    let hooks: Vec<&str> = hooks.into_iter().collect();
    let mut annotations = json!({ keys::PENDING_HOOKS: hooks.join(",") });
    if drop_pending_acknowledge {
        annotations[keys::PENDING_ACKNOWLEDGE_MOVE] = Value::Null;
    }
    let body = json!({"metadata": {"annotations": annotations}});
    context.merge(cache, machine, &body).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use kube::discovery::ApiResource;

    use super::*;

    fn set(name: &str) -> Live<MachineSet> {
        Live::read(json!({
            "metadata": {
                "namespace": "default", "name": name, "uid": format!("{name}-uid"),
                "labels": {"machine-template-hash": format!("hash-{name}")},
            },
            "spec": {"clusterName": "c"},
        }))
        .unwrap()
    }

    #[test]
    fn handing_over_changes_owner_label_and_both_annotations_in_one_patch() {
        let machine = Live::<Machine>::read(json!({
            "metadata": {"name": "m", "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "other-uid"},
                {
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "old",
                    "uid": "old-uid", "controller": true,
                },
            ]},
            "spec": {"clusterName": "c"},
        }))
        .unwrap();
        let resource = ApiResource::erase::<MachineSet>(&());
        let patch = hand_over_patch(&set("old"), &set("new"), &machine, &resource);
        let metadata = &patch["metadata"];
        assert_eq!(metadata["ownerReferences"][0]["uid"], "other-uid");
        assert_eq!(
            metadata["ownerReferences"][1],
            json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "new",
                "uid": "new-uid", "controller": true, "blockOwnerDeletion": true,
            })
        );
        assert_eq!(metadata["labels"]["machine-template-hash"], "hash-new");
        assert_eq!(
            metadata["annotations"],
            json!({keys::UPDATE_IN_PROGRESS: "", keys::PENDING_ACKNOWLEDGE_MOVE: ""})
        );
    }
}
