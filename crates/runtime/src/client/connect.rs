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
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::Service;

use crate::net::{Dialer, Stream};

const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Opens TLS streams through a [`Dialer`].
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) dialer: Dialer,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) server_name: Option<String>,
}

impl Service<Uri> for Connector {
    type Response = ClientStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<ClientStream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { dialer, tls, server_name } = self.clone();
        Box::pin(async move {
            let connect = connect(&dialer, tls, server_name.as_deref(), &uri);
            tokio::time::timeout(CONNECT_DEADLINE, connect).await.unwrap_or_else(|_| {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {uri}")))
            })
        })
    }
}

async fn connect(
    dialer: &Dialer,
    tls: Arc<rustls::ClientConfig>,
    server_name: Option<&str>,
    uri: &Uri,
) -> io::Result<ClientStream> {
    let invalid =
        |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{uri}: {what}"));
    let host = uri.host().ok_or_else(|| invalid("no host"))?.trim_matches(['[', ']']);
    if uri.scheme_str() == Some("http") {
        let stream = dialer.dial(host, uri.port_u16().unwrap_or(80)).await?;
        return Ok(ClientStream::Plain(TokioIo::new(stream)));
    }
    let name = ServerName::try_from(server_name.unwrap_or(host).to_owned())
        .map_err(|_| invalid("not a server name"))?;
    let stream = dialer.dial(host, uri.port_u16().unwrap_or(443)).await?;
    let stream = TlsConnector::from(tls).connect(name, stream).await?;
    Ok(ClientStream::Tls(Box::new(TokioIo::new(stream))))
}

/// A stream to a server, with or without TLS.
pub(super) enum ClientStream {
    Plain(TokioIo<Stream>),
    Tls(Box<TokioIo<TlsStream<Stream>>>),
}

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        let h2 = match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.inner().get_ref().1.alpn_protocol() == Some(b"h2"),
        };
        if h2 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl Read for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_read(cx, buf),
        }
    }
}

impl Write for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write(cx, data),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_shutdown(cx),
        }
    }
}
