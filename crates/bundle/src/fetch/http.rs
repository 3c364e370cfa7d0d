//! Fetches bundles from an HTTP server; the registry client shares this code.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{
        ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
        LOCATION, PROXY_AUTHORIZATION, RANGE, USER_AGENT,
    },
};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::{Limits, auth::Credentials, location::shown, proxy::Connector};
use crate::error::Error;

/// Maximum number of redirects: a registry redirects to its storage, plus one on either side.
const MAX_REDIRECTS: usize = 5;
/// Maximum number of bytes buffered ahead per connection.
const READ_AHEAD: usize = 64 << 10;

/// An HTTP client with time limits.
pub(crate) struct Http {
    plain: Client<Connector, Empty<Bytes>>,
    /// Created on first use: reading the system's certificates takes time and memory.
    secure: OnceLock<Client<HttpsConnector<Connector>, Empty<Bytes>>>,
    limits: Limits,
    answer_timeout: Duration,
    silence_timeout: Duration,
    credentials: Credentials,
}

/// A byte range of a file; the end is exclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    from: u64,
    /// `None` means up to the end of the file.
    to: Option<u64>,
}

impl Range {
    /// The range from `from` (inclusive) to `to` (exclusive).
    pub(crate) fn new(from: u64, to: u64) -> Self {
        Self { from, to: Some(to) }
    }
}

/// Optional headers of a request.
#[derive(Default)]
pub(crate) struct RequestOptions {
    /// Fetch only this range.
    pub(crate) range: Option<Range>,
    /// Accepted media types.
    pub(crate) accept: Option<&'static str>,
    /// The `Authorization` header.
    pub(crate) authorization: Option<HeaderValue>,
}

impl RequestOptions {
    /// Requests a byte range.
    pub(crate) fn range(from: u64, to: u64) -> Self {
        Self { range: Some(Range::new(from, to)), ..Self::default() }
    }

    /// Requests all bytes from an offset on.
    pub(crate) fn from(from: u64) -> Self {
        Self { range: Some(Range { from, to: None }), ..Self::default() }
    }
}

/// A response body that is being received.
pub(crate) struct Stream {
    /// Offset of the first byte.
    pub(crate) start: u64,
    /// Length of the body, if the server sent it.
    pub(crate) length: Option<u64>,
    body: Incoming,
    silence_timeout: Duration,
}

impl Http {
    /// Creates a client for any server.
    pub(crate) fn new(limits: &Limits) -> Result<Self, Error> {
        let credentials = match &limits.credentials_file {
            Some(path) => Credentials::load(path)?,
            None => Credentials::default(),
        };
        Ok(Self {
            plain: builder().build(connector(limits)),
            secure: OnceLock::new(),
            limits: limits.clone(),
            answer_timeout: limits.connect_timeout + limits.silence_timeout,
            silence_timeout: limits.silence_timeout,
            credentials,
        })
    }

