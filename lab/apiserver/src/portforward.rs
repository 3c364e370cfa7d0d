//! Port-forwards over WebSocket: from an upgraded connection to the handler of a pod's ports.
//!
//! The wire format is kubelet's `v4.channel.k8s.io`: each message begins with the number of its
//! channel, `2 * i` for the data of port `i` and `2 * i + 1` for its error. The first message of each
//! channel carries its port (`docs/facts/kubernetes.md#port-forwards`).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream::{FuturesUnordered, SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderMap, Method, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

use crate::error::ApiError;
use crate::path::Query;
use crate::resources::Resource;
use crate::server::Shared;
use crate::store::Entry;

/// The only subprotocol, in binary.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Bytes of data in one message.
const CHUNK_BYTES: usize = 32 * 1024;
/// Messages that wait to be sent; the streams of the ports wait while there are more.
const QUEUE: usize = 8;
/// Each port has two of the 256 channels.
const MOST_PORTS: usize = 128;
/// How long the client may take to confirm the end of a port-forward.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// A pod whose port a client wants to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Uid of the pod.
    pub uid: String,
    /// Name of the node that the pod runs on.
    pub node: String,
}

/// Opens a stream to a port of a pod; `None` refuses the connection. It runs inside a request and
/// must not call the server.
pub type PortHandler = Box<dyn Fn(&PodIdentity, u16) -> Option<DuplexStream> + Send + Sync>;

/// A request to switch to WebSocket that this server can fulfil.
pub(crate) struct Handshake {
    accept: String,
    protocol: Option<&'static str>,
    upgrade: OnUpgrade,
}

impl Handshake {
    /// Reads the handshake; `None` if it is not one, or requests only other subprotocols.
    pub(crate) fn read(parts: &Parts) -> Option<Self> {
        let headers = &parts.headers;
        let is_websocket = parts.method == Method::GET
            && lists(headers, &header::CONNECTION, "upgrade")
            && lists(headers, &header::UPGRADE, "websocket")
            && lists(headers, &header::SEC_WEBSOCKET_VERSION, "13");
        let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| is_websocket)?;
        let protocol = match headers.get(header::SEC_WEBSOCKET_PROTOCOL) {
            None => None,
            Some(_) if lists(headers, &header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL) => Some(PROTOCOL),
            Some(_) => return None,
        };
        let upgrade = parts.extensions.get::<OnUpgrade>()?.clone();
        Some(Self { accept: derive_accept_key(key.as_bytes()), protocol, upgrade })
    }

    /// The headers of the response, besides those of every upgrade.
    pub(crate) fn switch(&self) -> Switch {
        Switch { accept: self.accept.clone(), protocol: self.protocol }
    }
}

/// The response to a handshake.
pub(crate) struct Switch {
    pub(crate) accept: String,
    pub(crate) protocol: Option<&'static str>,
}

/// Whether a header with a list of words contains this one.
fn lists(headers: &HeaderMap, name: &header::HeaderName, wanted: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case(wanted))
}

/// The ports that a request names.
pub(crate) fn ports_of(query: &Query) -> Result<Vec<u16>, ApiError> {
    let text = query.get("ports");
    if text.is_empty() {
        return Err(ApiError::bad_request("query parameter \"ports\" is required"));
    }
    let bad = || ApiError::bad_request(format!("unable to parse {text:?} as a port"));
    let read = |port: &str| port.parse().ok().filter(|port| *port > 0).ok_or_else(bad);
    let ports: Vec<u16> = text.split(',').map(read).collect::<Result<_, _>>()?;
    if ports.len() > MOST_PORTS {
        return Err(ApiError::bad_request(format!("more than {MOST_PORTS} ports")));
    }
    Ok(ports)
}

/// The identity of a stored pod; an error if it runs nowhere.
pub(crate) fn identify(pod: &Value) -> Result<PodIdentity, ApiError> {
    let text =
        |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let pod = PodIdentity {
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name"),
        uid: text("/metadata/uid"),
        node: text("/spec/nodeName"),
    };
    if pod.node.is_empty() {
        let why = format!("pod {} does not have a host assigned", pod.name);
        return Err(ApiError::bad_request(why));
    }
    Ok(pod)
}

/// One port of a port-forward.
struct Forward {
    port: u16,
    stream: Option<DuplexStream>,
}

/// A port-forward to a pod.
pub(crate) struct PortForward {
    pod: PodIdentity,
    forwards: Vec<Forward>,
    user_agent: String,
    resource: Arc<Resource>,
}

impl PortForward {
    /// Connects the ports of a pod.
    pub(crate) fn open(
        shared: &Shared,
        resource: &Arc<Resource>,
        pod: PodIdentity,
        ports: Vec<u16>,
        user_agent: &str,
    ) -> Self {
        let forwards = ports
            .into_iter()
            .map(|port| Forward { port, stream: shared.open_port(&pod, port) })
            .collect();
        let (user_agent, resource) = (user_agent.to_owned(), resource.clone());
        Self { pod, forwards, user_agent, resource }
    }

