//! Proxies of downloads.

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::{
        legacy::connect::{Connected, Connection, HttpConnector, proxy::Tunnel},
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioIo,
};
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// The proxies through which a host downloads. By default, it uses no proxy.
#[derive(Clone, Debug, Default)]
pub struct Proxies(Option<Arc<Matcher>>);

impl Proxies {
    /// The proxies of environment variables: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in any case. Other
    /// variables are ignored. A proxy with another scheme than `http` is an error of the downloads that would use it.
    pub fn of<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut builder, mut is_set) = (Matcher::builder(), false);
        for (name, value) in variables {
            builder = match name.to_ascii_lowercase().as_str() {
                "http_proxy" => builder.http(of_known_scheme(value)),
                "https_proxy" => builder.https(of_known_scheme(value)),
                "all_proxy" => builder.all(of_known_scheme(value)),
                "no_proxy" => builder.no(value.to_owned()),
                _ => continue,
            };
            is_set = true;
        }
        Self(is_set.then(|| Arc::new(builder.build())))
    }

    /// The proxy for a URL. Like Go's clients, loopback addresses are reached directly. The error names the variables of
    /// a proxy that is not spoken to in plain HTTP, so that its password is not sent in clear text.
    pub(super) fn of_url(&self, url: &Uri) -> Result<Option<Intercept>, String> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let matcher = self.0.as_ref().filter(|_| !is_loopback);
        match matcher.and_then(|matcher| matcher.intercept(url)) {
            Some(proxy) if proxy.uri().scheme_str() != Some("http") => Err(format!(
                "the proxy in {}_PROXY or ALL_PROXY has another scheme than http; use a proxy with \
                 http://, or add the host to NO_PROXY",
                url.scheme_str().unwrap_or_default().to_ascii_uppercase()
            )),
            proxy => Ok(proxy),
        }
    }
}

/// The proxy with a scheme that the matcher knows: it would ignore a proxy with any other one.
fn of_known_scheme(proxy: &str) -> String {
    match proxy.split_once("://") {
        Some((scheme, rest)) if !scheme.eq_ignore_ascii_case("http") => format!("https://{rest}"),
        _ => proxy.to_owned(),
    }
}

/// Connects to servers directly or through proxies.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tcp: HttpConnector,
    pub(super) proxies: Proxies,
}

impl Service<Uri> for Connector {
    type Response = ProxyStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ProxyStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(BoxError::from)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let proxy = self.proxies.of_url(&url);
        let is_forwarded = matches!(proxy, Ok(Some(_))) && url.scheme_str() == Some("http");
        let mut tcp = self.tcp.clone();
        Box::pin(async move {
            let stream = match proxy? {
                None => tcp.call(url).await?,
                Some(proxy) if is_forwarded => tcp.call(proxy.uri().clone()).await?,
                Some(proxy) => {
                    let mut tunnel = Tunnel::new(proxy.uri().clone(), tcp);
                    if let Some(auth) = proxy.basic_auth() {
                        tunnel = tunnel.with_auth(auth.clone());
                    }
                    tunnel.call(url).await?
                }
            };
            Ok(ProxyStream { stream, is_forwarded })
        })
    }
}

/// A stream to a server, or to a proxy that forwards requests.
pub(super) struct ProxyStream {
    stream: TokioIo<TcpStream>,
    /// Whether the peer is a proxy, which is sent the whole URL.
    is_forwarded: bool,
}

impl Connection for ProxyStream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_forwarded)
    }
}

impl Read for ProxyStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for ProxyStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::fetch::{
        Limits,
        http::{Http, RequestOptions},
    };

    #[test]
    fn proxies_are_read_from_variables_of_any_case() {
        let proxies = Proxies::of([
            ("http_proxy", "http://me:secret@plain.test:1"),
            ("HTTPS_PROXY", "secure.test:2"),
            ("No_Proxy", ".internal.test,10.0.0.0/8"),
            ("PATH", "/bin"),
        ]);
        for (url, expected) in [
            ("http://files.test/x", Some("http://plain.test:1/")),
            ("https://files.test/x", Some("http://secure.test:2/")),
            ("https://mirror.internal.test", None),
            ("http://10.1.2.3/x", None),
            ("http://localhost:8080/x", None),
            ("https://[::1]/x", None),
        ] {
            let found = proxies.of_url(&url.parse().unwrap()).unwrap();
            let found = found.map(|proxy| proxy.uri().to_string());
            assert_eq!(found.as_deref(), expected, "{url}");
        }
        assert!(!format!("{proxies:?}").contains("secret"));
        let none = Proxies::of([("PATH", "/bin")]);
        assert!(none.of_url(&"http://files.test".parse().unwrap()).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_proxy_with_another_scheme_than_http_is_an_error_of_the_download() {
        for scheme in ["https", "socks5", "socks5h", "SOCKS4", "quic"] {
            let proxy = format!("{scheme}://me:secret@proxy.test:1");
            let proxies = Proxies::of([("ALL_PROXY", proxy.as_str()), ("NO_PROXY", "near.test")]);
            for (url, expected) in [
                ("http://files.test/x", "the proxy in HTTP_PROXY or ALL_PROXY"),
                ("https://files.test/x", "the proxy in HTTPS_PROXY or ALL_PROXY"),
            ] {
                let url: Uri = url.parse().unwrap();
                let limits = Limits { proxies: proxies.clone(), ..Limits::default() };
                let http = Http::new(&limits).unwrap();
                let outcome = http.open(&url, &RequestOptions::default()).await;
                let error = outcome.map(drop).unwrap_err().to_string();
                assert!(error.contains(expected) && error.contains("NO_PROXY"), "{proxy}: {error}");
                assert!(!error.contains("secret"), "{error}");
            }
            for url in ["https://near.test/x", "http://127.0.0.1:1/x"] {
                let found = proxies.of_url(&url.parse().unwrap()).unwrap();
                assert!(found.is_none(), "{proxy}: {url}");
            }
        }
    }

    /// Sends a request through a proxy that answers with `response`; returns what the proxy was sent.
    async fn sent(url: &str, response: &'static str) -> (String, Result<(), String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://me:secret@{}", listener.local_addr().unwrap());
        let limits =
            Limits { proxies: Proxies::of([("ALL_PROXY", proxy.as_str())]), ..Limits::default() };
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(response.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let http = Http::new(&limits).unwrap();
        let url: Uri = url.parse().unwrap();
        let options = RequestOptions::default();
        let (head, outcome) = tokio::join!(serving, http.open(&url, &options));
        (head, outcome.map(drop).map_err(|error| error.to_string()))
    }

    #[tokio::test]
    async fn plain_downloads_are_forwarded_and_others_tunnelled_by_the_proxy() {
        let (head, outcome) =
            sent("http://files.test/a/b", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        outcome.unwrap();
        let head = head.to_lowercase();
        assert!(head.starts_with("get http://files.test/a/b http/1.1\r\n"), "{head}");
        assert!(head.contains("proxy-authorization: basic bwu6c2vjcmv0"), "{head}");
        let (head, outcome) =
            sent("https://files.test/a/b", "HTTP/1.1 403 Forbidden\r\n\r\n").await;
        let head = head.to_lowercase();
        assert!(head.starts_with("connect files.test:443 http/1.1\r\n"), "{head}");
        assert!(head.contains("proxy-authorization: basic bwu6c2vjcmv0"), "{head}");
        let error = outcome.unwrap_err();
        assert!(error.contains("https://files.test/a/b") && !error.contains("secret"), "{error}");
    }
}
