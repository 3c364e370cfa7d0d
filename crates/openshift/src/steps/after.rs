//! The steps from when the cluster-version operator upgrades the control plane.

use jiff::SignedDuration;
use refit_core::managed::steps::Progress;
use refit_kinds::refit::SilencedPart;

use super::{
    Known, PROCEDURES, Write,
    before::of_verdict,
    flow::{Made, flow},
};
use crate::{
    Compat, cluster_version,
    health::after_upgrade,
    kinds::WORKER_POOL,
    maintenance::Workers,
    notify::Notice,
    pools::WorkerCount,
    scaler::{ScaleDownState, scale_down},
};

pub(super) fn control_plane(known: &Known<'_>) -> Made {
    flow(|| {
        if !cluster_version::is_completed(known.cluster, known.version(), known.compat) {
            let obstacle = match known.compat {
                Compat::Repaired => cluster_version::obstacle(known.cluster),
                Compat::Strict => None,
            };
            return Ok(match (is_late(known), obstacle) {
                (Err(why), _) | (Ok(_), Some(why)) => Progress::error(why),
                (Ok(_), None) => Progress::waits("the control plane is being upgraded"),
            });
        }
        known.notified(Notice::ControlPlaneFinished)?;
        Ok(Progress::Done)
    })
}

/// Whether the control plane takes longer than it may.
pub(super) fn is_late(known: &Known<'_>) -> Result<bool, String> {
    let window = known.config.control_plane_time;
    let at = (known.now, known.compat);
    let late = cluster_version::is_late(known.cluster, &known.upgrade.spec, window, at);
    late.map_err(|error| error.to_string())
}

pub(super) fn control_plane_audible(known: &Known<'_>) -> Made {
    ended(known, SilencedPart::ControlPlane)
}

fn ended(known: &Known<'_>, part: SilencedPart) -> Made {
    flow(|| {
        known.silenced(known.silences()?.end(part))?;
        Ok(Progress::Done)
    })
}

/// How far the workers are.
pub(super) fn count(known: &Known<'_>) -> Result<WorkerCount, Made> {
    WorkerCount::of(known.pools, known.compat)
        .ok_or_else(|| Progress::error(format!("MachineConfigPool {WORKER_POOL} does not exist")))
}

pub(super) fn workers_silenced(known: &Known<'_>) -> Made {
    flow(|| {
        let count = count(known)?;
        if !count.is_upgrading() {
            return Ok(Progress::Done);
        }
        let drain = &known.config.drain;
        let due = known.silences()?.workers(&Workers {
            machines: count.machines,
            updated: count.updated,
            pdb_force_drain: SignedDuration::from_mins(
                known.upgrade.spec.pdb_force_drain_timeout.into(),
            ),
            node_drain: drain.timeout,
            expected_drain: drain.expected_time,
        });
        known.silenced(due)?;
        Ok(Progress::Done)
    })
}

pub(super) fn workers(known: &Known<'_>) -> Made {
    flow(|| {
        let count = count(known)?;
        if count.is_upgrading() {
            // Whether a silence is in force shows whether they are late.
            known.silences()?;
            let WorkerCount { machines, updated } = count;
            return Ok(Progress::waits(format!("{updated} of {machines} workers are updated")));
        }
        known.notified(Notice::WorkersFinished)?;
        Ok(Progress::Done)
    })
}

pub(super) fn removed(known: &Known<'_>) -> Made {
    flow(|| {
        if !known.is_reserved() {
            return Ok(Progress::Done);
        }
        let machines = known.machines()?;
        let Some(down) = scale_down(true, &machines.sets, &machines.machines) else {
            return Ok(Progress::Done);
        };
        known.all_made(down.delete.iter().cloned().map(Write::DeleteMachineSet).collect())?;
        let failed = match &down.drain {
            Ok(nodes) if !nodes.is_empty() => known.drained(nodes)?,
            Ok(_) | Err(_) => &[],
        };
        Ok(match down.state(failed, known.compat) {
            Ok(ScaleDownState::Done) => Progress::Done,
            Ok(ScaleDownState::Waits(why)) => Progress::waits(why),
            Err(error) => Progress::error(error.to_string()),
        })
    })
}

pub(super) fn audible(known: &Known<'_>) -> Made {
    ended(known, SilencedPart::Workers)
}

pub(super) fn healthy(known: &Known<'_>) -> Made {
    flow(|| Ok(of_verdict(after_upgrade(known.essential()?, known.compat).verdict)))
}

pub(super) fn procedures(known: &Known<'_>) -> Made {
    flow(|| {
        let was_done = match known.compat {
            Compat::Repaired => known.entry.is_done(PROCEDURES),
            Compat::Strict => false,
        };
        if known.config.fedramp && !was_done {
            known.made(Write::ReinitFileIntegrity)?;
        }
        Ok(Progress::Done)
    })
}

pub(super) fn completed(known: &Known<'_>) -> Made {
    flow(|| {
        known.notified(Notice::Completed)?;
        Ok(Progress::Done)
    })
}
