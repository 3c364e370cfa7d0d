//! What a ClusterUpgrade is decided on.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::join_all;
use kube::ResourceExt as _;
use refit_core::{
    managed::{
        capacity::CapacitySeen,
        cluster::{Known, MachineVersions, Returning},
        graph::GraphRead,
        health::{Health, HealthSeen},
    },
    task::{
        GroupNow, GroupVersion,
        roll_back::{WorkersSeen, version_before},
    },
};
use refit_kinds::{
    keys,
    refit::{ClusterUpgrade, Stage},
};
use refit_runtime::ObjectKey;

use super::capacity;
use crate::{
    api_error::ReadError,
    cluster_health,
    context::Context,
    groups::{Group, machines_of, node_updates_of},
    indexes::{DEPLOYMENTS_BY_CLUSTER, TASKS_BY_CLUSTER},
    node_update::{
        live::{list_deployments, list_machines, read_object},
        look::WorkloadCluster,
    },
    owner::LiveOwner,
    upgrade_task::{
        cluster::{groups_now, is_extra},
        obstacle,
    },
};

/// What must be read live before a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// What shows whether the Cluster is healthy: not for what only removes extra Machines, which must not wait for a
    /// connection to the workload cluster.
    pub(super) health: bool,
    /// What could have extra Machines, and the Machines.
    pub(super) capacity: bool,
}

impl Needs {
    /// Whether more is needed than was read.
    pub(super) fn exceed(self, read: Option<Self>) -> bool {
        let read = read.unwrap_or(Self { health: false, capacity: false });
        self.health && !read.health || self.capacity && !read.capacity
    }
}

/// A ClusterUpgrade, and the objects that it is decided on.
pub(super) struct Look {
    upgrade: Arc<ClusterUpgrade>,
    groups: Vec<(Group, GroupNow)>,
}

impl Look {
    /// Reads the caches; `None` without the ClusterUpgrade.
    pub(super) fn read(ctx: &Context, key: &ObjectKey) -> Option<Self> {
        let upgrade = ctx.stores.cluster_upgrades.get(key)?;
        let cluster = ctx.stores.clusters.get(key);
        let groups = cluster.as_ref().map_or_else(Vec::new, |cluster| groups_now(ctx, cluster));
        Some(Self { upgrade, groups })
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
        let health = cluster_health::seen(ctx, &self.key());
        let known = Known {
            upgrade: self.upgrade.clone(),
            obstacle: obstacle::of_whole_cluster(ctx, &self.key()),
            control_plane: of(true).next(),
            workers,
            returning: self.returning(ctx),
            machines: self.machines(ctx),
            tasks: ctx.stores.upgrade_tasks.listed(&TASKS_BY_CLUSTER, &self.key()),
            health: self.health(&health),
            capacity: CapacitySeen::default(),
            graph: GraphRead::NotConfigured,
            hindrance: None,
            silenced: Vec::new(),
            receivers: ctx.settings.receivers(),
            now: ctx.clock.now_seconds(),
        };
        if !known.asks_for_capacity() {
            return known;
        }
        Known { capacity: capacity::seen(ctx, &self.key(), &health), ..known }
    }

    /// The version that the workers of each MachineDeployment return to, where that is requested.
    fn returning(&self, ctx: &Context) -> Vec<Returning> {
        let spec = &self.upgrade.spec;
        let is_requested = spec.roll_back_workers && spec.stage == Stage::Abort;
        let cluster = ctx.stores.clusters.get(&self.key()).filter(|_| is_requested);
        let history = self.upgrade.status.as_ref().and_then(|status| status.history.first());
        let since = history.and_then(|record| record.start_time.as_ref());
        let (Some(cluster), Some(since)) = (cluster, since) else { return Vec::new() };
        let mut planes = self.groups.iter().filter(|(group, _)| group.spec.control_plane);
        let control_plane = planes.next().map(|(_, now)| &now.at.highest);
        let workers = self.groups.iter().filter(|(group, _)| !group.spec.control_plane);
        let returning = workers.filter_map(|(group, _)| {
            let owner = LiveOwner::of(&ctx.stores, group)?;
            let mut machines = machines_of(&ctx.stores, &group.key);
            // They were not upgraded.
            machines.retain(|machine| !is_extra(machine.as_ref()));
            let updates = node_updates_of(&ctx.stores, &machines).concat();
            let to = version_before(&WorkersSeen {
                name: &group.spec.owner.name,
                requested: owner.version(),
                machines: machines.iter().map(AsRef::as_ref).collect(),
                updates: updates.iter().map(AsRef::as_ref).collect(),
                cluster: &cluster,
                control_plane,
                since: since.0,
            });
            let to = to.map_err(|why| why.to_string());
            Some(Returning { owner: group.spec.owner.clone(), to })
        });
        returning.collect()
    }

