//! The scenario with k8sd: annotations of the owners request a channel for the snaps of all machines, and annotations of
//! two machines new certificates.

use std::collections::BTreeMap;

use refit_kinds::{
    canonical::CANONICAL,
    json::{annotations, kind, name, namespace, text},
};
use serde_json::Value;

use super::SweepError;
use crate::{
    env::canonical,
    script::look::owners,
    world::{World, lock},
};

/// Kinds of the owners.
const OWNERS: [&str; 2] = [canonical::CONTROL_PLANE, "MachineDeployment"];

/// What is requested for a version: `channel=1.35-classic/stable` for `v1.35.0`.
fn option(version: &str) -> String {
    let minor =
        version.trim_start_matches('v').rsplit_once('.').map_or(version, |(minor, _)| minor);
    format!("channel={minor}-classic/stable")
}

/// Annotates the control plane and the workers, and one Machine of each.
pub(super) async fn start(world: &World, version: &str) -> Result<(), SweepError> {
    for kind in OWNERS {
        world.annotate_owners(kind, CANONICAL, &option(version)).await?;
    }
    world.ask_for_certificates().await?;
    Ok(())
}

/// Whether every snap is refreshed, and every owner shows it, and the certificates are issued.
pub(super) fn are_refreshed(world: &World, version: &str) -> bool {
    let wanted = option(version);
    let hosts = lock(&world.inner.hosts);
    let mut all = hosts.values().filter_map(|host| host.k8sd.as_ref());
    all.all(|k8sd| k8sd.installed().as_ref() == Some(&wanted))
        && OWNERS.iter().all(|kind| world.owners_show(kind, CANONICAL, &wanted))
        && world.certificates_are_issued()
}

/// The annotations of upgrades and of new certificates, of Machines and owners; not when these expire.
pub(super) fn shown(world: &World) -> BTreeMap<String, BTreeMap<String, String>> {
    let of = |object: &Value| {
        let mut all = annotations(object);
        all.retain(|key, _| key.contains("-upgrade-") || key.ends_with("-certificates-status"));
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
