//! The MachineConfigPools of the workers (`docs/facts/openshift-upgrades.md#machineconfigpools`).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    Compat,
    kinds::{MachineConfigPool, WORKER_POOL},
    steps::names,
    upgrade_config::{Phase, UpgradeHistory},
};

/// Name of the MachineConfigPool of the control plane.
pub const CONTROL_PLANE_POOL: &str = "master";

/// How far the workers of a cluster are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCount {
    /// How many there are.
    pub machines: i32,
    /// How many have the configuration of their pool.
    pub updated: i32,
}

impl WorkerCount {
    /// Counts the workers in the pools of a cluster. `None` without the pool `worker`, which every cluster has.
    ///
    /// [`Compat::Strict`] counts this pool only. [`Compat::Repaired`] also counts custom pools, unless they are paused: the
    /// machine-config operator updates these when they are resumed.
    pub fn of(pools: &[MachineConfigPool], compat: Compat) -> Option<Self> {
        let pools = of_workers(pools, compat);
        let sum = |of: fn(&Pool<'_>) -> i32| pools.iter().map(of).fold(0, i32::saturating_add);
        pools.iter().any(|pool| pool.name == WORKER_POOL).then(|| Self {
            machines: sum(|pool| pool.machines),
            updated: sum(|pool| pool.updated),
        })
    }

    /// Whether any is left to be updated.
    pub fn is_upgrading(self) -> bool {
        self.machines != self.updated
    }
}

/// Whether workers are being updated, or wait for it. Degraded ones do not count: they stay as they are until they are repaired.
pub(crate) fn are_being_updated(pools: &[MachineConfigPool], compat: Compat) -> bool {
    let left = |pool: &Pool<'_>| pool.machines.saturating_sub(pool.updated) > pool.degraded;
    of_workers(pools, compat).iter().any(left)
}

/// Records in the entry of an upgrade when the first worker began and when the last one was done. It does nothing in other
/// phases than Upgrading.
///
/// In [`Compat::Strict`] the workers have begun when none of them is updated. A first worker that is fast is missed then, and
/// so is the end. A cluster without workers has both times at once. In [`Compat::Repaired`] they have begun, after the upgrade
/// has commenced, when none of the workers of a pool is updated; after the control plane is upgraded, when any is not.
pub fn note_worker_times(
    entry: &mut UpgradeHistory,
    pools: &[MachineConfigPool],
    now: Timestamp,
    compat: Compat,
) {
    let pools = of_workers(pools, compat);
    if entry.phase != Phase::Upgrading || pools.is_empty() {
        return;
    }
    let has_begun = match compat {
        Compat::Repaired => {
            let is_late = entry.is_done(names::CONTROL_PLANE);
            let begins = |pool: &Pool<'_>| pool.is_upgrading() && (is_late || pool.updated == 0);
            entry.is_done(names::COMMENCED) && pools.iter().any(begins)
        }
        Compat::Strict => pools.iter().any(|pool| pool.updated == 0),
    };
    if has_begun {
        entry.worker_start_time.get_or_insert(Time(now));
    }
    if entry.worker_start_time.is_some() && !pools.iter().any(Pool::is_upgrading) {
        entry.worker_complete_time.get_or_insert(Time(now));
    }
}

/// A pool of workers.
struct Pool<'a> {
    name: &'a str,
    machines: i32,
    updated: i32,
    degraded: i32,
}

impl Pool<'_> {
    fn is_upgrading(&self) -> bool {
        self.machines != self.updated
    }
}

fn of_workers(pools: &[MachineConfigPool], compat: Compat) -> Vec<Pool<'_>> {
    let named = pools.iter().filter_map(|pool| Some((pool.metadata.name.as_deref()?, pool)));
    named
        .filter(|(name, pool)| match compat {
            Compat::Repaired => {
                *name == WORKER_POOL || (*name != CONTROL_PLANE_POOL && !pool.spec.paused)
            }
            Compat::Strict => *name == WORKER_POOL,
        })
        .map(|(name, pool)| {
            let status = pool.status.as_ref();
            let machines = status.map_or(0, |status| status.machine_count);
            let updated = status.map_or(0, |status| status.updated_machine_count);
            let degraded = status.map_or(0, |status| status.degraded_machine_count);
            Pool { name, machines, updated, degraded }
        })
        .collect()
}
