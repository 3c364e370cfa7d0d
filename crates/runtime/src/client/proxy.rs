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

impl Proxies {
    /// Of `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, and the same in lower case.
    pub(super) fn of_environment() -> Self {
        Self(Matcher::from_env())
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
