//! Notifications: which one is due, and what it is on the wire (`docs/facts/openshift-upgrades.md#notifications`).
//!
//! A notification is due unless [`sent`] has it. Its [`deliveries`] are made in their order; the first that fails ends it,
//! with an error of the step. Then the shell sets `upgrade_notification_failed` to [`failure_gauge`], and after a success
//! also `upgradeoperator_upgrade_notification` to 1, and the history as of [`note_sent`].

mod outbox;
mod text;

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use serde_json::{Value, json};

pub use self::outbox::{Posting, is_posted, note_posting, posting};
use crate::{
    Compat,
    provider::{OcmClient, PolicyState, UpgradePolicy},
    upgrade_config::{NAME, UpgradeCondition, UpgradeHistory},
};

/// What is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// The steps of the upgrade began.
    Started,
    /// It has not commenced for longer than `upgradeWindow.delayTrigger`.
    Delayed,
    /// Pods that a PodDisruptionBudget protects were deleted, as the drain of a node took too long. It has the event of
    /// [`Self::Delayed`], so only one of them is sent.
    NodeDrainDelayed,
    /// The cluster has no machine pool that could be scaled up.
    ScaleSkipped,
    /// The extra machines did not become ready in time.
    Skipped,
    /// It did not commence within `upgradeWindow.timeOut`.
    Failed,
    /// It is done.
    Completed,
    /// The control plane is about to be upgraded.
    ControlPlaneStarted,
    /// The control plane is upgraded.
    ControlPlaneFinished,
    /// The workers are upgraded.
    WorkersFinished,
    /// The cluster is not healthy when the steps begin.
    HealthCheckFailed {
        /// What is not healthy, joined by commas.
        failures: &'a str,
    },
    /// The cluster is not healthy when the upgrade is scheduled.
    PreHealthCheckFailed {
        /// What is not healthy, joined by commas.
        failures: &'a str,
    },
}

/// What a notification is known by: its text is the label `event` of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// It sets the state of the upgrade policy in OCM.
    Policy(PolicyEvent),
    /// It is an entry in the service log.
    Log(LogEvent),
}

/// An event that sets the state of the upgrade policy.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::VariantArray,
)]
#[strum(prefix = "State")]
pub enum PolicyEvent {
    /// [`Notice::Started`].
    Started,
    /// [`Notice::Delayed`] or [`Notice::NodeDrainDelayed`].
    Delayed,
    /// [`Notice::ScaleSkipped`].
    ScaleSkipped,
    /// [`Notice::Skipped`].
    Skipped,
    /// [`Notice::Failed`].
    Failed,
    /// [`Notice::Completed`].
    Completed,
}

/// An event that is an entry in the service log.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::VariantArray,
)]
pub enum LogEvent {
    /// [`Notice::ControlPlaneStarted`].
    #[strum(serialize = "StateControlPlaneStartedSL")]
    ControlPlaneStarted,
    /// [`Notice::ControlPlaneFinished`].
    #[strum(serialize = "StateControlPlaneFinishedSL")]
    ControlPlaneFinished,
    /// [`Notice::WorkersFinished`].
    #[strum(serialize = "StateWorkerPlaneFinishedSL")]
    WorkersFinished,
    /// [`Notice::HealthCheckFailed`].
    #[strum(serialize = "StateHealthCheckSL")]
    HealthCheckFailed,
    /// [`Notice::PreHealthCheckFailed`].
    #[strum(serialize = "StatePreHealthCheckSL")]
    PreHealthCheckFailed,
}

/// The state of an upgrade policy, as OCM has it.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    strum::Display,
    strum::EnumString,
    strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OcmState {
    /// It waits to be scheduled.
    Pending,
    /// It waits for its time.
    Scheduled,
    /// [`PolicyEvent::Started`].
    Started,
    /// [`PolicyEvent::Delayed`], [`PolicyEvent::ScaleSkipped`] or [`PolicyEvent::Skipped`].
    Delayed,
    /// [`PolicyEvent::Failed`].
    Failed,
    /// [`PolicyEvent::Completed`].
    Completed,
    /// It was withdrawn.
    Cancelled,
}

