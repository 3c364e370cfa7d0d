//! The writes that a pass has decided on.

use http::Method;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use refit_kinds::json::{name, text, whole_condition};
use serde_json::{Value, json};

use super::view::{Kind, View};

/// How long after a rejected eviction it is tried again.
const EVICT_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Value,
}

impl Call {
    pub(crate) fn create(path: String, body: Value) -> Self {
        Self { method: Method::POST, path, body }
    }

    pub(crate) fn merge(path: String, body: Value) -> Self {
        Self { method: Method::PATCH, path, body }
    }

    pub(crate) fn delete(path: String, grace_seconds: Option<u32>) -> Self {
        let body = grace_seconds.map_or(json!({}), |grace| json!({"gracePeriodSeconds": grace}));
        Self { method: Method::DELETE, path, body }
    }

    /// Sends the request and returns the object in the response.
    pub(crate) async fn send(self, client: &Client) -> kube::Result<Value> {
        let content_type = if self.method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let body = serde_json::to_vec(&self.body).map_err(kube::Error::SerdeError)?;
        let request = http::Request::builder().method(self.method).uri(self.path);
        let request = request.header(http::header::CONTENT_TYPE, content_type).body(body);
        client.request(request.map_err(kube::Error::HttpError)?).await
    }
}

/// The result of a pass so far.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) view: &'a View,
    /// The writes, in order.
    pub(crate) calls: Vec<Call>,
    /// When the next pass is due if nothing changes earlier.
    pub(crate) wake: Option<Timestamp>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        Self { view, calls: Vec::new(), wake: None }
    }

    /// Whether a duration has passed since a time; requests a pass when it has.
    pub(crate) fn has_elapsed(&mut self, since: Timestamp, duration: SignedDuration) -> bool {
        let duration = duration / self.view.settings.pace;
        let due = since.checked_add(duration).unwrap_or(Timestamp::MAX);
        if due > self.view.now {
            self.wake = Some(self.wake.map_or(due, |wake| wake.min(due)));
        }
        due <= self.view.now
    }

    /// Creates an object.
    pub(crate) fn create(&mut self, kind: Kind, body: Value) {
        let path = kind.collection(text(&body, "/metadata/namespace"));
        self.calls.push(Call::create(path, kind.typed(body)));
    }

    /// Merges a patch into an object, if it changes anything.
    pub(crate) fn merge(&mut self, kind: Kind, object: &Value, patch: Value) {
        self.merge_into(kind, object, "", patch);
    }

    /// Merges a patch into the status of an object, if it changes anything.
    pub(crate) fn status(&mut self, kind: Kind, object: &Value, status: &Value) {
        self.merge_into(kind, object, "/status", json!({ "status": status }));
    }

    fn merge_into(&mut self, kind: Kind, object: &Value, subresource: &str, patch: Value) {
        let mut changed = object.clone();
        json_patch::merge(&mut changed, &patch);
        if changed != *object {
            let path = format!("{}{subresource}", kind.path(object));
            self.calls.push(Call::merge(path, patch));
        }
    }

    /// Deletes an object.
    pub(crate) fn delete(&mut self, kind: Kind, object: &Value) {
        self.calls.push(Call::delete(kind.path(object), None));
    }

    /// Removes a pod at once.
    pub(crate) fn remove_pod(&mut self, pod: &Value) {
        self.calls.push(Call::delete(Kind::Pod.path(pod), Some(0)));
    }

    /// Evicts a pod. If a PodDisruptionBudget rejects it, it is tried again.
    pub(crate) fn evict(&mut self, pod: &Value) {
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name(pod), "namespace": text(pod, "/metadata/namespace")},
        });
        self.calls.push(Call::create(format!("{}/eviction", Kind::Pod.path(pod)), body));
        self.has_elapsed(self.view.now, EVICT_AGAIN);
    }
}

/// A condition as it is to be.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) type_: &'static str,
    pub(crate) status: &'static str,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Condition {
    pub(crate) fn new(
        type_: &'static str,
        status: &'static str,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status, reason: reason.into(), message: message.into() }
    }

    /// One that is `True` or `False`.
    pub(crate) fn flag(type_: &'static str, is_true: bool, message: impl Into<String>) -> Self {
        let status = if is_true { "True" } else { "False" };
        Self::new(type_, status, "AsExpected", message)
    }

    /// With another reason.
    pub(crate) fn because(self, reason: &str) -> Self {
        Self { reason: reason.to_owned(), ..self }
    }
}

/// The conditions of an object as they are to be: one whose status stays keeps its time.
pub(crate) fn conditions(object: &Value, wanted: &[Condition], now: Timestamp) -> Value {
    let shown = wanted.iter().map(|condition| {
        let before = whole_condition(object, condition.type_)
            .filter(|before| before["status"] == condition.status);
        let since =
            before.map_or_else(|| json!(rfc3339(now)), |one| one["lastTransitionTime"].clone());
        json!({
            "type": condition.type_, "status": condition.status, "reason": condition.reason,
            "message": condition.message, "lastTransitionTime": since,
        })
    });
    shown.collect()
}

/// A time as Kubernetes shows it.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
