//! Whether the workers of a stopped upgrade return to the version that they had before, and to which.
//!
//! A host can be brought to another patch release of the same minor version: it has the same package repository, and the
//! kubelet reads the configuration of the Cluster. That of a newer minor version may have fields that an older kubelet
//! does not know (`docs/facts/kubeadm.md#rolling-back`). The control plane never returns.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_kinds::{
    refit::{MachineUid, NodeUpdate, Phase},
    version::{Hop, KubernetesVersion, SkewError, StatedVersion},
};

use super::status::names;
use crate::node::newest;

/// The workers of a MachineDeployment, and what decides whether they may return.
#[derive(Clone, Debug)]
pub struct WorkersSeen<'a> {
    /// Name of the MachineDeployment.
    pub name: &'a str,
    /// The version in its spec.
    pub requested: &'a StatedVersion,
    /// Its Machines.
    pub machines: Vec<&'a Machine>,
    /// Their NodeUpdates; those of other Machines may be among them.
    pub updates: Vec<&'a NodeUpdate>,
    /// The Cluster.
    pub cluster: &'a Cluster,
    /// The highest version of its control plane, if it is known.
    pub control_plane: Option<&'a KubernetesVersion>,
    /// When the upgrade began: what was updated before stays.
    pub since: Timestamp,
}

/// Why workers cannot return to the version that they had before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaysUpgraded {
    /// The topology would set the version again.
    #[error(
        "MachineDeployment {name} belongs to a Cluster with a topology, which requests its version: workers of a topology \
         do not return. Leave them as they are, or finish the upgrade with `refit schedule`"
    )]
    Topology {
        /// Name of the MachineDeployment.
        name: String,
    },
    /// The hosts are in an unknown state.
    #[error(
        "the updates of {machines} in MachineDeployment {name} have failed: `refit retry md/{name}`, or delete these Machines"
    )]
    Failed {
        /// Name of the MachineDeployment.
        name: String,
        /// Names of the Machines.
        machines: String,
    },
    /// The kubelets had not reported their version.
    #[error(
        "the version that {machines} in MachineDeployment {name} had before is not known: finish the upgrade with `refit \
         schedule`"
    )]
    VersionUnknown {
        /// Name of the MachineDeployment.
        name: String,
        /// Names of the Machines.
        machines: String,
    },
    /// One version is requested of all Machines of an owner.
    #[error(
        "the Machines of MachineDeployment {name} had several versions before: {versions}. Finish the upgrade with `refit \
         schedule`"
    )]
    SeveralVersions {
        /// Name of the MachineDeployment.
        name: String,
        /// Each version, with Machines.
        versions: String,
    },
    /// Hosts go back to patch releases only.
    #[error(
        "MachineDeployment {name} would go from {from} back to {to}, and hosts go back only to a patch release of the same \
         minor version. Kubelets of {from} and {to} may run side by side: leave them as they are, or finish the upgrade with `refit \
         schedule`"
    )]
    OtherMinor {
        /// Name of the MachineDeployment.
        name: String,
        /// The version that the workers have.
        from: KubernetesVersion,
        /// The version that they had.
        to: KubernetesVersion,
    },
    /// Another updater than the built-in one has taken part.
    #[error(
        "Updater {updater} has updated workers of MachineDeployment {name}, and only the built-in updater goes back: finish \
         the upgrade with `refit schedule`"
    )]
    ByUpdater {
        /// Name of the MachineDeployment.
        name: String,
        /// Name of the Updater.
        updater: String,
    },
    /// The kubelets would be too old for their API servers.
    #[error(
        "MachineDeployment {name} cannot go back: {skew}. Finish the upgrade with `refit schedule`"
    )]
    Skew {
        /// Name of the MachineDeployment.
        name: String,
        /// Why not.
        skew: SkewError,
    },
}

/// A worker since the upgrade began.
struct Worker<'a> {
    name: &'a str,
    stated: &'a StatedVersion,
    updates: Vec<&'a NodeUpdate>,
    newest: Option<&'a NodeUpdate>,
    /// Whether it was created since the upgrade began.
    is_fresh: bool,
}

impl<'a> Worker<'a> {
    fn of(machine: &'a Machine, seen: &WorkersSeen<'a>) -> Self {
        let uid = MachineUid::of(&machine.metadata);
        let is_of_upgrade = |update: &&&NodeUpdate| {
            update.spec.machine_ref.uid == uid
                && update.spec.goal.kubernetes_version.is_some()
                && is_since(&update.metadata, seen.since)
        };
        let updates: Vec<_> = seen.updates.iter().filter(is_of_upgrade).copied().collect();
        Self {
            name: machine.metadata.name.as_deref().unwrap_or_default(),
            stated: &machine.spec.version,
            newest: newest(updates.iter().copied(), &uid),
            is_fresh: is_since(&machine.metadata, seen.since),
            updates,
        }
    }

    fn has_failed(&self) -> bool {
        self.newest.is_some_and(|update| update.phase() == Phase::Failed)
    }

    fn is_under_way(&self) -> bool {
        self.newest.is_some_and(|update| !update.phase().is_final())
    }

