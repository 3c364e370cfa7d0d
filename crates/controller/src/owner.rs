//! The live owner of a group: its control plane, MachineDeployment or MachineSet.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource as _;
use refit_cluster_api::kinds::{
    CONTROL_PLANE_GROUP, CORE_GROUP, KubeadmControlPlane, MachineDeployment, MachineSet,
};
use refit_core::{
    change::{Level, Objects},
    group::{Limits, OwnerPacing, Pace, owner_argument, request_of},
};
use refit_kinds::{
    conditions,
    json::{annotation, text},
    keys,
    refit::{Owner, Pacing, update_group_name},
    version::StatedVersion,
};
use refit_runtime::{ObjectKey, Store, apply, foreign::ForeignObject};

use crate::{
    api_error::ReadError,
    context::{Context, Stores},
    control_planes::ForeignPlane,
    groups::Group,
    node_update::live::read_object,
};

/// The live owner of a group.
pub(crate) enum LiveOwner {
    ControlPlane(Arc<KubeadmControlPlane>),
    /// A control plane of another provider.
    Foreign(Arc<ForeignPlane>),
    Deployment(Arc<MachineDeployment>),
    Set(Arc<MachineSet>),
}

/// Names an owner of Machines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerId {
    /// API group of its kind.
    pub(crate) api_group: String,
    /// Its kind.
    pub(crate) kind: String,
    /// Its namespace and name.
    pub(crate) key: ObjectKey,
}

impl OwnerId {
    /// An owner of a kind of Cluster API's own.
    pub(crate) fn of(kind: Owner, object: &impl kube::ResourceExt) -> Self {
        let api_group = match kind {
            Owner::ControlPlane => CONTROL_PLANE_GROUP,
            Owner::Deployment | Owner::Set => CORE_GROUP,
        };
        Self::new(api_group, kind.kind(), object)
    }

    pub(crate) fn new(api_group: &str, kind: &str, object: &impl kube::ResourceExt) -> Self {
        let (api_group, kind) = (api_group.to_owned(), kind.to_owned());
        Self { api_group, kind, key: ObjectKey::of(object) }
    }

    /// The owner of a group.
    pub(crate) fn of_group(group: &Group) -> Self {
        Self {
            api_group: api_group(group).to_owned(),
            kind: group.spec.owner.kind.clone(),
            key: group.owner_key(),
        }
    }

    /// Key of its UpdateGroup, whether that exists or not.
    pub(crate) fn group_key(&self) -> ObjectKey {
        ObjectKey::new(&self.key.namespace, update_group_name(&self.kind, &self.key.name))
    }

    /// The owner as an object of whatever version is served.
    pub(crate) fn object(&self) -> ForeignObject {
        ForeignObject {
            group: self.api_group.clone(),
            version: None,
            kind: self.kind.clone(),
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
        }
    }
}

/// Whether the owner of a group may be known later: the first list of its kind is still to come.
pub(crate) fn is_awaited(stores: &Stores, group: &Group) -> bool {
    stores.foreign_planes.is_awaited(api_group(group), &group.spec.owner.kind)
}

impl LiveOwner {
    /// The owner of a group, if it is known and of a supported kind.
    pub(crate) fn of(stores: &Stores, group: &Group) -> Option<Self> {
        let key = group.owner_key();
        match Owner::of_kind(&group.spec.owner.kind) {
            Some(Owner::ControlPlane) => stores.control_planes.get(&key).map(Self::ControlPlane),
            Some(Owner::Deployment) => stores.machine_deployments.get(&key).map(Self::Deployment),
            Some(Owner::Set) => stores.machine_sets.get(&key).map(Self::Set),
            None => foreign_store(stores, group)?.get(&key).map(Self::Foreign),
        }
    }

