//! What a failed request to an API server means.

use std::sync::Arc;

use refit_core::report::Refusal;
use refit_runtime::{client::too_large, lease};

pub(crate) use refit_runtime::client::cause;

/// Whether the error means that there was no response, not that the request was refused or that its
/// response makes no sense.
pub(crate) fn is_silence(error: &kube::Error) -> bool {
    if let kube::Error::Api(status) = error {
        return matches!(status.code, 502..=504);
    }
    unreadable(error).is_none() && !lease::is_fenced(error) && too_large(error).is_none()
}

/// What is wrong with a response that cannot be read.
pub(crate) fn unreadable(error: &kube::Error) -> Option<String> {
    if let kube::Error::SerdeError(error) = error {
        return Some(error.to_string());
    }
    if let kube::Error::FromUtf8(error) = error {
        return Some(error.to_string());
    }
    None
}

/// A refusal by authorization or validation; `None` for errors that a retry may resolve.
pub(crate) fn refusal(what: &str, error: &kube::Error) -> Option<Refusal> {
    let kube::Error::Api(status) = error else { return None };
    matches!(status.code, 400 | 403 | 422)
        .then(|| Refusal::ApiRefused { what: what.to_owned(), message: status.message.clone() })
}

/// Why something could not be read for a decision.
#[derive(Clone, Debug)]
pub(crate) enum ReadError {
    /// An object was read, but makes no sense.
    Object(Refusal),
    /// The management cluster did not respond, or refused the request.
    Management(Request),
    /// The workload cluster did not respond, or refused the request.
    Workload(Request),
}

/// A failed request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// What was requested, as a refusal names it.
    what: String,
    pub(crate) error: Arc<kube::Error>,
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Object(refusal) => f.write_str(&refusal.sentence()),
            Self::Management(request) | Self::Workload(request) => {
                write!(f, "{} failed: {}", request.what, cause(&request.error))
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Object(_) => None,
            Self::Management(request) | Self::Workload(request) => Some(request.error.as_ref()),
        }
    }
}

impl ReadError {
    /// Wraps the error of a request to the management cluster.
    pub(crate) fn management(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        |error| Self::Management(Request { what, error: Arc::new(error) })
    }

    /// Wraps the error of a request to the workload cluster.
    pub(crate) fn workload(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        |error| Self::Workload(Request { what, error: Arc::new(error) })
    }

    /// What was requested, if a request failed.
    pub(crate) fn what(&self) -> Option<&str> {
        match self {
            Self::Object(_) => None,
            Self::Management(request) | Self::Workload(request) => Some(&request.what),
        }
    }

    /// The refusal, if its cause must be removed first.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Object(refusal) => Some(refusal.clone()),
            Self::Management(request) | Self::Workload(request) => {
                refusal(&request.what, &request.error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_response_that_is_not_text_is_no_silence() {
        let error = kube::Error::FromUtf8(String::from_utf8(vec![0xff]).unwrap_err());
        assert!(unreadable(&error).is_some_and(|what| what.contains("invalid utf-8")));
        assert!(!is_silence(&error));
    }

    #[test]
    fn only_permanent_errors_are_refusals() {
        let error = |code: u16| {
            let status = json!({"status": "Failure", "message": "no", "reason": "", "code": code});
            kube::Error::Api(serde_json::from_value(status).unwrap())
        };
        for (code, refused) in [
            (400, true),
            (401, false),
            (403, true),
            (404, false),
            (409, false),
            (422, true),
            (429, false),
            (500, false),
            (503, false),
        ] {
            let got = refusal("a write to the Node", &error(code));
            assert_eq!(got.is_some(), refused, "{code}");
        }
    }
}