    /// Serves the port-forward in the background, until either side or the pod ends.
    pub(crate) fn spawn(self, shared: Arc<Shared>, handshake: &Handshake) {
        let upgrade = handshake.upgrade.clone();
        tokio::spawn(async move {
            // The client may go before it reads the response.
            let Ok(upgraded) = upgrade.await else {
                return;
            };
            let io = TokioIo::new(upgraded);
            let socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
            let cut = cut_off(shared, self.resource, self.pod.clone(), self.user_agent);
            serve(socket, &self.pod, self.forwards, cut).await;
        });
    }
}

/// Completes when the API goes down for this client, its watches are dropped or the pod is gone.
async fn cut_off(
    shared: Arc<Shared>,
    resource: Arc<Resource>,
    pod: PodIdentity,
    user_agent: String,
) {
    let epoch = shared.watch_epoch();
    let key = crate::store::key_of(&pod.namespace, &pod.name);
    let same = |entry: &Arc<Entry>| entry.value()["metadata"]["uid"] == *pod.uid;
    let notify = shared.lock().notify(&resource.id);
    loop {
        let woken = notify.notified();
        tokio::pin!(woken);
        // Registered before the check, so that no change is missed.
        woken.as_mut().enable();
        let exists = shared.lock().get(&resource.id, &key).as_ref().is_some_and(same);
        if !exists || shared.is_down(&user_agent) || shared.watch_epoch() != epoch {
            return;
        }
        woken.await;
    }
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

async fn serve(
    socket: Socket,
    pod: &PodIdentity,
    forwards: Vec<Forward>,
    cut: impl Future<Output = ()>,
) {
    let (sink, mut source) = socket.split();
    let (frames, queue) = mpsc::channel(QUEUE);
    let mut writers = Vec::new();
    let pumps = FuturesUnordered::new();
    let mut first = Vec::new();
    for (channel, Forward { port, stream }) in (0_u8..=254).step_by(2).zip(forwards) {
        let number = port.to_le_bytes();
        first.extend([frame(channel, &number), frame(channel + 1, &number)]);
        let Some(stream) = stream else {
            let PodIdentity { name, uid, .. } = pod;
            let error = format!(
                "error forwarding port {port} to pod {name}, uid {uid}: connect: connection refused"
            );
            first.push(frame(channel + 1, error.as_bytes()));
            writers.push(None);
            continue;
        };
        let (reader, writer) = tokio::io::split(stream);
        writers.push(Some(writer));
        pumps.push(pump(channel, reader, frames.clone()));
    }
    drop(frames);
    let pumps = pumps.collect::<()>();
    let sending = async { tokio::join!(pumps, send(sink, first, queue)) };
    let finished = tokio::select! {
        biased;
        () = cut => false,
        _ = sending => true,
        () = receive(&mut source, &mut writers) => false,
    };
    if finished {
        let confirmed = async { while let Some(Ok(_)) = source.next().await {} };
        let _ = tokio::time::timeout(CLOSE_DEADLINE, confirmed).await;
    }
}

fn frame(channel: u8, data: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(data.len() + 1);
    bytes.put_u8(channel);
    bytes.put_slice(data);
    bytes.freeze()
}

/// Reads the data of one port until it ends.
async fn pump(channel: u8, mut reader: ReadHalf<DuplexStream>, frames: mpsc::Sender<Bytes>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = reader.read(&mut chunk).await {
        if frames.send(frame(channel, &chunk[..count])).await.is_err() {
            return;
        }
    }
}

/// Sends messages until all ports have ended, then closes the connection, as kubelet does.
async fn send(
    mut sink: SplitSink<Socket, Message>,
    first: Vec<Bytes>,
    mut queue: mpsc::Receiver<Bytes>,
) {
    for frame in first {
        if sink.send(Message::Binary(frame)).await.is_err() {
            return;
        }
    }
    while let Some(frame) = queue.recv().await {
        if sink.send(Message::Binary(frame)).await.is_err() {
            return;
        }
    }
    let _ = sink.close().await;
}

/// Passes messages on to the ports until the client closes the connection.
async fn receive(
    source: &mut SplitStream<Socket>,
    writers: &mut [Option<WriteHalf<DuplexStream>>],
) {
    while let Some(Ok(message)) = source.next().await {
        // Waiting for the next message also sends the responses to pings and to the end.
        if !message.is_binary() {
            continue;
        }
        let data = message.into_data();
        let Some((channel, data)) = data.split_first() else {
            continue;
        };
        // The error channels are for the server.
        if channel % 2 == 1 {
            continue;
        }
        if let Some(Some(writer)) = writers.get_mut(usize::from(channel / 2)) {
            // A port that no longer reads may still write.
            let _ = writer.write_all(data).await;
        }
    }
}
