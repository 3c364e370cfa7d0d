//! TLS streams for HTTP clients.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tower::Service;

#[cfg(feature = "web")]
use super::proxy::{Proxies, Route};
use crate::net::Dialer;

const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Opens TLS streams through a [`Dialer`].
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) dialer: Dialer,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) server_name: Option<String>,
    #[cfg(feature = "web")]
    pub(super) proxies: Option<Arc<Proxies>>,
}

impl Service<Uri> for Connector {
    type Response = ClientStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<ClientStream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let connect = connector.connect(&uri);
            tokio::time::timeout(CONNECT_DEADLINE, connect).await.unwrap_or_else(|_| {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {uri}")))
            })
        })
    }
}

impl Connector {
    async fn connect(&self, uri: &Uri) -> io::Result<ClientStream> {
        #[cfg(feature = "web")]
        match self.proxies.as_ref().map_or(Route::Direct, |proxies| proxies.route(uri)) {
            Route::Direct => {}
            Route::Forward(proxy) => {
                return Ok(ClientStream { is_proxied: true, ..self.direct(proxy.uri()).await? });
            }
            Route::Tunnel(proxy) => {
                let stream = super::proxy::tunnel(self, &proxy, uri).await?;
                return self.secure(uri, TokioIo::new(stream)).await;
            }
        }
        self.direct(uri).await
    }

    /// Opens a stream to the host of a URL.
    pub(super) async fn direct(&self, uri: &Uri) -> io::Result<ClientStream> {
        let host = host(uri)?;
        match uri.scheme_str() {
            Some("http") => {
                let stream = self.dialer.dial(host, uri.port_u16().unwrap_or(80)).await?;
                Ok(ClientStream::new(stream))
            }
            Some("https") | None => {
                let stream = self.dialer.dial(host, uri.port_u16().unwrap_or(443)).await?;
                self.secure(uri, stream).await
            }
            Some(_) => Err(invalid(uri)),
        }
    }

    async fn secure<S>(&self, uri: &Uri, stream: S) -> io::Result<ClientStream>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let name = self.server_name.as_deref().map_or_else(|| host(uri), Ok)?;
        let name = ServerName::try_from(name.to_owned()).map_err(|_| invalid(uri))?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(ClientStream { is_h2, ..ClientStream::new(stream) })
    }
}

fn host(uri: &Uri) -> io::Result<&str> {
    Ok(uri.host().ok_or_else(|| invalid(uri))?.trim_matches(['[', ']']))
}

fn invalid(uri: &Uri) -> io::Error {
    let text = format!("invalid URL {uri}, expected https://HOST or http://HOST");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// A stream to a server, with or without TLS.
pub(super) struct ClientStream {
    io: Box<dyn Io>,
    is_h2: bool,
    /// Whether the peer is a proxy, which is sent the whole URL.
    is_proxied: bool,
}

trait Io: Read + Write + Send + Unpin {}

impl<T: Read + Write + Send + Unpin> Io for T {}

impl ClientStream {
    fn new<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Self {
        Self { io: Box::new(TokioIo::new(stream)), is_h2: false, is_proxied: false }
    }
}

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        let connected = Connected::new().proxy(self.is_proxied);
        if self.is_h2 { connected.negotiated_h2() } else { connected }
    }
}

impl Read for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_read(cx, buf)
    }
}

impl Write for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_shutdown(cx)
    }
}
