//! The requests of the suite: which failures pass by themselves, and which refuse what is written.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use kube::{Client, client::Body, core::Status};
use refit_runtime::clock::instant;
use serde_json::Value;

use crate::printer::{Printer, duration};

/// How long to wait before a request is sent again.
const SEND_AGAIN: Duration = Duration::from_secs(1);
/// How often a request that is sent again is shown.
const SHOW_AGAIN: Duration = Duration::from_secs(30);

/// Sends requests again that failed for a reason that passes by itself: without an answer, with 429, or with
/// 5xx.
///
/// kube's own policy (`docs/facts/kube-rs.md#retries`) does that for 429, 503 and 504 alone, and silently. The
/// clients of [`refit_runtime::client`] never do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retries {
    limit: Duration,
    printer: Printer,
}

impl Retries {
    /// Retries until a request has taken this long.
    pub(super) fn new(limit: Duration, printer: Printer) -> Self {
        Self { limit, printer }
    }

    /// A client that sends failed requests again, except for watches.
    pub(super) fn client(self, inner: &Client) -> Client {
        let namespace = inner.default_namespace().to_owned();
        let inner = inner.clone();
        Client::new(tower::service_fn(move |request| self.send(inner.clone(), request)), namespace)
    }

    async fn send(self, client: Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        let query = request.uri().query().unwrap_or_default();
        if query.split('&').any(|pair| pair == "watch=true") {
            return client.send(request).await;
        }
        let (parts, body) = request.into_parts();
        let start = instant();
        let mut shown = None;
        loop {
            let Some(copy) = body.try_clone() else {
                return client.send(Request::from_parts(parts, body)).await;
            };
            let answer = whole(client.send(Request::from_parts(parts.clone(), copy)).await).await;
            let Some(why) = transient(&answer) else {
                return answer.map(|answer| answer.map(Body::from));
            };
            let now = instant();
            if now + SEND_AGAIN >= start + self.limit {
                return answer.map(|answer| answer.map(Body::from));
            }
            if shown.is_none_or(|last| now >= last + SHOW_AGAIN) {
                shown = Some(now);
                let limit = duration(i64::try_from(self.limit.as_secs()).unwrap_or(i64::MAX));
                // The next progress line reports a closed pipe.
                let _ = self.printer.note(&format!(
                    "{} {} failed: {why}; trying again for {limit} at most",
                    parts.method,
                    parts.uri.path()
                ));
            }
            tokio::time::sleep(SEND_AGAIN).await;
        }
    }
}

/// Reads the body, too: a connection may be lost while it is sent.
async fn whole(answer: kube::Result<Response<Body>>) -> kube::Result<Response<Vec<u8>>> {
    let (parts, body) = answer?.into_parts();
    Ok(Response::from_parts(parts, body.collect_bytes().await?.into()))
}

/// Why a request failed, if it may succeed later.
fn transient(answer: &kube::Result<Response<Vec<u8>>>) -> Option<String> {
    match answer {
        Ok(answer) => {
            let code = answer.status();
            if code != StatusCode::TOO_MANY_REQUESTS && !code.is_server_error() {
                return None;
            }
            let status = serde_json::from_slice::<Value>(answer.body()).unwrap_or_default();
            let message = status.get("message").and_then(Value::as_str).unwrap_or_default();
            Some(format!("{code} {message}").trim_end().to_owned())
        }
        Err(error) if matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_)) => {
            let mut last: &dyn std::error::Error = error;
            while let Some(cause) = last.source() {
                last = cause;
            }
            Some(last.to_string())
        }
        Err(_) => None,
    }
}

/// Whether the API server refuses what is written, and not the user who writes it.
///
/// Refit would be refused in the same way, so it is a fault of the provider's definition or of a webhook. A 400
/// or 422 is always about the object. A 403 has several authors, and the same reason for all, but not the same
/// message (`docs/facts/kubernetes.md#refused-writes`): an admission webhook's begins with its name, a
/// ValidatingAdmissionPolicy's has its name after `is forbidden:`, and there authorization has `User "x"
/// cannot`. Any other 403, such as an exceeded quota or a namespace that is being deleted, is not the provider's
/// either. Only the beginning counts: an admission webhook may return any text after it, with any code.
pub(super) fn refuses_object(status: &Status) -> bool {
    let message = status.message.as_str();
    let by_webhook = message.strip_prefix("admission webhook \"").is_some_and(|rest| {
        rest.split_once('"').is_some_and(|(_, rest)| rest.starts_with(" denied the request"))
    });
    let reason = message.split_once(" is forbidden: ").map_or("", |(_, reason)| reason);
    let by_policy = reason.starts_with("ValidatingAdmissionPolicy '");
    matches!(status.code, 400 | 422) || by_webhook || by_policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_user_is_no_refused_object() {
        let webhook = "admission webhook \"check.memory.example\" denied the request: ";
        let policy = "memoryupdates.memory.example \"u\" is forbidden: ValidatingAdmissionPolicy 'p' \
                      with binding 'b' denied request: no";
        let forbidden = "memoryupdates.memory.example \"u\" is forbidden: ";
        let user = "User \"me\" cannot patch resource \"memoryupdates\" in API group \
                    \"memory.example\" in the namespace \"default\"";
        let table = [
            (400, "invalid object".to_owned(), true),
            (422, "MemoryUpdate \"u\" is invalid: spec: Invalid value".to_owned(), true),
            (403, format!("{webhook}no"), true),
            (403, format!("{webhook}{forbidden}{user}"), true),
            (403, webhook.replace(": ", " without explanation"), true),
            (409, format!("{webhook}no"), true),
            (403, policy.to_owned(), true),
            (422, policy.to_owned(), true),
            (403, format!("{forbidden}{user}"), false),
            (403, format!("{forbidden}{user}: {webhook}no"), false),
            (403, format!("{forbidden}{}", user.replace("me", "x is forbidden: y")), false),
            (403, format!("{forbidden}exceeded quota: q, requested: count=1"), false),
            (403, String::new(), false),
            (401, "Unauthorized".to_owned(), false),
            (404, "not found".to_owned(), false),
            (409, "the object has been modified".to_owned(), false),
            (500, "failed calling webhook \"check.memory.example\": timeout".to_owned(), false),
        ];
        for (code, message, refuses) in table {
            let status = Status { code, message: message.clone(), ..Status::failure("", "") };
            assert_eq!(refuses_object(&status), refuses, "{code} {message}");
        }
    }

    #[tokio::test]
    async fn only_failures_that_pass_by_themselves_are_sent_again() {
        for (code, passes) in
            [(200, false), (404, false), (409, false), (429, true), (500, true), (503, true)]
        {
            let answer = Response::builder().status(code);
            let answer = answer.body(br#"{"message": "why"}"#.to_vec()).unwrap();
            let why = transient(&Ok(answer));
            assert_eq!(why.is_some(), passes, "{code}");
            assert!(why.is_none_or(|why| why.ends_with(" why")), "{code}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = kube::Error::Service(refused.into());
        assert_eq!(transient(&Err(error)).as_deref(), Some("connection refused"));
        let invalid = serde_json::from_str::<Value>("{").unwrap_err();
        assert_eq!(transient(&Err(kube::Error::SerdeError(invalid))), None);
    }
}
