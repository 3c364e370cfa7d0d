//! MachineDeployment: creates and scales its MachineSets (`docs/facts/machine-deployment.md`).

mod can_update;
mod cleanup;
mod status;

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::machine_deployment::{Step, machine_set, new_name},
    kinds::{Machine, MachineDeployment, MachineSet},
    rollout::{self, Decisions, IntentInput, Note, RolloutIntent},
};
use refit_kinds::keys::{self, MANAGER_MACHINE_DEPLOYMENT};
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::{Value, json};

use crate::{
    context::{Context, controller_uid, is_paused, namespace_of},
    error::Error,
    live::Live,
    snapshot,
};

/// A MachineDeployment with its Cluster and MachineSets.
pub(crate) struct Group {
    pub(crate) deployment: Arc<Live<MachineDeployment>>,
    /// The MachineDeployment with Cluster API's defaults.
    pub(crate) json: Value,
    pub(crate) namespace: String,
    pub(crate) sets: Vec<Arc<Live<MachineSet>>>,
    snapshot: rollout::MachineDeployment,
    set_snapshots: Vec<rollout::MachineSet>,
    machines: Vec<Arc<Live<Machine>>>,
    machine_snapshots: Vec<rollout::Machine>,
    /// The name for a new MachineSet, if one is needed.
    pub(crate) new_name: String,
    new_suffix: String,
}

/// Advances a MachineDeployment by one step.
pub(crate) async fn reconcile(context: &Arc<Context>, key: &ObjectKey) -> Result<Action, Error> {
    let Some(deployment) = context.deployments.get(key) else {
        return Ok(Action::Done);
    };
    let cluster = context.cluster(&key.namespace, &deployment.spec.cluster_name);
    let Some(cluster) = cluster else {
        return Ok(Action::Done);
    };
    if deployment.is_deleting() || is_paused(&cluster, deployment.as_ref()) {
        return Ok(Action::Done);
    }
    let group = Group::load(context, deployment)?;
    let outcome = roll_out(context, &group).await;
    let deployment = match &outcome {
        Ok(plan) => write_revision(context, &group.deployment, &plan.revision).await?,
        Err(_) => group.deployment,
    };
    // As in Cluster API, status is written even if the rollout failed.
    let group = Group::load(context, deployment)?;
    status::write(context, &group).await?;
    cleanup::run(context, &group, &outcome?.current).await?;
    Ok(Action::Done)
}

impl Group {
    fn load(context: &Context, deployment: Arc<Live<MachineDeployment>>) -> Result<Self, Error> {
        let json = snapshot::defaulted(&deployment);
        let namespace = namespace_of(&deployment);
        let uid = deployment.uid_text().to_owned();
        let mut sets = context.sets.list_in(&namespace);
        let is_ours =
            |set: &Arc<Live<MachineSet>>| controller_uid(set.as_ref()) == Some(uid.as_str());
        let taken: BTreeSet<String> = sets.iter().map(|set| set.name_any()).collect();
        sets.retain(|set| is_ours(set) && !set.is_deleting());
        let owners: BTreeSet<&str> = sets.iter().map(|set| set.uid_text()).collect();
        let mut machines = context.machines.list_in(&namespace);
        machines.retain(|machine| {
            controller_uid(machine.as_ref()).is_some_and(|uid| owners.contains(uid))
        });
        let machine_snapshots = machines.iter().map(|one| one.snapshot().clone()).collect();
        let (new_name, new_suffix) = new_name(&json, &taken);
        Ok(Self {
            snapshot: snapshot::deployment(&deployment, &json)?,
            set_snapshots: sets.iter().map(|set| snapshot::machine_set(set)).collect(),
            machines,
            machine_snapshots,
            deployment,
            json,
            namespace,
            sets,
            new_name,
            new_suffix,
        })
    }

    /// A MachineSet of the group.
    pub(crate) fn set(&self, name: &str) -> Option<&Arc<Live<MachineSet>>> {
        self.sets.iter().find(|set| set.name_any() == name)
    }

