//! What the live owner and Cluster of a group say should happen.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use refit_core::change::{NotReady, Policy, policy};
use refit_kube::ObjectKey;

use crate::{context::Context, groups::Group};

/// The policy as the live owner and Cluster say it, else the controller's.
pub(crate) fn live_policy(ctx: &Context, group: &Group) -> Result<Policy, NotReady> {
    let owner = owner_annotations(ctx, group)?;
    let key = ObjectKey::new(&group.key.namespace, &group.spec.cluster_name);
    let cluster = ctx
        .stores
        .clusters
        .get(&key)
        .ok_or_else(|| unknown("Cluster", &key))?;
    Ok(policy(
        &owner,
        cluster.annotations(),
        ctx.settings.on_uncovered,
    ))
}

fn owner_annotations(ctx: &Context, group: &Group) -> Result<BTreeMap<String, String>, NotReady> {
    let (stores, key) = (&ctx.stores, group.owner_key());
    let kind = group.spec.owner.kind.as_str();
    let found = match kind {
        "KubeadmControlPlane" => stores
            .control_planes
            .get(&key)
            .map(|o| o.annotations().clone()),
        "MachineDeployment" => stores
            .machine_deployments
            .get(&key)
            .map(|o| o.annotations().clone()),
        "MachineSet" => stores
            .machine_sets
            .get(&key)
            .map(|o| o.annotations().clone()),
        _ => None,
    };
    found.ok_or_else(|| unknown(kind, &key))
}

/// An object that the caches do not have.
pub(crate) fn unknown(kind: &str, key: &ObjectKey) -> NotReady {
    NotReady::ObjectUnknown {
        kind: kind.to_owned(),
        name: key.to_string(),
    }
}
