//! Proxies of the environment.

use std::{io, net::IpAddr};

use http::Uri;
use hyper_util::client::{
    legacy::connect::proxy::Tunnel,
    proxy::matcher::{Intercept, Matcher},
};
use tower::{Service as _, ServiceExt as _};

use super::connect::{ClientStream, Connector};

/// The proxies of a process.
#[derive(Debug)]
pub(super) struct Proxies(Matcher);

/// How a server is reached.
pub(super) enum Route {
    Direct,
    /// The proxy is sent the whole URL.
    Forward(Intercept),
    /// The proxy opens a tunnel, through which the server is reached with TLS.
    Tunnel(Intercept),
}

/// A proxy in the environment that requests cannot go through. Without this error, they would fail one by one, or bypass it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the proxy {value:?} in {variable} is not supported: set one with http:// or https://, or remove the variable"
)]
pub struct ProxyError {
    /// The variable.
    pub variable: &'static str,
    /// Its value, without user and password.
    pub value: String,
}

impl Proxies {
    /// Of `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, and the same in lower case.
    pub(super) fn of_environment() -> Result<Self, ProxyError> {
        Self::of(|name| std::env::var(name).ok())
    }

    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ProxyError> {
        let first = |names: [&'static str; 2]| {
            names.into_iter().find_map(|name| Some((name, variable(name)?))).unwrap_or_default()
        };
        let all = first(["ALL_PROXY", "all_proxy"]);
        let of_scheme = |names| match first(names) {
            (_, value) if value.is_empty() => checked(&all),
            own => checked(&own),
        };
        let matcher = Matcher::builder()
            .http(of_scheme(["HTTP_PROXY", "http_proxy"])?)
            .https(of_scheme(["HTTPS_PROXY", "https_proxy"])?)
            .no(first(["NO_PROXY", "no_proxy"]).1);
        Ok(Self(matcher.build()))
    }

    /// The route to the host of a URL. As Go's clients, loopback addresses are reached directly.
    pub(super) fn route(&self, uri: &Uri) -> Route {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        match self.0.intercept(uri).filter(|_| !is_loopback) {
            None => Route::Direct,
            Some(proxy) if uri.scheme_str() == Some("http") => Route::Forward(proxy),
            Some(proxy) => Route::Tunnel(proxy),
        }
    }
}

/// The value of a variable, if it is empty or a proxy to which the [`Connector`] connects. The matcher ignores other schemes
/// than those of HTTP and SOCKS.
fn checked((variable, value): &(&'static str, String)) -> Result<String, ProxyError> {
    let proxy = Matcher::builder().all(value).build().intercept(&Uri::from_static("http://host/"));
    let scheme = proxy.as_ref().and_then(|proxy| proxy.uri().scheme_str());
    if value.is_empty() || matches!(scheme, Some("http" | "https")) {
        return Ok(value.clone());
    }
    let (scheme, rest) = value.split_once("://").unwrap_or(("", value));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let separator = if scheme.is_empty() { "" } else { "://" };
    Err(ProxyError { variable, value: format!("{scheme}{separator}{host}") })
}

/// Opens a tunnel through a proxy to the host of a URL.
pub(super) async fn tunnel(
    connector: &Connector,
    proxy: &Intercept,
    uri: &Uri,
) -> io::Result<ClientStream> {
    let direct = Connector { server_name: None, proxies: None, ..connector.clone() };
    let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
    if let Some(auth) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(auth.clone());
    }
    let opened = async { tunnel.ready().await?.call(uri.clone()).await };
    opened.await.map_err(|error| {
        let why = super::post::chain(&error);
        io::Error::other(format!("no connection to {uri} through the proxy {}: {why}", proxy.uri()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_requests_cannot_go_through_is_refused_at_the_start() {
        let good = "http://me:hunter2@p:1";
        for (set, refused) in [
            (&[][..], None),
            (&[("HTTP_PROXY", good), ("https_proxy", "https://p:2"), ("ALL_PROXY", "p:3")], None),
            (&[("HTTP_PROXY", ""), ("HTTPS_PROXY", ""), ("ALL_PROXY", "")], None),
            (&[("HTTPS_PROXY", "socks5://me:hunter2@p:1")], Some(("HTTPS_PROXY", "socks5://p:1"))),
            (&[("http_proxy", "SOCKS5h://p:1")], Some(("http_proxy", "SOCKS5h://p:1"))),
            (&[("ALL_PROXY", "socks4://me@p:1")], Some(("ALL_PROXY", "socks4://p:1"))),
            (&[("HTTP_PROXY", good), ("all_proxy", "quic://p")], Some(("all_proxy", "quic://p"))),
            (&[("HTTP_PROXY", "me:hunter2@p q:1")], Some(("HTTP_PROXY", "p q:1"))),
            // Each scheme has a proxy of its own, so no request uses this one.
            (&[("HTTP_PROXY", good), ("HTTPS_PROXY", good), ("ALL_PROXY", "socks5://p:1")], None),
        ] {
            let variable = |name: &str| {
                let found = set.iter().find(|(set, _)| *set == name)?;
                Some(found.1.to_owned())
            };
            let expected =
                refused.map(|(variable, value)| ProxyError { variable, value: value.to_owned() });
            let error = Proxies::of(variable).err();
            assert_eq!(error, expected, "{set:?}");
            let text = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn the_proxy_of_the_scheme_is_used_unless_the_host_is_reached_directly() {
        let no = ".svc,.cluster.local, 10.0.0.0/8,192.0.2.7,example.com";
        let matcher = Matcher::builder().http("http://me:secret@p:1").https("p:2").no(no).build();
        let proxies = Proxies(matcher);
        assert!(!format!("{proxies:?}").contains("secret"));
        for (url, wanted) in [
            ("http://plain.test", "forward http://p:1/"),
            ("https://a.test:8443/x", "tunnel http://p:2/"),
            ("https://notexample.com", "tunnel http://p:2/"),
            ("https://10.example", "tunnel http://p:2/"),
            ("https://prometheus-k8s.openshift-monitoring.svc.cluster.local:9091", "direct"),
            ("http://alertmanager.monitoring.svc:9093", "direct"),
            ("https://www.example.com", "direct"),
            ("https://example.com", "direct"),
            ("http://10.1.2.3", "direct"),
            ("http://192.0.2.7", "direct"),
            ("http://192.0.2.8", "forward http://p:1/"),
            ("http://LocalHost:1", "direct"),
            ("https://127.1.2.3", "direct"),
            ("https://[::1]:1", "direct"),
        ] {
            let found = match proxies.route(&url.parse().unwrap()) {
                Route::Direct => "direct".to_owned(),
                Route::Forward(proxy) => format!("forward {}", proxy.uri()),
                Route::Tunnel(proxy) => format!("tunnel {}", proxy.uri()),
            };
            assert_eq!(found, wanted, "{url}");
        }
    }
}
