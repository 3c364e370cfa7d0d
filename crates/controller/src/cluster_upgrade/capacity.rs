//! Extra Machines of a Cluster: what the caches show of them, and the writes for them.

use std::{collections::BTreeSet, sync::Arc};

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams, Preconditions},
};
use refit_cluster_api::kinds::{CORE_GROUP, Machine, MachineDeployment};
use refit_core::{
    managed::{
        capacity::{
            CapacityMachine, CapacitySeen, CapacityWrite, CloneSeen, DeploymentSeen, ExtraReplicas,
            clone_name, clone_of,
        },
        cluster::Hindrance,
        health::{HealthSeen, node_problem},
    },
    task::Paused,
};
use refit_kinds::{
    keys,
    refit::{ClusterUpgrade, Owner, update_group_name},
};
use refit_runtime::{ObjectKey, apply, foreign::ForeignObject};
use serde_json::{Value, json};

use crate::{
    cluster_health::machine_seen,
    context::{Context, Stores},
    groups::{creates_machines, machines_of, machines_of_set},
    indexes::{DEPLOYMENTS_BY_CLUSTER, MACHINES_BY_CLUSTER, SETS_BY_GROUP},
    upgrade_task::{TOPOLOGY_OWNED, cluster::is_extra},
};

/// Why a Machine that is extra is skipped, for people who look at it.
const SKIPPED: &str = "extra capacity of a ClusterUpgrade";

/// What the caches show of the extra Machines of a Cluster, and of what they could be added to.
pub(super) fn seen(
    ctx: &Context,
    cluster: &ObjectKey,
    health: &Result<HealthSeen, String>,
) -> CapacitySeen {
    let mut seen = CapacitySeen::default();
    let mut owned = BTreeSet::new();
    let mut all = ctx.stores.machine_deployments.listed(&DEPLOYMENTS_BY_CLUSTER, cluster);
    all.sort_by_key(|deployment| deployment.name_any());
    for deployment in all {
        let name = deployment.name_any();
        let deleting = deployment.metadata.deletion_timestamp.is_some();
        let group = update_group_name(Owner::Deployment.kind(), &name);
        let group = ObjectKey::new(&cluster.namespace, &group);
        let machines = machines_of(&ctx.stores, &group);
        owned.extend(machines.iter().map(|machine| machine.name_any()));
        let sets = SetsNow::read(&ctx.stores, &group);
        let of = |machine| {
            let seen = machine_of(machine, health);
            let deleting = seen.deleting || sets.deleted_next.contains(&seen.name);
            CapacityMachine { deleting, ..seen }
        };
        let machines: Vec<CapacityMachine> = machines.iter().map(of).collect();
        if is_extra(deployment.as_ref()) {
            seen.clones.push(CloneSeen {
                name,
                deleting,
                replicas: deployment.spec.replicas.unwrap_or(1),
                machines,
            });
        } else if !deleting {
            let (shown, others): (Vec<_>, Vec<_>) =
                machines.into_iter().partition(|machine| machine.is_extra || !machine.deleting);
            let bootstrap = &deployment.spec.template.spec.bootstrap.config_ref;
            let annotation = deployment.annotations().get(keys::EXTRA_CAPACITY);
            seen.deployments.push(DeploymentSeen {
                version: deployment.spec.template.spec.version.version().cloned(),
                replicas: deployment.spec.replicas.unwrap_or(1),
                extra: annotation.map_or(Ok(ExtraReplicas::default()), |value| value.parse()),
                of_topology: deployment.labels().contains_key(TOPOLOGY_OWNED),
                has_kubeadm: bootstrap
                    .as_ref()
                    .is_some_and(|template| template.kind == "KubeadmConfigTemplate"),
                paused: Paused::of(deployment.annotations()),
                machines: shown,
                deleting: others.len(),
                lacking: sets.lacking,
                name,
            });
        }
    }
    let all = ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, cluster);
    let orphans = all
        .iter()
        .filter(|machine| is_extra(machine.as_ref()) && !owned.contains(&machine.name_any()));
    seen.orphans = orphans.map(|machine| machine_of(machine, health)).collect();
    seen
}