    /// The intent for a MachineSet of the plan, existing or new.
    fn set_intent(&self, plan: &RolloutIntent, name: &str) -> Value {
        let step = match (&plan.create, plan.machine_sets.get(name)) {
            (_, Some(step)) => {
                Step { replicas: step.replicas, annotations: step.annotations.clone() }
            }
            (Some(new), None) => {
                Step { replicas: new.replicas, annotations: new.annotations.clone() }
            }
            (None, None) => Step::default(),
        };
        let existing = self.set(name).map(|set| set.json());
        machine_set(&self.json, existing, name, step, &self.new_suffix)
    }
}

/// Plans, asks the extension if the plan requires it, and writes the plan to the MachineSets.
async fn roll_out(context: &Arc<Context>, group: &Group) -> Result<RolloutIntent, Error> {
    let mut decisions = Decisions::new();
    let plan = loop {
        let input = IntentInput {
            deployment: &group.snapshot,
            machine_sets: &group.set_snapshots,
            machines: &group.machine_snapshots,
            in_place_updates: true,
            decisions: &decisions,
            new_name: &group.new_name,
            now: context.now(),
        };
        if group.deployment.spec.paused == Some(true) {
            break rollout::intend_paused(&input);
        }
        let plan = rollout::intend(&input);
        if plan.is_complete() {
            break plan;
        }
        for (old, new) in &plan.pairs_to_ask {
            let answer = can_update::ask(context, group, &plan, old, new).await?;
            decisions.insert((old.clone(), new.clone()), answer);
        }
    };
    write(context, group, &plan).await?;
    Ok(plan)
}

/// Writes the revision of the current MachineSet to the MachineDeployment, after the MachineSets:
/// it decides which of them remediates (`docs/facts/machine-deployment.md#machineset-remediation`).
async fn write_revision(
    context: &Context,
    deployment: &Arc<Live<MachineDeployment>>,
    revision: &str,
) -> Result<Arc<Live<MachineDeployment>>, Error> {
    if deployment.annotations().get(keys::REVISION).is_some_and(|known| known == revision) {
        return Ok(Arc::clone(deployment));
    }
    let body = json!({"metadata": {"annotations": {keys::REVISION: revision}}});
    context.merge(&context.deployments, deployment, &body).await
}

/// Writes the current MachineSet first, then the old ones, oldest first
/// (`docs/facts/machine-deployment.md#machineset-intents`).
async fn write(context: &Arc<Context>, group: &Group, plan: &RolloutIntent) -> Result<(), Error> {
    if let Some(new) = &plan.create {
        let message = format!("Created MachineSet {}", new.name);
        announce(context, group, ("SuccessfulCreate", message), &new.name).await;
        tracing::info!(
            deployment = group.deployment.name_any(),
            set = new.name,
            reason = new.create_reason,
            "creating MachineSet"
        );
        let intent = group.set_intent(plan, &new.name);
        let manager = MANAGER_MACHINE_DEPLOYMENT;
        context.apply(&context.sets, manager, None, intent).await?;
    }
    let current = plan.create.is_none().then_some(&plan.current);
    for name in current.into_iter().chain(&plan.old_in_order) {
        let Some(set) = group.set(name) else { continue };
        write_set(context, group, plan, set).await?;
    }
    Ok(())
}

async fn write_set(
    context: &Arc<Context>,
    group: &Group,
    plan: &RolloutIntent,
    set: &Live<MachineSet>,
) -> Result<(), Error> {
    let name = set.name_any();
    let Some(step) = plan.machine_sets.get(&name) else {
        return Ok(());
    };
    if step.replicas != step.replicas_before {
        let direction = if step.replicas < step.replicas_before { "down" } else { "up" };
        let message = format!(
            "Scaled {direction} MachineSet {name}: {} -> {}",
            step.replicas_before, step.replicas
        );
        let reason: Vec<String> = step.notes.iter().map(Note::to_string).collect();
        tracing::info!(message, reason = reason.join(", "));
        // The generation changes with each scaling, so the same message later is another event.
        let generation = set.metadata.generation.unwrap_or_default();
        let occurrence = format!("{name} {generation}");
        announce(context, group, ("SuccessfulScale", message), &occurrence).await;
    }
    let intent = group.set_intent(plan, &name);
    let manager = MANAGER_MACHINE_DEPLOYMENT;
    context.apply(&context.sets, manager, Some(set), intent).await?;
    Ok(())
}

async fn announce(context: &Context, group: &Group, what: (&str, String), occurrence: &str) {
    let deployments = &context.deployments;
    context.announce(deployments, &group.deployment, what, occurrence).await;
}
