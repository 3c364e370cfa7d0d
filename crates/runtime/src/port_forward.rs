//! Port-forwards: a stream to a port of a pod, through the API server of its cluster.
//!
//! The stream is a WebSocket with the subprotocol `v4.channel.k8s.io`. It has no background task:
//! dropping it closes the connection. kube's own `Portforwarder` is not used, because it can hang
//! (`docs/facts/kube-rs.md#port-forwards`). The wire format is described in
//! `docs/facts/kubernetes.md#port-forwards`.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::{Sink as _, Stream as _};
use http::Request;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message},
};

/// How long it may take until the API server accepts a port-forward.
pub const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// The channel of the data.
const DATA: u8 = 0;
/// The channel of the error.
const ERROR: u8 = 1;
/// Maximum bytes of data in one message.
const CHUNK_BYTES: usize = 32 * 1024;

/// Why a port of a pod cannot be reached. A read of the stream that fails carries it, too.
#[derive(Debug, thiserror::Error)]
pub enum PortForwardError {
    /// The API server did not accept the port-forward.
    #[error("cannot forward port {port} of pod {pod}: {}", reason(source))]
    Connect {
        /// Namespace and name of the pod.
        pod: String,
        /// The port.
        port: u16,
        /// The underlying error.
        source: Box<kube::Error>,
    },
    /// The API server did not respond in time.
    #[error("cannot forward port {port} of pod {pod}: no answer within {seconds} s")]
    Deadline {
        /// Namespace and name of the pod.
        pod: String,
        /// The port.
        port: u16,
        /// The deadline in seconds.
        seconds: u64,
    },
    /// The node of the pod could not forward the port, or no longer can.
    #[error("port {port} of pod {pod} cannot be reached: {text}")]
    Node {
        /// Namespace and name of the pod.
        pod: String,
        /// The port.
        port: u16,
        /// The text of the error channel.
        text: String,
    },
    /// The connection to the API server broke.
    #[error("the port-forward to port {port} of pod {pod} broke: {source}")]
    Broken {
        /// Namespace and name of the pod.
        pod: String,
        /// The port.
        port: u16,
        /// The underlying error.
        source: Box<tungstenite::Error>,
    },
    /// The API server or the node does not follow the protocol.
    #[error("invalid message from the port-forward to port {port} of pod {pod}: {problem}")]
    Protocol {
        /// Namespace and name of the pod.
        pod: String,
        /// The port.
        port: u16,
        /// What is wrong.
        problem: String,
    },
}

/// The reason in the words of the API server, without the fields of its Status. If only `create` is
/// missing, a real one names no reason.
fn reason(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else { return error.to_string() };
    let message = status.message.trim_end_matches([':', ' ']);
    if status.is_forbidden() {
        format!("{message} (get and create of pods/portforward are required)")
    } else if message.is_empty() {
        error.to_string()
    } else {
        message.to_owned()
    }
}

