//! MachineSet: creates and deletes Machines, and executes both sides of a move
//! (`docs/facts/machine-deployment.md#machineset-reconcile`).

mod adoption;
mod create;
mod moving;
mod preflight;
mod remediation;

pub(crate) use moving::mark_pending;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::machine_set::existing_machine,
    kinds::{Machine, MachineSet},
    rollout::machine_set::{DeletionOrder, MachineFacts, MachineSetAction, counts, sync_replicas},
};
use refit_kinds::{conditions, keys, keys::MANAGER_MACHINE_SET};
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::{Value, json};

use crate::{
    context::{Context, is_paused, lock, namespace_of},
    error::Error,
    intent::lacks,
    live::Live,
    snapshot,
};

/// Field manager of the labels and annotations on provider objects.
const MANAGER_METADATA: &str = "capi-machineset-metadata";
/// How long to wait for a control plane that new Machines cannot join yet.
const PREFLIGHT_WAIT: Duration = Duration::from_secs(15);

/// Advances a MachineSet by one step.
pub(crate) async fn reconcile(context: &Arc<Context>, key: &ObjectKey) -> Result<Action, Error> {
    let Some(set) = context.sets.get(key) else {
        return Ok(Action::Done);
    };
    let cluster = context.cluster(&key.namespace, &set.spec.cluster_name);
    let Some(cluster) = cluster else {
        return Ok(Action::Done);
    };
    if set.is_deleting() || is_paused(&cluster, set.as_ref()) {
        return Ok(Action::Done);
    }
    let outcome = step(context, &set).await;
    // As in Cluster API, status is written even if the step failed.
    write_status(context, &set).await?;
    outcome
}

async fn step(context: &Arc<Context>, set: &Live<MachineSet>) -> Result<Action, Error> {
    adoption::adopt(context, set).await?;
    let waits = remediation::run(context, set).await?;
    sync_machines(context, set).await?;
    moving::trigger(context, set).await?;
    let action = sync_number(context, set).await?;
    Ok(match (action, waits) {
        (Action::Done, Some(wait)) => wait,
        (action, _) => action,
    })
}

fn machines(context: &Context, set: &Live<MachineSet>) -> Vec<Arc<Live<Machine>>> {
    context.machines_of(&namespace_of(set), set.uid_text())
}

/// A Machine that is as its MachineSet wants it.
#[derive(Clone, Debug)]
pub(crate) struct Synced {
    machine: Arc<Live<Machine>>,
    /// Labels of its provider objects.
    labels: Value,
}

/// The Machines that are as a state of their MachineSet wants them, by uid.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncedMachines {
    /// Generation and labels of the MachineSet: all that Machines take over from it.
    of: (Option<i64>, BTreeMap<String, String>),
    /// Number of changes of provider objects before they were compared.
    provided_changes: u64,
    machines: BTreeMap<String, Synced>,
}

/// Copies labels, annotations and the fields that change in place to the Machines. Those that have not
/// changed since the last time, like their MachineSet, are not compared again.
async fn sync_machines(context: &Arc<Context>, set: &Live<MachineSet>) -> Result<(), Error> {
    let of = (set.metadata.generation, set.labels().clone());
    let provided_changes = context.provided_changes.load(Ordering::Relaxed);
    let known = lock(&context.synced).remove(set.uid_text());
    let known = known.filter(|known| known.of == of).unwrap_or_default();
    let provided_is_known = known.provided_changes == provided_changes;
    let mut known = known.machines;
    let mut synced = SyncedMachines { of, provided_changes, machines: BTreeMap::new() };
    for machine in machines(context, set) {
        if machine.is_deleting() {
            continue;
        }
        let known = known.remove(machine.uid_text());
        let known = known.filter(|known| Arc::ptr_eq(&known.machine, &machine));
        let is_known = known.is_some();
        let labels = if let Some(known) = known {
            known.labels
        } else {
            let intent = existing_machine(set.json(), machine.json());
            let labels = intent["metadata"]["labels"].clone();
            let cache = &context.machines;
            context.apply(cache, MANAGER_MACHINE_SET, Some(&machine), intent).await?;
            labels
        };
        let is_updating = refit_cluster_api::kinds::update_in_progress(machine.as_ref());
        let is_compared = is_known && provided_is_known;
        if !is_updating && !is_compared {
            sync_metadata(context, &machine, &labels, MANAGER_METADATA).await?;
        }
        synced.machines.insert(machine.uid_text().to_owned(), Synced { machine, labels });
    }
    lock(&context.synced).insert(set.uid_text().to_owned(), synced);
    Ok(())
}

