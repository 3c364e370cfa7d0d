//! Policies in annotations of the live Machine, owner and Cluster, and the HostSettings that apply.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_core::{
    change::{
        ConfigurationRules, NotReady, Policy, PolicyDefaults, can_update::ConfigurationKnown,
        policy,
    },
    group::OwnerPacing,
    node::{
        DrainChoice, NodePolicies, SettingsSources, applying_settings, drain_policy,
        node_disruption_policy,
    },
    report::Refusal,
};
use refit_kinds::refit::{HostSettings, NodeDisruptionPolicySpec, PlanSettings};
use refit_runtime::ObjectKey;

use crate::{
    Settings,
    context::Context,
    groups::{Group, group_of},
    host_plan::cluster_key,
    owner::LiveOwner,
};

/// The policy in the annotations of the live owner or Cluster, or else the controller's default.
pub(crate) fn live_policy(ctx: &Context, group: &Group) -> Result<Policy, NotReady> {
    let owner = owner_annotations(ctx, group)?;
    let key = ObjectKey::new(&group.key.namespace, &group.spec.cluster_name);
    let cluster = ctx.stores.clusters.get(&key).ok_or_else(|| unknown("Cluster", &key))?;
    let Settings { on_uncovered, host_lost_after, .. } = ctx.settings;
    let default = PolicyDefaults { on_uncovered, host_lost_after };
    let mut policy = policy(&owner, cluster.annotations(), default);
    let drain = drain_policy(&[&owner, cluster.annotations()], &ctx.settings.drain);
    policy.not_understood =
        policy.not_understood.or_else(|| drain.not_understood.into_iter().next());
    policy.not_understood =
        policy.not_understood.or_else(|| OwnerPacing::of(&owner).not_understood);
    Ok(policy)
}

/// The drain policy in the annotations of the live Machine, its owner or its Cluster, or else the
/// controller's default.
pub(crate) fn live_drain_policy(ctx: &Context, machine: &Machine) -> DrainChoice {
    let group = group_of(&ctx.stores, machine);
    let owner = group.and_then(|group| owner_annotations(ctx, &group).ok());
    let cluster = ctx.stores.clusters.get(&cluster_key(machine));
    let none = BTreeMap::new();
    let sources = [
        machine.annotations(),
        owner.as_ref().unwrap_or(&none),
        cluster.as_deref().map_or(&none, |c| c.annotations()),
    ];
    drain_policy(&sources, &ctx.settings.drain)
}

/// The value of an annotation of the Machine, else of its owner, else of its Cluster.
pub(crate) fn first_annotation(ctx: &Context, machine: &Machine, key: &str) -> Option<String> {
    let of_owner = || {
        let group = group_of(&ctx.stores, machine)?;
        LiveOwner::of(&ctx.stores, &group)?.annotations().get(key).cloned()
    };
    let of_cluster =
        || ctx.stores.clusters.get(&cluster_key(machine))?.annotations().get(key).cloned();
    machine.annotations().get(key).cloned().or_else(of_owner).or_else(of_cluster)
}

/// The settings of the most specific HostSettings that applies to a Machine of this group.
pub(crate) fn live_host_settings(
    ctx: &Context,
    machine: &Machine,
    group: &Group,
) -> Result<PlanSettings, Refusal> {
    let own = (format!("Machine {}", machine.name_any()), machine.annotations());
    let object = applying(ctx, group, Some(own))?;
    Ok(object.map(|object| object.spec.settings.clone()).unwrap_or_default())
}

/// The most specific HostSettings that applies to the Machines of a group.
pub(crate) fn settings_of_group(
    ctx: &Context,
    group: &Group,
) -> Result<Option<Arc<HostSettings>>, Refusal> {
    applying(ctx, group, None)
}

fn applying(
    ctx: &Context,
    group: &Group,
    machine: Option<(String, &BTreeMap<String, String>)>,
) -> Result<Option<Arc<HostSettings>>, Refusal> {
    let (stores, owner) = (&ctx.stores, &group.spec.owner);
    let key = group.cluster_key();
    let cluster = stores.clusters.get(&key);
    let of_owner = owner_annotations(ctx, group).unwrap_or_default();
    let none = BTreeMap::new();
    let of_cluster = cluster.as_deref().map_or(&none, |cluster| cluster.annotations());
    let others = [
        (format!("{} {}", owner.kind, owner.name), &of_owner),
        (format!("Cluster {}", key.name), of_cluster),
    ];
    let annotated: Vec<_> = machine.into_iter().chain(others).collect();
    let unreadable = stores.host_settings.unreadable().into_iter();
    let unreadable = unreadable.filter(|(object, _)| object.namespace == key.namespace);
    let unreadable = unreadable.map(|(object, why)| (object.name, why)).collect();
    let objects = stores.host_settings.list_in(&key.namespace);
    let object = applying_settings(SettingsSources {
        objects: &objects,
        unreadable: &unreadable,
        annotated: &annotated,
        owner,
        cluster: &key.name,
    })?;
    Ok(object.cloned())
}

/// What may be claimed of changes of KubeadmConfigs in a group.
pub(crate) fn configuration_known(
    ctx: &Context,
    group: &Group,
    policy: &Policy,
) -> ConfigurationKnown {
    let namespace = &group.key.namespace;
    let stores = &ctx.stores;
    let unreadable = stores.disruption_policies.unreadable().into_iter();
    let unreadable = unreadable.filter(|(object, _)| object.namespace == *namespace);
    let found = node_disruption_policy(NodePolicies {
        objects: &stores.disruption_policies.list_in(namespace),
        unreadable: &unreadable.map(|(object, why)| (object.name, why)).collect(),
        owner: &group.spec.owner,
        cluster: &group.spec.cluster_name,
    })
    .map(Option::<&NodeDisruptionPolicySpec>::cloned);
    let Policy { rerun, secrets, .. } = policy.clone();
    match found {
        Ok(policy) => ConfigurationKnown::Rules(ConfigurationRules { rerun, secrets, policy }),
        Err(refusal) => ConfigurationKnown::Unknown(refusal),
    }
}

fn owner_annotations(ctx: &Context, group: &Group) -> Result<BTreeMap<String, String>, NotReady> {
    let owner = LiveOwner::of(&ctx.stores, group);
    let owner = owner.ok_or_else(|| unknown(&group.spec.owner.kind, &group.owner_key()))?;
    Ok(owner.annotations())
}

/// An object that is missing from the caches.
pub(crate) fn unknown(kind: &str, key: &ObjectKey) -> NotReady {
    NotReady::ObjectUnknown { kind: kind.to_owned(), name: key.to_string() }
}