    /// Returns the HTTPS client; creates it on first use.
    fn secure(&self) -> Result<&Client<HttpsConnector<Connector>, Empty<Bytes>>, Error> {
        if let Some(client) = self.secure.get() {
            return Ok(client);
        }
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(&self.limits)?)
            .https_only()
            .enable_http1()
            .wrap_connector(connector(&self.limits));
        Ok(self.secure.get_or_init(|| builder().build(connector)))
    }

    /// Returns the known credentials.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Requests a file; any response except success is an error.
    pub(crate) async fn open(&self, uri: &Uri, options: &RequestOptions) -> Result<Stream, Error> {
        let basic = match &options.authorization {
            None => self.credentials.basic_for(uri),
            given => given.clone(),
        };
        let options = RequestOptions { authorization: basic, ..*options };
        let response = self.get(uri, &options).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(refused(uri, StatusCode::UNAUTHORIZED));
        }
        self.stream(uri, &options, response)
    }

    /// Reads offset and length of the body from the response headers.
    pub(crate) fn stream(
        &self,
        uri: &Uri,
        options: &RequestOptions,
        response: Response<Incoming>,
    ) -> Result<Stream, Error> {
        let invalid_answer = |problem: String| Error::Answer { url: shown(uri), problem };
        let headers = response.headers();
        if let Some(encoding) = headers.get(CONTENT_ENCODING)
            && encoding != "identity"
        {
            return Err(invalid_answer(format!("unsupported content encoding {encoding:?}")));
        }
        let length = number(headers, &CONTENT_LENGTH);
        let start = match (response.status(), options.range) {
            (StatusCode::PARTIAL_CONTENT, Some(range)) => {
                let start = headers.get(CONTENT_RANGE).and_then(range_start);
                match start {
                    Some(start) if start == range.from => start,
                    _ => {
                        return Err(invalid_answer(
                            "the server sent a range that was not requested".into(),
                        ));
                    }
                }
            }
            (StatusCode::PARTIAL_CONTENT, None) => {
                return Err(invalid_answer(
                    "the server sent a range although none was requested".into(),
                ));
            }
            _ => 0,
        };
        Ok(Stream {
            start,
            length,
            body: response.into_body(),
            silence_timeout: self.silence_timeout,
        })
    }

    /// Sends a GET, follows redirects, and returns a success or a 401, so that the caller can log
    /// in.
    pub(crate) async fn get(
        &self,
        uri: &Uri,
        options: &RequestOptions,
    ) -> Result<Response<Incoming>, Error> {
        let mut at = uri.clone();
        let mut authorization = options.authorization.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&at, options, authorization.as_ref()).await?;
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return match status {
                    StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::UNAUTHORIZED => {
                        Ok(response)
                    }
                    status => Err(refused(&at, status)),
                };
            }
            let next = redirected(&at, response.headers())?;
            if next.authority() != at.authority() || next.scheme() != at.scheme() {
                // A token is only valid for the server that issued it.
                authorization = None;
            }
            at = next;
        }
        Err(Error::Answer {
            url: shown(uri),
            problem: format!("more than {MAX_REDIRECTS} redirects"),
        })
    }

    async fn send(
        &self,
        uri: &Uri,
        options: &RequestOptions,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(uri)
            .header(USER_AGENT, concat!("refit/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT_ENCODING, "identity")
            .header(ACCEPT, options.accept.unwrap_or("*/*"));
        if let Some(Range { from, to }) = options.range {
            let last = to.map_or_else(String::new, |to| to.saturating_sub(1).to_string());
            request = request.header(RANGE, format!("bytes={from}-{last}"));
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let proxy = self.limits.proxies.of_url(uri);
        let proxy = proxy.map_err(|reason| Error::Unreachable { url: shown(uri), reason })?;
        if uri.scheme_str() == Some("http")
            && let Some(proxy) = &proxy
            && let Some(auth) = proxy.basic_auth()
        {
            request = request.header(PROXY_AUTHORIZATION, auth);
        }
        let request =
            request.body(Empty::new()).expect("method, URL and headers are valid by type");
        let answer = match uri.scheme_str() {
            Some("https") => self.secure()?.request(request),
            _ => self.plain.request(request),
        };
        match tokio::time::timeout(self.answer_timeout, answer).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Error::Unreachable { url: shown(uri), reason: chain(&error) }),
            Err(_) => {
                Err(Error::Silent { url: shown(uri), seconds: self.answer_timeout.as_secs() })
            }
        }
    }
}

impl Stream {
    /// Returns the next chunk; `None` at the end. An error gives the cause of the interruption.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let next = tokio::time::timeout(self.silence_timeout, self.body.frame()).await;
            let Ok(frame) = next else {
                let seconds = self.silence_timeout.as_secs();
                return Err(format!("the server sent nothing for {seconds} s"));
            };
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(chain(&error)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    // Trailers, or an empty frame.
                    _ => {}
                },
            }
        }
    }
}