    /// Brings the owner in the caches up to the present.
    pub(crate) async fn read(ctx: &Context, group: &Group) -> Result<(), ReadError> {
        let (stores, key) = (&ctx.stores, group.owner_key());
        match Owner::of_kind(&group.spec.owner.kind) {
            Some(Owner::ControlPlane) => read_object(ctx, &stores.control_planes, &key).await,
            Some(Owner::Deployment) => read_object(ctx, &stores.machine_deployments, &key).await,
            // The limit of a MachineSet without a MachineDeployment is fixed.
            Some(Owner::Set) => Ok(()),
            None => read_foreign(ctx, group).await,
        }
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::ControlPlane(owner) => owner.meta(),
            Self::Foreign(owner) => owner.meta(),
            Self::Deployment(owner) => owner.meta(),
            Self::Set(owner) => owner.meta(),
        }
    }

    /// uid of the owner.
    pub(crate) fn uid(&self) -> Option<String> {
        self.meta().uid.clone()
    }

    /// resourceVersion of the owner as it is known.
    pub(crate) fn resource_version(&self) -> Option<String> {
        self.meta().resource_version.clone()
    }

    /// Generation of the owner.
    pub(crate) fn generation(&self) -> Option<i64> {
        self.meta().generation
    }

    /// Whether it is being deleted.
    pub(crate) fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// Labels of the owner.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.meta().labels.clone().unwrap_or_default()
    }

    /// Annotations of the owner.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        self.meta().annotations.clone().unwrap_or_default()
    }

    /// What Cluster API shows of the owner.
    pub(crate) fn conditions(&self) -> &[Condition] {
        match self {
            Self::ControlPlane(owner) => {
                owner.status.as_ref().map_or(&[], |status| &status.conditions)
            }
            Self::Deployment(owner) => {
                owner.status.as_ref().map_or(&[], |status| &status.conditions)
            }
            // A Cluster whose control plane another provider makes is not upgraded as a whole.
            Self::Foreign(_) | Self::Set(_) => &[],
        }
    }

    /// The version in the owner's spec.
    pub(crate) fn version(&self) -> &StatedVersion {
        match self {
            Self::ControlPlane(owner) => &owner.spec.version,
            Self::Foreign(owner) => &owner.spec.version,
            Self::Deployment(owner) => &owner.spec.template.spec.version,
            Self::Set(owner) => &owner.spec.template.spec.version,
        }
    }

    /// Name of the infrastructure template in the owner's spec.
    fn template(&self) -> &str {
        match self {
            Self::ControlPlane(owner) => &owner.spec.machine_template.spec.infrastructure_ref.name,
            // The contract does not state where it is.
            Self::Foreign(_) => "",
            Self::Deployment(owner) => &owner.spec.template.spec.infrastructure_ref.name,
            Self::Set(owner) => &owner.spec.template.spec.infrastructure_ref.name,
        }
    }

    /// Whether these are objects that Cluster API computes from the owner's current spec: they have its
    /// version and come from its template.
    pub(crate) fn requests(&self, level: Level, desired: &Objects) -> bool {
        let (version, template) = match level {
            Level::Machine => (
                text(&desired.owner, "/spec/version"),
                annotation(&desired.infrastructure, keys::CLONED_FROM_NAME).unwrap_or_default(),
            ),
            Level::MachineSet => (
                text(&desired.owner, "/spec/template/spec/version"),
                text(&desired.owner, "/spec/template/spec/infrastructureRef/name"),
            ),
        };
        // Providers may leave out where an object was cloned from.
        *self.version() == StatedVersion::from(version)
            && (template.is_empty() || self.template() == template)
    }

    /// Conditions of an owner that rolls out a change by itself. A MachineSet shows no rollout, and the contract does not
    /// state one for control planes.
    pub(crate) fn rollout(&self) -> Option<&[Condition]> {
        let shown = match self {
            Self::ControlPlane(owner) => &owner.status.as_ref()?.conditions,
            Self::Deployment(owner) => {
                let waits = owner.spec.paused == Some(true) || owner.rolls_on_delete();
                owner.status.as_ref().filter(|_| !waits).map(|status| &status.conditions)?
            }
            Self::Foreign(_) | Self::Set(_) => return None,
        };
        conditions::is_true(shown, conditions::ROLLING_OUT).then_some(shown)
    }

    /// Whether Cluster API has something of the owner's spec left to roll out, or a task works on the owner. A MachineSet shows
    /// no rollout, and the contract does not state one for control planes.
    pub(crate) fn is_rolled_out(&self) -> bool {
        let shows = match self {
            Self::ControlPlane(_) | Self::Deployment(_) => true,
            Self::Foreign(_) | Self::Set(_) => false,
        };
        shows && !self.is_up_to_date() || self.annotations().contains_key(keys::TASK)
    }

    /// Whether the owner's status is of its present spec.
    pub(crate) fn has_observed(&self) -> bool {
        let observed = match self {
            Self::ControlPlane(owner) => {
                owner.status.as_ref().map(|status| status.observed_generation)
            }
            Self::Deployment(owner) => {
                owner.status.as_ref().map(|status| status.observed_generation)
            }
            Self::Set(owner) => owner.status.as_ref().map(|status| status.observed_generation),
            Self::Foreign(_) => return false,
        };
        observed.flatten() == self.generation()
    }

    /// Whether the owner's status, for its current spec, reports all of its machines as up to date.
    /// A MachineSet has no such status, and the contract does not require it of control planes.
    pub(crate) fn is_up_to_date(&self) -> bool {
        let (wanted, there, up_to_date) = match self {
            Self::ControlPlane(owner) => {
                let status = owner.status.clone().unwrap_or_default();
                (owner.spec.replicas, status.replicas, status.up_to_date_replicas)
            }
            Self::Deployment(owner) => {
                let status = owner.status.clone().unwrap_or_default();
                (owner.spec.replicas, status.replicas, status.up_to_date_replicas)
            }
            Self::Foreign(_) | Self::Set(_) => return false,
        };
        self.has_observed() && there == up_to_date && wanted.unwrap_or(1) == there.unwrap_or(0)
    }
}

