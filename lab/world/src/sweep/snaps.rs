//! The scenario with k8sd: annotations of the owners request a channel for the snaps of all machines.

use std::collections::BTreeMap;

use refit_kinds::{
    canonical::CANONICAL,
    json::{annotation, annotations, kind, name, namespace, text},
};
use serde_json::{Value, json};

use super::SweepError;
use crate::{
    direct::{Call, Direct, USER},
    script::look::owners,
    world::{World, collection, lock},
};

/// What is requested for a version: `channel=1.35-classic/stable` for `v1.35.0`.
fn option(version: &str) -> String {
    let minor =
        version.trim_start_matches('v').rsplit_once('.').map_or(version, |(minor, _)| minor);
    format!("channel={minor}-classic/stable")
}

/// Annotates the control plane and the workers.
pub(super) async fn start(world: &World, version: &str) -> Result<(), SweepError> {
    let api = Direct::new(world.management().clone(), USER);
    for owner in owners(world) {
        let Some(collection) = collection(world.management(), &owner) else { continue };
        let body = json!({"metadata": {"annotations": {CANONICAL.upgrade_to: option(version)}}});
        api.send(Call::merge(format!("{collection}/{}", name(&owner)), body)).await?;
    }
    Ok(())
}

/// Whether every snap is refreshed, and every owner shows it.
pub(super) fn are_refreshed(world: &World, version: &str) -> bool {
    let wanted = option(version);
    let hosts = lock(&world.inner.hosts);
    let all = hosts.values().filter_map(|host| host.k8sd.as_ref());
    let is_shown = |owner: &Value| {
        annotation(owner, CANONICAL.release) == Some(wanted.as_str())
            && annotation(owner, CANONICAL.status) == Some("done")
            && annotation(owner, CANONICAL.upgrade_to).is_none()
    };
    all.map(|k8sd| k8sd.installed()).all(|installed| installed.as_ref() == Some(&wanted))
        && owners(world).iter().all(is_shown)
}

/// The annotations of upgrades, of Machines and owners.
pub(super) fn shown(world: &World) -> BTreeMap<String, BTreeMap<String, String>> {
    let of = |object: &Value| {
        let mut all = annotations(object);
        all.retain(|key, _| key.contains("-upgrade-"));
        (format!("{} {}", kind(object), name(object)), all)
    };
    let machines = world.machines();
    let all = machines.iter().map(|machine| of(machine));
    let all = all.chain(owners(world).iter().map(of).collect::<Vec<_>>());
    all.filter(|(_, annotations)| !annotations.is_empty()).collect()
}

/// Locks of control planes that nothing has released.
pub(super) fn left_locks(world: &World) -> Vec<String> {
    let all = world.management().list_values("", "configmaps", None);
    let locks = all.iter().filter(|one| name(one).ends_with("-cp-inplace-upgrade-lock"));
    locks.map(|lock| format!("ConfigMap {}", name(lock))).collect()
}

/// The option that the snap of a machine has, and how often it was refreshed.
pub(super) fn snap(world: &World, machine: &Value) -> (String, u32) {
    let cluster = text(machine, "/spec/clusterName");
    let host = format!("{}/{cluster}/{}", namespace(machine), name(machine));
    let hosts = lock(&world.inner.hosts);
    let k8sd = hosts.get(&host).and_then(|host| host.k8sd.as_ref());
    k8sd.map_or_else(Default::default, |k8sd| {
        (k8sd.installed().unwrap_or_default(), u32::try_from(k8sd.changes()).unwrap_or(u32::MAX))
    })
}
