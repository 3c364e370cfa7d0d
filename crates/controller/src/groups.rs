//! The group of a Machine, and the keys that a change wakes.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::{CONTROL_PLANE_GROUP, CORE_GROUP, Cluster, Machine, MachineSet};
use refit_kinds::{
    keys,
    refit::{
        GroupOwner, NodeUpdate, Owner, Pacing, UpdateGroup, UpdateGroupSpec, update_group_name,
    },
};
use refit_runtime::{ObjectKey, apply};

use crate::{
    context::{Context, Stores},
    indexes::{
        CONTROL_PLANE_BY_CLUSTER, MACHINES_BY_OWNER, SETS_BY_GROUP, UPDATES_BY_MACHINE,
        set_index_key,
    },
    owner::{LiveOwner, limits_of},
};

/// A group: the key and the spec of its UpdateGroup, whether it exists yet or not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// Key of the UpdateGroup.
    pub(crate) key: ObjectKey,
    /// Spec of the UpdateGroup.
    pub(crate) spec: UpdateGroupSpec,
}

impl Group {
    pub(crate) fn of(
        namespace: &str,
        cluster: &str,
        owner: GroupOwner,
        control_plane: bool,
    ) -> Self {
        Self {
            key: ObjectKey::new(namespace, update_group_name(&owner.kind, &owner.name)),
            spec: UpdateGroupSpec {
                cluster_name: cluster.to_owned(),
                owner,
                control_plane,
                pacing: Pacing::default(),
            },
        }
    }

    /// Key of the owner: the control plane, MachineDeployment or MachineSet.
    pub(crate) fn owner_key(&self) -> ObjectKey {
        ObjectKey::new(&self.key.namespace, &self.spec.owner.name)
    }

    /// Key of the Cluster.
    pub(crate) fn cluster_key(&self) -> ObjectKey {
        ObjectKey::new(&self.key.namespace, &self.spec.cluster_name)
    }
}

/// The group of a Machine; `None` for a Machine without a known owner.
pub(crate) fn group_of(stores: &Stores, machine: &Machine) -> Option<Group> {
    let namespace = machine.namespace().unwrap_or_default();
    let owner = controller_of(machine.owner_references())?;
    let group = group_of_api_version(&owner.api_version);
    if is_of_control_plane(machine, group) {
        Some(Group::of(&namespace, &machine.spec.cluster_name, group_owner(owner), true))
    } else if group == CORE_GROUP && owner.kind == Owner::Set.kind() {
        let key = ObjectKey::new(&namespace, &owner.name);
        // Without the MachineSet its MachineDeployment is unknown, and a guess would split the
        // group.
        stores.machine_sets.get(&key).map(|set| group_of_set(&set))
    } else {
        None
    }
}

/// Whether a control plane controls a Machine: by the label that Cluster API's contract requires, whatever the kind of
/// the control plane is. `owner` is the API group of the Machine's controller.
fn is_of_control_plane(machine: &Machine, owner: &str) -> bool {
    owner == CONTROL_PLANE_GROUP
        || owner != CORE_GROUP && machine.labels().contains_key(keys::CONTROL_PLANE)
}

/// The group of a MachineSet: its MachineDeployment's, or its own.
pub(crate) fn group_of_set(set: &MachineSet) -> Group {
    let namespace = set.namespace().unwrap_or_default();
    let owner = match controller_of(set.owner_references()) {
        Some(owner) if owner.kind == Owner::Deployment.kind() => group_owner(owner),
        _ => GroupOwner {
            api_version: format!("{CORE_GROUP}/v1beta2"),
            kind: Owner::Set.kind().to_owned(),
            name: set.name_any(),
        },
    };
    Group::of(&namespace, &set.spec.cluster_name, owner, false)
}

/// The group of the control plane that a Cluster refers to.
pub(crate) fn control_plane_group(cluster: &Cluster) -> Option<Group> {
    let reference = cluster.spec.control_plane_ref.as_ref()?;
    let owner = GroupOwner {
        api_version: format!("{}/v1beta2", reference.api_group),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
    };
    let namespace = cluster.namespace().unwrap_or_default();
    Some(Group::of(&namespace, &cluster.name_any(), owner, true))
}

/// The UpdateGroup of a group: the existing one, or a new one. Its name follows from the owner, so
/// that every replica may create it.
pub(crate) async fn ensure_group(ctx: &Context, group: &Group) -> kube::Result<UpdateGroup> {
    if let Some(found) = ctx.stores.update_groups.get(&group.key) {
        return Ok(found.as_ref().clone());
    }
    let mut spec = group.spec.clone();
    spec.owner.api_version = ctx.served.api_version(&spec.owner.api_version, &spec.owner.kind);
    let mut object = UpdateGroup::new(&group.key.name, spec);
    object.metadata.namespace = Some(group.key.namespace.clone());
    object.metadata.labels =
        Some(BTreeMap::from([(keys::CLUSTER_NAME.to_owned(), group.spec.cluster_name.clone())]));
    object.metadata.owner_references = owner_reference(&ctx.stores, group).map(|owner| vec![owner]);
    let api: Api<UpdateGroup> = Api::namespaced(ctx.client.clone(), &group.key.namespace);
    let (found, _) = apply::create_or_get(&api, &object).await?;
    ctx.stores.update_groups.insert(found.clone());
    Ok(found)
}

/// The owner of a group as a reference, if it is known.
pub(crate) fn owner_reference(stores: &Stores, group: &Group) -> Option<OwnerReference> {
    let uid = LiveOwner::of(stores, group)?.uid()?;
    Some(OwnerReference {
        api_version: group.spec.owner.api_version.clone(),
        kind: group.spec.owner.kind.clone(),
        name: group.spec.owner.name.clone(),
        uid,
        controller: None,
        block_owner_deletion: Some(false),
    })
}

