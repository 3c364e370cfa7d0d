//! The indexes of the caches: what an event or a reconcile looks up must not cost a scan.

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, MachineDeployment, MachineSet};
use refit_kinds::{
    keys,
    refit::{ClusterUpgrade, NodeUpdate, Owner, UpdateGroup, UpgradeTask, update_group_name},
};
use refit_runtime::{ObjectKey, Store, store::Index};

use crate::{
    context::Stores,
    control_planes::ForeignPlanes,
    groups::{controller_of, group_of_set, machine_key},
    host_plan::{cluster_key, node_name},
};

/// Machines by the object that controls them: see [`owner_index_key`].
pub(crate) const MACHINES_BY_OWNER: Index<Machine> = Index {
    name: "owner",
    keys: |machine| {
        let namespace = machine.namespace().unwrap_or_default();
        let owner = controller_of(machine.owner_references());
        owner
            .map(|owner| owner_index_key(&namespace, &owner.kind, &owner.name))
            .into_iter()
            .collect()
    },
};

/// Machines by their Cluster.
pub(crate) const MACHINES_BY_CLUSTER: Index<Machine> =
    Index { name: "cluster", keys: |machine| vec![cluster_key(machine)] };

/// Control plane Machines by their Cluster.
pub(crate) const CONTROL_PLANE_BY_CLUSTER: Index<Machine> = Index {
    name: "control-plane",
    keys: |machine| {
        let member = machine.labels().contains_key(keys::CONTROL_PLANE);
        member.then(|| cluster_key(machine)).into_iter().collect()
    },
};

/// Machines by their Node: see [`node_index_key`].
pub(crate) const MACHINES_BY_NODE: Index<Machine> = Index {
    name: "node",
    keys: |machine| {
        let node = node_name(machine);
        node.map(|node| node_index_key(&cluster_key(machine), &node)).into_iter().collect()
    },
};

/// MachineDeployments by their Cluster.
pub(crate) const DEPLOYMENTS_BY_CLUSTER: Index<MachineDeployment> = Index {
    name: "cluster",
    keys: |deployment| {
        let namespace = deployment.namespace().unwrap_or_default();
        vec![ObjectKey::new(namespace, &deployment.spec.cluster_name)]
    },
};

/// MachineSets by the UpdateGroup of their Machines: that of their MachineDeployment, or their own.
pub(crate) const SETS_BY_GROUP: Index<MachineSet> =
    Index { name: "group", keys: |set| vec![group_of_set(set).key] };

/// NodeUpdates by the name of their Machine, with any uid.
pub(crate) const UPDATES_BY_MACHINE: Index<NodeUpdate> =
    Index { name: "machine", keys: |update| vec![machine_key(update)] };

/// NodeUpdates by the uid of their Machine.
pub(crate) const UPDATES_BY_MACHINE_UID: Index<NodeUpdate> = Index {
    name: "machine-uid",
    keys: |update| {
        let namespace = update.namespace().unwrap_or_default();
        vec![ObjectKey::new(namespace, &*update.spec.machine_ref.uid)]
    },
};

/// UpdateGroups by their Cluster.
pub(crate) const GROUPS_BY_CLUSTER: Index<UpdateGroup> = Index {
    name: "cluster",
    keys: |group| {
        let namespace = group.namespace().unwrap_or_default();
        vec![ObjectKey::new(namespace, &group.spec.cluster_name)]
    },
};

/// UpgradeTasks by the UpdateGroup of their owner.
pub(crate) const TASKS_BY_GROUP: Index<UpgradeTask> = Index {
    name: "group",
    keys: |task| {
        let namespace = task.namespace().unwrap_or_default();
        let owner = task.spec.owner_ref.as_ref();
        owner
            .map(|owner| owner_index_key(&namespace, &owner.kind, &owner.name))
            .into_iter()
            .collect()
    },
};

/// UpgradeTasks by their Cluster.
pub(crate) const TASKS_BY_CLUSTER: Index<UpgradeTask> = Index {
    name: "cluster",
    keys: |task| {
        let namespace = task.namespace().unwrap_or_default();
        vec![ObjectKey::new(namespace, &task.spec.cluster_ref.name)]
    },
};

/// ClusterUpgrades by the ClusterUpgradePlan that has requested them.
pub(crate) const UPGRADES_BY_PLAN: Index<ClusterUpgrade> = Index {
    name: "plan",
    keys: |upgrade| {
        let plan = upgrade.labels().get(keys::PLAN);
        plan.map(|plan| ObjectKey::new("", plan)).into_iter().collect()
    },
};

/// The key of [`MACHINES_BY_OWNER`]. For a control plane it is the key of its UpdateGroup, too.
pub(crate) fn owner_index_key(namespace: &str, kind: &str, name: &str) -> ObjectKey {
    ObjectKey::new(namespace, update_group_name(kind, name))
}

/// The key of [`MACHINES_BY_OWNER`] for the Machines of a MachineSet.
pub(crate) fn set_index_key(set: &ObjectKey) -> ObjectKey {
    owner_index_key(&set.namespace, Owner::Set.kind(), &set.name)
}

/// The key of [`MACHINES_BY_NODE`].
pub(crate) fn node_index_key(cluster: &ObjectKey, node: &str) -> ObjectKey {
    // No name contains a slash.
    ObjectKey::new(&cluster.namespace, format!("{}/{node}", cluster.name))
}

impl Default for Stores {
    fn default() -> Self {
        Self {
            machines: Store::indexed(&[
                MACHINES_BY_OWNER,
                MACHINES_BY_CLUSTER,
                CONTROL_PLANE_BY_CLUSTER,
                MACHINES_BY_NODE,
            ]),
            machine_sets: Store::indexed(&[SETS_BY_GROUP]),
            machine_deployments: Store::indexed(&[DEPLOYMENTS_BY_CLUSTER]),
            control_planes: Store::default(),
            foreign_planes: ForeignPlanes::default(),
            clusters: Store::default(),
            namespaces: Store::default(),
            node_updates: Store::indexed(&[UPDATES_BY_MACHINE, UPDATES_BY_MACHINE_UID]),
            update_groups: Store::indexed(&[GROUPS_BY_CLUSTER]),
            host_settings: Store::default(),
            disruption_policies: Store::default(),
            replacement_holds: Store::default(),
            updaters: Store::default(),
            upgrade_tasks: Store::indexed(&[TASKS_BY_GROUP, TASKS_BY_CLUSTER]),
            cluster_upgrades: Store::indexed(&[UPGRADES_BY_PLAN]),
            cluster_upgrade_plans: Store::default(),
            drain_rules: Store::default(),
            host_plans: Store::default(),
        }
    }
}
