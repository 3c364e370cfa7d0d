//! The metrics, by the names of the original (`docs/facts/openshift-upgrades.md#metrics`). All are gauges with whole numbers:
//! a timestamp is in seconds since 1970.
//!
//! | endpoint | holds |
//! |---|---|
//! | port 8383 | the [`Gauges`], which steps and checks set |
//! | port 8089 | what [`collect`] reads from the UpgradeConfig at each scrape |

mod collector;
mod milestones;

use std::{collections::BTreeMap, iter};

pub use self::{
    collector::{COLLECTOR_FAILED, COLLECTOR_FAILED_HELP, ScrapeError, collect},
    milestones::{Milestone, milestones},
};
use crate::{
    health::{self, Reason},
    notify::Event,
    upgrade_config::{NAME, Phase},
};

/// One value of a gauge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name of the metric.
    pub name: &'static str,
    /// What it shows, for `# HELP`.
    pub help: &'static str,
    /// Its labels.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: i64,
}

/// A gauge, with the values of its labels. `upgradeconfig_name` always is [`NAME`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// 1 if the UpgradeConfig is invalid.
    ValidationFailed,
    /// 1 if the extra capacity did not become ready in time.
    ScalingFailed,
    /// 1 if the upgrade did not commence in time.
    WindowBreached,
    /// 1 if the control plane takes too long.
    ControlPlaneTimeout {
        /// The requested version.
        version: String,
    },
    /// 1 if a health check failed for a reason.
    HealthcheckFailed {
        /// The phase of the upgrade.
        state: Phase,
        /// The current version, if it is known.
        version: Option<String>,
        /// The reason.
        reason: Reason,
    },
    /// 1 if the workers take longer than their silence.
    WorkerTimeout {
        /// The requested version.
        version: String,
    },
    /// 1 if the drain of a node takes too long.
    NodeDrainTimeout {
        /// Name of the node.
        node: String,
    },
    /// 1 if a notification was sent.
    Notification {
        /// What it is known by.
        event: Event,
        /// The requested version.
        version: String,
    },
    /// 1 if a notification could not be sent.
    NotificationFailed {
        /// What it is known by.
        event: Event,
    },
    /// 1 if the upgrade raised no paging alert.
    UpgradeResult {
        /// The previous version.
        preceding_version: String,
        /// `y`, `z` or `unknown`.
        stream: String,
        /// The version that was requested.
        version: String,
        /// The alerts, separated by commas.
        alerts: String,
    },
    /// When the UpgradeConfig was last synchronised with its source.
    SyncTimestamp,
    /// When an upgrade came to a point.
    Milestone {
        /// The point.
        milestone: Milestone,
        /// ID of the cluster, or `unknown`.
        cluster_id: String,
        /// The requested version.
        version: String,
    },
}

/// When gauges are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The UpgradeConfig was deleted.
    ConfigGone,
    /// The upgrade failed: notifications of the next one are sent again.
    UpgradeFailed,
    /// No node is drained any longer: the workers are upgraded, the extra capacity was removed, or the cluster is healthy after its
    /// upgrade.
    DrainsOver,
    /// A look is done: which notifications could not be sent is set again.
    Looked,
}