    /// The versions of the Machines, where an upgrade has silences.
    fn machines(&self, ctx: &Context) -> MachineVersions {
        let mut machines = MachineVersions::default();
        if self.upgrade.spec.silences.is_empty() {
            return machines;
        }
        for (group, _) in &self.groups {
            let of_part = if group.spec.control_plane {
                &mut machines.control_plane
            } else {
                &mut machines.workers
            };
            let mut members = machines_of(&ctx.stores, &group.key);
            members.retain(|machine| !is_extra(machine.as_ref()));
            of_part.extend(members.iter().filter_map(|one| one.spec.version.version().cloned()));
        }
        machines
    }

    /// The same with what other servers know, as far as it matters. For what is decided for good, they are asked now.
    pub(super) async fn with_servers(&self, ctx: &Context, known: Known, now: bool) -> Known {
        let graph = match (known.asks_for_graph(), now) {
            (true, true) => ctx.version_graphs.read(ctx).await,
            (true, false) => ctx.version_graphs.recent(ctx).await,
            (false, _) => GraphRead::NotConfigured,
        };
        self.with_gates(ctx, Known { graph, ..known }, now).await
    }

    /// The same with the gates of the groups.
    async fn with_gates(&self, ctx: &Context, known: Known, now: bool) -> Known {
        let key = self.key();
        let has_gates = |(group, _): &&(Group, GroupNow)| {
            let object = ctx.stores.update_groups.get(&group.key);
            object.is_some_and(|object| !object.spec.pacing.gates.is_empty())
        };
        let gated: Vec<_> = self.groups.iter().filter(has_gates).collect();
        let Some(view) = ctx.workload_index.view(&key) else { return known };
        if gated.is_empty() || !now && !known.asks_for_gates() {
            return known;
        }
        let cluster = &WorkloadCluster { key, view };
        let found = join_all(gated.into_iter().map(|(group, _)| async move {
            if now {
                ctx.gates.check(ctx, &group.key, cluster).await
            } else {
                ctx.gates.recent(ctx, &group.key, cluster).await
            }
        }));
        let closed = Box::pin(found).await.iter().flat_map(|read| read.closed.clone()).collect();
        Known { health: known.health.clone().with_gates(closed), ..known }
    }

    fn health(&self, seen: &Result<HealthSeen, String>) -> Health {
        match seen {
            Ok(seen) => Health::of(seen, &self.upgrade.spec.ignored_checks),
            Err(why) => Health::Unknown(why.clone()),
        }
    }

    /// Reads the tasks that have paused a MachineDeployment of the Cluster.
    async fn read_pausing_tasks(&self, ctx: &Context) -> Result<(), ReadError> {
        let key = self.key();
        let deployments = ctx.stores.machine_deployments.listed(&DEPLOYMENTS_BY_CLUSTER, &key);
        let tasks: BTreeSet<ObjectKey> = deployments
            .iter()
            .filter_map(|one| one.annotations().get(keys::TASK))
            .map(|task| ObjectKey::new(&key.namespace, task))
            .collect();
        for task in &tasks {
            read_object(ctx, &ctx.stores.upgrade_tasks, task).await?;
        }
        Ok(())
    }

    /// Brings the caches up to the present with what a decision rests on.
    pub(super) async fn read_live(&self, ctx: &Context, needs: Needs) -> Result<(), ReadError> {
        let key = self.key();
        read_object(ctx, &ctx.stores.cluster_upgrades, &key).await?;
        if needs.capacity {
            list_deployments(ctx, &key).await?;
            self.read_pausing_tasks(ctx).await?;
        }
        if let Some(view) = ctx.workload_index.view(&key).filter(|_| needs.health) {
            return cluster_health::read(ctx, &WorkloadCluster { key, view }).await;
        }
        read_object(ctx, &ctx.stores.clusters, &key).await?;
        if needs.capacity { list_machines(ctx, &key).await } else { Ok(()) }
    }
}