/// `PATCH .../upgrade_policies/ID/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename = "UpgradePolicyState")]
pub struct PolicyStateWrite {
    /// The state.
    pub value: OcmState,
    /// The text of the notification.
    pub description: String,
}

/// Why a notification cannot be sent to OCM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The upgrade was scheduled again, or its policy was removed.
    #[error(
        "no policy matches the current UpgradeConfig: OCM has no upgrade policy of version {version:?} at {upgrade_at:?}, \
         create one in OCM"
    )]
    NoPolicy {
        /// The version of the UpgradeConfig.
        version: String,
        /// The time of the UpgradeConfig.
        upgrade_at: String,
    },
    /// OCM has a state that is not known.
    #[error(
        "invalid state {value:?} of the upgrade policy in OCM, expected pending, scheduled, started, delayed, failed, \
         completed or cancelled"
    )]
    UnknownState {
        /// The state.
        value: String,
    },
}

/// Whether a notification was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It was: nothing is due.
    Yes,
    /// It was not.
    No,
    /// It was if this query of Prometheus has any result. Without an answer, the step fails.
    AskPrometheus(String),
}

/// Where notifications go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// To the log: `configManager.source` is not `OCM`.
    Log,
    /// To OCM.
    Ocm {
        /// Whether the feature gate `ServiceLogNotification` is on.
        service_log: bool,
    },
}

/// A part of sending a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Log the [`log_line`].
    Log,
    /// Post the [`service_log`] entry, as of [`posting`].
    ServiceLog(LogEvent),
    /// Find the [`policy`], get its state, and patch it as of [`policy_write`].
    PolicyState,
}

impl Notice<'_> {
    /// What it is known by.
    pub fn event(&self) -> Event {
        match self {
            Self::Started => Event::Policy(PolicyEvent::Started),
            Self::Delayed | Self::NodeDrainDelayed => Event::Policy(PolicyEvent::Delayed),
            Self::ScaleSkipped => Event::Policy(PolicyEvent::ScaleSkipped),
            Self::Skipped => Event::Policy(PolicyEvent::Skipped),
            Self::Failed => Event::Policy(PolicyEvent::Failed),
            Self::Completed => Event::Policy(PolicyEvent::Completed),
            Self::ControlPlaneStarted => Event::Log(LogEvent::ControlPlaneStarted),
            Self::ControlPlaneFinished => Event::Log(LogEvent::ControlPlaneFinished),
            Self::WorkersFinished => Event::Log(LogEvent::WorkersFinished),
            Self::HealthCheckFailed { .. } => Event::Log(LogEvent::HealthCheckFailed),
            Self::PreHealthCheckFailed { .. } => Event::Log(LogEvent::PreHealthCheckFailed),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(event) => event.fmt(f),
            Self::Log(event) => event.fmt(f),
        }
    }
}

impl PolicyEvent {
    /// The state that it sets in OCM.
    pub fn ocm_state(self) -> OcmState {
        match self {
            Self::Started => OcmState::Started,
            Self::Delayed | Self::ScaleSkipped | Self::Skipped => OcmState::Delayed,
            Self::Failed => OcmState::Failed,
            Self::Completed => OcmState::Completed,
        }
    }

    /// The events that may follow, once it was sent.
    pub fn successors(self) -> &'static [Self] {
        match self {
            Self::Started => &[Self::ScaleSkipped, Self::Delayed, Self::Completed, Self::Failed],
            Self::ScaleSkipped => &[Self::Delayed, Self::Failed, Self::Skipped, Self::Completed],
            Self::Delayed => &[Self::Completed, Self::Failed, Self::Skipped],
            Self::Skipped => &[Self::Completed, Self::Failed],
            Self::Failed | Self::Completed => &[],
        }
    }
}

