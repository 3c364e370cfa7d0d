//! The points of an upgrade whose time is a metric.

use jiff::Timestamp;
use strum::VariantArray as _;

use super::Series;
use crate::{
    Compat,
    steps::names,
    upgrade_config::{Phase, UpgradeHistory},
};

/// A point that an upgrade comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::VariantArray)]
pub enum Milestone {
    /// Its start was notified of.
    UpgradeStarted,
    /// Its last step is done.
    UpgradeCompleted,
    /// The new version was requested of the ClusterVersion.
    ControlPlaneStarted,
    /// The ClusterVersion has the new version.
    ControlPlaneCompleted,
    /// The workers follow: the same point as [`Milestone::ControlPlaneCompleted`].
    WorkersStarted,
    /// All workers are updated.
    WorkersCompleted,
}

impl Milestone {
    pub(super) fn metric(self) -> &'static str {
        match self {
            Self::UpgradeStarted => "upgradeoperator_upgrade_started_timestamp",
            Self::UpgradeCompleted => "upgradeoperator_upgrade_completed_timestamp",
            Self::ControlPlaneStarted => "upgradeoperator_controlplane_upgrade_started_timestamp",
            Self::ControlPlaneCompleted => {
                "upgradeoperator_controlplane_upgrade_completed_timestamp"
            }
            Self::WorkersStarted => "upgradeoperator_workernode_upgrade_started_timestamp",
            Self::WorkersCompleted => "upgradeoperator_workernode_upgrade_completed_timestamp",
        }
    }

    pub(super) fn help(self) -> &'static str {
        match self {
            Self::UpgradeStarted => "When the upgrade started",
            Self::UpgradeCompleted => "When the upgrade was completed",
            Self::ControlPlaneStarted => "When the upgrade of the control plane started",
            Self::ControlPlaneCompleted => "When the upgrade of the control plane was completed",
            Self::WorkersStarted => "When the upgrade of the workers started",
            Self::WorkersCompleted => "When the upgrade of the workers was completed",
        }
    }

    /// The step that comes to it.
    fn step(self) -> &'static str {
        match self {
            Self::UpgradeStarted => names::STARTED,
            Self::UpgradeCompleted => names::COMPLETED,
            Self::ControlPlaneStarted => names::COMMENCED,
            Self::ControlPlaneCompleted | Self::WorkersStarted => names::CONTROL_PLANE,
            Self::WorkersCompleted => names::WORKERS,
        }
    }
}

/// The timestamps that are set after a look at the steps of an upgrade, by its entry as the look has left it.
///
/// In [`Compat::Strict`] a point has the time of the last look at which its step ran, so it moves while the upgrade goes on.
/// `was_commenced` is whether the upgrade had commenced when the look began: the first steps do not run then. In
/// [`Compat::Repaired`] it has the time at which its step was done, also after a restart.
pub fn milestones(
    entry: &UpgradeHistory,
    cluster_id: &str,
    was_commenced: bool,
    now: Timestamp,
    compat: Compat,
) -> Vec<(Series, i64)> {
    match entry.phase {
        Phase::Upgrading | Phase::Upgraded => {}
        Phase::New | Phase::Pending | Phase::Failed => return Vec::new(),
    }
    let cluster_id = if cluster_id.is_empty() { "unknown" } else { cluster_id };
    let strict = |milestone: Milestone| match milestone {
        Milestone::UpgradeStarted => !was_commenced && entry.is_done(milestone.step()),
        // It is set before the request is sent, which may fail.
        Milestone::ControlPlaneStarted => {
            !was_commenced && entry.condition(milestone.step()).is_some()
        }
        Milestone::UpgradeCompleted
        | Milestone::ControlPlaneCompleted
        | Milestone::WorkersStarted
        | Milestone::WorkersCompleted => entry.is_done(milestone.step()),
    };
    let at = |milestone: Milestone| match compat {
        Compat::Repaired => {
            let done = entry.condition(milestone.step()).filter(|step| step.status == "True")?;
            done.complete_time.as_ref().map(|time| time.0)
        }
        Compat::Strict => strict(milestone).then_some(now),
    };
    let series = |milestone: Milestone| Series::Milestone {
        milestone,
        cluster_id: cluster_id.to_owned(),
        version: entry.version.clone(),
    };
    let set =
        Milestone::VARIANTS.iter().filter_map(|milestone| Some((*milestone, at(*milestone)?)));
    set.map(|(milestone, at)| (series(milestone), at.as_second())).collect()
}