/// API group of a group's owner.
fn api_group(group: &Group) -> &str {
    group.spec.owner.api_version.split_once('/').map_or("", |(of, _)| of)
}

fn foreign_store(stores: &Stores, group: &Group) -> Option<Store<ForeignPlane>> {
    stores.foreign_planes.store(api_group(group), &group.spec.owner.kind)
}

/// Brings a control plane of another provider in the caches up to the present. One that Refit may not read counts as
/// absent: no role for its kind is part of every installation.
async fn read_foreign(ctx: &Context, group: &Group) -> Result<(), ReadError> {
    let (kind, key) = (&group.spec.owner.kind, group.owner_key());
    let Some(store) = foreign_store(&ctx.stores, group) else { return Ok(()) };
    let object = OwnerId::of_group(group).object();
    let read = ctx.foreign.read(&ctx.client, &object).await;
    let read = read.and_then(|found| {
        serde_json::from_value::<ForeignPlane>(found).map_err(kube::Error::SerdeError)
    });
    match read {
        Ok(plane) => store.insert(plane),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {}
        Err(error) if apply::is_not_found(&error) => {
            if let Some(known) = store.get(&key) {
                store.remove(&known);
            }
        }
        Err(error) => return Err(ReadError::management(format!("a read of {kind} {key}"))(error)),
    }
    Ok(())
}

/// What a group's pacing is decided on: the pacing of its UpdateGroup, and the annotations of its owner.
pub(crate) fn pace_of(stores: &Stores, group: &Group, pacing: &Pacing) -> Pace {
    let owner = LiveOwner::of(stores, group);
    let annotations = owner.as_ref().map(LiveOwner::annotations).unwrap_or_default();
    let annotated = OwnerPacing::of(&annotations);
    let request = owner.as_ref().map(|owner| request_of(owner.version(), owner.template()));
    Pace {
        pacing: annotated.with(pacing),
        owner: owner_argument(&group.spec.owner),
        owner_generation: owner.as_ref().and_then(LiveOwner::generation),
        request: request.unwrap_or_default(),
    }
}

