//! Stand-ins for the receivers of notifications: a server that takes CloudEvents, and the webhook of Slack. They check what a
//! real one checks, and keep what they took.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_TYPE, LOCATION, RETRY_AFTER},
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use jiff::Timestamp;
use refit_controller::SlackSettings;
use refit_kinds::refit::Receiver;
use refit_runtime::{Clock, net::Listener, serve, tls};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    pki::Identity,
    world::{WorldError, lock},
};

/// Their host name.
pub(crate) const HOST: &str = "receivers.notify.svc";
/// Their port.
pub(crate) const PORT: u16 = 443;
/// When Slack is to be tried again that answers with status 429, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("120");

/// Both of them.
#[derive(Clone, Debug)]
pub(crate) struct Receivers {
    identity: Arc<Identity>,
    files: Arc<TempDir>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    troubles: BTreeMap<Receiver, Refuses>,
    messages: Vec<Message>,
}

/// How a receiver is out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refuses {
    /// It takes messages, and does not answer.
    Answer,
    /// It answers with this status.
    With(StatusCode),
}

/// What a receiver took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) at: Timestamp,
    pub(crate) receiver: Receiver,
    /// The type of a CloudEvent and its id without the uid.
    pub(crate) event: String,
    pub(crate) text: String,
}

fn path(receiver: Receiver) -> &'static str {
    match receiver {
        Receiver::CloudEvents => "/cloudevents",
        Receiver::Slack => "/services/T0/B0/secret",
    }
}

impl Receivers {
    /// Receivers that took nothing yet.
    pub(crate) fn new() -> Result<Self, WorldError> {
        let files = tempfile::tempdir().map_err(WorldError::Files)?;
        let receivers = Self {
            identity: Arc::new(Identity::new("receivers", &[HOST])?),
            files: Arc::new(files),
            state: Arc::default(),
        };
        let url = format!("{}\n", Self::url(Receiver::Slack));
        fs::write(receivers.url_file(), url).map_err(WorldError::Files)?;
        fs::write(receivers.ca_file(), receivers.identity.ca.cert()).map_err(WorldError::Files)?;
        Ok(receivers)
    }

    fn url(receiver: Receiver) -> String {
        format!("https://{HOST}{}", path(receiver))
    }

    fn url_file(&self) -> PathBuf {
        self.files.path().join("url")
    }

    fn ca_file(&self) -> PathBuf {
        self.files.path().join("ca.crt")
    }

    /// How the controller reaches the one for CloudEvents.
    pub(crate) fn cloud_events(&self) -> kube::Config {
        let url = Self::url(Receiver::CloudEvents).parse().expect("it is a constant URL");
        let mut config = kube::Config::new(url);
        config.root_cert_file = Some(self.ca_file());
        config
    }

    /// How the controller reaches the one for messages of Slack.
    pub(crate) fn slack(&self) -> SlackSettings {
        SlackSettings { url_file: self.url_file(), ca_file: Some(self.ca_file()) }
    }

    /// Sets how a receiver is out of order.
    pub(crate) fn set_trouble(&self, receiver: Receiver, trouble: Option<Refuses>) {
        let troubles = &mut lock(&self.state).troubles;
        match trouble {
            Some(trouble) => troubles.insert(receiver, trouble),
            None => troubles.remove(&receiver),
        };
    }

    /// What they took so far.
    pub(crate) fn messages(&self) -> Vec<Message> {
        lock(&self.state).messages.clone()
    }

    /// Serves both, without end.
    pub(crate) fn serve(
        self,
        listener: Listener,
        clock: Clock,
    ) -> Result<impl Future<Output = ()>, WorldError> {
        let tls = tls::server_config(self.identity.server.reloadable()?)?;
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let receivers = self.clone();
            async move { Ok::<_, Infallible>(receivers.answer(request, clock.now_seconds()).await) }
        });
        Ok(serve::serve(listener, Some(tls), service, std::future::pending()))
    }

    async fn answer(&self, request: Request<Incoming>, at: Timestamp) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let known = [Receiver::CloudEvents, Receiver::Slack];
        let receiver = known.into_iter().find(|one| path(*one) == parts.uri.path());
        let Some(receiver) = receiver else { return respond(StatusCode::NOT_FOUND, "no_service") };
        let media_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let body = body.collect().await.map(http_body_util::Collected::to_bytes);
        let body: Option<Value> = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
        let read = body.and_then(|body| read(receiver, media_type, &body));
        let Some((event, text)) = read else {
            return respond(StatusCode::BAD_REQUEST, "invalid_payload");
        };
        let trouble = lock(&self.state).troubles.get(&receiver).copied();
        if let Some(Refuses::With(status)) = trouble {
            return respond(status, "");
        }
        lock(&self.state).messages.push(Message { at, receiver, event, text });
        if trouble == Some(Refuses::Answer) {
            std::future::pending().await
        } else {
            respond(StatusCode::OK, "ok")
        }
    }
}

/// What a message is about, if it is valid.
fn read(receiver: Receiver, media_type: Option<&str>, body: &Value) -> Option<(String, String)> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    match receiver {
        Receiver::CloudEvents => {
            let is_event = media_type == Some("application/cloudevents+json")
                && body["specversion"] == "1.0"
                && text(&body["source"]).is_some()
                && body["time"].as_str()?.parse::<Timestamp>().is_ok();
            let id = text(&body["id"]).filter(|_| is_event)?;
            let (_uid, id) = id.split_once('/')?;
            let event = format!("{} {} {id}", text(&body["type"])?, text(&body["subject"])?);
            Some((event, text(&body["data"]["message"])?))
        }
        Receiver::Slack => {
            let is_json = media_type == Some("application/json");
            Some((String::new(), text(&body["text"]).filter(|_| is_json)?))
        }
    }
}

fn respond(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    }
    if status.is_redirection() {
        headers.insert(LOCATION, HeaderValue::from_static(path(Receiver::CloudEvents)));
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_stand_ins_take_only_valid_messages() {
        let event = json!({
            "specversion": "1.0", "id": "uid/v1/Started/1", "source": "/s", "type": "t",
            "subject": "c", "time": "2026-03-02T08:00:00Z", "data": {"message": "It is so."},
        });
        let media_type = Some("application/cloudevents+json");
        let of_event = |event: &Value| read(Receiver::CloudEvents, media_type, event);
        let wanted = ("t c v1/Started/1".to_owned(), "It is so.".to_owned());
        assert_eq!(of_event(&event), Some(wanted));
        for missing in ["specversion", "id", "source", "type", "time", "data"] {
            let mut event = event.clone();
            event[missing] = Value::Null;
            assert_eq!(of_event(&event), None, "{missing}");
        }
        assert_eq!(read(Receiver::CloudEvents, Some("application/json"), &event), None);
        let slack = |body| read(Receiver::Slack, Some("application/json"), &body);
        assert!(slack(json!({"text": "hello"})).is_some());
        assert!(slack(json!({"text": ""})).is_none());
    }
}