impl Series {
    /// Name of the metric.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ValidationFailed => "upgradeoperator_upgradeconfig_validation_failed",
            Self::ScalingFailed => "upgradeoperator_scaling_failed",
            Self::WindowBreached => "upgradeoperator_upgrade_window_breached",
            Self::ControlPlaneTimeout { .. } => "upgradeoperator_controlplane_timeout",
            Self::HealthcheckFailed { .. } => health::METRIC,
            Self::WorkerTimeout { .. } => "upgradeoperator_worker_timeout",
            Self::NodeDrainTimeout { .. } => "upgradeoperator_node_drain_timeout",
            Self::Notification { .. } => "upgradeoperator_upgrade_notification",
            Self::NotificationFailed { .. } => "upgrade_notification_failed",
            Self::UpgradeResult { .. } => "upgradeoperator_upgrade_result",
            Self::SyncTimestamp => "upgradeoperator_upgradeconfig_sync_timestamp",
            Self::Milestone { milestone, .. } => milestone.metric(),
        }
    }

    /// What the metric shows.
    pub fn help(&self) -> &'static str {
        match self {
            Self::ValidationFailed => "Whether the UpgradeConfig is invalid",
            Self::ScalingFailed => "Whether the extra workers did not become ready in time",
            Self::WindowBreached => "Whether the upgrade did not commence in its window",
            Self::ControlPlaneTimeout { .. } => "Whether the control plane takes too long",
            Self::HealthcheckFailed { .. } => "Whether a health check failed",
            Self::WorkerTimeout { .. } => "Whether the workers take too long",
            Self::NodeDrainTimeout { .. } => "Whether the drain of a node takes too long",
            Self::Notification { .. } => "Whether a notification was sent",
            Self::NotificationFailed { .. } => "Whether a notification could not be sent",
            Self::UpgradeResult { .. } => "Whether the last upgrade raised no paging alert",
            Self::SyncTimestamp => "When the UpgradeConfig was last synchronised",
            Self::Milestone { milestone, .. } => milestone.help(),
        }
    }

    /// The labels, with their values.
    pub fn labels(&self) -> Vec<(&'static str, String)> {
        let labels = match self {
            Self::ValidationFailed
            | Self::ScalingFailed
            | Self::WindowBreached
            | Self::SyncTimestamp => vec![],
            Self::ControlPlaneTimeout { version } | Self::WorkerTimeout { version } => {
                vec![("version", version.clone())]
            }
            Self::HealthcheckFailed { state, version, reason } => {
                return health::labels(NAME, *state, version.as_deref(), *reason).into();
            }
            Self::NodeDrainTimeout { node } => return vec![("node_name", node.clone())],
            Self::Notification { event, version } => {
                vec![("event", event.to_string()), ("version", version.clone())]
            }
            Self::NotificationFailed { event } => vec![("event", event.to_string())],
            Self::UpgradeResult { preceding_version, stream, version, alerts } => vec![
                ("preceding_version", preceding_version.clone()),
                ("stream", stream.clone()),
                ("version", version.clone()),
                ("alerts", alerts.clone()),
            ],
            Self::Milestone { milestone: _, cluster_id, version } => {
                vec![("_id", cluster_id.clone()), ("version", version.clone())]
            }
        };
        iter::once(("upgradeconfig_name", NAME.to_owned())).chain(labels).collect()
    }

    /// When it is removed.
    fn resets(&self) -> &'static [Reset] {
        match self {
            Self::UpgradeResult { .. } => &[],
            Self::WindowBreached | Self::SyncTimestamp => &[Reset::ConfigGone],
            Self::Milestone { milestone, .. } => match milestone {
                Milestone::UpgradeStarted => &[Reset::ConfigGone, Reset::UpgradeFailed],
                Milestone::UpgradeCompleted
                | Milestone::ControlPlaneStarted
                | Milestone::ControlPlaneCompleted
                | Milestone::WorkersStarted
                | Milestone::WorkersCompleted => &[Reset::ConfigGone],
            },
            Self::ValidationFailed
            | Self::ScalingFailed
            | Self::ControlPlaneTimeout { .. }
            | Self::HealthcheckFailed { .. }
            | Self::WorkerTimeout { .. }
            | Self::Notification { .. } => &[Reset::ConfigGone, Reset::UpgradeFailed],
            Self::NotificationFailed { .. } => {
                &[Reset::ConfigGone, Reset::UpgradeFailed, Reset::Looked]
            }
            Self::NodeDrainTimeout { .. } => {
                &[Reset::ConfigGone, Reset::UpgradeFailed, Reset::DrainsOver]
            }
        }
    }
}

/// The gauges that are set. One that was never set is not exposed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges(BTreeMap<Series, i64>);

impl Gauges {
    /// Sets one.
    pub fn set(&mut self, series: Series, value: impl Into<i64>) {
        self.0.insert(series, value.into());
    }

    /// The value of one that is set.
    pub fn get(&self, series: &Series) -> Option<i64> {
        self.0.get(series).copied()
    }

    /// Removes those that a reset concerns.
    pub fn reset(&mut self, reset: Reset) {
        self.0.retain(|series, _| !series.resets().contains(&reset));
    }

    /// All that are set. Those of a metric are adjacent.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.0.iter().map(|(series, value)| Sample {
            name: series.name(),
            help: series.help(),
            labels: series.labels(),
            value: *value,
        })
    }
}