fn connector(limits: &Limits) -> Connector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(limits.connect_timeout));
    Connector { tcp, proxies: limits.proxies.clone() }
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_max_idle_per_host(1).http1_max_buf_size(READ_AHEAD);
    builder
}

fn tls(limits: &Limits) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring knows the default protocol versions");
    if let Some(path) = &limits.ca_file {
        let failed = |reason: String| Error::read(path, std::io::Error::other(reason));
        let mut roots = RootCertStore::empty();
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|e| failed(e.to_string()))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(failed("no certificate in the file".to_owned()));
        }
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    }
    let builder = builder.with_native_roots();
    let builder = builder.map_err(|error| Error::read("/etc/ssl/certs", error))?;
    Ok(builder.with_no_client_auth())
}

/// Converts a status that is not a success to an error.
pub(crate) fn refused(uri: &Uri, status: StatusCode) -> Error {
    let url = shown(uri);
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Error::Missing { what: url },
        _ => Error::Refused {
            url,
            status: status.as_u16(),
            hint: match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    ": the server requires other credentials; add them to the credentials file"
                }
                StatusCode::RANGE_NOT_SATISFIABLE => {
                    ": the file is shorter than stated in the manifest"
                }
                _ => "",
            },
        },
    }
}

/// Resolves the target of a redirect.
fn redirected(from: &Uri, headers: &HeaderMap) -> Result<Uri, Error> {
    let invalid_redirect =
        |problem: &str| Error::Answer { url: shown(from), problem: problem.to_owned() };
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(|| invalid_redirect("redirect without a location"))?;
    let scheme = from.scheme_str().unwrap_or("http");
    let authority = from.authority().map(ToString::to_string).unwrap_or_default();
    let text = if is_absolute(location) {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", from.path())
    } else {
        let directory = from.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        format!("{scheme}://{authority}{directory}/{location}")
    };
    let uri: Uri = text.parse().map_err(|_| invalid_redirect("redirect to an invalid URL"))?;
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if scheme == "http" => Ok(uri),
        Some("http") => Err(invalid_redirect("redirect from HTTPS to plain HTTP")),
        _ => Err(invalid_redirect("redirect to another protocol")),
    }
}

/// Reports whether a reference begins with a scheme. A scheme later in the text is part of a query.
fn is_absolute(location: &str) -> bool {
    location.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

fn number(headers: &HeaderMap, name: &http::HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Returns the first offset of `bytes 5-9/10`.
fn range_start(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?.strip_prefix("bytes ")?;
    text.split_once('-')?.0.trim().parse().ok()
}

/// Formats an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(from: &str, location: &str) -> Result<String, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, location.parse().unwrap());
        redirected(&from.parse().unwrap(), &headers).map(|uri| uri.to_string())
    }

    #[test]
    fn a_redirect_is_resolved_but_never_from_https_to_http() {
        assert_eq!(to("https://a/b/c", "/d").unwrap(), "https://a/d");
        assert_eq!(to("https://a/b/c", "d").unwrap(), "https://a/b/d");
        assert_eq!(to("http://a/b", "//c/d").unwrap(), "http://c/d");
        assert_eq!(to("http://a/b", "https://c/d").unwrap(), "https://c/d");
        // A URL in the query does not make the reference absolute.
        let signed = "/get?from=https://c/d";
        assert_eq!(to("https://a/b", signed).unwrap(), format!("https://a{signed}"));
        assert_eq!(
            to("https://a/b/c", "get?from=http://c/d").unwrap(),
            "https://a/b/get?from=http://c/d"
        );
        assert_eq!(to("https://a/b?x", "?y=ftp://c").unwrap(), "https://a/b?y=ftp://c");
        for bad in ["http://c/d", "ftp://c/d", "https://"] {
            assert!(to("https://a/b", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_start_of_a_content_range_is_parsed() {
        let start = |text: &str| range_start(&text.parse().unwrap());
        assert_eq!(start("bytes 5-9/10"), Some(5));
        assert_eq!(start("bytes */10"), None);
        assert_eq!(start("items 5-9/10"), None);
    }
}
