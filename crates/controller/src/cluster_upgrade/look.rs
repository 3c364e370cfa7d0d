//! What a ClusterUpgrade is decided on.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_core::{
    managed::{
        cluster::Known,
        health::{Health, HealthSeen, MachineSeen},
    },
    node::{Workload, workload_refusal},
    task::{GroupNow, GroupVersion},
};
use refit_kinds::{keys, refit::ClusterUpgrade};
use refit_runtime::ObjectKey;

use crate::{
    api_error::{ReadError, is_silence},
    context::Context,
    groups::Group,
    host_plan::node_name,
    indexes::{MACHINES_BY_CLUSTER, TASKS_BY_CLUSTER},
    node_update::{
        live::{read_cluster, read_object},
        look::WorkloadCluster,
    },
    owner::LiveOwner,
    upgrade_task::{cluster::groups_now, obstacle},
};

/// A ClusterUpgrade, and the objects that it is decided on.
pub(super) struct Look {
    upgrade: Arc<ClusterUpgrade>,
    cluster: Option<Arc<Cluster>>,
    groups: Vec<(Group, GroupNow)>,
}

impl Look {
    /// Reads the caches; `None` without the ClusterUpgrade.
    pub(super) fn read(ctx: &Context, key: &ObjectKey) -> Option<Self> {
        let upgrade = ctx.stores.cluster_upgrades.get(key)?;
        let cluster = ctx.stores.clusters.get(key);
        let groups = cluster.as_ref().map_or_else(Vec::new, |cluster| groups_now(ctx, cluster));
        Some(Self { upgrade, cluster, groups })
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::of(self.upgrade.as_ref())
    }

    pub(super) fn known(&self, ctx: &Context) -> Known {
        let of = |control_plane: bool| {
            let groups = self
                .groups
                .iter()
                .filter(move |(group, _)| group.spec.control_plane == control_plane);
            groups.map(|(_, now)| now.at.clone())
        };
        let workers: Vec<GroupVersion> = of(false).collect();
        Known {
            upgrade: self.upgrade.clone(),
            obstacle: obstacle::of_whole_cluster(ctx, &self.key()),
            control_plane: of(true).next(),
            workers,
            tasks: ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, &self.key()),
            health: self.health(ctx),
            hindrance: None,
            now: ctx.clock.now_seconds(),
        }
    }

    fn health(&self, ctx: &Context) -> Health {
        let key = self.key();
        let Some(view) = ctx.workload_index.view(&key) else {
            return Health::Unknown(format!("Cluster {} is not connected yet", key.name));
        };
        let cluster = WorkloadCluster { key: key.clone(), view };
        if let Some(unseen) = cluster.unseen(ctx) {
            return Health::Unknown(why_unseen(&unseen, &key));
        }
        let view = cluster.view;
        let machines = ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, &key);
        let seen = HealthSeen {
            objects: self.objects(ctx),
            machines: machines.iter().map(|machine| machine_seen(machine)).collect(),
            nodes: view.nodes.list().iter().map(|node| node.view.clone()).collect(),
            static_pods: view
                .static_pods
                .list()
                .iter()
                .filter_map(|pod| pod.view.clone())
                .collect(),
        };
        Health::of(&seen, &self.upgrade.spec.ignored_checks)
    }

    /// The Cluster and the owners of its Machines, with their conditions.
    fn objects(&self, ctx: &Context) -> Vec<(String, Vec<Condition>)> {
        let cluster = self.cluster.iter().map(|cluster| {
            let shown = cluster.status.as_ref().map(|status| status.conditions.clone());
            (format!("Cluster {}", cluster.name_any()), shown.unwrap_or_default())
        });
        let owners = self.groups.iter().filter_map(|(group, _)| {
            let owner = &group.spec.owner;
            let live = LiveOwner::of(&ctx.stores, group)?;
            Some((format!("{} {}", owner.kind, owner.name), live.conditions().to_vec()))
        });
        cluster.chain(owners).collect()
    }

    /// Brings the caches up to the present with what an upgrade begins on.
    pub(super) async fn read_live(&self, ctx: &Context) -> Result<(), ReadError> {
        let key = self.key();
        read_object(ctx, &ctx.stores.cluster_upgrades, &key).await?;
        read_object(ctx, &ctx.stores.clusters, &key).await?;
        for (group, _) in &self.groups {
            LiveOwner::read(ctx, group).await?;
        }
        let Some(view) = ctx.workload_index.view(&key) else { return Ok(()) };
        let cluster = WorkloadCluster { key, view };
        let read = read_cluster(ctx, &cluster).await;
        if let Err(ReadError::Workload(request)) = &read
            && is_silence(&request.error)
        {
            cluster.view.mark_unreachable();
        }
        read
    }
}

fn why_unseen(unseen: &Workload, cluster: &ObjectKey) -> String {
    match workload_refusal(unseen) {
        Some(refusal) => refusal.sentence(),
        None => format!("the first lists of Cluster {} are not complete", cluster.name),
    }
}

fn machine_seen(machine: &Machine) -> MachineSeen {
    MachineSeen {
        name: machine.name_any(),
        node: node_name(machine),
        is_control_plane: machine.labels().contains_key(keys::CONTROL_PLANE),
        deleting: machine.metadata.deletion_timestamp.is_some(),
    }
}
