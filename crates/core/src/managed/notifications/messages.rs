//! What the receivers of notifications get: a CloudEvent, or a text for Slack.

use std::fmt::Display;

use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use refit_kinds::refit::{
    ClusterUpgrade, ClusterUpgradePlan, Delivery, GROUP, PlanNotification, Receiver,
    UpgradeNotification, UpgradeRecord, VERSION,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{bounded, is_waiting};
use crate::managed::fleet::plan_of;

/// How many characters a text for Slack has at most, before its escapes.
const MAX_TEXT: usize = 1000;

/// A notification of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry<'a> {
    /// Of an upgrade.
    Upgrade(&'a ClusterUpgrade, &'a UpgradeRecord, &'a UpgradeNotification),
    /// Of a plan.
    Plan(&'a ClusterUpgradePlan, &'a PlanNotification),
}

/// An object with notifications in its status.
pub trait Outbox {
    /// Its notifications, the oldest first.
    fn entries(&self) -> Vec<Entry<'_>>;

    /// The deliveries of a notification, by [`Entry::id`].
    fn deliveries_mut(&mut self, id: &str) -> Option<&mut Vec<Delivery>>;

    /// How many notifications wait for a receiver.
    fn waiting(&self, receiver: Receiver) -> usize {
        let entries = self.entries();
        let deliveries = entries.iter().flat_map(Entry::deliveries);
        deliveries.filter(|one| one.receiver == receiver && is_waiting(one)).count()
    }
}

impl Outbox for ClusterUpgrade {
    fn entries(&self) -> Vec<Entry<'_>> {
        let history = self.status.iter().flat_map(|status| status.history.iter().rev());
        let mut entries: Vec<Entry<'_>> = history
            .flat_map(|record| {
                record.notifications.iter().map(move |of| Entry::Upgrade(self, record, of))
            })
            .collect();
        entries.sort_by_key(Entry::time);
        entries
    }

    fn deliveries_mut(&mut self, id: &str) -> Option<&mut Vec<Delivery>> {
        let uid = self.metadata.uid.clone();
        let mut history = self.status.iter_mut().flat_map(|status| &mut status.history);
        history.find_map(|record| {
            let UpgradeRecord { version, notifications, .. } = record;
            let mut all = notifications.iter_mut();
            let found = all.find(|one| upgrade_id(uid.as_deref(), version, one) == id)?;
            Some(&mut found.deliveries)
        })
    }
}

impl Outbox for ClusterUpgradePlan {
    fn entries(&self) -> Vec<Entry<'_>> {
        let all = self.status.iter().flat_map(|status| &status.notifications);
        all.map(|notification| Entry::Plan(self, notification)).collect()
    }

    fn deliveries_mut(&mut self, id: &str) -> Option<&mut Vec<Delivery>> {
        let uid = self.metadata.uid.clone();
        let mut all = self.status.iter_mut().flat_map(|status| &mut status.notifications);
        let found = all.find(|one| plan_id(uid.as_deref(), one) == id)?;
        Some(&mut found.deliveries)
    }
}

fn upgrade_id(uid: Option<&str>, version: &impl Display, of: &UpgradeNotification) -> String {
    format!("{}/{version}/{}/{}", uid.unwrap_or_default(), of.event, of.generation)
}

fn plan_id(uid: Option<&str>, of: &PlanNotification) -> String {
    let PlanNotification { version, event, generation, number, .. } = of;
    format!("{}/{version}/{event}/{generation}/{number}", uid.unwrap_or_default())
}

/// A CloudEvent in the structured mode of its HTTP binding (`docs/facts/notifications.md`).
#[derive(Serialize)]
struct CloudEvent {
    specversion: &'static str,
    id: String,
    source: String,
    #[serde(rename = "type")]
    type_: String,
    subject: String,
    time: String,
    datacontenttype: &'static str,
    data: Value,
}

impl<'a> Entry<'a> {
    /// What distinguishes it from every other notification. It stays the same when it is delivered again.
    pub fn id(&self) -> String {
        match self {
            Self::Upgrade(upgrade, record, of) => {
                upgrade_id(upgrade.metadata.uid.as_deref(), &record.version, of)
            }
            Self::Plan(plan, of) => plan_id(plan.metadata.uid.as_deref(), of),
        }
    }

    /// When it was added.
    pub fn time(&self) -> Timestamp {
        match self {
            Self::Upgrade(_, _, of) => of.time.0,
            Self::Plan(_, of) => of.time.0,
        }
    }

    /// Its deliveries.
    pub fn deliveries(&self) -> &'a [Delivery] {
        match self {
            Self::Upgrade(_, _, of) => &of.deliveries,
            Self::Plan(_, of) => &of.deliveries,
        }
    }

    /// What it is about, as a word.
    pub fn event(&self) -> &'static str {
        match self {
            Self::Upgrade(_, _, of) => of.event.into(),
            Self::Plan(_, of) => of.event.into(),
        }
    }

    /// It as a CloudEvent.
    pub fn cloud_event(&self) -> Value {
        let (source, kind, subject, data) = match self {
            Self::Upgrade(upgrade, record, of) => {
                let (namespace, cluster) =
                    (upgrade.namespace().unwrap_or_default(), upgrade.name_any());
                let plural = ClusterUpgrade::plural(&());
                let source =
                    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}/{cluster}");
                let data = json!({
                    "namespace": namespace,
                    "cluster": cluster,
                    "version": record.version,
                    "precedingVersion": record.preceding_version,
                    "phase": of.phase,
                    "reason": of.reason,
                    "message": of.message,
                    "requestedBy": record.requested_by,
                    "plan": record.requested_by.as_deref().and_then(plan_of),
                });
                (source, "clusterupgrade", cluster, data)
            }
            Self::Plan(plan, of) => {
                let (name, plural) = (plan.name_any(), ClusterUpgradePlan::plural(&()));
                let source = format!("/apis/{GROUP}/{VERSION}/{plural}/{name}");
                let data = json!({
                    "plan": name,
                    "version": of.version,
                    "wave": Some(&of.wave).filter(|wave| !wave.is_empty()),
                    "phase": of.phase,
                    "reason": of.reason,
                    "message": of.message,
                });
                (source, "clusterupgradeplan", name, data)
            }
        };
        let event = CloudEvent {
            specversion: "1.0",
            id: self.id(),
            source,
            type_: format!("dev.refit.{kind}.{}", self.event().to_lowercase()),
            subject,
            time: self.time().to_string(),
            datacontenttype: "application/json",
            data: without_nulls(data),
        };
        json!(event)
    }

    /// It as a message for Slack.
    pub fn slack_message(&self) -> Value {
        let text = match self {
            Self::Upgrade(upgrade, record, of) => {
                let before = record.preceding_version.as_ref();
                let before = before.map(|version| format!(" (from {version})")).unwrap_or_default();
                let namespace = upgrade.namespace().unwrap_or_default();
                let name = upgrade.name_any();
                format!("*{}* {namespace}/{name}{before}: {}", of.event, of.message)
            }
            Self::Plan(plan, of) => {
                let name = plan.name_any();
                format!("*{}* plan {name}, Clusters to {}: {}", of.event, of.version, of.message)
            }
        };
        let text = bounded(&text, MAX_TEXT);
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        json!({ "text": text })
    }
}

/// A JSON object without the members that are unknown.
fn without_nulls(mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    object
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