/// What the MachineSets of a MachineDeployment do next.
#[derive(Default)]
struct SetsNow {
    /// How many Machines they may still create; those that are being deleted count as present.
    lacking: usize,
    /// The extra Machines that they delete: each has too many.
    deleted_next: BTreeSet<String>,
}

impl SetsNow {
    fn read(stores: &Stores, group: &ObjectKey) -> Self {
        let mut all = Self::default();
        for set in stores.machine_sets.listed(&SETS_BY_GROUP, group) {
            let replicas = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or_default();
            let machines = machines_of_set(stores, &ObjectKey::of(set.as_ref()));
            let observed = set.status.as_ref().and_then(|status| status.observed_generation);
            if creates_machines(&set) || observed != set.metadata.generation {
                all.lacking += replicas.saturating_sub(machines.len());
            }
            let surplus = machines.len().saturating_sub(replicas);
            let mut extra: Vec<_> =
                machines.iter().filter(|machine| is_extra(machine.as_ref())).collect();
            extra.sort_by_key(|machine| machine.metadata.deletion_timestamp.is_none());
            all.deleted_next.extend(extra.into_iter().take(surplus).map(|one| one.name_any()));
        }
        all
    }
}

fn machine_of(machine: &Arc<Machine>, health: &Result<HealthSeen, String>) -> CapacityMachine {
    CapacityMachine {
        name: machine.name_any(),
        created: machine.metadata.creation_timestamp.as_ref().map(|time| time.0),
        is_extra: is_extra(machine.as_ref()),
        is_deleted_first: machine.annotations().contains_key(keys::DELETE_MACHINE),
        deleting: machine.metadata.deletion_timestamp.is_some(),
        unready: match health {
            Ok(health) => node_problem(health, &machine_seen(machine, false)),
            Err(why) => Some(why.clone()),
        },
    }
}

