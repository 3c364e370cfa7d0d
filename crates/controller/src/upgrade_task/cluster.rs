//! A task for a whole Cluster: makes the tasks of its groups, and sets the version of a topology.

use std::sync::Arc;

use kube::{Api, Resource as _, ResourceExt as _};
use refit_cluster_api::kinds::{Cluster, Machine, MachineDeployment};
use refit_core::task::{
    ClusterAction, ClusterSeen, GroupNow, GroupVersion, HopTo, Refused, cluster_actions,
    cluster_status,
};
use refit_kinds::{
    keys,
    refit::{GroupOwner, Owner, Stage, UpgradeTask, UpgradeTaskSpec, UpgradeTaskStatus, Via},
    version::KubernetesVersion,
};
use refit_runtime::{ObjectKey, apply, apply::Ensured};
use serde_json::json;

use super::{Outcome, hooks_reach, look::topology_version, obstacle, tasks};
use crate::{
    context::Context,
    groups::{Group, control_plane_group, controller_of, machines_of},
    indexes::{DEPLOYMENTS_BY_CLUSTER, TASKS_BY_CLUSTER},
    node_update::live::read_object,
    owner::LiveOwner,
};

/// Makes the next writes of a task, and returns what it shows then.
pub(super) async fn work(
    ctx: &Context,
    task: &Arc<UpgradeTask>,
) -> anyhow::Result<(UpgradeTaskStatus, Outcome)> {
    let look = Look::read(ctx, task);
    let seen = look.seen(ctx);
    let mut outcome = Outcome::default();
    for action in cluster_actions(&seen) {
        let done = perform(ctx, &look, &action).await;
        if !outcome.goes_on(done, || format!("Cluster {}", task.spec.cluster_ref.name))? {
            break;
        }
    }
    Ok((cluster_status(&seen, &outcome.refused), outcome))
}

/// A task, and the objects that it is decided on.
struct Look<'a> {
    task: &'a Arc<UpgradeTask>,
    cluster: Option<Arc<Cluster>>,
    groups: Vec<(Group, GroupNow)>,
    children: Vec<Arc<UpgradeTask>>,
}

impl<'a> Look<'a> {
    /// Reads the caches.
    fn read(ctx: &Context, task: &'a Arc<UpgradeTask>) -> Self {
        let key = cluster_key(task);
        let cluster = ctx.stores.clusters.get(&key);
        let children = ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, &key);
        let is_child = |other: &Arc<UpgradeTask>| {
            controller_of(other.owner_references()).map(|owner| &*owner.uid)
                == task.metadata.uid.as_deref()
        };
        Self {
            groups: cluster.as_ref().map_or_else(Vec::new, |cluster| groups_now(ctx, cluster)),
            task,
            cluster,
            children: children.into_iter().filter(is_child).collect(),
        }
    }

    fn seen(&self, ctx: &Context) -> ClusterSeen<'_> {
        let of = |control_plane: bool| {
            let groups = self
                .groups
                .iter()
                .filter(move |(group, _)| group.spec.control_plane == control_plane);
            groups.map(|(_, now)| now.clone())
        };
        ClusterSeen {
            task: self.task,
            obstacle: obstacle::of_whole(ctx, self.task),
            topology: self.cluster.as_ref().and_then(|cluster| topology_version(cluster)),
            control_plane: of(true).next(),
            workers: of(false).collect(),
            children: self.children.iter().map(AsRef::as_ref).collect(),
            now: ctx.clock.now_seconds(),
        }
    }
}

fn cluster_key(task: &UpgradeTask) -> ObjectKey {
    ObjectKey::new(task.namespace().unwrap_or_default(), &task.spec.cluster_ref.name)
}

/// The control plane of a Cluster and its MachineDeployments, by name, without those that have only extra Machines.
pub(crate) fn groups_of(ctx: &Context, cluster: &Cluster) -> Vec<Group> {
    let key = ObjectKey::of(cluster);
    let mut deployments = ctx.stores.machine_deployments.listed(&DEPLOYMENTS_BY_CLUSTER, &key);
    deployments.retain(|deployment| {
        deployment.metadata.deletion_timestamp.is_none() && !is_extra(deployment.as_ref())
    });
    deployments.sort_by_key(|deployment| deployment.name_any());
    let of_deployment = |deployment: &Arc<MachineDeployment>| {
        let owner = GroupOwner {
            api_version: MachineDeployment::api_version(&()).into_owned(),
            kind: Owner::Deployment.kind().to_owned(),
            name: deployment.name_any(),
        };
        Group::of(&key.namespace, &key.name, owner, false)
    };
    control_plane_group(cluster).into_iter().chain(deployments.iter().map(of_deployment)).collect()
}

/// Whether a Machine, or all that a MachineDeployment has, is there only while the Cluster is upgraded.
pub(crate) fn is_extra(object: &impl kube::ResourceExt) -> bool {
    object.labels().contains_key(keys::EXTRA_CAPACITY)
}

