//! Events on state changes.
//!
//! An event is written before the change that it announces, under a name that follows from what it
//! says: a crash between the two neither loses nor doubles it (`docs/adr/0002`).

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, api::PostParams};

use crate::Clock;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// As planned.
    Normal,
    /// Somebody should look.
    Warning,
}

/// What is announced.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// The object that the event is about; its namespace is the event's.
    pub about: ObjectReference,
    /// Severity.
    pub type_: EventType,
    /// CamelCase reason.
    pub reason: String,
    /// A whole sentence.
    pub message: String,
    /// Tells this occurrence from an earlier one of the same words, such as a NodeUpdate's name.
    pub occurrence: String,
}

/// Writes events for one component.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    clock: Clock,
    component: String,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("component", &self.component)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder for events of this component, such as `refit-controller`.
    pub fn new(client: Client, clock: Clock, component: impl Into<String>) -> Self {
        Self {
            client,
            clock,
            component: component.into(),
        }
    }

    /// Writes the event unless it is there already. A failure is logged: no work stops for want of
    /// an event.
    pub async fn announce(&self, announcement: &Announcement) {
        let event = self.event(announcement);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => {
                tracing::warn!(%error, reason = announcement.reason, "an event could not be written");
            }
        }
    }

    fn event(&self, announcement: &Announcement) -> Event {
        let Announcement {
            about,
            type_,
            reason,
            message,
            occurrence,
        } = announcement;
        let now = Time(self.clock.now_seconds());
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(announcement)),
                namespace: Some(
                    about
                        .namespace
                        .clone()
                        .unwrap_or_else(|| "default".to_owned()),
                ),
                annotations: Some([("refit.dev/occurrence".to_owned(), occurrence.clone())].into()),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            type_: Some(format!("{type_:?}")),
            reason: Some(reason.clone()),
            message: Some(message.clone()),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: None,
            }),
            reporting_component: Some(self.component.clone()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        }
    }
}

/// The name that follows from what an event says.
fn event_name(announcement: &Announcement) -> String {
    let about = &announcement.about;
    let hash = refit_api::refit::hash_json(&serde_json::json!([
        about.kind,
        about.uid,
        announcement.reason,
        announcement.message,
        announcement.occurrence,
    ]));
    format!(
        "{}.{}",
        about.name.as_deref().unwrap_or("object"),
        &hash[..16]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(occurrence: &str) -> Announcement {
        Announcement {
            about: ObjectReference {
                name: Some("m-1".into()),
                uid: Some("u".into()),
                ..Default::default()
            },
            type_: EventType::Normal,
            reason: "Draining".into(),
            message: "The node is drained.".into(),
            occurrence: occurrence.into(),
        }
    }

    #[test]
    fn the_same_occurrence_has_the_same_name() {
        assert_eq!(
            event_name(&announcement("m-1-1")),
            event_name(&announcement("m-1-1"))
        );
    }

    #[test]
    fn the_next_occurrence_has_another_name() {
        assert_ne!(
            event_name(&announcement("m-1-1")),
            event_name(&announcement("m-1-2"))
        );
    }
}