impl From<PortForwardError> for io::Error {
    fn from(error: PortForwardError) -> Self {
        let kind = match &error {
            PortForwardError::Connect { .. } | PortForwardError::Node { .. } => {
                io::ErrorKind::ConnectionRefused
            }
            PortForwardError::Deadline { .. } => io::ErrorKind::TimedOut,
            PortForwardError::Broken { .. } => io::ErrorKind::ConnectionReset,
            PortForwardError::Protocol { .. } => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

/// Opens a stream to a port of a pod, within [`DIAL_DEADLINE`]. Dropping the stream closes it.
///
/// The node connects to the port after that: whether something listens there becomes known when the
/// stream is read. Kubernetes has no half-closed port-forwards: shutting the stream down ends it in
/// both directions.
pub async fn port_forward(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
) -> Result<PortStream, PortForwardError> {
    let target = Target { pod: format!("{namespace}/{pod}"), port };
    let dial = tokio::time::timeout(DIAL_DEADLINE, connect(client, namespace, pod, port));
    match dial.await {
        Ok(Ok(socket)) => Ok(PortStream::new(socket, target)),
        Ok(Err(source)) => {
            Err(PortForwardError::Connect { pod: target.pod, port, source: Box::new(source) })
        }
        Err(_) => {
            let seconds = DIAL_DEADLINE.as_secs();
            Err(PortForwardError::Deadline { pod: target.pod, port, seconds })
        }
    }
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

async fn connect(client: &Client, namespace: &str, pod: &str, port: u16) -> kube::Result<Socket> {
    let pods = kube::core::Request::new(Pod::url_path(&(), Some(namespace)));
    let request: Request<Vec<u8>> =
        pods.portforward(pod, &[port]).map_err(kube::Error::BuildRequest)?;
    let socket = match client.connect(request.clone()).await {
        // A connection of the pool may be closed as it is used, as seen after the refusal of a node. To ask again changes
        // nothing.
        Err(kube::Error::Service(_)) => client.connect(request).await?,
        answer => answer?,
    };
    Ok(socket.into_stream())
}

/// The port that errors name.
#[derive(Clone, Debug)]
struct Target {
    pod: String,
    port: u16,
}

impl Target {
    fn broken(&self, source: tungstenite::Error) -> io::Error {
        let Self { pod, port } = self.clone();
        PortForwardError::Broken { pod, port, source: Box::new(source) }.into()
    }

    fn invalid(&self, problem: impl Into<String>) -> io::Error {
        let Self { pod, port } = self.clone();
        PortForwardError::Protocol { pod, port, problem: problem.into() }.into()
    }

    fn refused(&self, text: &[u8]) -> io::Error {
        let Self { pod, port } = self.clone();
        let text = String::from_utf8_lossy(text).into_owned();
        PortForwardError::Node { pod, port, text }.into()
    }
}

/// The data of one port as a byte stream.
pub struct PortStream {
    socket: Socket,
    target: Target,
    /// Data that was received and not read yet.
    received: Bytes,
    /// Whether each channel has announced its port.
    announced: [bool; 2],
    ended: bool,
}

impl std::fmt::Debug for PortStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PortStream").field(&self.target).finish()
    }
}

impl PortStream {
    fn new(socket: Socket, target: Target) -> Self {
        Self { socket, target, received: Bytes::new(), announced: [false; 2], ended: false }
    }

    /// Handles one message; an error ends the stream.
    fn receive(&mut self, message: Message) -> io::Result<()> {
        if message.is_close() {
            self.ended = true;
        }
        if !message.is_binary() {
            return Ok(());
        }
        let mut data = message.into_data();
        if data.is_empty() {
            return Ok(());
        }
        let channel = data.get_u8();
        let Some(announced) = self.announced.get_mut(usize::from(channel)) else {
            return Err(self.target.invalid(format!("unknown channel {channel}")));
        };
        if !*announced {
            *announced = true;
            let port = self.target.port;
            return if *data == port.to_le_bytes() {
                Ok(())
            } else {
                Err(self.target.invalid(format!("channel {channel} does not begin with {port}")))
            };
        }
        match channel {
            ERROR if data.is_empty() => Ok(()),
            ERROR => Err(self.target.refused(&data)),
            _ => {
                self.received = data;
                Ok(())
            }
        }
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.received.is_empty() && !this.ended {
            let outcome = match ready!(Pin::new(&mut this.socket).poll_next(cx)) {
                Some(Ok(message)) => this.receive(message),
                Some(Err(error)) => Err(this.target.broken(error)),
                None => {
                    this.ended = true;
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                this.ended = true;
                return Poll::Ready(Err(error));
            }
        }
        let count = this.received.len().min(buf.remaining());
        buf.put_slice(&this.received.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let broken = |error| this.target.broken(error);
        ready!(Pin::new(&mut this.socket).poll_ready(cx)).map_err(broken)?;
        let count = data.len().min(CHUNK_BYTES);
        let mut frame = BytesMut::with_capacity(count + 1);
        frame.put_u8(DATA);
        frame.put_slice(&data[..count]);
        let frame = Message::Binary(frame.freeze());
        Pin::new(&mut this.socket).start_send(frame).map_err(broken)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        Pin::new(&mut this.socket).poll_flush(cx).map_err(|error| this.target.broken(error))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match ready!(Pin::new(&mut this.socket).poll_close(cx)) {
            Ok(()) | Err(tungstenite::Error::ConnectionClosed) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(this.target.broken(error))),
        }
    }
}