/// The owner of a group as the object of an event.
pub(crate) fn owner_object(stores: &Stores, group: &Group) -> ObjectReference {
    let owner = &group.spec.owner;
    ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: Some(group.key.namespace.clone()),
        uid: owner_reference(stores, group).map(|owner| owner.uid),
        ..ObjectReference::default()
    }
}

/// The generation of a group's owner, if it is known.
pub(crate) fn owner_generation(stores: &Stores, group: &Group) -> Option<i64> {
    LiveOwner::of(stores, group)?.generation()
}

/// The Machines of a group, in order of their names.
pub(crate) fn machines_of(stores: &Stores, group: &ObjectKey) -> Vec<Arc<Machine>> {
    let sets = stores.machine_sets.listed(&SETS_BY_GROUP, group);
    let sets = sets.iter().map(|set| (set_index_key(&ObjectKey::of(set.as_ref())), true));
    // A group of machines of several owners is rare, and the index returns them in order of their names.
    let mut machines: Vec<Arc<Machine>> = Vec::new();
    for (owner, is_set) in sets.chain([(group.clone(), false)]) {
        let controlled = stores.machines.listed(&MACHINES_BY_OWNER, &owner);
        let in_order = machines.is_empty() || controlled.is_empty();
        machines.extend(controlled.into_iter().filter(|machine| {
            controller_of(machine.owner_references()).is_some_and(|owner| {
                let of = group_of_api_version(&owner.api_version);
                if is_set { of == CORE_GROUP } else { is_of_control_plane(machine, of) }
            })
        }));
        if !in_order {
            machines.sort_by_cached_key(|machine| machine.name_any());
        }
    }
    machines
}

/// Whether a group has fewer Machines than its owner asks for; Machines that are being deleted count.
pub(crate) fn lacks_machines(stores: &Stores, group: &Group) -> bool {
    let present = machines_of(stores, &group.key).len();
    limits_of(stores, group, || present).lacks(present)
}

/// Whether a MachineSet creates Machines that it lacks.
pub(crate) fn creates_machines(set: &MachineSet) -> bool {
    set.annotations().get(keys::DISABLE_MACHINE_CREATE).is_none_or(|value| value != "true")
}

/// How many Machines the MachineSets of a group still create; Machines that are being deleted count as present.
pub(crate) fn still_created(stores: &Stores, group: &ObjectKey) -> usize {
    let sets = stores.machine_sets.listed(&SETS_BY_GROUP, group);
    let lacking = sets.iter().filter(|set| creates_machines(set)).map(|set| {
        let replicas = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or_default();
        let machines = machines_of_set(stores, &ObjectKey::of(set.as_ref()));
        replicas.saturating_sub(machines.len())
    });
    lacking.sum()
}

/// The Machines of a MachineSet, in order of their names.
pub(crate) fn machines_of_set(stores: &Stores, set: &ObjectKey) -> Vec<Arc<Machine>> {
    stores.machines.listed(&MACHINES_BY_OWNER, &set_index_key(set))
}

/// The control plane Machines of a Cluster, in order of their names.
pub(crate) fn control_plane_of(stores: &Stores, cluster: &ObjectKey) -> Vec<Arc<Machine>> {
    stores.machines.listed(&CONTROL_PLANE_BY_CLUSTER, cluster)
}

/// The NodeUpdates that refer to a Machine of this name, with any uid.
pub(crate) fn node_updates_of_machine(
    stores: &Stores,
    machine: &ObjectKey,
) -> Vec<Arc<NodeUpdate>> {
    stores.node_updates.listed(&UPDATES_BY_MACHINE, machine)
}

/// The NodeUpdates of each of these Machines, in their order.
pub(crate) fn node_updates_of(
    stores: &Stores,
    machines: &[Arc<Machine>],
) -> Vec<Vec<Arc<NodeUpdate>>> {
    let key = |machine: &Arc<Machine>| ObjectKey::of(machine.as_ref());
    machines.iter().map(|machine| node_updates_of_machine(stores, &key(machine))).collect()
}

/// Keys of the unfinished NodeUpdates of a group's Machines.
pub(crate) fn unfinished_of_group(stores: &Stores, group: &ObjectKey) -> Vec<ObjectKey> {
    node_updates_of(stores, &machines_of(stores, group))
        .into_iter()
        .flatten()
        .filter(|update| !update.phase().is_final())
        .map(|update| ObjectKey::of(update.as_ref()))
        .collect()
}

/// Keys of the unfinished NodeUpdates of a namespace.
pub(crate) fn unfinished_in(stores: &Stores, namespace: &str) -> Vec<ObjectKey> {
    let updates = stores.node_updates.list_in(namespace).into_iter();
    updates
        .filter(|update| !update.phase().is_final())
        .map(|update| ObjectKey::of(update.as_ref()))
        .collect()
}

/// The key of a NodeUpdate's Machine.
pub(crate) fn machine_key(update: &NodeUpdate) -> ObjectKey {
    ObjectKey::new(update.namespace().unwrap_or_default(), &update.spec.machine_ref.name)
}

/// The group of a NodeUpdate's Machine.
pub(crate) fn group_of_update(stores: &Stores, update: &NodeUpdate) -> Option<Group> {
    group_of(stores, stores.machines.get(&machine_key(update))?.as_ref())
}

/// The owner that controls an object.
pub(crate) fn controller_of(owners: &[OwnerReference]) -> Option<&OwnerReference> {
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// The group in `group/version`.
fn group_of_api_version(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn group_owner(owner: &OwnerReference) -> GroupOwner {
    GroupOwner {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
    }
}