impl PolicyState {
    /// The events that may be sent in this state.
    ///
    /// Three events set `delayed`, and only its text differs. The original does not recognise
    /// [`PolicyEvent::ScaleSkipped`], and so does not notify of a delay after it; repaired, it does.
    ///
    /// # Errors
    /// The state is not one of OCM.
    pub fn successors(&self, compat: Compat) -> Result<&'static [PolicyEvent], NotifyError> {
        let state = self.value.parse::<OcmState>();
        let state = state.map_err(|_| NotifyError::UnknownState { value: self.value.clone() })?;
        Ok(match state {
            OcmState::Pending | OcmState::Cancelled => &[],
            OcmState::Scheduled => &[PolicyEvent::Started],
            OcmState::Started => PolicyEvent::Started.successors(),
            OcmState::Delayed if self.description.contains("retry") => {
                PolicyEvent::Delayed.successors()
            }
            OcmState::Delayed
                if compat == Compat::Repaired && self.description.contains("skipped Scale-Up") =>
            {
                PolicyEvent::ScaleSkipped.successors()
            }
            OcmState::Delayed => PolicyEvent::Skipped.successors(),
            OcmState::Failed => PolicyEvent::Failed.successors(),
            OcmState::Completed => PolicyEvent::Completed.successors(),
        })
    }
}

/// Whether a notification was sent, for the upgrade with this history.
///
/// Repaired (M5): the history has it, as a condition whose type is the event. In the original, Prometheus has it, as the
/// operator's own metric.
pub fn sent(compat: Compat, event: Event, version: &str, history: Option<&UpgradeHistory>) -> Sent {
    match compat {
        Compat::Strict => Sent::AskPrometheus(format!(
            "upgradeoperator_upgrade_notification{{upgradeconfig_name=\"{NAME}\",event=\"{event}\",version=\"{version}\"}}"
        )),
        Compat::Repaired => {
            let conditions = history.map(|history| &*history.conditions).unwrap_or_default();
            let is_of = |one: &UpgradeCondition| one.type_ == event.to_string();
            let is_sent = conditions.iter().any(|one| is_of(one) && one.status == SENT);
            if is_sent { Sent::Yes } else { Sent::No }
        }
    }
}

/// Status of the condition of a notification that was sent.
const SENT: &str = "True";

/// Notes in the history that a notification was sent. It comes last, as the first condition is shown as the latest step.
pub fn note_sent(
    compat: Compat,
    history: &mut UpgradeHistory,
    event: Event,
    text: &str,
    now: Timestamp,
) {
    match compat {
        Compat::Strict => {}
        Compat::Repaired => note(history, event, SENT, text, now),
    }
}

/// Sets the condition of an event, at the end.
fn note(history: &mut UpgradeHistory, event: Event, status: &str, text: &str, now: Timestamp) {
    let type_ = event.to_string();
    let is_done = status == SENT;
    let now = Some(Time(now));
    history.conditions.retain(|one| one.type_ != type_);
    history.conditions.push(UpgradeCondition {
        status: status.to_owned(),
        last_probe_time: now.clone(),
        last_transition_time: now.clone(),
        start_time: now.clone(),
        complete_time: now.filter(|_| is_done),
        reason: format!("{type_} {}", if is_done { "done" } else { "not done" }),
        message: text.to_owned(),
        type_,
    });
}

/// Whether an upgrade whose steps began at `started`, and which has not commenced, is delayed. A `trigger` of 0 turns that
/// off.
pub fn is_delayed(started: Option<Timestamp>, trigger: SignedDuration, now: Timestamp) -> bool {
    trigger.is_positive() && started.is_some_and(|started| now.duration_since(started) > trigger)
}

