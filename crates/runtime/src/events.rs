//! Events on state changes.
//!
//! An event is written before the change that it announces, under a name derived from its content:
//! a crash between the two neither loses nor duplicates it (`docs/adr/0002`).

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, Resource, ResourceExt as _, api::PostParams};

use crate::Clock;

/// Maximum length of an object name.
const NAME_BYTES: usize = 253;
/// Maximum length of a message that the API server accepts.
const MESSAGE_BYTES: usize = 1024;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Expected.
    Normal,
    /// An operator should look at it.
    Warning,
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// The object that the event is about; the event is in its namespace.
    pub about: ObjectReference,
    /// Severity.
    pub type_: EventType,
    /// CamelCase reason.
    pub reason: String,
    /// The message, in whole sentences.
    pub message: String,
    /// Distinguishes this occurrence from an earlier one with the same text, such as a NodeUpdate's
    /// name.
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
        f.debug_struct("Recorder").field("component", &self.component).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder for the events of a component, such as `refit-controller`.
    pub fn new(client: Client, clock: Clock, component: impl Into<String>) -> Self {
        Self { client, clock, component: component.into() }
    }

    /// Writes the event unless it already exists. A failure is only logged: a missing event stops
    /// no work.
    pub async fn announce(&self, announcement: &Announcement) {
        let event = self.event(announcement);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => {
                tracing::warn!(%error, reason = announcement.reason, "cannot write an event");
            }
        }
    }

    fn event(&self, announcement: &Announcement) -> Event {
        let Announcement { about, type_, reason, message, occurrence } = announcement;
        let now = Time(self.clock.now_seconds());
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(announcement)),
                namespace: Some(namespace_of(about)),
                annotations: Some([("refit.dev/occurrence".to_owned(), occurrence.clone())].into()),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            type_: Some(format!("{type_:?}")),
            reason: Some(reason.clone()),
            message: Some(shortened(message)),
            source: Some(EventSource { component: Some(self.component.clone()), host: None }),
            reporting_component: Some(self.component.clone()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        }
    }
}

/// The event name, derived from the event's content.
fn event_name(announcement: &Announcement) -> String {
    let about = &announcement.about;
    let hash = refit_kinds::refit::hash_json(&serde_json::json!([
        about.kind,
        about.uid,
        announcement.reason,
        announcement.message,
        announcement.occurrence,
    ]));
    let suffix = format!(".{}", &hash[..16]);
    let name: String = about
        .name
        .as_deref()
        .unwrap_or_default()
        .chars()
        .map(|c| match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '-' | '.') => c,
            _ => '-',
        })
        .take(NAME_BYTES - suffix.len())
        .collect();
    // The cut may have left a trailing dash or dot.
    let name = name.trim_matches(['-', '.']);
    let name = if name.is_empty() { "object" } else { name };
    format!("{name}{suffix}")
}

/// An event is in the namespace of its object; for cluster-scoped objects that is `default`.
/// An object as what an event is about.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(object.name_any()),
        namespace: object.namespace(),
        uid: object.uid(),
        ..ObjectReference::default()
    }
}

fn namespace_of(about: &ObjectReference) -> String {
    about
        .namespace
        .clone()
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or_else(|| "default".to_owned())
}

fn shortened(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES {
        return message.to_owned();
    }
    let mut end = MESSAGE_BYTES - "...".len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &message[..end])
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
        assert_eq!(event_name(&announcement("m-1-1")), event_name(&announcement("m-1-1")));
    }

    #[test]
    fn the_next_occurrence_has_another_name() {
        assert_ne!(event_name(&announcement("m-1-1")), event_name(&announcement("m-1-2")));
    }

    #[test]
    fn the_name_is_valid_for_any_object_name() {
        let mut long = announcement("o");
        long.about.name = Some(format!("{}.x", "M".repeat(235)));
        let name = event_name(&long);
        assert!(name.len() <= NAME_BYTES, "{}", name.len());
        assert!(!name.contains("..") && !name.contains(".-") && !name.contains("-."));
        assert_eq!(name, name.to_lowercase());
        let mut odd = announcement("o");
        odd.about.name = Some("system:node:A_b".into());
        assert!(event_name(&odd).starts_with("system-node-a-b."));
        odd.about.name = None;
        assert!(event_name(&odd).starts_with("object."));
    }

    #[test]
    fn an_object_without_namespace_has_its_events_in_default() {
        let mut node = announcement("o").about;
        assert_eq!(namespace_of(&node), "default");
        node.namespace = Some(String::new());
        assert_eq!(namespace_of(&node), "default");
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let short = shortened(&"\u{e9}".repeat(1000));
        assert!(short.len() <= MESSAGE_BYTES && short.ends_with("\u{e9}..."));
        assert_eq!(shortened("all of it"), "all of it");
    }
}
