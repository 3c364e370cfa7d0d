//! Requests to servers that are not Kubernetes. Each has a deadline, and the size of its answer is limited.

use std::{
    borrow::Cow,
    error::Error,
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, LOCATION},
};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy;
use kube::{Client, client::Body};
use refit_openshift::url::without_credentials;
use refit_runtime::client::{ClientStack, chain, too_large};

/// How long a request may take, with its answer.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// The deadline of the stack, longer than any other: those of dependencies are up to a minute.
const LONGEST: Duration = Duration::from_mins(2);
/// Maximum size of an answer: version graphs have some MiB.
const MAX_ANSWER: usize = 32 << 20;
/// How many redirects are followed, as Go does.
const MAX_REDIRECTS: usize = 10;

/// A client for all servers. It is built, and reads the authorities of the system, when it is needed.
#[derive(Clone)]
pub(super) struct Web(Arc<LazyLock<Built, Box<dyn FnOnce() -> Built + Send>>>);

type Built = Result<Client, String>;

/// An answer with its body.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// Why a request had no answer.
#[derive(Debug)]
pub(super) struct NoAnswer {
    /// What goes on in a sentence, without the URL.
    pub(super) why: String,
    pub(super) kind: NoAnswerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswerKind {
    /// The server does not have the request.
    Unsent,
    /// The server may have processed the request.
    Broken,
    /// The deadline has passed.
    Late,
}

impl NoAnswer {
    /// Of a request that cannot be made.
    pub(super) fn unsent(why: impl Into<String>) -> Self {
        Self { why: why.into(), kind: NoAnswerKind::Unsent }
    }
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// What a request that follows redirects sends besides its URL.
#[derive(Clone, Default)]
pub(super) struct Headers {
    pub(super) accept: Option<&'static str>,
    /// Only to the host of the first URL.
    pub(super) authorization: Option<HeaderValue>,
}

/// Where redirects may lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Redirects {
    /// From HTTPS only to HTTPS.
    Secure,
    /// Anywhere: what is sent and received there is not used.
    Any,
}

impl Web {
    pub(super) fn new(stack: &ClientStack) -> Self {
        let stack = stack.clone().with_deadline(LONGEST).with_max_answer(MAX_ANSWER);
        let build = move || stack.web_client().map_err(|error| error.to_string());
        Self(Arc::new(LazyLock::new(Box::new(build))))
    }

    /// Sends a request, and reads its answer.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
        deadline: Duration,
    ) -> Result<Answer, NoAnswer> {
        within(deadline, async { read(self.begin(request).await?).await }).await
    }

    /// Gets a URL, and reads its answer.
    pub(super) async fn get(
        &self,
        url: &Uri,
        headers: &Headers,
        deadline: Duration,
    ) -> Result<Answer, NoAnswer> {
        within(deadline, async { read(self.follow(url, headers, Redirects::Secure).await?).await })
            .await
    }

    /// Gets a URL for its status.
    pub(super) async fn status(
        &self,
        url: &Uri,
        deadline: Option<Duration>,
    ) -> Result<StatusCode, NoAnswer> {
        let headers = Headers::default();
        let response = self.follow(url, &headers, Redirects::Any);
        let response = match deadline {
            Some(deadline) => within(deadline, response).await,
            None => response.await,
        };
        response.map(|response| response.status())
    }

    async fn begin(&self, request: Request<Body>) -> Result<Response<Body>, NoAnswer> {
        let client = LazyLock::force(&self.0).as_ref().map_err(NoAnswer::unsent)?;
        client.send(request).await.map_err(|error| no_answer(&error))
    }

    /// Gets a URL, and follows redirects.
    async fn follow(
        &self,
        url: &Uri,
        headers: &Headers,
        redirects: Redirects,
    ) -> Result<Response<Body>, NoAnswer> {
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::get(&at);
            if let Some(accept) = headers.accept {
                request = request.header(ACCEPT, accept);
            }
            if let Some(authorization) = &headers.authorization
                && (at.scheme(), at.authority()) == (url.scheme(), url.authority())
            {
                request = request.header(AUTHORIZATION, authorization);
            }
            let request =
                request.body(Body::empty()).map_err(|error| NoAnswer::unsent(error.to_string()))?;
            let response = self.begin(request).await?;
            let location = response.headers().get(LOCATION);
            let (true, Some(location)) = (response.status().is_redirection(), location) else {
                return Ok(response);
            };
            at = redirected(&at, location, redirects)?;
        }
        Err(NoAnswer::unsent(format!("it redirects more than {MAX_REDIRECTS} times")))
    }
}

