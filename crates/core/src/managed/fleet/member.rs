//! How far the upgrade of a Cluster of a fleet is.

use std::sync::Arc;

use jiff::Timestamp;
use refit_kinds::{
    conditions,
    refit::{ClusterUpgrade, TaskPhase, UpgradePhase, UpgradeRecord, UpgradeTask},
};

use crate::{managed::steps, task::status::READY};

/// Reasons with which an upgrade that waits for its time never begins.
const NEVER: [&str; 3] = ["VersionNotReachable", "NotSupported", "Missing"];

/// A Cluster that the plan has requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Namespace and name.
    pub cluster: (String, String),
    /// Number of its wave, from 0.
    pub wave: usize,
    /// How far its upgrade is.
    pub state: MemberState,
}

/// How far the upgrade of a Cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has not begun.
    Waiting,
    /// It is under way.
    Upgrading,
    /// It has not ended, and does not go on.
    Stuck {
        /// Why, as a cause that other Clusters may share.
        cause: String,
        /// Since when.
        since: Timestamp,
    },
    /// It has failed.
    Failed {
        /// Why, as a cause that other Clusters may share.
        cause: String,
        /// When.
        at: Timestamp,
    },
    /// It is done.
    Completed {
        /// When.
        at: Timestamp,
    },
}

impl MemberState {
    /// The state of an upgrade. `tasks` are those of its Cluster.
    pub fn of(upgrade: &ClusterUpgrade, tasks: &[Arc<UpgradeTask>], now: Timestamp) -> Self {
        let Some(status) = &upgrade.status else { return Self::Waiting };
        let of_version = |record: &&UpgradeRecord| record.version == upgrade.spec.version;
        let Some(record) = status.history.iter().find(of_version) else { return Self::Waiting };
        if status.observed_generation != upgrade.metadata.generation {
            return Self::Waiting;
        }
        let ended = record.complete_time.as_ref().map_or(now, |time| time.0);
        let ready = conditions::get(&status.conditions, READY);
        let reason = ready.map_or("", |ready| &ready.reason);
        match record.phase {
            UpgradePhase::New | UpgradePhase::Pending if NEVER.contains(&reason) => {
                let since = record.requested_time.0;
                Self::Stuck { cause: reason.to_owned(), since }
            }
            UpgradePhase::New | UpgradePhase::Pending => Self::Waiting,
            UpgradePhase::Upgrading if reason == steps::ERROR => stuck(record, tasks, now),
            UpgradePhase::Upgrading => Self::Upgrading,
            UpgradePhase::Completed => Self::Completed { at: ended },
            UpgradePhase::Failed => Self::Failed { cause: record.reason.clone(), at: ended },
        }
    }

    /// When it ended. One that does not go on keeps no other Cluster waiting: it counts as failed until it does.
    pub fn ended(&self) -> Option<Timestamp> {
        match self {
            Self::Waiting | Self::Upgrading => None,
            Self::Stuck { since: at, .. } | Self::Failed { at, .. } | Self::Completed { at } => {
                Some(*at)
            }
        }
    }

    /// Its cause and its time, if it counts as a failure.
    pub(super) fn failure(&self) -> Option<(&str, Timestamp)> {
        match self {
            Self::Waiting | Self::Upgrading | Self::Completed { .. } => None,
            Self::Stuck { cause, since } => Some((cause, *since)),
            Self::Failed { cause, at } => Some((cause, *at)),
        }
    }
}

/// An upgrade whose step cannot be done: the newest failure of its task is the cause, else the step.
fn stuck(record: &UpgradeRecord, tasks: &[Arc<UpgradeTask>], now: Timestamp) -> MemberState {
    let task = tasks
        .iter()
        .find(|task| task.metadata.name == record.task && task.phase() == TaskPhase::Failed);
    let failures = task.and_then(|task| task.status.as_ref()).map(|status| &status.failures);
    let newest = failures.into_iter().flatten().max_by_key(|failure| failure.at.clone());
    let step = record.conditions.iter().rev().find(|step| step.reason == steps::ERROR);
    let cause = newest
        .map(|failure| failure.reason.clone())
        .or_else(|| step.map(|step| step.type_.clone()));
    let at = newest.and_then(|failure| failure.at.clone());
    let at = at.or_else(|| step.map(|step| step.start_time.clone()));
    MemberState::Stuck { cause: cause.unwrap_or_default(), since: at.map_or(now, |at| at.0) }
}
