//! What is read from the UpgradeConfig at each scrape.

use std::cmp::Reverse;

use jiff::Timestamp;
use thiserror::Error;

use super::Sample;
use crate::{
    cluster_version::upgrade_at,
    kinds::{ClusterVersion, ReleaseHistory},
    steps::names,
    upgrade_config::{NAME, UpgradeCondition, UpgradeConfig, UpgradeHistory},
};

/// Name of the metric that stands for a failed scrape.
pub const COLLECTOR_FAILED: &str = "managed_upgrade_collector_scrape_failed";
/// What it shows.
pub const COLLECTOR_FAILED_HELP: &str = "The scrape of the UpgradeConfig failed";

/// Why a scrape fails. The original answers it with status 500, and without any metric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScrapeError {
    /// The cluster has not completed the installation of a release.
    #[error(
        "ClusterVersion version has no Completed release in status.history; wait until the cluster is installed"
    )]
    NoCurrentVersion,
    /// The requested version is the only one that the cluster ever had.
    #[error(
        "ClusterVersion version has only the requested release {version} as Completed in status.history, so the previous version is \
         unknown; delete the UpgradeConfig if there is nothing to upgrade"
    )]
    NoPrecedingVersion {
        /// The requested version.
        version: String,
    },
    /// The start of the upgrade is not a timestamp.
    #[error("invalid spec.upgradeAt {text:?} of UpgradeConfig {NAME}, expected RFC 3339")]
    InvalidUpgradeAt {
        /// The text.
        text: String,
    },
    /// The UpgradeConfig was just created, and the controller has not added its entry yet.
    #[error(
        "UpgradeConfig {NAME} has no entry for {version} in status.history yet; wait for the controller"
    )]
    NoEntry {
        /// The requested version.
        version: String,
    },
}

/// The metrics of an UpgradeConfig. Nothing without one.
///
/// Label `version` is the version that the cluster comes from: its current version or, when that is the requested one, the
/// previous one.
pub fn collect(
    config: Option<&UpgradeConfig>,
    cluster: &ClusterVersion,
) -> Result<Vec<Sample>, ScrapeError> {
    let Some(config) = config else {
        return Ok(Vec::new());
    };
    let desired = config.spec.desired.version.clone().unwrap_or_default();
    let version = source_version(cluster, &desired)?.to_owned();
    let upgrade_at = upgrade_at(&config.spec)
        .map_err(|_| ScrapeError::InvalidUpgradeAt { text: config.spec.upgrade_at.clone() })?;
    let Some(entry) = config.entry() else {
        return Err(ScrapeError::NoEntry { version: desired });
    };
    let versions = vec![("version", version), ("desired_version", desired)];
    let mut samples = of_upgrade(config, entry, upgrade_at, &versions);
    for condition in &entry.conditions {
        samples.extend(of_condition(condition, &versions));
    }
    Ok(samples)
}