    fn versions_before(&self) -> impl Iterator<Item = &'a KubernetesVersion> {
        self.updates.iter().filter_map(|update| update.status.as_ref()?.from_version.as_ref())
    }

    /// Whether an update has succeeded, and has not recorded from which version.
    fn has_unknown(&self) -> bool {
        let is_unknown = |update: &&NodeUpdate| {
            let status = update.status.as_ref();
            update.phase() == Phase::Succeeded
                && status.is_none_or(|status| status.from_version.is_none())
        };
        self.stated.version().is_none() || self.updates.iter().any(is_unknown)
    }

    /// The version before: what has returned already shows the higher one, too. A Machine that was created since, with the
    /// version that it has, had none.
    fn before(&self) -> Option<&'a KubernetesVersion> {
        let has_none = self.is_fresh && self.updates.is_empty();
        let stated = self.stated.version().filter(|_| !has_none);
        self.versions_before().chain(stated).min()
    }
}

fn is_since(metadata: &ObjectMeta, since: Timestamp) -> bool {
    metadata.creation_timestamp.as_ref().is_some_and(|created| created.0 >= since)
}

/// The version that the workers of a MachineDeployment return to; `None` if they have it, and their owner requests it.
pub fn version_before(seen: &WorkersSeen<'_>) -> Result<Option<KubernetesVersion>, StaysUpgraded> {
    let name = || seen.name.to_owned();
    let workers: Vec<Worker<'_>> = seen
        .machines
        .iter()
        .filter(|machine| machine.metadata.deletion_timestamp.is_none())
        .map(|machine| Worker::of(machine, seen))
        .collect();
    let is_as_requested =
        |worker: &Worker<'_>| worker.updates.is_empty() && worker.stated == seen.requested;
    if workers.iter().all(is_as_requested) {
        return Ok(None);
    }
    if seen.cluster.spec.topology.is_some() {
        return Err(StaysUpgraded::Topology { name: name() });
    }
    if let Some(machines) = named(&workers, Worker::has_failed) {
        return Err(StaysUpgraded::Failed { name: name(), machines });
    }
    if let Some(machines) = named(&workers, Worker::has_unknown) {
        return Err(StaysUpgraded::VersionUnknown { name: name(), machines });
    }
    let mut versions: BTreeMap<&KubernetesVersion, Vec<&str>> = BTreeMap::new();
    for worker in &workers {
        if let Some(before) = worker.before() {
            versions.entry(before).or_default().push(worker.name);
        }
    }
    let Some((to, _)) = versions.first_key_value() else { return Ok(None) };
    if versions.len() > 1 {
        let shown = versions.iter().filter_map(|(version, machines)| {
            Some(format!("{version} ({})", names(machines.iter().copied())?))
        });
        let versions = shown.collect::<Vec<_>>().join(", ");
        return Err(StaysUpgraded::SeveralVersions { name: name(), versions });
    }
    may_return(seen, &workers, to)?;
    let has_version = |worker: &Worker<'_>| worker.stated.is(to) && !worker.is_under_way();
    let is_back = seen.requested.is(to) && workers.iter().all(has_version);
    Ok((!is_back).then(|| (*to).clone()))
}

/// The names of some workers.
fn named<'a>(workers: &[Worker<'a>], those: fn(&Worker<'a>) -> bool) -> Option<String> {
    names(workers.iter().filter(|worker| those(worker)).map(|worker| worker.name))
}

/// Whether the hosts can be brought to the version that they had before, and run it.
fn may_return(
    seen: &WorkersSeen<'_>,
    workers: &[Worker<'_>],
    to: &KubernetesVersion,
) -> Result<(), StaysUpgraded> {
    let name = || seen.name.to_owned();
    let goals = workers.iter().flat_map(|worker| &worker.updates);
    let goals = goals.filter_map(|update| update.spec.goal.kubernetes_version.as_ref());
    let stated = workers.iter().filter_map(|worker| worker.stated.version());
    within_minor(seen.name, to, goals.chain(stated).chain(seen.requested.version()))?;
    let mut parts = workers.iter().flat_map(|worker| &worker.updates);
    if let Some(part) = parts.find_map(|update| update.spec.updater_parts().next()) {
        let updater = part.updater.clone();
        return Err(StaysUpgraded::ByUpdater { name: name(), updater });
    }
    match seen.control_plane.map(|server| to.check_kubelet_of(server)) {
        Some(Err(skew)) => Err(StaysUpgraded::Skew { name: name(), skew }),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Whether workers with any of these versions may be brought back to a lower one, or have it already.
fn within_minor<'a>(
    name: &str,
    to: &KubernetesVersion,
    versions: impl Iterator<Item = &'a KubernetesVersion>,
) -> Result<(), StaysUpgraded> {
    let other_minor =
        |from: &&KubernetesVersion| from.hop_to(to) == Hop::Downgrade && !is_patch(from, to);
    match versions.filter(other_minor).max() {
        Some(from) => {
            let (name, from, to) = (name.to_owned(), from.clone(), to.clone());
            Err(StaysUpgraded::OtherMinor { name, from, to })
        }
        None => Ok(()),
    }
}

/// Why a task cannot bring the workers of a MachineDeployment back to `to`, whatever happened before: decided before its
/// spec is changed. `versions` are those of its spec and of its Machines.
pub fn never_returns<'a>(
    name: &str,
    of_topology: bool,
    to: &KubernetesVersion,
    versions: impl Iterator<Item = &'a KubernetesVersion>,
) -> Result<(), StaysUpgraded> {
    if of_topology {
        return Err(StaysUpgraded::Topology { name: name.to_owned() });
    }
    within_minor(name, to, versions)
}

/// Whether a version is a lower patch release of the same minor version: hosts can be brought there.
pub(crate) fn is_patch(from: &KubernetesVersion, to: &KubernetesVersion) -> bool {
    from.hop_to(to) == Hop::Downgrade && !to.minor_below(from)
}

#[cfg(test)]
#[path = "roll_back_tests.rs"]
mod tests;