async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, NoAnswer>>,
) -> Result<T, NoAnswer> {
    tokio::time::timeout(deadline, Box::pin(answer)).await.unwrap_or_else(|_| {
        let why = format!("no answer within {} s", deadline.as_secs_f64());
        Err(NoAnswer { why, kind: NoAnswerKind::Late })
    })
}

async fn read(response: Response<Body>) -> Result<Answer, NoAnswer> {
    let (parts, body) = response.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|error| NoAnswer { kind: NoAnswerKind::Broken, ..no_answer(&error) })?;
    let body = body.to_bytes().to_vec();
    Ok(Answer { status: parts.status, headers: parts.headers, body })
}

fn no_answer(error: &kube::Error) -> NoAnswer {
    let (mut next, mut is_unsent): (Option<&dyn Error>, _) = (Some(error), false);
    while let Some(error) = next {
        let failed = error.downcast_ref::<legacy::Error>();
        is_unsent |= failed.is_some_and(legacy::Error::is_connect);
        next = error.source();
    }
    let kind = if is_unsent { NoAnswerKind::Unsent } else { NoAnswerKind::Broken };
    NoAnswer { why: cause(error), kind }
}

/// The cause of an error of a client.
pub(super) fn cause(error: &kube::Error) -> String {
    if let Some(what) = too_large(error) {
        return what.to_string();
    }
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    if let kube::Error::Service(inner) = error { chain(&**inner) } else { chain(error) }
}

/// Parses a URL of `http` or `https`. A user name and a password are not sent: a URL with them is an error, without them.
pub(super) fn url(text: &str) -> Result<Uri, NoAnswer> {
    let shown = without_credentials(text);
    if matches!(shown, Cow::Owned(_)) {
        return Err(NoAnswer::unsent(format!(
            "invalid URL {shown:?} with a user name or password, remove them"
        )));
    }
    let url = text.parse::<Uri>().ok().filter(|url| url.host().is_some());
    let is_web = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https"));
    url.filter(is_web).ok_or_else(|| {
        NoAnswer::unsent(format!("invalid URL {text:?}, expected https://HOST/PATH"))
    })
}

/// A query, encoded.
pub(super) fn encoded<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// Resolves the target of a redirect.
fn redirected(from: &Uri, location: &HeaderValue, redirects: Redirects) -> Result<Uri, NoAnswer> {
    let location = location.to_str().unwrap_or_default();
    let (scheme, authority) = (from.scheme_str().unwrap_or_default(), from.authority());
    let authority = authority.map(ToString::to_string).unwrap_or_default();
    let location = location.split('#').next().unwrap_or_default();
    let text = match location {
        _ if location.contains("://") => location.to_owned(),
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ => {
            let directory = from.path().rsplit_once('/').map_or("", |(directory, _)| directory);
            format!("{scheme}://{authority}{directory}/{location}")
        }
    };
    let target = url(&text)?;
    let is_secured = redirects == Redirects::Secure && scheme == "https";
    if is_secured && target.scheme_str() != Some("https") {
        return Err(NoAnswer::unsent(format!("it redirects from HTTPS to {text}")));
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_resolved_and_from_https_to_http_only_for_its_status() {
        let from: Uri = "https://a.example:1/b/c?d=e".parse().unwrap();
        let target =
            |location: &str| redirected(&from, &location.parse().unwrap(), Redirects::Secure);
        for (location, wanted) in [
            ("https://o.example/x?y#z", "https://o.example/x?y"),
            ("//o.example/x", "https://o.example/x"),
            ("/x", "https://a.example:1/x"),
            ("x", "https://a.example:1/b/x"),
        ] {
            assert_eq!(target(location).unwrap().to_string(), wanted);
        }
        for invalid in ["http://a.example/x", "ftp://a.example/x", "https://"] {
            assert!(target(invalid).is_err(), "{invalid}");
        }
        let insecure = HeaderValue::from_static("http://a.example/x");
        assert!(redirected(&from, &insecure, Redirects::Any).is_ok());
    }

    #[test]
    fn an_invalid_url_shows_no_password() {
        for text in ["https://user:secret@o.example/x", "https://user:sec/ret@o.example/x"] {
            let error = url(text).unwrap_err().to_string();
            let wanted =
                "invalid URL \"https://o.example/x\" with a user name or password, remove them";
            assert_eq!(error, wanted);
        }
        for text in ["https://o.example:1/@x", "https://[::1]:8080/x"] {
            assert_eq!(url(text).unwrap().to_string(), text);
        }
        assert!(url("o.example").is_err());
    }
}