/// The groups of a Cluster whose version is known, as they are.
pub(crate) fn groups_now(ctx: &Context, cluster: &Cluster) -> Vec<(Group, GroupNow)> {
    let known = groups_of(ctx, cluster).into_iter().filter_map(|group| {
        let now = group_now(ctx, &group)?;
        Some((group, now))
    });
    known.collect()
}

/// A group as it is; `None` if its owner is not known or has no version: Kubernetes is not upgraded there.
fn group_now(ctx: &Context, group: &Group) -> Option<GroupNow> {
    let owner = LiveOwner::of(&ctx.stores, group)?;
    let mut machines = machines_of(&ctx.stores, &group.key);
    // They keep their version.
    machines.retain(|machine| !is_extra(machine.as_ref()));
    let of_machine = |machine: &Arc<Machine>| machine.spec.version.version().cloned();
    let requested = owner.version().version().cloned()?;
    let versions = machines.iter().filter_map(of_machine).chain([requested]);
    Some(GroupNow {
        at: GroupVersion::of(group.spec.owner.clone(), versions)?,
        machines: machines.len(),
        is_paused: owner.annotations().contains_key(keys::PAUSED),
    })
}

async fn perform(
    ctx: &Context,
    look: &Look<'_>,
    action: &ClusterAction,
) -> anyhow::Result<Option<(String, Refused)>> {
    match action {
        ClusterAction::Create { name, hop } => create(ctx, look.task, name, hop).await,
        ClusterAction::SetTopology(version) => set_topology(ctx, look, version).await,
        ClusterAction::Abort(child) => {
            let api = tasks(ctx, look.task);
            let on_abort = look.task.spec.on_abort;
            let body = json!({"spec": {"stage": Stage::Abort, "onAbort": on_abort}});
            ctx.stores.upgrade_tasks.insert(apply::merge(&api, child, &body).await?);
            tracing::info!(task = look.task.name_any(), child, "aborted the child of a task");
            Ok(None)
        }
    }
}

async fn create(
    ctx: &Context,
    task: &UpgradeTask,
    name: &str,
    hop: &HopTo,
) -> anyhow::Result<Option<(String, Refused)>> {
    let spec = UpgradeTaskSpec {
        owner_ref: Some(hop.owner.clone()),
        version: Some(hop.version.clone()),
        updater_ref: task.spec.updater_ref.clone(),
        ..UpgradeTaskSpec::of(&task.spec.cluster_ref.name, task.spec.via)
    };
    let mut child = UpgradeTask::new(name, spec);
    child.metadata.namespace = task.namespace();
    child.metadata.owner_references = task.controller_owner_ref(&()).map(|owner| vec![owner]);
    let (found, ensured) = apply::create_or_get(&tasks(ctx, task), &child).await?;
    let is_ours = controller_of(found.owner_references()).map(|owner| &*owner.uid)
        == task.metadata.uid.as_deref();
    if !is_ours {
        let message =
            "it exists, and is not of this task: delete it, or choose another name".to_owned();
        let why =
            Refused { reason: "NameTaken", message, is_final: true, is_to_be_replaced: false };
        return Ok(Some((format!("UpgradeTask {name}"), why)));
    }
    if ensured == Ensured::Created {
        tracing::info!(task = task.name_any(), child = name, "created the child of a task");
    }
    ctx.stores.upgrade_tasks.insert(found);
    Ok(None)
}

/// Sets the version of the Cluster's topology, if the objects as they are now still ask for it.
async fn set_topology(
    ctx: &Context,
    look: &Look<'_>,
    version: &KubernetesVersion,
) -> anyhow::Result<Option<(String, Refused)>> {
    let key = cluster_key(look.task);
    read_object(ctx, &ctx.stores.clusters, &key).await?;
    for (group, _) in &look.groups {
        LiveOwner::read(ctx, group).await?;
    }
    let live = Look::read(ctx, look.task);
    if !cluster_actions(&live.seen(ctx)).contains(&ClusterAction::SetTopology(version.clone())) {
        return Ok(None);
    }
    if look.task.spec.via == Via::Spec {
        for (group, _) in &live.groups {
            if let Some(why) = hooks_reach::refusal(ctx, group).await? {
                let owner = &group.spec.owner;
                return Ok(Some((format!("{} {}", owner.kind, owner.name), why)));
            }
        }
    }
    let Some(cluster) = live.cluster else { return Ok(None) };
    let api: Api<Cluster> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let body = json!({
        "metadata": {"resourceVersion": cluster.resource_version()},
        "spec": {"topology": {"version": version}},
    });
    ctx.stores.clusters.insert(apply::merge(&api, &key.name, &body).await?);
    tracing::info!(cluster = %key, %version, "set the version of a topology");
    Ok(None)
}