/// The parts of sending a notification, in their order.
///
/// In the original, an entry in the service log also needs a matching policy, though it does not change it: without one, the
/// entry is posted at each look. Repaired, it does not need one.
pub fn deliveries(compat: Compat, receiver: Receiver, event: Event) -> Vec<Delivery> {
    match (receiver, event) {
        (Receiver::Log, Event::Policy(_) | Event::Log(_)) => vec![Delivery::Log],
        (Receiver::Ocm { .. }, Event::Policy(_)) => vec![Delivery::PolicyState],
        (Receiver::Ocm { service_log }, Event::Log(event)) => {
            let entry = service_log.then_some(Delivery::ServiceLog(event));
            let policy = (compat == Compat::Strict).then_some(Delivery::PolicyState);
            entry.into_iter().chain(policy).collect()
        }
    }
}

/// The line of a notification in the log.
pub fn log_line(event: Event, text: &str) -> String {
    format!("Upgrade-State: {event} Description: {text}")
}

/// `POST /api/service_logs/v1/cluster_logs`, for the cluster with this ID in OCM.
pub fn service_log(event: LogEvent, text: &str, cluster_id: &str, client: OcmClient) -> Value {
    let mut entry = json!({
        "kind": "LogEntry",
        "cluster_id": cluster_id,
        "severity": "Info",
        "service_name": "RedHat Managed Upgrade Notifications",
        "log_type": "Cluster Updates",
        "internal_only": false,
        "summary": event.summary(),
        "description": text,
    });
    match (client, event.doc_reference()) {
        (OcmClient::Api, Some(reference)) => entry["doc_references"] = json!([reference]),
        // The original's client of the agent does not send references.
        (OcmClient::Api, None) | (OcmClient::Agent, _) => {}
    }
    entry
}

/// The policy of an UpgradeConfig.
///
/// # Errors
/// OCM has no policy of that version at that time.
pub fn policy<'a>(
    policies: &'a [UpgradePolicy],
    version: &str,
    upgrade_at: &str,
) -> Result<&'a UpgradePolicy, NotifyError> {
    let mut policies = policies.iter().rev();
    let is_at = |one: &UpgradePolicy| one.upgrade_at().is_some_and(|at| at == upgrade_at);
    let found = policies.find(|one| one.version == version && is_at(one));
    found.ok_or_else(|| NotifyError::NoPolicy {
        version: version.to_owned(),
        upgrade_at: upgrade_at.to_owned(),
    })
}

/// Whether an event whose policy is gone counts as sent: an upgrade that has commenced is finished without its policy, for which a
/// held UpgradeConfig would wait for ever (M17). The original demands a policy.
pub fn is_needless(compat: Compat, error: &NotifyError, has_commenced: bool) -> bool {
    match (compat, error) {
        (Compat::Repaired, NotifyError::NoPolicy { .. }) => has_commenced,
        (Compat::Repaired, NotifyError::UnknownState { .. }) | (Compat::Strict, _) => false,
    }
}

/// The write that an event makes to the policy. `None` if it may not follow the present state, which counts as sent.
///
/// # Errors
/// The present state is not one of OCM.
pub fn policy_write(
    compat: Compat,
    present: &PolicyState,
    event: Event,
    text: String,
) -> Result<Option<PolicyStateWrite>, NotifyError> {
    let successors = present.successors(compat)?;
    Ok(match event {
        Event::Policy(event) if successors.contains(&event) => {
            Some(PolicyStateWrite { value: event.ocm_state(), description: text })
        }
        Event::Policy(_) | Event::Log(_) => None,
    })
}

/// What `upgrade_notification_failed` of the event is set to, after a notification was sent or could not be. Those of health
/// checks leave it.
pub fn failure_gauge(event: Event, is_sent: bool) -> Option<i64> {
    match event {
        Event::Log(LogEvent::HealthCheckFailed | LogEvent::PreHealthCheckFailed) => None,
        Event::Policy(_)
        | Event::Log(
            LogEvent::ControlPlaneStarted
            | LogEvent::ControlPlaneFinished
            | LogEvent::WorkersFinished,
        ) => Some(i64::from(!is_sent)),
    }
}
