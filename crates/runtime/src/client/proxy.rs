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