type Labels = Vec<(&'static str, String)>;

fn of_upgrade(
    config: &UpgradeConfig,
    entry: &UpgradeHistory,
    upgrade_at: Timestamp,
    versions: &Labels,
) -> Vec<Sample> {
    let with_phase: Labels =
        versions.iter().cloned().chain([("phase", entry.phase.to_string())]).collect();
    let times = [
        (
            "managed_upgrade_upgrade_scheduled",
            "When the upgrade starts at the earliest",
            Some(upgrade_at),
        ),
        (
            "managed_upgrade_upgrade_start_timestamp",
            "When the upgrade started",
            entry.start_time.as_ref().map(|time| time.0),
        ),
        (
            "managed_upgrade_upgrade_complete_timestamp",
            "When the upgrade was completed",
            entry.complete_time.as_ref().map(|time| time.0),
        ),
    ];
    let times = times.into_iter().filter_map(|(name, help, at)| {
        Some(Sample { name, help, labels: with_phase.clone(), value: at?.as_second() })
    });
    let timeout = Sample {
        name: "managed_upgrade_upgrade_pdb_timeout_minutes",
        help: "How long a PodDisruptionBudget may block a drain, in minutes",
        labels: versions.clone(),
        value: config.spec.pdb_force_drain_timeout.into(),
    };
    times.chain([timeout]).collect()
}

/// A step that is done has the time of its end, any other one that of its start.
fn of_condition(condition: &UpgradeCondition, versions: &Labels) -> Option<Sample> {
    let (_, name, help) = STEPS.iter().find(|(step, ..)| *step == condition.type_)?;
    let at = match condition.status.as_str() {
        "True" => condition.complete_time.as_ref()?,
        "False" | "Unknown" => condition.start_time.as_ref()?,
        _ => return None,
    };
    let labels = [("upgradeconfig_name", NAME.to_owned())];
    let status = [("condition", condition.status.clone())];
    let labels = labels.into_iter().chain(versions.iter().cloned()).chain(status).collect();
    Some(Sample { name, help, labels, value: at.0.as_second() })
}

/// The steps that have a metric: all but IsClusterUpgradable and PostUpgradeTasksCompleted.
const STEPS: &[(&str, &str, &str)] = &[
    (
        names::STARTED,
        "managed_upgrade_condition_notification_start_timestamp",
        "When the start of the upgrade was notified of",
    ),
    (
        names::HEALTHY_BEFORE,
        "managed_upgrade_condition_health_check_timestamp",
        "When the health of the cluster was checked before the upgrade",
    ),
    (
        names::DEPENDENCIES,
        "managed_upgrade_condition_external_dep_check_timestamp",
        "When external dependencies were checked",
    ),
    (
        names::RESERVED,
        "managed_upgrade_condition_capacity_added_timestamp",
        "When extra capacity was added",
    ),
    (
        names::SILENCED,
        "managed_upgrade_condition_control_plane_maint_start_timestamp",
        "When alerts were silenced for the control plane",
    ),
    (
        names::COMMENCED,
        "managed_upgrade_condition_control_plane_upgrade_start_timestamp",
        "When the upgrade commenced",
    ),
    (
        names::CONTROL_PLANE,
        "managed_upgrade_condition_control_plane_completion_timestamp",
        "When the control plane was upgraded",
    ),
    (
        names::CONTROL_PLANE_AUDIBLE,
        "managed_upgrade_condition_control_plane_maint_removed_timestamp",
        "When the silences for the control plane were removed",
    ),
    (
        names::WORKERS_SILENCED,
        "managed_upgrade_condition_workers_maint_start_timestamp",
        "When alerts were silenced for the workers",
    ),
    (
        names::WORKERS,
        "managed_upgrade_condition_workers_upgraded_timestamp",
        "When all workers were upgraded",
    ),
    (
        names::REMOVED,
        "managed_upgrade_condition_capacity_removed_timestamp",
        "When extra capacity was removed",
    ),
    (
        names::AUDIBLE,
        "managed_upgrade_condition_workers_maint_removed_timestamp",
        "When the silences for the workers were removed",
    ),
    (
        names::HEALTHY_AFTER,
        "managed_upgrade_condition_post_upgrade_healthcheck_timestamp",
        "When the health of the cluster was checked after the upgrade",
    ),
    (
        names::COMPLETED,
        "managed_upgrade_condition_notification_complete_timestamp",
        "When the end of the upgrade was notified of",
    ),
];

/// The version that a cluster comes from.
fn source_version<'a>(cluster: &'a ClusterVersion, desired: &str) -> Result<&'a str, ScrapeError> {
    let history = cluster.status.iter().flat_map(|status| &status.history);
    let mut completed: Vec<&ReleaseHistory> =
        history.filter(|release| release.state == "Completed").collect();
    completed.sort_by_key(|release| Reverse(release.completion_time.as_ref().map(|time| time.0)));
    let mut versions = completed.iter().map(|release| release.version.as_str());
    let current = versions.next().filter(|version| !version.is_empty());
    let current = current.ok_or(ScrapeError::NoCurrentVersion)?;
    if current != desired {
        return Ok(current);
    }
    let previous = versions.next().filter(|version| !version.is_empty());
    previous.ok_or_else(|| ScrapeError::NoPrecedingVersion { version: desired.to_owned() })
}