/// How many machines of a group may be down, from its owner's spec. `present` replaces the replicas
/// of an unknown owner.
pub(crate) fn limits_of(stores: &Stores, group: &Group, present: impl FnOnce() -> usize) -> Limits {
    let present = || i32::try_from(present()).unwrap_or(i32::MAX);
    let key = group.owner_key();
    match group.spec.owner.owner() {
        Owner::ControlPlane => {
            let replicas = match LiveOwner::of(stores, group) {
                Some(LiveOwner::ControlPlane(owner)) => owner.spec.replicas,
                Some(LiveOwner::Foreign(owner)) => owner.spec.replicas,
                Some(LiveOwner::Deployment(_) | LiveOwner::Set(_)) | None => None,
            };
            Limits::control_plane(replicas.unwrap_or_else(present))
        }
        Owner::Deployment => {
            let owner = stores.machine_deployments.get(&key);
            let replicas = owner.as_ref().and_then(|owner| owner.spec.replicas);
            let replicas = replicas.unwrap_or_else(present);
            // A task works instead of Cluster API.
            let is_paused = |owner: &MachineDeployment| {
                let annotations = owner.metadata.annotations.as_ref();
                annotations.is_some_and(|all| all.contains_key(keys::TASK))
            };
            let max_unavailable =
                owner.as_ref().map_or(0, |owner| owner.max_unavailable(replicas.into()));
            let max_unavailable = i32::try_from(max_unavailable).unwrap_or(i32::MAX);
            let limits = Limits { replicas, max_unavailable };
            if owner.is_some_and(|owner| is_paused(&owner)) {
                limits.without_surge()
            } else {
                limits
            }
        }
        Owner::Set => {
            let replicas = stores.machine_sets.get(&key).and_then(|owner| owner.spec.replicas);
            Limits { replicas: replicas.unwrap_or_else(present), max_unavailable: 1 }
        }
    }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{GroupOwner, UpdateGroupSpec};
    use refit_runtime::ObjectKey;
    use serde_json::json;

    use super::*;

    fn group(kind: &str) -> Group {
        Group {
            key: ObjectKey::new("default", format!("{}-g", kind.to_lowercase())),
            spec: UpdateGroupSpec {
                cluster_name: "edge-1".into(),
                owner: GroupOwner { api_version: "v1".into(), kind: kind.into(), name: "g".into() },
                control_plane: kind == "KubeadmControlPlane",
                pacing: Pacing::default(),
            },
        }
    }

    fn deployment(replicas: i32, max: &serde_json::Value) -> Stores {
        let stores = Stores::default();
        let object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment",
            "metadata": {"namespace": "default", "name": "g"},
            "spec": {
                "clusterName": "edge-1",
                "replicas": replicas,
                "selector": {},
                "template": {"spec": {"clusterName": "edge-1", "version": "v1.35.0"}},
                "rollout": {"strategy": {"rollingUpdate": {"maxUnavailable": max}}},
            },
        });
        stores.machine_deployments.insert(serde_json::from_value(object).unwrap());
        stores
    }

    #[test]
    fn a_percentage_of_unavailable_machines_is_rounded_down() {
        let group = group("MachineDeployment");
        let slots = |replicas, max| limits_of(&deployment(replicas, &max), &group, || 0).slots();
        assert_eq!(slots(10, json!("25%")), 2);
        assert_eq!(slots(3, json!("25%")), 1);
        assert_eq!(slots(5, json!(3)), 3);
        assert_eq!(slots(5, json!(0)), 1);
    }

    #[test]
    fn the_status_of_the_current_spec_decides_if_an_owner_is_up_to_date() {
        let up_to_date_with = |observed: i64, there: i32, up_to_date: i32| {
            let stores = deployment(3, &json!(1));
            let key = ObjectKey::new("default", "g");
            let mut owner = stores.machine_deployments.get(&key).unwrap().as_ref().clone();
            owner.metadata.generation = Some(2);
            owner.status = Some(
                serde_json::from_value(json!({
                    "observedGeneration": observed, "replicas": there,
                    "upToDateReplicas": up_to_date,
                }))
                .unwrap(),
            );
            stores.machine_deployments.insert(owner);
            LiveOwner::of(&stores, &group("MachineDeployment")).unwrap().is_up_to_date()
        };
        assert!(up_to_date_with(2, 3, 3));
        assert!(!up_to_date_with(1, 3, 3));
        assert!(!up_to_date_with(2, 3, 2));
        assert!(!up_to_date_with(2, 2, 2));
    }

    #[test]
    fn a_control_plane_has_one_slot_whatever_its_size() {
        let limits = limits_of(&Stores::default(), &group("KubeadmControlPlane"), || 5);
        assert_eq!((limits.slots(), limits.others_needed()), (1, 4));
    }

    #[test]
    fn the_owners_version_is_that_of_its_template() {
        let stores = deployment(1, &json!(1));
        let owner = |kind| LiveOwner::of(&stores, &group(kind));
        assert_eq!(owner("MachineDeployment").unwrap().version(), &"v1.35.0".into());
        assert!(owner("MachineSet").is_none());
    }
}
