//! The texts of notifications. They are the original ones, word for word: they reach customers, and are read again as
//! the description of a policy's state.

use super::{LogEvent, Notice};
use crate::{
    cluster_version::TRIED_AGAIN,
    steps::names,
    upgrade_config::{UpgradeCondition, UpgradeHistory},
};

const RETRY: &str = "The upgrade will continue to retry.";
const INFORMATION: &str = "This is an informational notification and no action is required";
const RESCHEDULE: &str = "Automated upgrades will be retried on their next scheduling cycle. If you have manually scheduled \
                          an upgrade instead, it must now be rescheduled";

impl Notice<'_> {
    /// The text for the upgrade to a version, whose history shows how far it is.
    pub fn text(&self, version: &str, history: Option<&UpgradeHistory>) -> String {
        match self {
            Self::Started => format!("Cluster is currently being upgraded to version {version}"),
            Self::Delayed => delayed(version, history),
            Self::NodeDrainDelayed => "Node drain grace period might be impacting cluster upgrade. Please refer to the \
                                       article for further details https://access.redhat.com/solutions/7075425"
                .to_owned(),
            Self::ScaleSkipped => format!(
                "Cluster upgrade to version {version} has skipped Scale-Up additional Worker Node step for compute \
                 capacity reservation. {INFORMATION} by you"
            ),
            Self::Skipped => format!(
                "Cluster upgrade to version {version} has experienced an issue during capacity reservation efforts. This \
                 could be caused by cloud service provider quota limitations or temporary connectivity issues to/from \
                 the new worker node. The upgrade will continue without extra compute. {INFORMATION} by you"
            ),
            Self::Failed => failed(version, history),
            Self::Completed => {
                format!("Cluster has been successfully upgraded to version {version}")
            }
            Self::ControlPlaneStarted => format!(
                "Cluster upgrade to version {version} is starting with control and worker plane upgrade. {INFORMATION}"
            ),
            Self::ControlPlaneFinished => format!(
                "Cluster upgrade to version {version} has finished control plane upgrade. {INFORMATION}"
            ),
            Self::WorkersFinished => format!(
                "Cluster upgrade to version {version} has finished worker plane upgrade. {INFORMATION}."
            ),
            Self::HealthCheckFailed { failures } => format!(
                "Cluster upgrade to version {version} may experience a delay as following healthcheck(s): {failures} are \
                 failing for the cluster which could impact the upgrade's operation."
            ),
            Self::PreHealthCheckFailed { failures } => format!(
                "Cluster upgrade to version {version} has been scheduled for more than 2 hours, cluster pre-upgrade \
                 health check has identified the following points which may impact the upgrade process: {failures}. \
                 Please take actions to review and fix the issues before the upgrade begins to have seamless upgrade \
                 experience"
            ),
        }
    }
}

/// The step that an upgrade has got stuck at: the newest one that is not done.
fn stuck(history: Option<&UpgradeHistory>) -> Option<&UpgradeCondition> {
    let mut steps = history?.conditions.iter().filter(|condition| condition.type_ != names::FAILED);
    steps.find(|condition| condition.status == "False")
}

fn delayed(version: &str, history: Option<&UpgradeHistory>) -> String {
    let (why, by_you) = match stuck(history).map(|condition| &*condition.type_) {
        Some(names::HEALTHY_BEFORE) => (
            "as health alerts are firing in the cluster which could impact the upgrade's operation",
            " by you",
        ),
        Some(names::DEPENDENCIES) => {
            ("as an external dependency of the upgrade is currently unavailable", " by you")
        }
        Some(names::RESERVED) => ("attempting to scale up an additional worker node", " by you"),
        Some(_) | None => ("whilst it performs necessary pre-upgrade procedures", ""),
    };
    format!(
        "Cluster upgrade to version {version} is experiencing a delay {why}. {RETRY} {INFORMATION}{by_you}"
    )
}

fn failed(version: &str, history: Option<&UpgradeHistory>) -> String {
    let stuck = stuck(history);
    let why = match stuck.map(|condition| (&*condition.type_, &condition.message)) {
        Some((names::UPGRADABLE, message)) => {
            let cause = message.split_once(TRIED_AGAIN).map_or(&**message, |(cause, _)| cause);
            return cause.to_owned();
        }
        Some((names::HEALTHY_BEFORE, _)) => {
            "during the Pre-Health Check step. Health alerts are firing in the cluster which could impact the upgrade's \
             operation, so the upgrade did not proceed"
        }
        Some((names::DEPENDENCIES, _)) => {
            "during the External Dependency Availability Check step. A required external dependency of the upgrade was \
             unavailable, so the upgrade did not proceed"
        }
        Some((names::RESERVED, _)) => {
            "during the Scale-Up Worker Node step. A temporary additional worker node was unable to be created to \
             temporarily house workloads, so the upgrade did not proceed"
        }
        Some(_) | None => "as the cluster did not pass its pre-upgrade verification checks",
    };
    format!("Cluster upgrade to version {version} was cancelled {why}. {RESCHEDULE}")
}

impl LogEvent {
    /// The headline in the service log.
    pub fn summary(self) -> &'static str {
        match self {
            Self::ControlPlaneStarted => {
                "Cluster is starting with control and worker plane upgrade"
            }
            Self::ControlPlaneFinished => "Cluster has finished control plane upgrade",
            Self::WorkersFinished => "Cluster has finished with worker plane upgrade",
            Self::HealthCheckFailed => "Cluster has encountered healthcheck failure during upgrade",
            Self::PreHealthCheckFailed => "Cluster has encountered pre-upgrade healthcheck failure",
        }
    }

    /// The article that explains it.
    pub fn doc_reference(self) -> Option<&'static str> {
        match self {
            Self::ControlPlaneStarted | Self::ControlPlaneFinished | Self::WorkersFinished => None,
            Self::HealthCheckFailed | Self::PreHealthCheckFailed => {
                Some("https://access.redhat.com/solutions/7081505")
            }
        }
    }
}