/// Copies labels to a Machine's infrastructure machine and bootstrap config if some are missing.
/// Skipped during an update, which applies them anyway.
pub(crate) async fn sync_metadata(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    labels: &Value,
    manager: &str,
) -> Result<(), Error> {
    let namespace = namespace_of(machine);
    let bootstrap = machine.spec.bootstrap.config_ref.as_ref();
    let references = [Some(&machine.spec.infrastructure_ref), bootstrap];
    for reference in references.into_iter().flatten() {
        let (cache, object) = context.provided(&namespace, reference).await?;
        let Some(object) = object.filter(|object| !object.is_deleting()) else {
            continue;
        };
        let intent = json!({"metadata": {
            "namespace": namespace, "name": reference.name, "labels": labels,
        }});
        if lacks(object.json(), &intent) {
            context.apply(&cache, manager, Some(&object), intent).await?;
        }
    }
    Ok(())
}

/// Creates, moves or deletes Machines.
async fn sync_number(context: &Arc<Context>, set: &Live<MachineSet>) -> Result<Action, Error> {
    let machines = machines(context, set);
    let snapshots: Vec<_> = machines.iter().map(|machine| machine.snapshot().clone()).collect();
    let target = set
        .annotations()
        .get(keys::MOVE_MACHINES)
        .and_then(|name| context.sets.get(&ObjectKey::new(namespace_of(set), name)));
    let target_snapshot = target.as_ref().map(|target| snapshot::machine_set(target));
    let order = set.spec.deletion.as_ref().and_then(|deletion| deletion.order.as_deref());
    let action = sync_replicas(
        &snapshot::machine_set(set),
        &snapshots,
        target_snapshot.as_ref(),
        DeletionOrder::from_spec(order.unwrap_or_default()),
        context.clock.now(),
    )?;
    let delete = |names: Vec<String>| async move {
        let mut outcome = Ok(());
        for name in names {
            let key = ObjectKey::new(namespace_of(set), name);
            if let Some(machine) = context.machines.get(&key) {
                // As in Cluster API, one that is refused does not keep the others.
                outcome = context.delete(&context.machines, &machine).await.and(outcome);
            }
        }
        outcome
    };
    match action {
        MachineSetAction::None => {}
        MachineSetAction::CreateDisabled { missing } => {
            tracing::debug!(missing, "creating Machines is disabled by annotation");
        }
        MachineSetAction::Create(count) => return create_some(context, set, count).await,
        MachineSetAction::Delete(names) => delete(names).await?,
        MachineSetAction::Move(step) => {
            if let Some(target) = &target {
                for name in &step.machines {
                    moving::hand_over(context, set, target, name).await?;
                }
            }
            delete(step.delete).await?;
        }
    }
    Ok(Action::Done)
}

async fn create_some(
    context: &Arc<Context>,
    set: &Live<MachineSet>,
    count: usize,
) -> Result<Action, Error> {
    let failures = preflight::failures(context, set);
    if !failures.is_empty() {
        tracing::info!(
            set = set.name_any(),
            reason = failures.join(", "),
            "preflight checks failed, not creating Machines"
        );
        return Ok(Action::RequeueAfter(PREFLIGHT_WAIT));
    }
    for _ in 0..count {
        create::machine(context, set).await?;
    }
    Ok(Action::Done)
}

async fn write_status(context: &Context, set: &Live<MachineSet>) -> Result<(), Error> {
    let machines = machines(context, set);
    let counted = counts(machines.iter().map(|machine| (machine.snapshot(), facts(machine))));
    let status = json!({
        "replicas": counted.replicas,
        "readyReplicas": counted.ready,
        "availableReplicas": counted.available,
        "upToDateReplicas": counted.up_to_date,
        "observedGeneration": set.metadata.generation,
    });
    context.merge_status(&context.sets, set, &status).await?;
    Ok(())
}

/// The facts from a Machine's conditions.
fn facts(machine: &Machine) -> MachineFacts {
    let status = machine.status.as_ref();
    let list = status.map_or(&[][..], |status| &status.conditions);
    MachineFacts {
        ready: conditions::is_true(list, conditions::READY),
        available: conditions::is_true(list, conditions::AVAILABLE),
        up_to_date: conditions::is_true(list, conditions::UP_TO_DATE),
    }
}