/// Makes a write. Returns what stands in its way, apart from errors.
pub(super) async fn perform(
    ctx: &Context,
    upgrade: &ClusterUpgrade,
    write: &CapacityWrite,
) -> anyhow::Result<Option<Hindrance>> {
    let namespace = upgrade.namespace().unwrap_or_default();
    let deployments: Api<MachineDeployment> = Api::namespaced(ctx.client.clone(), &namespace);
    match write {
        CapacityWrite::Guard => guard(ctx, upgrade, true).await?,
        CapacityWrite::Unguard => guard(ctx, upgrade, false).await?,
        CapacityWrite::Clone { deployment, machines } => {
            return create(ctx, &namespace, deployment, *machines).await;
        }
        CapacityWrite::Raise { deployment, replicas } => {
            let annotation = replicas.to_string();
            return scale(ctx, &deployments, deployment, (replicas.of, Some(annotation))).await;
        }
        CapacityWrite::Lower { deployment, replicas } => {
            return scale(ctx, &deployments, deployment, (*replicas, None)).await;
        }
        CapacityWrite::Resize { clone, machines, .. } => {
            return scale(ctx, &deployments, clone, (*machines, None)).await;
        }
        CapacityWrite::Mark(machine) => {
            mark(ctx, &namespace, machine, true).await?;
        }
        CapacityWrite::Unmark(machine) => {
            mark(ctx, &namespace, machine, false).await?;
        }
        CapacityWrite::Delete(clone) => {
            let key = ObjectKey::new(&namespace, clone);
            let Some(known) = ctx.stores.machine_deployments.get(&key) else { return Ok(None) };
            let uid = known.metadata.uid.clone();
            let preconditions = Some(Preconditions { uid, resource_version: None });
            let params = DeleteParams { preconditions, ..DeleteParams::background() };
            match deployments.delete(clone, &params).await {
                Ok(deleted) => {
                    if let Some(deleting) = deleted.left() {
                        ctx.stores.machine_deployments.insert(deleting);
                    }
                }
                Err(error) if apply::is_not_found(&error) || apply::is_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    tracing::info!(
        cluster = upgrade.name_any(),
        ?write,
        "wrote for the extra machines of an upgrade"
    );
    Ok(None)
}

/// Shows on a Machine whether it is extra: then it is skipped, and is deleted first.
async fn mark(ctx: &Context, namespace: &str, machine: &str, is_extra: bool) -> kube::Result<()> {
    let value = |text: &'static str| is_extra.then_some(text);
    let body = json!({"metadata": {
        "labels": {keys::EXTRA_CAPACITY: value("true")},
        "annotations": {keys::DELETE_MACHINE: value(""), keys::SKIP: value(SKIPPED)},
    }});
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), namespace);
    ctx.stores.machines.insert(apply::merge(&api, machine, &body).await?);
    Ok(())
}

/// Adds or removes the finalizer.
async fn guard(ctx: &Context, upgrade: &ClusterUpgrade, is_guarded: bool) -> kube::Result<()> {
    let mut finalizers = upgrade.finalizers().to_vec();
    finalizers.retain(|one| one != keys::EXTRA_CAPACITY);
    if is_guarded {
        finalizers.push(keys::EXTRA_CAPACITY.to_owned());
    }
    let body = json!({"metadata": {
        "finalizers": finalizers,
        "resourceVersion": upgrade.resource_version(),
    }});
    let api: Api<ClusterUpgrade> =
        Api::namespaced(ctx.client.clone(), &upgrade.namespace().unwrap_or_default());
    let written = apply::merge(&api, &upgrade.name_any(), &body).await?;
    if written.metadata.deletion_timestamp.is_none() {
        ctx.stores.cluster_upgrades.insert(written);
    }
    Ok(())
}

/// Creates the MachineDeployment with the extra Machines of another one.
async fn create(
    ctx: &Context,
    namespace: &str,
    deployment: &str,
    machines: i32,
) -> anyhow::Result<Option<Hindrance>> {
    let mut object = ForeignObject {
        group: CORE_GROUP.to_owned(),
        version: None,
        kind: Owner::Deployment.kind().to_owned(),
        namespace: namespace.to_owned(),
        name: deployment.to_owned(),
    };
    let original = ctx.foreign.read(&ctx.client, &object).await?;
    let clone: Value = clone_of(&original, machines);
    object.name = clone_name(deployment);
    let api = ctx.foreign.api(&ctx.client, &object).await?;
    match api.create(&PostParams::default(), &serde_json::from_value(clone)?).await {
        Ok(created) => {
            tracing::info!(clone = created.name_any(), machines, "created extra machines");
            // The next look must not rest on a Cluster without it.
            ctx.stores.machine_deployments.insert(created.try_parse()?);
            Ok(None)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let name = &object.name;
            let message = format!(
                "MachineDeployment {name} exists: delete it if its machines are not needed"
            );
            // One of this upgrade is in the cache at the next look.
            Ok(Some(Hindrance::Passing(message)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sets the replicas of a MachineDeployment, and the annotation about extra ones.
async fn scale(
    ctx: &Context,
    api: &Api<MachineDeployment>,
    name: &str,
    (replicas, annotation): (i32, Option<String>),
) -> anyhow::Result<Option<Hindrance>> {
    let Some(namespace) = api.namespace() else { return Ok(None) };
    let known = ctx.stores.machine_deployments.get(&ObjectKey::new(namespace, name));
    let body = json!({
        "metadata": {
            "resourceVersion": known.and_then(|known| known.resource_version()),
            "annotations": {keys::EXTRA_CAPACITY: annotation},
        },
        "spec": {"replicas": replicas},
    });
    match apply::merge(api, name, &body).await {
        Ok(scaled) => {
            ctx.stores.machine_deployments.insert(scaled);
            tracing::info!(deployment = name, replicas, "scaled for extra machines");
            Ok(None)
        }
        Err(error) if apply::is_conflict(&error) => {
            let message = format!("MachineDeployment {name} has changed meanwhile");
            Ok(Some(Hindrance::Passing(message)))
        }
        Err(error) => Err(error.into()),
    }
}
